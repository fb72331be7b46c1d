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

static kwk_tree *status(void)
{
    kwk_request r = {.op = KWK_OP_status};
    kwk_tree *t = NULL;

    assert_int_equal(call(&h, NULL, &r, &t, &err), KWK_OK);
    return t;
}

static void it_tells_who_and_how_much(void **state)
{
    kwk_tree *t = status();
    client c;

    assert_string_equal(kwk_tree_str(t, "server"), KWKD_SERVER);
    assert_int_equal(kwk_tree_int(t, "pid", 0), getpid());
    assert_string_equal(kwk_tree_str(t, "isa"), "fake");
    assert_int_equal(kwk_tree_int(t, "threads", 0), 2);
    assert_int_equal(kwk_tree_int(t, "sessions", -1), 0);
    assert_int_equal(kwk_tree_int(t, "models", -1), 0);
    assert_int_equal(kwk_tree_int(t, "running", -1), 0);
    assert_int_equal(kwk_tree_int(t, "queued", -1), 0);
    kwk_tree_free(t);
    client_open(&c, &h, 0, 0);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    t = status();
    assert_int_equal(kwk_tree_int(t, "sessions", -1), 1);
    assert_int_equal(kwk_tree_int(t, "models", -1), 1);
    kwk_tree_free(t);
    client_close(&c, &h);
}

static void it_answers_while_the_engine_is_busy(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request r = harness_generate(0, prompt, 1, 3);
    uint64_t start;
    pending *p;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    atomic_store(&fake.step_ms, 200);
    r.u.generate.inline_reply = 1;
    p = call_start(&h, NULL, &r);
    usleep(20000); // a step runs now
    start = kwkd_now_us();
    kwk_tree_free(status());
    assert_true(kwkd_now_us() - start < 50000);
    assert_int_equal(call_end(&h, p, NULL, &err), KWK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_tells_who_and_how_much, setup, teardown),
        cmocka_unit_test_setup_teardown(it_answers_while_the_engine_is_busy, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
