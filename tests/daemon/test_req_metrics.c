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

static void the_text_has_counters_gauges_and_models(void **state)
{
    const char *lines[] = {"\nkwker_requests_total{op=\"load\"} 2\n",
                           "\nkwker_sessions 1\n",
                           "\nkwker_models 2\n",
                           "\nkwker_model_packed_bytes{model=\"m\"} 1000\n",
                           "\nkwker_model_packed_bytes{model=\"n\"} 1000\n",
                           "\nkwker_model_kv_blocks_free{model=\"m\"} 256\n",
                           "\nkwker_model_rows_max{model=\"m\"} 0\n",
                           "\nkwker_control_received_bytes_total 0\n"};
    kwk_request r = {.op = KWK_OP_metrics};
    const char *text;
    kwk_tree *t;
    client c;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    assert_int_equal(harness_load(&h, "n"), KWK_OK);
    client_open(&c, &h, 0, 0);
    assert_int_equal(call(&h, NULL, &r, &t, &err), KWK_OK);
    text = kwk_tree_str(t, "text");
    assert_non_null(text);
    for (size_t i = 0; i < COUNT(lines); i++)
        if (!strstr(text, lines[i]))
            fail_msg("'%s' is missing in\n%s", lines[i], text);
    kwk_tree_free(t);
    client_close(&c, &h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_text_has_counters_gauges_and_models, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
