/* SPDX-License-Identifier: Apache-2.0
 *
 * codec.c and the tables of msg_request.c: every field of every request at its boundaries, of other
 * types, missing. The messages are built by hand, since no encoder makes them.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/buf.h"
#include "proto/ring.h"

static const uint8_t session[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255};

typedef void put_fn(kwk_map *m, const char *key, double v);
static void put_int(kwk_map *m, const char *key, double v)
{
    if (v < 0)
        kwk_map_int(m, key, (int64_t)v);
    else
        kwk_map_uint(m, key, v >= 0x1p64 ? UINT64_MAX : (uint64_t)v);
}
static void put_double(kwk_map *m, const char *key, double v)
{
    kwk_map_double(m, key, v);
}
static void put_nil(kwk_map *m, const char *key, double v)
{
    kwk_map_str(m, key, NULL);
}
static void put_string(kwk_map *m, const char *key, double v) // v bytes
{
    char s[5000];

    memset(s, 'x', sizeof s);
    s[(int)v] = 0;
    kwk_map_str(m, key, s);
}
static void put_list(kwk_map *m, const char *key, double v) // v ones
{
    kwk_map_open(m, key, 0);
    for (int i = 0; i < (int)v; i++)
        kwk_map_int(m, NULL, 1);
    kwk_map_close(m);
}
static void put_words(kwk_map *m, const char *key, double v) // v bytes of bin
{
    static const uint8_t zeros[(KWK_PROMPT_MAX + 4) * 4];

    kwk_map_bin(m, key, zeros, (size_t)v);
}
static void put_pairs(kwk_map *m, const char *key, double v)
{
    kwk_map_open(m, key, 0);
    for (int i = 0; i < (int)v; i++)
        put_list(m, NULL, 2);
    kwk_map_close(m);
}
static void put_bias(kwk_map *m, const char *key, double v)
{
    kwk_map_open(m, key, 0);
    kwk_map_open(m, NULL, 0);
    kwk_map_int(m, NULL, 1);
    kwk_map_double(m, NULL, v);
    kwk_map_close(m);
    kwk_map_close(m);
}
static void put_span_n(kwk_map *m, const char *key, double v)
{
    kwk_map_open(m, key, 0);
    kwk_map_uint(m, NULL, 4);
    put_int(m, NULL, v);
    kwk_map_close(m);
}
static void put_span_offset(kwk_map *m, const char *key, double v)
{
    kwk_map_open(m, key, 0);
    put_int(m, NULL, v);
    kwk_map_uint(m, NULL, 1);
    kwk_map_close(m);
}

/* The required keys of op, but not `except`, which the test writes itself. */
static void put_required(kwk_map *m, kwk_op op, const char *except)
{
    static const struct {
        kwk_op op;
        const char *key;
        put_fn *put;
    } required[] = {
        {KWK_OP_load, "name", put_string},     {KWK_OP_load, "path", put_string},
        {KWK_OP_unload, "name", put_string},   {KWK_OP_pin, "name", put_string},
        {KWK_OP_generate, "prompt", put_list}, {KWK_OP_generate, "stream", put_int},
        {KWK_OP_seq_fork, "seq", put_int},     {KWK_OP_seq_truncate, "seq", put_int},
        {KWK_OP_seq_truncate, "length", put_int}, {KWK_OP_seq_export, "seq", put_int},
        {KWK_OP_seq_export, "layer", put_int}, {KWK_OP_seq_close, "seq", put_int},
        {KWK_OP_forward, "seq", put_int},      {KWK_OP_forward, "tokens", put_list},
        {KWK_OP_cancel, "stream", put_int},
    };
    // a key that stands instead of another
    const char *instead = strcmp(except, "pack") == 0         ? "path"
                          : strcmp(except, "span") == 0       ? "prompt"
                          : strcmp(except, "request_id") == 0 ? "stream"
                                                              : "";

    if (op == KWK_OP_generate && strcmp(except, "request_id") == 0)
        instead = "";
    kwk_map_int(m, "v", 1);
    kwk_map_str(m, "op", kwk_op_name(op));
    kwk_map_bin(m, "session", session, 16);
    for (size_t i = 0; i < CHECK_COUNT(required); i++)
        if (required[i].op == op && strcmp(required[i].key, except) &&
            strcmp(required[i].key, instead))
            required[i].put(m, required[i].key, 1);
}

