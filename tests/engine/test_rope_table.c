/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/rope_table.c: the angle is the float32 product, its functions are rounded from double.
 */
#include <math.h>

#include "engine/rope_table.h"
#include "tests/support/check.h"

static void the_table_of_position_0_is_one_and_zero(void **state)
{
    const float inv_freq[3] = {1, 0.5f, 0.01f};
    float c[3], s[3];

    kwk_rope_table(c, s, inv_freq, 3, 0);
    for (int i = 0; i < 3; i++) {
        assert_true(c[i] == 1);
        assert_true(s[i] == 0);
    }
}

static void angles_are_rounded_to_float32_before_cos_and_sin(void **state)
{
    const float inv_freq[2] = {0.7498942f, 0.1f};
    float c[2], s[2];
    int differ = 0;

    for (int32_t p = 1; p < 200000; p += 1237) {
        kwk_rope_table(c, s, inv_freq, 2, p);
        for (int i = 0; i < 2; i++) {
            const volatile float angle = (float)p * inv_freq[i];
            assert_true(c[i] == (float)cos((double)angle));
            assert_true(s[i] == (float)sin((double)angle));
            differ += c[i] != (float)cos((double)p * (double)inv_freq[i]);
        }
    }
    assert_true(differ > 0); // so this test can tell
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_position_0_is_one_and_zero),
        cmocka_unit_test(angles_are_rounded_to_float32_before_cos_and_sin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
