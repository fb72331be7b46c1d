/* SPDX-License-Identifier: Apache-2.0
 *
 * What the AVX-512 products of the integer formats share: steps on 16 rows, one per 32-bit lane,
 * and the block of 32 rows and a few tokens that gemm is made of. Only for files compiled with the
 * AVX-512 flags of CMakeLists.txt.
 *
 * vpdpbusd multiplies unsigned weights by signed activations, so weights carry an offset; the
 * accumulator starts at minus offset times the sum of the activations.
 */
#ifndef KWK_KERNELS_INT_AVX512_H
#define KWK_KERNELS_INT_AVX512_H

#include <immintrin.h>

#include "kernels/int_tile.h"
#include "kernels/kernels.h"

#define KWK_INLINE static inline __attribute__((always_inline))

enum { KWK_TILE_TOKENS = 6 }; // 2 x 6 integer and 2 x 6 float sums fill the registers

/* acc += per lane the 4 products of unsigned bytes u and signed bytes x. In asm so that the
 * compiler accumulates in place: GCC 12 copies and spills many accumulators of the intrinsic. */
KWK_INLINE __m512i kwk_dot4(__m512i acc, __m512i u, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u), "v"(x));
    return acc;
}

KWK_INLINE __m512i kwk_bytes4(const int8_t *x)
{
    int32_t v;

    memcpy(&v, x, sizeof v);
    return _mm512_set1_epi32(v);
}

/* The 16 fp16 scales of a superblock. */
KWK_INLINE __m512 kwk_scales16(const uint8_t *super)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)super));
}

/* The end of a superblock: y = fmaf(a, S, y), from 0 in the first, times 2^exponent in the last. */
KWK_INLINE void kwk_super_end(float *y, __m512 a, __m512 super, int first, int last, __m512 unit)
{
    const __m512 v = _mm512_fmadd_ps(a, super, first ? _mm512_setzero_ps() : _mm512_loadu_ps(y));

    _mm512_storeu_ps(y, last ? _mm512_mul_ps(v, unit) : v);
}

/* A superblock of both panels of a tile, ready to be multiplied. */
typedef struct kwk_tile_super {
    const uint8_t *u[2];     // [n][8][16 rows][4] unsigned bytes
    const uint8_t *super[2]; // where the fp16 scales are
    const float *s;          // [n][2][16 rows] group scales; I8: NULL
    int offset;              // of the unsigned bytes
    int n;                   // groups
    int first, last;         // y starts here; ends here
    float unit;              // 2^exponent
} kwk_tile_super;

/* y of 32 rows and T tokens from a superblock. x, scale and sum point at its first group of the
 * first token, y at the first row; scaled: there are group scales. */
KWK_INLINE void kwk_tile_tokens(const int T, const int scaled, const kwk_tile_super *b,
                                const int8_t *x, size_t ldx, const float *scale, const int32_t *sum,
                                size_t lds, float *y, size_t ldy)
{
    const __mmask8 lanes = (__mmask8)((1u << b->n) - 1);
    const uint8_t *u0 = b->u[0], *u1 = b->u[1];
    const float *s = b->s;
    __m512 a0[KWK_TILE_TOKENS], a1[KWK_TILE_TOKENS];
    int32_t start[KWK_TILE_TOKENS][KWK_SUPER_GROUPS];

#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
        const __m256i v = _mm256_maskz_loadu_epi32(lanes, sum + (size_t)t * lds);
        _mm256_storeu_si256((__m256i *)start[t],
                            _mm256_mullo_epi32(v, _mm256_set1_epi32(-b->offset)));
        a0[t] = a1[t] = _mm512_setzero_ps();
    }
    for (int g = 0; g < b->n; g++) {
        __m512i d0[KWK_TILE_TOKENS], d1[KWK_TILE_TOKENS];

#pragma GCC unroll 16
        for (int t = 0; t < T; t++)
            d0[t] = d1[t] = _mm512_set1_epi32(start[t][g]);
#pragma GCC unroll 16
        for (int j = 0; j < 8; j++) {
            const __m512i w0 = _mm512_loadu_si512(u0 + 64 * j),
                          w1 = _mm512_loadu_si512(u1 + 64 * j);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) {
                const __m512i v = kwk_bytes4(x + (size_t)t * ldx + 4 * j);
                d0[t] = kwk_dot4(d0[t], w0, v);
                d1[t] = kwk_dot4(d1[t], w1, v);
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
            const __m512 by = _mm512_set1_ps(scale[(size_t)t * lds + g]);
            __m512 f0 = _mm512_cvtepi32_ps(d0[t]), f1 = _mm512_cvtepi32_ps(d1[t]);
            if (scaled) { // exact: the product is an integer below 2^24
                f0 = _mm512_mul_ps(f0, _mm512_loadu_ps(s));
                f1 = _mm512_mul_ps(f1, _mm512_loadu_ps(s + 16));
            }
            a0[t] = _mm512_fmadd_ps(f0, by, a0[t]);
            a1[t] = _mm512_fmadd_ps(f1, by, a1[t]);
        }
        x += KWK_GROUP;
        u0 += 512;
        u1 += 512;
        s += scaled ? 32 : 0;
    }
    const __m512 super0 = kwk_scales16(b->super[0]), super1 = kwk_scales16(b->super[1]);
    const __m512 unit = _mm512_set1_ps(b->unit);
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
        float *out = y + (size_t)t * ldy;
        kwk_super_end(out, a0[t], super0, b->first, b->last, unit);
        kwk_super_end(out + 16, a1[t], super1, b->first, b->last, unit);
    }
}

/* All tokens, in runs of nearly equal length. g0 is the first group of the superblock. */
KWK_INLINE void kwk_tile_sweep(const int scaled, const kwk_tile_super *b, const kwk_matmul *a,
                               int g0, float *y)
{
    const kwk_qact *q = a->q;
    int runs = (a->m + KWK_TILE_TOKENS - 1) / KWK_TILE_TOKENS;

    for (int t = 0; t < a->m; runs--) {
        const int n = (a->m - t + runs - 1) / runs;
        const int8_t *x = q->q + (size_t)t * q->ldq + (size_t)g0 * KWK_GROUP;
        const float *scale = q->scale + (size_t)t * q->lds + g0;
        const int32_t *sum = q->sum + (size_t)t * q->lds + g0;
        float *out = y + (size_t)t * a->ldy;

        switch (n) {
#define KWK_RUN(T)                                                                                 \
    case T:                                                                                        \
        kwk_tile_tokens(T, scaled, b, x, q->ldq, scale, sum, q->lds, out, a->ldy);                 \
        break
            KWK_RUN(1);
            KWK_RUN(2);
            KWK_RUN(3);
            KWK_RUN(4);
            KWK_RUN(5);
            KWK_RUN(6);
#undef KWK_RUN
        }
        t += n;
    }
}

#endif
