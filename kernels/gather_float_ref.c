/* SPDX-License-Identifier: Apache-2.0
 *
 * gather of the float formats. Off the hot path (one row per token), so there is no other variant.
 */
#include "kernels/float_tile.h"

static inline void gather(kwk_format format, float *y, const kwk_mat *w, int row)
{
    const uint8_t *tile = kwk_tile_data(w, row / KWK_TILE);

    for (int k = 0; k < w->cols_pad; k++)
        y[k] = kwk_float_weight(format, tile, row % KWK_TILE, k);
}

void kwk_gather_f32__ref(float *y, const kwk_mat *w, int row)
{
    gather(KWK_F32, y, w, row);
}

void kwk_gather_f16__ref(float *y, const kwk_mat *w, int row)
{
    gather(KWK_F16, y, w, row);
}

void kwk_gather_bf16__ref(float *y, const kwk_mat *w, int row)
{
    gather(KWK_BF16, y, w, row);
}
