/* SPDX-License-Identifier: Apache-2.0
 *
 * client.c, door.c, control.c, pump.c: sessions with daemons good and bad, death, fork, descriptors.
 */
#include "tests/support/check.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kwkclient.h"
#include "proto/unix_socket.h"
#include "tests/support/fake_daemon.h"

static int start(void **state)
{
    *state = fake_start();
    return 0;
}

static int stop(void **state)
{
    fake_stop(*state);
    return 0;
}

static kwk_client *open_client(const fake_daemon *d, int event_loop)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_client *c = NULL;
    kwk_error err;

    o.timeout_ms = 5000;
    o.event_loop = event_loop;
    if (kwk_client_open(&c, d->dir, &o, &err) < 0)
        fail_msg("%s", err.msg);
    return c;
}

static int n_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static kwk_stream *generate(kwk_client *c, const char *model, int n)
{
    const int32_t prompt[] = {10};
    kwk_generate g = KWK_GENERATE_INIT;
    kwk_stream *s = NULL;
    kwk_error err;

    g.model = model;
    g.prompt = prompt;
    g.n_prompt = 1;
    g.max_new_tokens = n;
    if (kwk_client_generate(&s, c, &g, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

/* ---- opening ----------------------------------------------------------------------------------- */

static void a_session_opens_answers_and_closes_without_a_trace(void **state)
{
    fake_daemon *d = *state;
    const int before = n_fds();
    char *json = NULL;
    kwk_error err;

    for (int i = 0; i < 3; i++) {
        kwk_client *c = open_client(d, i == 2);
        assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_OK);
        assert_non_null(strstr(json, "\"server\":\"fake/1\""));
        assert_int_equal(json[0], '{');
        assert_null(strstr(json, "\"ok\"")); // only what was asked for
        kwk_client_free(json);
        kwk_client_close(c);
    }
    kwk_client_close(NULL);
    for (int i = 0; i < 200 && n_fds() > before; i++)
        usleep(5000); // the stand-in closes its ends in its own time
    assert_true(n_fds() <= before);
}

static void an_address_without_a_daemon_is_named(void **state)
{
    kwk_client *c = NULL;
    kwk_error err;
    char longest[120];

    assert_int_equal(kwk_client_open(&c, "/nowhere/kwker", NULL, &err), KWK_ENOENT);
    assert_string_equal(err.msg, "no kwkerd at '/nowhere/kwker/door.sock'");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(kwk_client_open(&c, longest, NULL, &err), KWK_EINVAL);
    longest[98] = 0; // the directory fits, the socket's name does not
    assert_int_equal(kwk_client_open(&c, longest, NULL, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_open(NULL, "/x", NULL, &err), KWK_EINVAL);
    assert_null(c);
}

static void the_environment_tells_where_the_daemon_is(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = NULL;
    char runtime[64], link[100];
    kwk_error err;

    setenv("KWKER_DAEMON", d->dir, 1);
    assert_int_equal(kwk_client_open(&c, NULL, NULL, &err), KWK_OK);
    kwk_client_close(c);
    assert_int_equal(kwk_client_open(&c, "/nowhere", NULL, &err), KWK_ENOENT); // an argument wins
    unsetenv("KWKER_DAEMON");

    strcpy(runtime, "/tmp/kwk-run-XXXXXX");
    assert_non_null(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    if (access("/run/kwker/door.sock", F_OK)) { // this machine's own daemon is not asked
        assert_int_equal(kwk_client_open(&c, NULL, NULL, &err), KWK_ENOENT);
        assert_string_equal(err.msg, "no kwkerd at '/run/kwker/door.sock'");
    }
    snprintf(link, sizeof link, "%s/kwker", runtime);
    assert_int_equal(symlink(d->dir, link), 0);
    assert_int_equal(kwk_client_open(&c, NULL, NULL, &err), KWK_OK);
    kwk_client_close(c);
    unsetenv("XDG_RUNTIME_DIR");
    unlink(link);
    rmdir(runtime);
}

static void options_of_other_versions_are_understood_or_refused(void **state)
{
    fake_daemon *d = *state;
    struct {
        kwk_client_options o;
        uint64_t later; // no padding behind it
    } longer = {KWK_CLIENT_OPTIONS_INIT, 0};
    struct {
        size_t size;
        int timeout_ms;
    } shorter = {sizeof shorter, 1000};
    kwk_client *c = NULL;
    kwk_error err;

    longer.o.size = sizeof longer;
    assert_int_equal(kwk_client_open(&c, d->dir, &longer.o, &err), KWK_OK);
    kwk_client_close(c);
    longer.later = 1;
    c = NULL;
    assert_int_equal(kwk_client_open(&c, d->dir, &longer.o, &err), KWK_EUNSUPPORTED);
    assert_int_equal(kwk_client_open(&c, d->dir, (kwk_client_options *)&shorter, &err), KWK_OK);
    kwk_client_close(c);
    longer.o.size = 0;
    assert_int_equal(kwk_client_open(&c, d->dir, &longer.o, &err), KWK_EINVAL);
    longer.o = (kwk_client_options)KWK_CLIENT_OPTIONS_INIT;
    longer.o.timeout_ms = -1;
    assert_int_equal(kwk_client_open(&c, d->dir, &longer.o, &err), KWK_EINVAL);
}

static void every_bad_welcome_is_refused_and_nothing_leaks(void **state)
{
    static const struct {
        fake_welcome mode;
        int code;
        const char *says;
    } cases[] = {
        {FAKE_WELCOME_SILENT, KWK_ETIMEOUT, "no answer"},
        {FAKE_WELCOME_CLOSE, KWK_ECLOSED, "closed the door"},
        {FAKE_WELCOME_BUSY, KWK_EBUSY, "too many sessions"},
        {FAKE_WELCOME_GARBAGE, KWK_EPROTO, "not a map"},
        {FAKE_WELCOME_VERSION, KWK_EPROTO, "version 2; this side speaks 1"},
        {FAKE_WELCOME_LONG, KWK_EPROTO, "over 65536"},
        {FAKE_WELCOME_NO_FDS, KWK_EPROTO, "descriptors"},
        {FAKE_WELCOME_ONE_FD, KWK_EPROTO, "descriptors"},
        {FAKE_WELCOME_EXTRA_FD, KWK_EPROTO, "descriptors"},
        {FAKE_WELCOME_MANY_FDS, KWK_EBUSY, "lost"},
        {FAKE_WELCOME_UNSEALED, KWK_EPROTO, "not sealed"},
        {FAKE_WELCOME_SMALL, KWK_EPROTO, "announced"},
        {FAKE_WELCOME_PIPES, KWK_EPROTO, "not a memfd"},
        {FAKE_WELCOME_MAGIC, KWK_EPROTO, "magic"},
        {FAKE_WELCOME_SLOTS, KWK_EPROTO, "7 slots"},
        {FAKE_WELCOME_SESSION, KWK_EPROTO, "without a session"},
        {FAKE_WELCOME_NO_CTL, KWK_EPROTO, "without a session or a control"},
        {FAKE_WELCOME_LONG_CTL, KWK_EPROTO, "names control socket"},
    };
    fake_daemon *d = *state;
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    const int before = n_fds();

    o.timeout_ms = 150;
    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        kwk_client *c = NULL;
        kwk_error err = {0};
        d->welcome = cases[i].mode;
        assert_int_equal(kwk_client_open(&c, d->dir, &o, &err), cases[i].code);
        assert_null(c);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("case %d: %s", cases[i].mode, err.msg);
    }
    for (int i = 0; i < 200 && n_fds() > before; i++)
        usleep(5000);
    assert_true(n_fds() <= before);

    d->welcome = FAKE_WELCOME_RELATIVE_CTL;
    kwk_client_close(open_client(d, 0));
}

static void a_daemon_without_a_control_socket_is_reported(void **state)
{
    fake_daemon *d = *state;
    char path[128];
    kwk_client *c = NULL;
    kwk_error err;

    snprintf(path, sizeof path, "%s/kwkerd.sock", d->dir);
    unlink(path);
    assert_int_equal(kwk_client_open(&c, d->dir, NULL, &err), KWK_ENOENT);
    assert_null(c);
}

/* ---- control ----------------------------------------------------------------------------------- */

static void errors_of_the_daemon_arrive_with_code_and_text(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 0);
    char *json = NULL;
    kwk_error err;

    d->error = KWK_EPERM;
    assert_int_equal(kwk_client_query(c, "models", &json, &err), KWK_EPERM);
    assert_int_equal(err.code, KWK_EPERM);
    assert_string_equal(err.msg, "as the test wants it");
    d->error = KWK_EBUSY;
    assert_int_equal(kwk_client_query(c, "models", &json, &err), KWK_EBUSY);
    assert_string_equal(err.msg, "as the test wants it; try again in 70 ms");
    d->error = 0;
    assert_int_equal(kwk_client_query(c, "load", &json, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_query(c, NULL, &json, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_query(c, "status", NULL, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_query(NULL, "status", &json, &err), KWK_EINVAL);
    assert_null(json);
    kwk_client_close(c);
}

static void a_reply_that_is_garbage_is_a_violation(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 0);
    char *json = NULL;
    kwk_error err;

    d->garbage = 1;
    assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_EPROTO);
    d->garbage = 0;
    assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_OK);
    kwk_client_free(json);
    kwk_client_close(c);
}

static void control_is_opened_again_after_silence_and_after_a_restart(void **state)
{
    fake_daemon *d = *state;
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_client *c = NULL;
    char *json = NULL;
    kwk_error err;

    o.timeout_ms = 100;
    assert_int_equal(kwk_client_open(&c, d->dir, &o, &err), KWK_OK);
    d->silent = 1;
    assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_ETIMEOUT);
    d->silent = 0;
    assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_OK);
    kwk_client_free(json);

    fake_restart_control(d);
    usleep(20000); // until the client's end has seen it
    assert_int_equal(kwk_client_query(c, "metrics", &json, &err), KWK_OK);
    assert_non_null(strstr(json, "kwk_tokens_total 5"));
    kwk_client_free(json);
    kwk_client_close(c);
}

