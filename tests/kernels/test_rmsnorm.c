/* SPDX-License-Identifier: Apache-2.0
 *
 * rmsnorm: the reference against float64, every variant against the reference bit for bit.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const int sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 37, 64, 99, 172, 576, 2048, 4099};
enum { N_MAX = 4099 };

/* A lane sum of n squares is good to (n / 16 + 5) u, its root to half of that and one rounding. */
static void reference_is_near_float64(void **state)
{
    static float x[N_MAX], w[N_MAX], y[N_MAX];
    uint64_t seed = 1;
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    for (size_t s = 0; s < CHECK_COUNT(sizes); s++) {
        const int n = sizes[s];
        const double bound = ((n / 16 + 5) / 2.0 + 6) * (FLT_EPSILON / 2);
        double ss = 0;
        check_fill_f32(x, (size_t)n, CHECK_UNIFORM, &seed);
        check_fill_f32(w, (size_t)n, CHECK_UNIFORM, &seed);
        k.rmsnorm(y, x, w, n, 1e-5f);
        for (int i = 0; i < n; i++)
            ss += (double)x[i] * x[i];
        for (int i = 0; i < n; i++) {
            const double want = w[i] * (x[i] / sqrt(ss / n + (double)1e-5f));
            assert_true(fabs(y[i] - want) <= bound * fabs(want) + FLT_MIN);
        }
    }
}

static void check_variant(const check_level *l, int n, check_fill fill, int shift, int in_place)
{
    const size_t bytes = (size_t)(n + shift) * sizeof(float);
    float *x = check_alloc(bytes), *w = check_alloc(bytes);
    float *y = check_alloc(bytes), *want = check_alloc(bytes);
    uint64_t seed = (uint64_t)n;
    kwk_kernels ref, k;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    kwk_kernels_init(&k, l->flags);
    check_fill_f32(x + shift, (size_t)n, fill, &seed);
    check_fill_f32(w + shift, (size_t)n, fill, &seed);
    ref.rmsnorm(want + shift, x + shift, w + shift, n, 1e-6f);
    if (in_place)
        memcpy(y + shift, x + shift, (size_t)n * sizeof *y);
    k.rmsnorm(y + shift, in_place ? y + shift : x + shift, w + shift, n, 1e-6f);
    check_same_f32(y + shift, want + shift, (size_t)n, "%s, n %d, fill %d, shift %d, in place %d",
                   l->name, n, (int)fill, shift, in_place);
    check_free(want);
    check_free(y);
    check_free(w);
    check_free(x);
}

static void variants_equal_the_reference(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++)
        for (size_t s = 0; s < CHECK_COUNT(sizes); s++)
            for (int fill = 0; fill < CHECK_FILLS; fill++)
                for (int shift = 0; shift < 2; shift++)
                    check_variant(l, sizes[s], (check_fill)fill, shift, fill & 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_near_float64),
        cmocka_unit_test(variants_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