static int decode(kwk_op op, const char *key, put_fn *put, double v, kwk_error *err)
{
    kwk_buf b = {0};
    kwk_map m;
    kwk_request r;
    int rc;

    kwk_map_begin(&m, &b);
    put_required(&m, op, key);
    put(&m, key, v);
    // the second of two arrays that must be equally long
    if (strcmp(key, "positions") == 0 && (v == KWK_PROMPT_MAX || v == 1)) {
        b.size = 0;
        kwk_map_begin(&m, &b);
        put_required(&m, op, "tokens");
        put_words(&m, "tokens", v == 1 ? 4 : 4);
        put(&m, key, 1);
    }
    if (kwk_map_end(&m, err) < 0)
        fail_msg("%s: %s", key, err->msg);
    rc = kwk_request_decode(&r, b.data, b.size, err);
    if (rc == KWK_OK)
        kwk_request_fini(&r);
    kwk_buf_fini(&b);
    return rc;
}

static void accepts(kwk_op op, const char *key, put_fn *put, double v)
{
    kwk_error err = {0};

    if (decode(op, key, put, v, &err) != KWK_OK)
        fail_msg("%s of %.17g in %s: %s", key, v, kwk_op_name(op), err.msg);
}

static void refuses(kwk_op op, const char *key, put_fn *put, double v)
{
    kwk_error err = {0};
    const int rc = decode(op, key, put, v, &err);

    if (rc != KWK_EINVAL || strncmp(err.msg, key, strlen(key)))
        fail_msg("%s of %.17g in %s: %d %s", key, v, kwk_op_name(op), rc, err.msg);
}

static void every_number_is_checked_at_its_boundaries(void **state)
{
    enum { INT, FLOAT, BOOL };
    static const struct {
        kwk_op op;
        const char *key;
        int kind;
        double least, most;
    } fields[] = {
        {KWK_OP_load, "pack", INT, 0, 0x1p64},
        {KWK_OP_load, "mix_bits", INT, 0, 32},
        {KWK_OP_load, "max_ctx", INT, 0, KWK_NEW_TOKENS_MAX},
        {KWK_OP_load, "pin", BOOL, 0, 1},
        {KWK_OP_load, "wait", BOOL, 0, 1},
        {KWK_OP_pin, "pin", BOOL, 0, 1},
        {KWK_OP_generate, "stream", INT, 0, UINT32_MAX},
        {KWK_OP_generate, "inline", BOOL, 0, 1},
        {KWK_OP_generate, "max_new_tokens", INT, -1, KWK_NEW_TOKENS_MAX},
        {KWK_OP_generate, "text", BOOL, 0, 1},
        {KWK_OP_generate, "do_sample", BOOL, 0, 1},
        {KWK_OP_generate, "temperature", FLOAT, 0, FLT_MAX},
        {KWK_OP_generate, "top_p", FLOAT, 0, 1},
        {KWK_OP_generate, "min_p", FLOAT, 0, 1},
        {KWK_OP_generate, "repetition_penalty", FLOAT, 0, FLT_MAX},
        {KWK_OP_generate, "top_k", INT, 0, INT32_MAX},
        {KWK_OP_generate, "min_new_tokens", INT, 0, KWK_NEW_TOKENS_MAX},
        {KWK_OP_generate, "seed", INT, 0, 0x1p64},
        {KWK_OP_generate, "n_logprobs", INT, 0, KWK_LOGPROBS_MAX},
        {KWK_OP_generate, "logprobs", BOOL, 0, 1},
        {KWK_OP_generate, "ignore_eos", BOOL, 0, 1},
        {KWK_OP_generate, "credit", INT, 0, KWK_OUT_SLOTS_MAX},
        {KWK_OP_seq_fork, "seq", INT, 0, 0x1p64},
        {KWK_OP_seq_truncate, "seq", INT, 0, 0x1p64},
        {KWK_OP_seq_truncate, "length", INT, 0, KWK_NEW_TOKENS_MAX},
        {KWK_OP_seq_export, "seq", INT, 0, 0x1p64},
        {KWK_OP_seq_export, "layer", INT, 0, 65535},
        {KWK_OP_seq_export, "row", INT, 0, UINT32_MAX},
        {KWK_OP_seq_close, "seq", INT, 0, 0x1p64},
        {KWK_OP_forward, "seq", INT, 0, 0x1p64},
        {KWK_OP_cancel, "stream", INT, 0, UINT32_MAX},
    };

    for (size_t i = 0; i < CHECK_COUNT(fields); i++) {
        const kwk_op op = fields[i].op;
        const char *key = fields[i].key;
        const double least = fields[i].least, most = fields[i].most;

        accepts(op, key, put_int, least);
        if (fields[i].kind == FLOAT) {
            accepts(op, key, put_double, least);
            accepts(op, key, put_double, most);
            refuses(op, key, put_double, -FLT_TRUE_MIN);
            refuses(op, key, put_double, most * 1.0000005);
            refuses(op, key, put_double, NAN);
            refuses(op, key, put_double, INFINITY);
            refuses(op, key, put_double, -INFINITY);
        } else {
            accepts(op, key, put_int, most);
            refuses(op, key, put_int, least - 1);
            refuses(op, key, put_int, INT32_MIN);
            refuses(op, key, put_int, -0x1p63);
            refuses(op, key, put_double, 1);
            if (most < 0x1p64) {
                refuses(op, key, put_int, most + 1);
                refuses(op, key, put_int, 0x1p32 + least); // would wrap to the least
                refuses(op, key, put_int, 0x1p64);
            }
        }
        refuses(op, key, put_string, 3);
        refuses(op, key, put_list, 1);
        refuses(op, key, put_words, 4);
    }
}

