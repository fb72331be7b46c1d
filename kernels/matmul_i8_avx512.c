/* SPDX-License-Identifier: Apache-2.0
 *
 * I8 products with AVX-512 VNNI. gemv and small batches read a panel as one stream, all tokens at
 * once; gemm takes a superblock of a tile, which stays in the first cache, through all tokens.
 */
#include "kernels/int_avx512.h"

enum { OFFSET = 128 };

/* y of 16 rows and T tokens. The stream of weights ends at end. */
KWK_INLINE void panel_tokens(const int T, const kwk_matmul *a, const uint8_t *w, const uint8_t *end,
                             float *y)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const __m512i minus = _mm512_set1_epi32((uint16_t)-OFFSET); // times the low half of a sum
    const __m512 unit = _mm512_set1_ps(kwk_exp2i(a->w->exponent));
    const kwk_qact *q = a->q;
    const int8_t *x = q->q;

    for (int g = 0; g < n_groups;) {
        const int stop = g + kwk_super_groups(n_groups, g);
        const int first = g == 0;
        const __m512 super = kwk_scales16(w);
        __m512 acc[KWK_SMALL];

#pragma GCC unroll 16
        for (int t = 0; t < T; t++)
            acc[t] = _mm512_setzero_ps();
        for (w += 32; g < stop; g++, w += 512, x += KWK_GROUP) {
            __m512i d[KWK_SMALL];

            kwk_ask_ahead(w, 512, end);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++)
                d[t] = _mm512_dpwssd_epi32(_mm512_setzero_si512(), minus,
                                           _mm512_set1_epi32(q->sum[(size_t)t * q->lds + g]));
#pragma GCC unroll 16
            for (int j = 0; j < 8; j++) {
                const __m512i u = _mm512_loadu_si512(w + 64 * j);
#pragma GCC unroll 16
                for (int t = 0; t < T; t++)
                    d[t] = kwk_dot4(d[t], u, kwk_bytes4(x + (size_t)t * q->ldq + 4 * j));
            }
#pragma GCC unroll 16
            for (int t = 0; t < T; t++)
                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[t]),
                                         _mm512_set1_ps(q->scale[(size_t)t * q->lds + g]), acc[t]);
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

void kwk_gemv_i8__avx512(const kwk_matmul *a)
{
    panels(1, a);
}

void kwk_small_i8__avx512(const kwk_matmul *a)
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

static void gemm(const kwk_matmul *a)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;

    for (int tile = a->tile0; tile < a->tile1; tile++) {
        const uint8_t *w0 = kwk_int_panel(a->w, tile, 0), *w1 = kwk_int_panel(a->w, tile, 1);

        for (int g = 0; g < n_groups; g += KWK_SUPER_GROUPS) {
            const int n = kwk_super_groups(n_groups, g);
            const kwk_tile_super b = {
                {w0 + 32, w1 + 32},       {w0, w1}, NULL, OFFSET, n, g == 0, g + n == n_groups,
                kwk_exp2i(a->w->exponent)};

            kwk_tile_sweep(0, &b, a, g, a->y + (size_t)tile * KWK_TILE);
            w0 += kwk_super_bytes(KWK_I8, n);
            w1 += kwk_super_bytes(KWK_I8, n);
        }
    }
}

void kwk_gemm_i8__avx512(const kwk_matmul *a)
{
    kwk_in_runs(a, gemm);
}
