/* SPDX-License-Identifier: Apache-2.0
 *
 * The embeddable daemon as a whole. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/sp.h"
#include "tests/daemon/sockets.h"

static dut t;
static kwk_error err;

static int setup(void **state)
{
    fake_reset();
    dut_init(&t);
    return 0;
}

static int teardown(void **state)
{
    dut_stop(&t);
    dut_fini(&t);
    assert_int_equal(atomic_load(&fake_count.models), 0);
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
    return 0;
}

static int ask(kwk_request *req, int timeout_ms, kwk_tree **tree)
{
    kwk_buf b = {0}, reply = {0};
    kwk_tree *got = NULL;
    int retry_ms, rc;
    kwk_sp s;

    rc = kwk_sp_open(&s, t.control, 1000, &err);
    if (rc < 0)
        return rc;
    assert_int_equal(kwk_request_encode(&b, req, &err), KWK_OK);
    rc = kwk_sp_call(&s, b.data, b.size, &reply, timeout_ms, &err);
    if (rc == KWK_OK) {
        assert_int_equal(kwk_tree_parse(&got, reply.data, reply.size, &err), KWK_OK);
        rc = kwk_tree_status(got, &retry_ms, &err);
    }
    kwk_buf_fini(&b);
    kwk_buf_fini(&reply);
    kwk_sp_close(&s);
    if (tree && rc == KWK_OK)
        *tree = got;
    else
        kwk_tree_free(got);
    return rc;
}

static const char *conf_with_model(const char *more)
{
    static char conf[512];

    snprintf(conf, sizeof conf, "{\"models\": {\"m\": {\"path\": \"%s\"}}%s}", t.model, more);
    return conf;
}

typedef struct asked {
    kwk_request req;
    int rc, done;
    kwk_tree *tree;
    pthread_t thread;
} asked;

static void *ask_on_thread(void *arg)
{
    asked *a = arg;

    a->rc = ask(&a->req, 20000, &a->tree);
    a->done = 1;
    return NULL;
}

/* An inline generation of n tokens on a thread of its own. */
static void generate(asked *a, int n)
{
    static const int32_t prompt[] = {1};

    memset(a, 0, sizeof *a);
    a->req = harness_generate(0, prompt, 1, n);
    a->req.u.generate.inline_reply = 1;
    assert_int_equal(pthread_create(&a->thread, NULL, ask_on_thread, a), 0);
}

static uint64_t stop_takes(void) // ms
{
    const uint64_t start = kwkd_now_us();

    dut_stop(&t);
    return (kwkd_now_us() - start) / 1000;
}

static void it_answers_before_its_models_are_loaded(void **state)
{
    kwk_request req = {.op = KWK_OP_status};
    kwk_tree *tree;

    atomic_store(&fake.load_ms, 200);
    dut_start(&t, conf_with_model(""));
    assert_int_equal(ask(&req, 1000, &tree), KWK_OK);
    assert_int_equal(kwk_tree_int(tree, "ready", -1), 0);
    kwk_tree_free(tree);
    dut_wait_ready(&t);
    assert_int_equal(ask(&req, 1000, &tree), KWK_OK);
    assert_int_equal(kwk_tree_int(tree, "ready", -1), 1);
    kwk_tree_free(tree);
}

static void a_second_daemon_cannot_take_the_directory(void **state)
{
    kwkd_options o = KWKD_OPTIONS_INIT;
    kwk_request req = {.op = KWK_OP_status};
    kwkd *d = NULL;

    dut_start(&t, NULL);
    o.runtime_dir = t.run;
    assert_int_equal(kwkd_new(&d, &o, &err), KWK_EBUSY);
    assert_int_equal(ask(&req, 1000, NULL), KWK_OK); // and has done no harm
}

