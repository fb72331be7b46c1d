/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step is made of, and what happens when KV blocks run short. */
#include <string.h>

#include "daemon/scheduler_state.h"
#include "tests/daemon/harness.h"

static harness h;
static client c;
static kwk_error err;

static int setup(void **state)
{
    fake_reset();
    fake.kv_blocks = 32; // 1024 slots
    harness_start(&h, 0, NULL);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    client_open(&c, &h, 0, 600 * 300 * sizeof(float));
    return 0;
}

static int teardown(void **state)
{
    client_close(&c, &h);
    harness_stop(&h);
    return 0;
}

static void start(uint32_t stream, int n_prompt, int max_new)
{
    static int32_t prompt[4096];
    kwk_request r;

    make_prompt(prompt, n_prompt, (int)stream);
    r = harness_generate(stream, prompt, n_prompt, max_new);
    harness_accept(&h, &c, &r);
}

static int turn(void) // rows of the step that it ran
{
    const int steps = atomic_load(&fake_count.steps);

    kwkd_scheduler_turn(h.d.scheduler);
    return atomic_load(&fake_count.steps) > steps ? atomic_load(&fake_count.last_rows) : 0;
}

static void a_step_is_all_that_decodes_and_one_slice(void **state)
{
    for (uint32_t i = 0; i < 8; i++)
        start(i, 1, 50);
    assert_int_equal(turn(), 8);
    start(100, 300, 50);
    assert_int_equal(turn(), 8 + 128);
    assert_int_equal(turn(), 8 + 128);
    assert_int_equal(turn(), 8 + 44);
    assert_int_equal(turn(), 9);
}

static void several_short_prompts_share_a_slice(void **state)
{
    for (uint32_t i = 0; i < 20; i++)
        start(i, 10, 5);
    assert_int_equal(turn(), 128);         // twelve whole, eight tokens of the next
    assert_int_equal(turn(), 12 + 2 + 70); // the rest
}

static void the_slice_is_a_setting(void **state)
{
    atomic_store(&h.d.scheduler->slice, 7);
    start(0, 20, 5);
    assert_int_equal(turn(), 7);
    assert_int_equal(turn(), 7);
    assert_int_equal(turn(), 6);
    assert_int_equal(turn(), 1);
}

static void no_more_run_than_the_setting_says(void **state)
{
    int running, waiting;

    atomic_store(&h.d.scheduler->running, 3);
    for (uint32_t i = 0; i < 5; i++)
        start(i, 1, 10);
    turn();
    kwkd_scheduler_counts(h.d.scheduler, &running, &waiting);
    assert_int_equal(running, 3);
    assert_int_equal(waiting, 2);
    harness_turns(&h);
    assert_int_equal(atomic_load(&fake_count.max_rows), 3);
}

static void a_prompt_waits_until_its_blocks_are_free(void **state)
{
    int running, waiting;

    start(0, 600, 20); // 19 blocks
    start(1, 600, 20);
    for (int i = 0; i < 10; i++)
        turn();
    kwkd_scheduler_counts(h.d.scheduler, &running, &waiting);
    assert_int_equal(running, 1);
    assert_int_equal(waiting, 1);
    harness_turns(&h);
    assert_int_equal(kwkd_counted(&h.d.metrics.finished[KWK_FINISH_LENGTH]), 2);
    assert_int_equal(kwkd_counted(&h.d.metrics.preempted), 0);
}

static void a_long_prompt_is_not_overtaken_by_later_short_ones(void **state)
{
    int running, waiting;

    start(0, 600, 100);
    turn();
    start(1, 600, 1); // does not fit beside it
    for (uint32_t i = 2; i < 6; i++)
        start(i, 10, 1); // these would
    for (int i = 0; i < 30; i++)
        turn();
    kwkd_scheduler_counts(h.d.scheduler, &running, &waiting);
    assert_int_equal(waiting, 5);
    harness_turns(&h);
    assert_int_equal(kwkd_counted(&h.d.metrics.finished[KWK_FINISH_LENGTH]), 6);
}

