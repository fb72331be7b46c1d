/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients' sequences: requests about them, submissions through the ring, hostile ones. */
#include <string.h>

#include "daemon/scheduler_state.h"
#include "tests/daemon/harness.h"

enum { VOCAB = 300, ROWS = 40 };

static harness h;
static client c;
static kwk_error err;

static int setup(void **state)
{
    fake_reset();
    harness_start(&h, 0, NULL);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    client_open(&c, &h, 64, ROWS * VOCAB * sizeof(float));
    return 0;
}

static int teardown(void **state)
{
    client_close(&c, &h);
    harness_stop(&h);
    return 0;
}

static uint64_t seq_of(kwk_tree *t)
{
    const uint64_t id = (uint64_t)kwk_tree_int(t, "seq", 0);

    kwk_tree_free(t);
    assert_true(id > 0);
    return id;
}

static uint64_t open_seq(void)
{
    kwk_request r = {.op = KWK_OP_seq_open};
    kwk_tree *t;

    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    assert_int_equal(kwk_tree_int(t, "length", -1), 0);
    assert_int_equal(kwk_tree_int(t, "vocab", -1), VOCAB);
    assert_int_equal(kwk_tree_int(t, "max_ctx", -1), 4096);
    return seq_of(t);
}

static int about(kwk_op op, uint64_t seq, int length, kwk_tree **t)
{
    kwk_request r = {.op = op};

    r.u.seq_truncate.seq = seq;
    r.u.seq_truncate.length = length;
    return call(&h, &c, &r, t, &err);
}

static int length_after(kwk_op op, uint64_t seq, int length)
{
    kwk_tree *t;
    int n;

    assert_int_equal(about(op, seq, length, &t), KWK_OK);
    n = (int)kwk_tree_int(t, "length", -1);
    kwk_tree_free(t);
    return n;
}

/* Publish a submission as the client library does. */
static void submit(kwk_submission sub)
{
    assert_true(kwk_sub_put(&c.sub_tail, c.ring.out, c.in, &sub, &err) >= 0);
}

/* The answer to the only submission; its type. */
static kwk_record_type answer(kwk_record *r)
{
    for (int i = 0; i < 1000; i++) {
        if (client_take(&c, r))
            return (kwk_record_type)r->type;
        kwkd_scheduler_turn(h.d.scheduler);
    }
    fail_msg("no answer");
    return 0;
}

/* Run tokens; the row with the logits of the last one. */
static const float *forward(uint64_t seq, const int32_t *tokens, int n)
{
    kwk_record r;

    memcpy(client_data(&c), tokens, (size_t)n * 4);
    submit((kwk_submission){.seq = seq, .tag = 9, .n = (uint32_t)n, .row = 3});
    if (answer(&r) != KWK_REC_LOGITS)
        fail_msg("%.*s", r.n_bytes, r.payload);
    assert_int_equal(r.stream, 9);
    assert_int_equal(r.aux, 3);
    assert_int_equal(r.token, 1);
    return c.logits + 3 * VOCAB;
}

static void tokens_run_and_the_logits_lie_in_the_area(void **state)
{
    const int32_t tokens[] = {5, 6, 7, 8};
    const uint64_t seq = open_seq();
    const float *l = forward(seq, tokens, 3);

    assert_true(l[0] == 3 && l[1] == 2 && l[2] == 0 && l[3] == 7);
    l = forward(seq, tokens + 3, 1);
    assert_true(l[0] == 4 && l[1] == 3 && l[3] == 8);
    assert_int_equal(length_after(KWK_OP_seq_close, seq, 0), 4);
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
}

