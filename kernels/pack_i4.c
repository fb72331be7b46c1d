/* SPDX-License-Identifier: Apache-2.0
 *
 * Packer of I4. Per row and superblock it looks for the fp16 scale S, and per group for the signed
 * scale s, the offset o and the codes that minimise the importance-weighted squared error:
 *   1. with S free, signs and offsets are tried at the scale that just reaches the group's
 * extremes;
 *   2. S is a value whose multiples 1..15 come closest to the groups' free scales, where the error
 *      is taken as the parabola around each of them;
 *   3. with S given, the best few signs and offsets are tried at the multiples near the free scale;
 *   4. S moves to the least-squares value for what was chosen.
 * Plain C that vectorises; sums are in a fixed order, so every build gives the same bytes.
 */
#include <float.h>
#include <math.h>

#include "kernels/int_tile.h"
#include "kernels/pack.h"
#include "kernels/pack_int.h"

enum {
    OFFSETS = 8,
    KEEP = 4,    // fits remembered for a group
    SCALES = 64, // values of S that step 2 compares
    VECS = KWK_GROUP / 4,
    LUT = 1024,     // half steps of the grid that a trial can reach
    LUT_ZERO = 384, // entry of grid value 0
};

static const float reach_use = 0.97f;  // of the scale that reaches the extremes: they are few
static const float reach_waste = 1.5f; // no use of offsets that need so much more than the best
static const float minor = 0.1f;       // columns below this part of the mean importance

/* The nearest grid value for each half step of the grid, and its code. */
typedef struct lut {
    float value[LUT];
    uint8_t code[LUT];
    float up[OFFSETS], down[OFFSETS]; // 1 / greatest and 1 / -least of grid + 2 o - center
} lut;

/* A sign and offset with the scale that suits them: weight ~ d * (grid + 2 o - center). */
typedef struct fit {
    float gain;  // error of all zero minus the error at d; 0: the entry is not used
    float d;     // signed
    float curve; // error(d + e) ~ error(d) + curve * e * e
    int o;
} fit;

/* The weights x of a group with their importance p, and what is known about them. */
typedef struct group {
    kwk_f4 x[VECS], p[VECS], px[VECS];
    float pxx;      // sum p x x, the error of all zero
    float lo, hi;   // least and greatest of x and 0
    fit best[KEEP]; // descending gain
} group;

/* With v the nearest that a scale and offset can say: sums of p x v and p v v. The error of scale e
 * with these v is pxx - 2 e pxv + e e pvv. */
typedef struct sums {
    float pxv, pvv;
} sums;

typedef struct choice {
    int s, o;
    float err;
    sums at;
} choice;

static void fill_lut(lut *lut)
{
    int c = 0;

    for (int i = 0; i < LUT; i++) {
        const float u = (float)(i - LUT_ZERO) / 2 + 0.25f; // the middle of the half step
        while (c < 15 && u * 2 > (float)(kwk_i4_grid[c] + kwk_i4_grid[c + 1]))
            c++;
        lut->code[i] = (uint8_t)c;
        lut->value[i] = kwk_i4_grid[c];
    }
    for (int o = 0; o < OFFSETS; o++) {
        lut->up[o] = 1 / (float)(kwk_i4_grid[15] + 2 * o - KWK_I4_CENTER);
        lut->down[o] = 1 / (float)(KWK_I4_CENTER - 2 * o - kwk_i4_grid[0]);
    }
}

/* Place of weight 0 in the table. */
static inline float lut_start(int o)
{
    return (float)(2 * (KWK_I4_CENTER - 2 * o) + LUT_ZERO);
}

/* Table place of a float place, for any float. */
static inline int lut_clamp(float at)
{
    return at < 0 ? 0 : at < LUT - 1 ? (int)at : LUT - 1;
}

static inline sums try_places(const group *g, const lut *lut, float step, int o, int inside)
{
    const float zero = (float)(KWK_I4_CENTER - 2 * o), start = lut_start(o);
    kwk_f4 pxv = {0}, pvv = {0};

    for (int i = 0; i < VECS; i++) {
        const kwk_f4 place = g->x[i] * step + start;
        kwk_i4 at;
        if (inside)
            at = __builtin_convertvector(place, kwk_i4);
        else
            at = (kwk_i4){lut_clamp(place[0]), lut_clamp(place[1]), lut_clamp(place[2]),
                          lut_clamp(place[3])};
        const kwk_f4 grid = {lut->value[at[0]], lut->value[at[1]], lut->value[at[2]],
                             lut->value[at[3]]};
        const kwk_f4 v = grid - zero;
        pxv += g->px[i] * v;
        pvv += g->p[i] * v * v;
    }
    return (sums){kwk_f4_sum(pxv), kwk_f4_sum(pvv)};
}

