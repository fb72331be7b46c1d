/* SPDX-License-Identifier: Apache-2.0
 *
 * silu_mul for AVX2: 8 at a time, the rest one by one.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

void kwk_silu_mul__avx2(float *y, const float *g, const float *u, int n)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 one = _mm256_set1_ps(1.0f);
    int i;

    for (i = 0; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(g + i);
        const __m256 d = _mm256_add_ps(one, kwk_exp8(_mm256_xor_ps(v, sign)));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_div_ps(v, d), _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++)
        y[i] = g[i] / (1.0f + kwk_exp1(-g[i])) * u[i];
}
