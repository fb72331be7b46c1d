/* SPDX-License-Identifier: Apache-2.0
 *
 * Packer of I6. Per row and superblock it looks for the fp16 scale S, and per group for the signed
 * scale s and the offset o that minimise the importance-weighted squared error of rounded codes:
 *   1. with S free, the signs and offsets that reach the group's extremes with the least scale are
 *      tried a little below and above that scale, and the best two are kept;
 *   2. values of S are compared by what their multiples next to the free scales would cost, taken
 *      as growing with the square of the scale above it and with the cut extreme below it;
 *   3. the best few are tried in earnest, each group with the multiples near its free scales;
 *   4. S moves to the least-squares value for the codes found.
 * Plain C that vectorises; sums are in a fixed order, so every build gives the same bytes.
 */
#include <float.h>
#include <math.h>

#include "kernels/int_tile.h"
#include "kernels/pack.h"
#include "kernels/pack_int.h"

enum {
    OFFSETS = 4,
    KEEP = 2,    // fits remembered for a group
    SCALES = 32, // values of S that step 2 compares
    TRIALS = 3,  // of them in step 3
    MULTIPLES = 3,
    MAX_CODE = 63,
    MAX_SCALE = 31,
    VECS = KWK_GROUP / 4,
    HALVES = KWK_SUPER_GROUPS / 4
};

static const float reach_waste = 1.2f; // no use of offsets that need so much more than the best
static const float minor = 0.1f;       // columns below this part of the mean importance
static const float span = 0.4f;        // of the values of S above the least

/* A sign and offset with the scale that suits them; d == 0: the entry is not used. */
typedef struct fit {
    float err, d; // d is signed
    int o;
} fit;

/* The weights x of a group with their importance p, and what is known about them. */
typedef struct group {
    kwk_f4 x[VECS], p[VECS];
    float pxx;      // sum p x x, the error of all zero
    float peak;     // what cutting off all of the largest weight would cost
    fit best[KEEP]; // ascending error
} group;

/* The fits of all groups side by side, for step 2. Groups that are not there cost nothing. */
typedef struct fits {
    kwk_f4 d[KEEP][HALVES], inv[KEEP][HALVES], err[KEEP][HALVES];
    kwk_f4 peak[HALVES], zero[HALVES];
} fits;

typedef struct choice {
    int s, o;
    float err;
} choice;

/* Code of weight 0. */
static inline float zero_code(int o)
{
    return (float)(KWK_I6_CENTER - 4 * o);
}

/* x / scale as signed codes: rounded to nearest, halves to even, and cut off at the range. */
static inline kwk_f4 quantise(kwk_f4 x, float inv, float zero)
{
    const float round = 0x1.8p23f; // adding it leaves no fraction
    const kwk_f4 low = kwk_f4_all(-zero), high = kwk_f4_all(MAX_CODE - zero);

    return (kwk_f4_min(kwk_f4_max(x * inv, low), high) + round) - round;
}

static inline float error_of(const group *g, float d, int o)
{
    const float inv = 1 / d, zero = zero_code(o);
    kwk_f4 err = {0};

    for (int i = 0; i < VECS; i++) {
        const kwk_f4 e = g->x[i] - quantise(g->x[i], inv, zero) * d;
        err += g->p[i] * e * e;
    }
    return kwk_f4_sum(err);
}

/* The least scale whose codes reach from -down to up. */
static inline float reach(float up, float down, int o)
{
    const float a = up / (MAX_CODE - zero_code(o)), b = down / zero_code(o);

    return a > b ? a : b;
}

/* Keeps the best fit of each sign and offset, and the best KEEP of those. */
static void remember(group *g, fit f)
{
    int i = 0;

    while (i < KEEP - 1 && !(g->best[i].o == f.o && g->best[i].d * f.d > 0))
        i++; // its own entry, or the last
    if (f.err >= g->best[i].err)
        return;
    for (; i > 0 && f.err < g->best[i - 1].err; i--)
        g->best[i] = g->best[i - 1];
    g->best[i] = f;
}