static void all_logits_positions_and_holes_are_honoured(void **state)
{
    const int32_t tokens[] = {5, 6, 7}, positions[] = {0, 0, 1};
    const uint8_t valid[] = {0, 1, 1};
    const uint64_t seq = open_seq();
    kwk_record r;

    memcpy(client_data(&c), tokens, 12);
    memcpy(client_data(&c) + 3, positions, 12);
    memcpy(client_data(&c) + 6, valid, 3);
    submit((kwk_submission){.seq = seq,
                            .n = 3,
                            .row = 10,
                            .flags = KWK_SUB_POSITIONS | KWK_SUB_VALID | KWK_SUB_ALL_LOGITS});
    assert_int_equal(answer(&r), KWK_REC_LOGITS);
    assert_int_equal(r.token, 3);
    for (int i = 0; i < 3; i++) {
        const float *l = c.logits + (10 + i) * VOCAB;
        assert_true(l[0] == i + 1 && l[1] == positions[i] && l[2] == 1);
    }
    // what follows continues after the last position, not the slot
    const float *l = forward(seq, tokens, 1);
    assert_true(l[0] == 4 && l[1] == 2);
    assert_int_equal(length_after(KWK_OP_seq_truncate, seq, 2), 2);
    l = forward(seq, tokens, 1); // also after a truncation
    assert_true(l[0] == 3 && l[1] == 1);
}

static void no_logits_need_no_area(void **state)
{
    const int32_t tokens[] = {5};
    const uint64_t seq = open_seq();
    kwk_record r;

    memcpy(client_data(&c), tokens, 4);
    submit((kwk_submission){.seq = seq, .n = 1, .row = UINT32_MAX, .flags = KWK_SUB_NO_LOGITS});
    assert_int_equal(answer(&r), KWK_REC_LOGITS);
    assert_int_equal(r.token, 0);
}

static void a_long_submission_is_cut_into_slices(void **state)
{
    int32_t tokens[1000];
    const uint64_t seq = open_seq();

    make_prompt(tokens, 1000, 0);
    assert_true(forward(seq, tokens, 1000)[0] == 1000);
    assert_true(atomic_load(&fake_count.max_rows) <= 128);
    assert_true(atomic_load(&fake_count.steps) >= 8);
}

static void sequences_of_a_batch_share_a_step(void **state)
{
    uint64_t seq[16];
    kwk_record r;

    for (int i = 0; i < 16; i++) {
        seq[i] = open_seq();
        client_data(&c)[i] = 20 + i;
    }
    for (int i = 0; i < 16; i++)
        submit((kwk_submission){.seq = seq[i],
                                .tag = (uint32_t)i,
                                .n = 1,
                                .offset = 4 * (uint32_t)i,
                                .row = (uint32_t)i});
    kwkd_scheduler_turn(h.d.scheduler);
    assert_int_equal(atomic_load(&fake_count.steps), 1);
    assert_int_equal(atomic_load(&fake_count.max_rows), 16);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(client_take(&c, &r), 1);
        assert_true(c.logits[r.aux * VOCAB + 3] == 20 + (float)r.stream);
    }
}

static void submissions_of_one_sequence_run_in_order(void **state)
{
    const uint64_t seq = open_seq();
    kwk_record r;

    for (int i = 0; i < 3; i++) {
        client_data(&c)[i] = 20 + i;
        submit((kwk_submission){
            .seq = seq, .tag = (uint32_t)i, .n = 1, .offset = 4 * (uint32_t)i, .row = (uint32_t)i});
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(answer(&r), KWK_REC_LOGITS);
        assert_int_equal(r.stream, i);
        assert_true(c.logits[i * VOCAB] == i + 1);
    }
}

static void a_fork_goes_its_own_way(void **state)
{
    const int32_t tokens[] = {5, 6, 7};
    const uint64_t seq = open_seq();
    uint64_t fork;
    kwk_tree *t;

    forward(seq, tokens, 3);
    assert_int_equal(about(KWK_OP_seq_fork, seq, 0, &t), KWK_OK);
    assert_int_equal(kwk_tree_int(t, "length", -1), 3);
    fork = seq_of(t);
    assert_true(fork != seq);
    assert_true(forward(fork, tokens, 2)[0] == 5);
    assert_true(forward(seq, tokens, 1)[0] == 4);
}

