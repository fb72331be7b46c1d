/* SPDX-License-Identifier: Apache-2.0
 *
 * libkwkclient and kwkerd together, on a real trained model (stories260K, float32): the published
 * tokens by every road, logits of the same bits however they were asked for, both death signals, bad
 * requests, and a stock NNG client at the control socket.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

#include "client/kwkclient.h"
#include "engine/kwk.h"
#include "proto/msg.h"
#include "proto/unix_socket.h"
#include "tests/support/daemon_process.h"
#include "tests/support/tiny_model.h"

enum { N_IDS = 257, VOCAB = 512, CONTEXT = 512 };

static char *model_dir;
static int32_t ids[N_IDS]; // BOS and what greedy decoding gives
static daemon_process d;
static char model_option[1200];
static const char *daemon_args[] = {"--model", model_option, NULL};

/* The ids file is a JSON array of integers. */
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
    assert_int_equal(*p, 0);
    assert_int_equal(ids[0], 1);
    free(text);
    snprintf(model_option, sizeof model_option, "stories=%s", model_dir);
    return 0;
}

static int free_ids(void **state)
{
    free(model_dir);
    return 0;
}

static int start(void **state)
{
    if (model_dir)
        daemon_start(&d, daemon_args);
    return 0;
}

static int stop(void **state)
{
    if (model_dir)
        assert_int_equal(daemon_stop(&d), 0);
    return 0;
}

#define NEEDS_MODEL()                                    \
    do {                                                 \
        if (!model_dir)                                  \
            check_skip("needs ../shared/data"); \
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
    l.name = "stories"; // ready or on its way: wait for it
    l.path = model_dir;
    if (kwk_client_load_model(c, &l, &err) < 0)
        fail_msg("load: %s", err.msg);
    return c;
}

static kwk_generate from_bos(int n)
{
    kwk_generate g = KWK_GENERATE_INIT;

    g.prompt = ids;
    g.n_prompt = 1;
    g.max_new_tokens = n;
    return g;
}

/* The value of a metric without labels. */
static double metric(kwk_client *c, const char *name)
{
    char *json = NULL, key[96], *p;
    double v = -1;

    assert_int_equal(kwk_client_query(c, "metrics", &json, NULL), KWK_OK);
    snprintf(key, sizeof key, "\\nkwker_%s ", name);
    p = strstr(json, key);
    if (p)
        v = strtod(p + strlen(key), NULL);
    else
        fail_msg("no metric %s", name);
    kwk_client_free(json);
    return v;
}

/* A number of the status. */
static int status(kwk_client *c, const char *key)
{
    char *json = NULL, quoted[64], *p;
    int v = -1;

    assert_int_equal(kwk_client_query(c, "status", &json, NULL), KWK_OK);
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    p = strstr(json, quoted);
    if (p)
        v = atoi(p + strlen(quoted));
    kwk_client_free(json);
    return v;
}

/* ---- the published tokens ---------------------------------------------------------------------- */

static void greedy_decoding_gives_the_published_ids(void **state)
{
    const kwk_generate g = from_bos(N_IDS - 1);
    int32_t got[N_IDS];
    kwk_client *c;
    kwk_error err;

    NEEDS_MODEL();
    c = open_client(0);
    for (int round = 0; round < 2; round++) { // the second from the prefix cache, if there is one
        if (kwk_client_generate_all(c, &g, got, N_IDS - 1, &err) != N_IDS - 1)
            fail_msg("%s", err.msg);
        assert_memory_equal(got, ids + 1, (N_IDS - 1) * sizeof *ids);
    }
    kwk_client_close(c);
}

/* A process of its own: several rounds, so that all overlap. */
static int generate_in_child(int go)
{
    const kwk_generate g = from_bos(N_IDS - 1);
    int32_t got[N_IDS];
    kwk_client *c = NULL;
    char byte;
    int bad = kwk_client_open(&c, d.dir, NULL, NULL) < 0;

    bad |= read(go, &byte, 1) != 0; // until the parent closes its end
    for (int round = 0; round < 4 && !bad; round++) {
        bad |= kwk_client_generate_all(c, &g, got, N_IDS - 1, NULL) != N_IDS - 1;
        bad |= memcmp(got, ids + 1, (N_IDS - 1) * sizeof *ids) != 0;
    }
    kwk_client_close(c);
    return bad;
}

