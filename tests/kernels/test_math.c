/* SPDX-License-Identifier: Apache-2.0
 *
 * kwk_expf and kwk_tanhf over a sweep of all float bit patterns, against libm in double; their
 * vector twins against them, bit for bit.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/kernels/math_isa.h"

enum { STRIDE = 1021, CHUNK = 4096 };

static double ulps(float got, double want) // of want's binade; normal numbers
{
    int e;

    frexp(want, &e);
    return fabs(got - want) / ldexp(1, e - 24);
}

static void exp_is_within_one_ulp(void **state)
{
    double worst = 0;

    for (uint64_t b = 0; b <= 0xffffffff; b += STRIDE) {
        const float x = kwk_bits_f32((uint32_t)b), y = kwk_expf(x);
        const double want = exp(x);
        if (x != x)
            assert_int_equal(kwk_f32_bits(y), b);
        else if (want < FLT_MIN)
            assert_int_equal(kwk_f32_bits(y), 0);
        else if (want > FLT_MAX)
            assert_true(y == INFINITY);
        else
            worst = fmax(worst, ulps(y, want));
    }
    assert_true(worst < 1);
}

static void exp_is_within_one_ulp_at_both_ends_of_its_range(void **state)
{
    for (float x = -87.5f; x < -87.2f; x = nextafterf(x, 0)) {
        const double want = exp(x);
        assert_true(want < FLT_MIN ? kwk_f32_bits(kwk_expf(x)) == 0 : ulps(kwk_expf(x), want) < 1);
    }
    for (float x = 88.6f; x < 88.8f; x = nextafterf(x, 100)) {
        const double want = exp(x);
        assert_true(want > FLT_MAX ? kwk_expf(x) == INFINITY : ulps(kwk_expf(x), want) < 1);
    }
}

static void exp_of_zero_is_one_and_of_infinities_its_limits(void **state)
{
    assert_true(kwk_expf(0.0f) == 1.0f && kwk_expf(-0.0f) == 1.0f);
    assert_true(kwk_expf(INFINITY) == INFINITY);
    assert_int_equal(kwk_f32_bits(kwk_expf(-INFINITY)), 0);
}

static void tanh_is_odd_and_within_two_ulps(void **state)
{
    double worst = 0;

    for (uint64_t b = 0; b <= 0x7fffffff; b += STRIDE) {
        const float x = kwk_bits_f32((uint32_t)b), y = kwk_tanhf(x);
        if (x != x) {
            assert_int_equal(kwk_f32_bits(y), b);
            continue;
        }
        assert_int_equal(kwk_f32_bits(kwk_tanhf(-x)), kwk_f32_bits(y) | 0x80000000);
        if (x >= FLT_MIN)
            worst = fmax(worst, ulps(y, tanh(x)));
        else
            assert_true(y == x);
    }
    assert_true(worst < 2);
    assert_true(kwk_tanhf(INFINITY) == 1.0f && kwk_tanhf(-INFINITY) == -1.0f);
}

/* Every stride'th pattern through f and g; the chunks begin with the special values. */
static void check_twin(math_fn *f, float (*g)(float), const char *name)
{
    static const float special[] = {0.0f,    -0.0f,     INFINITY,   -INFINITY,  0.625f,
                                    -0.625f, 88.72284f, -87.33655f, -87.33654f, 1.0f};
    static float x[CHUNK], y[CHUNK], want[CHUNK];
    uint64_t b = 0;

    memcpy(x, special, sizeof special);
    for (int n = CHECK_COUNT(special); b <= 0xffffffff; n = 0) {
        for (; n < CHUNK; n++, b += STRIDE)
            x[n] = kwk_bits_f32((uint32_t)b);
        for (int i = 0; i < CHUNK; i++)
            want[i] = g(x[i]);
        f(y, x, CHUNK);
        check_same(y, want, sizeof y, "%s near pattern %#llx", name, (unsigned long long)b);
    }
}

static void vector_twins_give_the_same_bits(void **state)
{
    const unsigned cpu = kwk_cpu_flags();

    if (!(cpu & KWK_CPU_AVX2))
        check_skip("needs avx2"); // the reference has no twin
#if KWK_ARCH_X86_64
    check_twin(math_exp_avx2, kwk_expf, "exp, avx2");
    check_twin(math_tanh_avx2, kwk_tanhf, "tanh, avx2");
    if (cpu & KWK_CPU_AVX512) {
        check_twin(math_exp_avx512, kwk_expf, "exp, avx512");
        check_twin(math_tanh_avx512, kwk_tanhf, "tanh, avx512");
    }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_one_ulp),
        cmocka_unit_test(exp_is_within_one_ulp_at_both_ends_of_its_range),
        cmocka_unit_test(exp_of_zero_is_one_and_of_infinities_its_limits),
        cmocka_unit_test(tanh_is_odd_and_within_two_ulps),
        cmocka_unit_test(vector_twins_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
