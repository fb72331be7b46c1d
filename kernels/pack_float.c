/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs float32 rows as F32, F16 or BF16, rounded to nearest even. There is no choice to make, so
 * importance is not read.
 */
#include "kernels/float_tile.h"
#include "kernels/pack.h"

enum { STRIP = 16 }; // columns per pass: a row's part is one cache line, the tile's stays in L1

static inline void store(kwk_format format, uint8_t *tile, size_t i, float v)
{
    switch (format) {
    case KWK_F16:
        ((uint16_t *)tile)[i] = kwk_f32_to_f16(v);
        return;
    case KWK_BF16:
        ((uint16_t *)tile)[i] = kwk_f32_to_bf16(v);
        return;
    default:
        ((float *)tile)[i] = v;
    }
}

static inline void pack(kwk_format format, const kwk_mat *w, int tile, const float *src,
                        size_t ld_src, int n_rows)
{
    uint8_t *dst = kwk_tile_data(w, tile);

    for (int k0 = 0; k0 < w->cols_pad; k0 += STRIP) {
        for (int r = 0; r < KWK_TILE; r++) {
            const float *row = r < n_rows ? src + (size_t)r * ld_src : NULL;
            for (int k = k0; k < k0 + STRIP; k++) {
                const float v = row && k < w->cols ? row[k] : 0;
                store(format, dst, kwk_float_index(format, r, k), v);
            }
        }
    }
}

void kwk_pack_f32_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                       const float *importance)
{
    pack(KWK_F32, w, tile, src, ld_src, n_rows);
}

void kwk_pack_f16_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                       const float *importance)
{
    pack(KWK_F16, w, tile, src, ld_src, n_rows);
}

void kwk_pack_bf16_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                        const float *importance)
{
    pack(KWK_BF16, w, tile, src, ld_src, n_rows);
}