static void sixteen_processes_at_once_get_the_published_ids_in_shared_steps(void **state)
{
    enum { N = 16 };
    pid_t pids[N];
    kwk_client *c;
    int go[2], exit_status;

    NEEDS_MODEL();
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    for (int i = 0; i < N; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            close(go[1]);
            _exit(generate_in_child(go[0]));
        }
    }
    c = open_client(0);
    for (int i = 0; i < 1000 && status(c, "sessions") < N + 1; i++)
        usleep(5000);
    close(go[1]);
    close(go[0]);
    for (int i = 0; i < N; i++) {
        assert_int_equal(waitpid(pids[i], &exit_status, 0), pids[i]);
        assert_true(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0);
    }
    assert_true(metric(c, "step_rows_max") >= N);
    kwk_client_close(c);
}

typedef struct reader {
    kwk_client *c;
    int n, wrong;
} reader;

static void *read_stream(void *arg)
{
    reader *r = arg;
    const kwk_generate g = from_bos(r->n);
    kwk_stream *s = NULL;
    kwk_event e;

    if (kwk_client_generate(&s, r->c, &g, NULL) < 0) {
        r->wrong = 1;
        return NULL;
    }
    for (int i = 1; i <= r->n; i++)
        r->wrong |= kwk_stream_next(s, &e, 30000, NULL) != 1 || e.token != ids[i];
    r->wrong |= kwk_stream_next(s, &e, 30000, NULL) != 1 || e.type != KWK_EVENT_DONE ||
                strcmp(e.finish_reason, "length") || (int)e.new_tokens != r->n;
    kwk_stream_free(s);
    return NULL;
}

