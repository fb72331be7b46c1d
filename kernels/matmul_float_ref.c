/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference for matrix × activations of the float formats: the contract in kernels.h, word for
 * word, the same for every form. fmaf is libm's, correct on any CPU.
 */
#include <math.h>

#include "kernels/float_tile.h"

static inline void matmul(kwk_format format, const kwk_matmul *a)
{
    for (int tile = a->tile0; tile < a->tile1; tile++) {
        const uint8_t *w = kwk_tile_data(a->w, tile);
        for (int t = 0; t < a->m; t++) {
            const float *x = a->x + (size_t)t * a->ldx;
            float *y = a->y + (size_t)t * a->ldy + (size_t)tile * KWK_TILE;
            for (int r = 0; r < KWK_TILE; r++) {
                float acc = 0;
                for (int k = 0; k < a->w->cols_pad; k++)
                    acc = fmaf(kwk_float_weight(format, w, r, k), x[k], acc);
                y[r] = acc;
            }
        }
    }
}

void kwk_gemv_f32__ref(const kwk_matmul *a)
{
    matmul(KWK_F32, a);
}

void kwk_small_f32__ref(const kwk_matmul *a)
{
    matmul(KWK_F32, a);
}

void kwk_gemm_f32__ref(const kwk_matmul *a)
{
    matmul(KWK_F32, a);
}

void kwk_gemv_f16__ref(const kwk_matmul *a)
{
    matmul(KWK_F16, a);
}

void kwk_small_f16__ref(const kwk_matmul *a)
{
    matmul(KWK_F16, a);
}

void kwk_gemm_f16__ref(const kwk_matmul *a)
{
    matmul(KWK_F16, a);
}

void kwk_gemv_bf16__ref(const kwk_matmul *a)
{
    matmul(KWK_BF16, a);
}

void kwk_small_bf16__ref(const kwk_matmul *a)
{
    matmul(KWK_BF16, a);
}

void kwk_gemm_bf16__ref(const kwk_matmul *a)
{
    matmul(KWK_BF16, a);
}
