/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: characters cut anywhere come out whole; what is none becomes U+FFFD.
 */
#include "tests/support/check.h"

#include <string.h>

#include "client/text.h"
#include "proto/utf8.h"

static const char sample[] = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z\xed\x9f\xbf\xf4\x8f\xbf\xbf!";

static void every_cut_gives_whole_characters_and_the_same_text(void **state)
{
    const size_t n = sizeof sample - 1;

    for (size_t i = 0; i <= n; i++)
        for (size_t j = i; j <= n; j++) {
            const size_t cuts[] = {0, i, j, n};
            kwk_text t = {0};
            char joined[64];
            size_t n_joined = 0;
            for (int k = 0; k < 3; k++) {
                const size_t out =
                    kwk_text_add(&t, (const uint8_t *)sample + cuts[k], cuts[k + 1] - cuts[k]);
                for (size_t at = 0; at < out;) {
                    const int len = kwk_utf8_next((const uint8_t *)t.out + at, out - at);
                    assert_true(len > 0);
                    at += (size_t)len;
                }
                memcpy(joined + n_joined, t.out, out);
                n_joined += out;
            }
            assert_int_equal(n_joined, n);
            assert_memory_equal(joined, sample, n);
            assert_int_equal(kwk_text_end(&t), 0);
        }
}

static void what_is_no_character_becomes_a_replacement(void **state)
{
    kwk_text t = {0};

    assert_int_equal(kwk_text_add(&t, (const uint8_t *)"\xff" "a\xc3" "b", 4), 8);
    assert_memory_equal(t.out, "\xef\xbf\xbd" "a" "\xef\xbf\xbd" "b", 8);
    assert_int_equal(kwk_text_add(&t, (const uint8_t *)"\xf0\x9f", 2), 0);
    assert_int_equal(kwk_text_add(&t, (const uint8_t *)"\x98", 1), 0);
    assert_int_equal(kwk_text_end(&t), 3);
    assert_memory_equal(t.out, "\xef\xbf\xbd", 3);
    assert_int_equal(kwk_text_end(&t), 0);
}

static void the_longest_output_fits(void **state)
{
    uint8_t bytes[KWK_RECORD_PAYLOAD];
    kwk_text t = {0};

    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(kwk_text_add(&t, (const uint8_t *)"\xf0\x9f\x98", 3), 0);
    assert_int_equal(kwk_text_add(&t, bytes, sizeof bytes), 3 * (sizeof bytes + 3));
    assert_true(3 * (sizeof bytes + 3) <= sizeof t.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_whole_characters_and_the_same_text),
        cmocka_unit_test(what_is_no_character_becomes_a_replacement),
        cmocka_unit_test(the_longest_output_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
