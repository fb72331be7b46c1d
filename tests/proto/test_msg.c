/* SPDX-License-Identifier: Apache-2.0
 *
 * msg_request.c, msg_hello.c and codec.c: every request comes back as it was sent; every boundary of
 * every field; every truncation; random damage. Requests that no encoder makes are built by hand.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/buf.h"
#include "proto/ring.h"

static const uint8_t session[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255};

static void encode(kwk_buf *b, const kwk_request *r)
{
    kwk_error err;

    b->size = 0;
    if (kwk_request_encode(b, r, &err) < 0)
        fail_msg("encode: %s", err.msg);
}

static kwk_request sent(kwk_op op)
{
    kwk_request r = {.op = op, .has_session = 1};

    memcpy(r.session, session, sizeof session);
    return r;
}

static kwk_request pass(const kwk_request *r) // through the wire
{
    kwk_buf b = {0};
    kwk_request got = {0};
    kwk_error err;

    encode(&b, r);
    if (kwk_request_decode(&got, b.data, b.size, &err) < 0)
        fail_msg("decode: %s", err.msg);
    kwk_buf_fini(&b);
    assert_int_equal(got.op, r->op);
    assert_int_equal(got.has_session, r->has_session);
    assert_memory_equal(got.session, r->session, 16);
    return got;
}

/* ---- round trips ------------------------------------------------------------------------------------- */

static const int32_t prompt[] = {0, 1, -1, INT32_MAX, INT32_MIN};
static const int32_t eos[] = {2, 128009};
static const kwk_bias bias[] = {{5, -1.5f}, {7, -INFINITY}};

static kwk_request full_generate(void)
{
    kwk_request r = sent(KWK_OP_generate);

    r.u.generate = (kwk_generate_req){
        .model = "smol", .request_id = "id-1", .tenant = "t\xc3\xa4", .stream = 0xffffffff,
        .inline_reply = 1, .prompt = prompt, .n_prompt = 5, .max_new_tokens = 7, .text = 1,
        .do_sample = 1, .temperature = 0.7f, .top_p = 0.9f, .min_p = 0.05f,
        .repetition_penalty = 1.1f, .top_k = 40, .min_new_tokens = 3, .seed = UINT64_MAX,
        .has_seed = 1, .n_logprobs = 12, .logprobs = 1, .ignore_eos = 1, .eos = eos, .n_eos = 2,
        .bias = bias, .n_bias = 2, .credit = 64};
    return r;
}

static void generate_comes_back_as_it_was_sent(void **state)
{
    const kwk_request r = full_generate();
    kwk_request got = pass(&r);
    const kwk_generate_req *a = &r.u.generate, *g = &got.u.generate;

    assert_string_equal(g->model, "smol");
    assert_string_equal(g->request_id, "id-1");
    assert_string_equal(g->tenant, "t\xc3\xa4");
    assert_int_equal(g->stream, 0xffffffff);
    assert_int_equal(g->inline_reply, 1);
    assert_int_equal(g->n_prompt, 5);
    assert_memory_equal(g->prompt, prompt, sizeof prompt);
    assert_false(g->has_span);
    assert_int_equal(g->max_new_tokens, 7);
    assert_int_equal(g->text, 1);
    assert_int_equal(g->do_sample, 1);
    assert_true(g->temperature == a->temperature && g->top_p == a->top_p);
    assert_true(g->min_p == a->min_p && g->repetition_penalty == a->repetition_penalty);
    assert_int_equal(g->top_k, 40);
    assert_int_equal(g->min_new_tokens, 3);
    assert_true(g->seed == UINT64_MAX && g->has_seed);
    assert_int_equal(g->n_logprobs, 12);
    assert_int_equal(g->logprobs, 1);
    assert_int_equal(g->ignore_eos, 1);
    assert_int_equal(g->n_eos, 2);
    assert_memory_equal(g->eos, eos, sizeof eos);
    assert_int_equal(g->n_bias, 2);
    assert_memory_equal(g->bias, bias, sizeof bias);
    assert_int_equal(g->credit, 64);
    kwk_request_fini(&got);
    assert_null(got.arena);
}

