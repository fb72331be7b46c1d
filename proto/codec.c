/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoder and decoder of table-described messages (codec.h). The decoder's input is hostile; every
 * size has been checked against the bytes present by kwk_walk() before. Any thread; no state.
 */
#include "proto/codec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/buf.h"
#include "proto/walker.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ids travel as little-endian int32");

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    _Alignas(8) uint8_t data[];
} block;

static void *arena_alloc(void **arena, size_t n)
{
    block *b = malloc(sizeof *b + n);

    if (!b)
        return NULL;
    b->next = *arena;
    *arena = b;
    return b->data;
}

void kwk_arena_free(void *arena)
{
    for (block *b = arena; b;) {
        block *next = b->next;
        free(b);
        b = next;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

const msgpack_object *kwk_object_get(const msgpack_object_map *map, const char *key)
{
    const size_t n = strlen(key);

    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *k = &map->ptr[i].key;
        if (k->type == MSGPACK_OBJECT_STR && k->via.str.size == n &&
            memcmp(k->via.str.ptr, key, n) == 0)
            return map->ptr[i].val.type == MSGPACK_OBJECT_NIL ? NULL : &map->ptr[i].val;
    }
    return NULL;
}

int kwk_unpack(msgpack_unpacked *u, const void *data, size_t n, kwk_error *err)
{
    const msgpack_object *v;
    size_t at = 0;
    int rc = kwk_walk(data, n, err);

    if (rc < 0)
        return rc;
    switch (msgpack_unpack_next(u, data, n, &at)) {
    case MSGPACK_UNPACK_SUCCESS:
    case MSGPACK_UNPACK_EXTRA_BYTES:
        break;
    case MSGPACK_UNPACK_NOMEM_ERROR:
        return kwk_fail(err, KWK_ENOMEM, "out of memory for a message of %zu bytes", n);
    default:
        return kwk_fail(err, KWK_EPROTO, "message is not msgpack");
    }
    v = kwk_object_get(&u->data.via.map, "v");
    if (!v || v->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return kwk_fail(err, KWK_EPROTO, "message has no protocol version; this side speaks %d",
                        KWK_PROTO_VERSION);
    if (v->via.u64 != KWK_PROTO_VERSION)
        return kwk_fail(err, KWK_EPROTO, "message of protocol version %llu; this side speaks %d",
                        (unsigned long long)v->via.u64, KWK_PROTO_VERSION);
    return KWK_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void *at(void *obj, size_t offset)
{
    return (uint8_t *)obj + offset;
}

static const void *at_const(const void *obj, size_t offset)
{
    return (const uint8_t *)obj + offset;
}

static int wrong_type(const kwk_field *f, const char *expected, kwk_error *err)
{
    return kwk_fail(err, KWK_EINVAL, "%s: not %s", f->key, expected);
}

static int check_number(const kwk_field *f, double v, kwk_error *err)
{
    if (!(v >= f->min && v <= f->max)) // NaN too
        return kwk_fail(err, KWK_EINVAL, "%s: %.9g is outside %.9g to %.9g", f->key, v, f->min,
                        f->max);
    return KWK_OK;
}

static int check_count(const kwk_field *f, double n, const char *what, kwk_error *err)
{
    if (n < f->min || n > f->max)
        return kwk_fail(err, KWK_EINVAL, "%s: %.0f %s, %.0f to %.0f allowed", f->key, n, what,
                        f->min, f->max);
    return KWK_OK;
}

static int check_bias(const kwk_field *f, int i, float v, kwk_error *err)
{
    if (isnan(v) || v == INFINITY)
        return kwk_fail(err, KWK_EINVAL, "%s[%d]: bias %g", f->key, i, v);
    return KWK_OK;
}

static int is_number(const msgpack_object *o)
{
    return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER ||
           o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER || o->type == MSGPACK_OBJECT_FLOAT32 ||
           o->type == MSGPACK_OBJECT_FLOAT64;
}

static double number(const msgpack_object *o)
{
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        return (double)o->via.u64;
    if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return (double)o->via.i64;
    return o->via.f64;
}

static int is_int(const msgpack_object *o)
{
    return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER || o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
}

static int get_i32(const msgpack_object *o, int32_t *v)
{
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= INT32_MAX)
        *v = (int32_t)o->via.u64;
    else if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && o->via.i64 >= INT32_MIN)
        *v = (int32_t)o->via.i64;
    else
        return -1;
    return 0;
}

static int no_memory(const kwk_field *f, kwk_error *err)
{
    return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", f->key);
}

static int get_str(const kwk_field *f, void *obj, const msgpack_object *o, void **arena,
                   kwk_error *err)
{
    const msgpack_object_str s = o->via.str;
    char *copy;

    if (o->type != MSGPACK_OBJECT_STR)
        return wrong_type(f, "a string", err);
    if (check_count(f, s.size, "bytes", err) < 0)
        return KWK_EINVAL;
    if (s.size && memchr(s.ptr, 0, s.size))
        return kwk_fail(err, KWK_EINVAL, "%s: has a NUL byte inside", f->key);
    copy = arena_alloc(arena, (size_t)s.size + 1);
    if (!copy)
        return no_memory(f, err);
    if (s.size)
        memcpy(copy, s.ptr, s.size);
    copy[s.size] = 0;
    *(const char **)at(obj, f->offset) = copy;
    return KWK_OK;
}

static int get_ids(const kwk_field *f, void *obj, const msgpack_object *o, void **arena,
                   kwk_error *err)
{
    const int is_bin = o->type == MSGPACK_OBJECT_BIN;
    uint32_t n;
    int32_t *ids;

    if (!is_bin && o->type != MSGPACK_OBJECT_ARRAY)
        return wrong_type(f, "an array of integers", err);
    if (is_bin && o->via.bin.size % 4)
        return kwk_fail(err, KWK_EINVAL, "%s: %u bytes are no whole int32", f->key,
                        o->via.bin.size);
    n = is_bin ? o->via.bin.size / 4 : o->via.array.size;
    if (check_count(f, n, "items", err) < 0)
        return KWK_EINVAL;
    ids = arena_alloc(arena, (size_t)n * 4 + 4); // an empty array is not NULL
    if (!ids)
        return no_memory(f, err);
    if (is_bin && n)
        memcpy(ids, o->via.bin.ptr, (size_t)n * 4);
    for (uint32_t i = 0; !is_bin && i < n; i++)
        if (get_i32(&o->via.array.ptr[i], &ids[i]) < 0)
            return kwk_fail(err, KWK_EINVAL, "%s[%u]: not a 32-bit integer", f->key, i);
    *(const int32_t **)at(obj, f->offset) = ids;
    *(int32_t *)at(obj, f->aux) = (int32_t)n;
    return KWK_OK;
}

static int get_bias(const kwk_field *f, void *obj, const msgpack_object *o, void **arena,
                    kwk_error *err)
{
    kwk_bias *bias;
    uint32_t n;

    if (o->type != MSGPACK_OBJECT_ARRAY)
        return wrong_type(f, "an array of [id, bias]", err);
    n = o->via.array.size;
    if (check_count(f, n, "items", err) < 0)
        return KWK_EINVAL;
    bias = arena_alloc(arena, (size_t)n * sizeof *bias + 1);
    if (!bias)
        return no_memory(f, err);
    for (uint32_t i = 0; i < n; i++) {
        const msgpack_object *pair = &o->via.array.ptr[i];
        if (pair->type != MSGPACK_OBJECT_ARRAY || pair->via.array.size != 2 ||
            get_i32(&pair->via.array.ptr[0], &bias[i].id) < 0 ||
            !is_number(&pair->via.array.ptr[1]))
            return kwk_fail(err, KWK_EINVAL, "%s[%u]: not [id, bias]", f->key, i);
        bias[i].bias = (float)number(&pair->via.array.ptr[1]);
        if (check_bias(f, (int)i, bias[i].bias, err) < 0)
            return KWK_EINVAL;
    }
    *(const kwk_bias **)at(obj, f->offset) = bias;
    *(int32_t *)at(obj, f->aux) = (int32_t)n;
    return KWK_OK;
}

static int get_span(const kwk_field *f, void *obj, const msgpack_object *o, kwk_error *err)
{
    const msgpack_object *p = o->via.array.ptr;
    uint32_t *span = at(obj, f->offset);

    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 2 ||
        p[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
        p[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return wrong_type(f, "[offset, count]", err);
    if (p[0].via.u64 > UINT32_MAX || p[0].via.u64 % 4)
        return kwk_fail(err, KWK_EINVAL, "%s: offset %llu is no multiple of 4 below 2^32", f->key,
                        (unsigned long long)p[0].via.u64);
    if (check_count(f, (double)p[1].via.u64, "items", err) < 0)
        return KWK_EINVAL;
    span[0] = (uint32_t)p[0].via.u64;
    span[1] = (uint32_t)p[1].via.u64;
    *(int32_t *)at(obj, f->aux) = 1;
    return KWK_OK;
}

static int get_scalar(const kwk_field *f, void *obj, const msgpack_object *o, kwk_error *err)
{
    void *p = at(obj, f->offset);
    double v;

    if (f->type == KWK_FIELD_BOOL && o->type == MSGPACK_OBJECT_BOOLEAN) {
        *(int32_t *)p = o->via.boolean ? 1 : 0;
        return KWK_OK;
    }
    if (f->type == KWK_FIELD_F32 ? !is_number(o) : !is_int(o))
        return wrong_type(f, f->type == KWK_FIELD_F32 ? "a number"
                             : f->type == KWK_FIELD_BOOL ? "a boolean" : "an integer", err);
    if (f->type == KWK_FIELD_U64) {
        if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
            return kwk_fail(err, KWK_EINVAL, "%s: %lld is negative", f->key,
                            (long long)o->via.i64);
        *(uint64_t *)p = o->via.u64;
    } else {
        v = f->type == KWK_FIELD_F32 ? (float)number(o) : number(o);
        if (check_number(f, v, err) < 0)
            return KWK_EINVAL;
        if (f->type == KWK_FIELD_F32)
            *(float *)p = (float)v;
        else if (f->type == KWK_FIELD_U32)
            *(uint32_t *)p = (uint32_t)v;
        else
            *(int32_t *)p = (int32_t)v;
    }
    if (f->aux != KWK_NO_AUX)
        *(int32_t *)at(obj, f->aux) = 1;
    return KWK_OK;
}

static void set_default(const kwk_field *f, void *obj)
{
    void *p = at(obj, f->offset);

    switch (f->type) {
    case KWK_FIELD_BOOL:
    case KWK_FIELD_I32:
        *(int32_t *)p = (int32_t)f->def;
        break;
    case KWK_FIELD_U32:
        *(uint32_t *)p = (uint32_t)f->def;
        break;
    case KWK_FIELD_F32:
        *(float *)p = (float)f->def;
        break;
    default: // zero already
        break;
    }
}

int kwk_table_decode(const kwk_table *t, void *obj, const msgpack_object_map *map, void **arena,
                     uint32_t *seen, kwk_error *err)
{
    *seen = 0;
    for (int i = 0; i < t->n; i++) {
        const kwk_field *f = &t->fields[i];
        const msgpack_object *o = kwk_object_get(map, f->key);
        int rc;

        set_default(f, obj);
        if (!o) {
            if (f->required)
                return kwk_fail(err, KWK_EINVAL, "%s: missing", f->key);
            continue;
        }
        *seen |= 1u << i;
        switch (f->type) {
        case KWK_FIELD_STR:
            rc = get_str(f, obj, o, arena, err);
            break;
        case KWK_FIELD_IDS:
            rc = get_ids(f, obj, o, arena, err);
            break;
        case KWK_FIELD_BIAS:
            rc = get_bias(f, obj, o, arena, err);
            break;
        case KWK_FIELD_SPAN:
            rc = get_span(f, obj, o, err);
            break;
        case KWK_FIELD_NOT_YET:
            rc = kwk_fail(err, KWK_EUNSUPPORTED, "%s: not supported yet", f->key);
            break;
        default:
            rc = get_scalar(f, obj, o, err);
        }
        if (rc < 0)
            return rc;
    }
    return KWK_OK;
}

/* ---- encoder --------------------------------------------------------------------------------- */

static double stored(const kwk_field *f, const void *p)
{
    if (f->type == KWK_FIELD_F32)
        return *(const float *)p;
    if (f->type == KWK_FIELD_U32)
        return *(const uint32_t *)p;
    return *(const int32_t *)p;
}

static int put_scalar(const kwk_field *f, const void *obj, kwk_map *m, kwk_error *err)
{
    const void *p = at_const(obj, f->offset);
    const int has = f->aux == KWK_NO_AUX ? -1 : *(const int32_t *)at_const(obj, f->aux) != 0;
    double v;

    if (f->type == KWK_FIELD_U64) {
        const uint64_t u = *(const uint64_t *)p;
        if (f->required || has == 1 || (has < 0 && u))
            kwk_map_uint(m, f->key, u);
        return KWK_OK;
    }
    v = stored(f, p);
    if (has == 0 || (has < 0 && !f->required && v == f->def))
        return KWK_OK;
    if (check_number(f, v, err) < 0)
        return KWK_EINVAL;
    if (f->type == KWK_FIELD_F32)
        kwk_map_double(m, f->key, v);
    else if (f->type == KWK_FIELD_BOOL)
        kwk_map_bool(m, f->key, v != 0);
    else
        kwk_map_int(m, f->key, (int64_t)v);
    return KWK_OK;
}

static int put_bias(const kwk_field *f, const void *obj, kwk_map *m, kwk_error *err)
{
    const kwk_bias *bias = *(kwk_bias *const *)at_const(obj, f->offset);
    const int32_t n = *(const int32_t *)at_const(obj, f->aux);

    if (!bias)
        return KWK_OK;
    if (check_count(f, n, "items", err) < 0)
        return KWK_EINVAL;
    kwk_map_open(m, f->key, 0);
    for (int i = 0; i < n; i++) {
        if (check_bias(f, i, bias[i].bias, err) < 0)
            return KWK_EINVAL;
        kwk_map_open(m, NULL, 0);
        kwk_map_int(m, NULL, bias[i].id);
        kwk_map_double(m, NULL, bias[i].bias);
        kwk_map_close(m);
    }
    kwk_map_close(m);
    return KWK_OK;
}

static int put_field(const kwk_field *f, const void *obj, kwk_map *m, kwk_error *err)
{
    const void *p = at_const(obj, f->offset);
    const char *s;

    switch (f->type) {
    case KWK_FIELD_STR:
        s = *(const char *const *)p;
        if (!s)
            return f->required ? kwk_fail(err, KWK_EINVAL, "%s: missing", f->key) : KWK_OK;
        if (check_count(f, (double)strlen(s), "bytes", err) < 0)
            return KWK_EINVAL;
        kwk_map_str(m, f->key, s);
        return KWK_OK;
    case KWK_FIELD_IDS: {
        const int32_t *ids = *(int32_t *const *)p;
        const int32_t n = *(const int32_t *)at_const(obj, f->aux);
        if (!ids)
            return f->required ? kwk_fail(err, KWK_EINVAL, "%s: missing", f->key) : KWK_OK;
        if (check_count(f, n, "items", err) < 0)
            return KWK_EINVAL;
        kwk_map_bin(m, f->key, ids, (size_t)n * 4);
        return KWK_OK;
    }
    case KWK_FIELD_BIAS:
        return put_bias(f, obj, m, err);
    case KWK_FIELD_SPAN: {
        const uint32_t *span = p;
        if (!*(const int32_t *)at_const(obj, f->aux))
            return KWK_OK;
        if (check_count(f, span[1], "items", err) < 0)
            return KWK_EINVAL;
        kwk_map_open(m, f->key, 0);
        kwk_map_uint(m, NULL, span[0]);
        kwk_map_uint(m, NULL, span[1]);
        kwk_map_close(m);
        return KWK_OK;
    }
    case KWK_FIELD_NOT_YET:
        return KWK_OK;
    }
    return put_scalar(f, obj, m, err);
}

int kwk_table_encode(const kwk_table *t, const void *obj, kwk_map *m, kwk_error *err)
{
    for (int i = 0; i < t->n; i++)
        if (put_field(&t->fields[i], obj, m, err) < 0)
            return KWK_EINVAL;
    return KWK_OK;
}