static void every_string_is_checked_at_its_boundaries(void **state)
{
    static const struct {
        kwk_op op;
        const char *key;
        int least, most;
    } fields[] = {
        {KWK_OP_load, "name", 1, KWK_NAME_MAX},
        {KWK_OP_load, "path", 1, KWK_PATH_MAX_BYTES},
        {KWK_OP_load, "precision", 1, KWK_NAME_MAX},
        {KWK_OP_unload, "name", 1, KWK_NAME_MAX},
        {KWK_OP_pin, "name", 1, KWK_NAME_MAX},
        {KWK_OP_generate, "model", 1, KWK_NAME_MAX},
        {KWK_OP_generate, "request_id", 1, KWK_NAME_MAX},
        {KWK_OP_generate, "tenant", 0, KWK_NAME_MAX},
        {KWK_OP_seq_open, "model", 1, KWK_NAME_MAX},
        {KWK_OP_cancel, "request_id", 1, KWK_NAME_MAX},
    };

    for (size_t i = 0; i < CHECK_COUNT(fields); i++) {
        const kwk_op op = fields[i].op;
        const char *key = fields[i].key;

        accepts(op, key, put_string, fields[i].least);
        accepts(op, key, put_string, fields[i].most);
        refuses(op, key, put_string, fields[i].most + 1);
        if (fields[i].least)
            refuses(op, key, put_string, fields[i].least - 1);
        refuses(op, key, put_int, 1);
        refuses(op, key, put_list, 1);
        refuses(op, key, put_words, 4);
    }
}