static void generate_has_the_documented_defaults(void **state)
{
    kwk_request r = sent(KWK_OP_generate), got;
    kwk_generate_req *g = &got.u.generate;

    r.u.generate = (kwk_generate_req)KWK_GENERATE_REQ_INIT;
    r.u.generate.span_offset = 8;
    r.u.generate.span_n = 3;
    r.u.generate.has_span = 1;
    got = pass(&r);
    assert_null(g->model);
    assert_null(g->request_id);
    assert_null(g->tenant);
    assert_int_equal(g->stream, 0);
    assert_null(g->prompt);
    assert_true(g->has_span && g->span_offset == 8 && g->span_n == 3);
    assert_int_equal(g->max_new_tokens, -1);
    assert_true(g->temperature == 1 && g->top_p == 1 && g->repetition_penalty == 1);
    assert_true(g->min_p == 0 && g->top_k == 0 && !g->do_sample && !g->has_seed);
    assert_null(g->eos);
    assert_null(g->bias);
    assert_int_equal(g->credit, 0);
    kwk_request_fini(&got);
}

static void an_empty_eos_list_is_not_the_models_list(void **state)
{
    kwk_request r = full_generate(), got;

    r.u.generate.n_eos = 0;
    got = pass(&r);
    assert_non_null(got.u.generate.eos);
    assert_int_equal(got.u.generate.n_eos, 0);
    kwk_request_fini(&got);
}

static void the_other_requests_come_back_as_they_were_sent(void **state)
{
    const int32_t positions[] = {4, 5, 6, 7, 8};
    kwk_request r, got;

    for (int op = KWK_OP_NONE + 1; op < KWK_OP_END; op++)
        assert_non_null(kwk_op_name(op));
    assert_null(kwk_op_name(KWK_OP_NONE));
    assert_null(kwk_op_name(KWK_OP_END));
    assert_string_equal(kwk_op_name(KWK_OP_seq_fork), "seq_fork");

    for (int i = 0; i < 3; i++) {
        const kwk_op ops[] = {KWK_OP_status, KWK_OP_models, KWK_OP_metrics};
        r = (kwk_request){.op = ops[i]};
        got = pass(&r);
        kwk_request_fini(&got);
    }

    r = sent(KWK_OP_load);
    r.u.load = (kwk_load_req){"m", "/models/m", 0, "int4", 6, 4096, 1, 1};
    got = pass(&r);
    assert_string_equal(got.u.load.name, "m");
    assert_string_equal(got.u.load.path, "/models/m");
    assert_string_equal(got.u.load.precision, "int4");
    assert_int_equal(got.u.load.mix_bits, 6);
    assert_int_equal(got.u.load.max_ctx, 4096);
    assert_true(got.u.load.pin && got.u.load.wait);
    kwk_request_fini(&got);

    r.u.load = (kwk_load_req){.name = "m", .pack = UINT64_MAX};
    got = pass(&r);
    assert_null(got.u.load.path);
    assert_true(got.u.load.pack == UINT64_MAX && !got.u.load.pin && !got.u.load.wait);
    kwk_request_fini(&got);

    r = sent(KWK_OP_unload);
    r.u.unload.name = "m";
    got = pass(&r);
    assert_string_equal(got.u.unload.name, "m");
    kwk_request_fini(&got);

    for (int pin = 0; pin <= 1; pin++) {
        r = sent(KWK_OP_pin);
        r.u.pin = (kwk_name_req){"m", pin};
        got = pass(&r);
        assert_int_equal(got.u.pin.pin, pin);
        kwk_request_fini(&got);
    }

    r = sent(KWK_OP_seq_open);
    r.u.seq_open.model = "m";
    got = pass(&r);
    assert_string_equal(got.u.seq_open.model, "m");
    kwk_request_fini(&got);

    for (int op = KWK_OP_seq_fork; op <= KWK_OP_seq_close; op++) {
        r = sent(op);
        r.u.seq_fork = (kwk_seq_req){NULL, UINT64_MAX, 77, 3, 9};
        got = pass(&r);
        assert_true(got.u.seq_fork.seq == UINT64_MAX);
        assert_int_equal(got.u.seq_truncate.length, op == KWK_OP_seq_truncate ? 77 : 0);
        assert_int_equal(got.u.seq_export.layer, op == KWK_OP_seq_export ? 3 : 0);
        assert_int_equal(got.u.seq_export.row, op == KWK_OP_seq_export ? 9 : 0);
        kwk_request_fini(&got);
    }
    r.op = KWK_OP_seq_fork; // 0 is an id like any other
    r.u.seq_fork = (kwk_seq_req){0};
    got = pass(&r);
    kwk_request_fini(&got);

    r = sent(KWK_OP_forward);
    r.u.forward = (kwk_forward_req){5, prompt, 5, positions, 5};
    got = pass(&r);
    assert_true(got.u.forward.seq == 5);
    assert_memory_equal(got.u.forward.tokens, prompt, sizeof prompt);
    assert_memory_equal(got.u.forward.positions, positions, sizeof positions);
    kwk_request_fini(&got);

    r = sent(KWK_OP_cancel);
    r.u.cancel = (kwk_cancel_req){.stream = 0, .has_stream = 1};
    got = pass(&r);
    assert_true(got.u.cancel.has_stream && got.u.cancel.stream == 0 && !got.u.cancel.request_id);
    kwk_request_fini(&got);
    r = (kwk_request){.op = KWK_OP_cancel};
    r.u.cancel.request_id = "id-1";
    got = pass(&r);
    assert_string_equal(got.u.cancel.request_id, "id-1");
    assert_false(got.u.cancel.has_stream);
    kwk_request_fini(&got);
    kwk_request_fini(NULL);
}

