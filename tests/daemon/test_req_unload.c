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

static int unload(const char *name)
{
    kwk_request r = {.op = KWK_OP_unload};

    r.u.unload.name = name;
    return call(&h, NULL, &r, NULL, &err);
}

static void what_runs_on_the_model_goes_on(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request r = harness_generate(0, prompt, 1, 20);
    kwk_tree *t;
    pending *p;

    assert_int_equal(unload("m"), KWK_ENOENT);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    atomic_store(&fake.step_ms, 5);
    r.u.generate.inline_reply = 1;
    p = call_start(&h, NULL, &r);
    usleep(20000);
    assert_int_equal(unload("m"), KWK_OK);
    assert_int_equal(call(&h, NULL, &r, NULL, &err), KWK_EINVAL); // no model is loaded
    assert_int_equal(call_end(&h, p, &t, &err), KWK_OK);
    assert_int_equal(kwk_tree_int(t, "new_tokens", 0), 20);
    kwk_tree_free(t);
    for (int i = 0; atomic_load(&fake_count.models) && i < 5000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&fake_count.models), 0); // and then its memory is free
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_runs_on_the_model_goes_on, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
