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

static int cancel(const client *c, kwk_cancel_req req)
{
    kwk_request r = {.op = KWK_OP_cancel};
    kwk_tree *t = NULL;
    int rc;

    r.u.cancel = req;
    rc = call(&h, c, &r, &t, &err);
    if (rc == KWK_OK)
        rc = (int)kwk_tree_int(t, "cancelled", -100);
    kwk_tree_free(t);
    return rc;
}

static void a_stream_is_cancelled_by_its_session_only(void **state)
{
    kwk_request r = harness_generate(4, prompt, 1, -1);
    const kwk_cancel_req req = {.has_stream = 1, .stream = 4};
    kwk_record rec = {0};
    client c, d;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    atomic_store(&fake.step_ms, 1);
    client_open(&c, &h, 0, 0);
    client_open(&d, &h, 0, 0);
    harness_accept(&h, &c, &r);
    assert_int_equal(cancel(&d, req), 0);
    assert_int_equal(cancel(&c, req), 1);
    for (int i = 0; rec.type != KWK_REC_DONE && i < 5000; i++)
        if (!client_take(&c, &rec))
            usleep(1000);
    assert_int_equal(rec.token, KWK_FINISH_CANCEL);
    assert_int_equal(cancel(&c, req), 0); // harmless again
    client_close(&c, &h);
    client_close(&d, &h);
}

static void an_inline_request_is_cancelled_by_its_id(void **state)
{
    kwk_request r = harness_generate(0, prompt, 1, 4000);
    kwk_tree *t;
    pending *p;

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    atomic_store(&fake.step_ms, 1);
    r.u.generate.inline_reply = 1;
    r.u.generate.request_id = "abc";
    p = call_start(&h, NULL, &r);
    usleep(10000);
    assert_int_equal(cancel(NULL, (kwk_cancel_req){.request_id = "abd"}), 0);
    assert_int_equal(cancel(NULL, (kwk_cancel_req){.request_id = "abc"}), 1);
    assert_int_equal(call_end(&h, p, &t, &err), KWK_OK);
    assert_string_equal(kwk_tree_str(t, "finish_reason"), "cancel");
    kwk_tree_free(t);
}

static void it_needs_something_to_go_by(void **state)
{
    assert_int_equal(cancel(NULL, (kwk_cancel_req){0}), KWK_EINVAL);
    assert_int_equal(cancel(NULL, (kwk_cancel_req){.has_stream = 1}), KWK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_stream_is_cancelled_by_its_session_only, setup, teardown),
        cmocka_unit_test_setup_teardown(an_inline_request_is_cancelled_by_its_id, setup, teardown),
        cmocka_unit_test_setup_teardown(it_needs_something_to_go_by, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
