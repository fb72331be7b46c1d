/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"
#include "tests/daemon/harness.h"

/* What a log call writes, without its time. */
static const char *logged(kwkd_level level, const char *event, const char *value)
{
    static char line[4096];
    int fds[2];
    ssize_t n;

    assert_int_equal(pipe(fds), 0);
    kwkd_log_open(fds[1], KWKD_INFO);
    kwkd_log(level, event, "name=%s n=%d big=%lu x=%x f=%.2f all=%d%%", value, -5, 1ul << 40, 255,
             0.5, 7);
    close(fds[1]);
    n = read(fds[0], line, sizeof line - 1);
    close(fds[0]);
    line[n < 0 ? 0 : n] = 0;
    kwkd_log_open(-1, KWKD_INFO);
    return line;
}

static void a_line_has_time_level_event_and_fields(void **state)
{
    const char *line = logged(KWKD_WARNING, "model ready", "smol");

    assert_int_equal(line[4], '-');
    assert_non_null(strstr(line,
                           "Z warning model ready name=smol n=-5 big=1099511627776 x=ff f=0.50 "
                           "all=7%\n"));
}

static void values_cannot_forge_a_field_or_a_line(void **state)
{
    assert_non_null(strstr(logged(KWKD_INFO, "e", "a b=c"), "name=\"a b=c\" n="));
    assert_non_null(
        strstr(logged(KWKD_INFO, "e", "a\n2026 error x"), "name=\"a\\x0a2026 error x\""));
    assert_non_null(strstr(logged(KWKD_INFO, "e", "\"\\"), "name=\"\\\"\\\\\" "));
    assert_non_null(strstr(logged(KWKD_INFO, "e", "\x1b[2J\xc2\x9b"), "\"\\x1b[2J\\xc2\\x9b\""));
    assert_non_null(strstr(logged(KWKD_INFO, "e", ""), "name=\"\" "));
    assert_non_null(strstr(logged(KWKD_INFO, "e", NULL), "name=- "));
}

static void a_long_value_is_cut_and_the_line_still_ends(void **state)
{
    char value[3000];
    const char *line;

    memset(value, 'x', sizeof value);
    value[sizeof value - 1] = 0;
    line = logged(KWKD_INFO, "e", value);
    assert_int_equal(strlen(line), 1024);
    assert_int_equal(line[1023], '\n');
}

static void events_below_the_level_are_not_written(void **state)
{
    assert_string_equal(logged(KWKD_DEBUG, "e", "x"), "");
    assert_string_not_equal(logged(KWKD_NOTICE, "e", "x"), "");
}

static void the_journal_gets_priorities_instead_of_times(void **state)
{
    char name[] = "/tmp/kwkd-log-XXXXXX", env[64], line[64] = "";
    const int fd = mkstemp(name);
    struct stat st;

    assert_true(fd >= 0);
    unlink(name);
    fstat(fd, &st);
    snprintf(env, sizeof env, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", env, 1);
    kwkd_log_open(fd, KWKD_INFO);
    kwkd_log(KWKD_ERROR, "event", "a=%d", 1);
    unsetenv("JOURNAL_STREAM");
    kwkd_log_open(-1, KWKD_INFO);
    assert_true(pread(fd, line, sizeof line - 1, 0) > 0);
    close(fd);
    assert_string_equal(line, "<3>event a=1\n");
}

static void levels_have_names(void **state)
{
    assert_int_equal(kwkd_log_level_named("error"), KWKD_ERROR);
    assert_int_equal(kwkd_log_level_named("debug"), KWKD_DEBUG);
    assert_int_equal(kwkd_log_level_named("loud"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_event_and_fields),
        cmocka_unit_test(values_cannot_forge_a_field_or_a_line),
        cmocka_unit_test(a_long_value_is_cut_and_the_line_still_ends),
        cmocka_unit_test(events_below_the_level_are_not_written),
        cmocka_unit_test(the_journal_gets_priorities_instead_of_times),
        cmocka_unit_test(levels_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