static void export_lays_k_and_v_into_the_area(void **state)
{
    const int32_t tokens[] = {5, 6, 7};
    const uint64_t seq = open_seq();
    kwk_request r = {.op = KWK_OP_seq_export};
    kwk_tree *t;

    forward(seq, tokens, 3);
    r.u.seq_export = (kwk_seq_req){.seq = seq, .layer = 1, .row = 2};
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    assert_int_equal(kwk_tree_int(t, "length", -1), 3);
    assert_int_equal(kwk_tree_int(t, "n_kv_heads", -1), 2);
    assert_int_equal(kwk_tree_int(t, "head_dim", -1), 4);
    assert_int_equal(kwk_tree_int(t, "rows", -1), 1); // 48 floats
    kwk_tree_free(t);
    for (int i = 0; i < 24; i++) {
        assert_true(c.logits[2 * VOCAB + i] == (float)tokens[i / 4 % 3]);
        assert_true(c.logits[2 * VOCAB + 24 + i] == (float)(i / 4 % 3));
    }
    r.u.seq_export.layer = 2;
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EINVAL);
    r.u.seq_export.layer = 0;
    r.u.seq_export.row = ROWS + 1;
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EFULL);
    r.u.seq_export.row = UINT32_MAX;
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EFULL);
}

static void forward_by_request_answers_inline(void **state)
{
    const int32_t tokens[] = {5, 6}, positions[] = {4, 9};
    kwk_request r = {.op = KWK_OP_forward};
    float l[VOCAB];
    const void *bytes;
    kwk_tree *t;
    size_t n;

    r.u.forward = (kwk_forward_req){.seq = open_seq(),
                                    .tokens = tokens,
                                    .n_tokens = 2,
                                    .positions = positions,
                                    .n_positions = 2};
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    bytes = kwk_tree_bin(t, "logits", &n);
    assert_int_equal(n, sizeof l);
    memcpy(l, bytes, n); // lies anywhere in the message
    assert_true(l[0] == 2 && l[1] == 9);
    assert_int_equal(kwk_tree_int(t, "length", -1), 2);
    kwk_tree_free(t);
    r.u.forward.n_positions = 1;
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EINVAL);
}

static void requests_about_unknown_sequences_fail(void **state)
{
    const kwk_op ops[] = {KWK_OP_seq_fork, KWK_OP_seq_truncate, KWK_OP_seq_close,
                          KWK_OP_seq_export};
    const uint64_t seq = open_seq();

    for (size_t i = 0; i < COUNT(ops); i++)
        assert_int_equal(about(ops[i], 77, 0, NULL), KWK_ENOENT);
    assert_int_equal(about(KWK_OP_seq_truncate, seq, 1, NULL), KWK_EINVAL);
    assert_int_equal(about(KWK_OP_seq_close, seq, 0, NULL), KWK_OK);
    assert_int_equal(about(KWK_OP_seq_close, seq, 0, NULL), KWK_ENOENT);
}

static void a_sequence_in_flight_is_busy(void **state)
{
    int32_t tokens[1000];
    const uint64_t seq = open_seq();
    kwk_record r;

    make_prompt(tokens, 1000, 0);
    memcpy(client_data(&c), tokens, sizeof tokens);
    submit((kwk_submission){.seq = seq, .n = 1000});
    kwkd_scheduler_turn(h.d.scheduler); // one slice of it
    kwk_request req = {.op = KWK_OP_seq_truncate};
    req.u.seq_truncate.seq = seq;
    pending *p = call_start(&h, &c, &req);
    kwkd_scheduler_turn(h.d.scheduler);
    assert_true(call_done(p));
    assert_int_equal(call_end(&h, p, NULL, &err), KWK_EBUSY);
    assert_int_equal(answer(&r), KWK_REC_LOGITS);
}