static void every_array_is_checked_at_its_boundaries(void **state)
{
    static const struct {
        kwk_op op;
        const char *key;
        int least, most;
    } fields[] = {
        {KWK_OP_generate, "prompt", 1, KWK_PROMPT_MAX},
        {KWK_OP_generate, "eos", 0, KWK_EOS_MAX},
        {KWK_OP_forward, "tokens", 1, KWK_PROMPT_MAX},
        {KWK_OP_forward, "positions", 1, KWK_PROMPT_MAX},
    };

    for (size_t i = 0; i < CHECK_COUNT(fields); i++) {
        const kwk_op op = fields[i].op;
        const char *key = fields[i].key;

        accepts(op, key, put_list, fields[i].least);
        accepts(op, key, put_list, fields[i].most);
        refuses(op, key, put_list, fields[i].most + 1);
        if (fields[i].most <= KWK_EOS_MAX) {
            accepts(op, key, put_words, fields[i].most * 4);
            refuses(op, key, put_words, fields[i].most * 4 + 4);
        }
        if (fields[i].least) {
            refuses(op, key, put_list, 0);
            refuses(op, key, put_words, 0);
        }
        refuses(op, key, put_words, 3); // no whole number
        refuses(op, key, put_words, 5);
        refuses(op, key, put_int, 1);
        refuses(op, key, put_string, 4);
        refuses(op, key, put_pairs, 1); // of arrays
    }
    accepts(KWK_OP_generate, "logit_bias", put_pairs, 0);
    accepts(KWK_OP_generate, "logit_bias", put_pairs, KWK_BIAS_MAX);
    refuses(KWK_OP_generate, "logit_bias", put_pairs, KWK_BIAS_MAX + 1);
    refuses(KWK_OP_generate, "logit_bias", put_list, 2);
    refuses(KWK_OP_generate, "logit_bias", put_words, 8);
    accepts(KWK_OP_generate, "logit_bias", put_bias, -INFINITY); // forbids the token
    refuses(KWK_OP_generate, "logit_bias", put_bias, INFINITY);
    refuses(KWK_OP_generate, "logit_bias", put_bias, NAN);
    refuses(KWK_OP_generate, "logit_bias", put_bias, DBL_MAX); // infinite as a float
    accepts(KWK_OP_generate, "span", put_span_n, 1);
    accepts(KWK_OP_generate, "span", put_span_n, KWK_PROMPT_MAX);
    refuses(KWK_OP_generate, "span", put_span_n, 0);
    refuses(KWK_OP_generate, "span", put_span_n, KWK_PROMPT_MAX + 1);
    refuses(KWK_OP_generate, "span", put_span_n, -1);
    accepts(KWK_OP_generate, "span", put_span_offset, 0);
    accepts(KWK_OP_generate, "span", put_span_offset, 0xfffffffc);
    refuses(KWK_OP_generate, "span", put_span_offset, 2);
    refuses(KWK_OP_generate, "span", put_span_offset, 0x1p32);
    refuses(KWK_OP_generate, "span", put_span_offset, -4);
    refuses(KWK_OP_generate, "span", put_list, 3);
    refuses(KWK_OP_generate, "span", put_int, 3);
}

static void ids_outside_int32_are_refused(void **state)
{
    static const double bad[] = {0x1p31, 0x1p32, 0x1p64, -0x1p31 - 1, -0x1p63};

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        kwk_buf b = {0};
        kwk_map m;
        kwk_request r;
        kwk_error err = {0};
        kwk_map_begin(&m, &b);
        put_required(&m, KWK_OP_generate, "prompt");
        kwk_map_open(&m, "prompt", 0);
        kwk_map_int(&m, NULL, 5);
        put_int(&m, NULL, bad[i]);
        kwk_map_close(&m);
        kwk_map_end(&m, &err);
        assert_int_equal(kwk_request_decode(&r, b.data, b.size, &err), KWK_EINVAL);
        assert_string_equal(err.msg, "prompt[1]: not a 32-bit integer");
        kwk_buf_fini(&b);
    }
}

static void a_missing_or_nil_field_is_named(void **state)
{
    static const struct {
        kwk_op op;
        const char *key, *says;
    } fields[] = {
        {KWK_OP_load, "name", "name: missing"},
        {KWK_OP_load, "path", "load needs one of path and pack"},
        {KWK_OP_unload, "name", "name: missing"},
        {KWK_OP_pin, "name", "name: missing"},
        {KWK_OP_generate, "prompt", "generate needs one of prompt and span"},
        {KWK_OP_generate, "stream", "stream: missing"},
        {KWK_OP_seq_fork, "seq", "seq: missing"},
        {KWK_OP_seq_truncate, "seq", "seq: missing"},
        {KWK_OP_seq_truncate, "length", "length: missing"},
        {KWK_OP_seq_export, "layer", "layer: missing"},
        {KWK_OP_seq_close, "seq", "seq: missing"},
        {KWK_OP_forward, "seq", "seq: missing"},
        {KWK_OP_forward, "tokens", "tokens: missing"},
        {KWK_OP_cancel, "stream", "cancel needs one of stream and request_id"},
    };
    kwk_error err;

    for (size_t i = 0; i < CHECK_COUNT(fields); i++) {
        assert_int_equal(decode(fields[i].op, fields[i].key, put_nil, 0, &err), KWK_EINVAL);
        assert_string_equal(err.msg, fields[i].says);
    }
}

