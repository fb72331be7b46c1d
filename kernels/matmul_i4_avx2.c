/* SPDX-License-Identifier: Apache-2.0
 *
 * I4 products with AVX2. One or two tokens read a panel as one stream and look the codes up in a
 * register; for more, a superblock of a panel is expanded to bytes in the first cache and taken
 * through all of them: that costs as much as half a token.
 */
#include "kernels/int_avx2.h"

/* What 8 rows of a group multiply by, as int16 pairs. */
typedef struct group_scales {
    __m256i s;      // (s, s), for pairs of products
    __m256i offset; // (s * (2 o - center), 0), for the low half of a sum of activations
} group_scales;

KWK_INLINE void load_scales(const uint8_t *sc, group_scales out[2])
{
    const __m128i b = _mm_loadu_si128((const __m128i *)sc), zero = _mm_setzero_si128();
    const __m128i s =
        _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(b, 3), _mm_set1_epi8(31)), _mm_set1_epi8(16));
    const __m128i o = _mm_and_si128(b, _mm_set1_epi8(7));
    const __m128i z = _mm_sub_epi8(_mm_add_epi8(o, o), _mm_set1_epi8(KWK_I4_CENTER));

    out[0].s = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(s, s));
    out[1].s = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(s, s));
    out[0].offset = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(z, zero));
    out[1].offset = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(z, zero));
    out[0].offset = _mm256_mullo_epi16(out[0].offset, out[0].s);
    out[1].offset = _mm256_mullo_epi16(out[1].offset, out[1].s);
}

KWK_INLINE __m256i load_grid(void)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)kwk_i4_grid));
}

/* Low and high codes of 32 bytes as grid values. */
KWK_INLINE void look_up(const uint8_t *w, __m256i grid, __m256i *low, __m256i *high)
{
    const __m256i mask = _mm256_set1_epi8(15), v = kwk_load32(w);

    *low = _mm256_shuffle_epi8(grid, _mm256_and_si256(v, mask));
    *high = _mm256_shuffle_epi8(grid, _mm256_and_si256(_mm256_srli_epi16(v, 4), mask));
}

/* y of 16 rows and T tokens, 1 or 2. The stream of weights ends at end. */
KWK_INLINE void panel_tokens(const int T, const kwk_matmul *a, const uint8_t *w, const uint8_t *end,
                             float *y)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const __m256 unit = _mm256_set1_ps(kwk_exp2i(a->w->exponent));
    const __m256i grid = load_grid();
    const kwk_qact *q = a->q;
    const int8_t *x = q->q;

    for (int g = 0; g < n_groups;) {
        const int n = kwk_super_groups(n_groups, g), stop = g + n, first = g == 0;
        const uint8_t *super = w, *sc = w + 32;
        __m256 acc0[2], acc1[2];

#pragma GCC unroll 2
        for (int t = 0; t < T; t++)
            acc0[t] = acc1[t] = _mm256_setzero_ps();
        for (w += 32 + 16 * n; g < stop; g++, w += 256, sc += 16, x += KWK_GROUP) {
            group_scales by[2];
            __m256i d0[2], d1[2];

            kwk_ask_ahead(w, 256, end);
            load_scales(sc, by);
#pragma GCC unroll 2
            for (int t = 0; t < T; t++) {
                const __m256i sum = _mm256_set1_epi32(q->sum[(size_t)t * q->lds + (size_t)g]);
                d0[t] = _mm256_madd_epi16(by[0].offset, sum);
                d1[t] = _mm256_madd_epi16(by[1].offset, sum);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                __m256i low0, high0, low1, high1;

                look_up(w + 64 * j, grid, &low0, &high0);
                look_up(w + 64 * j + 32, grid, &low1, &high1);
#pragma GCC unroll 2
                for (int t = 0; t < T; t++) {
                    const int8_t *xt = x + (size_t)t * q->ldq + 8 * j;
                    const __m256i v = kwk_bytes4(xt), u = kwk_bytes4(xt + 4);
                    d0[t] = kwk_dot4(kwk_dot4(d0[t], low0, v, by[0].s), high0, u, by[0].s);
                    d1[t] = kwk_dot4(kwk_dot4(d1[t], low1, v, by[1].s), high1, u, by[1].s);
                }
            }
#pragma GCC unroll 2
            for (int t = 0; t < T; t++) {
                const float scale = q->scale[(size_t)t * q->lds + (size_t)g];
                acc0[t] = kwk_add_group(acc0[t], d0[t], scale);
                acc1[t] = kwk_add_group(acc1[t], d1[t], scale);
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
            float *out = y + (size_t)t * a->ldy;
            kwk_super_end(out, acc0[t], kwk_scales8(super, 0), first, stop == n_groups, unit);
            kwk_super_end(out + 8, acc1[t], kwk_scales8(super, 1), first, stop == n_groups, unit);
        }
    }
}

KWK_INLINE void panels(const int T, const kwk_matmul *a)
{
    const size_t bytes = kwk_mat_tile_bytes(a->w->format, a->w->cols_pad) / 2;
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0), *end = kwk_int_panel(a->w, a->tile1, 0);
    float *y = a->y + (size_t)a->tile0 * KWK_TILE;

    for (; w < end; w += bytes, y += KWK_PANEL)
        panel_tokens(T, a, w, end, y);
}

/* A superblock of a panel, ready to be multiplied. */
typedef struct super {
    const uint8_t *scale;   // its fp16 scales
    const uint8_t *u;       // [n][8][16 rows][4] grid values
    const group_scales *by; // [n][2]
    int n;                  // groups
    int first, last;        // y starts here; ends here
    __m256 unit;
} super;

