/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32 and attn_f16 for AVX-512. Up to 8 queries go through the registers together, so that
 * every register of K and V is loaded (and converted) once for all of them: 8 × 32 slots for the
 * dot products, 8 × 32 … 1 × 128 dimensions for the output. `half` and the tile sizes are
 * constants after inlining; the tiles are chosen so that nothing spills.
 */
#ifndef KWK_KERNELS_ATTN_AVX512_H
#define KWK_KERNELS_ATTN_AVX512_H

#include "kernels/attn.h"
#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

#define KWK_INLINE static inline __attribute__((always_inline))

KWK_INLINE __m512 attn_load(const void *block, size_t i, int half)
{
    return half ? _mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)block + i)))
                : _mm512_loadu_ps((const float *)block + i);
}

KWK_INLINE __m512 attn_load_tail(const void *block, size_t i, __mmask16 m, int half)
{
    return half ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, (const uint16_t *)block + i))
                : _mm512_maskz_loadu_ps(m, (const float *)block + i);
}

/* t = q K * scale for n queries. */
KWK_INLINE void attn_dots(const kwk_attn_group *g, const int n, const int half)
{
    const kwk_attn *a = g->a;
    const __m512 scale = _mm512_set1_ps(a->scale);
    const size_t dim = (size_t)a->dim;
    const float *q[KWK_ATTN_GROUP];

    for (int i = 0; i < n; i++)
        q[i] = g->query[i].q;
    for (int b = 0; b < a->n_blocks; b++) {
        const char *next = kwk_attn_after_k(g, b);
        __m512 t[KWK_ATTN_GROUP][2];
        if (!g->any[b])
            continue;
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            t[i][0] = t[i][1] = _mm512_setzero_ps();
        for (size_t d = 0; d < dim; d++) {
            const __m512 k0 = attn_load(a->k[b], d * KWK_BLOCK, half);
            const __m512 k1 = attn_load(a->k[b], d * KWK_BLOCK + 16, half);
            _mm_prefetch(next + d * (half ? 64 : 128), _MM_HINT_T0);
            if (!half)
                _mm_prefetch(next + d * 128 + 64, _MM_HINT_T0);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) {
                const __m512 x = _mm512_set1_ps(q[i][d]);
                t[i][0] = _mm512_fmadd_ps(x, k0, t[i][0]);
                t[i][1] = _mm512_fmadd_ps(x, k1, t[i][1]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            float *to = g->t + i * KWK_SPLIT + b * KWK_BLOCK;
            _mm512_store_ps(to, _mm512_mul_ps(t[i][0], scale));
            _mm512_store_ps(to + 16, _mm512_mul_ps(t[i][1], scale));
        }
    }
}

/* One query: t to p, and part's max and sum. */
static inline void attn_softmax(const kwk_attn_group *g, int i)
{
    const kwk_attn *a = g->a;
    const __m512 least = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(a->softcap);
    float *t = g->t + i * KWK_SPLIT, *part = g->query[i].part;
    __m512 max = least, sum = _mm512_setzero_ps();

    for (int j = 0; j < a->n_blocks * KWK_BLOCK; j += 16) {
        const __mmask16 m = (__mmask16)(g->seen[i][j / KWK_BLOCK] >> (j % KWK_BLOCK));
        __m512 v;
        if (!m)
            continue;
        v = _mm512_load_ps(t + j);
        if (a->softcap > 0)
            v = _mm512_mul_ps(cap, kwk_tanh16(_mm512_div_ps(v, cap)));
        _mm512_store_ps(t + j, v);
        max = _mm512_max_ps(_mm512_mask_mov_ps(least, m, v), max); // passes over NaN
    }
    max = _mm512_set1_ps(_mm512_reduce_max_ps(max));
    for (int j = 0; j < a->n_blocks * KWK_BLOCK; j += 16) {
        const __mmask16 m = (__mmask16)(g->seen[i][j / KWK_BLOCK] >> (j % KWK_BLOCK));
        __m512 p = _mm512_setzero_ps();
        if (!g->any[j / KWK_BLOCK])
            continue;
        if (m)
            p = _mm512_maskz_mov_ps(m, kwk_exp16(_mm512_sub_ps(_mm512_load_ps(t + j), max)));
        _mm512_store_ps(t + j, p);
        sum = _mm512_add_ps(sum, p);
    }
    part[0] = _mm512_cvtss_f32(max) + 0.0f;
    part[1] = kwk_lane_sum16(sum);
}

/* o[d0 ...] of n queries over block b, c registers of 16 dimensions each; the only one of c == 1
 * has the lanes of m. Blocks before b are in part already. Adding +0 after each block instead of at
 * the end changes no bit: the sign of a zero is all that it can change, in between too. */
KWK_INLINE void attn_out(const kwk_attn_group *g, int b, int d0, const int n, const int c,
                         __mmask16 m, const int half)
{
    const size_t dim = (size_t)g->a->dim;
    const void *block = g->a->v[b];
    const char *next = kwk_attn_after_v(g, b) + d0 * KWK_BLOCK * (half ? 2 : 4);
    const int step = c * 16 * (half ? 2 : 4); // bytes of a slot's share, of what is prefetched too
    uint32_t set = g->any[b];
    __m512 o[KWK_ATTN_GROUP][8];
    int lo, hi;

#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        const float *from = g->query[i].part + 2 + d0;
#pragma GCC unroll 8
        for (int e = 0; e < c; e++)
            o[i][e] = b == 0   ? _mm512_setzero_ps()
                      : c == 1 ? _mm512_maskz_loadu_ps(m, from)
                               : _mm512_loadu_ps(from + e * 16);
    }
    while (kwk_attn_run(&set, &lo, &hi)) {
        const float *p = g->t + b * KWK_BLOCK + lo;
        size_t at = (size_t)lo * dim + (size_t)d0;
        for (int j = lo; j < hi; j++, p++, at += dim) {
            __m512 v[8];
#pragma GCC unroll 8
            for (int z = 0; z < step; z += 64)
                _mm_prefetch(next + j * step + z, _MM_HINT_T0);
#pragma GCC unroll 8
            for (int e = 0; e < c; e++)
                v[e] = c == 1 ? attn_load_tail(block, at, m, half)
                              : attn_load(block, at + (size_t)e * 16, half);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) {
                const __m512 x = _mm512_set1_ps(p[i * KWK_SPLIT]);
#pragma GCC unroll 8
                for (int e = 0; e < c; e++)
                    o[i][e] = _mm512_fmadd_ps(x, v[e], o[i][e]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        float *to = g->query[i].part + 2 + d0;
#pragma GCC unroll 8
        for (int e = 0; e < c; e++) {
            const __m512 r = _mm512_add_ps(o[i][e], _mm512_setzero_ps());
            if (c == 1)
                _mm512_mask_storeu_ps(to, m, r);
            else
                _mm512_storeu_ps(to + e * 16, r);
        }
    }
}

KWK_INLINE void attn_group(const kwk_attn_group *g, const int n, const int half)
{
    const int dim = g->a->dim;

    attn_dots(g, n, half);
    for (int i = 0; i < n; i++)
        attn_softmax(g, i);
    for (int b = 0; b < g->a->n_blocks; b++) {
        int d = 0;
        if (b > 0 && !g->any[b])
            continue;
        if (n <= 2)
            for (; d + 128 <= dim; d += 128)
                attn_out(g, b, d, n, 8, 0, half);
        if (n <= 5)
            for (; d + 64 <= dim; d += 64)
                attn_out(g, b, d, n, 4, 0, half);
        for (; d + 32 <= dim; d += 32)
            attn_out(g, b, d, n, 2, 0, half);
        for (; d < dim; d += 16)
            attn_out(g, b, d, n, 1, kwk_mask16(dim - d), half);
    }
}

KWK_INLINE void kwk_attn_avx512(const kwk_attn *a, const int half)
{
    kwk_attn_group g;
    int n;

    for (int i = 0; i < a->n_queries; i += n) {
        n = a->n_queries - i < KWK_ATTN_GROUP ? a->n_queries - i : KWK_ATTN_GROUP;
        kwk_attn_group_init(&g, a, i, n);
        switch (n) {
        case 1:
            attn_group(&g, 1, half);
            break;
        case 2:
            attn_group(&g, 2, half);
            break;
        case 3:
            attn_group(&g, 3, half);
            break;
        case 4:
            attn_group(&g, 4, half);
            break;
        case 5:
            attn_group(&g, 5, half);
            break;
        case 6:
            attn_group(&g, 6, half);
            break;
        case 7:
            attn_group(&g, 7, half);
            break;
        default:
            attn_group(&g, 8, half);
        }
    }
}

#endif
