/* SPDX-License-Identifier: Apache-2.0
 *
 * The AVX2 twins of kernels/math.h, for test_math.c.
 */
#include "tests/kernels/math_isa.h"

#include "kernels/simd_avx2.h"

void math_exp_avx2(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, kwk_exp8(_mm256_loadu_ps(x + i)));
}

void math_tanh_avx2(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, kwk_tanh8(_mm256_loadu_ps(x + i)));
}
