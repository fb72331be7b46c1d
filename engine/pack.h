/* SPDX-License-Identifier: Apache-2.0
 *
 * The packed image, byte for byte a .kwk file: little-endian, one layout for every instruction set.
 *
 *   0           kwk_pack_header, the recipe in it
 *   front       tensor table; tokenizer's offsets, bytes and JSON; chat template (64-byte aligned)
 *   data_start  (multiple of 4096) the tensors in the recipe's order, each at the next multiple of
 *               64; matrices as kernels.h says, vectors as float32; gaps are zero; the end
 *
 * The header's sum covers everything before data_start, the table has a sum for each tensor.
 * The format is experimental: packs are refused by any build whose packing sources differ.
 */
#ifndef KWK_ENGINE_PACK_H
#define KWK_ENGINE_PACK_H

#include "engine/model.h"
#include "engine/recipe.h"
#include "engine/source.h"
#include "engine/tokenizer.h"

enum {
    KWK_PACK_VERSION = 0, // experimental
    KWK_PACK_ALIGN = 64,
    KWK_PACK_DATA_ALIGN = 4096,
    KWK_PACK_FRONT_MAX = 512 << 20, // bytes before data_start
};

#define KWK_PACK_MAGIC "KWKPACK" // 8 bytes with its NUL

typedef struct kwk_pack_part { // bytes of the front; size 0: absent
    uint64_t offset, size;
} kwk_pack_part;

typedef struct kwk_pack_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint8_t build[16]; // kwk_pack_build_id()
    uint64_t size;     // of the image
    uint64_t data_start;
    uint64_t front_sum;               // kwk_hash64 of the bytes before data_start, this field as 0
    uint8_t id[16];                   // of the model: recipe and tensors, not the tokenizer
    char precision[16], rounded[128]; // NUL-terminated
    uint32_t n_tensors, reserved;
    kwk_pack_part tensors;      // kwk_pack_tensor[n_tensors]
    kwk_pack_part token_offset; // uint32_t[vocab + 1]
    kwk_pack_part token_bytes;
    kwk_pack_part tokenizer_json; // with its NUL
    kwk_pack_part chat_template;  // with its NUL
    kwk_recipe recipe;
} kwk_pack_header;

typedef struct kwk_pack_tensor {
    uint32_t role, layer;
    uint32_t format; // kwk_format; vectors: KWK_F32
    int32_t rows, cols, rows_pad, cols_pad;
    int32_t exponent;
    uint64_t offset, size, sum;
} kwk_pack_tensor;

_Static_assert(sizeof(kwk_recipe) == 184, "the recipe is part of the file");
_Static_assert(sizeof(kwk_pack_header) == 488, "no padding");
_Static_assert(sizeof(kwk_pack_tensor) == 56, "no padding");

/* 16 bytes that change with the sources that define the packed bytes. */
const uint8_t *kwk_pack_build_id(void);

/* Shape, padding and size of a tensor in a format (KWK_F32 for vectors); offset and sum are 0. */
kwk_pack_tensor kwk_pack_place(const kwk_tensor_spec *spec, kwk_format format);

/* Identity of a model. */
void kwk_pack_id(uint8_t id[16], const kwk_recipe *r, const kwk_pack_tensor *tensors, int n);

/* The sum that belongs into the header of these data_start bytes. */
uint64_t kwk_pack_front_sum(const uint8_t *base, uint64_t data_start);

/**
 * Convert a source into a finished image (pack_build.c). Temporary memory is bounded: 48 MiB, or
 * one tile of the widest matrix if that is more.
 *
 * @param t  the source's tokenizer, or zeroed
 * @param o  precision, mix_bits, sealed, progress, importance are used
 *
 * @return KWK_OK, or what kwk_model_open() documents
 */
int kwk_pack_build(kwk_image *img, const kwk_source *s, const kwk_recipe *r, const kwk_tokenizer *t,
                   const kwk_model_options *o, kwk_error *err);

/* ---- images from outside (pack_check.c) ------------------------------------------------------ */

/* The header of a file of `size` bytes, before anything else of it is read. */
int kwk_pack_check_header(const kwk_pack_header *h, uint64_t size, kwk_error *err);

/* Everything before data_start (base has that many bytes): afterwards every offset, size and
 * string in it may be used. Runs the header check too. */
int kwk_pack_check_front(const uint8_t *base, uint64_t size, kwk_error *err);

/* The tensors' sums and the gaps, on all cores; the front has been checked. */
int kwk_pack_check_data(const kwk_image *img, kwk_error *err);

/* Set everything in m that comes from m->image, which was built or checked here (pack_bind.c). */
int kwk_pack_bind(kwk_model *m, kwk_error *err);

#endif
