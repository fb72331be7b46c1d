/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference of the I8, I6 and I4 matrix products: the contract in kernels.h, one row and token at a
 * time, and the code points of I4. The three forms are the same sum.
 */
#include <math.h>

#include "kernels/int_tile.h"
#include "kernels/kernels.h"

const uint8_t kwk_i4_grid[16] = {0, 17, 27, 35, 43, 50, 56, 62, 68, 75, 81, 88, 95, 102, 111, 123};

/* y of one row of a panel for all tokens. */
static void row_product(const kwk_matmul *a, const uint8_t *panel, int r, float *y)
{
    const kwk_qact *q = a->q;
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const float unit = kwk_exp2i(a->w->exponent);

    for (int t = 0; t < a->m; t++)
        y[(size_t)t * a->ldy] = 0;
    for (int g0 = 0; g0 < n_groups; g0 += KWK_SUPER_GROUPS) {
        const int n = kwk_super_groups(n_groups, g0);
        const float super = kwk_super_scale(panel, r);
        int16_t code[KWK_SUPER], s[KWK_SUPER_GROUPS];

        kwk_int_codes(a->w->format, code, s, panel, n, r);
        for (int t = 0; t < a->m; t++) {
            const int8_t *x = q->q + (size_t)t * q->ldq + (size_t)g0 * KWK_GROUP;
            const float *scale = q->scale + (size_t)t * q->lds + g0;
            float acc = 0;

            for (int g = 0; g < n; g++) {
                int32_t sum = 0;
                for (int k = g * KWK_GROUP; k < (g + 1) * KWK_GROUP; k++)
                    sum += code[k] * x[k];
                acc = fmaf((float)(s[g] * sum), scale[g], acc);
            }
            y[(size_t)t * a->ldy] = fmaf(acc, super, y[(size_t)t * a->ldy]);
        }
        panel += kwk_super_bytes(a->w->format, n);
    }
    for (int t = 0; t < a->m; t++)
        y[(size_t)t * a->ldy] *= unit;
}

static void product(const kwk_matmul *a)
{
    for (int tile = a->tile0; tile < a->tile1; tile++)
        for (int r = 0; r < KWK_TILE; r++)
            row_product(a, kwk_int_panel(a->w, tile, r / KWK_PANEL), r % KWK_PANEL,
                        a->y + (size_t)tile * KWK_TILE + r);
}

void kwk_gemv_i8__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_small_i8__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_gemm_i8__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_gemv_i6__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_small_i6__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_gemm_i6__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_gemv_i4__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_small_i4__ref(const kwk_matmul *a)
{
    product(a);
}

void kwk_gemm_i4__ref(const kwk_matmul *a)
{
    product(a);
}