static int decode_with(put_fn *put_session, double v, const char *op, kwk_error *err)
{
    kwk_buf b = {0};
    kwk_map m;
    kwk_request r;
    int rc;

    kwk_map_begin(&m, &b);
    kwk_map_int(&m, "v", 1);
    if (op)
        kwk_map_str(&m, "op", op);
    if (put_session)
        put_session(&m, "session", v);
    kwk_map_end(&m, err);
    rc = kwk_request_decode(&r, b.data, b.size, err);
    if (rc == KWK_OK)
        kwk_request_fini(&r);
    kwk_buf_fini(&b);
    return rc;
}

static void a_session_is_sixteen_bytes(void **state)
{
    kwk_error err;

    assert_int_equal(decode_with(put_words, 16, "status", &err), KWK_OK);
    assert_int_equal(decode_with(put_nil, 0, "status", &err), KWK_OK);
    assert_int_equal(decode_with(put_words, 15, "status", &err), KWK_EINVAL);
    assert_int_equal(decode_with(put_words, 17, "status", &err), KWK_EINVAL);
    assert_int_equal(decode_with(put_words, 0, "status", &err), KWK_EINVAL);
    assert_int_equal(decode_with(put_string, 16, "status", &err), KWK_EINVAL);
    assert_int_equal(decode_with(put_int, 16, "status", &err), KWK_EINVAL);
}

static void unknown_operations_and_later_keys_are_not_supported(void **state)
{
    static const char *const later[] = {"stop", "n", "best_of", "grammar"};
    kwk_error err;
    kwk_request r;
    kwk_buf b = {0};

    assert_int_equal(decode_with(NULL, 0, "score", &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "op: unknown request 'score'");
    assert_int_equal(decode_with(NULL, 0, "", &err), KWK_EUNSUPPORTED);
    assert_int_equal(decode_with(NULL, 0, "statu", &err), KWK_EUNSUPPORTED);
    assert_int_equal(decode_with(NULL, 0, NULL, &err), KWK_EPROTO);
    for (size_t i = 0; i < CHECK_COUNT(later); i++) {
        assert_int_equal(decode(KWK_OP_generate, later[i], put_int, 1, &err), KWK_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, later[i]));
        assert_int_equal(decode(KWK_OP_generate, later[i], put_nil, 1, &err), KWK_OK);
    }
    r = (kwk_request){.op = KWK_OP_END};
    assert_int_equal(kwk_request_encode(&b, &r, &err), KWK_EINVAL);
    r.op = KWK_OP_NONE;
    assert_int_equal(kwk_request_encode(&b, &r, &err), KWK_EINVAL);
}

static void unknown_keys_are_skipped(void **state)
{
    accepts(KWK_OP_generate, "from_the_future", put_int, 1);
    accepts(KWK_OP_generate, "from_the_future", put_pairs, 9);
    accepts(KWK_OP_seq_open, "prompt", put_string, 9); // of another request
}

static void strings_with_a_nul_byte_are_refused(void **state)
{
    static const char m[] = "\x84\xa1v\x01\xa2op\xa4load\xa4name\xa3x\0y\xa4path\xa1p";
    kwk_request r;
    kwk_error err = {0};

    assert_int_equal(kwk_request_decode(&r, m, sizeof m - 1, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "name: has a NUL byte inside");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_checked_at_its_boundaries),
        cmocka_unit_test(every_string_is_checked_at_its_boundaries),
        cmocka_unit_test(every_array_is_checked_at_its_boundaries),
        cmocka_unit_test(ids_outside_int32_are_refused),
        cmocka_unit_test(a_missing_or_nil_field_is_named),
        cmocka_unit_test(a_session_is_sixteen_bytes),
        cmocka_unit_test(unknown_operations_and_later_keys_are_not_supported),
        cmocka_unit_test(unknown_keys_are_skipped),
        cmocka_unit_test(strings_with_a_nul_byte_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
