/* SPDX-License-Identifier: Apache-2.0
 *
 * Generations from the request to the last record, over the fake engine, turn by turn. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/scheduler_state.h"
#include "tests/daemon/harness.h"

static harness h;

static int setup(void **state)
{
    fake_reset();
    harness_start(&h, 0, NULL);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    return 0;
}

static int teardown(void **state)
{
    harness_stop(&h);
    return 0;
}

static void accept(const client *c, kwk_request *req)
{
    harness_accept(&h, c, req);
}

static int drain(client *c, int32_t *tokens, kwk_record *last)
{
    return harness_drain(&h, c, tokens, last);
}

static void a_generation_streams_its_tokens(void **state)
{
    const int32_t prompt[] = {1, 5, 7};
    kwk_request req = harness_generate(3, prompt, 3, 20);
    int32_t tokens[64];
    kwk_record last;
    kwk_done done;
    client c;

    client_open(&c, &h, 0, 0);
    accept(&c, &req);
    assert_int_equal(drain(&c, tokens, &last), 20);
    expect_greedy(prompt, 3, tokens, 20);
    assert_int_equal(last.type, KWK_REC_DONE);
    assert_int_equal(last.token, KWK_FINISH_LENGTH);
    assert_int_equal(last.stream, 3);
    memcpy(&done, last.payload, sizeof done);
    assert_int_equal(done.prompt_tokens, 3);
    assert_int_equal(done.new_tokens, 20);
    client_close(&c, &h);
}

static void the_end_token_ends_it_and_is_the_last(void **state)
{
    static const int32_t script[] = {10, 11, FAKE_EOS};
    const int32_t prompt[] = {1};
    kwk_request req = harness_generate(0, prompt, 1, -1);
    int32_t tokens[64];
    kwk_record last;
    client c;

    fake.script = script;
    fake.n_script = 3;
    client_open(&c, &h, 0, 0);
    accept(&c, &req);
    assert_int_equal(drain(&c, tokens, &last), 3);
    assert_int_equal(tokens[2], FAKE_EOS);
    assert_int_equal(last.token, KWK_FINISH_EOS);
    req.u.generate.ignore_eos = 1;
    req.u.generate.max_new_tokens = 7;
    req.u.generate.stream = 1;
    accept(&c, &req);
    assert_int_equal(drain(&c, tokens, &last), 7);
    assert_int_equal(last.token, KWK_FINISH_LENGTH);
    client_close(&c, &h);
}

static void max_new_tokens_zero_only_computes_the_prompt(void **state)
{
    int32_t prompt[300], tokens[4];
    kwk_request req;
    kwk_record last;
    client c;

    make_prompt(prompt, 300, 0);
    req = harness_generate(0, prompt, 300, 0);
    client_open(&c, &h, 0, 0);
    accept(&c, &req);
    assert_int_equal(drain(&c, tokens, &last), 0);
    assert_int_equal(last.type, KWK_REC_DONE);
    assert_int_equal(last.token, KWK_FINISH_LENGTH);
    assert_int_equal(atomic_load(&fake_count.rows), 300);
    client_close(&c, &h);
}

static void max_new_tokens_minus_one_or_huge_ends_at_the_context(void **state)
{
    int32_t prompt[4000], tokens[200];
    kwk_record last;
    client c;

    make_prompt(prompt, 4000, 0);
    client_open(&c, &h, 0, 0);
    for (int i = 0; i < 2; i++) {
        kwk_request req = harness_generate((uint32_t)i, prompt, 4000, i ? KWK_NEW_TOKENS_MAX : -1);
        accept(&c, &req);
        assert_int_equal(drain(&c, tokens, &last), 96);
        expect_greedy(prompt, 4000, tokens, 96);
        assert_int_equal(last.token, KWK_FINISH_LENGTH);
    }
    client_close(&c, &h);
}

static void sixteen_at_once_share_steps_and_get_what_each_gets_alone(void **state)
{
    int32_t prompts[16][5], tokens[16][40];
    client c[16];
    kwk_record last;

    for (int i = 0; i < 16; i++) {
        kwk_request req;
        make_prompt(prompts[i], 5, i);
        client_open(&c[i], &h, 0, 0);
        req = harness_generate(0, prompts[i], 5, 40);
        accept(&c[i], &req);
    }
    for (int i = 0; i < 16; i++) {
        assert_int_equal(drain(&c[i], tokens[i], &last), 40);
        expect_greedy(prompts[i], 5, tokens[i], 40);
    }
    assert_int_equal(atomic_load(&fake_count.steps), 40);
    assert_int_equal(kwkd_counted(&h.d.metrics.max_rows), 80); // their prompts in one step
    for (int i = 0; i < 16; i++)
        client_close(&c[i], &h);
}

static void a_long_prompt_is_cut_into_slices_and_stalls_nobody(void **state)
{
    int32_t longer[2000], tokens[64];
    const int32_t shorter[] = {1, 2};
    kwk_request a, b = harness_generate(0, shorter, 2, 15);
    kwk_record last;
    client c, d;
    int progress = 0;

    make_prompt(longer, 2000, 0);
    a = harness_generate(0, longer, 2000, 4);
    client_open(&c, &h, 0, 0);
    client_open(&d, &h, 0, 0);
    accept(&d, &b);
    kwkd_scheduler_turn(h.d.scheduler);
    accept(&c, &a);
    // 15 tokens, one a step, while the prompt's 16 slices run beside them
    assert_int_equal(drain(&d, tokens, &last), 15);
    assert_in_range(atomic_load(&fake_count.steps), 15, 18);
    assert_true(atomic_load(&fake_count.max_rows) <= 129);
    while (client_take(&c, &last))
        progress += last.type == KWK_REC_PROGRESS && last.aux == 2000;
    assert_true(progress > 5);
    assert_int_equal(drain(&c, tokens, &last), 4);
    expect_greedy(longer, 2000, tokens, 4);
    client_close(&c, &h);
    client_close(&d, &h);
}

static int prefill_order[64], n_prefill;

/* Which session's prompt (by its first token) the steps take, in order. */
static void note_prompts(void *arg, const kwk_step_args *args)
{
    for (int i = 0; i < args->n_rows && n_prefill < 64; i++)
        if (i == 0 || args->rows[i].seq != args->rows[i - 1].seq)
            prefill_order[n_prefill++] = args->rows[i + 1 < args->n_rows ? i + 1 : i].token;
}

