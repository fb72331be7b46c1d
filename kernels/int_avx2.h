/* SPDX-License-Identifier: Apache-2.0
 *
 * What the AVX2 products of the integer formats share: steps on 8 rows, one per 32-bit lane. Only
 * for files compiled with -mavx2 -mfma -mf16c.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds two products in int16, which must not
 * saturate: codes of I6 are 6-bit, grid values of I4 7-bit, and I8 multiplies |w| by x with the
 * sign of w.
 */
#ifndef KWK_KERNELS_INT_AVX2_H
#define KWK_KERNELS_INT_AVX2_H

#include <immintrin.h>

#include "kernels/int_tile.h"
#include "kernels/kernels.h"

#define KWK_INLINE static inline __attribute__((always_inline))

KWK_INLINE __m256i kwk_load32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

KWK_INLINE __m256i kwk_bytes4(const int8_t *x)
{
    int32_t v;

    memcpy(&v, x, sizeof v);
    return _mm256_set1_epi32(v);
}

/* In asm so that the compiler accumulates in place: GCC 12 regroups the sums and spills them. */
KWK_INLINE __m256i kwk_add_in_place(__m256i acc, __m256i v)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(v));
    return acc;
}

/* acc += per lane (8 rows) a 4-product of unsigned u and signed x, times the int16 pair by. */
KWK_INLINE __m256i kwk_dot4(__m256i acc, __m256i u, __m256i x, __m256i by)
{
    return kwk_add_in_place(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, x), by));
}

/* The fp16 scales of 8 rows of a superblock. */
KWK_INLINE __m256 kwk_scales8(const uint8_t *super, int half)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(super + 16 * half)));
}

/* acc += group sums * activation scale. */
KWK_INLINE __m256 kwk_add_group(__m256 acc, __m256i d, float scale)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_set1_ps(scale), acc);
}

/* The end of a superblock: y = fmaf(a, S, y), from 0 in the first, times 2^exponent in the last. */
KWK_INLINE void kwk_super_end(float *y, __m256 a, __m256 super, int first, int last, __m256 unit)
{
    const __m256 v = _mm256_fmadd_ps(a, super, first ? _mm256_setzero_ps() : _mm256_loadu_ps(y));

    _mm256_storeu_ps(y, last ? _mm256_mul_ps(v, unit) : v);
}

#endif
