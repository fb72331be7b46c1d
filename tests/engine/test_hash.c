/* SPDX-License-Identifier: Apache-2.0
 *
 * The checksum finds what it is for: any flipped bit, any moved word, any other length.
 */
#include "tests/support/check.h"

#include <string.h>

#include "engine/hash.h"

static void every_flipped_bit_changes_the_sum(void **state)
{
    uint8_t buf[200];
    uint64_t seed = 1;

    for (size_t i = 0; i < sizeof buf; i++)
        buf[i] = (uint8_t)check_random(&seed);
    for (size_t n = 1; n <= sizeof buf; n += 33) {
        const uint64_t want = kwk_hash64(buf, n, 0);
        for (size_t bit = 0; bit < n * 8; bit++) {
            buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(kwk_hash64(buf, n, 0) != want);
            buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        assert_true(kwk_hash64(buf, n, 0) == want);
    }
}

static void length_counts_even_when_the_rest_is_zero(void **state)
{
    const uint8_t zeros[300] = {0};

    for (size_t n = 0; n < sizeof zeros; n++)
        for (size_t m = 0; m < n; m++)
            assert_true(kwk_hash64(zeros, n, 0) != kwk_hash64(zeros, m, 0));
}

static void swapped_words_change_the_sum(void **state)
{
    uint64_t w[24], seed = 2;

    for (int i = 0; i < 24; i++)
        w[i] = check_random(&seed);
    const uint64_t want = kwk_hash64(w, sizeof w, 0);
    for (int i = 0; i < 24; i++) {
        for (int j = 0; j < i; j++) {
            const uint64_t t = w[i];
            w[i] = w[j], w[j] = t;
            assert_true(kwk_hash64(w, sizeof w, 0) != want);
            w[j] = w[i], w[i] = t;
        }
    }
}

static void alignment_does_not_matter_and_seeds_do(void **state)
{
    uint8_t buf[256 + 8];
    uint64_t seed = 3;

    for (int i = 0; i < 256; i++)
        buf[i] = (uint8_t)check_random(&seed);
    const uint64_t want = kwk_hash64(buf, 256, 7);
    for (int shift = 1; shift < 8; shift++) {
        memmove(buf + shift, buf + shift - 1, 256);
        assert_true(kwk_hash64(buf + shift, 256, 7) == want);
        assert_true(kwk_hash64(buf + shift, 256, 8) != want);
    }
}

/* The sums are part of the file format. */
static void known_values_stay(void **state)
{
    static const uint8_t zero64[64];
    uint8_t id[16], other[16];

    assert_true(kwk_hash64("", 0, 0) == UINT64_C(0x6aacc8e52b918450));
    assert_true(kwk_hash64("abc", 3, 0) == UINT64_C(0x1d91a4d3705d0e52));
    assert_true(kwk_hash64(zero64, 64, 1) == UINT64_C(0x8d70e99e8b87f659));
    kwk_hash128(id, "abc", 3);
    kwk_hash128(other, "abd", 3);
    assert_memory_not_equal(id, other, 8);
    assert_memory_not_equal(id + 8, other + 8, 8);
    assert_memory_not_equal(id, id + 8, 8);
}

/* Every output bit flips about half the time when an input bit flips. */
static void one_bit_spreads_over_the_whole_sum(void **state)
{
    uint64_t w[16] = {0}, seed = 4;
    int flips[64] = {0}, trials = 0;

    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 16; i++)
            w[i] = check_random(&seed);
        const uint64_t base = kwk_hash64(w, sizeof w, 0);
        for (int bit = 0; bit < 1024; bit++, trials++) {
            w[bit / 64] ^= UINT64_C(1) << bit % 64;
            const uint64_t diff = base ^ kwk_hash64(w, sizeof w, 0);
            w[bit / 64] ^= UINT64_C(1) << bit % 64;
            for (int k = 0; k < 64; k++)
                flips[k] += diff >> k & 1;
        }
    }
    for (int k = 0; k < 64; k++)
        assert_in_range(flips[k], trials * 46 / 100, trials * 54 / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit_changes_the_sum),
        cmocka_unit_test(length_counts_even_when_the_rest_is_zero),
        cmocka_unit_test(swapped_words_change_the_sum),
        cmocka_unit_test(alignment_does_not_matter_and_seeds_do),
        cmocka_unit_test(known_values_stay),
        cmocka_unit_test(one_bit_spreads_over_the_whole_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
