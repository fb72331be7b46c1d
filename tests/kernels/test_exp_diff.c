/* SPDX-License-Identifier: Apache-2.0
 *
 * exp_diff: the reference against float64, every variant against the reference bit for bit, in
 * place too; infinities and NaNs.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/support/check.h"

enum { N_MAX = 70 };

static void reference_is_near_float64(void **state)
{
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    for (float x = -80; x <= 3; x += 0.0137f) {
        const double want = exp((double)(x - 3.0f));
        float e;
        k.exp_diff(&e, &x, 1, 3.0f);
        assert_true(fabs((double)e - want) <= FLT_EPSILON * want);
    }
    const float top = 7.25f;
    float one;
    k.exp_diff(&one, &top, 1, top);
    assert_true(one == 1);
}

static void variants_equal_the_reference(void **state)
{
    uint64_t seed = 2;

    for (const check_level *l = check_levels(); l->name; l++)
        for (int n = 0; n <= N_MAX; n++)
            for (int fill = 0; fill < CHECK_FILLS; fill++) {
                float x[N_MAX + 1], want[N_MAX];
                float *e = check_alloc((size_t)(n + 1) * sizeof *e);
                kwk_kernels ref, k;

                kwk_kernels_init(&ref, KWK_CPU_NONE);
                kwk_kernels_init(&k, l->flags);
                check_fill_f32(x, CHECK_COUNT(x), (check_fill)fill, &seed);
                for (int i = 0; i < n; i++) // both ends of the range of exp
                    x[i] = i % 7 == 3 ? -INFINITY : i % 11 == 5 ? NAN : x[i] * 100;
                ref.exp_diff(want, x + (n & 1), n, 12.5f);
                k.exp_diff(e, x + (n & 1), n, 12.5f);
                check_same_f32(e, want, (size_t)n, "%s, n %d, fill %d", l->name, n, fill);
                memcpy(e, x + (n & 1), (size_t)n * sizeof *e);
                k.exp_diff(e, e, n, 12.5f);
                check_same_f32(e, want, (size_t)n, "%s in place, n %d", l->name, n);
                check_free(e);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_near_float64),
        cmocka_unit_test(variants_equal_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
