/* SPDX-License-Identifier: Apache-2.0
 *
 * I6 and I4 products with AVX2: the formats whose groups have a scale and an offset. One or two
 * tokens read a panel as one stream and decode in registers; for more, a superblock of a panel is
 * expanded to bytes in the first cache and taken through all of them: that costs as much as half a
 * token. `format` is a constant after inlining.
 */
#ifndef KWK_KERNELS_INT_SCALED_AVX2_H
#define KWK_KERNELS_INT_SCALED_AVX2_H

#include "kernels/int_avx2.h"

enum { KWK_RUN_TOKENS = 4 }; // of a sweep: their sums for 16 rows fill half the registers

/* What 8 rows of a group multiply by, as int16 pairs. */
typedef struct kwk_group_scales {
    __m256i s;      // (s, s), for pairs of products
    __m256i offset; // (s * (offset - center), 0), for the low half of a sum of activations
} kwk_group_scales;

/* A superblock of a panel, ready to be multiplied. */
typedef struct kwk_panel_super {
    const uint8_t *scale;       // its fp16 scales
    const uint8_t *u;           // [n][8][16 rows][4] codes, I4: grid values
    const kwk_group_scales *by; // [n][2]
    int n;                      // groups
    int first, last;            // y starts here; ends here
    __m256 unit;
} kwk_panel_super;

KWK_INLINE void kwk_load_scales(const kwk_format format, const uint8_t *sc, kwk_group_scales out[2])
{
    const int six = format == KWK_I6; // s in bits 7..2, steps of 4; else 7..3, steps of 2
    const __m128i b = _mm_loadu_si128((const __m128i *)sc), zero = _mm_setzero_si128();
    const __m128i biased =
        _mm_and_si128(_mm_srli_epi16(b, six ? 2 : 3), _mm_set1_epi8(six ? 63 : 31));
    const __m128i s = _mm_sub_epi8(biased, _mm_set1_epi8(six ? 32 : 16));
    const __m128i o = _mm_and_si128(b, _mm_set1_epi8(six ? 3 : 7));
    const __m128i z = _mm_sub_epi8(_mm_slli_epi16(o, six ? 2 : 1),
                                   _mm_set1_epi8(six ? KWK_I6_CENTER : KWK_I4_CENTER));

    out[0].s = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(s, s));
    out[1].s = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(s, s));
    out[0].offset = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(z, zero));
    out[1].offset = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(z, zero));
    out[0].offset = _mm256_mullo_epi16(out[0].offset, out[0].s);
    out[1].offset = _mm256_mullo_epi16(out[1].offset, out[1].s);
}

/* The codes of 8 rows and 16 columns at w, I4: their grid values; 4 columns in each v. */
KWK_INLINE void kwk_unpack(const kwk_format format, __m256i v[4], const uint8_t *w)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i l0 = kwk_load32(w), l1 = kwk_load32(w + 64);

    v[0] = _mm256_and_si256(l0, nibble);
    v[1] = _mm256_and_si256(_mm256_srli_epi16(l0, 4), nibble);
    v[2] = _mm256_and_si256(l1, nibble);
    v[3] = _mm256_and_si256(_mm256_srli_epi16(l1, 4), nibble);
    if (format == KWK_I6) {
        const __m256i pair = _mm256_set1_epi8(0x30), h = kwk_load32(w + 128);
        v[0] = _mm256_or_si256(v[0], _mm256_and_si256(_mm256_slli_epi16(h, 4), pair));
        v[1] = _mm256_or_si256(v[1], _mm256_and_si256(_mm256_slli_epi16(h, 2), pair));
        v[2] = _mm256_or_si256(v[2], _mm256_and_si256(h, pair));
        v[3] = _mm256_or_si256(v[3], _mm256_and_si256(_mm256_srli_epi16(h, 2), pair));
    } else {
        const __m256i grid =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)kwk_i4_grid));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            v[i] = _mm256_shuffle_epi8(grid, v[i]);
    }
}

/* acc += per lane (8 rows) the 8 products of unsigned u and v with signed x and y, times the int16
 * pair by. Four products of 6-bit codes fit int16, so the two sums meet there. */
