/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon when memory runs out: whatever the nth allocation of a request was for, the request is
 * answered or its session ends, nothing leaks, and the next request is served. (The sanitizers see
 * leaks of memory; the harness counts models and sequences.)
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/daemon/harness.h"
#include "tests/support/fail_alloc.h"

static harness h;
static client c;
static const int32_t prompt[] = {1, 5, 7};

static int setup(void **state)
{
    fake_reset();
    harness_start(&h, 0, NULL);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    client_open(&c, &h, 0, 20 * 300 * sizeof(float));
    return 0;
}

static int teardown(void **state)
{
    client_close(&c, &h);
    harness_stop(&h);
    return 0;
}

/* A session that was ended for want of memory is replaced. */
static void revive(void)
{
    if (!atomic_load(&c.session->dead))
        return;
    client_close(&c, &h);
    harness_turns(&h);
    client_open(&c, &h, 0, 20 * 300 * sizeof(float));
}

/* The request with its nth allocation failing, to its end. 1: none failed. */
static int run_failing(kwk_request *req, int n)
{
    pending *p = call_prepare(&h, &c, req);
    kwk_record r = {0};
    int whole;

    atomic_store(&client_stream(&c, 1)->consumed, 0); // as a client does for a new stream
    fail_alloc_at(n);
    call_go(p);
    for (int i = 0; i < 100; i++) {
        kwkd_scheduler_turn(h.d.scheduler);
        while (!atomic_load(&c.session->dead) && client_take(&c, &r))
            ;
    }
    whole = fail_alloc_end();
    if (r.type) // a stream that began has an end
        assert_true(r.type == KWK_REC_DONE || r.type == KWK_REC_ERROR || r.type == KWK_REC_LOGITS);
    call_free(p);
    return whole;
}

static void expect_served(void)
{
    kwk_request g = harness_generate(9, prompt, 3, 20);
    int32_t tokens[32];
    kwk_record last;

    revive();
    harness_accept(&h, &c, &g);
    assert_int_equal(harness_drain(&h, &c, tokens, &last), 20);
    expect_greedy(prompt, 3, tokens, 20);
}

static void every_allocation_of_a_generation_may_fail(void **state)
{
    const kwk_bias bias = {5, 1};
    int n_failed = 0;

    FAIL_EACH(n)
    {
        kwk_request g = harness_generate(1, prompt, 3, 90); // more than its first room for ids
        g.u.generate.text = 1;
        g.u.generate.n_logprobs = 3;
        g.u.generate.bias = &bias;
        g.u.generate.n_bias = 1;
        g.u.generate.request_id = "id";
        g.u.generate.tenant = "t";
        if (run_failing(&g, n))
            break;
        n_failed++;
        harness_turns(&h);
        assert_int_equal(atomic_load(&fake_count.seqs), 0);
        assert_true(kwkd_scheduler_idle(h.d.scheduler));
        revive();
    }
    assert_true(n_failed > 10);
    expect_served();
}

static void every_allocation_of_an_inline_generation_may_fail(void **state)
{
    int n_failed = 0;

    FAIL_EACH(n)
    {
        kwk_request g = harness_generate(0, prompt, 3, 90);
        g.u.generate.inline_reply = g.u.generate.text = g.u.generate.logprobs = 1;
        if (run_failing(&g, n))
            break;
        n_failed++;
        assert_int_equal(atomic_load(&fake_count.seqs), 0);
        assert_true(kwkd_scheduler_idle(h.d.scheduler));
    }
    assert_true(n_failed > 10);
    expect_served();
}

static uint64_t open_seq(void)
{
    kwk_request r = {.op = KWK_OP_seq_open};
    kwk_tree *t;
    uint64_t id;

    assert_int_equal(call(&h, &c, &r, &t, NULL), KWK_OK);
    id = (uint64_t)kwk_tree_int(t, "seq", 0);
    kwk_tree_free(t);
    return id;
}

static void close_seqs(void) // all of them, with the session
{
    atomic_store(&c.session->dead, 1);
    revive();
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
}

