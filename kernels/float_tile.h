/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kernels/: where a weight lies inside a tile of a float format (layout in kernels.h),
 * and its value. One element at a time: for packing, gather and references.
 */
#ifndef KWK_KERNELS_FLOAT_TILE_H
#define KWK_KERNELS_FLOAT_TILE_H

#include "kernels/half.h"
#include "kernels/kernels.h"

/* Index, in elements, of column k of row r, 0 <= r < 32. */
static inline size_t kwk_float_index(kwk_format format, int r, int k)
{
    if (format == KWK_BF16) // two columns side by side
        return (size_t)(k / 2) * 2 * KWK_TILE + (size_t)r * 2 + (size_t)(k % 2);
    return (size_t)k * KWK_TILE + (size_t)r;
}

/* Weight of column k of row r; exact in every format. */
static inline float kwk_float_weight(kwk_format format, const uint8_t *tile, int r, int k)
{
    const size_t i = kwk_float_index(format, r, k);

    switch (format) {
    case KWK_F16:
        return kwk_f16_to_f32(((const uint16_t *)tile)[i]);
    case KWK_BF16:
        return kwk_bf16_to_f32(((const uint16_t *)tile)[i]);
    default:
        return ((const float *)tile)[i];
    }
}

static inline uint8_t *kwk_tile_data(const kwk_mat *w, int tile)
{
    return w->data + (size_t)tile * kwk_mat_tile_bytes(w->format, w->cols_pad);
}

#endif
