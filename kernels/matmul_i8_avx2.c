/* SPDX-License-Identifier: Apache-2.0
 *
 * I8 products with AVX2. gemv and small batches read a panel as one stream, all tokens at once;
 * gemm takes a superblock of a panel, which stays in the first cache, through all tokens.
 */
#include "kernels/int_avx2.h"

/* Where a superblock of a panel meets a few tokens. */
typedef struct place {
    const uint8_t *w;   // superblock
    int n;              // its groups
    int first, last;    // y starts here; ends here
    const int8_t *x;    // its first group of the first token
    const float *scale; // the same
    float *y;           // first row of the first token
    size_t ldx, lds, ldy;
    __m256 unit;
} place;

/* y of rows 8 h to 8 h + 8 H of the panel, T tokens. The stream of weights ends at end; NULL: they
 * are in the cache. */
KWK_INLINE void rows_tokens(const int H, const int T, const place *p, int h0, const uint8_t *end)
{
    const __m256i ones = _mm256_set1_epi16(1), sign = _mm256_set1_epi8(-128);
    const uint8_t *w = p->w + 32 + 32 * h0;
    const int8_t *x = p->x;
    __m256 acc[2][KWK_SMALL];

#pragma GCC unroll 16
    for (int t = 0; t < T; t++)
        acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (int g = 0; g < p->n; g++, w += 512, x += KWK_GROUP) {
        __m256i d[2][KWK_SMALL];

        if (end)
            kwk_ask_ahead(w, 512, end);
#pragma GCC unroll 16
        for (int t = 0; t < T; t++)
            d[0][t] = d[1][t] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m256i v[2], size[2];

#pragma GCC unroll 2
            for (int h = 0; h < H; h++) {
                v[h] = _mm256_xor_si256(kwk_load32(w + 64 * j + 32 * h), sign);
                size[h] = _mm256_abs_epi8(v[h]);
            }
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) {
                const __m256i b = kwk_bytes4(x + (size_t)t * p->ldx + 4 * j);
#pragma GCC unroll 2
                for (int h = 0; h < H; h++)
                    d[h][t] = kwk_dot4(d[h][t], size[h], _mm256_sign_epi8(b, v[h]), ones);
            }
        }
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
#pragma GCC unroll 2
            for (int h = 0; h < H; h++)
                acc[h][t] =
                    kwk_add_group(acc[h][t], d[h][t], p->scale[(size_t)t * p->lds + (size_t)g]);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
#pragma GCC unroll 2
        for (int h = 0; h < H; h++)
            kwk_super_end(p->y + (size_t)t * p->ldy + 8 * (h0 + h), acc[h][t],
                          kwk_scales8(p->w, h0 + h), p->first, p->last, p->unit);
    }
}

/* The superblock at group g0 of panel p, tokens from t0 on. */
static place place_of(const kwk_matmul *a, const uint8_t *w, int p, int g0, int t0)
{
    const kwk_qact *q = a->q;
    const int n_groups = a->w->cols_pad / KWK_GROUP, n = kwk_super_groups(n_groups, g0);

    return (place){w,
                   n,
                   g0 == 0,
                   g0 + n == n_groups,
                   q->q + (size_t)t0 * q->ldq + (size_t)g0 * KWK_GROUP,
                   q->scale + (size_t)t0 * q->lds + g0,
                   a->y + (size_t)t0 * a->ldy + (size_t)p * KWK_PANEL,
                   q->ldq,
                   q->lds,
                   a->ldy,
                   _mm256_set1_ps(kwk_exp2i(a->w->exponent))};
}

/* Panels as one stream, T tokens, 1 or 2: the registers hold the sums of 16 rows. */
KWK_INLINE void panels(const int T, const kwk_matmul *a)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0), *end = kwk_int_panel(a->w, a->tile1, 0);

    for (int p = 2 * a->tile0; p < 2 * a->tile1; p++) {
        for (int g = 0; g < n_groups; g += KWK_SUPER_GROUPS) {
            const place at = place_of(a, w, p, g, 0);

            rows_tokens(2, T, &at, 0, end);
            w += kwk_super_bytes(KWK_I8, at.n);
        }
    }
}

/* Superblocks through all tokens: the registers hold the sums of 8 rows. */
static void sweep(const kwk_matmul *a)
{
    const int n_groups = a->w->cols_pad / KWK_GROUP;
    const uint8_t *w = kwk_int_panel(a->w, a->tile0, 0);

    for (int p = 2 * a->tile0; p < 2 * a->tile1; p++) {
        for (int g = 0; g < n_groups; g += KWK_SUPER_GROUPS) {
            for (int t = 0; t < a->m; t += KWK_SMALL) {
                const place at = place_of(a, w, p, g, t);

                for (int h = 0; h < 2; h++) {
                    switch (a->m - t) {
#define CASE(T)                                                                                    \
    case T:                                                                                        \
        rows_tokens(1, T, &at, h, NULL);                                                           \
        break
                        CASE(1);
                        CASE(2);
                        CASE(3);
                        CASE(4);
                        CASE(5);
                        CASE(6);
                        CASE(7);
                    default:
                        CASE(8);
#undef CASE
                    }
                }
            }
            w += kwk_super_bytes(KWK_I8, kwk_super_groups(n_groups, g));
        }
    }
}

void kwk_gemv_i8__avx2(const kwk_matmul *a)
{
    panels(1, a);
}

void kwk_small_i8__avx2(const kwk_matmul *a)
{
    if (a->m == 1)
        panels(1, a);
    else if (a->m == 2)
        panels(2, a);
    else
        sweep(a);
}

void kwk_gemm_i8__avx2(const kwk_matmul *a)
{
    kwk_in_runs(a, sweep);
}