/* Superblock of n groups to u and by. The stream of weights ends at end. */
static void expand(uint8_t *u, group_scales *by, const uint8_t *w, int n, const uint8_t *end)
{
    const __m256i grid = load_grid();
    const uint8_t *sc = w + 32;

    w += 32 + 16 * n;
    for (int g = 0; g < n; g++, w += 256, sc += 16, u += 512, by += 2) {
        kwk_ask_ahead(w, 256, end);
        load_scales(sc, by);
        for (int j = 0; j < 8; j++) { // 32 bytes each
            __m256i low, high;
            uint8_t *to = u + j / 2 * 128 + j % 2 * 32;
            look_up(w + 32 * j, grid, &low, &high);
            _mm256_store_si256((__m256i *)to, low);
            _mm256_store_si256((__m256i *)(to + 64), high);
        }
    }
}

/* y of 16 rows and T tokens from a superblock. x, scale and sum point at its first group of the
 * first token, y at the first row. */
KWK_INLINE void super_tokens(const int T, const super *b, const int8_t *x, size_t ldx,
                             const float *scale, const int32_t *sum, size_t lds, float *y,
                             size_t ldy)
{
    const uint8_t *u = b->u;
    __m256 acc[2][KWK_RUN_TOKENS];

#pragma GCC unroll 16
    for (int t = 0; t < T; t++)
        acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (int g = 0; g < b->n; g++, u += 512, x += KWK_GROUP) {
        const group_scales *by = b->by + 2 * g;
        const __m256i s0 = by[0].s, s1 = by[1].s;
        __m256i d0[KWK_RUN_TOKENS], d1[KWK_RUN_TOKENS];

#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
            const __m256i v = _mm256_set1_epi32(sum[(size_t)t * lds + (size_t)g]);
            d0[t] = _mm256_madd_epi16(by[0].offset, v);
            d1[t] = _mm256_madd_epi16(by[1].offset, v);
        }
        for (int j = 0; j < 8; j++) {
            const __m256i w0 = kwk_load32(u + 64 * j), w1 = kwk_load32(u + 64 * j + 32);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) {
                const __m256i v = kwk_bytes4(x + (size_t)t * ldx + 4 * j);
                d0[t] = kwk_dot4(d0[t], w0, v, s0);
                d1[t] = kwk_dot4(d1[t], w1, v, s1);
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
            const float by_x = scale[(size_t)t * lds + (size_t)g];
            acc[0][t] = kwk_add_group(acc[0][t], d0[t], by_x);
            acc[1][t] = kwk_add_group(acc[1][t], d1[t], by_x);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
        float *out = y + (size_t)t * ldy;
        kwk_super_end(out, acc[0][t], kwk_scales8(b->scale, 0), b->first, b->last, b->unit);
        kwk_super_end(out + 8, acc[1][t], kwk_scales8(b->scale, 1), b->first, b->last, b->unit);
    }
}

/* All tokens. g0 is the first group of the superblock. */
static void super_sweep(const super *b, const kwk_matmul *a, int g0, float *y)
{
    const kwk_qact *q = a->q;

    for (int t = 0; t < a->m; t += KWK_RUN_TOKENS) {
        const int8_t *x = q->q + (size_t)t * q->ldq + (size_t)g0 * KWK_GROUP;
        const float *scale = q->scale + (size_t)t * q->lds + g0;
        const int32_t *sum = q->sum + (size_t)t * q->lds + g0;
        float *out = y + (size_t)t * a->ldy;

        switch (a->m - t) {
        case 1:
            super_tokens(1, b, x, q->ldq, scale, sum, q->lds, out, a->ldy);
            break;
        case 2:
            super_tokens(2, b, x, q->ldq, scale, sum, q->lds, out, a->ldy);
            break;
        case 3:
            super_tokens(3, b, x, q->ldq, scale, sum, q->lds, out, a->ldy);
            break;
        default:
            super_tokens(4, b, x, q->ldq, scale, sum, q->lds, out, a->ldy);
        }
    }
}

/* Superblocks expanded once and taken through all tokens. */
static void sweep(const kwk_matmul *a)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    uint8_t *u = a->scratch;
    group_scales *by = (group_scales *)(u + 512 * KWK_SUPER_GROUPS);
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0), *end = kwk_int_panel(a->w, a->tile1, 0);

    for (int p = 2 * a->tile0; p < 2 * a->tile1; p++) {
        for (int g = 0; g < n_groups; g += KWK_SUPER_GROUPS) {
            const int n = kwk_super_groups(n_groups, g);
            const super b = {
                w, u, by, n, g == 0, g + n == n_groups, _mm256_set1_ps(kwk_exp2i(a->w->exponent))};

            expand(u, by, w, n, end);
            super_sweep(&b, a, g, a->y + (size_t)p * KWK_PANEL);
            w += kwk_super_bytes(KWK_I4, n);
        }
    }
}

void kwk_gemv_i4__avx2(const kwk_matmul *a)
{
    panels(1, a);
}

void kwk_small_i4__avx2(const kwk_matmul *a)
{
    if (a->m == 1)
        panels(1, a);
    else if (a->m == 2)
        panels(2, a);
    else
        sweep(a);
}

void kwk_gemm_i4__avx2(const kwk_matmul *a)
{
    kwk_in_runs(a, sweep);
}
