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

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

enum { VECS = KWK_SUPER / 4 };

static inline float sum4(f4 v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* x / scale rounded to nearest, halves to even, cut off at -127 and 127. */
static inline f4 quantise(f4 x, float inv)
{
    const float round = 0x1.8p23f; // adding it leaves no fraction
    const f4 q = (x * inv + round) - round;
    const i4 high = q > 127, low = q < -127;
    const f4 top = {127, 127, 127, 127};

    return (f4)(((i4)q & ~(high | low)) | ((i4)top & high) | ((i4)-top & low));
}

/* Weighted squared error of a scale, and in *cut the part of it from what was cut off. */
static float error_of(const f4 *x, const f4 *p, int n, float scale, float *cut)
{
    const float inv = 1 / scale;
    f4 err = {0}, out = {0};

    for (int i = 0; i < n; i++) {
        const f4 q = quantise(x[i], inv), d = x[i] - q * scale, e = p[i] * d * d;
        err += e;
        out += (f4)((i4)e & ((q == 127) | (q == -127)));
    }
    *cut = sum4(out);
    return sum4(err);
}

static float search_scale(const f4 *x, const f4 *p, int n)
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

void kwk_pack_i8_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                      const float *importance)
{
    const int n_groups = w->cols_pad / KWK_GROUP;
    f4 x[VECS], p[VECS];
    size_t at = 0;

    for (int g0 = 0; g0 < n_groups; g0 += KWK_SUPER_GROUPS) {
        const int n = kwk_super_groups(n_groups, g0);

        kwk_pack_importance((float *)p, w, importance, g0 * KWK_GROUP);
        for (int r = 0; r < KWK_TILE; r++) {
            uint8_t *super = kwk_int_panel(w, tile, r / KWK_PANEL) + at;
            float scale;

            if (r < n_rows)
                kwk_pack_row((float *)x, w, src + (size_t)r * ld_src, g0 * KWK_GROUP);
            else
                memset(x, 0, sizeof x);
            scale = search_scale(x, p, n * KWK_GROUP / 4);
            kwk_pack_scale(super, r % KWK_PANEL, scale);
            for (int i = 0; i < n * KWK_GROUP / 4; i++) {
                const f4 q = scale > 0 ? quantise(x[i], 1 / scale) : (f4){0};
                for (int k = 0; k < 4; k++)
                    super[kwk_i8_index(r % KWK_PANEL, 4 * i + k)] = (uint8_t)((int)q[k] + 128);
            }
        }
        at += kwk_super_bytes(KWK_I8, n);
    }
}

int kwk_pack_i8_exponent(float amax)
{
    return kwk_pack_int_exponent(amax);
}
