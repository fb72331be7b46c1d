/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32 and attn_f16 for AVX2. Up to 6 queries go through the registers together, so that every
 * register of K and V is loaded (and converted) once for all of them: 6 × 16 or 3 × 32 slots for
 * the dot products, 6 × 16, 3 × 32 or 1 × 64 dimensions for the output. `half` and the tile sizes
 * are constants after inlining; the tiles are chosen so that nothing spills.
 */
#ifndef KWK_KERNELS_ATTN_AVX2_H
#define KWK_KERNELS_ATTN_AVX2_H

#include <string.h>

#include "kernels/attn.h"
#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

#define KWK_INLINE static inline __attribute__((always_inline))

enum { ATTN_GROUP_AVX2 = 6 };

KWK_INLINE __m256 attn_load(const void *block, size_t i, const int half)
{
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)block + i)))
                : _mm256_loadu_ps((const float *)block + i);
}

/* n halves, 0 <= n <= 3, as 64 bits; F16C has no load under a mask. */
static inline int64_t attn_halves(const uint16_t *h, int n)
{
    uint32_t two = 0;

    if (n >= 2)
        memcpy(&two, h, sizeof two);
    if (n & 1)
        return (int64_t)((uint64_t)h[n - 1] << (n == 3 ? 32 : 0) | two);
    return two;
}

KWK_INLINE __m256 attn_load_tail(const void *block, size_t i, int n, const int half)
{
    const uint16_t *h = (const uint16_t *)block + i;
    int64_t lo;

    if (!half)
        return _mm256_maskload_ps((const float *)block + i, kwk_mask8(n));
    if (n >= 8)
        return attn_load(block, i, 1);
    if (n < 4)
        return _mm256_cvtph_ps(_mm_set_epi64x(0, attn_halves(h, n)));
    memcpy(&lo, h, sizeof lo);
    return _mm256_cvtph_ps(_mm_set_epi64x(attn_halves(h + 4, n - 4), lo));
}

/* acc[i][e] += x_i * elements at + 8 e … of the block, for n queries and c registers. x_i is
 * x[i][d]. Few queries: one register of the block at a time; many: one query at a time. */
KWK_INLINE void attn_step(__m256 (*acc)[8], const float *const *x, size_t d, const void *block,
                          size_t at, const int n, const int c, const int half)
{
    if (n <= 3) {
        __m256 xs[3];
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            xs[i] = _mm256_broadcast_ss(&x[i][d]);
#pragma GCC unroll 8
        for (int e = 0; e < c; e++) {
            const __m256 v = attn_load(block, at + 8 * (size_t)e, half);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
                acc[i][e] = _mm256_fmadd_ps(xs[i], v, acc[i][e]);
        }
    } else {
        __m256 v[2];
#pragma GCC unroll 8
        for (int e = 0; e < c; e++)
            v[e] = attn_load(block, at + 8 * (size_t)e, half);
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            const __m256 xi = _mm256_broadcast_ss(&x[i][d]);
#pragma GCC unroll 8
            for (int e = 0; e < c; e++)
                acc[i][e] = _mm256_fmadd_ps(xi, v[e], acc[i][e]);
        }
    }
}

