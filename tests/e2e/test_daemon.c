/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkerd under abuse, on a real trained model (stories260K, float32): storms of connections, kill
 * -9 again and again, stopped clients, hostile shared memory, cancels at every stage, full queues,
 * and loads against unloads. After each, the published tokens must still come.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kwkclient.h"
#include "proto/msg.h"
#include "proto/ring.h"
#include "proto/unix_socket.h"
#include "tests/support/daemon_process.h"
#include "tests/support/tiny_model.h"

enum { N_IDS = 257, VOCAB = 512 };

static char *model_dir;
static int32_t ids[N_IDS]; // BOS and what greedy decoding gives
static daemon_process d;
static char model_option[1200], config[128];
static const char *daemon_args[] = {"--model", model_option, "--config", config, NULL};

static int read_ids(void **state)
{
    size_t n;
    uint8_t *text;
    char *p;

    model_dir = tiny_shared("stories260K");
    if (!model_dir)
        return 0;
    text = tiny_read(model_dir, "greedy_from_bos_256.json", &n);
    p = (char *)text + strspn((char *)text, "[ \n");
    for (int i = 0; i < N_IDS; i++) {
        ids[i] = (int32_t)strtol(p, &p, 10);
        p += strspn(p, ", \n]");
    }
    free(text);
    snprintf(model_option, sizeof model_option, "stories=%s", model_dir);
    return 0;
}

static int free_ids(void **state)
{
    free(model_dir);
    return 0;
}

/* Start with these settings ("\"queue\": 1"); the model's directory may be loaded from. */
static void start(const char *settings)
{
    FILE *f;

    snprintf(config, sizeof config, "/tmp/kwk-e2e-conf-%d", getpid());
    f = fopen(config, "w");
    assert_non_null(f);
    fprintf(f, "{\"model_dirs\": [\"%.*s\"]%s%s}", (int)(strrchr(model_dir, '/') - model_dir),
            model_dir, *settings ? ", " : "", settings);
    fclose(f);
    daemon_start(&d, daemon_args);
}

static void stop(void)
{
    assert_int_equal(daemon_stop(&d), 0);
    unlink(config);
}

#define NEEDS_MODEL()                                                                              \
    do {                                                                                           \
        if (!model_dir)                                                                            \
            check_skip("needs ../shared/data");                                                    \
    } while (0)

static kwk_client *open_client(size_t logits_bytes)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_client *c = NULL;
    kwk_error err;

    o.logits_bytes = logits_bytes;
    if (kwk_client_open(&c, d.dir, &o, &err) < 0)
        fail_msg("open: %s", err.msg);
    l.name = "stories";
    l.path = model_dir;
    if (kwk_client_load_model(c, &l, &err) < 0)
        fail_msg("load: %s", err.msg);
    return c;
}

static kwk_generate from_bos(int n)
{
    kwk_generate g = KWK_GENERATE_INIT;

    g.model = "stories";
    g.prompt = ids;
    g.n_prompt = 1;
    g.max_new_tokens = n;
    return g;
}

/* The published tokens, on a new session. */
static void expect_served(void)
{
    const kwk_generate g = from_bos(N_IDS - 1);
    int32_t got[N_IDS];
    kwk_client *c = open_client(0);
    kwk_error err;

    if (kwk_client_generate_all(c, &g, got, N_IDS - 1, &err) != N_IDS - 1)
        fail_msg("%s", err.msg);
    assert_memory_equal(got, ids + 1, (N_IDS - 1) * sizeof *ids);
    kwk_client_close(c);
}

static double metric(kwk_client *c, const char *name)
{
    char *json = NULL, key[96], *p;
    double v = -1;
    kwk_error err;

    if (kwk_client_query(c, "metrics", &json, &err) < 0)
        fail_msg("metrics: %s", err.msg);
    snprintf(key, sizeof key, "\\nkwker_%s ", name);
    p = strstr(json, key);
    if (p)
        v = strtod(p + strlen(key), NULL);
    else
        fail_msg("no metric %s", name);
    kwk_client_free(json);
    return v;
}

/* Until a gauge has this value. */
static void wait_for(kwk_client *c, const char *name, double value)
{
    const int64_t end = kwk_now_ms() + 5000;

    while (metric(c, name) != value) {
        if (kwk_now_ms() > end)
            fail_msg("%s is %g, not %g", name, metric(c, name), value);
        usleep(1000);
    }
}