static void *query_many(void *arg)
{
    kwk_error err;

    for (int i = 0; i < 50; i++) {
        char *json = NULL;
        if (kwk_client_query(arg, i % 2 ? "status" : "models", &json, &err) < 0)
            return "failed";
        if (!strstr(json, i % 2 ? "fake/1" : "models"))
            return "someone else's answer";
        kwk_client_free(json);
    }
    return NULL;
}

static void threads_share_a_session(void **state)
{
    kwk_client *c = open_client(*state, 0);
    pthread_t threads[4];
    void *what;

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, query_many, c);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &what);
        if (what)
            fail_msg("%s", (char *)what);
    }
    kwk_client_close(c);
}

/* Greets like a REP socket and closes, again and again. */
static void *slam(void *arg)
{
    int fd;

    while ((fd = accept(*(int *)arg, NULL, NULL)) >= 0) {
        (void)send(fd, "\0SP\0\0\x31\0\0", 8, MSG_NOSIGNAL);
        close(fd);
    }
    return NULL;
}

static void a_control_socket_that_only_slams_is_given_up_in_time(void **state)
{
    fake_daemon *d = *state;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_client *c = NULL;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int64_t began = kwk_now_ms();
    pthread_t thread;
    int rc;

    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/kwkerd.sock", d->dir);
    unlink(sa.sun_path);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(fd, 8), 0);
    pthread_create(&thread, NULL, slam, (void *)&fd);
    o.timeout_ms = 200;
    rc = kwk_client_open(&c, d->dir, &o, NULL);
    assert_true(rc == KWK_ECLOSED || rc == KWK_ETIMEOUT);
    assert_true(kwk_now_ms() - began < 1000);
    shutdown(fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(fd);
}

