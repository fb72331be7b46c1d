/* SPDX-License-Identifier: Apache-2.0
 *
 * models.c: loading by path and by descriptor, progress, failures; unload and pin.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "client/kwkclient.h"
#include "proto/unix_socket.h"
#include "tests/support/fake_daemon.h"

typedef struct fixture {
    fake_daemon *d;
    kwk_client *c;
} fixture;

static int start(void **state)
{
    static fixture f;
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;

    f.d = fake_start();
    o.timeout_ms = 500;
    assert_int_equal(kwk_client_open(&f.c, f.d->dir, &o, NULL), KWK_OK);
    *state = &f;
    return 0;
}

static int stop(void **state)
{
    fixture *f = *state;

    kwk_client_close(f->c);
    fake_stop(f->d);
    return 0;
}

static kwk_client_load by_path(const char *name)
{
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;

    l.name = name;
    l.path = "/models/m";
    return l;
}

typedef struct seen {
    double last;
    int calls, stop_at;
} seen;

static int watch(void *arg, double fraction)
{
    seen *s = arg;

    assert_true(fraction >= s->last && fraction <= 1);
    s->last = fraction;
    return ++s->calls == s->stop_at;
}

static void a_load_returns_when_the_model_is_ready(void **state)
{
    fixture *f = *state;
    kwk_client_load l = by_path("m");
    seen s = {0};
    char *json = NULL;
    kwk_error err;

    l.progress = watch;
    l.progress_arg = &s;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_OK);
    assert_true(s.last == 1 && s.calls >= 3);
    assert_int_equal(kwk_client_query(f->c, "models", &json, &err), KWK_OK);
    assert_non_null(strstr(json, "\"name\":\"m\",\"state\":\"ready\""));
    kwk_client_free(json);
    s = (seen){0};
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_OK); // again
    assert_int_equal(s.calls, 1);
    l.progress = NULL;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_OK);
}

static void a_failed_load_gives_the_daemons_reason(void **state)
{
    fixture *f = *state;
    kwk_client_load l = by_path("m");
    kwk_error err;

    f->d->load_fails = 1;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "tensor 3 is damaged");
    l = by_path("n");
    l.path = "/gone";
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_ENOENT);
    assert_string_equal(err.msg, "'/gone' does not exist");
}

static void waiting_can_be_stopped_and_times_out(void **state)
{
    fixture *f = *state;
    kwk_client_load l = by_path("m");
    seen s = {.stop_at = 1};
    kwk_error err;

    l.progress = watch;
    l.progress_arg = &s;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_ECANCELED);
    l = by_path("n");
    l.timeout_ms = 1;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_ETIMEOUT);
    assert_non_null(strstr(err.msg, "still loading"));
}

static void a_pack_is_handed_over_at_the_door(void **state)
{
    fixture *f = *state;
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_error err;
    const int fd = kwk_memfd_create("pack", 4096, &err);

    assert_int_equal(pwrite(fd, "K", 1, 0), 1);
    l.name = "m";
    l.fd = fd;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_OK);
    assert_int_equal(f->d->n_packs, 1);
    assert_int_equal(f->d->pack_byte, 'K');
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC); // still the caller's, still open
    close(fd);
}

static void packs_that_are_refused_or_ignored_are_errors(void **state)
{
    fixture *f = *state;
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_error err;
    const int64_t began = kwk_now_ms();

    l.name = "m";
    l.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "an empty pack");
    f->d->pack_silent = 1;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_ETIMEOUT);
    assert_true(kwk_now_ms() - began >= 500);
    close(l.fd);
    l.fd = 9999;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "descriptor 9999 is not open");
}

static void loads_without_a_source_or_with_two_are_refused(void **state)
{
    fixture *f = *state;
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_error err;

    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "name: missing");
    l.name = "m";
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EINVAL);
    l.path = "/p";
    l.fd = 0;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EINVAL);
    l.fd = -1;
    l.timeout_ms = -1;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EINVAL);
    l.timeout_ms = 0;
    l.mix_bits = 99;
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_EINVAL);
    assert_non_null(strstr(err.msg, "mix_bits"));
    assert_int_equal(kwk_client_load_model(f->c, NULL, &err), KWK_EINVAL);
    assert_int_equal(f->d->n_packs, 0);
}

static void models_are_unloaded_and_pinned_by_name(void **state)
{
    fixture *f = *state;
    const kwk_client_load l = by_path("m");
    char *json = NULL;
    kwk_error err;

    assert_int_equal(kwk_client_pin(f->c, "m", 1, &err), KWK_ENOENT);
    assert_int_equal(kwk_client_load_model(f->c, &l, &err), KWK_OK);
    for (int pin = 1; pin >= 0; pin--) {
        assert_int_equal(kwk_client_pin(f->c, "m", pin, &err), KWK_OK);
        assert_int_equal(kwk_client_query(f->c, "models", &json, &err), KWK_OK);
        assert_non_null(strstr(json, pin ? "\"pin\":true" : "\"pin\":false"));
        kwk_client_free(json);
    }
    assert_int_equal(kwk_client_unload(f->c, "m", &err), KWK_OK);
    assert_int_equal(kwk_client_unload(f->c, "m", &err), KWK_ENOENT);
    assert_string_equal(err.msg, "model 'm' is not loaded");
    assert_int_equal(kwk_client_unload(f->c, NULL, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_unload(f->c, "", &err), KWK_EINVAL);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(a_load_returns_when_the_model_is_ready),
        TEST(a_failed_load_gives_the_daemons_reason),
        TEST(waiting_can_be_stopped_and_times_out),
        TEST(a_pack_is_handed_over_at_the_door),
        TEST(packs_that_are_refused_or_ignored_are_errors),
        TEST(loads_without_a_source_or_with_two_are_refused),
        TEST(models_are_unloaded_and_pinned_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
