/* SPDX-License-Identifier: Apache-2.0
 *
 * quant_act: the reference against the contract in float64, every variant against the reference.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { N_MAX = 2048 };

typedef struct quant {
    int8_t q[N_MAX];
    float scale[N_MAX / KWK_GROUP];
    int32_t sum[N_MAX / KWK_GROUP];
} quant;

/* Groups of very different sizes, among them all zero and those that count as zero. */
static void fill(float *x, int n, uint64_t *seed)
{
    for (int g = 0; g < n / KWK_GROUP; g++) {
        check_fill_f32(x, KWK_GROUP, (check_fill)check_random_int(seed, 0, CHECK_FILLS - 1), seed);
        if (check_random_int(seed, 0, 3) == 0) {
            const float by = ldexpf(1, check_random_int(seed, -149, 100));
            for (int k = 0; k < KWK_GROUP; k++)
                x[k] = check_random_f32(seed) * by;
        }
        x += KWK_GROUP;
    }
}

static void groups_are_rounded_to_127_steps_of_their_largest(void **state)
{
    static float x[N_MAX];
    static quant out;
    uint64_t seed = 1;
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    fill(x, N_MAX, &seed);
    k.quant_act(out.q, out.scale, out.sum, x, N_MAX);
    for (int g = 0; g < N_MAX / KWK_GROUP; g++) {
        double amax = 0;
        int sum = 0, top = 0;
        for (int i = g * KWK_GROUP; i < (g + 1) * KWK_GROUP; i++)
            amax = fmax(amax, fabs((double)x[i]));
        const int zero = amax < 127.0 / FLT_MAX;
        assert_true(fabs(out.scale[g] - (zero ? 0 : amax / 127)) <= amax * 1e-7 + 0x1p-149);
        for (int i = g * KWK_GROUP; i < (g + 1) * KWK_GROUP; i++) {
            const double want = zero ? 0 : x[i] * 127.0 / amax;
            assert_true(fabs(out.q[i] - want) <= 0.5 + 3e-5);
            sum += out.q[i];
            top = abs(out.q[i]) > top ? abs(out.q[i]) : top;
        }
        assert_int_equal(top, zero ? 0 : 127);
        assert_int_equal(out.sum[g], sum);
    }
}

static void halves_go_to_even(void **state)
{
    float x[KWK_GROUP] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f};
    const int8_t want[9] = {127, 0, 2, 2, 0, -2, -2, 126, -126};
    quant out;

    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels k;
        kwk_kernels_init(&k, l->flags);
        k.quant_act(out.q, out.scale, out.sum, x, KWK_GROUP);
        check_same(out.q, want, sizeof want, "%s", l->name);
        assert_true(out.scale[0] == 1);
        assert_int_equal(out.sum[0], 127);
    }
}

static void what_is_not_finite_stays_so(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};

    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels k;
        kwk_kernels_init(&k, l->flags);
        for (int i = 0; i < KWK_GROUP * 4; i++) { // each place, each value; the next group is good
            float x[2 * KWK_GROUP];
            quant out;

            for (int j = 0; j < 2 * KWK_GROUP; j++)
                x[j] = 127;
            x[i / 4] = bad[i % 4];
            k.quant_act(out.q, out.scale, out.sum, x, 2 * KWK_GROUP);
            assert_true(isnan(out.scale[0]));
            assert_int_equal(out.sum[0], 0);
            for (int j = 0; j < KWK_GROUP; j++)
                assert_int_equal(out.q[j], 0);
            assert_true(out.scale[1] == 1);
            assert_int_equal(out.sum[1], 127 * KWK_GROUP);
        }
    }
}

static void variants_equal_the_reference(void **state)
{
    static float x[N_MAX];
    static quant want;
    uint64_t seed = 7;
    kwk_kernels ref, k;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels_init(&k, l->flags);
        for (int n = KWK_GROUP; n <= N_MAX; n += n < 400 ? 32 : 416) {
            const size_t groups = (size_t)n / KWK_GROUP;
            int8_t *q = check_alloc((size_t)n);
            float *scale = check_alloc(groups * sizeof *scale);
            int32_t *sum = check_alloc(groups * sizeof *sum);

            fill(x, n, &seed);
            ref.quant_act(want.q, want.scale, want.sum, x, n);
            k.quant_act(q, scale, sum, x, n);
            check_same(q, want.q, (size_t)n, "%s, n %d, q", l->name, n);
            check_same_f32(scale, want.scale, groups, "%s, n %d, scale", l->name, n);
            check_same(sum, want.sum, groups * sizeof *sum, "%s, n %d, sum", l->name, n);
            check_free(sum);
            check_free(scale);
            check_free(q);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_rounded_to_127_steps_of_their_largest),
        cmocka_unit_test(halves_go_to_even),
        cmocka_unit_test(what_is_not_finite_stays_so),
        cmocka_unit_test(variants_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
