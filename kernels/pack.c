/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing by format: chooses the packer, knows no layout. Any thread; each call writes one tile.
 */
#include "kernels/pack.h"

#include "kernels/pack_int.h"

void kwk_pack_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                   const float *importance)
{
    switch (w->format) {
    case KWK_F32:
        kwk_pack_f32_tile(w, tile, src, ld_src, n_rows, importance);
        return;
    case KWK_F16:
        kwk_pack_f16_tile(w, tile, src, ld_src, n_rows, importance);
        return;
    case KWK_BF16:
        kwk_pack_bf16_tile(w, tile, src, ld_src, n_rows, importance);
        return;
    case KWK_I8:
        kwk_pack_i8_tile(w, tile, src, ld_src, n_rows, importance);
        return;
    case KWK_I6:
        kwk_pack_i6_tile(w, tile, src, ld_src, n_rows, importance);
        return;
    case KWK_I4:
        kwk_pack_i4_tile(w, tile, src, ld_src, n_rows, importance);
        return;
    case KWK_FORMAT_END:
        return;
    }
}

int kwk_pack_exponent(kwk_format format, float amax)
{
    return kwk_format_is_int(format) && amax > 0 ? kwk_pack_int_exponent(amax) : 0;
}