static inline sums try_scale(const group *g, const lut *lut, float d, int o)
{
    const float step = 2 / d, start = lut_start(o);
    const float a = g->lo * step + start, b = g->hi * step + start;

    if (a >= 0 && a < LUT && b >= 0 && b < LUT)
        return try_places(g, lut, step, o, 1);
    return try_places(g, lut, step, o, 0); // an outlier beyond the table
}

static void group_init(group *g, const float *x, const float *p)
{
    kwk_f4 pxx = {0};

    g->lo = g->hi = 0;
    memcpy(g->x, x, sizeof g->x);
    memcpy(g->p, p, sizeof g->p);
    for (int k = 0; k < KWK_GROUP; k++) {
        g->lo = x[k] < g->lo ? x[k] : g->lo;
        g->hi = x[k] > g->hi ? x[k] : g->hi;
    }
    for (int i = 0; i < VECS; i++) {
        g->px[i] = g->p[i] * g->x[i];
        pxx += g->px[i] * g->x[i];
    }
    g->pxx = kwk_f4_sum(pxx);
    memset(g->best, 0, sizeof g->best);
}

/* Keeps the best fit of each sign and offset, and the best KEEP of those. */
static void remember(group *g, fit f)
{
    int i = 0;

    while (i < KEEP - 1 && !(g->best[i].o == f.o && g->best[i].d * f.d > 0))
        i++; // its own entry, or the last
    if (f.gain <= g->best[i].gain)
        return;
    for (; i > 0 && f.gain > g->best[i - 1].gain; i--)
        g->best[i] = g->best[i - 1];
    g->best[i] = f;
}

/* Tries scale d, and remembers the least-squares scale for the codes it gives. */
static void try_fit(group *g, const lut *lut, float d, int o)
{
    const sums t = try_scale(g, lut, d, o);

    if (t.pvv > 0) {
        const float e = t.pxv / t.pvv;
        remember(g, (fit){t.pxv * e, e, t.pvv, o});
    }
}

/* Tries the signs and offsets that reach from lo to hi without much waste. */
static void try_range(group *g, const lut *lut, float lo, float hi)
{
    float d[2 * OFFSETS], least = FLT_MAX;

    for (int i = 0; i < 2 * OFFSETS; i++) {
        const float up = lut->up[i / 2], down = lut->down[i / 2];
        const float a = (i % 2 ? -lo : hi) * up, b = (i % 2 ? hi : -lo) * down;
        d[i] = a > b ? a : b;
        least = d[i] < least ? d[i] : least;
    }
    for (int i = 0; i < 2 * OFFSETS; i++)
        if (d[i] <= least * reach_waste)
            try_fit(g, lut, reach_use * (i % 2 ? -d[i] : d[i]), i / 2);
}

