/* SPDX-License-Identifier: Apache-2.0
 *
 * quant_act for AVX-512: a group is two registers of floats.
 */
#include <float.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_quant_act__avx512(int8_t *q, float *scale, int32_t *sum, const float *x, int n)
{
    for (int g = 0; g < n / KWK_GROUP; g++, q += KWK_GROUP, x += KWK_GROUP) {
        const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
        const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        const float inv = 127.0f / amax;
        const int zero = !(inv <= FLT_MAX);
        const __m512 by = _mm512_set1_ps(zero ? 0 : inv);
        const __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(a, by));
        const __m512i j = _mm512_cvtps_epi32(_mm512_mul_ps(b, by));

        _mm_storeu_si128((__m128i *)q, _mm512_cvtsepi32_epi8(i));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtsepi32_epi8(j));
        scale[g] = zero ? 0 : amax / 127.0f;
        sum[g] = _mm512_reduce_add_epi32(_mm512_add_epi32(i, j));
    }
}
