/* SPDX-License-Identifier: Apache-2.0
 *
 * quant_act for AVX-512: a group is two registers of floats. Magnitudes compare as integers: an
 * infinity and then the NaNs come last, where the comparison of floats loses a NaN.
 */
#include <float.h>
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_quant_act__avx512(int8_t *q, float *scale, int32_t *sum, const float *x, int n)
{
    for (int g = 0; g < n / KWK_GROUP; g++, q += KWK_GROUP, x += KWK_GROUP) {
        const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
        const __m512i most = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a)),
                                              _mm512_castps_si512(_mm512_abs_ps(b)));
        const float amax =
            _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(most))));
        const int finite = amax <= FLT_MAX;
        const float inv = 127.0f / amax;
        const int zero = !finite || !(inv <= FLT_MAX);
        const __mmask16 keep = zero ? 0 : 0xffff; // NaN * 0 is no 0
        const __m512 by = _mm512_set1_ps(inv);
        const __m512i i = _mm512_cvtps_epi32(_mm512_maskz_mul_ps(keep, a, by));
        const __m512i j = _mm512_cvtps_epi32(_mm512_maskz_mul_ps(keep, b, by));

        _mm_storeu_si128((__m128i *)q, _mm512_cvtsepi32_epi8(i));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtsepi32_epi8(j));
        scale[g] = !finite ? NAN : zero ? 0 : amax / 127.0f;
        sum[g] = _mm512_reduce_add_epi32(_mm512_add_epi32(i, j));
    }
}