/* Read a stream to its end; its reason, and the tokens that came. */
static const char *end_of(kwk_stream *s, int *n_tokens)
{
    kwk_event e;
    kwk_error err;
    int rc;

    *n_tokens = 0;
    while ((rc = kwk_stream_next(s, &e, 30000, &err)) == 1) {
        *n_tokens += e.type == KWK_EVENT_TOKEN;
        if (e.type == KWK_EVENT_DONE)
            return e.finish_reason;
    }
    return rc ? err.msg : "nothing came";
}

/* ---- storms ------------------------------------------------------------------------------------
 */

static void connect_and_close(const char *name, int type, int n)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", d.dir, name);
    for (int i = 0; i < n; i++) {
        const int fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
            usleep(1000); // the backlog is full
        close(fd);
    }
}

static void ten_thousand_connections_at_the_door_change_nothing(void **state)
{
    int64_t start_ms;

    NEEDS_MODEL();
    start("");
    connect_and_close("door.sock", SOCK_SEQPACKET, 10000);
    start_ms = kwk_now_ms();
    expect_served();
    assert_true(kwk_now_ms() - start_ms < 2000);
    stop();
}

static void ten_thousand_connections_at_control_change_nothing(void **state)
{
    int64_t start_ms;

    NEEDS_MODEL();
    start("");
    expect_served();
    connect_and_close("kwkerd.sock", SOCK_STREAM, 10000);
    start_ms = kwk_now_ms();
    expect_served();
    assert_true(kwk_now_ms() - start_ms < 2500);
    stop();
}

/* ---- death
 * --------------------------------------------------------------------------------------- */

typedef struct reader {
    kwk_stream *stream;
    int rc;
    int64_t ended_ms;
} reader;

static void *read_until_error(void *arg)
{
    reader *r = arg;
    kwk_event e;

    while ((r->rc = kwk_stream_next(r->stream, &e, 10000, NULL)) == 1 && e.type != KWK_EVENT_DONE)
        usleep(2000); // slowly: 500 tokens outlast the test
    r->ended_ms = kwk_now_ms();
    return NULL;
}

static void a_daemon_killed_twenty_times_starts_again_at_once(void **state)
{
    NEEDS_MODEL();
    start("");
    for (int round = 0; round < 20; round++) {
        const kwk_generate g = from_bos(-1);
        kwk_client *c = open_client(0);
        reader r = {0};
        int64_t killed_ms;
        pthread_t thread;
        kwk_error err;

        if (kwk_client_generate(&r.stream, c, &g, &err) < 0)
            fail_msg("%s", err.msg);
        pthread_create(&thread, NULL, read_until_error, &r);
        usleep(1000 * (unsigned)(round % 7));
        killed_ms = kwk_now_ms();
        daemon_kill(&d);
        pthread_join(thread, NULL);
        // what had come before may still be read: 200 ms from the last of it at most
        assert_true(r.rc == KWK_ECLOSED || r.rc == 1);
        if (r.rc == KWK_ECLOSED && r.ended_ms - killed_ms > 1500)
            fail_msg("the end was noticed after %d ms", (int)(r.ended_ms - killed_ms));
        kwk_stream_free(r.stream);
        kwk_client_close(c);
        killed_ms = kwk_now_ms();
        daemon_restart(&d, daemon_args);
        assert_true(kwk_now_ms() - killed_ms < 1000);
    }
    expect_served();
    stop();
}

/* Stream without an end and without reading, until killed. */
static void stall(void)
{
    const kwk_generate g = from_bos(-1);
    kwk_client *c = NULL;
    kwk_stream *s;

    if (kwk_client_open(&c, d.dir, NULL, NULL) == 0)
        for (int i = 0; i < 4; i++)
            (void)kwk_client_generate(&s, c, &g, NULL);
    for (;;)
        pause();
}

static void clients_killed_in_mid_stream_leave_no_trace(void **state)
{
    kwk_client *c;

    NEEDS_MODEL();
    start("");
    c = open_client(0);
    for (int i = 0; i < 20; i++) {
        const pid_t pid = fork();
        if (pid == 0)
            stall();
        wait_for(c, "sessions", 2);
        usleep(500 * (unsigned)(i % 9));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        wait_for(c, "sessions", 1);
        wait_for(c, "running", 0);
        wait_for(c, "queued", 0);
    }
    kwk_client_close(c);
    expect_served();
    stop();
}

