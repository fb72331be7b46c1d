/* SPDX-License-Identifier: Apache-2.0
 *
 * The AVX-512 twins of kernels/math.h, for test_math.c.
 */
#include "tests/kernels/math_isa.h"

#include "kernels/simd_avx512.h"

void math_exp_avx512(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i, kwk_exp16(_mm512_loadu_ps(x + i)));
}

void math_tanh_avx512(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i, kwk_tanh16(_mm512_loadu_ps(x + i)));
}