static void an_application_can_run_it_in_its_own_loop(void **state)
{
    kwkd_options o = KWKD_OPTIONS_INIT;
    struct pollfd p = {.events = POLLIN};
    asked a = {.req = {.op = KWK_OP_status}};

    o.runtime_dir = t.run;
    assert_int_equal(kwkd_new(&t.d, &o, &err), KWK_OK);
    p.fd = kwkd_fd(t.d);
    assert_int_equal(kwkd_dispatch(t.d), 1);
    assert_int_equal(pthread_create(&a.thread, NULL, ask_on_thread, &a), 0);
    assert_int_equal(poll(&p, 1, 3000), 1); // a tick at the latest
    assert_int_equal(kwkd_dispatch(t.d), 1);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.rc, KWK_OK);
    kwk_tree_free(a.tree);
    kwkd_stop(t.d);
    for (int i = 0; kwkd_dispatch(t.d) && i < 1000; i++)
        poll(&p, 1, 100);
    assert_int_equal(kwkd_dispatch(t.d), 0);
    kwkd_free(t.d);
}

static void idle_it_ends_at_once_and_leaves_nothing(void **state)
{
    dut_start(&t, NULL);
    assert_int_equal(access(t.door, F_OK), 0);
    assert_true(stop_takes() < 200);
    assert_int_not_equal(access(t.door, F_OK), 0);
    assert_int_not_equal(access(t.control, F_OK), 0);
    dut_start(&t, NULL); // again
}

static void a_load_does_not_delay_the_end(void **state)
{
    fake.load_parts = 1000;
    atomic_store(&fake.load_ms, 20);
    dut_start(&t, conf_with_model(""));
    usleep(50000);
    assert_true(stop_takes() < 500);
}

static void what_runs_is_let_finish(void **state)
{
    asked a;

    dut_start(&t, conf_with_model(""));
    dut_wait_ready(&t);
    atomic_store(&fake.step_ms, 5);
    generate(&a, 100);
    usleep(100000);
    assert_true(stop_takes() > 100);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.rc, KWK_OK);
    assert_int_equal(kwk_tree_int(a.tree, "new_tokens", 0), 100);
    kwk_tree_free(a.tree);
}

static void but_not_longer_than_the_drain_time(void **state)
{
    asked a;

    dut_start(&t, conf_with_model(", \"drain_ms\": 200"));
    dut_wait_ready(&t);
    atomic_store(&fake.step_ms, 5);
    generate(&a, 4000);
    usleep(50000);
    assert_in_range(stop_takes(), 150, 1000);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.rc, KWK_OK);
    assert_string_equal(kwk_tree_str(a.tree, "finish_reason"), "shutdown");
    kwk_tree_free(a.tree);
}

static void the_second_stop_ends_it_at_once(void **state)
{
    asked a;

    dut_start(&t, conf_with_model(""));
    dut_wait_ready(&t);
    atomic_store(&fake.step_ms, 5);
    generate(&a, 4000);
    usleep(50000);
    kwkd_stop(t.d);
    usleep(50000);
    assert_true(stop_takes() < 500);
    pthread_join(a.thread, NULL);
    kwk_tree_free(a.tree);
}

static void the_configuration_is_read_again(void **state)
{
    FILE *f;

    dut_start(&t, "{\"queue\": 5}");
    f = fopen(t.conf, "w");
    fputs(conf_with_model(", \"queue\": 6, \"inline_requests\": 3"), f);
    fclose(f);
    assert_int_equal(kwkd_reload(t.d, &err), KWK_OK); // between dispatches in real life
    assert_int_equal(atomic_load(&t.d->inline_requests), 3);
    dut_wait_ready(&t); // the new model
    f = fopen(t.conf, "w");
    fputs("{\"queue\": 0}", f);
    fclose(f);
    assert_int_equal(kwkd_reload(t.d, &err), KWK_EINVAL);
    assert_int_equal(atomic_load(&t.d->inline_requests), 3);
}

