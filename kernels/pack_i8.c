/* SPDX-License-Identifier: Apache-2.0
 *
 * Packer of I8. Per row and superblock it looks for the fp16 scale that minimises the
 * importance-weighted squared error: from the one that just reaches the largest weight down to the
 * one where cutting off costs more than the best found so far, then finer around the best.
 * Plain C that vectorises; sums are in a fixed order, so every build gives the same bytes.
 */
#include <float.h>
#include <math.h>

#include "kernels/int_tile.h"
#include "kernels/pack.h"
#include "kernels/pack_int.h"

enum { VECS = KWK_SUPER / 4 };

/* x / scale rounded to nearest, halves to even, cut off at -127 and 127. */
static inline kwk_f4 quantise(kwk_f4 x, float inv)
{
    const float round = 0x1.8p23f; // adding it leaves no fraction
    const kwk_f4 q = (x * inv + round) - round;

    return kwk_f4_min(kwk_f4_max(q, kwk_f4_all(-127)), kwk_f4_all(127));
}

/* Weighted squared error of a scale, and in *cut the part of it from what was cut off. */
static float error_of(const kwk_f4 *x, const kwk_f4 *p, int n, float scale, float *cut)
{
    const float inv = 1 / scale;
    kwk_f4 err = {0}, out = {0};

    for (int i = 0; i < n; i++) {
        const kwk_f4 q = quantise(x[i], inv), d = x[i] - q * scale, e = p[i] * d * d;
        err += e;
        out += (kwk_f4)((kwk_i4)e & ((q == 127) | (q == -127)));
    }
    *cut = kwk_f4_sum(out);
    return kwk_f4_sum(err);
}

static float search_scale(const kwk_f4 *x, const kwk_f4 *p, int n)
{
    static const float fine[] = {0.94f, 0.97f, 0.99f, 1.01f, 1.03f};
    float amax = 0, best = 0, least = FLT_MAX, cut;

    for (int k = 0; k < 4 * n; k++)
        amax = fabsf(x[k / 4][k % 4]) > amax ? fabsf(x[k / 4][k % 4]) : amax;
    for (float s = amax / 127; s * 1024 > amax / 127; s *= 0.88f) {
        const float scale = kwk_pack_round_f16(s);
        if (!(scale > 0))
            break;
        const float err = error_of(x, p, n, scale, &cut);
        if (err < least) {
            least = err;
            best = scale;
        }
        if (cut > least)
            break;
    }
    const float center = best;
    for (int i = 0; i < 5 && center > 0; i++) {
        const float scale = kwk_pack_round_f16(center * fine[i]);
        const float err = scale > 0 ? error_of(x, p, n, scale, &cut) : FLT_MAX;
        if (err < least) {
            least = err;
            best = scale;
        }
    }
    return best;
}

/* Row r of a panel's superblock of n groups. */
static void pack_row(uint8_t *super, int n, int r, const float *row, const float *importance,
                     const void *none)
{
    const int vecs = n * KWK_GROUP / 4;
    kwk_f4 x[VECS], p[VECS];

    memcpy(x, row, sizeof x);
    memcpy(p, importance, sizeof p);
    const float scale = search_scale(x, p, vecs);
    kwk_pack_scale(super, r, scale);
    for (int i = 0; i < vecs; i++) {
        const kwk_f4 q = scale > 0 ? quantise(x[i], 1 / scale) : kwk_f4_all(0);
        for (int k = 0; k < 4; k++)
            super[kwk_i8_index(r, 4 * i + k)] = (uint8_t)((int)q[k] + 128);
    }
}

void kwk_pack_i8_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                      const float *importance)
{
    kwk_pack_supers(w, tile, src, ld_src, n_rows, importance, pack_row, NULL);
}