/* Tries the signs and offsets that reach from lo to hi without much waste. */
static void try_range(group *g, float lo, float hi)
{
    static const float factor[] = {0.97f, 0.985f, 1.0f, 1.02f};
    float d[2 * OFFSETS], least = FLT_MAX;

    for (int i = 0; i < 2 * OFFSETS; i++) {
        d[i] = i % 2 ? reach(-lo, hi, i / 2) : reach(hi, -lo, i / 2);
        least = d[i] < least ? d[i] : least;
    }
    if (least < 0x1p-30f) // far below any S
        return;
    for (int i = 0; i < 2 * OFFSETS; i++) {
        for (int k = 0; k < 4 && d[i] <= least * reach_waste; k++) {
            const float v = factor[k] * (i % 2 ? -d[i] : d[i]);
            remember(g, (fit){error_of(g, v, i / 2), v, i / 2});
        }
    }
}

static void search_group(group *g, const float *x, const float *p)
{
    float lo = 0, hi = 0, lo_used = 0, hi_used = 0, mean = 0;
    kwk_f4 pxx = {0};

    memcpy(g->x, x, sizeof g->x);
    memcpy(g->p, p, sizeof g->p);
    for (int k = 0; k < KWK_GROUP; k++)
        mean += p[k] / KWK_GROUP;
    for (int k = 0; k < KWK_GROUP; k++) {
        const float v = p[k] >= minor * mean ? x[k] : 0;
        lo = x[k] < lo ? x[k] : lo;
        hi = x[k] > hi ? x[k] : hi;
        lo_used = v < lo_used ? v : lo_used;
        hi_used = v > hi_used ? v : hi_used;
    }
    for (int i = 0; i < VECS; i++)
        pxx += g->p[i] * g->x[i] * g->x[i];
    g->pxx = kwk_f4_sum(pxx);
    g->peak = mean * (hi_used > -lo_used ? hi_used * hi_used : lo_used * lo_used);
    for (int i = 0; i < KEEP; i++)
        g->best[i] = (fit){g->pxx, 0, 0};

    try_range(g, lo_used, hi_used); // an extreme that hardly counts should not set the scale
    if (lo < lo_used || hi > hi_used)
        try_range(g, lo, hi);
}

static void fill_fits(fits *f, const group *g, int n)
{
    memset(f, 0, sizeof *f);
    for (int i = 0; i < n; i++) {
        f->peak[i / 4][i % 4] = g[i].peak;
        f->zero[i / 4][i % 4] = g[i].pxx;
        for (int k = 0; k < KEEP; k++) {
            const fit *b = &g[i].best[k];
            f->d[k][i / 4][i % 4] = fabsf(b->d);
            f->inv[k][i / 4][i % 4] = b->d != 0 ? 1 / fabsf(b->d) : 0;
            f->err[k][i / 4][i % 4] = b->err;
        }
    }
}

/* What fits would cost at r times their scale. */
static inline kwk_f4 cost_at(kwk_f4 r, kwk_f4 err, kwk_f4 peak)
{
    const kwk_f4 cut = kwk_f4_max(1 - r, kwk_f4_all(0));

    return err * r * r + peak * cut * cut;
}

/* Step 2: an estimate of a superblock's error. */
static float estimate(const fits *f, float super)
{
    const float inv = 1 / super;
    const kwk_f4 most = kwk_f4_all(MAX_SCALE);
    kwk_f4 cost = {0};

    for (int j = 0; j < HALVES; j++) {
        kwk_f4 least = f->zero[j];
        for (int k = 0; k < KEEP; k++) {
            const kwk_f4 s = kwk_f4_floor(kwk_f4_min(f->d[k][j] * inv, most));
            const kwk_f4 next = kwk_f4_min(s + 1, most), unit = f->inv[k][j] * super;
            least = kwk_f4_min(least, cost_at(s * unit, f->err[k][j], f->peak[j]));
            least = kwk_f4_min(least, cost_at(next * unit, f->err[k][j], f->peak[j]));
        }
        cost += least;
    }
    return kwk_f4_sum(cost);
}

/* The values of S of the least estimates, ascending; how many. */
static int choose_trials(float *super, const group *g, int n)
{
    float top = 0, cost[TRIALS];
    int count = 0;
    fits f;

    for (int i = 0; i < n; i++)
        top = fabsf(g[i].best[0].d) > top ? fabsf(g[i].best[0].d) : top;
    fill_fits(&f, g, n);
    for (int k = 0; k < SCALES; k++) {
        const float least = top / (MAX_SCALE + 0.3f);
        const float s = kwk_pack_round_f16(least + least * span * (float)k / SCALES);
        if (!(s > 0))
            continue;
        const float c = estimate(&f, s);
        int i = count < TRIALS ? count++ : c < cost[TRIALS - 1] ? TRIALS - 1 : TRIALS;
        if (i == TRIALS)
            continue;
        for (; i > 0 && c < cost[i - 1]; i--) {
            cost[i] = cost[i - 1];
            super[i] = super[i - 1];
        }
        cost[i] = c;
        super[i] = s;
    }
    return count;
}

