/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages as tables: one row for each key of a message says where its value lies in the C struct
 * and what it may be. Encoder, decoder, defaults and range checks all read the same row, so that a
 * key cannot be checked on one side and not on the other. Used inside proto/ only. Any thread.
 */
#ifndef KWK_PROTO_CODEC_H
#define KWK_PROTO_CODEC_H

#include <msgpack.h>

#include "proto/msg.h"

typedef enum kwk_field_type {
    KWK_FIELD_STR,  // const char *; min, max: bytes
    KWK_FIELD_BOOL, // int32_t 0 or 1; on the wire a boolean or 0, 1
    KWK_FIELD_I32,
    KWK_FIELD_U32,
    KWK_FIELD_U64,  // any value; left out by the encoder when 0 and without a flag
    KWK_FIELD_F32,  // finite
    KWK_FIELD_IDS,  // const int32_t *, count at `aux`; min, max: items
    KWK_FIELD_BIAS, // const kwk_bias *, count at `aux`; min, max: items
    KWK_FIELD_SPAN, // uint32_t[2]; min, max: of the second
    KWK_FIELD_NOT_YET, // a key of this version that is refused with KWK_EUNSUPPORTED
} kwk_field_type;

enum { KWK_NO_AUX = 0xffff };

typedef struct kwk_field {
    const char *key;
    uint8_t type, required;
    uint16_t offset; // of the value in the struct
    uint16_t aux;    // of its int32_t flag or count; KWK_NO_AUX: none
    double min, max;
    double def;      // when absent; the encoder leaves such values out
} kwk_field;

typedef struct kwk_table {
    const kwk_field *fields;
    int n; // <= 32
} kwk_table;

/** Fill *obj from a map of unique string keys; keys that are not in the table are skipped, nil counts
 *  as absent. *seen: bit i for row i. Copies go to *arena (kwk_arena_free), on errors too. */
int kwk_table_decode(const kwk_table *t, void *obj, const msgpack_object_map *map, void **arena,
                     uint32_t *seen, kwk_error *err);

/** Write what differs from the defaults. */
int kwk_table_encode(const kwk_table *t, const void *obj, kwk_map *m, kwk_error *err);

void kwk_arena_free(void *arena);

/** Walk and unpack a message, check "v"; *u must be initialised and is the caller's to destroy. */
int kwk_unpack(msgpack_unpacked *u, const void *data, size_t n, kwk_error *err);

/** Value of a string key; NULL: absent or nil. */
const msgpack_object *kwk_object_get(const msgpack_object_map *map, const char *key);

#endif
