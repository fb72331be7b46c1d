/* SPDX-License-Identifier: Apache-2.0
 *
 * The GGUF header. It is read in pieces as parsing needs them, because nothing in the file says how
 * long it is; every count and length is compared with the bytes that are left before it is
 * believed, so memory grows with the file and never with a claim.
 */
#include "engine/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "engine/file.h"
#include "engine/json_scan.h"

enum {
    PIECE = 1 << 20,
    ARRAY_DEPTH = 3,
    NAME_MAX_LEN = 1 << 12,
    ALIGNMENT_MAX = 1 << 20,
};

/* While parsing, pointers into `head` are offsets from it: it moves when it grows. */
typedef struct reader {
    kwk_gguf *g;
    int fd;
    uint64_t size;
    size_t room, pos;
} reader;

static int bad(const reader *r, const char *reason, kwk_error *err)
{
    return kwk_fail(err, KWK_EFORMAT, "%s: byte %zu: %s", r->g->what, r->pos, reason);
}

/* Have n bytes at pos in memory. */
static int need(reader *r, uint64_t n, kwk_error *err)
{
    kwk_gguf *g = r->g;

    if (n > r->size - r->pos)
        return bad(r, "the file ends too early", err);
    if (r->pos + n <= g->head_len)
        return KWK_OK;
    if (r->pos + n > KWK_GGUF_HEAD_MAX)
        return bad(r, "metadata too large", err);
    uint64_t want = r->pos + n + PIECE;
    if (want > r->size)
        want = r->size;
    if (want > r->room) {
        const size_t room = want > 2 * r->room ? (size_t)want : 2 * r->room;
        uint8_t *more = realloc(g->head, room);
        if (!more)
            return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", g->what);
        g->head = more;
        r->room = room;
    }
    const int rc = kwk_file_read(r->fd, g->head + g->head_len, (size_t)want - g->head_len,
                                 g->head_len, g->what, err);
    if (!rc)
        g->head_len = (size_t)want;
    return rc;
}

static uint64_t load(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    memcpy(&v, p, (size_t)bytes); // little-endian (hash.c asserts it)
    return v;
}

static int read_uint(reader *r, int bytes, uint64_t *v, kwk_error *err)
{
    const int rc = need(r, (uint64_t)bytes, err);

    *v = 0;
    if (!rc) {
        *v = load(r->g->head + r->pos, bytes);
        r->pos += (size_t)bytes;
    }
    return rc;
}

/* A string; *at: offset of its first byte. */
static int read_string(reader *r, size_t *at, size_t *len, kwk_error *err)
{
    uint64_t n;
    int rc = read_uint(r, 8, &n, err);

    if (!rc)
        rc = need(r, n, err);
    if (rc < 0)
        return rc;
    *at = r->pos;
    *len = (size_t)n;
    r->pos += (size_t)n;
    return KWK_OK;
}

/* Names are shown in messages and compared with ours: plain UTF-8. */
static int read_name(reader *r, const char **name, size_t *len, kwk_error *err)
{
    size_t at, step;
    int rc = read_string(r, &at, len, err);

    if (rc < 0)
        return rc;
    if (*len == 0 || *len > NAME_MAX_LEN)
        return bad(r, "length of a name", err);
    for (size_t i = 0; i < *len; i += step) {
        step = kwk_utf8(r->g->head + at + i, *len - i);
        if (!step || r->g->head[at + i] < ' ')
            return bad(r, "a name is not UTF-8", err);
    }
    *name = (const char *)at; // an offset until relocate()
    return KWK_OK;
}

/* Bytes of a value of fixed size; 0: strings and arrays. */
static int kind_bytes(uint64_t kind)
{
    static const uint8_t bytes[KWK_GGUF_KIND_END] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    return bytes[kind];
}

