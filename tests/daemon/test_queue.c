/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of generations: its bounds, repeated requests, cancelling what waits. */
#include <string.h>

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

static void a_cancelled_request_in_the_queue_never_starts(void **state)
{
    const int32_t prompt[] = {1, 2, 3};
    kwk_request req, cancel = {.op = KWK_OP_cancel};
    kwk_record last;
    kwk_tree *tree;
    client c;
    int32_t tokens[16];

    atomic_store(&h.d.scheduler->running, 1);
    client_open(&c, &h, 0, 0);
    req = harness_generate(1, prompt, 3, 8);
    accept(&c, &req);
    kwkd_scheduler_turn(h.d.scheduler);
    req = harness_generate(2, prompt, 1, 8);
    req.u.generate.request_id = "second";
    accept(&c, &req);
    kwkd_scheduler_turn(h.d.scheduler);
    cancel.u.cancel.request_id = "second";
    assert_int_equal(call(&h, NULL, &cancel, &tree, NULL), KWK_OK);
    assert_int_equal(kwk_tree_int(tree, "cancelled", -1), 1);
    kwk_tree_free(tree);
    assert_int_equal(drain(&c, tokens, &last), 2); // of the first, until the second's end came
    assert_int_equal(last.stream, 2);
    assert_int_equal(last.token, KWK_FINISH_CANCEL);
    assert_int_equal(drain(&c, tokens, &last), 6);
    assert_int_equal(atomic_load(&fake_count.rows), 3 + 7);
    client_close(&c, &h);
}

static void a_full_queue_answers_busy(void **state)
{
    const int32_t prompt[] = {1};
    kwk_error err;
    client c;

    atomic_store(&h.d.scheduler->queue, 3);
    client_open(&c, &h, 0, 0);
    for (uint32_t i = 0; i < 5; i++) {
        kwk_request req = harness_generate(i, prompt, 1, 5);
        const int rc = call(&h, &c, &req, NULL, &err);
        assert_int_equal(rc, i < 3 ? KWK_OK : KWK_EBUSY); // nothing has run yet
    }
    harness_turns(&h);
    kwk_request req = harness_generate(20, prompt, 1, 5);
    accept(&c, &req); // room again
    client_close(&c, &h);
}

static void one_user_cannot_fill_the_queue(void **state)
{
    const int32_t prompt[] = {1};
    client c;

    atomic_store(&h.d.scheduler->queue, 4);
    atomic_store(&h.d.scheduler->queue_per_user, 2);
    client_open(&c, &h, 0, 0);
    for (uint32_t i = 0; i < 4; i++) {
        kwk_request req = harness_generate(i, prompt, 1, 5);
        req.u.generate.tenant = i < 3 ? "a" : "b";
        assert_int_equal(call(&h, &c, &req, NULL, NULL), i == 2 ? KWK_EBUSY : KWK_OK);
    }
    client_close(&c, &h);
}

static void a_repeated_inline_request_runs_once(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request req = harness_generate(0, prompt, 1, 30);
    int32_t a[32], b[32];
    pending *first, *second;
    kwk_tree *tree;

    req.u.generate.inline_reply = 1;
    req.u.generate.request_id = "same";
    first = call_start(&h, NULL, &req);
    kwkd_scheduler_turn(h.d.scheduler);
    second = call_start(&h, NULL, &req);
    assert_int_equal(call_end(&h, first, &tree, NULL), KWK_OK);
    assert_int_equal(kwk_tree_ints(tree, "tokens", a, 32), 30);
    kwk_tree_free(tree);
    assert_int_equal(call_end(&h, second, &tree, NULL), KWK_OK);
    assert_int_equal(kwk_tree_ints(tree, "tokens", b, 32), 30);
    kwk_tree_free(tree);
    assert_memory_equal(a, b, 30 * sizeof *a);
    assert_int_equal(atomic_load(&fake_count.rows), 30);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_cancelled_request_in_the_queue_never_starts),
        TEST(a_full_queue_answers_busy),
        TEST(one_user_cannot_fill_the_queue),
        TEST(a_repeated_inline_request_runs_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
