/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces that several AVX-512 kernels share: tail masks, the end of a lane sum, and the vector
 * twins of math.h. Only for files compiled with the AVX-512 flags of CMakeLists.txt.
 */
#ifndef KWK_KERNELS_SIMD_AVX512_H
#define KWK_KERNELS_SIMD_AVX512_H

#include <immintrin.h>

#include "kernels/math.h"

/* The first n lanes; n <= 0: none, n >= 16: all. */
static inline __mmask16 kwk_mask16(int n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* Lane sum's end: 16 partials. */
static inline float kwk_lane_sum16(__m512 p)
{
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(p), _mm512_extractf32x8_ps(p, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline __m512 kwk_exp16(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(KWK_EXP_MAGIC);
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(KWK_EXP_LOG2E), magic);
    const __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KWK_EXP_LN2_HI), x);
    __m512 p;

    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KWK_EXP_LN2_LO), r);
    p = _mm512_fmadd_ps(_mm512_set1_ps(KWK_EXP_C6), r, _mm512_set1_ps(KWK_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KWK_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KWK_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KWK_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_castsi512_ps(_mm512_maskz_add_epi32(
        _mm512_cmp_ps_mask(x, _mm512_set1_ps(KWK_EXP_MIN), _CMP_NLT_UQ), _mm512_castps_si512(p),
        _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, _mm512_set1_ps(KWK_EXP_MAX), _CMP_GT_OQ),
                           _mm512_set1_ps(INFINITY));
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

static inline __m512 kwk_tanh16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 two = _mm512_set1_ps(2.0f);
    const __m512 a = _mm512_abs_ps(x);
    const __m512 z = _mm512_mul_ps(a, a);
    const __m512 e = kwk_exp16(_mm512_mul_ps(two, a));
    const __m512 large = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(e, one)));
    __m512 q, y;

    q = _mm512_fmadd_ps(_mm512_set1_ps(KWK_TANH_C4), z, _mm512_set1_ps(KWK_TANH_C3));
    q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(KWK_TANH_C2));
    q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(KWK_TANH_C1));
    q = _mm512_fmadd_ps(q, z, _mm512_set1_ps(KWK_TANH_C0));
    y = _mm512_fmadd_ps(_mm512_mul_ps(q, z), a, a);
    y = _mm512_mask_mov_ps(large, _mm512_cmp_ps_mask(a, _mm512_set1_ps(KWK_TANH_SMALL), _CMP_LT_OQ),
                           y);
    y = _mm512_or_ps(_mm512_abs_ps(y), _mm512_and_ps(x, _mm512_set1_ps(-0.0f)));
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

#endif
