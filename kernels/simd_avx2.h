/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces that several AVX2 kernels share: partial loads and stores, the end of a lane sum, and the
 * vector twins of math.h. Only for files compiled with -mavx2 -mfma -mf16c.
 */
#ifndef KWK_KERNELS_SIMD_AVX2_H
#define KWK_KERNELS_SIMD_AVX2_H

#include <immintrin.h>

#include "kernels/math.h"

/* All ones in the first n lanes; n <= 0: none, n >= 8: all. */
static inline __m256i kwk_mask8(int n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

/* All ones in lane i where bit i of bits is set. */
static inline __m256i kwk_bits8(unsigned bits)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), bit), bit);
}

/* Lane sum's end: lo holds partials 0..7, hi 8..15. */
static inline float kwk_lane_sum8(__m256 lo, __m256 hi)
{
    const __m256 s8 = _mm256_add_ps(lo, hi);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float kwk_hmax8(__m256 v) // greatest of 8; no NaN
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline __m256 kwk_exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(KWK_EXP_MAGIC);
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(KWK_EXP_LOG2E), magic);
    const __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KWK_EXP_LN2_HI), x);
    __m256 p;

    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KWK_EXP_LN2_LO), r);
    p = _mm256_fmadd_ps(_mm256_set1_ps(KWK_EXP_C6), r, _mm256_set1_ps(KWK_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KWK_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KWK_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KWK_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    p = _mm256_and_ps(p, _mm256_cmp_ps(x, _mm256_set1_ps(KWK_EXP_MIN), _CMP_NLT_UQ));
    p = _mm256_blendv_ps(p, _mm256_set1_ps(INFINITY),
                         _mm256_cmp_ps(x, _mm256_set1_ps(KWK_EXP_MAX), _CMP_GT_OQ));
    return _mm256_blendv_ps(p, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline __m256 kwk_tanh8(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 two = _mm256_set1_ps(2.0f);
    const __m256 a = _mm256_andnot_ps(sign, x);
    const __m256 z = _mm256_mul_ps(a, a);
    const __m256 e = kwk_exp8(_mm256_mul_ps(two, a));
    const __m256 large = _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(e, one)));
    __m256 q, y;

    q = _mm256_fmadd_ps(_mm256_set1_ps(KWK_TANH_C4), z, _mm256_set1_ps(KWK_TANH_C3));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(KWK_TANH_C2));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(KWK_TANH_C1));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(KWK_TANH_C0));
    y = _mm256_fmadd_ps(_mm256_mul_ps(q, z), a, a);
    y = _mm256_blendv_ps(large, y, _mm256_cmp_ps(a, _mm256_set1_ps(KWK_TANH_SMALL), _CMP_LT_OQ));
    y = _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#endif