KWK_INLINE __m256i kwk_dot8(const kwk_format format, __m256i acc, __m256i u, __m256i x, __m256i v,
                            __m256i y, __m256i by)
{
    if (format == KWK_I6) {
        const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(u, x), _mm256_maddubs_epi16(v, y));
        return kwk_add_in_place(acc, _mm256_madd_epi16(p, by));
    }
    return kwk_dot4(kwk_dot4(acc, u, x, by), v, y, by);
}

/* y of 16 rows and T tokens, 1 or 2. The stream of weights ends at end. */
KWK_INLINE void kwk_scaled_panel(const kwk_format format, const int T, const kwk_matmul *a,
                                 const uint8_t *w, const uint8_t *end, float *y)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP, bytes = kwk_group_bytes(format);
    const __m256 unit = _mm256_set1_ps(kwk_exp2i(a->w->exponent));
    const kwk_qact *q = a->q;
    const int8_t *x = q->q;

    for (int g = 0; g < n_groups;) {
        const int n = kwk_super_groups(n_groups, g), stop = g + n, first = g == 0;
        const uint8_t *super = w, *sc = w + 32;
        __m256 acc[2][2];

#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
            acc[0][t] = acc[1][t] = _mm256_setzero_ps();
        for (w += 32 + 16 * n; g < stop; g++, w += bytes, sc += 16, x += KWK_GROUP) {
            kwk_group_scales by[2];
            __m256i d[2][2];

            kwk_ask_ahead(w, bytes, end);
            kwk_load_scales(format, sc, by);
#pragma GCC unroll 2
            for (int t = 0; t < T; t++) {
                const __m256i sum = _mm256_set1_epi32(q->sum[(size_t)t * q->lds + (size_t)g]);
                d[0][t] = _mm256_madd_epi16(by[0].offset, sum);
                d[1][t] = _mm256_madd_epi16(by[1].offset, sum);
            }
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) { // 16 columns
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) { // 8 rows
                    __m256i v[4];

                    kwk_unpack(format, v, w + bytes / 2 * half + 32 * h);
#pragma GCC unroll 2
                    for (int t = 0; t < T; t++) {
                        const int8_t *xt = x + (size_t)t * q->ldq + 16 * half;
                        d[h][t] = kwk_dot8(format, d[h][t], v[0], kwk_bytes4(xt), v[1],
                                           kwk_bytes4(xt + 4), by[h].s);
                        d[h][t] = kwk_dot8(format, d[h][t], v[2], kwk_bytes4(xt + 8), v[3],
                                           kwk_bytes4(xt + 12), by[h].s);
                    }
                }
            }
#pragma GCC unroll 2
            for (int t = 0; t < T; t++) {
                const float scale = q->scale[(size_t)t * q->lds + (size_t)g];
                acc[0][t] = kwk_add_group(acc[0][t], d[0][t], scale);
                acc[1][t] = kwk_add_group(acc[1][t], d[1][t], scale);
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
            float *out = y + (size_t)t * a->ldy;
            kwk_super_end(out, acc[0][t], kwk_scales8(super, 0), first, stop == n_groups, unit);
            kwk_super_end(out + 8, acc[1][t], kwk_scales8(super, 1), first, stop == n_groups, unit);
        }
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

/* Superblock of n groups to u and by. The stream of weights ends at end. */
KWK_INLINE void kwk_scaled_expand(const kwk_format format, uint8_t *u, kwk_group_scales *by,
                                  const uint8_t *w, int n, const uint8_t *end)
{
    const int bytes = kwk_group_bytes(format);
    const uint8_t *sc = w + 32;

    w += 32 + 16 * n;
    for (int g = 0; g < n; g++, w += bytes, sc += 16, u += 512, by += 2) {
        kwk_ask_ahead(w, bytes, end);
        kwk_load_scales(format, sc, by);
        for (int i = 0; i < 4; i++) { // 16 columns of 8 rows
            uint8_t *to = u + i / 2 * 256 + i % 2 * 32;
            __m256i v[4];

            kwk_unpack(format, v, w + bytes / 2 * (i / 2) + 32 * (i % 2));
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                _mm256_store_si256((__m256i *)(to + 64 * k), v[k]);
        }
    }
}

