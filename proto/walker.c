/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded scan of untrusted msgpack (walker.h). One pass, no allocation, no recursion.
 */
#include "proto/walker.h"

#include <string.h>

typedef struct level {
    uint32_t left; // objects still to come; a map has two for each key
    uint32_t n_keys;
    uint8_t is_map;
    struct {
        uint32_t at, n;
    } keys[KWK_KEYS_MAX];
} level;

/* What a type byte announces. */
typedef struct head {
    enum { SCALAR, BYTES, STR, ARRAY, MAP, BAD } kind;
    uint32_t width; // bytes of the number after the type byte: a length, a count or a value
    uint32_t extra; // further bytes (the type of an ext)
    uint32_t count; // when width is 0
} head;

static head head_of(uint8_t c)
{
    if (c < 0x80 || c >= 0xe0)
        return (head){SCALAR, 0, 0, 0};
    if (c < 0x90)
        return (head){MAP, 0, 0, c & 15};
    if (c < 0xa0)
        return (head){ARRAY, 0, 0, c & 15};
    if (c < 0xc0)
        return (head){STR, 0, 0, c & 31};
    switch (c) {
    case 0xc0: case 0xc2: case 0xc3: // nil, false, true
        return (head){SCALAR, 0, 0, 0};
    case 0xc4: case 0xc5: case 0xc6: // bin 8, 16, 32
        return (head){BYTES, 1u << (c - 0xc4), 0, 0};
    case 0xc7: case 0xc8: case 0xc9: // ext 8, 16, 32
        return (head){BYTES, 1u << (c - 0xc7), 1, 0};
    case 0xca: // float 32
        return (head){SCALAR, 4, 0, 0};
    case 0xcb: // float 64
        return (head){SCALAR, 8, 0, 0};
    case 0xcc: case 0xcd: case 0xce: case 0xcf: // uint 8 to 64
        return (head){SCALAR, 1u << (c - 0xcc), 0, 0};
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: // int 8 to 64
        return (head){SCALAR, 1u << (c - 0xd0), 0, 0};
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: // fixext 1 to 16
        return (head){BYTES, 0, 1, 1u << (c - 0xd4)};
    case 0xd9: case 0xda: case 0xdb: // str 8, 16, 32
        return (head){STR, 1u << (c - 0xd9), 0, 0};
    case 0xdc: case 0xdd: // array 16, 32
        return (head){ARRAY, 2u << (c - 0xdc), 0, 0};
    case 0xde: case 0xdf: // map 16, 32
        return (head){MAP, 2u << (c - 0xde), 0, 0};
    }
    return (head){BAD, 0, 0, 0}; // 0xc1
}

static int add_key(level *l, const uint8_t *p, uint32_t at, uint32_t n, kwk_error *err)
{
    if (n > KWK_NAME_MAX)
        return kwk_fail(err, KWK_EPROTO, "message key of %u bytes", n);
    for (uint32_t i = 0; i < l->n_keys; i++)
        if (l->keys[i].n == n && memcmp(p + l->keys[i].at, p + at, n) == 0)
            return kwk_fail(err, KWK_EPROTO, "message key '%.*s' twice", (int)n, p + at);
    l->keys[l->n_keys].at = at;
    l->keys[l->n_keys++].n = n;
    return KWK_OK;
}

int kwk_walk(const void *data, size_t n, kwk_error *err)
{
    const uint8_t *p = data;
    level levels[KWK_DEPTH_MAX];
    int depth = 0;
    uint32_t at = 0, n_objects = 0;

    if (n == 0 || n > KWK_MSG_MAX)
        return kwk_fail(err, KWK_EPROTO, "message of %zu bytes", n);
    do {
        level *l = depth ? &levels[depth - 1] : NULL;
        int is_key = 0;
        uint32_t count, body;
        head h;

        if (at == n)
            return kwk_fail(err, KWK_EPROTO, "message ends inside");
        if (++n_objects > KWK_OBJECTS_MAX)
            return kwk_fail(err, KWK_EPROTO, "message of more than %d objects", KWK_OBJECTS_MAX);
        if (l) {
            is_key = l->is_map && l->left % 2 == 0;
            l->left--;
        }

        h = head_of(p[at++]);
        if (h.kind == BAD)
            return kwk_fail(err, KWK_EPROTO, "message has a byte of no type at %u", at - 1);
        if (h.width + h.extra > n - at)
            return kwk_fail(err, KWK_EPROTO, "message ends inside");
        count = h.count;
        if (h.kind != SCALAR && h.width) {
            count = 0;
            for (uint32_t i = 0; i < h.width; i++)
                count = count << 8 | p[at + i];
        }
        at += h.width + h.extra;
        body = (uint32_t)n - at;

        if (!l && h.kind != MAP)
            return kwk_fail(err, KWK_EPROTO, "message is not a map");
        if (is_key && h.kind != STR)
            return kwk_fail(err, KWK_EPROTO, "message key is not a string at %u", at);
        if (h.kind == STR || h.kind == BYTES) {
            if (count > body)
                return kwk_fail(err, KWK_EPROTO, "message announces %u bytes, has %u", count, body);
            if (is_key && add_key(l, p, at, count, err) < 0)
                return KWK_EPROTO;
            at += count;
        } else if (h.kind == ARRAY || h.kind == MAP) {
            const int is_map = h.kind == MAP;
            if (count > body / (is_map ? 2 : 1))
                return kwk_fail(err, KWK_EPROTO, "message announces %u items in %u bytes", count,
                                body);
            if (is_map && count > KWK_KEYS_MAX)
                return kwk_fail(err, KWK_EPROTO, "message has a map of %u keys", count);
            if (depth == KWK_DEPTH_MAX)
                return kwk_fail(err, KWK_EPROTO, "message nested deeper than %d", KWK_DEPTH_MAX);
            l = &levels[depth++];
            l->left = count << is_map;
            l->n_keys = 0;
            l->is_map = (uint8_t)is_map;
        }
        while (depth && levels[depth - 1].left == 0)
            depth--;
    } while (depth);
    if (at != n)
        return kwk_fail(err, KWK_EPROTO, "message has %zu bytes after its end", n - at);
    return KWK_OK;
}
