/* SPDX-License-Identifier: Apache-2.0
 *
 * Inverse frequencies against the bits that transformers 5.24 with torch 2.13 gives.
 */
#include "tests/support/check.h"

#include <string.h>

#include "engine/recipe.h"
#include "kernels/half.h"

static void check_bits(const kwk_recipe *r, const uint32_t *want)
{
    float got[KWK_HEAD_DIM_MAX / 2];

    kwk_recipe_inv_freq(r, got);
    for (int i = 0; i < r->rope_dim / 2; i++)
        if (kwk_f32_bits(got[i]) != want[i])
            fail_msg("frequency %d: 0x%08x, not 0x%08x", i, kwk_f32_bits(got[i]), want[i]);
}

static void default_frequencies_have_torchs_bits(void **state)
{
    static const uint32_t want[] = {0x3f800000, 0x3ea1e89b, 0x3dcccccd, 0x3d0186e3,
                                    0x3c23d70a, 0x3b4f3e38, 0x3a83126f, 0x39a5cb60};
    const kwk_recipe r = {.rope_dim = 16, .rope_theta = 10000};

    check_bits(&r, want);
}

static void linear_frequencies_have_torchs_bits(void **state)
{
    static const uint32_t want[] = {0x3ecccccd, 0x3dc2434f, 0x3cb8449b, 0x3baec98e,
                                    0x3aa5cb60, 0x399d43a3, 0x38952c42, 0x378d7f75};
    const kwk_recipe r = {
        .rope_dim = 16, .rope_theta = 100000, .rope_type = KWK_ROPE_LINEAR, .rope_factor = 2.5f};

    check_bits(&r, want);
}

static void llama3_frequencies_have_torchs_bits(void **state)
{
    static const uint32_t want[] = {0x3f800000, 0x3ee177bc, 0x3e4693b0, 0x3daee4ad,
                                    0x3d1a08c8, 0x3c87a9c3, 0x3beef74f, 0x3b527720,
                                    0x39e13620, 0x37a3418d, 0x370fc8f8, 0x367d45c3,
                                    0x35df10c4, 0x35447610, 0x34ad07a7, 0x341864a7};
    const kwk_recipe r = {.rope_dim = 32,
                          .rope_theta = 500000,
                          .rope_type = KWK_ROPE_LLAMA3,
                          .rope_factor = 32,
                          .rope_low_freq = 1,
                          .rope_high_freq = 4,
                          .rope_original_max_pos = 8192};

    check_bits(&r, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_frequencies_have_torchs_bits),
        cmocka_unit_test(linear_frequencies_have_torchs_bits),
        cmocka_unit_test(llama3_frequencies_have_torchs_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