static void prompts_are_served_in_turn_between_users(void **state)
{
    int32_t prompt[3][128];
    client c;

    // two prompts of one tenant came first, then one of another
    client_open(&c, &h, 0, 0);
    for (int i = 0; i < 3; i++) {
        kwk_request req;
        for (int k = 0; k < 128; k++)
            prompt[i][k] = 10 + i;
        req = harness_generate((uint32_t)i, prompt[i], 128, 0);
        req.u.generate.tenant = i < 2 ? "a" : "b";
        accept(&c, &req);
    }
    n_prefill = 0;
    fake.hook = note_prompts;
    harness_turns(&h);
    assert_int_equal(n_prefill, 3);
    assert_int_equal(prefill_order[0], 10);
    assert_int_equal(prefill_order[1], 12); // b is next, though it came last
    assert_int_equal(prefill_order[2], 11);
    client_close(&c, &h);
}

static void a_dead_session_frees_its_places_within_a_step(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request req = harness_generate(0, prompt, 1, -1);
    int running, waiting;
    client c;

    client_open(&c, &h, 0, 0);
    accept(&c, &req);
    for (int i = 0; i < 5; i++)
        kwkd_scheduler_turn(h.d.scheduler);
    kwkd_scheduler_counts(h.d.scheduler, &running, &waiting);
    assert_int_equal(running, 1);
    client_close(&c, &h);
    kwkd_scheduler_turn(h.d.scheduler);
    kwkd_scheduler_counts(h.d.scheduler, &running, &waiting);
    assert_int_equal(running, 0);
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
    assert_int_equal(atomic_load(&fake_count.steps), 5);
}

static void a_cancel_flag_ends_a_stream_inside_its_prompt(void **state)
{
    int32_t prompt[4000], tokens[4];
    kwk_request req;
    kwk_record last;
    client c;

    make_prompt(prompt, 4000, 0);
    req = harness_generate(9, prompt, 4000, 10);
    client_open(&c, &h, 0, 0);
    accept(&c, &req);
    kwkd_scheduler_turn(h.d.scheduler);
    kwkd_scheduler_turn(h.d.scheduler);
    atomic_store(&client_stream(&c, 9)->cancel, 1);
    assert_int_equal(drain(&c, tokens, &last), 0);
    assert_int_equal(last.token, KWK_FINISH_CANCEL);
    assert_int_equal(atomic_load(&fake_count.steps), 2);
    client_close(&c, &h);
}

