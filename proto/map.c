/* SPDX-License-Identifier: Apache-2.0
 *
 * Writer of msgpack maps (msg.h, kwk_map). Counts are written in their longest form and filled in
 * when the level closes, so that callers need not count. Any thread.
 */
#include <string.h>

#include <msgpack.h>

#include "proto/buf.h"

static msgpack_packer packer(kwk_map *m)
{
    msgpack_packer pk;

    msgpack_packer_init(&pk, m->out, kwk_buf_write);
    return pk;
}

static void fail(kwk_map *m, int code)
{
    if (!m->failed)
        m->failed = code;
}

/* The key of the next value; 0 when nothing may be written. */
static int begin_value(kwk_map *m, const char *key)
{
    if (m->failed)
        return 0;
    if (m->depth == 0 || !key != !m->is_map[m->depth - 1]) {
        fail(m, KWK_EINVAL); // a key in an array, or none in a map
        return 0;
    }
    m->n[m->depth - 1]++;
    if (key) {
        msgpack_packer pk = packer(m);
        if (msgpack_pack_str(&pk, strlen(key)) || msgpack_pack_str_body(&pk, key, strlen(key)))
            fail(m, KWK_ENOMEM);
    }
    return !m->failed;
}

static void push(kwk_map *m, int is_map)
{
    const char header[5] = {(char)(is_map ? 0xdf : 0xdd)};

    if (m->depth == KWK_DEPTH_MAX) {
        fail(m, KWK_EINVAL);
        return;
    }
    m->n[m->depth] = 0;
    m->at[m->depth] = m->out->size;
    m->is_map[m->depth++] = (uint8_t)is_map;
    if (kwk_buf_write(m->out, header, sizeof header))
        fail(m, KWK_ENOMEM);
}

static void pop(kwk_map *m)
{
    if (m->failed)
        return;
    m->depth--;
    for (int i = 0; i < 4; i++)
        m->out->data[m->at[m->depth] + 1 + (size_t)i] = (uint8_t)(m->n[m->depth] >> (24 - 8 * i));
}

void kwk_map_begin(kwk_map *m, kwk_buf *out)
{
    *m = (kwk_map){.out = out, .start = out->size};
    push(m, 1);
}

#define KWK_PUT(m, key, call)             \
    do {                                  \
        if (begin_value(m, key)) {        \
            msgpack_packer pk = packer(m); \
            if (call)                     \
                fail(m, KWK_ENOMEM);      \
        }                                 \
    } while (0)

void kwk_map_int(kwk_map *m, const char *key, int64_t v)
{
    KWK_PUT(m, key, msgpack_pack_int64(&pk, v));
}

void kwk_map_uint(kwk_map *m, const char *key, uint64_t v)
{
    KWK_PUT(m, key, msgpack_pack_uint64(&pk, v));
}

void kwk_map_bool(kwk_map *m, const char *key, int v)
{
    KWK_PUT(m, key, v ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk));
}

void kwk_map_double(kwk_map *m, const char *key, double v)
{
    KWK_PUT(m, key, msgpack_pack_double(&pk, v));
}

void kwk_map_str(kwk_map *m, const char *key, const char *s)
{
    if (!s)
        KWK_PUT(m, key, msgpack_pack_nil(&pk));
    else
        KWK_PUT(m, key,
                msgpack_pack_str(&pk, strlen(s)) || msgpack_pack_str_body(&pk, s, strlen(s)));
}

void kwk_map_bin(kwk_map *m, const char *key, const void *p, size_t n)
{
    if (n > UINT32_MAX) {
        fail(m, KWK_EFULL);
        return;
    }
    KWK_PUT(m, key, msgpack_pack_bin(&pk, n) || msgpack_pack_bin_body(&pk, p, n));
}

void kwk_map_open(kwk_map *m, const char *key, int is_map)
{
    if (begin_value(m, key))
        push(m, is_map);
}

void kwk_map_close(kwk_map *m)
{
    if (m->depth < 2)
        fail(m, KWK_EINVAL); // the outermost map is closed by kwk_map_end
    pop(m);
}

int kwk_map_end(kwk_map *m, kwk_error *err)
{
    size_t n;

    if (m->depth != 1)
        fail(m, KWK_EINVAL);
    pop(m);
    n = m->out->size - m->start;
    if (n > KWK_MSG_MAX)
        fail(m, KWK_EFULL);
    if (!m->failed)
        return KWK_OK;
    m->out->size = m->start;
    switch (m->failed) {
    case KWK_EFULL:
        return kwk_fail(err, KWK_EFULL, "message of %zu bytes, %d allowed", n, KWK_MSG_MAX);
    case KWK_EINVAL:
        return kwk_fail(err, KWK_EINVAL, "message levels opened and closed unevenly");
    }
    return kwk_fail(err, m->failed, "out of memory for a message");
}

/* ---- replies --------------------------------------------------------------------------------- */

void kwk_reply_begin(kwk_map *m, kwk_buf *out)
{
    kwk_map_begin(m, out);
    kwk_map_int(m, "v", KWK_PROTO_VERSION);
    kwk_map_bool(m, "ok", 1);
}

int kwk_reply_error(kwk_buf *out, const kwk_error *e, int retry_ms)
{
    kwk_map m;

    kwk_map_begin(&m, out);
    kwk_map_int(&m, "v", KWK_PROTO_VERSION);
    kwk_map_str(&m, "error", kwk_error_name(e->code));
    kwk_map_int(&m, "code", e->code);
    kwk_map_str(&m, "message", e->msg);
    if (retry_ms > 0)
        kwk_map_int(&m, "retry_ms", retry_ms);
    return kwk_map_end(&m, NULL);
}