static void every_allocation_about_a_sequence_may_fail(void **state)
{
    const kwk_op ops[] = {KWK_OP_seq_open,   KWK_OP_seq_fork, KWK_OP_seq_truncate,
                          KWK_OP_seq_export, KWK_OP_forward,  KWK_OP_seq_close};

    for (size_t i = 0; i < COUNT(ops); i++) {
        FAIL_EACH(n)
        {
            kwk_request r = {.op = ops[i]};
            int whole;
            if (ops[i] == KWK_OP_forward)
                r.u.forward = (kwk_forward_req){.seq = open_seq(), .tokens = prompt, .n_tokens = 3};
            else if (ops[i] != KWK_OP_seq_open)
                r.u.seq_fork = (kwk_seq_req){.seq = open_seq()};
            whole = run_failing(&r, n);
            close_seqs();
            if (whole)
                break;
        }
    }
    expect_served();
}

static void every_allocation_of_a_submission_may_fail(void **state)
{
    FAIL_EACH(n)
    {
        const kwk_submission sub = {
            .seq = open_seq(), .n = 200, .flags = KWK_SUB_POSITIONS | KWK_SUB_VALID};
        int whole;
        kwk_error err;
        make_prompt(client_data(&c), 200, 0);
        for (int i = 0; i < 200; i++)
            client_data(&c)[200 + i] = i;
        memset(client_data(&c) + 400, 1, 200);
        assert_true(kwk_sub_put(&c.sub_tail, c.ring.out, c.in, &sub, &err) >= 0);
        fail_alloc_at(n);
        for (int i = 0; i < 10; i++)
            kwkd_scheduler_turn(h.d.scheduler);
        whole = fail_alloc_end();
        close_seqs();
        if (whole)
            break;
    }
    expect_served();
}

static void every_allocation_of_other_requests_may_fail(void **state)
{
    const kwk_op ops[] = {KWK_OP_status, KWK_OP_models, KWK_OP_metrics,
                          KWK_OP_cancel, KWK_OP_pin,    KWK_OP_load};

    for (size_t i = 0; i < COUNT(ops); i++) {
        FAIL_EACH(n)
        {
            kwk_request r = {.op = ops[i]};
            if (ops[i] == KWK_OP_cancel)
                r.u.cancel.request_id = "id";
            if (ops[i] == KWK_OP_pin)
                r.u.pin.name = "m";
            if (ops[i] == KWK_OP_load)
                r.u.load = (kwk_load_req){.name = "other", .path = h.model};
            const int whole = run_failing(&r, n);
            (void)kwkd_store_unload(h.d.store, "other", 0, NULL);
            if (whole)
                break;
        }
    }
    expect_served();
}

static void every_allocation_of_a_session_may_fail(void **state)
{
    const kwk_hello_req hello = {.version = 1, .client = "test/1", .logits_bytes = 4096};

    FAIL_EACH(n)
    {
        kwkd_session *s = NULL;
        int pair[2], fds[3], n_fds, rc, whole;
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        close(pair[0]);
        fail_alloc_at(n);
        rc = kwkd_session_open(&s, &h.d.sessions, pair[1], 1000, 8, &hello, fds, &n_fds, NULL);
        if (rc == KWK_OK)
            rc = kwkd_scheduler_add_session(h.d.scheduler, s, NULL);
        whole = fail_alloc_end();
        assert_int_equal(rc, whole ? KWK_OK : KWK_ENOMEM);
        for (int i = 0; i < 3; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        if (s) {
            kwkd_session_close(&h.d.sessions, s);
            kwkd_scheduler_drop_session(h.d.scheduler, s);
            kwkd_session_unref(s);
        } else {
            close(pair[1]);
        }
        assert_int_equal(kwkd_sessions_count(&h.d.sessions), 1);
        if (whole)
            break;
    }
    expect_served();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_allocation_of_a_generation_may_fail),
        TEST(every_allocation_of_an_inline_generation_may_fail),
        TEST(every_allocation_about_a_sequence_may_fail),
        TEST(every_allocation_of_a_submission_may_fail),
        TEST(every_allocation_of_other_requests_may_fail),
        TEST(every_allocation_of_a_session_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