/* y of 16 rows and T tokens from a superblock. x, scale and sum point at its first group of the
 * first token, y at the first row. */
KWK_INLINE void kwk_scaled_tokens(const kwk_format format, const int T, const kwk_panel_super *b,
                                  const int8_t *x, size_t ldx, const float *scale,
                                  const int32_t *sum, size_t lds, float *y, size_t ldy)
{
    const uint8_t *u = b->u;
    __m256 acc[2][KWK_RUN_TOKENS];

#pragma GCC unroll 16
    for (int t = 0; t < T; t++)
        acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (int g = 0; g < b->n; g++, u += 512, x += KWK_GROUP) {
        const kwk_group_scales *by = b->by + 2 * g;
        __m256i d[2][KWK_RUN_TOKENS];

#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
            const __m256i v = _mm256_set1_epi32(sum[(size_t)t * lds + (size_t)g]);
            d[0][t] = _mm256_madd_epi16(by[0].offset, v);
            d[1][t] = _mm256_madd_epi16(by[1].offset, v);
        }
        for (int j = 0; j < 4; j++) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const __m256i w0 = kwk_load32(u + 128 * j + 32 * h);
                const __m256i w1 = kwk_load32(u + 128 * j + 64 + 32 * h);
#pragma GCC unroll 16
                for (int t = 0; t < T; t++) {
                    const int8_t *xt = x + (size_t)t * ldx + 8 * j;
                    d[h][t] = kwk_dot8(format, d[h][t], w0, kwk_bytes4(xt), w1, kwk_bytes4(xt + 4),
                                       by[h].s);
                }
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
            const float by_x = scale[(size_t)t * lds + (size_t)g];
            acc[0][t] = kwk_add_group(acc[0][t], d[0][t], by_x);
            acc[1][t] = kwk_add_group(acc[1][t], d[1][t], by_x);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
        float *out = y + (size_t)t * ldy;
        kwk_super_end(out, acc[0][t], kwk_scales8(b->scale, 0), b->first, b->last, b->unit);
        kwk_super_end(out + 8, acc[1][t], kwk_scales8(b->scale, 1), b->first, b->last, b->unit);
    }
}

/* Superblocks expanded once and taken through all tokens. */
KWK_INLINE void kwk_scaled_sweep(const kwk_format format, const kwk_matmul *a)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const kwk_qact *q = a->q;
    uint8_t *u = a->scratch;
    kwk_group_scales *by = (kwk_group_scales *)(u + 512 * KWK_SUPER_GROUPS);
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0), *end = kwk_int_panel(a->w, a->tile1, 0);

    for (int p = 2 * a->tile0; p < 2 * a->tile1; p++) {
        for (int g = 0; g < n_groups; g += KWK_SUPER_GROUPS) {
            const int n = kwk_super_groups(n_groups, g);
            const kwk_panel_super b = {
                w, u, by, n, g == 0, g + n == n_groups, _mm256_set1_ps(kwk_exp2i(a->w->exponent))};

            kwk_scaled_expand(format, u, by, w, n, end);
            for (int t = 0; t < a->m; t += KWK_RUN_TOKENS) {
                const int8_t *x = q->q + (size_t)t * q->ldq + (size_t)g * KWK_GROUP;
                const float *scale = q->scale + (size_t)t * q->lds + g;
                const int32_t *sum = q->sum + (size_t)t * q->lds + g;
                float *y = a->y + (size_t)t * a->ldy + (size_t)p * KWK_PANEL;

                switch (a->m - t) {
#define KWK_RUN(T)                                                                                 \
    kwk_scaled_tokens(format, T, &b, x, q->ldq, scale, sum, q->lds, y, a->ldy);                    \
    break
                case 1:
                    KWK_RUN(1);
                case 2:
                    KWK_RUN(2);
                case 3:
                    KWK_RUN(3);
                default:
                    KWK_RUN(4);
#undef KWK_RUN
                }
            }
            w += kwk_super_bytes(format, n);
        }
    }
}

#endif