/* ---- messages built by hand -------------------------------------------------------------------------- */

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

static void rules_between_fields_hold(void **state)
{
    kwk_request r = sent(KWK_OP_load), got;
    kwk_buf b = {0};
    kwk_error err;

    r.u.load = (kwk_load_req){.name = "m", .path = "/p", .pack = 3};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = full_generate();
    r.u.generate.has_span = 1;
    r.u.generate.span_n = 1;
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = sent(KWK_OP_forward);
    r.u.forward = (kwk_forward_req){1, prompt, 5, prompt, 4};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "positions: 4 items for 5 tokens");
    r = sent(KWK_OP_cancel);
    r.u.cancel = (kwk_cancel_req){1, 1, "id"};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    kwk_buf_fini(&b);
}

static void requests_of_a_session_need_one(void **state)
{
    kwk_request r, got;
    kwk_buf b = {0};
    kwk_error err;

    for (int op = KWK_OP_seq_open; op <= KWK_OP_forward; op++) {
        r = (kwk_request){.op = op};
        if (op == KWK_OP_forward)
            r.u.forward = (kwk_forward_req){1, prompt, 5, NULL, 0};
        encode(&b, &r);
        assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
        assert_string_equal(err.msg, "session: missing");
    }
    r = full_generate();
    r.has_session = 0;
    encode(&b, &r); // inline
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_OK);
    kwk_request_fini(&got);
    r.u.generate.inline_reply = 0;
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = (kwk_request){.op = KWK_OP_load};
    r.u.load = (kwk_load_req){.name = "m", .pack = 3};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = (kwk_request){.op = KWK_OP_cancel};
    r.u.cancel = (kwk_cancel_req){1, 1, NULL};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    kwk_buf_fini(&b);
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

static void the_encoder_refuses_what_the_decoder_would(void **state)
{
    kwk_request r = full_generate();
    kwk_buf b = {0};
    kwk_error err = {0};
    char name[KWK_NAME_MAX + 2];

    assert_int_equal(kwk_buf_write(&b, "keep", 4), 0);
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
#define REFUSED(field, value)                                            \
    do {                                                                 \
        r = full_generate();                                             \
        r.u.generate.field = value;                                      \
        assert_int_equal(kwk_request_encode(&b, &r, &err), KWK_EINVAL);  \
        assert_int_equal(b.size, 4);                                     \
    } while (0)
    REFUSED(model, name);
    REFUSED(n_prompt, 0);
    REFUSED(n_prompt, -1);
    REFUSED(n_eos, KWK_EOS_MAX + 1);
    REFUSED(n_bias, -1);
    REFUSED(temperature, NAN);
    REFUSED(top_p, 1.5f);
    REFUSED(top_k, -1);
    REFUSED(max_new_tokens, -2);
    REFUSED(n_logprobs, 13);
#undef REFUSED
    r = (kwk_request){.op = KWK_OP_unload};
    assert_int_equal(kwk_request_encode(&b, &r, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "name: missing");
    kwk_buf_fini(&b);
}

/* ---- damage ------------------------------------------------------------------------------------------ */

static void every_truncation_of_a_request_is_refused(void **state)
{
    kwk_request r = full_generate(), got;
    kwk_buf b = {0};
    kwk_error err;

    encode(&b, &r);
    for (size_t n = 0; n < b.size; n++)
        assert_int_equal(kwk_request_decode(&got, b.data, n, &err), KWK_EPROTO);
    assert_int_equal(kwk_buf_write(&b, "\xc0", 1), 0);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EPROTO);
    kwk_buf_fini(&b);
}