/* ---- death ------------------------------------------------------------------------------------- */

static void *kill_soon(void *arg)
{
    usleep(50000);
    fake_kill(arg);
    return NULL;
}

static void a_waiting_reader_notices_death_within_200_ms(void **state)
{
    for (int event_loop = 0; event_loop <= 1; event_loop++) {
        fake_daemon *d = fake_start();
        kwk_client *c = open_client(d, event_loop);
        kwk_stream *s = generate(c, "manual", 5);
        kwk_event e;
        kwk_error err;
        pthread_t thread;
        const int64_t began = kwk_now_ms();

        pthread_create(&thread, NULL, kill_soon, d);
        assert_int_equal(kwk_stream_next(s, &e, -1, &err), KWK_ECLOSED);
        assert_true(kwk_now_ms() - began < 50 + 200);
        pthread_join(thread, NULL);
        assert_int_equal(kwk_stream_next(s, &e, 0, &err), KWK_EINVAL); // it has ended
        kwk_stream_free(s);

        char *json = NULL;
        assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_ECLOSED);
        assert_int_equal(kwk_client_drain(c, &err), KWK_ECLOSED);
        kwk_client_close(c);
        fake_stop(d);
    }
}

static void a_control_call_notices_death(void **state)
{
    fake_daemon *d = fake_start();
    kwk_client *c = open_client(d, 0);
    char *json = NULL;
    kwk_error err;

    fake_kill(d);
    assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_ECLOSED);
    assert_string_equal(err.msg, "kwkerd closed the session");
    kwk_client_close(c);
    fake_stop(d);
}