static void bad_submissions_are_answered_by_errors(void **state)
{
    const uint64_t seq = open_seq();
    const struct {
        kwk_submission sub;
        int code;
    } bad[] = {
        {{.seq = 99, .n = 1}, KWK_ENOENT},
        {{.seq = seq, .n = 0}, KWK_EINVAL},
        {{.seq = seq, .n = UINT32_MAX}, KWK_EINVAL},
        {{.seq = seq, .n = 1, .offset = 2}, KWK_EINVAL},
        {{.seq = seq, .n = 1, .offset = UINT32_MAX - 3}, KWK_EINVAL},
        {{.seq = seq, .n = KWK_PROMPT_MAX, .offset = 4}, KWK_EINVAL},
        {{.seq = seq, .n = KWK_PROMPT_MAX, .flags = KWK_SUB_POSITIONS}, KWK_EINVAL},
        {{.seq = seq, .n = 1, .row = ROWS + 20}, KWK_EFULL},
        {{.seq = seq, .n = 1, .row = UINT32_MAX}, KWK_EFULL},
        {{.seq = seq, .n = ROWS + 20, .flags = KWK_SUB_ALL_LOGITS}, KWK_EFULL},
        {{.seq = seq, .n = 2, .offset = 400}, KWK_EINVAL},                             // ids
        {{.seq = seq, .n = 1, .offset = 396, .flags = KWK_SUB_POSITIONS}, KWK_EINVAL}, // position
        {{.seq = seq, .n = 1, .offset = 800, .flags = KWK_SUB_VALID}, KWK_EINVAL},     // validity
        {{.seq = seq, .n = 5000, .offset = 8000}, KWK_EFULL},                          // context
    };
    kwk_record r;

    client_data(&c)[100] = VOCAB;
    client_data(&c)[101] = -1;
    client_data(&c)[100 - 1] = 5; // a good token before a bad position
    client_data(&c)[100] = -1;
    client_data(&c)[201] = 2;
    for (size_t i = 0; i < COUNT(bad); i++) {
        submit(bad[i].sub);
        assert_int_equal(answer(&r), KWK_REC_ERROR);
        if (r.token != bad[i].code)
            fail_msg("case %zu: %d %.*s", i, r.token, r.n_bytes, r.payload);
        assert_true(r.n_bytes > 0);
    }
    const int32_t good[] = {5};
    assert_true(forward(seq, good, 1)[0] == 1); // untouched
}

static void a_failing_submission_leaves_the_sequence_as_it_was(void **state)
{
    int32_t tokens[1000];
    const uint64_t seq = open_seq();
    kwk_record r;

    make_prompt(tokens, 1000, 0);
    forward(seq, tokens, 10);
    tokens[900] = 299;
    fake.poison = 299; // in the last slice
    memcpy(client_data(&c), tokens, sizeof tokens);
    submit((kwk_submission){.seq = seq, .n = 1000});
    assert_int_equal(answer(&r), KWK_REC_ERROR);
    assert_int_equal(length_after(KWK_OP_seq_truncate, seq, 10), 10);
    assert_true(forward(seq, tokens, 1)[1] == 10);
}

static void a_tail_that_jumps_ends_the_session(void **state)
{
    open_seq();
    atomic_store(&client_header(&c)->sub_tail, c.sub_tail + KWK_SUB_SLOTS + 1);
    kwkd_scheduler_turn(h.d.scheduler);
    assert_true(atomic_load(&c.session->dead));
}

static void answers_wait_for_room_without_loss(void **state)
{
    const uint64_t seq = open_seq();
    kwk_record r;

    client_data(&c)[0] = 5;
    for (uint32_t i = 0; i < 200; i++) // the ring has 64 records
        submit((kwk_submission){.seq = seq, .tag = i, .n = 1, .flags = KWK_SUB_NO_LOGITS});
    harness_turns(&h);
    assert_int_equal(atomic_load(&c.ring.out->tail), 64);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(answer(&r), KWK_REC_LOGITS);
        assert_int_equal(r.stream, i);
    }
    assert_int_equal(c.session->engine.n_tasks, 0);
    assert_int_equal(h.d.scheduler->n_unanswered, 0);
}