/* t = q K * scale for n queries, w registers of 8 slots at a time. */
KWK_INLINE void attn_dots(const kwk_attn_group *g, const int n, const int w, const int half)
{
    const kwk_attn *a = g->a;
    const __m256 scale = _mm256_set1_ps(a->scale);
    const size_t dim = (size_t)a->dim;
    const size_t step = (size_t)(w * 8 * (half ? 2 : 4)); // bytes of w registers
    const float *q[ATTN_GROUP_AVX2];

    for (int i = 0; i < n; i++)
        q[i] = g->query[i].q;
    for (int b = 0; b < a->n_blocks; b++) {
        const char *next = kwk_attn_after_k(g, b);
        for (int s = 0; g->any[b] && s < KWK_BLOCK; s += 8 * w, next += dim * step) {
            __m256 t[ATTN_GROUP_AVX2][8];
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
#pragma GCC unroll 8
                for (int e = 0; e < w; e++)
                    t[i][e] = _mm256_setzero_ps();
            for (size_t d = 0; d < dim; d++) {
                _mm_prefetch(next + d * step, _MM_HINT_T0);
                if (step > 64)
                    _mm_prefetch(next + d * step + 64, _MM_HINT_T0);
                attn_step(t, q, d, a->k[b], d * KWK_BLOCK + (size_t)s, n, w, half);
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
#pragma GCC unroll 8
                for (int e = 0; e < w; e++)
                    _mm256_store_ps(g->t + i * KWK_SPLIT + b * KWK_BLOCK + s + 8 * e,
                                    _mm256_mul_ps(t[i][e], scale));
        }
    }
}

/* p of 8 slots, of which m are seen. */
static inline __m256 attn_exp(float *t, unsigned m, __m256 max)
{
    __m256 p = _mm256_setzero_ps();

    if (m)
        p = _mm256_and_ps(kwk_exp8(_mm256_sub_ps(_mm256_load_ps(t), max)),
                          _mm256_castsi256_ps(kwk_bits8(m)));
    _mm256_store_ps(t, p);
    return p;
}

/* One query: t to p, and part's max and sum. */
static inline void attn_softmax(const kwk_attn_group *g, int i)
{
    const kwk_attn *a = g->a;
    const __m256 least = _mm256_set1_ps(-INFINITY), cap = _mm256_set1_ps(a->softcap);
    float *t = g->t + i * KWK_SPLIT, *part = g->query[i].part;
    __m256 max = least, lo = _mm256_setzero_ps(), hi = lo;

    for (int j = 0; j < a->n_blocks * KWK_BLOCK; j += 8) {
        const unsigned m = g->seen[i][j / KWK_BLOCK] >> (j % KWK_BLOCK) & 0xff;
        __m256 v;
        if (!m)
            continue;
        v = _mm256_load_ps(t + j);
        if (a->softcap > 0)
            v = _mm256_mul_ps(cap, kwk_tanh8(_mm256_div_ps(v, cap)));
        _mm256_store_ps(t + j, v);
        v = _mm256_blendv_ps(least, v, _mm256_castsi256_ps(kwk_bits8(m)));
        max = _mm256_max_ps(v, max); // passes over NaN
    }
    max = _mm256_set1_ps(kwk_hmax8(max));
    for (int j = 0; j < a->n_blocks * KWK_BLOCK; j += 16) {
        const unsigned m = g->seen[i][j / KWK_BLOCK] >> (j % KWK_BLOCK);
        if (!g->any[j / KWK_BLOCK])
            continue;
        lo = _mm256_add_ps(lo, attn_exp(t + j, m & 0xff, max));
        hi = _mm256_add_ps(hi, attn_exp(t + j + 8, m >> 8 & 0xff, max));
    }
    part[0] = _mm256_cvtss_f32(max) + 0.0f;
    part[1] = kwk_lane_sum8(lo, hi);
}

/* o[d0 ...] of n queries over block b, c registers of 8 dimensions each; the only one of c == 1 has
 * `lanes` of them (8 when that is more). Blocks before b are in part already. Adding +0 after each
 * block instead of at the end changes no bit: the sign of a zero is all that it can change, in
 * between too. */
KWK_INLINE void attn_out(const kwk_attn_group *g, int b, int d0, const int n, const int c,
                         int lanes, const int half)
{
    const size_t dim = (size_t)g->a->dim;
    const void *block = g->a->v[b];
    const char *next = kwk_attn_after_v(g, b) + d0 * KWK_BLOCK * (half ? 2 : 4);
    const int step = c * 8 * (half ? 2 : 4); // bytes of a slot's share, of what is prefetched too
    const float *p[ATTN_GROUP_AVX2];
    uint32_t set = g->any[b];
    __m256 o[ATTN_GROUP_AVX2][8];
    int lo, hi;

#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        const float *from = g->query[i].part + 2 + d0;
        p[i] = g->t + i * KWK_SPLIT + b * KWK_BLOCK;
#pragma GCC unroll 8
        for (int e = 0; e < c; e++)
            o[i][e] = b == 0   ? _mm256_setzero_ps()
                      : c == 1 ? _mm256_maskload_ps(from, kwk_mask8(lanes))
                               : _mm256_loadu_ps(from + e * 8);
    }
    while (kwk_attn_run(&set, &lo, &hi)) {
        size_t at = (size_t)lo * dim + (size_t)d0;
        for (int j = lo; j < hi; j++, at += dim) {
            __m256 v;
#pragma GCC unroll 8
            for (int z = 0; z < step; z += 64)
                _mm_prefetch(next + j * step + z, _MM_HINT_T0);
            if (c > 1) {
                attn_step(o, p, (size_t)j, block, at, n, c, half);
                continue;
            }
            v = attn_load_tail(block, at, lanes, half);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
                o[i][0] = _mm256_fmadd_ps(_mm256_broadcast_ss(&p[i][j]), v, o[i][0]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        float *to = g->query[i].part + 2 + d0;
#pragma GCC unroll 8
        for (int e = 0; e < c; e++) {
            const __m256 r = _mm256_add_ps(o[i][e], _mm256_setzero_ps());
            if (c == 1)
                _mm256_maskstore_ps(to, kwk_mask8(lanes), r);
            else
                _mm256_storeu_ps(to + e * 8, r);
        }
    }
}

KWK_INLINE void attn_group(const kwk_attn_group *g, const int n, const int half)
{
    const int dim = g->a->dim;

    attn_dots(g, n, n <= 3 ? 4 : 2, half);
    for (int i = 0; i < n; i++)
        attn_softmax(g, i);
    for (int b = 0; b < g->a->n_blocks; b++) {
        int d = 0;
        if (b > 0 && !g->any[b])
            continue;
        if (n <= 1)
            for (; d + 64 <= dim; d += 64)
                attn_out(g, b, d, n, 8, 8, half);
        if (n <= 3)
            for (; d + 32 <= dim; d += 32)
                attn_out(g, b, d, n, 4, 8, half);
        for (; d + 16 <= dim; d += 16)
            attn_out(g, b, d, n, 2, 8, half);
        for (; d < dim; d += 8)
            attn_out(g, b, d, n, 1, dim - d, half);
    }
}

KWK_INLINE void kwk_attn_avx2(const kwk_attn *a, const int half)
{
    /* Groups of nearly equal size: 8 queries go as 4 + 4. */
    const int n_groups = (a->n_queries + ATTN_GROUP_AVX2 - 1) / ATTN_GROUP_AVX2;
    kwk_attn_group g;

    for (int k = 0; k < n_groups; k++) {
        const int first = k * a->n_queries / n_groups;
        const int n = (k + 1) * a->n_queries / n_groups - first;
        kwk_attn_group_init(&g, a, first, n);
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
        default:
            attn_group(&g, 6, half);
        }
    }
}

#endif
