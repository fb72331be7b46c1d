/* SPDX-License-Identifier: Apache-2.0
 *
 * json_scan.c accepts JSON and nothing else; the tree parser (json.c) adds its own limits.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "engine/json.h"
#include "engine/json_scan.h"

/* Scan to the end; the text lies in memory of exactly n bytes, so that the sanitizers see a read
 * behind it. */
static int scan(const char *text, size_t n)
{
    char *copy = malloc(n ? n : 1);
    kwk_json_scan s;
    kwk_error err = {0};
    int rc;

    assert_non_null(copy);
    memcpy(copy, text, n);
    kwk_json_scan_init(&s, copy, n, "text");
    do
        rc = kwk_json_next(&s, &err);
    while (rc == KWK_OK && s.kind != KWK_JSON_END);
    if (rc < 0)
        assert_memory_equal(err.msg, "text: byte ", 11);
    free(copy);
    return rc;
}

static int parse(const char *text, size_t n, size_t max_values, kwk_error *err)
{
    cJSON *root = NULL;
    const int rc = kwk_json_parse(&root, text, n, max_values, "text", err);

    assert_true((rc == KWK_OK) == (root != NULL));
    cJSON_Delete(root);
    return rc;
}

static const char *const good[] = {
    "{}",
    "[]",
    " [ ] ",
    "0",
    "-0.5e-10",
    "12E+3",
    "\"\"",
    "true",
    "null",
    "[1, 2, [3, {\"a\": [false]}], \"x\"]",
    "{\"a\": {\"b\": {}}, \"c\": [], \"d\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\"}",
    "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"",
};

static void well_formed_texts_are_accepted(void **state)
{
    for (size_t i = 0; i < CHECK_COUNT(good); i++) {
        assert_int_equal(scan(good[i], strlen(good[i])), KWK_OK);
        assert_int_equal(parse(good[i], strlen(good[i]), 100, NULL), KWK_OK);
    }
}

static void malformed_texts_are_refused(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "{]",
        "[}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\" 1}",
        "{a:1}",
        "{1:2}",
        "{} {}",
        "[] x",
        "1 2",
        "tru",
        "True",
        "nul",
        "nullx",
        "NaN",
        "Infinity",
        "-Infinity",
        "-",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "'a'",
        "\"",
        "\"abc",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\\ud800\\ud800\"",
        "\"a\nb\"",
        "\"\x01\"",
        "\"\x80\"",
        "\"\xc0\x80\"",
        "\"\xc3\"",
        "\"\xed\xa0\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xe0\x80\x80\"",
        "\xef\xbb\xbf{}",
        "// c\n{}",
        "[1]]",
    };

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        if (scan(bad[i], strlen(bad[i])) != KWK_EFORMAT)
            fail_msg("accepted: %s", bad[i]);
        assert_int_equal(parse(bad[i], strlen(bad[i]), 100, NULL), KWK_EFORMAT);
    }
    assert_int_equal(scan("{}\0", 3), KWK_EFORMAT);
    assert_int_equal(scan("\"a\0b\"", 5), KWK_EFORMAT);
}

static void every_truncation_and_every_byte_is_survived(void **state)
{
    static const char text[] = "{\"a\": [1, -2.5e3, true, null, \"x\\u00e9\\ud83d\\ude00\"], "
                               "\"b\": {\"c\": \"\xc3\xa9\"}}";
    char copy[sizeof text];

    for (size_t n = 0; n < sizeof text - 1; n++)
        assert_int_equal(scan(text, n), KWK_EFORMAT);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        for (int byte = 0; byte < 256; byte++) {
            memcpy(copy, text, sizeof text);
            copy[i] = (char)byte;
            const int rc = scan(copy, sizeof text - 1);
            assert_true(rc == KWK_OK || rc == KWK_EFORMAT);
            const int tree = parse(copy, sizeof text - 1, 100, NULL);
            assert_true(tree == rc || (rc == KWK_OK && tree == KWK_EFORMAT));
        }
    }
}