static void sequences_may_hold_only_a_part_of_the_blocks(void **state)
{
    int32_t tokens[400], *prompt = tokens;
    kwk_record r;
    kwk_request g;

    fake.kv_blocks = 16; // sequences: 12 blocks, 384 slots
    assert_int_equal(kwkd_store_unload(h.d.store, "m", 0, NULL), KWK_OK);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    const uint64_t a = open_seq(), b = open_seq();
    make_prompt(tokens, 400, 0);
    forward(a, tokens, 384);
    memcpy(client_data(&c), tokens, 4);
    submit((kwk_submission){.seq = b, .n = 1});
    assert_int_equal(answer(&r), KWK_REC_ERROR);
    assert_int_equal(r.token, KWK_EFULL);
    g = harness_generate(1, prompt, 50, 10); // generations still run in the rest
    harness_accept(&h, &c, &g);
    assert_int_equal(harness_drain(&h, &c, tokens, &r), 10);
    make_prompt(tokens, 400, 0);
    g = harness_generate(2, prompt, 200, 10); // but this one cannot, and says so
    harness_accept(&h, &c, &g);
    assert_int_equal(harness_drain(&h, &c, tokens, &r), 0);
    assert_int_equal(r.type, KWK_REC_ERROR);
    assert_int_equal(r.token, KWK_EFULL);
}

static void the_number_of_sequences_is_bounded(void **state)
{
    kwk_request r = {.op = KWK_OP_seq_open};

    atomic_store(&h.d.scheduler->sequences, 3);
    for (int i = 0; i < 3; i++)
        open_seq();
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EFULL);
}

static void a_dead_session_drops_sequences_and_tasks(void **state)
{
    client d;
    kwk_request r = {.op = KWK_OP_seq_open};
    const kwk_submission sub = {.seq = 1, .n = 2000};
    kwk_tree *t;

    client_open(&d, &h, 0, 4096);
    assert_int_equal(call(&h, &d, &r, &t, &err), KWK_OK);
    kwk_tree_free(t);
    make_prompt(client_data(&d), 2000, 0);
    kwk_sub_put(&d.sub_tail, d.ring.out, d.in, &sub, &err);
    kwkd_scheduler_turn(h.d.scheduler);
    assert_int_equal(atomic_load(&fake_count.seqs), 1);
    client_close(&d, &h);
    kwkd_scheduler_turn(h.d.scheduler);
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
}

static void the_doorbell_is_wanted_only_while_nobody_polls(void **state)
{
    assert_int_equal(atomic_load(&c.ring.out->sub_sleeping), 1);
    const uint64_t seq = open_seq();
    assert_int_equal(atomic_load(&c.ring.out->sub_sleeping), 0);
    about(KWK_OP_seq_close, seq, 0, NULL);
    assert_int_equal(atomic_load(&c.ring.out->sub_sleeping), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokens_run_and_the_logits_lie_in_the_area),
        TEST(all_logits_positions_and_holes_are_honoured),
        TEST(no_logits_need_no_area),
        TEST(a_long_submission_is_cut_into_slices),
        TEST(sequences_of_a_batch_share_a_step),
        TEST(submissions_of_one_sequence_run_in_order),
        TEST(a_fork_goes_its_own_way),
        TEST(export_lays_k_and_v_into_the_area),
        TEST(forward_by_request_answers_inline),
        TEST(requests_about_unknown_sequences_fail),
        TEST(a_sequence_in_flight_is_busy),
        TEST(bad_submissions_are_answered_by_errors),
        TEST(a_failing_submission_leaves_the_sequence_as_it_was),
        TEST(a_tail_that_jumps_ends_the_session),
        TEST(answers_wait_for_room_without_loss),
        TEST(sequences_may_hold_only_a_part_of_the_blocks),
        TEST(the_number_of_sequences_is_bounded),
        TEST(a_dead_session_drops_sequences_and_tasks),
        TEST(the_doorbell_is_wanted_only_while_nobody_polls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