static choice choose_group(const group *g, float super)
{
    choice c = {0, 0, g->pxx};

    for (int i = 0; i < KEEP && g->best[i].d != 0; i++) {
        const fit *f = &g->best[i];
        const float ratio = fabsf(f->d) / super;
        const int below = ratio < MAX_SCALE ? (int)ratio : MAX_SCALE, r0 = below > 1 ? below : 1;

        for (int r = r0; r < below + MULTIPLES && r <= MAX_SCALE; r++) {
            const int s = f->d < 0 ? -r : r;
            const float err = error_of(g, super * (float)s, f->o);
            if (err < c.err)
                c = (choice){s, f->o, err};
        }
    }
    return c;
}

static float least_squares(const group *g, const choice *c, int n, float super)
{
    kwk_f4 pxv = {0}, pvv = {0};

    for (int i = 0; i < n; i++) {
        const float s = (float)c[i].s, inv = 1 / (super * s), zero = zero_code(c[i].o);
        for (int k = 0; k < VECS && s != 0; k++) {
            const kwk_f4 v = quantise(g[i].x[k], inv, zero) * s;
            pxv += g[i].p[k] * g[i].x[k] * v;
            pvv += g[i].p[k] * v * v;
        }
    }
    const float a = kwk_f4_sum(pxv), b = kwk_f4_sum(pvv);
    return a > 0 && b > 0 ? kwk_pack_round_f16(a / b) : super;
}

/* Codes of one group of row r. */
static void store_group(uint8_t *super, int n, int at, int r, const group *g, float scale, choice c)
{
    const float zero = zero_code(c.o);
    float code[KWK_GROUP] = {0};

    super[32 + 16 * at + r] = (uint8_t)((c.s + MAX_SCALE + 1) << 2 | c.o);
    for (int i = 0; i < VECS && c.s != 0; i++) {
        const kwk_f4 v = quantise(g->x[i], 1 / (scale * (float)c.s), zero) + zero;
        memcpy(code + 4 * i, &v, sizeof v);
    }
    for (int k = 0; k < KWK_GROUP; k += k % 16 == 3 ? 13 : 1) {
        const int column = KWK_GROUP * at + k;
        const unsigned u[] = {(unsigned)code[k], (unsigned)code[k + 4], (unsigned)code[k + 8],
                              (unsigned)code[k + 12]};
        super[kwk_i6_index(n, r, column)] = (uint8_t)((u[0] & 15) | (u[1] & 15) << 4);
        super[kwk_i6_index(n, r, column + 8)] = (uint8_t)((u[2] & 15) | (u[3] & 15) << 4);
        super[kwk_i6_high_index(n, r, column)] =
            (uint8_t)(u[0] >> 4 | u[1] >> 4 << 2 | u[2] >> 4 << 4 | u[3] >> 4 << 6);
    }
}

/* Row r of a panel's superblock of n groups. */
static void pack_row(uint8_t *super, int n, int r, const float *x, const float *p, const void *none)
{
    group g[KWK_SUPER_GROUPS];
    choice c[KWK_SUPER_GROUPS] = {{0}}, tried[KWK_SUPER_GROUPS];
    float trial[TRIALS], scale = 0, least = FLT_MAX;

    for (int i = 0; i < n; i++)
        search_group(&g[i], x + KWK_GROUP * i, p + KWK_GROUP * i);
    for (int t = choose_trials(trial, g, n) - 1; t >= 0; t--) {
        float err = 0;
        for (int i = 0; i < n; i++) {
            tried[i] = choose_group(&g[i], trial[t]);
            err += tried[i].err;
        }
        if (err < least) {
            least = err;
            scale = trial[t];
            memcpy(c, tried, sizeof c);
        }
    }
    scale = least_squares(g, c, n, scale);
    kwk_pack_scale(super, r, scale);
    for (int i = 0; i < n; i++)
        store_group(super, n, i, r, &g[i], scale, c[i]);
}

void kwk_pack_i6_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                      const float *importance)
{
    kwk_pack_supers(w, tile, src, ld_src, n_rows, importance, pack_row, NULL);
}
