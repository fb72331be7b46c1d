/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

static harness h;
static kwk_error err;

static int setup(void **state)
{
    fake_reset();
    harness_start(&h, 1, NULL);
    return 0;
}

static int teardown(void **state)
{
    harness_stop(&h);
    return 0;
}

static void the_engine_thread_answers_while_it_steps(void **state)
{
    const int32_t tokens[] = {5, 6};
    kwk_request r = {.op = KWK_OP_seq_open};
    uint64_t seq;
    kwk_tree *t;
    client c;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    client_open(&c, &h, 0, 0);
    r.u.seq_open.model = "none";
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_ENOENT);
    r.u.seq_open.model = "m";
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    seq = (uint64_t)kwk_tree_int(t, "seq", 0);
    kwk_tree_free(t);
    r = (kwk_request){.op = KWK_OP_forward};
    r.u.forward = (kwk_forward_req){.seq = seq, .tokens = tokens, .n_tokens = 2};
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    assert_int_equal(kwk_tree_int(t, "length", 0), 2);
    kwk_tree_free(t);
    r = (kwk_request){.op = KWK_OP_seq_close};
    r.u.seq_close.seq = seq;
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_OK);
    client_close(&c, &h);
}

static void after_the_engine_thread_has_ended_they_are_refused(void **state)
{
    kwk_request r = {.op = KWK_OP_seq_close};
    client c;

    client_open(&c, &h, 0, 0);
    kwkd_scheduler_stop(h.d.scheduler);
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_ECLOSED);
    client_close(&c, &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_engine_thread_answers_while_it_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(after_the_engine_thread_has_ended_they_are_refused, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
