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

#include <stdlib.h>

static char *models(void) // as JSON
{
    kwk_request r = {.op = KWK_OP_models};
    kwk_tree *t = NULL;
    char *json;

    assert_int_equal(call(&h, NULL, &r, &t, &err), KWK_OK);
    json = kwk_tree_json(t);
    assert_non_null(json);
    kwk_tree_free(t);
    return json;
}

static void expect(const char *text)
{
    char *json = models();

    if (!strstr(json, text))
        fail_msg("'%s' is not in %s", text, json);
    free(json);
}

static void every_model_has_its_row(void **state)
{
    expect("\"models\":[]");
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    assert_int_equal(harness_load(&h, "another"), KWK_OK);
    expect("\"name\":\"another\",\"state\":\"ready\",\"progress\":1");
    expect("\"name\":\"m\"");
    expect("\"vocab\":300");
    expect("\"eos\":[2]");
    expect("\"model_type\":\"fake\"");
    expect("\"rounded\":null");
    expect("\"kv_blocks_free\":256");
    expect("\"id\":\"00000000000000000000000000000000\"");
}

static void a_load_shows_its_progress(void **state)
{
    kwk_request r = {.op = KWK_OP_load};

    fake.load_parts = 4;
    atomic_store(&fake.load_ms, 40);
    r.u.load = (kwk_load_req){.name = "m", .path = h.model};
    assert_int_equal(call(&h, NULL, &r, NULL, &err), KWK_OK);
    expect("\"state\":\"loading\"");
    for (int i = 0; i < 1000; i++) {
        char *json = models();
        const int seen = strstr(json, "\"progress\":0.5") != NULL;
        free(json);
        if (seen)
            return;
        usleep(1000);
    }
    fail_msg("no progress was seen");
}

static void a_failed_load_keeps_its_reason(void **state)
{
    kwk_request r = {.op = KWK_OP_load};

    r.u.load = (kwk_load_req){.name = "m", .path = h.model, .precision = "nonsense", .wait = 1};
    assert_int_equal(call(&h, NULL, &r, NULL, &err), KWK_EINVAL);
    expect("\"state\":\"failed\"");
    expect("precision 'nonsense' is unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_model_has_its_row, setup, teardown),
        cmocka_unit_test_setup_teardown(a_load_shows_its_progress, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_load_keeps_its_reason, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
