/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kernels/: what the packers of the integer formats share: the walk over a tile, the
 * part of a row that falls into one superblock, made safe and scaled for a search, and vectors
 * of 4.
 */
#ifndef KWK_KERNELS_PACK_INT_H
#define KWK_KERNELS_PACK_INT_H

#include <math.h>

#include "kernels/int_tile.h"
#include "kernels/kernels.h"

/* GCC turns the loops over elements into single instructions. */
typedef float kwk_f4 __attribute__((vector_size(16)));
typedef int32_t kwk_i4 __attribute__((vector_size(16)));

static inline float kwk_f4_sum(kwk_f4 v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline kwk_f4 kwk_f4_all(float v)
{
    return (kwk_f4){v, v, v, v};
}

static inline kwk_f4 kwk_f4_min(kwk_f4 a, kwk_f4 b)
{
    kwk_f4 v;

    for (int i = 0; i < 4; i++)
        v[i] = a[i] < b[i] ? a[i] : b[i];
    return v;
}

static inline kwk_f4 kwk_f4_max(kwk_f4 a, kwk_f4 b)
{
    kwk_f4 v;

    for (int i = 0; i < 4; i++)
        v[i] = a[i] > b[i] ? a[i] : b[i];
    return v;
}

/* 0 <= v < 2^31. */
static inline kwk_f4 kwk_f4_floor(kwk_f4 v)
{
    return __builtin_convertvector(__builtin_convertvector(v, kwk_i4), kwk_f4);
}

/* The power of two e with 2^20 <= amax * 2^-e < 2^21, so that scales of a tensor lie high in the
 * normal range of fp16; limited to what kwk_exp2i() takes. */
static inline int kwk_pack_int_exponent(float amax)
{
    int e;

    frexpf(amax, &e); // amax = f * 2^e, 0.5 <= f < 1
    e -= 21;
    return e < -126 ? -126 : e;
}

/* Importance of a superblock's columns relative to the greatest, which becomes 1. A column never
 * counts for nothing, so that it keeps a sensible value when nothing else is at stake. Padding
 * counts 0.
 *   importance  (cols) of the whole matrix, or NULL     p  (KWK_SUPER)     k0  first column */
static inline void kwk_pack_importance(float *p, const kwk_mat *w, const float *importance, int k0)
{
    float top = 0;

    for (int k = 0; k < KWK_SUPER; k++) {
        const float v = k0 + k < w->cols && importance ? importance[k0 + k] : 0;
        p[k] = v > 0 ? (v < 0x1p120f ? v : 0x1p120f) : 0;
        top = p[k] > top ? p[k] : top;
    }
    for (int k = 0; k < KWK_SUPER; k++) {
        const float v = top > 0 ? p[k] / top : 1;
        p[k] = k0 + k >= w->cols ? 0 : v > 0x1p-20f ? v : 0x1p-20f;
    }
}

/* x = row * 2^-exponent, 0 in padding. NaN counts as 0, infinity as a large value. */
static inline void kwk_pack_columns(float *x, const kwk_mat *w, const float *row, int k0)
{
    const float unit = kwk_exp2i(-w->exponent);

    for (int k = 0; k < KWK_SUPER; k++) {
        const float v = k0 + k < w->cols ? row[k0 + k] * unit : 0;
        x[k] = v > 0x1p21f ? 0x1p21f : v < -0x1p21f ? -0x1p21f : v == v ? v : 0;
    }
}

/* The fp16 value next to v, 0 <= v < 65504. */
static inline float kwk_pack_round_f16(float v)
{
    return kwk_f16_to_f32(kwk_f32_to_f16(v));
}

static inline void kwk_pack_scale(uint8_t *super, int r, float s)
{
    const uint16_t h = kwk_f32_to_f16(s);

    memcpy(super + 2 * r, &h, sizeof h);
}

/* Fills row r of a panel's superblock of n groups from x with importance p, both (KWK_SUPER). */
typedef void kwk_pack_row_fn(uint8_t *super, int n, int r, const float *x, const float *p,
                             const void *tables);

/* kwk_pack_tile() by the rows of each superblock; tables are handed on. */
static inline void kwk_pack_supers(const kwk_mat *w, int tile, const float *src, size_t ld_src,
                                   int n_rows, const float *importance, kwk_pack_row_fn *pack_row,
                                   const void *tables)
{
    const int n_groups = w->cols_pad / KWK_GROUP;
    float x[KWK_SUPER], p[KWK_SUPER];
    size_t at = 0;

    for (int g0 = 0; g0 < n_groups; g0 += KWK_SUPER_GROUPS) {
        const int n = kwk_super_groups(n_groups, g0);

        kwk_pack_importance(p, w, importance, g0 * KWK_GROUP);
        for (int r = 0; r < KWK_TILE; r++) {
            uint8_t *super = kwk_int_panel(w, tile, r / KWK_PANEL) + at;

            if (r < n_rows)
                kwk_pack_columns(x, w, src + (size_t)r * ld_src, g0 * KWK_GROUP);
            else
                memset(x, 0, sizeof x);
            pack_row(super, n, r % KWK_PANEL, x, p, tables);
        }
        at += kwk_super_bytes(w->format, n);
    }
}

#endif