static void threads_of_one_session_read_their_own_streams(void **state)
{
    pthread_t threads[8];
    reader readers[8];
    kwk_client *c;

    NEEDS_MODEL();
    c = open_client(0);
    for (int i = 0; i < 8; i++) {
        readers[i] = (reader){c, 40 + 30 * i, 0};
        pthread_create(&threads[i], NULL, read_stream, &readers[i]);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
    kwk_client_close(c);
}

static void nothing_per_token_goes_over_control(void **state)
{
    double sent[2], received[2];
    kwk_client *c;

    NEEDS_MODEL();
    c = open_client(0);
    for (int i = 0; i < 2; i++) { // 4 tokens, then 256; only the metrics' digits grow
        const kwk_generate g = from_bos(i ? N_IDS - 1 : 4);
        int32_t got[N_IDS];
        const double sent_before = metric(c, "control_sent_bytes_total");
        const double received_before = metric(c, "control_received_bytes_total");
        assert_int_equal(kwk_client_generate_all(c, &g, got, N_IDS, NULL), g.max_new_tokens);
        received[i] = metric(c, "control_received_bytes_total") - received_before;
        sent[i] = metric(c, "control_sent_bytes_total") - sent_before;
    }
    assert_true(sent[1] - sent[0] < N_IDS - 5); // less than a byte for each of the 252 more
    assert_true(received[1] - received[0] < 16);
    kwk_client_close(c);
}

/* ---- logits ------------------------------------------------------------------------------------ */

static int argmax(const float *x)
{
    int best = 0;

    for (int i = 1; i < VOCAB; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static kwk_client_seq *open_seq(kwk_client *c)
{
    kwk_client_seq *s = NULL;
    kwk_error err;

    if (kwk_client_seq_open(&s, c, "stories", &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(kwk_client_seq_vocab(s), VOCAB);
    return s;
}

static void forward(kwk_client *c, kwk_forward *items, int n)
{
    kwk_error err;

    if (kwk_client_forward(c, items, n, &err) < 0)
        fail_msg("%s", err.msg);
}

static void logits_have_the_same_bits_token_by_token_and_all_at_once(void **state)
{
    static float one_by_one[N_IDS][VOCAB];
    kwk_forward item;
    kwk_client *c;

    NEEDS_MODEL();
    c = open_client(N_IDS * VOCAB * 4);
    item = (kwk_forward){.seq = open_seq(c), .n_tokens = 1};
    for (int i = 0; i < N_IDS; i++) {
        item.tokens = ids + i;
        forward(c, &item, 1);
        memcpy(one_by_one[i], item.logits, sizeof one_by_one[i]);
        if (i + 1 < N_IDS)
            assert_int_equal(argmax(item.logits), ids[i + 1]);
    }
    assert_int_equal(kwk_client_seq_length(item.seq), N_IDS);
    item = (kwk_forward){.seq = open_seq(c), .tokens = ids, .n_tokens = N_IDS, .all_logits = 1};
    forward(c, &item, 1);
    check_same_f32(item.logits, one_by_one[0], N_IDS * VOCAB, "all at once");
    kwk_client_close(c);
}

static void forks_truncations_and_batches_change_no_bit(void **state)
{
    static float want[64][VOCAB];
    kwk_client_seq *copy = NULL;
    kwk_forward items[5], all;
    kwk_client *c;

    NEEDS_MODEL();
    c = open_client(70 * VOCAB * 4);
    all = (kwk_forward){.seq = open_seq(c), .tokens = ids, .n_tokens = 64, .all_logits = 1};
    forward(c, &all, 1);
    memcpy(want, all.logits, sizeof want);

    assert_int_equal(kwk_client_seq_fork(&copy, all.seq, NULL), KWK_OK);
    assert_int_equal(kwk_client_seq_truncate(copy, 10, NULL), KWK_OK);
    for (int i = 0; i < 5; i++) // of different lengths, in one step
        items[i] = (kwk_forward){.seq = i ? open_seq(c) : copy, .tokens = i ? ids : ids + 10,
                                 .n_tokens = i ? 7 * i : 54};
    forward(c, items, 5);
    check_same_f32(items[0].logits, want[63], VOCAB, "fork");
    for (int i = 1; i < 5; i++)
        check_same_f32(items[i].logits, want[7 * i - 1], VOCAB, "item %d", i);
    items[0] = (kwk_forward){.seq = all.seq, .tokens = ids + 64, .n_tokens = 1};
    forward(c, items, 1); // the original goes on where it was
    assert_int_equal(argmax(items[0].logits), ids[65]);
    kwk_client_close(c);
}

static void left_padding_with_positions_changes_no_bit(void **state)
{
    static float want[VOCAB];
    int32_t tokens[30], positions[30];
    uint8_t valid[30];
    kwk_forward item;
    kwk_client *c;

    NEEDS_MODEL();
    c = open_client(4 * VOCAB * 4);
    item = (kwk_forward){.seq = open_seq(c), .tokens = ids, .n_tokens = 20};
    forward(c, &item, 1);
    memcpy(want, item.logits, sizeof want);
    for (int i = 0; i < 30; i++) { // ten holes first
        tokens[i] = i < 10 ? 0 : ids[i - 10];
        positions[i] = i < 10 ? 0 : i - 10;
        valid[i] = i >= 10;
    }
    item = (kwk_forward){.seq = open_seq(c), .tokens = tokens, .n_tokens = 30,
                         .positions = positions, .valid = valid};
    forward(c, &item, 1);
    for (int i = 0; i < VOCAB; i++) // a padded row sums its splits from another slot on
        assert_true(item.logits[i] - want[i] < 1e-4f && want[i] - item.logits[i] < 1e-4f);
    assert_int_equal(argmax(item.logits), ids[20]);
    kwk_client_close(c);
}

/* ---- bad requests ------------------------------------------------------------------------------ */

static void bad_requests_are_typed_errors_and_the_next_is_served(void **state)
{
    static int32_t tokens[40000];
    int32_t got[8];
    kwk_client *c;
    kwk_client_seq *s;
    kwk_forward item;
    kwk_error err;

    NEEDS_MODEL();
    c = open_client(8 * VOCAB * 4);
    s = open_seq(c);
#define GENERATE(expected, ...)                                                              \
    do {                                                                                     \
        kwk_generate g = from_bos(5);                                                        \
        __VA_ARGS__;                                                                         \
        const int rc = kwk_client_generate_all(c, &g, got, 8, &err);                         \
        if (rc != (expected))                                                                \
            fail_msg("%s: %d %s", #__VA_ARGS__, rc, rc < 0 ? err.msg : "");                  \
        g = from_bos(5);                                                                     \
        assert_int_equal(kwk_client_generate_all(c, &g, got, 8, &err), 5);                   \
        assert_memory_equal(got, ids + 1, 5 * 4);                                            \
    } while (0)
    const int32_t above[] = {1, VOCAB}, below[] = {1, -1}, most[] = {INT32_MAX};
    const kwk_client_bias strange[] = {{VOCAB, 1}}, nan[] = {{1, __builtin_nanf("")}};
    GENERATE(KWK_EINVAL, g.prompt = above, g.n_prompt = 2);
    GENERATE(KWK_EINVAL, g.prompt = below, g.n_prompt = 2);
    GENERATE(KWK_EINVAL, g.prompt = most);
    GENERATE(KWK_EINVAL, g.bias = strange, g.n_bias = 1);
    GENERATE(KWK_EINVAL, g.bias = nan, g.n_bias = 1);
    GENERATE(KWK_EINVAL, g.eos = above, g.n_eos = 2);
    GENERATE(KWK_EINVAL, g.do_sample = 1, g.temperature = 0);
    GENERATE(KWK_EINVAL, g.do_sample = 1, g.top_p = 0);
    GENERATE(KWK_EINVAL, g.repetition_penalty = 0);
    GENERATE(KWK_EINVAL, g.top_k = -1);
    GENERATE(KWK_ENOENT, g.model = "absent");
    GENERATE(8, g.max_new_tokens = 1 << 24); // as many as asked for by max_tokens
    GENERATE(0, g.max_new_tokens = 0);
    GENERATE(5, g.do_sample = 1, g.top_k = 1); // the best token is the only one
    for (int n = 512; n <= 40000; n += 39488) { // inline, and by the data area
        for (int i = 0; i < n; i++)
            tokens[i] = 5;
        kwk_generate g = from_bos(5);
        g.prompt = tokens;
        g.n_prompt = n + 1 > 40000 ? n : n + 1;
        const int rc = kwk_client_generate_all(c, &g, got, 8, &err);
        assert_true(rc == KWK_EFULL || rc == KWK_EINVAL);
        GENERATE(5, (void)0);
    }
    item = (kwk_forward){.seq = s, .tokens = above, .n_tokens = 2};
    assert_int_equal(kwk_client_forward(c, &item, 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_seq_length(s), 0);
    item = (kwk_forward){.seq = s, .tokens = ids, .n_tokens = 3, .all_logits = 1};
    forward(c, &item, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(argmax(item.logits + i * VOCAB), ids[i + 1]);
    kwk_client_close(c);
}

/* ---- models ------------------------------------------------------------------------------------ */

static void a_pack_handed_over_by_descriptor_gives_the_same_tokens(void **state)
{
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_generate g = from_bos(N_IDS - 1);
    kwk_model *m = NULL;
    int32_t got[N_IDS];
    char path[128];
    kwk_client *c;
    kwk_error err;

    NEEDS_MODEL();
    snprintf(path, sizeof path, "%s/stories.kwk", d.dir);
    assert_int_equal(kwk_model_open(&m, model_dir, NULL, &err), KWK_OK);
    assert_int_equal(kwk_model_save(m, path, &err), KWK_OK);
    kwk_model_free(m);
    c = open_client(0);
    l.name = "packed";
    l.fd = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    if (kwk_client_load_model(c, &l, &err) < 0)
        fail_msg("%s", err.msg);
    close(l.fd);
    g.model = "packed";
    assert_int_equal(kwk_client_generate_all(c, &g, got, N_IDS - 1, &err), N_IDS - 1);
    assert_memory_equal(got, ids + 1, (N_IDS - 1) * 4);
    assert_int_equal(kwk_client_pin(c, "packed", 1, &err), KWK_OK);
    assert_int_equal(kwk_client_unload(c, "packed", &err), KWK_OK);
    assert_int_equal(kwk_client_generate_all(c, &g, got, N_IDS - 1, &err), KWK_ENOENT);
    l.name = "bad";
    l.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(kwk_client_load_model(c, &l, &err), KWK_EFORMAT);
    close(l.fd);
    kwk_client_close(c);
}

/* ---- death ------------------------------------------------------------------------------------- */

/* Endless: the context of this model ends after 511 tokens, so start again and again. */
static int stream_for_ever(int ready)
{
    const kwk_generate g = from_bos(-1);
    kwk_client *c = NULL;
    kwk_event e;

    if (kwk_client_open(&c, d.dir, NULL, NULL) < 0)
        return 1;
    for (;;) {
        kwk_stream *s[20] = {NULL};
        for (int i = 0; i < 20; i++)
            if (kwk_client_generate(&s[i], c, &g, NULL) < 0)
                return 2;
        if (kwk_stream_next(s[0], &e, 30000, NULL) != 1 || (ready >= 0 && write(ready, "r", 1) != 1))
            return 3;
        ready = -1;
        for (int i = 0; i < 20; i++) {
            while (kwk_stream_next(s[i], &e, 30000, NULL) == 1 && e.type != KWK_EVENT_DONE)
                ;
            kwk_stream_free(s[i]);
        }
    }
}

static void a_killed_client_leaves_nothing_running(void **state)
{
    kwk_client *c;

    NEEDS_MODEL();
    c = open_client(0);
    for (int round = 0; round < 5; round++) {
        int ready[2];
        char byte;
        pid_t pid;
        int64_t killed;

        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        pid = fork();
        if (pid == 0)
            _exit(stream_for_ever(ready[1]));
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        killed = kwk_now_ms();
        while (status(c, "sessions") > 1 || status(c, "running") + status(c, "queued") > 0) {
            assert_true(kwk_now_ms() - killed < 2000);
            usleep(2000);
        }
    }
    kwk_client_close(c);
}

static void *kill_daemon_soon(void *arg)
{
    usleep(30000);
    *(int64_t *)arg = kwk_now_ms();
    daemon_kill(&d);
    return NULL;
}

static void clients_of_a_killed_daemon_get_an_error_within_200_ms(void **state)
{
    const kwk_generate g = from_bos(-1);

    NEEDS_MODEL();
    for (int round = 0; round < 20; round++) {
        kwk_client *c = open_client(0);
        kwk_stream *s[8];
        pthread_t thread;
        int64_t killed = 0;
        kwk_event e;
        kwk_error err;
        int rc, i = 0;

        pthread_create(&thread, NULL, kill_daemon_soon, &killed);
        for (int j = 0; j < 8; j++)
            s[j] = NULL;
        do { // reads and begins anew until it is over
            if (!s[i % 8] && (rc = kwk_client_generate(&s[i % 8], c, &g, &err)) < 0)
                break;
            rc = kwk_stream_next(s[i % 8], &e, -1, &err);
            if (rc == 1 && e.type == KWK_EVENT_DONE) {
                kwk_stream_free(s[i % 8]);
                s[i % 8] = NULL;
            }
            i++;
        } while (rc == 1);
        pthread_join(thread, NULL);
        assert_int_equal(rc, KWK_ECLOSED);
        assert_true(kwk_now_ms() - killed < 200);
        kwk_client_close(c);
        daemon_restart(&d, daemon_args); // at once, over what was left behind
    }
}

/* ---- others' clients --------------------------------------------------------------------------- */

static kwk_tree *ask_nng(nng_socket req, const kwk_request *r)
{
    kwk_buf b = {0};
    kwk_tree *t = NULL;
    nng_msg *msg;
    kwk_error err;

    assert_int_equal(kwk_request_encode(&b, r, NULL), KWK_OK);
    assert_int_equal(nng_msg_alloc(&msg, 0), 0);
    nng_msg_append(msg, b.data, b.size);
    assert_int_equal(nng_sendmsg(req, msg, 0), 0);
    assert_int_equal(nng_recvmsg(req, &msg, 0), 0);
    if (kwk_tree_parse(&t, nng_msg_body(msg), nng_msg_len(msg), &err) < 0)
        fail_msg("%s", err.msg);
    nng_msg_free(msg);
    kwk_buf_fini(&b);
    return t;
}

static void a_stock_nng_client_generates_inline(void **state)
{
    kwk_request r = {.op = KWK_OP_generate};
    int32_t got[N_IDS];
    char url[128];
    nng_socket req;
    kwk_tree *t;

    NEEDS_MODEL();
    kwk_client_close(open_client(0)); // the model is ready
    snprintf(url, sizeof url, "ipc://%s/kwkerd.sock", d.dir);
    assert_int_equal(nng_req0_open(&req), 0);
    nng_socket_set_ms(req, NNG_OPT_RECVTIMEO, 30000);
    assert_int_equal(nng_dial(req, url, NULL, 0), 0);
    r.u.generate = (kwk_generate_req)KWK_GENERATE_REQ_INIT;
    r.u.generate.prompt = ids;
    r.u.generate.n_prompt = 1;
    r.u.generate.max_new_tokens = 100;
    r.u.generate.inline_reply = 1;
    t = ask_nng(req, &r);
    assert_int_equal(kwk_tree_int(t, "ok", 0), 1);
    assert_int_equal(kwk_tree_ints(t, "tokens", got, N_IDS), 100);
    assert_memory_equal(got, ids + 1, 100 * 4);
    assert_string_equal(kwk_tree_str(t, "finish_reason"), "length");
    kwk_tree_free(t);
    r = (kwk_request){.op = KWK_OP_seq_open, .has_session = 1}; // a session that is not its own
    t = ask_nng(req, &r);
    assert_true(kwk_tree_status(t, NULL, NULL) < 0);
    kwk_tree_free(t);
    nng_close(req);
}

static void an_event_loop_reads_by_the_descriptor_alone(void **state)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    const kwk_generate g = from_bos(N_IDS - 1);
    kwk_client *c = NULL;
    kwk_stream *s = NULL;
    kwk_event e = {0};
    int n = 1;

    NEEDS_MODEL();
    kwk_client_close(open_client(0));
    o.event_loop = 1;
    assert_int_equal(kwk_client_open(&c, d.dir, &o, NULL), KWK_OK);
    assert_int_equal(kwk_client_generate(&s, c, &g, NULL), KWK_OK);
    while (e.type != KWK_EVENT_DONE) {
        struct pollfd p = {.fd = kwk_client_fd(c), .events = POLLIN};
        int rc;
        assert_int_equal(poll(&p, 1, 10000), 1); // no wake-up is lost
        assert_int_equal(kwk_client_drain(c, NULL), KWK_OK);
        while ((rc = kwk_stream_next(s, &e, 0, NULL)) == 1 && e.type == KWK_EVENT_TOKEN)
            assert_int_equal(e.token, ids[n++]);
        assert_true(rc >= 0);
    }
    assert_int_equal(n, N_IDS);
    kwk_client_close(c);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(greedy_decoding_gives_the_published_ids),
        TEST(sixteen_processes_at_once_get_the_published_ids_in_shared_steps),
        TEST(threads_of_one_session_read_their_own_streams),
        TEST(nothing_per_token_goes_over_control),
        TEST(logits_have_the_same_bits_token_by_token_and_all_at_once),
        TEST(forks_truncations_and_batches_change_no_bit),
        TEST(left_padding_with_positions_changes_no_bit),
        TEST(bad_requests_are_typed_errors_and_the_next_is_served),
        TEST(a_pack_handed_over_by_descriptor_gives_the_same_tokens),
        TEST(a_killed_client_leaves_nothing_running),
        TEST(clients_of_a_killed_daemon_get_an_error_within_200_ms),
        TEST(a_stock_nng_client_generates_inline),
        TEST(an_event_loop_reads_by_the_descriptor_alone),
    };
    return cmocka_run_group_tests(tests, read_ids, free_ids);
}