static void a_stopped_client_is_dropped_and_stops_nobody_else(void **state)
{
    kwk_client *c;
    pid_t pid;

    NEEDS_MODEL();
    start("\"slow_client_ms\": 300");
    c = open_client(0);
    pid = fork();
    if (pid == 0)
        stall();
    wait_for(c, "sessions", 2);
    kill(pid, SIGSTOP);
    for (int i = 0; i < 5; i++)
        expect_served();
    wait_for(c, "running", 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    kwk_client_close(c);
    stop();
}

/* ---- cancel, queue
 * -------------------------------------------------------------------------------- */

static void a_cancel_inside_the_prompt_ends_it_early(void **state)
{
    int32_t prompt[500];
    kwk_generate g = from_bos(10);
    kwk_stream *s = NULL;
    kwk_client *c;
    kwk_error err;
    int n;

    NEEDS_MODEL();
    start("\"slice\": 1"); // five hundred steps
    c = open_client(0);
    for (int i = 0; i < 500; i++)
        prompt[i] = ids[i % N_IDS];
    g.prompt = prompt;
    g.n_prompt = 500;
    if (kwk_client_generate(&s, c, &g, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(kwk_stream_cancel(s, &err), KWK_OK);
    assert_string_equal(end_of(s, &n), "cancel");
    assert_int_equal(n, 0);
    assert_true(metric(c, "prompt_tokens_total") < 499);
    kwk_stream_free(s);
    kwk_client_close(c);
    stop();
}

static void a_cancel_in_the_queue_means_that_it_never_runs(void **state)
{
    const kwk_generate g = from_bos(-1);
    kwk_stream *first = NULL, *second = NULL;
    kwk_client *c;
    double prompts;
    int n;

    NEEDS_MODEL();
    start("\"running\": 1");
    c = open_client(0);
    prompts = metric(c, "prompt_tokens_total");
    assert_int_equal(kwk_client_generate(&first, c, &g, NULL), KWK_OK);
    assert_int_equal(kwk_client_generate(&second, c, &g, NULL), KWK_OK);
    assert_int_equal(kwk_stream_cancel(second, NULL), KWK_OK);
    const char *reason = end_of(second, &n);
    if (!n) { // unless the first was over before we asked
        assert_string_equal(reason, "cancel");
        assert_true(metric(c, "prompt_tokens_total") <= prompts + 1);
    }
    (void)end_of(first, &n);
    kwk_stream_free(first);
    kwk_stream_free(second);
    kwk_client_close(c);
    stop();
}

static void a_full_queue_is_an_answer_and_passes(void **state)
{
    const kwk_generate g = from_bos(-1);
    kwk_stream *s[8] = {NULL};
    kwk_client *c;
    kwk_error err;
    int busy = 0, n;

    NEEDS_MODEL();
    start("\"running\": 1, \"queue\": 2, \"queue_per_user\": 2");
    c = open_client(0);
    for (int i = 0; i < 8; i++) {
        const int rc = kwk_client_generate(&s[i], c, &g, &err);
        assert_true(rc == KWK_OK || rc == KWK_EBUSY);
        busy += rc == KWK_EBUSY;
    }
    assert_true(busy > 0);
    for (int i = 0; i < 8; i++) {
        if (s[i])
            assert_string_equal(end_of(s[i], &n), "length");
        kwk_stream_free(s[i]);
    }
    kwk_client_close(c);
    expect_served();
    stop();
}

/* ---- hostile sessions
 * --------------------------------------------------------------------------------- */

typedef struct raw_session {
    int door;
    uint8_t *in;
    size_t in_size;
} raw_session;

/* A session of our own making; its in area is ours to spoil. */
static void raw_open(raw_session *r)
{
    const kwk_hello_req hello = {.version = KWK_PROTO_VERSION,
                                 .client = "hostile/1",
                                 .in_bytes = 4096,
                                 .logits_bytes = 1 << 16};
    char path[96], space[CMSG_SPACE(3 * sizeof(int))];
    uint8_t packet[4096];
    struct iovec iov = {packet, sizeof packet};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    kwk_buf b = {0};
    kwk_error err;
    int fds[3];

    snprintf(path, sizeof path, "%s/door.sock", d.dir);
    r->door = kwk_unix_connect(path, SOCK_SEQPACKET, 2000, &err);
    if (r->door < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(kwk_hello_req_encode(&b, &hello, &err), KWK_OK);
    assert_int_equal(send(r->door, b.data, b.size, MSG_NOSIGNAL), b.size);
    kwk_buf_fini(&b);
    assert_true(kwk_wait_fd(r->door, POLLIN, kwk_now_ms() + 2000));
    assert_true(recvmsg(r->door, &msg, MSG_CMSG_CLOEXEC) > 0);
    assert_non_null(CMSG_FIRSTHDR(&msg));
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fds);
    r->in_size = kwk_in_size(4096);
    r->in = mmap(NULL, r->in_size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    assert_true(r->in != MAP_FAILED);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void raw_close(raw_session *r)
{
    munmap(r->in, r->in_size);
    close(r->door);
}

static void random_words_in_the_in_area_hurt_nobody_else(void **state)
{
    uint64_t seed = 12345;
    kwk_client *c;

    NEEDS_MODEL();
    start("");
    c = open_client(0);
    for (int round = 0; round < 300; round++) {
        raw_session r;
        raw_open(&r);
        for (int i = 0; i < 200; i++) { // the header's words, streams, submissions, rings between
            const uint64_t v = check_random(&seed);
            const size_t at = (size_t)(check_random(&seed) % (r.in_size / 8)) * 8;
            const uint64_t word = v % 3 ? v % 2000 : v;
            memcpy(r.in + (i % 4 ? at : at % 256), &word, sizeof word);
            if (i % 10 == 0)
                (void)send(r.door, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        raw_close(&r);
        if (round % 60 == 0)
            expect_served();
    }
    wait_for(c, "sessions", 1);
    kwk_client_close(c);
    expect_served();
    stop();
}

/* ---- loads against unloads
 * --------------------------------------------------------------------------- */

static atomic_int stuck;

static void *load_and_unload(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    kwk_client *c = NULL;

    if (kwk_client_open(&c, d.dir, NULL, NULL) < 0) {
        atomic_fetch_add(&stuck, 1);
        return NULL;
    }
    for (int i = 0; i < 40; i++) {
        const char *name = check_random(&seed) % 2 ? "a" : "b";
        kwk_client_load l = KWK_CLIENT_LOAD_INIT;
        kwk_generate g = from_bos(20);
        kwk_stream *s = NULL;
        kwk_error err = {0};
        int32_t tokens[32];
        int n, rc;
        switch (check_random(&seed) % 4) {
        case 0:
            l.name = name;
            l.path = model_dir;
            l.timeout_ms = 10000;
            rc = kwk_client_load_model(c, &l, &err);
            break;
        case 1:
            rc = kwk_client_unload(c, name, &err);
            break;
        case 2:
            g.model = name;
            rc = kwk_client_generate(&s, c, &g, &err);
            if (rc == KWK_OK) {
                (void)kwk_stream_cancel(s, NULL);
                (void)end_of(s, &n);
            }
            kwk_stream_free(s);
            break;
        default:
            g.model = name;
            rc = kwk_client_generate_all(c, &g, tokens, 32, &err);
            if (rc > 0 && memcmp(tokens, ids + 1, (size_t)rc * sizeof *tokens))
                rc = KWK_EFORMAT;
        }
        if (rc == KWK_ETIMEOUT || rc == KWK_ECLOSED || rc == KWK_EFORMAT || rc == KWK_EPROTO) {
            print_error("%s: %s\n", kwk_error_name(rc), err.msg);
            atomic_fetch_add(&stuck, 1);
        }
    }
    kwk_client_close(c);
    return NULL;
}

static void loads_unloads_and_generations_race_without_getting_stuck(void **state)
{
    pthread_t threads[8];

    NEEDS_MODEL();
    start("");
    atomic_store(&stuck, 0);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, load_and_unload, (void *)(i + 1));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&stuck), 0);
    expect_served();
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_thousand_connections_at_the_door_change_nothing),
        cmocka_unit_test(ten_thousand_connections_at_control_change_nothing),
        cmocka_unit_test(a_daemon_killed_twenty_times_starts_again_at_once),
        cmocka_unit_test(clients_killed_in_mid_stream_leave_no_trace),
        cmocka_unit_test(a_stopped_client_is_dropped_and_stops_nobody_else),
        cmocka_unit_test(a_cancel_inside_the_prompt_ends_it_early),
        cmocka_unit_test(a_cancel_in_the_queue_means_that_it_never_runs),
        cmocka_unit_test(a_full_queue_is_an_answer_and_passes),
        cmocka_unit_test(random_words_in_the_in_area_hurt_nobody_else),
        cmocka_unit_test(loads_unloads_and_generations_race_without_getting_stuck),
    };

    return cmocka_run_group_tests(tests, read_ids, free_ids);
}
