/* SPDX-License-Identifier: Apache-2.0
 *
 * I6 and I4 products with AVX-512 VNNI: the formats whose groups have a scale and an offset. gemv
 * and small batches read a panel as one stream, all tokens at once, and decode in registers; gemm
 * expands a superblock of a tile to bytes once, in the first cache, and takes it through all
 * tokens. `format` is a constant after inlining.
 */
#ifndef KWK_KERNELS_INT_SCALED_AVX512_H
#define KWK_KERNELS_INT_SCALED_AVX512_H

#include "kernels/int_avx512.h"

/* The 16 scale bytes of a group, one per lane. */
KWK_INLINE __m512i kwk_load_group(const uint8_t *sc)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)sc));
}

KWK_INLINE __m512 kwk_group_scale(const kwk_format format, __m512i sc)
{
    const __m512i biased = _mm512_srli_epi32(sc, format == KWK_I6 ? 2 : 3);

    return _mm512_cvtepi32_ps(
        _mm512_sub_epi32(biased, _mm512_set1_epi32(format == KWK_I6 ? 32 : 16)));
}

KWK_INLINE __m512i kwk_group_offset(const kwk_format format, __m512i sc) // 4 o, I4: 2 o
{
    const __m512i o = _mm512_and_si512(sc, _mm512_set1_epi32(format == KWK_I6 ? 3 : 7));

    return _mm512_slli_epi32(o, format == KWK_I6 ? 2 : 1);
}

/* The codes of 16 columns of a panel at w, I4: their grid values; 4 columns in each v. */
KWK_INLINE void kwk_unpack(const kwk_format format, __m512i v[4], const uint8_t *w)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i l0 = _mm512_loadu_si512(w), l1 = _mm512_loadu_si512(w + 64);

    if (format == KWK_I6) {
        /* Two pairs in each of a and b, at bits 0 and 4. A code is its nibble where the mask is
         * set, and the upper half of a byte with a pair at bit 4 elsewhere. */
        const __m512i pairs = _mm512_set1_epi8(0x33), h = _mm512_loadu_si512(w + 128);
        const __m512i a = _mm512_and_si512(h, pairs);
        const __m512i b = _mm512_and_si512(_mm512_srli_epi16(h, 2), pairs);
        const int choose = 0xca; // mask ? nibble : pair
        v[0] = _mm512_ternarylogic_epi32(nibble, l0, _mm512_slli_epi16(a, 4), choose);
        v[1] = _mm512_ternarylogic_epi32(nibble, _mm512_srli_epi16(l0, 4), _mm512_slli_epi16(b, 4),
                                         choose);
        v[2] = _mm512_ternarylogic_epi32(nibble, l1, a, choose);
        v[3] = _mm512_ternarylogic_epi32(nibble, _mm512_srli_epi16(l1, 4), b, choose);
    } else {
        const __m512i grid = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kwk_i4_grid));
        v[0] = _mm512_shuffle_epi8(grid, _mm512_and_si512(l0, nibble));
        v[1] = _mm512_shuffle_epi8(grid, _mm512_and_si512(_mm512_srli_epi16(l0, 4), nibble));
        v[2] = _mm512_shuffle_epi8(grid, _mm512_and_si512(l1, nibble));
        v[3] = _mm512_shuffle_epi8(grid, _mm512_and_si512(_mm512_srli_epi16(l1, 4), nibble));
    }
}

KWK_INLINE int kwk_group_center(const kwk_format format)
{
    return format == KWK_I6 ? KWK_I6_CENTER : KWK_I4_CENTER;
}