static void a_client_that_does_not_read_stops_only_itself(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request a = harness_generate(0, prompt, 1, 500), b = harness_generate(0, prompt, 1, 500);
    int32_t tokens[512];
    kwk_record last;
    client slow, quick;

    client_open(&slow, &h, KWK_OUT_SLOTS_MIN, 0);
    client_open(&quick, &h, KWK_OUT_SLOTS_MIN, 0);
    accept(&slow, &a);
    accept(&quick, &b);
    assert_int_equal(drain(&quick, tokens, &last), 500); // the other one is stuck at 64 records
    assert_int_equal(atomic_load(&slow.ring.out->tail), 64);
    assert_int_equal(drain(&slow, tokens, &last), 500); // and goes on when it reads
    expect_greedy(prompt, 1, tokens, 500);
    client_close(&slow, &h);
    client_close(&quick, &h);
}

static void a_client_that_never_reads_is_dropped_in_the_end(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request a = harness_generate(0, prompt, 1, 500);
    int32_t tokens[512];
    kwk_record last;
    client c;

    atomic_store(&h.d.scheduler->slow_us, 20000);
    client_open(&c, &h, KWK_OUT_SLOTS_MIN, 0);
    accept(&c, &a);
    harness_turns(&h);
    assert_int_equal(atomic_load(&fake_count.seqs), 1);
    usleep(30000);
    harness_turns(&h);
    assert_int_equal(atomic_load(&fake_count.seqs), 0); // its place is free
    assert_in_range(drain(&c, tokens, &last), 60, 70);
    assert_int_equal(last.token, KWK_FINISH_SLOW);
    client_close(&c, &h);
}

static void credit_bounds_what_a_stream_is_ahead(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request a = harness_generate(0, prompt, 1, 30);
    int32_t tokens[64];
    kwk_record last;
    client c;

    a.u.generate.credit = 4;
    client_open(&c, &h, 0, 0);
    accept(&c, &a);
    harness_turns(&h);
    assert_int_equal(atomic_load(&c.ring.out->tail), 4);
    assert_int_equal(drain(&c, tokens, &last), 30);
    expect_greedy(prompt, 1, tokens, 30);
    client_close(&c, &h);
}

static void running_out_of_blocks_puts_the_youngest_back_without_loss(void **state)
{
    int32_t prompts[4][40], tokens[4][200];
    kwk_record last;
    client c[4];

    fake.kv_blocks = 16; // 512 slots; four streams of 240 want 960
    assert_int_equal(kwkd_store_unload(h.d.store, "m", 0, NULL), KWK_OK);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    for (int i = 0; i < 4; i++) {
        kwk_request req;
        make_prompt(prompts[i], 40, 5 * i);
        client_open(&c[i], &h, 0, 0);
        req = harness_generate(0, prompts[i], 40, 200);
        accept(&c[i], &req);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(drain(&c[i], tokens[i], &last), 200);
        assert_int_equal(last.token, KWK_FINISH_LENGTH);
        expect_greedy(prompts[i], 40, tokens[i], 200);
    }
    assert_true(kwkd_counted(&h.d.metrics.preempted) > 0);
    for (int i = 0; i < 4; i++)
        client_close(&c[i], &h);
}

static void what_can_never_fit_is_refused_with_the_numbers(void **state)
{
    int32_t prompt[4097];
    kwk_request req;
    kwk_error err;
    client c;

    make_prompt(prompt, 4097, 0);
    client_open(&c, &h, 0, 0);
    req = harness_generate(0, prompt, 4097, 1);
    assert_int_equal(call(&h, &c, &req, NULL, &err), KWK_EINVAL);
    assert_non_null(strstr(err.msg, "4097"));
    assert_non_null(strstr(err.msg, "4096"));
    fake.kv_blocks = 4;
    assert_int_equal(kwkd_store_unload(h.d.store, "m", 0, NULL), KWK_OK);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    req = harness_generate(0, prompt, 200, 1);
    assert_int_equal(call(&h, &c, &req, NULL, &err), KWK_EFULL);
    assert_non_null(strstr(err.msg, "7 KV blocks"));
    client_close(&c, &h);
}

