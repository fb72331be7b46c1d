/* SPDX-License-Identifier: Apache-2.0
 *
 * rope for AVX-512: 16 pairs at a time, the last ones under a mask.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_rope__avx512(float *x, const float *cos, const float *sin, int n_heads, int rot, size_t ld)
{
    const int half = rot / 2;

    for (int h = 0; h < n_heads; h++, x += ld) {
        for (int i = 0; i < half; i += 16) {
            const __mmask16 m = kwk_mask16(half - i);
            const __m512 a = _mm512_maskz_loadu_ps(m, x + i);
            const __m512 b = _mm512_maskz_loadu_ps(m, x + i + half);
            const __m512 c = _mm512_maskz_loadu_ps(m, cos + i);
            const __m512 s = _mm512_maskz_loadu_ps(m, sin + i);
            _mm512_mask_storeu_ps(x + i, m, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)));
            _mm512_mask_storeu_ps(x + i + half, m, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
        }
    }
}
