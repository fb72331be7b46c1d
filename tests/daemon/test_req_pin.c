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

static int pin(const char *name, int on)
{
    kwk_request r = {.op = KWK_OP_pin};

    r.u.pin = (kwk_name_req){.name = name, .pin = on};
    return call(&h, NULL, &r, NULL, &err);
}

static int n_pinned;

static void look(void *arg, const kwkd_model_row *row)
{
    n_pinned += row->pin;
}

static void a_model_is_pinned_and_released(void **state)
{
    assert_int_equal(pin("m", 1), KWK_ENOENT);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pin("m", !i), KWK_OK);
        n_pinned = 0;
        kwkd_store_each(h.d.store, look, NULL);
        assert_int_equal(n_pinned, !i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_model_is_pinned_and_released, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
