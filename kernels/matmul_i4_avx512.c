/* SPDX-License-Identifier: Apache-2.0
 *
 * I4 products with AVX-512 VNNI. gemv and small batches read a panel as one stream, all tokens at
 * once, and look the codes up in a register; gemm expands a superblock of a tile to bytes once, in
 * the first cache, and takes it through all tokens.
 */
#include "kernels/int_avx512.h"

/* Low and high codes of 64 bytes as grid values. */
KWK_INLINE void look_up(const uint8_t *w, __m512i grid, __m512i *low, __m512i *high)
{
    const __m512i mask = _mm512_set1_epi8(15), v = _mm512_loadu_si512(w);

    *low = _mm512_shuffle_epi8(grid, _mm512_and_si512(v, mask));
    *high = _mm512_shuffle_epi8(grid, _mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
}

KWK_INLINE __m512i load_grid(void)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kwk_i4_grid));
}

KWK_INLINE __m512i load_group_bytes(const uint8_t *sc)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)sc));
}

KWK_INLINE __m512 group_scale(__m512i sc)
{
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(sc, 3), _mm512_set1_epi32(16)));
}

KWK_INLINE __m512i group_offset(__m512i sc) // 2 o
{
    return _mm512_slli_epi32(_mm512_and_si512(sc, _mm512_set1_epi32(7)), 1);
}

/* y of 16 rows and T tokens. The stream of weights ends at end. */
KWK_INLINE void panel_tokens(const int T, const kwk_matmul *a, const uint8_t *w, const uint8_t *end,
                             float *y)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const __m512i center = _mm512_set1_epi32(KWK_I4_CENTER), grid = load_grid();
    const __m512 unit = _mm512_set1_ps(kwk_exp2i(a->w->exponent));
    const kwk_qact *q = a->q;
    const int8_t *x = q->q;

    for (int g = 0; g < n_groups;) {
        const int n = kwk_super_groups(n_groups, g), stop = g + n;
        const int first = g == 0;
        const __m512 super = kwk_scales16(w);
        const uint8_t *sc = w + 32;
        __m512 acc[KWK_SMALL];

#pragma GCC unroll 16
        for (int t = 0; t < T; t++)
            acc[t] = _mm512_setzero_ps();
        for (w += 32 + 16 * n; g < stop; g++, w += 256, sc += 16, x += KWK_GROUP) {
            const __m512i bytes = load_group_bytes(sc);
            const __m512 s = group_scale(bytes);
            /* As int16 beside a 0, for the low half of a sum of activations. */
            const __m512i offset = _mm512_and_si512(_mm512_sub_epi32(group_offset(bytes), center),
                                                    _mm512_set1_epi32(0xffff));
            __m512i d[KWK_SMALL];

            kwk_ask_ahead(w, 256, end);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++)
                d[t] = _mm512_dpwssd_epi32(_mm512_setzero_si512(), offset,
                                           _mm512_set1_epi32(q->sum[(size_t)t * q->lds + g]));
#pragma GCC unroll 16
            for (int j = 0; j < 4; j++) {
                __m512i low, high;
                look_up(w + 64 * j, grid, &low, &high);
#pragma GCC unroll 16
                for (int t = 0; t < T; t++) {
                    const int8_t *xt = x + (size_t)t * q->ldq + 8 * j;
                    d[t] = kwk_dot4(d[t], low, kwk_bytes4(xt));
                    d[t] = kwk_dot4(d[t], high, kwk_bytes4(xt + 4));
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

KWK_INLINE void panels(const int T, const kwk_matmul *a)
{
    const size_t bytes = kwk_mat_tile_bytes(a->w->format, a->w->cols_pad) / 2;
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0), *end = kwk_int_panel(a->w, a->tile1, 0);
    float *y = a->y + (size_t)a->tile0 * KWK_TILE;

    for (; w < end; w += bytes, y += KWK_PANEL)
        panel_tokens(T, a, w, end, y);
}

void kwk_gemv_i4__avx512(const kwk_matmul *a)
{
    panels(1, a);
}

void kwk_small_i4__avx512(const kwk_matmul *a)
{
    switch (a->m) {
#define CASE(T)                                                                                    \
    case T:                                                                                        \
        panels(T, a);                                                                              \
        break
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
#undef CASE
    }
}

/* Superblock of n groups to bytes [n][8][16 rows][4] and group scales [n][2][16 rows]. */
static void expand(uint8_t *u, float *s, const uint8_t *w, int n)
{
    const __m512i spread = _mm512_set1_epi32(0x01010101), grid = load_grid();
    const uint8_t *sc = w + 32;

    w += 32 + 16 * n;
    for (int g = 0; g < n; g++, w += 256, sc += 16, u += 512, s += 32) {
        const __m512i bytes = load_group_bytes(sc);
        const __m512i offset = _mm512_mullo_epi32(group_offset(bytes), spread);

        _mm512_storeu_ps(s, group_scale(bytes));
        for (int j = 0; j < 4; j++) {
            __m512i low, high;
            look_up(w + 64 * j, grid, &low, &high);
            _mm512_store_si512(u + 128 * j, _mm512_add_epi8(low, offset));
            _mm512_store_si512(u + 128 * j + 64, _mm512_add_epi8(high, offset));
        }
    }
}

static void gemm(const kwk_matmul *a)
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
                                      KWK_I4_CENTER,
                                      n,
                                      g == 0,
                                      g + n == n_groups,
                                      kwk_exp2i(a->w->exponent)};

            expand(u0, s, w0, n);
            expand(u1, s + 16, w1, n);
            kwk_tile_sweep(1, &b, a, g, a->y + (size_t)tile * KWK_TILE);
            w0 += kwk_super_bytes(KWK_I4, n);
            w1 += kwk_super_bytes(KWK_I4, n);
        }
    }
}

void kwk_gemm_i4__avx512(const kwk_matmul *a)
{
    kwk_in_runs(a, gemm);
}
