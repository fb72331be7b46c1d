/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a GGUF file (versions 2 and 3): metadata and the tensor table, read into memory and
 * checked against the file's size. Knows the container only: no model, no tokenizer. Pointers into
 * it live until kwk_gguf_free(). One thread while reading, any number afterwards.
 */
#ifndef KWK_ENGINE_GGUF_H
#define KWK_ENGINE_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "engine/weight_type.h"
#include "proto/error.h"

enum {
    KWK_GGUF_DIMS = 4,
    KWK_GGUF_HEAD_MAX = 256 << 20, // bytes of metadata and table
    KWK_GGUF_MAX_KEYS = 1 << 16,
    KWK_GGUF_MAX_TENSORS = 1 << 17,
};

typedef enum kwk_gguf_kind {
    KWK_GGUF_U8,
    KWK_GGUF_I8,
    KWK_GGUF_U16,
    KWK_GGUF_I16,
    KWK_GGUF_U32,
    KWK_GGUF_I32,
    KWK_GGUF_F32,
    KWK_GGUF_BOOL,
    KWK_GGUF_STRING,
    KWK_GGUF_ARRAY,
    KWK_GGUF_U64,
    KWK_GGUF_I64,
    KWK_GGUF_F64,
    KWK_GGUF_KIND_END
} kwk_gguf_kind;

typedef struct kwk_gguf_key {
    const char *name; // (name_len) UTF-8 without NUL, not terminated
    size_t name_len;
    kwk_gguf_kind kind;
    kwk_gguf_kind element; // of an array
    uint64_t count;        // elements of an array, else 1
    const uint8_t *value;  // little-endian; arrays: the first element
} kwk_gguf_key;

typedef struct kwk_gguf_tensor {
    const char *name;
    size_t name_len;
    uint32_t type_id;
    const kwk_weight_type *type; // NULL: not one that we read
    int n_dims;
    int64_t dim[KWK_GGUF_DIMS]; // dim[0] is the row length; all > 0
    uint64_t offset;            // in the file; the tensor lies inside it
} kwk_gguf_tensor;

typedef struct kwk_gguf {
    const char *what; // path for messages; borrowed
    uint8_t *head;
    size_t head_len;
    kwk_gguf_key *keys; // sorted by name
    size_t n_keys;
    kwk_gguf_tensor *tensors; // in the order of the file
    size_t n_tensors;
} kwk_gguf;

/* Read and check; fd is borrowed. KWK_EFORMAT, KWK_EUNSUPPORTED (version), KWK_ENOMEM, KWK_EIO.
 * On error *g is freed. */
int kwk_gguf_read(kwk_gguf *g, int fd, uint64_t size, const char *what, kwk_error *err);
void kwk_gguf_free(kwk_gguf *g); // a zeroed one is fine

/* Key by name, or NULL. */
const kwk_gguf_key *kwk_gguf_find(const kwk_gguf *g, const char *name);

/* Single values: 1, or 0 and *v unchanged when the key is NULL or of another kind. Integers: any
 * integer kind whose value is in lo..hi; bool counts as 0 or 1. */
int kwk_gguf_int(const kwk_gguf_key *k, int64_t lo, int64_t hi, int64_t *v);
int kwk_gguf_float(const kwk_gguf_key *k, float *v);
int kwk_gguf_string(const kwk_gguf_key *k, const char **s, size_t *len);
int kwk_gguf_string_is(const kwk_gguf_key *k, const char *text);

/* Strings of an array in order: start with at = k->value; each call gives one and steps on. The
 * array was checked, so k->count calls are safe. */
const char *kwk_gguf_next_string(const uint8_t **at, size_t *len);

/* Element i of an array of I32 or U32, and of F32. */
int32_t kwk_gguf_i32(const kwk_gguf_key *k, uint64_t i);
float kwk_gguf_f32(const kwk_gguf_key *k, uint64_t i);

#endif