static void a_failing_row_ends_its_own_stream_only(void **state)
{
    const int32_t good[] = {1, 5}, bad[] = {1, 66};
    kwk_request a = harness_generate(0, good, 2, 10), b = harness_generate(1, bad, 2, 10);
    int32_t tokens[64];
    kwk_record last;
    client c, d;

    fake.poison = 66;
    client_open(&c, &h, 0, 0);
    client_open(&d, &h, 0, 0);
    accept(&c, &a);
    accept(&d, &b);
    assert_int_equal(drain(&d, tokens, &last), 0);
    assert_int_equal(last.type, KWK_REC_ERROR);
    assert_int_equal(last.token, KWK_EINVAL);
    assert_int_equal(drain(&c, tokens, &last), 10);
    assert_true(kwkd_counted(&h.d.metrics.retried) > 0);
    client_close(&c, &h);
    client_close(&d, &h);
}

static void no_possible_choice_is_an_error_of_that_stream(void **state)
{
    const int32_t prompt[] = {1, 77};
    kwk_request a = harness_generate(0, prompt, 2, 10);
    int32_t tokens[64];
    kwk_record last;
    client c;

    fake.unsampled = 77;
    client_open(&c, &h, 0, 0);
    accept(&c, &a);
    assert_int_equal(drain(&c, tokens, &last), 0);
    assert_int_equal(last.type, KWK_REC_ERROR);
    assert_int_equal(last.token, KWK_EINVAL);
    client_close(&c, &h);
}

static void broken_shared_words_end_the_session_and_nobody_elses(void **state)
{
    const int32_t prompt[] = {1};
    int32_t tokens[64];
    kwk_record last;
    client c, good;

    client_open(&good, &h, 0, 0);
    for (int i = 0; i < 4; i++) {
        kwk_request a = harness_generate(0, prompt, 1, 30);
        client_open(&c, &h, 0, 0);
        accept(&c, &a);
        for (int k = 0; k < 3; k++)
            kwkd_scheduler_turn(h.d.scheduler);
        switch (i) {
        case 0: // a head beyond the tail
            atomic_store(&client_header(&c)->head, 1000);
            break;
        case 1: // a head that goes back
            atomic_store(&client_header(&c)->head, 2);
            kwkd_scheduler_turn(h.d.scheduler);
            atomic_store(&client_header(&c)->head, 1);
            break;
        case 2: // more records taken than were put
            atomic_store(&client_stream(&c, 0)->consumed, 1ull << 40);
            break;
        default: // fewer than before
            atomic_store(&client_stream(&c, 0)->consumed, 2);
            kwkd_scheduler_turn(h.d.scheduler);
            atomic_store(&client_stream(&c, 0)->consumed, 1);
        }
        kwkd_scheduler_turn(h.d.scheduler);
        kwkd_scheduler_turn(h.d.scheduler);
        assert_true(atomic_load(&c.session->dead));
        assert_int_equal(atomic_load(&fake_count.seqs), 0);
        client_close(&c, &h);
    }
    assert_int_equal(kwkd_counted(&h.d.metrics.sessions_killed), 4);
    kwk_request a = harness_generate(0, prompt, 1, 30);
    accept(&good, &a);
    assert_int_equal(drain(&good, tokens, &last), 30);
    client_close(&good, &h);
}

static void draining_lets_what_runs_finish_and_refuses_the_rest(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request a = harness_generate(0, prompt, 1, 30), b = harness_generate(1, prompt, 1, 30);
    int32_t tokens[64];
    kwk_record last;
    client c, d;

    client_open(&c, &h, 0, 0);
    client_open(&d, &h, 0, 0);
    accept(&c, &a);
    kwkd_scheduler_turn(h.d.scheduler);
    atomic_store(&h.d.scheduler->running, 1);
    accept(&d, &b);
    kwkd_scheduler_drain(h.d.scheduler);
    assert_int_equal(call(&h, &c, &b, NULL, NULL), KWK_ECLOSED);
    assert_int_equal(drain(&c, tokens, &last), 30);
    assert_int_equal(drain(&d, tokens, &last), 0);
    assert_int_equal(last.token, KWK_FINISH_SHUTDOWN);
    assert_true(kwkd_scheduler_idle(h.d.scheduler));
    client_close(&c, &h);
    client_close(&d, &h);
}

static void stopping_ends_what_runs(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request a = harness_generate(0, prompt, 1, -1);
    int32_t tokens[64];
    kwk_record last;
    client c;

    client_open(&c, &h, 0, 0);
    accept(&c, &a);
    for (int i = 0; i < 5; i++)
        kwkd_scheduler_turn(h.d.scheduler);
    kwkd_scheduler_stop(h.d.scheduler);
    assert_int_equal(drain(&c, tokens, &last), 5);
    assert_int_equal(last.token, KWK_FINISH_SHUTDOWN);
    client_close(&c, &h);
}