static void what_was_published_before_death_is_still_given(void **state)
{
    fake_daemon *d = fake_start();
    kwk_client *c = open_client(d, 0);
    kwk_stream *s = generate(c, "manual", 5);
    kwk_event e;
    kwk_error err;

    fake_record(d, (uint32_t)d->last_stream, KWK_REC_TOKEN, 5, "", 0);
    fake_record(d, (uint32_t)d->last_stream, KWK_REC_TOKEN, 6, "", 0);
    fake_kill(d);
    for (int token = 5; token <= 6; token++) {
        assert_int_equal(kwk_stream_next(s, &e, 0, &err), 1);
        assert_int_equal(e.token, token);
    }
    assert_int_equal(kwk_stream_next(s, &e, 0, &err), KWK_ECLOSED);
    kwk_client_close(c);
    fake_stop(d);
}

static void the_daemons_reason_for_ending_a_session_is_given(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 0);
    kwk_stream *s = generate(c, "manual", 5);
    kwk_event e;
    kwk_error err;

    fake_end_session(d, KWK_EPROTO, "ring head 4 is outside 5 to 10");
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), KWK_EPROTO);
    assert_string_equal(err.msg, "ring head 4 is outside 5 to 10");
    kwk_client_close(c);
}

/* ---- a hostile ring ---------------------------------------------------------------------------- */

static void a_damaged_ring_ends_the_session_with_a_violation(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 0);
    kwk_stream *s = generate(c, "manual", 5);
    kwk_event e;
    kwk_error err;

    d->stall = 1;
    usleep(5000);
    fake_out(d)->tail = 1000000;
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), KWK_EPROTO);
    assert_non_null(strstr(err.msg, "ring tail"));
    kwk_stream_free(s);
    kwk_client_close(c);
}

/* ---- event loops ------------------------------------------------------------------------------- */

static int readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, timeout_ms) == 1;
}

static void the_descriptor_is_readable_when_something_happened(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 1);
    const int fd = kwk_client_fd(c);
    kwk_stream *s = generate(c, "manual", 5);
    kwk_event e;
    kwk_error err;

    assert_true(fd >= 0);
    assert_int_equal(kwk_client_drain(c, &err), KWK_OK);
    assert_false(readable(fd, 20));
    fake_record(d, (uint32_t)d->last_stream, KWK_REC_TOKEN, 5, "", 0);
    assert_true(readable(fd, 1000));
    assert_int_equal(kwk_client_drain(c, &err), KWK_OK);
    assert_int_equal(kwk_stream_next(s, &e, 0, &err), 1);
    assert_int_equal(e.token, 5);
    assert_int_equal(kwk_stream_next(s, &e, 0, &err), 0);
    assert_false(readable(fd, 20));

    fake_kill(d);
    assert_true(readable(fd, 1000));
    assert_int_equal(kwk_client_drain(c, &err), KWK_ECLOSED);
    kwk_client_close(c);
    assert_int_equal(kwk_client_fd(NULL), -1);
}

static void a_wake_up_taken_by_a_pack_is_put_back(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 1);
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    const int fd = kwk_memfd_create("pack", 4096, NULL);
    kwk_error err;

    l.name = "m";
    l.fd = fd;
    assert_int_equal(kwk_client_load_model(c, &l, &err), KWK_OK);
    assert_true(readable(kwk_client_fd(c), 100)); // the stand-in sent one before its answer
    assert_int_equal(kwk_client_drain(c, &err), KWK_OK);
    assert_false(readable(kwk_client_fd(c), 20));
    close(fd);
    kwk_client_close(c);
}