/* y of 16 rows and T tokens. The stream of weights ends at end. */
KWK_INLINE void kwk_scaled_panel(const kwk_format format, const int T, const kwk_matmul *a,
                                 const uint8_t *w, const uint8_t *end, float *y)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP, bytes = kwk_group_bytes(format);
    const __m512i center = _mm512_set1_epi32(kwk_group_center(format));
    const __m512 unit = _mm512_set1_ps(kwk_exp2i(a->w->exponent));
    const kwk_qact *q = a->q;
    const int8_t *x = q->q;

    for (int g = 0; g < n_groups;) {
        const int n = kwk_super_groups(n_groups, g), stop = g + n, first = g == 0;
        const __m512 super = kwk_scales16(w);
        const uint8_t *sc = w + 32;
        __m512 acc[KWK_SMALL];

#pragma GCC unroll 16
        for (int t = 0; t < T; t++)
            acc[t] = _mm512_setzero_ps();
        for (w += 32 + 16 * n; g < stop; g++, w += bytes, sc += 16, x += KWK_GROUP) {
            const __m512i by = kwk_load_group(sc);
            const __m512 s = kwk_group_scale(format, by);
            /* As int16 beside a 0, for the low half of a sum of activations. */
            const __m512i offset = _mm512_and_si512(
                _mm512_sub_epi32(kwk_group_offset(format, by), center), _mm512_set1_epi32(0xffff));
            __m512i d[KWK_SMALL];

            kwk_ask_ahead(w, bytes, end);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++)
                d[t] = _mm512_dpwssd_epi32(_mm512_setzero_si512(), offset,
                                           _mm512_set1_epi32(q->sum[(size_t)t * q->lds + g]));
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                __m512i v[4];
                kwk_unpack(format, v, w + bytes / 2 * half);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    const int8_t *xi = x + 16 * half + 4 * i;
#pragma GCC unroll 16
                    for (int t = 0; t < T; t++)
                        d[t] = kwk_dot4(d[t], v[i], kwk_bytes4(xi + (size_t)t * q->ldq));
                }
            }
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) { // the product with s is exact: an integer below 2^24
                const __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(d[t]), s);
                acc[t] =
                    _mm512_fmadd_ps(sum, _mm512_set1_ps(q->scale[(size_t)t * q->lds + g]), acc[t]);
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < T; t++)
            kwk_super_end(y + (size_t)t * a->ldy, acc[t], super, first, stop == n_groups, unit);
    }
}

KWK_INLINE void kwk_scaled_panels(const kwk_format format, const int T, const kwk_matmul *a)
{
    const size_t bytes = kwk_mat_tile_bytes(format, a->w->cols_pad) / 2;
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0), *end = kwk_int_panel(a->w, a->tile1, 0);
    float *y = a->y + (size_t)a->tile0 * KWK_TILE;

    for (; w < end; w += bytes, y += KWK_PANEL)
        kwk_scaled_panel(format, T, a, w, end, y);
}

KWK_INLINE void kwk_scaled_small(const kwk_format format, const kwk_matmul *a)
{
    switch (a->m) {
#define KWK_CASE(T)                                                                                \
    case T:                                                                                        \
        kwk_scaled_panels(format, T, a);                                                           \
        break
        KWK_CASE(1);
        KWK_CASE(2);
        KWK_CASE(3);
        KWK_CASE(4);
        KWK_CASE(5);
        KWK_CASE(6);
        KWK_CASE(7);
        KWK_CASE(8);
#undef KWK_CASE
    }
}

/* Superblock of n groups to bytes [n][8][16 rows][4] and group scales [n][2][16 rows]. */
KWK_INLINE void kwk_scaled_expand(const kwk_format format, uint8_t *u, float *s, const uint8_t *w,
                                  int n)
{
    const __m512i spread = _mm512_set1_epi32(0x01010101);
    const uint8_t *sc = w + 32;

    w += 32 + 16 * n;
    for (int g = 0; g < 2 * n; g++, w += kwk_group_bytes(format) / 2, u += 256) { // 16 columns
        const __m512i by = kwk_load_group(sc + 16 * (g / 2));
        const __m512i offset = _mm512_mullo_epi32(kwk_group_offset(format, by), spread);
        __m512i v[4];

        _mm512_storeu_ps(s + 32 * (g / 2), kwk_group_scale(format, by));
        kwk_unpack(format, v, w);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            _mm512_store_si512(u + 64 * i, _mm512_add_epi8(v[i], offset));
    }
}

KWK_INLINE void kwk_scaled_gemm(const kwk_format format, const kwk_matmul *a)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    uint8_t *u0 = a->scratch, *u1 = u0 + 512 * KWK_SUPER_GROUPS;
    float *s = (float *)(u1 + 512 * KWK_SUPER_GROUPS);

    for (int tile = a->tile0; tile < a->tile1; tile++) {
        const uint8_t *w0 = kwk_int_panel(a->w, tile, 0), *w1 = kwk_int_panel(a->w, tile, 1);

        for (int g = 0; g < n_groups; g += KWK_SUPER_GROUPS) {
            const int n = kwk_super_groups(n_groups, g);
            const kwk_tile_super b = {{u0, u1},
                                      {w0, w1},
                                      s,
                                      kwk_group_center(format),
                                      n,
                                      g == 0,
                                      g + n == n_groups,
                                      kwk_exp2i(a->w->exponent)};

            kwk_scaled_expand(format, u0, s, w0, n);
            kwk_scaled_expand(format, u1, s + 16, w1, n);
            kwk_tile_sweep(1, &b, a, g, a->y + (size_t)tile * KWK_TILE);
            w0 += kwk_super_bytes(format, n);
            w1 += kwk_super_bytes(format, n);
        }
    }
}

#endif