static void stalled_streams_make_way_first(void **state)
{
    client slow;
    kwk_request r;
    int32_t prompt[500];
    kwk_record last;
    static int32_t tokens[600];

    client_open(&slow, &h, 64, 0);
    make_prompt(prompt, 500, 3);
    r = harness_generate(0, prompt, 500, 400);
    harness_accept(&h, &slow, &r);
    harness_turns(&h); // stuck with 64 records, holding 18 blocks
    assert_int_equal(atomic_load(&fake_count.seqs), 1);
    start(1, 600, 200);
    harness_turns(&h);
    assert_int_equal(kwkd_counted(&h.d.metrics.finished[KWK_FINISH_LENGTH]), 1);
    assert_true(kwkd_counted(&h.d.metrics.preempted) >= 1);
    assert_int_equal(harness_drain(&h, &slow, tokens, &last), 400); // and loses nothing
    expect_greedy(prompt, 500, tokens, 400);
    client_close(&slow, &h);
}

static void a_task_that_finds_no_blocks_preempts_then_fails(void **state)
{
    kwk_request open = {.op = KWK_OP_seq_open};
    kwk_submission sub = {.seq = 1, .n = 300};
    int logits = 0, code = 0;
    kwk_tree *t;
    kwk_record r;

    assert_int_equal(call(&h, &c, &open, &t, &err), KWK_OK);
    kwk_tree_free(t);
    start(0, 900, 50); // 29 blocks
    for (int i = 0; i < 9; i++)
        turn();
    make_prompt(client_data(&c), 300, 0);
    assert_true(kwk_sub_put(&c.sub_tail, c.ring.out, c.in, &sub, &err) >= 0);
    for (int i = 0; i < 5; i++)
        turn();
    assert_true(kwkd_counted(&h.d.metrics.preempted) >= 1);
    harness_turns(&h);
    while (client_take(&c, &r)) {
        logits += r.type == KWK_REC_LOGITS;
        if (r.type == KWK_REC_ERROR) // needs more than what the sequence leaves, and is told so
            code = r.token;
    }
    assert_int_equal(logits, 1);
    assert_int_equal(code, KWK_EFULL);
}

static void logits_of_a_step_are_bounded(void **state)
{
    kwk_request open = {.op = KWK_OP_seq_open};
    const kwk_submission sub = {.seq = 1, .n = 600, .flags = KWK_SUB_ALL_LOGITS};
    kwk_tree *t;
    kwk_record r;

    assert_int_equal(call(&h, &c, &open, &t, &err), KWK_OK);
    kwk_tree_free(t);
    make_prompt(client_data(&c), 600, 0);
    assert_true(kwk_sub_put(&c.sub_tail, c.ring.out, c.in, &sub, &err) >= 0);
    harness_turns(&h);
    assert_int_equal(client_take(&c, &r), 1);
    assert_int_equal(r.token, 600);
    for (int i = 0; i < 600; i++) // every row of every slice is in its place
        assert_true(c.logits[i * 300] == i + 1);
}

static void two_models_take_turns(void **state)
{
    kwk_request r;
    const int32_t prompt[] = {1};

    assert_int_equal(harness_load(&h, "n"), KWK_OK);
    for (uint32_t i = 0; i < 4; i++) {
        r = harness_generate(i, prompt, 1, 10);
        r.u.generate.model = i % 2 ? "n" : "m";
        harness_accept(&h, &c, &r);
    }
    for (int i = 0; i < 10; i++)
        kwkd_scheduler_turn(h.d.scheduler);
    assert_int_equal(atomic_load(&fake_count.steps), 20);
    assert_int_equal(kwkd_counted(&h.d.metrics.finished[KWK_FINISH_LENGTH]), 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_step_is_all_that_decodes_and_one_slice),
        TEST(several_short_prompts_share_a_slice),
        TEST(the_slice_is_a_setting),
        TEST(no_more_run_than_the_setting_says),
        TEST(a_prompt_waits_until_its_blocks_are_free),
        TEST(a_long_prompt_is_not_overtaken_by_later_short_ones),
        TEST(stalled_streams_make_way_first),
        TEST(a_task_that_finds_no_blocks_preempts_then_fails),
        TEST(logits_of_a_step_are_bounded),
        TEST(two_models_take_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
