/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kernels/: the packer of each format, called by kwk_pack_tile(). Same arguments and
 * rules as there (kernels.h).
 */
#ifndef KWK_KERNELS_PACK_H
#define KWK_KERNELS_PACK_H

#include "kernels/kernels.h"

typedef void kwk_pack_tile_fn(const kwk_mat *w, int tile, const float *src, size_t ld_src,
                              int n_rows, const float *importance);

kwk_pack_tile_fn kwk_pack_f32_tile, kwk_pack_f16_tile, kwk_pack_bf16_tile;
kwk_pack_tile_fn kwk_pack_i8_tile, kwk_pack_i6_tile, kwk_pack_i4_tile;

#endif
