/* SPDX-License-Identifier: Apache-2.0
 *
 * How numbers are stored in the files we read: safetensors' float types and GGUF's block types, one
 * row each, with the function that turns them into float32. Leaf code: no allocation, no errors;
 * the caller has checked sizes. Any thread.
 */
#ifndef KWK_ENGINE_WEIGHT_TYPE_H
#define KWK_ENGINE_WEIGHT_TYPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum kwk_weight_kind {
    KWK_KIND_F32,
    KWK_KIND_F16,
    KWK_KIND_BF16,
    KWK_KIND_BLOCKS
} kwk_weight_kind;

typedef struct kwk_weight_type {
    const char *name; // GGUF's spelling; "F32", "F16", "BF16" are safetensors' too
    int gguf_id;
    kwk_weight_kind kind;
    int block, bytes; // `block` consecutive weights of a row take `bytes` bytes
    /* y (n) from x; n is a multiple of block; x needs no alignment. The operations and their order
     * are ggml's (without fused multiply-add), so the bits are those of its portable code. */
    void (*decode)(float *y, const uint8_t *x, size_t n);
} kwk_weight_type;

extern const kwk_weight_type kwk_weight_types[];
extern const int kwk_n_weight_types;

/* NULL: unknown. By name: the three float types only (safetensors, memory). */
const kwk_weight_type *kwk_weight_type_by_gguf(uint32_t id);
const kwk_weight_type *kwk_weight_type_by_dtype(const char *dtype);

/* Name of any GGUF type, also of those we do not read; NULL for an unknown number. */
const char *kwk_gguf_type_name(uint32_t id);

#endif
