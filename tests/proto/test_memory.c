/* SPDX-License-Identifier: Apache-2.0
 *
 * buf.c, map.c, codec.c, tree.c, json.c when memory runs out: at every allocation a typed error, and
 * nothing lost (the sanitizers look for leaks).
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "proto/buf.h"
#include "tests/support/fail_alloc.h"

static const int32_t ids[300] = {1, 2, 3};
static const kwk_bias bias[20] = {{1, 1}};

static kwk_request request(void)
{
    kwk_request r = {.op = KWK_OP_generate, .has_session = 1};

    r.u.generate = (kwk_generate_req)KWK_GENERATE_REQ_INIT;
    r.u.generate.model = "model";
    r.u.generate.tenant = "tenant";
    r.u.generate.prompt = ids;
    r.u.generate.n_prompt = 300;
    r.u.generate.eos = ids;
    r.u.generate.n_eos = 3;
    r.u.generate.bias = bias;
    r.u.generate.n_bias = 20;
    return r;
}

static void requests_are_encoded_or_refused(void **state)
{
    const kwk_request r = request();
    int n_failures = 0;

    FAIL_EACH(n) {
        kwk_buf b = {0};
        kwk_error err = {0};
        int rc;
        fail_alloc_at(n);
        rc = kwk_request_encode(&b, &r, &err);
        if (fail_alloc_end()) {
            assert_int_equal(rc, KWK_OK);
            kwk_buf_fini(&b);
            break;
        }
        assert_int_equal(rc, KWK_ENOMEM);
        assert_int_equal(err.code, KWK_ENOMEM);
        assert_int_equal(b.size, 0);
        kwk_buf_fini(&b);
        n_failures++;
    }
    assert_true(n_failures >= 2);
}

static void requests_are_decoded_or_refused(void **state)
{
    const kwk_request r = request();
    kwk_buf b = {0};
    int n_failures = 0;

    assert_int_equal(kwk_request_encode(&b, &r, NULL), KWK_OK);
    FAIL_EACH(n) {
        kwk_request got = {.op = KWK_OP_NONE};
        kwk_error err = {0};
        int rc;
        fail_alloc_at(n);
        rc = kwk_request_decode(&got, b.data, b.size, &err);
        if (fail_alloc_end()) {
            assert_int_equal(rc, KWK_OK);
            kwk_request_fini(&got);
            break;
        }
        assert_int_equal(rc, KWK_ENOMEM);
        assert_int_equal(got.op, KWK_OP_NONE); // unchanged
        n_failures++;
    }
    assert_true(n_failures >= 5);
    kwk_buf_fini(&b);
}

static void replies_are_written_read_and_printed_or_refused(void **state)
{
    static const kwk_error e = {KWK_EBUSY, "the queue is full"};
    int n_failures = 0;

    FAIL_EACH(n) {
        kwk_buf b = {0};
        kwk_tree *t = NULL;
        char *json = NULL;
        int rc;
        fail_alloc_at(n);
        rc = kwk_reply_error(&b, &e, 5);
        if (rc == KWK_OK)
            rc = kwk_tree_parse(&t, b.data, b.size, NULL);
        if (rc == KWK_OK) {
            json = kwk_tree_json(t);
            rc = json ? KWK_OK : KWK_ENOMEM;
        }
        kwk_tree_free(t);
        kwk_buf_fini(&b);
        free(json);
        if (fail_alloc_end()) {
            assert_int_equal(rc, KWK_OK);
            break;
        }
        assert_int_equal(rc, KWK_ENOMEM);
        n_failures++;
    }
    assert_true(n_failures >= 3);
}

static void hellos_are_passed_or_refused(void **state)
{
    const kwk_hello_req h = {.client = "test/1"};

    FAIL_EACH(n) {
        kwk_hello_req got = {0};
        kwk_buf b = {0};
        int rc;
        fail_alloc_at(n);
        rc = kwk_hello_req_encode(&b, &h, NULL);
        if (rc == KWK_OK)
            rc = kwk_hello_req_decode(&got, b.data, b.size, NULL);
        kwk_buf_fini(&b);
        kwk_hello_req_fini(&got);
        if (fail_alloc_end()) {
            assert_int_equal(rc, KWK_OK);
            assert_true(n >= 2);
            break;
        }
        assert_int_equal(rc, KWK_ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_encoded_or_refused),
        cmocka_unit_test(requests_are_decoded_or_refused),
        cmocka_unit_test(replies_are_written_read_and_printed_or_refused),
        cmocka_unit_test(hellos_are_passed_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
