/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests from bytes to replies, without a transport. */
#include <string.h>

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

static int answered;
static kwk_buf answer;

static void keep(kwkd_call *call)
{
    answered++;
    answer = call->reply;
    call->reply = (kwk_buf){0};
}

/* Run raw bytes; the code of the reply. */
static int raw(const void *data, size_t n)
{
    kwkd_call c = {.daemon = &h.d, .uid = 1000, .pid = 7, .send = keep};
    kwk_tree *t = NULL;
    int retry_ms, rc;

    answered = 0;
    kwkd_call_run(&c, data, n);
    assert_int_equal(answered, 1);
    assert_int_equal(kwk_tree_parse(&t, answer.data, answer.size, &err), KWK_OK);
    rc = kwk_tree_status(t, &retry_ms, &err);
    kwk_tree_free(t);
    kwk_buf_fini(&answer);
    return rc;
}

static void any_bytes_are_answered_by_an_error(void **state)
{
    static uint8_t noise[4096];
    uint64_t x = 88172645463325252ull;
    const char *bad[] = {"",
                         "\xc0",
                         "\x80",
                         "\x81\xa1v\x01",
                         "\x82\xa1v\x01\xa2op\xa4none",
                         "\x82\xa1v\x63\xa2op\xa6status",
                         "\xdd\xff\xff\xff\xff"};

    for (size_t i = 0; i < COUNT(bad); i++)
        assert_true(raw(bad[i], strlen(bad[i])) < 0);
    for (int i = 0; i < 2000; i++) {
        for (size_t k = 0; k < 64; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            noise[k] = (uint8_t)x;
        }
        (void)raw(noise, (size_t)(x % 64));
    }
    assert_int_equal(raw("\x82\xa1v\x01\xa2op\xa6status", 14), KWK_OK);
    assert_true(kwkd_counted(&h.d.metrics.errors[-KWK_EPROTO]) > 0);
    assert_int_equal(kwkd_counted(&h.d.metrics.requests[KWK_OP_status]), 1);
}

static void requests_about_sequences_need_a_session(void **state)
{
    kwk_request r = {.op = KWK_OP_seq_open};

    assert_int_equal(call(&h, NULL, &r, NULL, &err), KWK_EINVAL);
    assert_non_null(strstr(err.msg, "session"));
    r.has_session = 1; // of nobody
    assert_int_equal(call(&h, NULL, &r, NULL, &err), KWK_EPERM);
}

static void waiting_requests_are_bounded_so_that_others_are_answered(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request r, status = {.op = KWK_OP_status};
    pending *p[3];

    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    atomic_store(&fake.step_ms, 5);
    atomic_store(&h.d.inline_requests, 2);
    for (int i = 0; i < 3; i++) {
        r = harness_generate(0, prompt, 1, 20);
        r.u.generate.inline_reply = 1;
        p[i] = call_start(&h, NULL, &r);
    }
    assert_int_equal(call_end(&h, p[2], NULL, &err), KWK_EBUSY);
    assert_int_equal(call(&h, NULL, &status, NULL, &err), KWK_OK);
    assert_int_equal(call_end(&h, p[0], NULL, &err), KWK_OK);
    assert_int_equal(call_end(&h, p[1], NULL, &err), KWK_OK);
    assert_int_equal(atomic_load(&h.d.n_kept), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_bytes_are_answered_by_an_error),
        TEST(requests_about_sequences_need_a_session),
        TEST(waiting_requests_are_bounded_so_that_others_are_answered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
