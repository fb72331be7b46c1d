/* SPDX-License-Identifier: Apache-2.0
 *
 * I4 products with AVX-512: int_scaled_avx512.h with codes of 4 bits.
 */
#include "kernels/int_scaled_avx512.h"

static void gemm(const kwk_matmul *a)
{
    kwk_scaled_gemm(KWK_I4, a);
}

void kwk_gemv_i4__avx512(const kwk_matmul *a)
{
    kwk_scaled_panels(KWK_I4, 1, a);
}

void kwk_small_i4__avx512(const kwk_matmul *a)
{
    kwk_scaled_small(KWK_I4, a);
}

void kwk_gemm_i4__avx512(const kwk_matmul *a)
{
    kwk_in_runs(a, gemm);
}
