/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader of replies and door messages (msg.h, kwk_tree). Bytes are copied first, so that the tree
 * outlives the message and can end its strings with NUL. Any thread; a tree by one at a time, or by
 * many that only read.
 */
#include "proto/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"

/* End every string with NUL. The byte behind a string is the type byte of the next object, which
 * msgpack-c has read already, or the spare byte after the message. */
static int terminate(msgpack_object *o, kwk_error *err)
{
    int rc = KWK_OK;

    switch (o->type) {
    case MSGPACK_OBJECT_STR:
        if (o->via.str.size == 0) { // msgpack-c leaves the pointer of an empty string undefined
            o->via.str.ptr = "";
            break;
        }
        if (memchr(o->via.str.ptr, 0, o->via.str.size))
            return kwk_fail(err, KWK_EPROTO, "message has a string with a NUL byte inside");
        ((char *)o->via.str.ptr)[o->via.str.size] = 0;
        break;
    case MSGPACK_OBJECT_ARRAY:
        for (uint32_t i = 0; rc == KWK_OK && i < o->via.array.size; i++)
            rc = terminate(&o->via.array.ptr[i], err);
        break;
    case MSGPACK_OBJECT_MAP:
        for (uint32_t i = 0; rc == KWK_OK && i < o->via.map.size; i++) {
            rc = terminate(&o->via.map.ptr[i].key, err);
            if (rc == KWK_OK)
                rc = terminate(&o->via.map.ptr[i].val, err);
        }
        break;
    default:
        break;
    }
    return rc;
}

int kwk_tree_parse(kwk_tree **out, const void *data, size_t n, kwk_error *err)
{
    kwk_tree *t;
    int rc;

    if (n > KWK_MSG_MAX)
        return kwk_fail(err, KWK_EPROTO, "message of %zu bytes", n);
    t = malloc(sizeof *t + n + 1);
    if (!t)
        return kwk_fail(err, KWK_ENOMEM, "out of memory for a message of %zu bytes", n);
    if (n)
        memcpy(t->message, data, n);
    msgpack_unpacked_init(&t->unpacked);
    rc = kwk_unpack(&t->unpacked, t->message, n, err);
    if (rc == KWK_OK)
        rc = terminate(&t->unpacked.data, err);
    if (rc < 0) {
        kwk_tree_free(t);
        return rc;
    }
    *out = t;
    return KWK_OK;
}

void kwk_tree_free(kwk_tree *t)
{
    if (!t)
        return;
    msgpack_unpacked_destroy(&t->unpacked);
    free(t);
}

/* The value at a path: keys and indices joined by dots. NULL: absent or nil. */
static const msgpack_object *find(const kwk_tree *t, const char *path)
{
    const msgpack_object *o = &t->unpacked.data;

    for (;;) {
        const size_t n = strcspn(path, ".");
        char part[KWK_NAME_MAX + 1];

        if (n > KWK_NAME_MAX)
            return NULL;
        memcpy(part, path, n);
        part[n] = 0;
        if (o->type == MSGPACK_OBJECT_MAP) {
            o = kwk_object_get(&o->via.map, part);
        } else if (o->type == MSGPACK_OBJECT_ARRAY) {
            char *end;
            const unsigned long i = strtoul(part, &end, 10);
            o = *end || end == part || i >= o->via.array.size ? NULL : &o->via.array.ptr[i];
        } else {
            o = NULL;
        }
        if (!o || o->type == MSGPACK_OBJECT_NIL)
            return NULL;
        if (!path[n])
            return o;
        path += n + 1;
    }
}

int64_t kwk_tree_int(const kwk_tree *t, const char *key, int64_t otherwise)
{
    const msgpack_object *o = find(t, key);

    if (o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        return (int64_t)o->via.u64;
    if (o && o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return o->via.i64;
    if (o && o->type == MSGPACK_OBJECT_BOOLEAN)
        return o->via.boolean ? 1 : 0;
    return otherwise;
}

double kwk_tree_double(const kwk_tree *t, const char *key, double otherwise)
{
    const msgpack_object *o = find(t, key);

    if (o && (o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64))
        return o->via.f64;
    if (o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        return (double)o->via.u64;
    if (o && o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return (double)o->via.i64;
    return otherwise;
}

const char *kwk_tree_str(const kwk_tree *t, const char *key)
{
    const msgpack_object *o = find(t, key);

    return o && o->type == MSGPACK_OBJECT_STR ? o->via.str.ptr : NULL;
}

const void *kwk_tree_bin(const kwk_tree *t, const char *key, size_t *n)
{
    const msgpack_object *o = find(t, key);

    if (!o || o->type != MSGPACK_OBJECT_BIN)
        return NULL;
    *n = o->via.bin.size;
    return o->via.bin.ptr;
}

int kwk_tree_count(const kwk_tree *t, const char *key)
{
    const msgpack_object *o = find(t, key);

    if (o && o->type == MSGPACK_OBJECT_ARRAY)
        return (int)o->via.array.size;
    if (o && o->type == MSGPACK_OBJECT_MAP)
        return (int)o->via.map.size;
    return -1;
}

int kwk_tree_ints(const kwk_tree *t, const char *key, int32_t *out, int max)
{
    const msgpack_object *o = find(t, key);

    if (o && o->type == MSGPACK_OBJECT_BIN && o->via.bin.size % 4 == 0) {
        const int n = (int)(o->via.bin.size / 4);
        if (max > 0 && n > 0)
            memcpy(out, o->via.bin.ptr, (size_t)(n < max ? n : max) * 4);
        return n;
    }
    if (!o || o->type != MSGPACK_OBJECT_ARRAY)
        return -1;
    for (uint32_t i = 0; i < o->via.array.size; i++) {
        const msgpack_object *v = &o->via.array.ptr[i];
        int64_t n;
        if (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER && v->via.u64 <= INT32_MAX)
            n = (int64_t)v->via.u64;
        else if (v->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && v->via.i64 >= INT32_MIN)
            n = v->via.i64;
        else
            return -1;
        if ((int)i < max)
            out[i] = (int32_t)n;
    }
    return (int)o->via.array.size;
}

void kwk_tree_drop(kwk_tree *t, const char *key)
{
    msgpack_object_map *map = &t->unpacked.data.via.map;
    const msgpack_object *o = find(t, key);

    for (uint32_t i = 0; o && i < map->size; i++)
        if (&map->ptr[i].val == o) {
            memmove(&map->ptr[i], &map->ptr[i + 1], (map->size - i - 1) * sizeof *map->ptr);
            map->size--;
            return;
        }
}

int kwk_tree_status(const kwk_tree *t, int *retry_ms, kwk_error *err)
{
    const char *message = kwk_tree_str(t, "message");
    const int64_t retry = kwk_tree_int(t, "retry_ms", 0);
    int64_t code;

    if (retry_ms)
        *retry_ms = retry < 0 ? 0 : retry > INT32_MAX ? INT32_MAX : (int)retry;
    if (kwk_tree_int(t, "ok", 0) == 1)
        return KWK_OK;
    code = kwk_tree_int(t, "code", 0);
    if (code >= 0 || code < INT32_MIN)
        return kwk_fail(err, KWK_EPROTO, "reply is neither good nor an error");
    return kwk_fail(err, (int)code, "%s", message ? message : kwk_error_text((int)code));
}
