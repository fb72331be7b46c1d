/* SPDX-License-Identifier: Apache-2.0
 *
 * Control requests: which keys each has, where they lie in kwk_request, and the rules between them.
 * To add a key: a field in msg.h and a row here. To add a request: a row in requests.inc, a struct in
 * msg.h, a table here. Any thread; no state.
 */
#include <float.h>
#include <string.h>

#include "proto/codec.h"

#define AT(type, field) offsetof(type, field)
#define STR(type, key, required, least, most) \
    {#key, KWK_FIELD_STR, required, AT(type, key), KWK_NO_AUX, least, most, 0}
#define NAME(type, key, required) STR(type, key, required, 1, KWK_NAME_MAX)
#define BOOL(type, key, def) {#key, KWK_FIELD_BOOL, 0, AT(type, key), KWK_NO_AUX, 0, 1, def}
#define I32(type, key, least, most, def) \
    {#key, KWK_FIELD_I32, 0, AT(type, key), KWK_NO_AUX, least, most, def}
#define F32(type, key, least, most, def) \
    {#key, KWK_FIELD_F32, 0, AT(type, key), KWK_NO_AUX, least, most, def}
#define IDS(type, key, required, least, most) \
    {#key, KWK_FIELD_IDS, required, AT(type, key), AT(type, n_##key), least, most, 0}
#define NOT_YET(key) {key, KWK_FIELD_NOT_YET, 0, 0, KWK_NO_AUX, 0, 0, 0}

#define LENGTH_MAX KWK_NEW_TOKENS_MAX // tokens of a context

static const kwk_field load_fields[] = {
    NAME(kwk_load_req, name, 1),
    STR(kwk_load_req, path, 0, 1, KWK_PATH_MAX_BYTES),
    {"pack", KWK_FIELD_U64, 0, AT(kwk_load_req, pack), KWK_NO_AUX, 0, 0, 0},
    NAME(kwk_load_req, precision, 0),
    I32(kwk_load_req, mix_bits, 0, 32, 0),
    I32(kwk_load_req, max_ctx, 0, LENGTH_MAX, 0),
    BOOL(kwk_load_req, pin, 0),
    BOOL(kwk_load_req, wait, 0),
};

static const kwk_field unload_fields[] = {NAME(kwk_name_req, name, 1)};

static const kwk_field pin_fields[] = {
    NAME(kwk_name_req, name, 1),
    BOOL(kwk_name_req, pin, 1),
};

#define G kwk_generate_req
static const kwk_field generate_fields[] = {
    NAME(G, model, 0),
    NAME(G, request_id, 0),
    STR(G, tenant, 0, 0, KWK_NAME_MAX),
    {"stream", KWK_FIELD_U32, 0, AT(G, stream), KWK_NO_AUX, 0, UINT32_MAX, 0},
    {"inline", KWK_FIELD_BOOL, 0, AT(G, inline_reply), KWK_NO_AUX, 0, 1, 0},
    IDS(G, prompt, 0, 1, KWK_PROMPT_MAX),
    {"span", KWK_FIELD_SPAN, 0, AT(G, span_offset), AT(G, has_span), 1, KWK_PROMPT_MAX, 0},
    I32(G, max_new_tokens, -1, KWK_NEW_TOKENS_MAX, -1),
    BOOL(G, text, 0),
    BOOL(G, do_sample, 0),
    F32(G, temperature, 0, FLT_MAX, 1),
    F32(G, top_p, 0, 1, 1),
    F32(G, min_p, 0, 1, 0),
    F32(G, repetition_penalty, 0, FLT_MAX, 1),
    I32(G, top_k, 0, INT32_MAX, 0),
    I32(G, min_new_tokens, 0, KWK_NEW_TOKENS_MAX, 0),
    {"seed", KWK_FIELD_U64, 0, AT(G, seed), AT(G, has_seed), 0, 0, 0},
    I32(G, n_logprobs, 0, KWK_LOGPROBS_MAX, 0),
    BOOL(G, logprobs, 0),
    BOOL(G, ignore_eos, 0),
    IDS(G, eos, 0, 0, KWK_EOS_MAX),
    {"logit_bias", KWK_FIELD_BIAS, 0, AT(G, bias), AT(G, n_bias), 0, KWK_BIAS_MAX, 0},
    I32(G, credit, 0, 65536, 0),
    NOT_YET("stop"),
    NOT_YET("n"),
    NOT_YET("best_of"),
    NOT_YET("grammar"),
};
#undef G
_Static_assert(offsetof(kwk_generate_req, span_n) == offsetof(kwk_generate_req, span_offset) + 4,
               "a span is two words");

#define SEQ {"seq", KWK_FIELD_U64, 1, AT(kwk_seq_req, seq), KWK_NO_AUX, 0, 0, 0}
static const kwk_field seq_open_fields[] = {NAME(kwk_seq_req, model, 0)};
static const kwk_field seq_fork_fields[] = {SEQ};
static const kwk_field seq_close_fields[] = {SEQ};
static const kwk_field seq_truncate_fields[] = {
    SEQ,
    {"length", KWK_FIELD_I32, 1, AT(kwk_seq_req, length), KWK_NO_AUX, 0, LENGTH_MAX, 0},
};
static const kwk_field seq_export_fields[] = {
    SEQ,
    {"layer", KWK_FIELD_I32, 1, AT(kwk_seq_req, layer), KWK_NO_AUX, 0, 65535, 0},
    {"row", KWK_FIELD_U32, 0, AT(kwk_seq_req, row), KWK_NO_AUX, 0, UINT32_MAX, 0},
};

static const kwk_field forward_fields[] = {
    {"seq", KWK_FIELD_U64, 1, AT(kwk_forward_req, seq), KWK_NO_AUX, 0, 0, 0},
    IDS(kwk_forward_req, tokens, 1, 1, KWK_PROMPT_MAX),
    IDS(kwk_forward_req, positions, 0, 1, KWK_PROMPT_MAX),
};

static const kwk_field cancel_fields[] = {
    {"stream", KWK_FIELD_U32, 0, AT(kwk_cancel_req, stream), AT(kwk_cancel_req, has_stream), 0,
     UINT32_MAX, 0},
    NAME(kwk_cancel_req, request_id, 0),
};

#define TABLE(fields) {fields, sizeof fields / sizeof *fields}
static const struct {
    const char *name;
    int session;
    kwk_table table;
} ops[KWK_OP_END] = {
#define KWK_REQUEST(op, needs) [KWK_OP_##op] = {.name = #op, .session = needs},
#include "proto/requests.inc"
#undef KWK_REQUEST
};

/* The table of an op; empty for those without fields. */
static kwk_table table_of(kwk_op op)
{
    switch (op) {
#define CASE(name)      \
    case KWK_OP_##name: \
        return (kwk_table)TABLE(name##_fields);
        CASE(load)
        CASE(unload)
        CASE(pin)
        CASE(generate)
        CASE(seq_open)
        CASE(seq_fork)
        CASE(seq_truncate)
        CASE(seq_export)
        CASE(seq_close)
        CASE(forward)
        CASE(cancel)
#undef CASE
    case KWK_OP_status:
    case KWK_OP_models:
    case KWK_OP_metrics:
    case KWK_OP_NONE:
    case KWK_OP_END:
        break;
    }
    return (kwk_table){NULL, 0};
}

const char *kwk_op_name(kwk_op op)
{
    return op > KWK_OP_NONE && op < KWK_OP_END ? ops[op].name : NULL;
}

static int has(kwk_op op, uint32_t seen, const char *key)
{
    const kwk_table t = table_of(op);

    for (int i = 0; i < t.n; i++)
        if (strcmp(t.fields[i].key, key) == 0)
            return (seen >> i & 1) != 0;
    return 0;
}

/* Rules between fields. */
static int check(const kwk_request *req, uint32_t seen, kwk_error *err)
{
    const kwk_generate_req *g = &req->u.generate;
    const kwk_forward_req *f = &req->u.forward;
    int needs_session = ops[req->op].session;

    switch (req->op) {
    case KWK_OP_load:
        if (has(req->op, seen, "path") == has(req->op, seen, "pack"))
            return kwk_fail(err, KWK_EINVAL, "load needs one of path and pack");
        needs_session = has(req->op, seen, "pack");
        break;
    case KWK_OP_generate:
        if (!g->prompt == !g->has_span)
            return kwk_fail(err, KWK_EINVAL, "generate needs one of prompt and span");
        if (!g->inline_reply && !has(req->op, seen, "stream"))
            return kwk_fail(err, KWK_EINVAL, "stream: missing");
        needs_session = !g->inline_reply || g->has_span;
        break;
    case KWK_OP_forward:
        if (f->positions && f->n_positions != f->n_tokens)
            return kwk_fail(err, KWK_EINVAL, "positions: %d items for %d tokens", f->n_positions,
                            f->n_tokens);
        break;
    case KWK_OP_cancel:
        if (!req->u.cancel.has_stream == !req->u.cancel.request_id)
            return kwk_fail(err, KWK_EINVAL, "cancel needs one of stream and request_id");
        needs_session = req->u.cancel.has_stream;
        break;
    default:
        break;
    }
    if (needs_session && !req->has_session)
        return kwk_fail(err, KWK_EINVAL, "session: missing");
    return KWK_OK;
}

static int find_op(const msgpack_object_map *map, kwk_op *op, kwk_error *err)
{
    const msgpack_object *o = kwk_object_get(map, "op");

    if (!o || o->type != MSGPACK_OBJECT_STR)
        return kwk_fail(err, KWK_EPROTO, "op: missing");
    for (int i = KWK_OP_NONE + 1; i < KWK_OP_END; i++)
        if (strlen(ops[i].name) == o->via.str.size &&
            memcmp(ops[i].name, o->via.str.ptr, o->via.str.size) == 0) {
            *op = (kwk_op)i;
            return KWK_OK;
        }
    return kwk_fail(err, KWK_EUNSUPPORTED, "op: unknown request '%.*s'",
                    o->via.str.size > 64 ? 64 : (int)o->via.str.size, o->via.str.ptr);
}

int kwk_request_decode(kwk_request *req, const void *data, size_t n, kwk_error *err)
{
    kwk_request r = {0};
    msgpack_unpacked u;
    const msgpack_object *session;
    kwk_table table;
    uint32_t seen;
    int rc;

    msgpack_unpacked_init(&u);
    rc = kwk_unpack(&u, data, n, err);
    if (rc < 0)
        goto out;
    rc = find_op(&u.data.via.map, &r.op, err);
    if (rc < 0)
        goto out;
    session = kwk_object_get(&u.data.via.map, "session");
    if (session) {
        if (session->type != MSGPACK_OBJECT_BIN || session->via.bin.size != sizeof r.session) {
            rc = kwk_fail(err, KWK_EINVAL, "session: not %zu bytes", sizeof r.session);
            goto out;
        }
        memcpy(r.session, session->via.bin.ptr, sizeof r.session);
        r.has_session = 1;
    }
    table = table_of(r.op);
    rc = kwk_table_decode(&table, &r.u, &u.data.via.map, &r.arena, &seen, err);
    if (rc < 0)
        goto out;
    rc = check(&r, seen, err);
    if (rc < 0)
        goto out;
    *req = r;
    r.arena = NULL;
out:
    kwk_arena_free(r.arena);
    msgpack_unpacked_destroy(&u);
    return rc;
}

int kwk_request_encode(kwk_buf *out, const kwk_request *req, kwk_error *err)
{
    const size_t start = out->size;
    const char *name = kwk_op_name(req->op);
    kwk_table table;
    kwk_map m;
    int rc;

    if (!name)
        return kwk_fail(err, KWK_EINVAL, "op: no request %d", (int)req->op);
    kwk_map_begin(&m, out);
    kwk_map_int(&m, "v", KWK_PROTO_VERSION);
    kwk_map_str(&m, "op", name);
    if (req->has_session)
        kwk_map_bin(&m, "session", req->session, sizeof req->session);
    // A stream of 0 is an id like any other, so that this one number is written always.
    if (req->op == KWK_OP_generate && !req->u.generate.inline_reply && !req->u.generate.stream)
        kwk_map_int(&m, "stream", 0);
    table = table_of(req->op);
    rc = kwk_table_encode(&table, &req->u, &m, err);
    if (rc < 0) {
        out->size = start;
        return rc;
    }
    return kwk_map_end(&m, err);
}

void kwk_request_fini(kwk_request *req)
{
    if (req) {
        kwk_arena_free(req->arena);
        *req = (kwk_request){0};
    }
}
