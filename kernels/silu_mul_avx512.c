/* SPDX-License-Identifier: Apache-2.0
 *
 * silu_mul for AVX-512: 16 at a time, the last ones under a mask.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_silu_mul__avx512(float *y, const float *g, const float *u, int n)
{
    const __m512 sign = _mm512_set1_ps(-0.0f);
    const __m512 one = _mm512_set1_ps(1.0f);

    for (int i = 0; i < n; i += 16) {
        const __mmask16 m = kwk_mask16(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, g + i);
        const __m512 d = _mm512_add_ps(one, kwk_exp16(_mm512_xor_ps(v, sign)));
        const __m512 silu = _mm512_div_ps(v, d);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(m, u + i)));
    }
}
