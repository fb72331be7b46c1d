/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "daemon/text.h"
#include "tests/daemon/harness.h"

/* Feed bytes one at a time (step 1) or in pieces; the whole text in out, every piece checked. */
static size_t feed(const char *bytes, size_t n, size_t step, uint8_t *out)
{
    kwkd_text t = {0};
    size_t w = 0;

    for (size_t i = 0; i < n; i += step) {
        const size_t part = n - i < step ? n - i : step;
        const size_t got = kwkd_text_push(&t, (const uint8_t *)bytes + i, part, out + w);
        assert_true(got <= kwkd_text_bound(part));
        if (got) { // no piece begins or ends inside a character
            assert_int_not_equal(out[w] & 0xc0, 0x80);
            assert_int_equal(kwkd_text_cut(out + w, got, got), got);
        }
        w += got;
    }
    return w + kwkd_text_end(&t, out + w);
}

static void check(const char *bytes, const char *want)
{
    uint8_t out[256];

    for (size_t step = 1; step <= 5; step++) {
        const size_t n = feed(bytes, strlen(bytes), step, out);
        assert_int_equal(n, strlen(want));
        assert_memory_equal(out, want, n);
    }
}

#define BAD "\xef\xbf\xbd"

static void characters_split_over_tokens_come_out_whole(void **state)
{
    check("na\xc3\xafve", "na\xc3\xafve");
    check("\xe6\x97\xa5\xe6\x9c\xac", "\xe6\x97\xa5\xe6\x9c\xac");
    check("\xf0\x9f\x98\x80!", "\xf0\x9f\x98\x80!");
}

static void incomplete_bytes_are_held_back(void **state)
{
    kwkd_text t = {0};
    uint8_t out[32];

    assert_int_equal(kwkd_text_push(&t, (const uint8_t *)"\xf0\x9f\x98", 3, out), 0);
    assert_int_equal(kwkd_text_push(&t, (const uint8_t *)"\x80", 1, out), 4);
    assert_int_equal(kwkd_text_end(&t, out), 0);
}

static void what_cannot_become_a_character_is_replaced(void **state)
{
    check("\x80", BAD);
    check("a\xffz", "a" BAD "z");
    check("\xc0\x80", BAD BAD);                 // overlong
    check("\xed\xa0\x80", BAD BAD BAD);         // surrogate
    check("\xf4\x90\x80\x80", BAD BAD BAD BAD); // above U+10FFFF
    check("\xe6\x97", BAD);                     // ends too early: one for the longest piece
    check("\xe6\x97"
          "a",
          BAD "a");
    check("\xf0\x9f\x98\xf0\x9f\x98\x80", BAD "\xf0\x9f\x98\x80");
}

static void a_cut_never_splits_a_character(void **state)
{
    const uint8_t text[] = "ab\xf0\x9f\x98\x80z";

    assert_int_equal(kwkd_text_cut(text, 7, 7), 7);
    assert_int_equal(kwkd_text_cut(text, 7, 6), 6);
    for (size_t most = 2; most < 6; most++)
        assert_int_equal(kwkd_text_cut(text, 7, most), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_split_over_tokens_come_out_whole),
        cmocka_unit_test(incomplete_bytes_are_held_back),
        cmocka_unit_test(what_cannot_become_a_character_is_replaced),
        cmocka_unit_test(a_cut_never_splits_a_character),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