/* Exact sizes, so that the sanitizers see a read past the end. */
static void try_damaged(const uint8_t *data, size_t n, int *accepted)
{
    uint8_t *copy = test_malloc(n);
    kwk_request got;
    kwk_error err = {0};
    int rc;

    memcpy(copy, data, n);
    rc = kwk_request_decode(&got, copy, n, &err);
    if (rc == KWK_OK) {
        kwk_buf b = {0};
        kwk_request again;
        assert_int_equal(kwk_request_encode(&b, &got, &err), KWK_OK);
        assert_int_equal(kwk_request_decode(&again, b.data, b.size, &err), KWK_OK);
        kwk_request_fini(&again);
        kwk_buf_fini(&b);
        kwk_request_fini(&got);
        ++*accepted;
    } else {
        assert_true(rc == KWK_EPROTO || rc == KWK_EINVAL || rc == KWK_EUNSUPPORTED);
        assert_int_equal(err.code, rc);
        assert_true(err.msg[0]);
    }
    test_free(copy);
}

static void every_flipped_bit_is_survived(void **state)
{
    kwk_request r = full_generate();
    kwk_buf b = {0};
    int accepted = 0;

    encode(&b, &r);
    for (size_t i = 0; i < b.size * 8; i++) {
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
        try_damaged(b.data, b.size, &accepted);
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_true(accepted > 100);
    kwk_buf_fini(&b);
}

static void mutated_requests_are_decoded_or_refused(void **state)
{
    kwk_request valid[4] = {full_generate(), sent(KWK_OP_load), sent(KWK_OP_forward),
                            sent(KWK_OP_seq_truncate)};
    kwk_buf b = {0};
    uint64_t seed = 5;
    int accepted = 0;

    valid[1].u.load = (kwk_load_req){"m", "/models/m", 0, "int4", 6, 4096, 1, 1};
    valid[2].u.forward = (kwk_forward_req){5, prompt, 5, prompt, 5};
    for (int i = 0; i < 20000; i++) {
        encode(&b, &valid[i % 4]);
        for (int k = check_random_int(&seed, 1, 4); k > 0; k--) {
            const size_t at = check_random(&seed) % b.size;
            const size_t n = (size_t)check_random_int(&seed, 1, 8);
            switch (check_random_int(&seed, 0, 4)) {
            case 0: // another byte
            case 1:
                b.data[at] = (uint8_t)check_random(&seed);
                break;
            case 2: // a piece gone
                if (at + n < b.size) {
                    memmove(b.data + at, b.data + at + n, b.size - at - n);
                    b.size -= n;
                }
                break;
            case 3: // a piece twice
                if (at + n < b.size && kwk_buf_grow(&b, n))
                    memmove(b.data + at + n, b.data + at, b.size - at - n);
                break;
            case 4: // a header that claims much
                if (at + 5 < b.size)
                    memcpy(b.data + at, check_random(&seed) % 2 ? "\xdd\xff\0\0\0" : "\xdf\0\0\1\0", 5);
                break;
            }
        }
        try_damaged(b.data, b.size, &accepted);
    }
    assert_true(accepted > 200);
    kwk_buf_fini(&b);
}

/* ---- hello ------------------------------------------------------------------------------------------- */

static void a_hello_comes_back_as_it_was_sent(void **state)
{
    const kwk_hello_req full = {0, "test/1", KWK_OUT_SLOTS_MAX, KWK_IN_DATA_MAX, UINT64_MAX, NULL};
    const kwk_hello_req bare = {0};
    kwk_hello_req h;
    kwk_buf b = {0};
    kwk_error err;

    assert_int_equal(kwk_hello_req_encode(&b, &full, &err), KWK_OK);
    assert_int_equal(kwk_hello_req_decode(&h, b.data, b.size, &err), KWK_OK);
    assert_int_equal(h.version, KWK_PROTO_VERSION);
    assert_string_equal(h.client, "test/1");
    assert_int_equal(h.out_slots, KWK_OUT_SLOTS_MAX);
    assert_int_equal(h.in_bytes, KWK_IN_DATA_MAX);
    assert_true(h.logits_bytes == UINT64_MAX);
    kwk_hello_req_fini(&h);
    for (size_t n = 0; n < b.size; n++)
        assert_int_equal(kwk_hello_req_decode(&h, b.data, n, &err), KWK_EPROTO);
    b.size = 0;

    assert_int_equal(kwk_hello_req_encode(&b, &bare, &err), KWK_OK);
    assert_int_equal(kwk_hello_req_decode(&h, b.data, b.size, &err), KWK_OK);
    assert_null(h.client);
    assert_true(h.out_slots == 0 && h.in_bytes == 0 && h.logits_bytes == 0);
    kwk_hello_req_fini(&h);
    kwk_hello_req_fini(NULL);
    kwk_buf_fini(&b);
}

static void hellos_outside_the_limits_are_refused(void **state)
{
    kwk_hello_req h = {.out_slots = KWK_OUT_SLOTS_MAX + 1};
    kwk_buf b = {0};
    kwk_error err;
    static const char version2[] = "\x82\xa1v\x02\xa2op\xa5hello";
    static const char other[] = "\x82\xa1v\x01\xa2op\xa6status";
    static const char slots[] = "\x83\xa1v\x01\xa2op\xa5hello\xa9out_slots\xce\x00\x01\x00\x01";
    static const char bytes[] = "\x83\xa1v\x01\xa2op\xa5hello\xa8in_bytes\xce\x01\x00\x00\x01";
    static const char logits[] = "\x83\xa1v\x01\xa2op\xa5hello\xaclogits_bytes\xff";
    static uint8_t large[KWK_DOOR_MAX + 1];

    assert_int_equal(kwk_hello_req_encode(&b, &h, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, version2, sizeof version2 - 1, &err), KWK_EPROTO);
    assert_string_equal(err.msg, "message of protocol version 2; this side speaks 1");
    assert_int_equal(kwk_hello_req_decode(&h, other, sizeof other - 1, &err), KWK_EPROTO);
    assert_int_equal(kwk_hello_req_decode(&h, slots, sizeof slots - 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, bytes, sizeof bytes - 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, logits, sizeof logits - 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, large, sizeof large, &err), KWK_EPROTO);
    kwk_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_comes_back_as_it_was_sent),
        cmocka_unit_test(generate_has_the_documented_defaults),
        cmocka_unit_test(an_empty_eos_list_is_not_the_models_list),
        cmocka_unit_test(the_other_requests_come_back_as_they_were_sent),
        cmocka_unit_test(every_number_is_checked_at_its_boundaries),
        cmocka_unit_test(every_string_is_checked_at_its_boundaries),
        cmocka_unit_test(every_array_is_checked_at_its_boundaries),
        cmocka_unit_test(ids_outside_int32_are_refused),
        cmocka_unit_test(a_missing_or_nil_field_is_named),
        cmocka_unit_test(rules_between_fields_hold),
        cmocka_unit_test(requests_of_a_session_need_one),
        cmocka_unit_test(a_session_is_sixteen_bytes),
        cmocka_unit_test(unknown_operations_and_later_keys_are_not_supported),
        cmocka_unit_test(unknown_keys_are_skipped),
        cmocka_unit_test(strings_with_a_nul_byte_are_refused),
        cmocka_unit_test(the_encoder_refuses_what_the_decoder_would),
        cmocka_unit_test(every_truncation_of_a_request_is_refused),
        cmocka_unit_test(every_flipped_bit_is_survived),
        cmocka_unit_test(mutated_requests_are_decoded_or_refused),
        cmocka_unit_test(a_hello_comes_back_as_it_was_sent),
        cmocka_unit_test(hellos_outside_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