/* ---- fork -------------------------------------------------------------------------------------- */

static int in_child(kwk_client *c, kwk_stream *s, kwk_client_seq *seq)
{
    kwk_generate g = KWK_GENERATE_INIT;
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_forward f = {.seq = seq};
    kwk_stream *s2 = NULL;
    kwk_client_seq *seq2 = NULL;
    kwk_event e;
    char *json = NULL;
    int bad = 0;

    bad |= kwk_client_query(c, "status", &json, NULL) != KWK_EFORKED;
    bad |= kwk_stream_next(s, &e, -1, NULL) != KWK_EFORKED;
    bad |= kwk_stream_cancel(s, NULL) != KWK_EFORKED;
    bad |= kwk_client_generate(&s2, c, &g, NULL) != KWK_EFORKED;
    bad |= kwk_client_load_model(c, &l, NULL) != KWK_EFORKED;
    bad |= kwk_client_unload(c, "x", NULL) != KWK_EFORKED;
    bad |= kwk_client_pin(c, "x", 1, NULL) != KWK_EFORKED;
    bad |= kwk_client_seq_open(&seq2, c, NULL, NULL) != KWK_EFORKED;
    bad |= kwk_client_seq_fork(&seq2, seq, NULL) != KWK_EFORKED;
    bad |= kwk_client_seq_truncate(seq, 0, NULL) != KWK_EFORKED;
    bad |= kwk_client_forward(c, &f, 1, NULL) != KWK_EFORKED;
    bad |= kwk_client_drain(c, NULL) != KWK_EFORKED;
    kwk_stream_free(s);
    kwk_client_seq_free(seq);
    kwk_client_close(c);
    return bad;
}

static void a_forked_child_gets_an_error_and_the_parent_goes_on(void **state)
{
    fake_daemon *d = *state;
    kwk_client *c = open_client(d, 0);
    kwk_stream *s = generate(c, "manual", 5);
    kwk_client_seq *seq = NULL;
    kwk_event e;
    kwk_error err;
    pid_t pid;
    int status;

    assert_int_equal(kwk_client_seq_open(&seq, c, NULL, &err), KWK_OK);
    pid = fork();
    if (pid == 0)
        _exit(in_child(c, s, seq));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);

    fake_record(d, (uint32_t)d->last_stream, KWK_REC_TOKEN, 5, "", 0);
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), 1);
    assert_int_equal(e.token, 5);
    assert_int_equal(fake_n_seqs(d), 1);
    kwk_client_seq_free(seq);
    assert_int_equal(fake_n_seqs(d), 0);
    kwk_client_close(c);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(a_session_opens_answers_and_closes_without_a_trace),
        cmocka_unit_test(an_address_without_a_daemon_is_named),
        TEST(the_environment_tells_where_the_daemon_is),
        TEST(options_of_other_versions_are_understood_or_refused),
        TEST(every_bad_welcome_is_refused_and_nothing_leaks),
        TEST(a_daemon_without_a_control_socket_is_reported),
        TEST(errors_of_the_daemon_arrive_with_code_and_text),
        TEST(a_reply_that_is_garbage_is_a_violation),
        TEST(control_is_opened_again_after_silence_and_after_a_restart),
        TEST(threads_share_a_session),
        TEST(a_control_socket_that_only_slams_is_given_up_in_time),
        cmocka_unit_test(a_waiting_reader_notices_death_within_200_ms),
        cmocka_unit_test(a_control_call_notices_death),
        cmocka_unit_test(what_was_published_before_death_is_still_given),
        TEST(the_daemons_reason_for_ending_a_session_is_given),
        TEST(a_damaged_ring_ends_the_session_with_a_violation),
        TEST(the_descriptor_is_readable_when_something_happened),
        TEST(a_wake_up_taken_by_a_pack_is_put_back),
        TEST(a_forked_child_gets_an_error_and_the_parent_goes_on),
    };
    unsetenv("KWKER_DAEMON");
    unsetenv("XDG_RUNTIME_DIR");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