static void search_group(group *g, const lut *lut)
{
    const float *x = (const float *)g->x, *p = (const float *)g->p;
    float lo = 0, hi = 0, mean = 0;

    try_range(g, lut, g->lo, g->hi);

    /* An extreme that hardly counts should not set the scale. */
    for (int k = 0; k < KWK_GROUP; k++)
        mean += p[k] / KWK_GROUP;
    for (int k = 0; k < KWK_GROUP; k++) {
        const float v = p[k] >= minor * mean ? x[k] : 0;
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    if (lo > g->lo || hi < g->hi)
        try_range(g, lut, lo, hi);

    for (int i = 0; i < KEEP; i++)
        if (g->best[i].gain > 0)
            try_fit(g, lut, g->best[i].d, g->best[i].o);
}

static inline float scale_candidate(float top, int i)
{
    return top / (15.9f - 0.125f * (float)i); // top would be about 15.9 to 8 times it
}

/* Step 2; 0 when all groups are 0. */
static float choose_super(const group *g, int n)
{
    kwk_f4 d[2] = {{0}}, curve[2] = {{0}};
    float top = 0, least = FLT_MAX, best = 0;

    for (int i = 0; i < n; i++) {
        const float v = fabsf(g[i].best[0].d);
        d[i / 4][i % 4] = v;
        curve[i / 4][i % 4] = g[i].best[0].curve;
        top = v > top ? v : top;
    }
    if (!(top > 0))
        return 0;
    for (int k = 0; k < SCALES; k++) {
        const float super = scale_candidate(top, k), inv = 1 / super;
        kwk_f4 cost = {0};

        for (int j = 0; j < 2; j++) {
            kwk_i4 s = __builtin_convertvector(d[j] * inv + 0.5f, kwk_i4); // 0..16
            s = s - (s == 0) + (s == 16); // a true comparison is -1
            const kwk_f4 e = d[j] - super * __builtin_convertvector(s, kwk_f4);
            cost += curve[j] * e * e;
        }
        if (kwk_f4_sum(cost) < least) {
            least = kwk_f4_sum(cost);
            best = super;
        }
    }
    return kwk_pack_round_f16(best);
}

static choice choose_group(const group *g, const lut *lut, float super)
{
    choice c = {0, 0, g->pxx, {0, 0}};

    for (int i = 0; i < KEEP && g->best[i].gain > 0; i++) {
        const fit *f = &g->best[i];
        const float d0 = fabsf(f->d), ratio = d0 / super;
        const int near = ratio < 16 ? (int)(ratio + 0.5f) : 16;

        for (int r = near > 1 ? near - 1 : 1; r <= near + 1 && r <= 15; r++) {
            const int s = f->d < 0 ? -r : r;
            const float d = super * (float)s;
            const sums t = try_scale(g, lut, d, f->o);
            const float err = g->pxx - 2 * d * t.pxv + d * d * t.pvv;
            if (err < c.err)
                c = (choice){s, f->o, err, t};
        }
    }
    return c;
}

static float least_squares(const choice *c, int n, float super)
{
    float pxv = 0, pvv = 0;

    for (int i = 0; i < n; i++) {
        pxv += (float)c[i].s * c[i].at.pxv;
        pvv += (float)(c[i].s * c[i].s) * c[i].at.pvv;
    }
    return pxv > 0 && pvv > 0 ? kwk_pack_round_f16(pxv / pvv) : super;
}

/* Codes of one group of row r. */
static void store_group(uint8_t *super, int n, int group, int r, const float *x, const lut *lut,
                        float scale, choice c)
{
    uint8_t code[KWK_GROUP] = {0};

    super[32 + 16 * group + r] = (uint8_t)((c.s + 16) << 3 | c.o);
    if (c.s != 0) {
        const float step = 2 / (scale * (float)c.s), start = lut_start(c.o);
        for (int k = 0; k < KWK_GROUP; k++) {
            const float at = x[k] * step + start;
            code[k] = lut->code[lut_clamp(at)];
        }
    }
    for (int k = 0; k < KWK_GROUP; k += k % 8 == 3 ? 5 : 1)
        super[kwk_i4_index(n, r, 32 * group + k)] = (uint8_t)(code[k] | code[k + 4] << 4);
}

/* Row r of a panel's superblock of n groups. */
static void pack_row(uint8_t *super, int n, int r, const float *x, const float *p,
                     const void *tables)
{
    const lut *lut = tables;
    group g[KWK_SUPER_GROUPS];
    choice c[KWK_SUPER_GROUPS];
    float scale;

    for (int i = 0; i < n; i++) {
        group_init(&g[i], x + KWK_GROUP * i, p + KWK_GROUP * i);
        search_group(&g[i], lut);
    }
    scale = choose_super(g, n);
    for (int i = 0; i < n; i++)
        c[i] = scale > 0 ? choose_group(&g[i], lut, scale) : (choice){0};
    scale = least_squares(c, n, scale);
    kwk_pack_scale(super, r, scale);
    for (int i = 0; i < n; i++)
        store_group(super, n, i, r, x + KWK_GROUP * i, lut, scale, c[i]);
}

void kwk_pack_i4_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                      const float *importance)
{
    lut lut;

    fill_lut(&lut);
    kwk_pack_supers(w, tile, src, ld_src, n_rows, importance, pack_row, &lut);
}