static int skip_values(reader *r, uint64_t kind, uint64_t count, int depth, kwk_error *err)
{
    const int bytes = kind_bytes(kind);
    size_t at, len;
    int rc = KWK_OK;

    if (bytes) {
        if (count > (r->size - r->pos) / (uint64_t)bytes)
            return bad(r, "an array is longer than the file", err);
        rc = need(r, count * (uint64_t)bytes, err);
        r->pos += rc ? 0 : (size_t)(count * (uint64_t)bytes);
        return rc;
    }
    if (count > (r->size - r->pos) / 8)
        return bad(r, "an array is longer than the file", err);
    for (uint64_t i = 0; i < count && !rc; i++) {
        uint64_t element, n;
        if (kind == KWK_GGUF_STRING) {
            rc = read_string(r, &at, &len, err);
            continue;
        }
        if (depth == ARRAY_DEPTH)
            return bad(r, "arrays are nested too deeply", err);
        if ((rc = read_uint(r, 4, &element, err)) < 0 || (rc = read_uint(r, 8, &n, err)) < 0)
            return rc;
        if (element >= KWK_GGUF_KIND_END)
            return bad(r, "unknown type of a value", err);
        rc = skip_values(r, element, n, depth + 1, err);
    }
    return rc;
}

static int read_key(reader *r, kwk_gguf_key *k, kwk_error *err)
{
    uint64_t kind, element = 0;
    int rc;

    if ((rc = read_name(r, &k->name, &k->name_len, err)) < 0 ||
        (rc = read_uint(r, 4, &kind, err)) < 0)
        return rc;
    k->count = 1;
    if (kind == KWK_GGUF_ARRAY) {
        if ((rc = read_uint(r, 4, &element, err)) < 0 || (rc = read_uint(r, 8, &k->count, err)) < 0)
            return rc;
    }
    if (kind >= KWK_GGUF_KIND_END || element >= KWK_GGUF_KIND_END)
        return bad(r, "unknown type of a value", err);
    k->kind = (kwk_gguf_kind)kind;
    k->element = (kwk_gguf_kind)element;
    k->value = (const uint8_t *)r->pos;
    return skip_values(r, kind == KWK_GGUF_ARRAY ? element : kind, k->count, 0, err);
}

static int read_tensor(reader *r, kwk_gguf_tensor *t, kwk_error *err)
{
    uint64_t n_dims, type;
    int64_t product = 4; // so that four bytes per weight fit as well
    int rc;

    if ((rc = read_name(r, &t->name, &t->name_len, err)) < 0 ||
        (rc = read_uint(r, 4, &n_dims, err)) < 0)
        return rc;
    if (n_dims < 1 || n_dims > KWK_GGUF_DIMS)
        return bad(r, "number of dimensions of a tensor", err);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < t->n_dims; i++) {
        uint64_t d;
        if ((rc = read_uint(r, 8, &d, err)) < 0)
            return rc;
        if (d < 1 || d > INT64_MAX || __builtin_mul_overflow(product, (int64_t)d, &product) ||
            product > INT64_MAX / 64)
            return bad(r, "size of a tensor", err);
        t->dim[i] = (int64_t)d;
    }
    if ((rc = read_uint(r, 4, &type, err)) < 0 || (rc = read_uint(r, 8, &t->offset, err)) < 0)
        return rc;
    t->type_id = (uint32_t)type;
    t->type = kwk_weight_type_by_gguf(t->type_id);
    if (t->type && t->dim[0] % t->type->block)
        return bad(r, "row length of a tensor is no multiple of its type's block", err);
    return KWK_OK;
}

/* ---- after the last byte of the header is in memory ------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    const kwk_gguf_key *x = a, *y = b;
    const size_t n = x->name_len < y->name_len ? x->name_len : y->name_len;
    const int order = memcmp(x->name, y->name, n);

    return order ? order : x->name_len < y->name_len ? -1 : x->name_len > y->name_len;
}

static int relocate(kwk_gguf *g, kwk_error *err)
{
    const char *head = (const char *)g->head;

    for (size_t i = 0; i < g->n_keys; i++) {
        g->keys[i].name = head + (size_t)g->keys[i].name;
        g->keys[i].value = g->head + (size_t)g->keys[i].value;
    }
    for (size_t i = 0; i < g->n_tensors; i++)
        g->tensors[i].name = head + (size_t)g->tensors[i].name;
    if (g->n_keys)
        qsort(g->keys, g->n_keys, sizeof *g->keys, by_name);
    for (size_t i = 1; i < g->n_keys; i++)
        if (by_name(&g->keys[i - 1], &g->keys[i]) == 0)
            return kwk_fail(err, KWK_EFORMAT, "%s: key '%.*s' appears twice", g->what,
                            (int)g->keys[i].name_len, g->keys[i].name);
    return KWK_OK;
}

static uint64_t tensor_bytes(const kwk_gguf_tensor *t)
{
    uint64_t n = (uint64_t)(t->dim[0] / t->type->block) * (uint64_t)t->type->bytes;

    for (int i = 1; i < t->n_dims; i++)
        n *= (uint64_t)t->dim[i];
    return n;
}

typedef struct range {
    uint64_t begin, end;
    size_t index;
} range;

static int by_begin(const void *a, const void *b)
{
    const range *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Offsets from the file's start, inside the file, and no two tensors in one place. */
