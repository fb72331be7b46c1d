/* SPDX-License-Identifier: Apache-2.0
 *
 * The first packet at the door. Any thread; no state.
 */
#include <string.h>

#include "proto/codec.h"
#include "proto/ring.h"

/* logits_bytes is bounded by the daemon's own budget. */
static const kwk_field fields[] = {
    {"client", KWK_FIELD_STR, 0, offsetof(kwk_hello_req, client), KWK_NO_AUX, 0, KWK_NAME_MAX, 0},
    {"out_slots", KWK_FIELD_U32, 0, offsetof(kwk_hello_req, out_slots), KWK_NO_AUX, 0,
     KWK_OUT_SLOTS_MAX, 0},
    {"in_bytes", KWK_FIELD_U32, 0, offsetof(kwk_hello_req, in_bytes), KWK_NO_AUX, 0,
     KWK_IN_DATA_MAX, 0},
    {"logits_bytes", KWK_FIELD_U64, 0, offsetof(kwk_hello_req, logits_bytes), KWK_NO_AUX, 0, 0, 0},
};
static const kwk_table table = {fields, sizeof fields / sizeof *fields};

int kwk_hello_req_encode(kwk_buf *out, const kwk_hello_req *h, kwk_error *err)
{
    const size_t start = out->size;
    kwk_map m;
    int rc;

    kwk_map_begin(&m, out);
    kwk_map_int(&m, "v", h->version ? h->version : KWK_PROTO_VERSION);
    kwk_map_str(&m, "op", "hello");
    rc = kwk_table_encode(&table, h, &m, err);
    if (rc < 0) {
        out->size = start;
        return rc;
    }
    return kwk_map_end(&m, err);
}

int kwk_hello_req_decode(kwk_hello_req *h, const void *data, size_t n, kwk_error *err)
{
    kwk_hello_req r = {.version = KWK_PROTO_VERSION};
    const msgpack_object *op;
    msgpack_unpacked u;
    uint32_t seen;
    int rc;

    if (n > KWK_DOOR_MAX)
        return kwk_fail(err, KWK_EPROTO, "door message of %zu bytes", n);
    msgpack_unpacked_init(&u);
    rc = kwk_unpack(&u, data, n, err);
    if (rc < 0)
        goto out;
    op = kwk_object_get(&u.data.via.map, "op");
    if (!op || op->type != MSGPACK_OBJECT_STR || op->via.str.size != 5 ||
        memcmp(op->via.str.ptr, "hello", 5)) {
        rc = kwk_fail(err, KWK_EPROTO, "first door message is not a hello");
        goto out;
    }
    rc = kwk_table_decode(&table, &r, &u.data.via.map, &r.arena, &seen, err);
    if (rc < 0)
        goto out;
    *h = r;
    r.arena = NULL;
out:
    kwk_arena_free(r.arena);
    msgpack_unpacked_destroy(&u);
    return rc;
}

void kwk_hello_req_fini(kwk_hello_req *h)
{
    if (h) {
        kwk_arena_free(h->arena);
        *h = (kwk_hello_req){0};
    }
}
