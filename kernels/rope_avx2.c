/* SPDX-License-Identifier: Apache-2.0
 *
 * rope for AVX2: 8 pairs at a time, the rest one by one.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

void kwk_rope__avx2(float *x, const float *cos, const float *sin, int n_heads, int rot, size_t ld)
{
    const int half = rot / 2;

    for (int h = 0; h < n_heads; h++, x += ld) {
        int i;
        for (i = 0; i + 8 <= half; i += 8) {
            const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
            const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
            _mm256_storeu_ps(x + i, _mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c)));
            _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
        }
        for (; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = fmaf(-b, sin[i], a * cos[i]);
            x[i + half] = fmaf(a, sin[i], b * cos[i]);
        }
    }
}
