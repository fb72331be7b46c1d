/* SPDX-License-Identifier: Apache-2.0
 *
 * silu_mul: the reference against float64, every variant against the reference bit for bit, in
 * place too.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { N_MAX = 70 };

/* Five roundings of a quotient and a product; where exp overflows the result is 0 too early. */
static void reference_is_near_float64(void **state)
{
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    for (float g = -120; g < 120; g += 0.0137f) {
        const float u = 1.0f / 3;
        const double want = (double)g / (1 + exp(-(double)g)) * u;
        float y;
        k.silu_mul(&y, &g, &u, 1);
        assert_true(fabs(y - want) <= 3 * FLT_EPSILON * fabs(want) + 0x1p-120);
    }
}

static void check_variant(const check_level *l, int n, check_fill fill, int shift, int alias)
{
    float g[N_MAX + 1], u[N_MAX + 1], want[N_MAX];
    float *y = check_alloc((size_t)(n + shift) * sizeof *y);
    uint64_t seed = (uint64_t)n;
    kwk_kernels ref, k;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    kwk_kernels_init(&k, l->flags);
    check_fill_f32(g, CHECK_COUNT(g), fill, &seed);
    check_fill_f32(u, CHECK_COUNT(u), fill, &seed);
    for (int i = 0; i < n; i++)
        g[i] *= fill == CHECK_UNIFORM ? 100.0f : 1.0f; // both ends of exp's range
    ref.silu_mul(want, g + shift, u + shift, n);
    if (alias)
        memcpy(y + shift, (alias == 1 ? g : u) + shift, (size_t)n * sizeof *y);
    k.silu_mul(y + shift, alias == 1 ? y + shift : g + shift, alias == 2 ? y + shift : u + shift,
               n);
    check_same_f32(y + shift, want, (size_t)n, "%s, n %d, fill %d, shift %d, alias %d", l->name, n,
                   (int)fill, shift, alias);
    check_free(y);
}

static void variants_equal_the_reference(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++)
        for (int n = 0; n <= N_MAX; n++)
            for (int fill = 0; fill < CHECK_FILLS; fill++)
                for (int alias = 0; alias < 3; alias++)
                    check_variant(l, n, (check_fill)fill, n & 1, alias);
}

static void infinities_and_nans_agree_too(void **state)
{
    const float g[] = {INFINITY, -INFINITY, NAN, 1.0f, -0.0f, 0.0f, NAN, 88.8f, -88.8f};
    const float u[] = {1.0f, 1.0f, 1.0f, NAN, 1.0f, INFINITY, NAN, 1.0f, 1.0f};
    enum { N = CHECK_COUNT(g) };
    float want[2 * N], y[2 * N], g2[2 * N], u2[2 * N];
    kwk_kernels k;

    for (int i = 0; i < 2 * N; i++) { // once in a whole register, once in the tail
        g2[i] = g[i % N];
        u2[i] = u[i % N];
    }
    kwk_kernels_init(&k, KWK_CPU_NONE);
    k.silu_mul(want, g2, u2, 2 * N);
    assert_true(want[0] == INFINITY && isnan(want[1]) && isnan(want[2]) && isnan(want[3]));
    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels_init(&k, l->flags);
        k.silu_mul(y, g2, u2, 2 * N);
        check_same_f32(y, want, 2 * N, "%s", l->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_near_float64),
        cmocka_unit_test(variants_equal_the_reference),
        cmocka_unit_test(infinities_and_nans_agree_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