static int place_tensors(reader *r, kwk_error *err)
{
    kwk_gguf *g = r->g;
    int64_t alignment = 32;
    const kwk_gguf_key *k = kwk_gguf_find(g, "general.alignment");
    int rc = KWK_OK;

    if (k && (!kwk_gguf_int(k, 8, ALIGNMENT_MAX, &alignment) || (alignment & (alignment - 1))))
        return kwk_fail(err, KWK_EFORMAT, "%s: general.alignment", g->what);
    const uint64_t mask = (uint64_t)alignment - 1, start = ((uint64_t)r->pos + mask) & ~mask;
    if (g->n_tensors && start > r->size)
        return bad(r, "the file ends before its data", err);
    range *ranges = malloc((g->n_tensors + 1) * sizeof *ranges);
    if (!ranges)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", g->what);
    for (size_t i = 0; i < g->n_tensors && !rc; i++) {
        kwk_gguf_tensor *t = &g->tensors[i];
        const uint64_t bytes = t->type ? tensor_bytes(t) : 0;
        if (t->offset > r->size - start || bytes > r->size - start - t->offset || t->offset & mask)
            rc = kwk_fail(err, KWK_EFORMAT, "%s: tensor '%.*s' lies outside the file", g->what,
                          (int)t->name_len, t->name);
        t->offset += start;
        ranges[i] = (range){t->offset, t->offset + bytes, i};
    }
    if (!rc && g->n_tensors)
        qsort(ranges, g->n_tensors, sizeof *ranges, by_begin);
    for (size_t i = 1; i < g->n_tensors && !rc; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            rc = kwk_fail(
                err, KWK_EFORMAT, "%s: tensors '%.*s' and '%.*s' overlap", g->what,
                (int)g->tensors[ranges[i - 1].index].name_len, g->tensors[ranges[i - 1].index].name,
                (int)g->tensors[ranges[i].index].name_len, g->tensors[ranges[i].index].name);
    free(ranges);
    return rc;
}

/* Room for one more of n entries; counts come from the file and are not believed. */
static int grow(void **list, size_t n, size_t item, const char *what, kwk_error *err)
{
    if (n & (n - 1) || (n > 0 && n < 64)) // sizes 64, 128, 256, …
        return KWK_OK;
    const size_t room = n ? 2 * n : 64;
    void *more = realloc(*list, room * item);
    if (!more)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", what);
    *list = more;
    return KWK_OK;
}

static int read_header(reader *r, kwk_error *err)
{
    kwk_gguf *g = r->g;
    uint64_t magic, version, n_tensors, n_keys;
    int rc;

    if ((rc = read_uint(r, 4, &magic, err)) < 0 || (rc = read_uint(r, 4, &version, err)) < 0)
        return rc;
    if (magic != 0x46554747)
        return kwk_fail(err, KWK_EFORMAT, "%s: not a GGUF file", g->what);
    if (version != 2 && version != 3)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: GGUF version %llu%s", g->what,
                        (unsigned long long)version, version & 0xffff ? "" : " (big-endian)");
    if ((rc = read_uint(r, 8, &n_tensors, err)) < 0 || (rc = read_uint(r, 8, &n_keys, err)) < 0)
        return rc;
    if (n_tensors > KWK_GGUF_MAX_TENSORS || n_keys > KWK_GGUF_MAX_KEYS)
        return kwk_fail(err, KWK_EFORMAT, "%s: %llu tensors and %llu keys", g->what,
                        (unsigned long long)n_tensors, (unsigned long long)n_keys);
    for (; g->n_keys < n_keys && !rc; g->n_keys += !rc)
        if (!(rc = grow((void **)&g->keys, g->n_keys, sizeof *g->keys, g->what, err)))
            rc = read_key(r, &g->keys[g->n_keys], err);
    for (; g->n_tensors < n_tensors && !rc; g->n_tensors += !rc)
        if (!(rc = grow((void **)&g->tensors, g->n_tensors, sizeof *g->tensors, g->what, err)))
            rc = read_tensor(r, &g->tensors[g->n_tensors], err);
    if (!rc)
        rc = relocate(g, err);
    if (!rc)
        rc = place_tensors(r, err);
    return rc;
}