static void a_stuck_engine_is_not_healthy(void **state)
{
    asked a;

    dut_start(&t, conf_with_model(""));
    dut_wait_ready(&t);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(kwkd_healthy(t.d), 1); // idle
        usleep(5000);
    }
    atomic_store(&fake.step_ms, 300);
    generate(&a, 2);
    usleep(100000);
    (void)kwkd_healthy(t.d);
    usleep(50000);
    assert_int_equal(kwkd_healthy(t.d), 0); // the same step still
    atomic_store(&fake.step_ms, 1);
    pthread_join(a.thread, NULL);
    usleep(10000);
    assert_int_equal(kwkd_healthy(t.d), 1);
    kwk_tree_free(a.tree);
}

static void it_describes_itself(void **state)
{
    char line[128];

    dut_start(&t, conf_with_model(""));
    dut_wait_ready(&t);
    kwkd_describe(t.d, line, sizeof line);
    assert_string_equal(line, "1 models, 0 sessions, 0 running, 0 waiting");
    kwkd_describe(t.d, line, 5);
    assert_int_equal(strlen(line), 4);
}

static void *run(void *arg)
{
    kwkd_run(arg);
    return NULL;
}

static void a_door_from_outside_is_used_and_left(void **state)
{
    const kwk_hello_req hello = {.version = KWK_PROTO_VERSION};
    kwkd_options o = KWKD_OPTIONS_INIT;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd;

    snprintf(at.sun_path, sizeof at.sun_path, "%s/outside", t.dir);
    o.door_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    o.runtime_dir = t.run;
    assert_int_equal(bind(o.door_fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(o.door_fd, 5), 0);
    fd = connect_to(at.sun_path, SOCK_SEQPACKET); // before it runs, as with socket activation
    assert_true(fd >= 0);
    assert_int_equal(kwkd_new(&t.d, &o, &err), KWK_OK);
    assert_int_equal(pthread_create(&t.thread, NULL, run, t.d), 0);
    assert_int_equal(say_hello(fd, &hello, NULL, NULL, NULL), KWK_OK);
    close(fd);
    kwkd_stop(t.d);
    pthread_join(t.thread, NULL);
    kwkd_free(t.d);
    assert_int_equal(access(at.sun_path, F_OK), 0); // systemd's
}

static void it_ends_by_itself_when_idle(void **state)
{
    dut_start(&t, "{\"idle_exit_s\": 1}");
    pthread_join(t.thread, NULL);
    t.running = 0;
    kwkd_free(t.d);
}

static void idle_it_uses_no_processor(void **state)
{
    struct rusage a, b;

    dut_start(&t, conf_with_model(""));
    dut_wait_ready(&t);
    usleep(100000);
    getrusage(RUSAGE_SELF, &a);
    usleep(1500000);
    getrusage(RUSAGE_SELF, &b);
    const long us =
        (b.ru_utime.tv_sec - a.ru_utime.tv_sec + b.ru_stime.tv_sec - a.ru_stime.tv_sec) * 1000000 +
        b.ru_utime.tv_usec - a.ru_utime.tv_usec + b.ru_stime.tv_usec - a.ru_stime.tv_usec;
    assert_true(us < 15000); // 1 %, most of it the probe
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_answers_before_its_models_are_loaded),
        TEST(a_second_daemon_cannot_take_the_directory),
        TEST(an_application_can_run_it_in_its_own_loop),
        TEST(idle_it_ends_at_once_and_leaves_nothing),
        TEST(a_load_does_not_delay_the_end),
        TEST(what_runs_is_let_finish),
        TEST(but_not_longer_than_the_drain_time),
        TEST(the_second_stop_ends_it_at_once),
        TEST(the_configuration_is_read_again),
        TEST(a_stuck_engine_is_not_healthy),
        TEST(it_describes_itself),
        TEST(a_door_from_outside_is_used_and_left),
        TEST(it_ends_by_itself_when_idle),
        TEST(idle_it_uses_no_processor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