static void the_engine_thread_sleeps_when_there_is_nothing_to_do(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request a = harness_generate(0, prompt, 1, 50);
    int32_t tokens[64];
    kwk_record last;
    client c;
    uint64_t pulse;

    assert_int_equal(kwkd_scheduler_start(h.d.scheduler, NULL), KWK_OK);
    h.threaded = 1;
    client_open(&c, &h, 0, 0);
    accept(&c, &a);
    for (int i = 0, n = 0; n < 50 && i < 2000; i++) {
        while (client_take(&c, &last))
            if (last.type == KWK_REC_TOKEN)
                tokens[n++] = last.token;
        usleep(1000);
        if (i == 1999)
            fail_msg("%d tokens", n);
    }
    expect_greedy(prompt, 1, tokens, 50);
    for (int i = 0; kwkd_scheduler_pulse(h.d.scheduler) && i < 1000; i++)
        usleep(1000);
    assert_int_equal(kwkd_scheduler_pulse(h.d.scheduler), 0);
    pulse = atomic_load(&h.d.scheduler->pulse);
    usleep(50000);
    assert_int_equal(atomic_load(&h.d.scheduler->pulse), pulse);
    client_close(&c, &h);
}

static void inline_requests_are_answered_whole(void **state)
{
    const int32_t prompt[] = {1, 70};
    kwk_request req = harness_generate(0, prompt, 2, 8);
    int32_t tokens[16];
    kwk_tree *tree;
    size_t n;

    req.u.generate.inline_reply = 1;
    req.u.generate.text = req.u.generate.logprobs = 1;
    assert_int_equal(call(&h, NULL, &req, &tree, NULL), KWK_OK);
    assert_int_equal(kwk_tree_ints(tree, "tokens", tokens, 16), 8);
    expect_greedy(prompt, 2, tokens, 8);
    assert_string_equal(kwk_tree_str(tree, "finish_reason"), "length");
    assert_int_equal(kwk_tree_int(tree, "prompt_tokens", 0), 2);
    assert_int_equal(kwk_tree_int(tree, "new_tokens", 0), 8);
    assert_true(kwk_tree_int(tree, "seed", -1) >= 0);
    assert_non_null(kwk_tree_bin(tree, "text", &n));
    assert_true(n >= 8);
    kwk_tree_free(tree);
}

static void an_inline_request_ends_when_its_peer_hangs_up(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request req = harness_generate(0, prompt, 1, 1000);
    pending *p;

    req.u.generate.inline_reply = 1;
    p = call_start(&h, NULL, &req);
    for (int i = 0; i < 5; i++)
        kwkd_scheduler_turn(h.d.scheduler);
    call_hang_up(p);
    kwkd_scheduler_turn(h.d.scheduler);
    assert_true(call_done(p));
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
    assert_int_equal(call_end(&h, p, NULL, NULL), KWK_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_generation_streams_its_tokens),
        TEST(the_end_token_ends_it_and_is_the_last),
        TEST(max_new_tokens_zero_only_computes_the_prompt),
        TEST(max_new_tokens_minus_one_or_huge_ends_at_the_context),
        TEST(sixteen_at_once_share_steps_and_get_what_each_gets_alone),
        TEST(a_long_prompt_is_cut_into_slices_and_stalls_nobody),
        TEST(prompts_are_served_in_turn_between_users),
        TEST(a_dead_session_frees_its_places_within_a_step),
        TEST(a_cancel_flag_ends_a_stream_inside_its_prompt),
        TEST(a_client_that_does_not_read_stops_only_itself),
        TEST(a_client_that_never_reads_is_dropped_in_the_end),
        TEST(credit_bounds_what_a_stream_is_ahead),
        TEST(running_out_of_blocks_puts_the_youngest_back_without_loss),
        TEST(what_can_never_fit_is_refused_with_the_numbers),
        TEST(a_failing_row_ends_its_own_stream_only),
        TEST(no_possible_choice_is_an_error_of_that_stream),
        TEST(broken_shared_words_end_the_session_and_nobody_elses),
        TEST(draining_lets_what_runs_finish_and_refuses_the_rest),
        TEST(stopping_ends_what_runs),
        TEST(the_engine_thread_sleeps_when_there_is_nothing_to_do),
        TEST(inline_requests_are_answered_whole),
        TEST(an_inline_request_ends_when_its_peer_hangs_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
