/* SPDX-License-Identifier: Apache-2.0
 *
 * half.h against its definition: every half, and every rounding boundary between two of them.
 */
#include "tests/support/check.h"

#include <math.h>

#include "kernels/half.h"

static void f16_to_f32_is_exact(void **state)
{
    for (unsigned h = 0; h < 0x7c00; h++) {
        const int exp = (int)(h >> 10), mant = (int)(h & 0x3ff);
        const float want = exp ? ldexpf((float)(mant + 1024), exp - 25) : ldexpf((float)mant, -24);
        const float neg = kwk_f16_to_f32((uint16_t)(h | 0x8000));
        assert_true(kwk_f16_to_f32((uint16_t)h) == want);
        assert_true(neg == -want && signbit(neg));
    }
    assert_true(kwk_f16_to_f32(0x7c00) == INFINITY && kwk_f16_to_f32(0xfc00) == -INFINITY);
    assert_true(isnan(kwk_f16_to_f32(0x7c01)) && isnan(kwk_f16_to_f32(0xffff)));
}

static void f32_to_f16_inverts_every_half(void **state)
{
    for (unsigned h = 0; h <= 0xffff; h++) {
        const float f = kwk_f16_to_f32((uint16_t)h);
        const unsigned quiet = isnan(f) ? 0x200 : 0;
        assert_int_equal(kwk_f32_to_f16(f), h | quiet);
    }
}

/* Between neighbours: below the middle down, above it up, the middle itself to the even one. */
static void f32_to_f16_rounds_to_nearest_even(void **state)
{
    for (unsigned h = 0; h < 0x7c00; h++) {
        const double lo = kwk_f16_to_f32((uint16_t)h);
        const double hi = h + 1 == 0x7c00 ? 65536 : kwk_f16_to_f32((uint16_t)(h + 1));
        const float mid = (float)((lo + hi) / 2); // exact: one bit more than a half
        assert_int_equal(kwk_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(kwk_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(kwk_f32_to_f16(mid), h + (h & 1));
        assert_int_equal(kwk_f32_to_f16(-mid), 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(kwk_f32_to_f16(0x1.fffffep127f), 0x7c00);
    assert_int_equal(kwk_f32_to_f16(0x1p-149f), 0);
}

static void bf16_rounds_to_nearest_even_and_keeps_specials(void **state)
{
    for (unsigned h = 0; h < 0x7f80; h++) {
        const float lo = kwk_bf16_to_f32((uint16_t)h);
        const float mid = kwk_bits_f32((uint32_t)h << 16 | 0x8000);
        assert_int_equal(kwk_f32_to_bf16(lo), h);
        assert_int_equal(kwk_f32_to_bf16(-lo), 0x8000 | h);
        assert_int_equal(kwk_f32_to_bf16(nextafterf(mid, 0)), h);
        assert_int_equal(kwk_f32_to_bf16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(kwk_f32_to_bf16(mid), h + (h & 1));
    }
    assert_int_equal(kwk_f32_to_bf16(-INFINITY), 0xff80);
    assert_true(isnan(kwk_bf16_to_f32(kwk_f32_to_bf16(kwk_bits_f32(0x7f800001)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_to_f32_is_exact),
        cmocka_unit_test(f32_to_f16_inverts_every_half),
        cmocka_unit_test(f32_to_f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_specials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
