/* SPDX-License-Identifier: Apache-2.0
 *
 * I6 products with AVX-512: int_scaled_avx512.h with codes of 6 bits.
 */
#include "kernels/int_scaled_avx512.h"

static void gemm(const kwk_matmul *a)
{
    kwk_scaled_gemm(KWK_I6, a);
}

void kwk_gemv_i6__avx512(const kwk_matmul *a)
{
    kwk_scaled_panels(KWK_I6, 1, a);
}

void kwk_small_i6__avx512(const kwk_matmul *a)
{
    kwk_scaled_small(KWK_I6, a);
}

void kwk_gemm_i6__avx512(const kwk_matmul *a)
{
    kwk_in_runs(a, gemm);
}
