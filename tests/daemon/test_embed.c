/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared library libkwkerd as an application sees it: kwkerd.h and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/kwkerd.h"

static void an_application_runs_a_daemon_of_its_own(void **state)
{
    kwkd_options o = KWKD_OPTIONS_INIT;
    char dir[] = "/tmp/kwkd-embed-XXXXXX", door[64], line[128], lock[64];
    struct pollfd p = {.events = POLLIN};
    kwk_error err = {0};
    kwkd *d = NULL;

    assert_non_null(mkdtemp(dir));
    o.runtime_dir = dir;
    if (kwkd_new(&d, &o, &err) < 0)
        fail_msg("%s", err.msg);
    snprintf(door, sizeof door, "%s/door.sock", dir);
    assert_int_equal(access(door, F_OK), 0);
    kwkd_describe(d, line, sizeof line);
    assert_string_equal(line, "0 models, 0 sessions, 0 running, 0 waiting");
    assert_int_equal(kwkd_healthy(d), 1);
    p.fd = kwkd_fd(d);
    assert_int_equal(poll(&p, 1, 3000), 1);
    assert_int_equal(kwkd_dispatch(d), 1);
    kwkd_stop(d);
    kwkd_run(d);
    kwkd_free(d);
    assert_int_not_equal(access(door, F_OK), 0);
    snprintf(lock, sizeof lock, "%s/kwkerd.lock", dir);
    unlink(lock);
    assert_int_equal(rmdir(dir), 0); // nothing else was left
}

static void a_bad_option_is_an_error(void **state)
{
    kwkd_options o = KWKD_OPTIONS_INIT;
    kwk_error err = {0};
    kwkd *d = NULL;

    o.runtime_dir = "relative";
    assert_true(kwkd_new(&d, &o, &err) < 0);
    assert_non_null(strstr(err.msg, "relative"));
    assert_null(d);
    kwkd_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_application_runs_a_daemon_of_its_own),
        cmocka_unit_test(a_bad_option_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
