/* SPDX-License-Identifier: Apache-2.0
 *
 * A message as JSON text: for query replies and for people. Output is valid JSON and valid UTF-8
 * whatever the message held, in any locale. Any thread; no state.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/buf.h"
#include "proto/tree.h"
#include "proto/utf8.h"

static int put(kwk_buf *b, const char *s)
{
    return kwk_buf_write(b, s, strlen(s));
}

int kwk_json_str(kwk_buf *b, const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    int failed = put(b, "\"");

    while (n > 0) {
        int len = kwk_utf8_next(p, n);
        char code[8];

        if (len <= 0) {
            failed |= put(b, "\xef\xbf\xbd"); // U+FFFD
            len = 1;
        } else if (*p == '"' || *p == '\\') {
            snprintf(code, sizeof code, "\\%c", *p);
            failed |= put(b, code);
        } else if (*p == '\n') {
            failed |= put(b, "\\n");
        } else if (*p < ' ' || *p == 127) {
            snprintf(code, sizeof code, "\\u%04x", *p);
            failed |= put(b, code);
        } else {
            failed |= kwk_buf_write(b, (const char *)p, (size_t)len);
        }
        p += len;
        n -= (size_t)len;
    }
    return failed || put(b, "\"");
}

int kwk_json_number(kwk_buf *b, double v, int is_f32)
{
    char s[40];
    char *w = s;

    if (!isfinite(v))
        return put(b, "null");
    for (int digits = is_f32 ? 6 : 15;; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (is_f32 ? digits == 9 || strtof(s, NULL) == (float)v
                   : digits == 17 || strtod(s, NULL) == v)
            break;
    }
    for (const char *r = s; *r; w++) { // the locale's decimal point, of whatever length
        const size_t n = strcspn(r, "0123456789+-e");
        *w = n ? '.' : *r;
        r += n ? n : 1;
    }
    *w = 0;
    return put(b, s);
}

static int put_base64(kwk_buf *b, const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t *w = kwk_buf_grow(b, (n + 2) / 3 * 4 + 2);

    if (!w)
        return -1;
    *w++ = '"';
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t v = (uint32_t)p[i] << 16 | (uint32_t)(i + 1 < n ? p[i + 1] : 0) << 8 |
                           (uint32_t)(i + 2 < n ? p[i + 2] : 0);
        *w++ = (uint8_t)digits[v >> 18];
        *w++ = (uint8_t)digits[v >> 12 & 63];
        *w++ = i + 1 < n ? (uint8_t)digits[v >> 6 & 63] : '=';
        *w++ = i + 2 < n ? (uint8_t)digits[v & 63] : '=';
    }
    *w = '"';
    return 0;
}

static int put_value(kwk_buf *b, const msgpack_object *o)
{
    char s[32];
    int failed = 0;

    switch (o->type) {
    case MSGPACK_OBJECT_BOOLEAN:
        return put(b, o->via.boolean ? "true" : "false");
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        snprintf(s, sizeof s, "%llu", (unsigned long long)o->via.u64);
        return put(b, s);
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        snprintf(s, sizeof s, "%lld", (long long)o->via.i64);
        return put(b, s);
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return kwk_json_number(b, o->via.f64, o->type == MSGPACK_OBJECT_FLOAT32);
    case MSGPACK_OBJECT_STR:
        return kwk_json_str(b, o->via.str.ptr, o->via.str.size);
    case MSGPACK_OBJECT_BIN:
        return put_base64(b, (const uint8_t *)o->via.bin.ptr, o->via.bin.size);
    case MSGPACK_OBJECT_ARRAY:
        failed = put(b, "[");
        for (uint32_t i = 0; !failed && i < o->via.array.size; i++)
            failed = (i && put(b, ",")) || put_value(b, &o->via.array.ptr[i]);
        return failed || put(b, "]");
    case MSGPACK_OBJECT_MAP:
        failed = put(b, "{");
        for (uint32_t i = 0; !failed && i < o->via.map.size; i++) {
            const msgpack_object_kv *kv = &o->via.map.ptr[i];
            failed = (i && put(b, ",")) ||
                     kwk_json_str(b, kv->key.via.str.ptr, kv->key.via.str.size) ||
                     put(b, ":") || put_value(b, &kv->val);
        }
        return failed || put(b, "}");
    default:
        return put(b, "null"); // nil, and extensions, which this protocol has none of
    }
}

char *kwk_tree_json(const kwk_tree *t)
{
    kwk_buf b = {0};

    if (put_value(&b, &t->unpacked.data) || kwk_buf_write(&b, "", 1)) {
        kwk_buf_fini(&b);
        return NULL;
    }
    return (char *)b.data;
}
