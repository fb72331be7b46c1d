/* SPDX-License-Identifier: Apache-2.0
 *
 * error.c, utf8.h: names, texts, and messages that stay one line of UTF-8.
 */
#include "tests/support/check.h"

#include <string.h>

#include "proto/error.h"
#include "proto/utf8.h"

static void every_code_has_a_name_and_a_text(void **state)
{
    assert_string_equal(kwk_error_name(KWK_OK), "OK");
    assert_string_equal(kwk_error_name(KWK_ENOMEM), "ENOMEM");
    assert_string_equal(kwk_error_name(KWK_EFORKED), "EFORKED");
    assert_string_equal(kwk_error_text(KWK_EINVAL), "invalid argument");
    for (int code = KWK_EFORKED; code < 0; code++) {
        assert_string_not_equal(kwk_error_name(code), "E?");
        assert_string_not_equal(kwk_error_text(code), "unknown error");
    }
    assert_string_equal(kwk_error_name(1), "E?");
    assert_string_equal(kwk_error_name(KWK_EFORKED - 1), "E?");
    assert_string_equal(kwk_error_text(-9999), "unknown error");
}

static void fail_returns_the_code_and_accepts_no_record(void **state)
{
    kwk_error e = {0};

    assert_int_equal(kwk_fail(&e, KWK_EIO, "read %d of %s", 7, "x"), KWK_EIO);
    assert_int_equal(e.code, KWK_EIO);
    assert_string_equal(e.msg, "read 7 of x");
    assert_int_equal(kwk_fail(NULL, KWK_EIO, "nobody listens"), KWK_EIO);
}

static void messages_are_one_line_of_utf8_whatever_the_values_hold(void **state)
{
    kwk_error e;
    char expected[252];

    kwk_fail(&e, KWK_EINVAL, "a\nb\tc\x1b[2J\x7f");
    assert_string_equal(e.msg, "a?b?c?[2J?");
    kwk_fail(&e, KWK_EINVAL, "bad \xff\xc3 \xed\xa0\x80 good \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80");
    assert_string_equal(e.msg, "bad ?? ??? good \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80");
    kwk_fail(&e, KWK_EINVAL, "csi \xc2\x9b");
    assert_string_equal(e.msg, "csi ??");

    // 250 bytes, then a character of four that does not fit
    memset(expected, 'x', 250);
    expected[250] = 0;
    kwk_fail(&e, KWK_EINVAL, "%s\xf0\x9f\x98\x80", expected);
    assert_string_equal(e.msg, expected);
}

/* Against the definition: decode by arithmetic, all sequences of one to three bytes and the edges of
 * four. */
static void utf8_accepts_exactly_the_shortest_forms(void **state)
{
    int n_valid[5] = {0};

    for (uint32_t v = 0; v <= 0xffffff; v++) {
        const uint8_t p[3] = {(uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};
        const int n = kwk_utf8_next(p, 3);
        uint32_t c;
        if (n <= 0)
            continue;
        n_valid[n]++;
        c = n == 1   ? p[0]
            : n == 2 ? (p[0] & 31u) << 6 | (p[1] & 63u)
                     : (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
        assert_true(n == 1 ? c < 0x80 : n == 2 ? c >= 0x80 && c < 0x800 : c >= 0x800);
        assert_false(c >= 0xd800 && c < 0xe000);
    }
    assert_int_equal(n_valid[1], 128 * 65536);
    assert_int_equal(n_valid[2], (0x800 - 0x80) * 256);
    assert_int_equal(n_valid[3], 0x10000 - 0x800 - 0x800);

    assert_int_equal(kwk_utf8_next((const uint8_t *)"\xf0\x90\x80\x80", 4), 4);
    assert_int_equal(kwk_utf8_next((const uint8_t *)"\xf4\x8f\xbf\xbf", 4), 4);
    assert_int_equal(kwk_utf8_next((const uint8_t *)"\xf0\x8f\xbf\xbf", 4), -1);
    assert_int_equal(kwk_utf8_next((const uint8_t *)"\xf4\x90\x80\x80", 4), -1);
    assert_int_equal(kwk_utf8_next((const uint8_t *)"\xf0\x9f\x98", 3), 0); // cut off
    assert_int_equal(kwk_utf8_next((const uint8_t *)"\xc3", 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_name_and_a_text),
        cmocka_unit_test(fail_returns_the_code_and_accepts_no_record),
        cmocka_unit_test(messages_are_one_line_of_utf8_whatever_the_values_hold),
        cmocka_unit_test(utf8_accepts_exactly_the_shortest_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