int kwk_gguf_read(kwk_gguf *g, int fd, uint64_t size, const char *what, kwk_error *err)
{
    reader r = {.g = g, .fd = fd, .size = size};

    memset(g, 0, sizeof *g);
    g->what = what;
    const int rc = read_header(&r, err);
    if (rc < 0)
        kwk_gguf_free(g);
    return rc;
}

void kwk_gguf_free(kwk_gguf *g)
{
    free(g->head);
    free(g->keys);
    free(g->tensors);
    memset(g, 0, sizeof *g);
}

/* ---- values ---------------------------------------------------------------------------------- */

const kwk_gguf_key *kwk_gguf_find(const kwk_gguf *g, const char *name)
{
    const kwk_gguf_key wanted = {.name = name, .name_len = strlen(name)};

    return g->n_keys ? bsearch(&wanted, g->keys, g->n_keys, sizeof *g->keys, by_name) : NULL;
}

int kwk_gguf_int(const kwk_gguf_key *k, int64_t lo, int64_t hi, int64_t *v)
{
    int64_t n;

    if (!k)
        return 0;
    switch (k->kind) {
    case KWK_GGUF_U8:
    case KWK_GGUF_U16:
    case KWK_GGUF_U32:
    case KWK_GGUF_U64:
    case KWK_GGUF_BOOL: {
        const uint64_t u = load(k->value, kind_bytes(k->kind));
        if (u > INT64_MAX)
            return 0;
        n = (int64_t)u;
        break;
    }
    case KWK_GGUF_I8:
        n = (int8_t)load(k->value, 1);
        break;
    case KWK_GGUF_I16:
        n = (int16_t)load(k->value, 2);
        break;
    case KWK_GGUF_I32:
        n = (int32_t)load(k->value, 4);
        break;
    case KWK_GGUF_I64:
        n = (int64_t)load(k->value, 8);
        break;
    default:
        return 0;
    }
    if (n < lo || n > hi)
        return 0;
    *v = n;
    return 1;
}

int kwk_gguf_float(const kwk_gguf_key *k, float *v)
{
    double d;

    if (!k)
        return 0;
    if (k->kind == KWK_GGUF_F32) {
        memcpy(v, k->value, 4);
        return 1;
    }
    if (k->kind == KWK_GGUF_F64) {
        memcpy(&d, k->value, 8);
        *v = (float)d;
        return 1;
    }
    return 0;
}

const char *kwk_gguf_next_string(const uint8_t **at, size_t *len)
{
    const char *s = (const char *)*at + 8;

    *len = (size_t)load(*at, 8);
    *at += 8 + *len;
    return s;
}

int kwk_gguf_string(const kwk_gguf_key *k, const char **s, size_t *len)
{
    if (!k || k->kind != KWK_GGUF_STRING)
        return 0;
    const uint8_t *at = k->value;
    *s = kwk_gguf_next_string(&at, len);
    return 1;
}

int kwk_gguf_string_is(const kwk_gguf_key *k, const char *text)
{
    const char *s;
    size_t len;

    return kwk_gguf_string(k, &s, &len) && len == strlen(text) && !memcmp(s, text, len);
}

int32_t kwk_gguf_i32(const kwk_gguf_key *k, uint64_t i)
{
    return (int32_t)load(k->value + 4 * i, 4);
}

float kwk_gguf_f32(const kwk_gguf_key *k, uint64_t i)
{
    float f;

    memcpy(&f, k->value + 4 * i, 4);
    return f;
}
