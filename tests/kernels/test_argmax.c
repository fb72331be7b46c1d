/* SPDX-License-Identifier: Apache-2.0
 *
 * argmax: each rule of its contract on every variant, and every variant against the reference.
 */
#include "tests/support/check.h"

#include <math.h>

static void each_level(void (*check)(const check_level *l, kwk_argmax_fn *argmax))
{
    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels k;
        kwk_kernels_init(&k, l->flags);
        check(l, k.argmax);
    }
}

static void check_rules(const check_level *l, kwk_argmax_fn *argmax)
{
    enum { N = 133 };
    float x[N] = {0};

    assert_int_equal(argmax(x, 0), -1);
    for (int n = 1; n <= N; n++) {
        for (int i = 0; i < n; i++)
            x[i] = NAN;
        assert_int_equal(argmax(x, n), -1);
        x[n / 2] = x[n - 1] = -INFINITY;
        assert_int_equal(argmax(x, n), n / 2);
        for (int i = 0; i < n; i++)
            x[i] = i & 1 ? 0.0f : -0.0f;
        assert_int_equal(argmax(x, n), 0);
        for (int at = 0; at < n; at++) {
            x[at] = 1;
            assert_int_equal(argmax(x, n), at);
            x[n - 1] = 1;
            assert_int_equal(argmax(x, n), at);
            x[at] = NAN;
            assert_int_equal(argmax(x, n), at == n - 1 ? (n == 1 ? -1 : 0) : n - 1);
            x[at] = x[n - 1] = 0;
        }
    }
}

static void greatest_lowest_index_and_no_nan_win(void **state)
{
    each_level(check_rules);
}

static void check_long(const check_level *l, kwk_argmax_fn *argmax)
{
    enum { N = 49152 + 13 };
    float *x = check_alloc((N + 1) * sizeof *x);
    uint64_t seed = 4;
    kwk_kernels ref;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    for (int round = 0; round < 200; round++) {
        const int n = check_random_int(&seed, N - 9000, N), shift = round & 1;
        /* few distinct values, so that the greatest is there many times */
        for (int i = 0; i < n; i++)
            x[i + shift] = (float)check_random_int(&seed, 0, round < 100 ? 1 << 20 : 9000);
        for (int i = 0; i < 10; i++)
            x[check_random_int(&seed, 0, n - 1) + shift] = i & 1 ? NAN : -INFINITY;
        if (argmax(x + shift, n) != ref.argmax(x + shift, n))
            fail_msg("%s, n %d, round %d", l->name, n, round);
    }
    check_free(x);
}

static void variants_equal_the_reference_over_a_vocabulary(void **state)
{
    each_level(check_long);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greatest_lowest_index_and_no_nan_win),
        cmocka_unit_test(variants_equal_the_reference_over_a_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
