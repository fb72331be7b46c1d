/* SPDX-License-Identifier: Apache-2.0
 *
 * rope: the reference against float64, every variant against the reference bit for bit; elements
 * beyond the rotated part and between heads stay.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const int rots[] = {2, 4, 8, 16, 30, 32, 34, 62, 64, 96, 128, 256};
enum { ROT_MAX = 256, HEADS = 3, LD = ROT_MAX + 5 };

static void fill_angles(float *cosines, float *sines, int n, uint64_t *seed)
{
    for (int i = 0; i < n; i++) {
        const float angle = 100 * check_random_f32(seed);
        cosines[i] = cosf(angle);
        sines[i] = sinf(angle);
    }
}

static void reference_is_near_float64(void **state)
{
    float x[ROT_MAX], y[ROT_MAX], c[ROT_MAX / 2], s[ROT_MAX / 2];
    uint64_t seed = 2;
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    for (size_t r = 0; r < CHECK_COUNT(rots); r++) {
        const int half = rots[r] / 2;
        check_fill_f32(x, (size_t)rots[r], CHECK_UNIFORM, &seed);
        fill_angles(c, s, half, &seed);
        memcpy(y, x, sizeof y);
        k.rope(y, c, s, 1, rots[r], 0);
        for (int i = 0; i < half; i++) {
            const double a = x[i], b = x[i + half];
            const double bound = FLT_EPSILON * (fabs(a) + fabs(b)) + FLT_MIN;
            assert_true(fabs(y[i] - (a * c[i] - b * s[i])) <= bound);
            assert_true(fabs(y[i + half] - (b * c[i] + a * s[i])) <= bound);
        }
    }
}

static void check_variant(const check_level *l, int rot, int n_heads, check_fill fill, int shift)
{
    const size_t half = (size_t)rot / 2, ld = (size_t)(n_heads > 1 ? LD : rot);
    const size_t n = (size_t)(n_heads - 1) * ld + (size_t)rot;
    float *x = check_alloc((n + (size_t)shift) * sizeof *x);
    float *want = check_alloc((n + (size_t)shift) * sizeof *want);
    float *c = check_alloc(half * sizeof *c), *s = check_alloc(half * sizeof *s);
    uint64_t seed = (uint64_t)rot;
    kwk_kernels ref, k;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    kwk_kernels_init(&k, l->flags);
    check_fill_f32(x + shift, n, fill, &seed);
    memcpy(want + shift, x + shift, n * sizeof *x);
    fill_angles(c, s, (int)half, &seed);
    ref.rope(want + shift, c, s, n_heads, rot, ld);
    k.rope(x + shift, c, s, n_heads, rot, ld);
    check_same_f32(x + shift, want + shift, n, "%s, rot %d, heads %d, fill %d, shift %d", l->name,
                   rot, n_heads, (int)fill, shift);
    check_free(s);
    check_free(c);
    check_free(want);
    check_free(x);
}

static void variants_equal_the_reference(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++)
        for (size_t r = 0; r < CHECK_COUNT(rots); r++)
            for (int n_heads = 1; n_heads <= HEADS; n_heads++)
                for (int fill = 0; fill < CHECK_FILLS; fill++)
                    check_variant(l, rots[r], n_heads, (check_fill)fill, fill & 1);
}

static void elements_outside_the_rotated_part_stay(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++) {
        for (size_t r = 0; r < CHECK_COUNT(rots); r++) {
            const int rot = rots[r];
            float x[HEADS * LD], before[HEADS * LD], c[ROT_MAX / 2], s[ROT_MAX / 2];
            uint64_t seed = 3;
            kwk_kernels k;

            kwk_kernels_init(&k, l->flags);
            check_fill_f32(x, CHECK_COUNT(x), CHECK_UNIFORM, &seed);
            memcpy(before, x, sizeof x);
            fill_angles(c, s, rot / 2, &seed);
            k.rope(x, c, s, HEADS, rot, LD);
            for (int h = 0; h < HEADS; h++)
                check_same_f32(x + h * LD + rot, before + h * LD + rot, (size_t)(LD - rot),
                               "%s, rot %d, head %d", l->name, rot, h);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_near_float64),
        cmocka_unit_test(variants_equal_the_reference),
        cmocka_unit_test(elements_outside_the_rotated_part_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
