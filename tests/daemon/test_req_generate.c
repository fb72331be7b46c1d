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

static const int32_t prompt[] = {1};

static int read_tokens(client *c, int32_t *tokens)
{
    kwk_record r;
    int n = 0;

    for (int i = 0; i < 5000; i++) {
        while (client_take(c, &r)) {
            if (r.type == KWK_REC_TOKEN)
                tokens[n++] = r.token;
            if (r.type == KWK_REC_DONE)
                return n;
        }
        usleep(1000);
    }
    fail_msg("the stream does not end");
    return 0;
}

static void it_is_accepted_at_once_and_streams(void **state)
{
    kwk_request r = harness_generate(7, prompt, 1, 20);
    int32_t tokens[32];
    kwk_tree *t;
    client c;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    client_open(&c, &h, 0, 0);
    r.u.generate.has_seed = 1;
    r.u.generate.seed = 99;
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    assert_int_equal(kwk_tree_int(t, "accepted", 0), 1);
    assert_int_equal(kwk_tree_int(t, "stream", 0), 7);
    assert_int_equal(kwk_tree_int(t, "seed", 0), 99);
    kwk_tree_free(t);
    assert_int_equal(read_tokens(&c, tokens), 20);
    expect_greedy(prompt, 1, tokens, 20);
    client_close(&c, &h);
}

static void a_running_stream_id_is_refused_a_repeated_request_accepted(void **state)
{
    kwk_request r = harness_generate(7, prompt, 1, 50);
    int32_t tokens[64];
    kwk_tree *t;
    int64_t seed;
    client c;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    atomic_store(&fake.step_ms, 2);
    client_open(&c, &h, 0, 0);
    r.u.generate.request_id = "r1";
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK);
    seed = kwk_tree_int(t, "seed", -1);
    kwk_tree_free(t);
    assert_int_equal(call(&h, &c, &r, &t, &err), KWK_OK); // sent again: the same generation
    assert_int_equal(kwk_tree_int(t, "seed", -2), seed);
    kwk_tree_free(t);
    r.u.generate.request_id = "r2";
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EINVAL);
    r.u.generate.request_id = NULL;
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EINVAL);
    assert_int_equal(read_tokens(&c, tokens), 50);
    client_close(&c, &h);
}

static void without_a_model_it_says_so(void **state)
{
    kwk_request r = harness_generate(0, prompt, 1, 5);
    client c;

    client_open(&c, &h, 0, 0);
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EINVAL);
    r.u.generate.model = "none";
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_ENOENT);
    assert_non_null(strstr(err.msg, "none"));
    client_close(&c, &h);
}

static void while_the_model_loads_it_is_busy(void **state)
{
    kwk_request l = {.op = KWK_OP_load}, r = harness_generate(0, prompt, 1, 5);
    client c;

    atomic_store(&fake.load_ms, 100);
    l.u.load = (kwk_load_req){.name = "m", .path = h.model};
    assert_int_equal(call(&h, NULL, &l, NULL, &err), KWK_OK);
    client_open(&c, &h, 0, 0);
    assert_int_equal(call(&h, &c, &r, NULL, &err), KWK_EBUSY);
    client_close(&c, &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_accepted_at_once_and_streams, setup, teardown),
        cmocka_unit_test_setup_teardown(a_running_stream_id_is_refused_a_repeated_request_accepted,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_model_it_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(while_the_model_loads_it_is_busy, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
