/* SPDX-License-Identifier: Apache-2.0
 *
 * quant_act for AVX2: a group is four registers of floats and one of bytes. Magnitudes compare as
 * integers: an infinity and then the NaNs come last, where the comparison of floats loses a NaN.
 */
#include <float.h>
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

static int32_t sum8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* Greatest of eight integers, taken as the float of these bits. */
static float max8(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1))));
}

void kwk_quant_act__avx2(int8_t *q, float *scale, int32_t *sum, const float *x, int n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // undoes the packing by halves
    const __m256i ones8 = _mm256_set1_epi8(1), ones16 = _mm256_set1_epi16(1);

    for (int g = 0; g < n / KWK_GROUP; g++, q += KWK_GROUP, x += KWK_GROUP) {
        __m256i i[4], bytes, s, m = _mm256_setzero_si256();
        __m256 v[4];

        for (int k = 0; k < 4; k++) {
            v[k] = _mm256_loadu_ps(x + 8 * k);
            m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[k]), magnitude));
        }
        const float amax = max8(m), inv = 127.0f / amax;
        if (!(amax <= FLT_MAX) || !(inv <= FLT_MAX)) {
            _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
            scale[g] = amax <= FLT_MAX ? 0 : NAN;
            sum[g] = 0;
            continue;
        }
        for (int k = 0; k < 4; k++)
            i[k] = _mm256_cvtps_epi32(_mm256_mul_ps(v[k], _mm256_set1_ps(inv)));
        bytes = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
        bytes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm256_storeu_si256((__m256i *)q, bytes);
        s = _mm256_madd_epi16(_mm256_maddubs_epi16(ones8, bytes), ones16);
        scale[g] = amax / 127.0f;
        sum[g] = sum8(s);
    }
}