static void depth_and_count_are_bounded(void **state)
{
    char text[3 * KWK_JSON_DEPTH];
    kwk_error err;

    memset(text, '[', KWK_JSON_DEPTH);
    memset(text + KWK_JSON_DEPTH, ']', KWK_JSON_DEPTH);
    assert_int_equal(parse(text, 2 * KWK_JSON_DEPTH, 100, &err), KWK_OK);
    memset(text, '[', sizeof text);
    assert_int_equal(parse(text, sizeof text, 1000, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "text: byte 64: nested too deeply");

    assert_int_equal(parse("[1,2,3]", 7, 5, &err), KWK_OK);
    assert_int_equal(parse("[1,2,3,4,5]", 11, 5, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "text: more than 5 values");
}

static void duplicate_keys_and_infinite_numbers_are_refused(void **state)
{
    kwk_error err;

    assert_int_equal(parse("{\"a\":{\"b\":1,\"c\":2,\"b\":3}}", 25, 100, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "text: key 'b' appears twice");
    assert_int_equal(parse("{\"\\u0061\":1,\"a\":2}", 18, 100, &err), KWK_EFORMAT);
    assert_int_equal(parse("{\"a\":1,\"A\":2}", 13, 100, &err), KWK_OK);
    assert_int_equal(parse("[1e999]", 7, 100, &err), KWK_EFORMAT);
    assert_int_equal(parse("{\"x\":-1e999}", 12, 100, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "text: 'x' is not a finite number");
}

static void events_come_in_order_with_their_text(void **state)
{
    static const char text[] = "{\"k\\u00e9y\": [1, {\"z\": [2]}, 33], \"s\": \"a\\n\"}";
    char out[16];
    int64_t v = 0;
    kwk_json_scan s;

    kwk_json_scan_init(&s, text, sizeof text - 1, "text");
    assert_int_equal(kwk_json_next(&s, NULL), KWK_OK);
    assert_int_equal(s.kind, KWK_JSON_OBJECT);
    kwk_json_next(&s, NULL);
    assert_int_equal(s.kind, KWK_JSON_KEY);
    assert_true(kwk_json_is(&s, "k\xc3\xa9y"));
    assert_false(kwk_json_is(&s, "k\xc3\xa9"));
    assert_false(kwk_json_is(&s, "k\xc3\xa9yy"));
    assert_int_equal(kwk_json_unescape(&s, out), 4);
    assert_memory_equal(out, "k\xc3\xa9y", 4);
    kwk_json_next(&s, NULL);
    assert_int_equal(s.kind, KWK_JSON_ARRAY);
    kwk_json_next(&s, NULL);
    assert_true(kwk_json_scan_int(&s, 0, 10, &v));
    assert_int_equal(v, 1);
    kwk_json_next(&s, NULL);
    assert_int_equal(s.kind, KWK_JSON_OBJECT);
    assert_int_equal(kwk_json_skip(&s, NULL), KWK_OK);
    assert_int_equal(s.kind, KWK_JSON_OBJECT_END);
    kwk_json_next(&s, NULL);
    assert_false(kwk_json_scan_int(&s, 0, 32, &v));
    assert_true(kwk_json_scan_int(&s, 0, 33, &v));
    assert_int_equal(v, 33);
    kwk_json_next(&s, NULL);
    assert_int_equal(s.kind, KWK_JSON_ARRAY_END);
    kwk_json_next(&s, NULL);
    kwk_json_next(&s, NULL);
    assert_int_equal(s.kind, KWK_JSON_STRING);
    assert_true(kwk_json_is(&s, "a\n"));
    kwk_json_next(&s, NULL);
    kwk_json_next(&s, NULL);
    assert_int_equal(s.kind, KWK_JSON_END);
}

static void integers_are_told_from_other_numbers(void **state)
{
    static const char text[] = "[0, -7, 1.5, 1e3, 9007199254740993, 123456789012345678901, \"1\"]";
    const struct {
        int scanned, parsed;
        int64_t v;
    } want[] = {{1, 1, 0}, {1, 1, -7}, {0, 0, 0}, {0, 1, 1000}, {1, 1, 0}, {0, 0, 0}, {0, 0, 0}};
    kwk_json_scan s;
    cJSON *root;
    int i = 0;

    assert_int_equal(kwk_json_parse(&root, text, sizeof text - 1, 100, "text", NULL), KWK_OK);
    kwk_json_scan_init(&s, text, sizeof text - 1, "text");
    kwk_json_next(&s, NULL);
    for (const cJSON *c = root->child; c; c = c->next, i++) {
        int64_t a = 0, b = 0;
        kwk_json_next(&s, NULL);
        assert_int_equal(kwk_json_scan_int(&s, INT64_MIN, INT64_MAX, &a), want[i].scanned);
        assert_int_equal(kwk_json_int(c, INT64_MIN, INT64_MAX, &b), want[i].parsed);
        if (want[i].scanned && i < 2)
            assert_int_equal(a, want[i].v);
        if (want[i].parsed && i < 4)
            assert_int_equal(b, want[i].v);
    }
    assert_null(kwk_json_get(root, "a"));
    assert_false(kwk_json_int(NULL, 0, 1, &(int64_t){0}));
    cJSON_Delete(root);
}

static void members_are_looked_up_by_exact_case(void **state)
{
    cJSON *root;

    assert_int_equal(kwk_json_parse(&root, "{\"Key\": 1}", 10, 10, "text", NULL), KWK_OK);
    assert_null(kwk_json_get(root, "key"));
    assert_non_null(kwk_json_get(root, "Key"));
    cJSON_Delete(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(well_formed_texts_are_accepted),
        cmocka_unit_test(malformed_texts_are_refused),
        cmocka_unit_test(every_truncation_and_every_byte_is_survived),
        cmocka_unit_test(depth_and_count_are_bounded),
        cmocka_unit_test(duplicate_keys_and_infinite_numbers_are_refused),
        cmocka_unit_test(events_come_in_order_with_their_text),
        cmocka_unit_test(integers_are_told_from_other_numbers),
        cmocka_unit_test(members_are_looked_up_by_exact_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
