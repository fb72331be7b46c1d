/* SPDX-License-Identifier: Apache-2.0
 *
 * I6 products with AVX2: int_scaled_avx2.h with codes of 6 bits.
 */
#include "kernels/int_scaled_avx2.h"

static void sweep(const kwk_matmul *a)
{
    kwk_scaled_sweep(KWK_I6, a);
}

void kwk_gemv_i6__avx2(const kwk_matmul *a)
{
    kwk_scaled_panels(KWK_I6, 1, a);
}

void kwk_small_i6__avx2(const kwk_matmul *a)
{
    if (a->m == 1)
        kwk_scaled_panels(KWK_I6, 1, a);
    else if (a->m == 2)
        kwk_scaled_panels(KWK_I6, 2, a);
    else
        sweep(a);
}

void kwk_gemm_i6__avx2(const kwk_matmul *a)
{
    kwk_in_runs(a, sweep);
}
