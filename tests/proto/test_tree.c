/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.c and json.c: hostile replies, paths, and JSON that is always JSON.
 */
#include "tests/support/check.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/buf.h"

static kwk_tree *parse(const void *data, size_t n)
{
    kwk_tree *t = NULL;
    kwk_error err = {0};

    if (kwk_tree_parse(&t, data, n, &err) < 0)
        fail_msg("%s", err.msg);
    return t;
}

#define PARSE(bytes) parse(bytes, sizeof bytes - 1)
#define V "\xa1v\x01"

static void a_value_of_another_type_counts_as_absent(void **state)
{
    kwk_tree *t = PARSE("\x84" V "\xa1s\xa1x\xa1i\x05\xa1" "b\xc4\x03xyz");
    int32_t ids[4] = {0};
    size_t n = 99;

    assert_int_equal(kwk_tree_int(t, "s", -7), -7);
    assert_true(kwk_tree_double(t, "s", -7) == -7);
    assert_true(kwk_tree_double(t, "i", -7) == 5);
    assert_null(kwk_tree_str(t, "i"));
    assert_null(kwk_tree_bin(t, "s", &n));
    assert_int_equal(n, 99);
    assert_int_equal(kwk_tree_ints(t, "s", ids, 4), -1);
    assert_int_equal(kwk_tree_ints(t, "b", ids, 4), -1); // 3 bytes are no int32
    assert_int_equal(kwk_tree_int(t, "absent", -7), -7);
    assert_int_equal(kwk_tree_count(t, "i"), -1);
    kwk_tree_free(t);
    kwk_tree_free(NULL);
}

static void paths_reach_into_arrays_and_maps(void **state)
{
    // {"v": 1, "models": [{"name": "a"}, {"name": "b", "x": [4, 5]}]}
    kwk_tree *t = PARSE("\x82" V "\xa6models\x92\x81\xa4name\xa1" "a"
                        "\x82\xa4name\xa1" "b\xa1x\x92\x04\x05");
    char far[600];

    assert_int_equal(kwk_tree_count(t, "models"), 2);
    assert_string_equal(kwk_tree_str(t, "models.0.name"), "a");
    assert_string_equal(kwk_tree_str(t, "models.1.name"), "b");
    assert_int_equal(kwk_tree_int(t, "models.1.x.1", 0), 5);
    assert_int_equal(kwk_tree_int(t, "models.1.x.2", -1), -1);
    assert_null(kwk_tree_str(t, "models.2.name"));
    assert_null(kwk_tree_str(t, "models.x.name"));
    assert_null(kwk_tree_str(t, "models..name"));
    assert_null(kwk_tree_str(t, "models.-1.name"));
    assert_null(kwk_tree_str(t, "models.1.name.deeper"));
    memset(far, 'k', sizeof far - 1);
    far[sizeof far - 1] = 0;
    assert_null(kwk_tree_str(t, far));
    kwk_tree_free(t);
}

static void int_arrays_come_in_two_forms_and_are_bounded(void **state)
{
    kwk_tree *t = PARSE("\x86" V "\xa1" "a\x93\x01\xff\xce\x7f\xff\xff\xff"
                        "\xa1" "b\xc4\x08\x01\x00\x00\x00\xfe\xff\xff\xff"
                        "\xa1" "c\x91\xce\x80\x00\x00\x00" // 2^31
                        "\xa1" "d\x91\xa1x"
                        "\xa1" "e\x90");
    int32_t ids[3] = {7, 7, 7};

    assert_int_equal(kwk_tree_ints(t, "a", ids, 3), 3);
    assert_int_equal(ids[1], -1);
    assert_int_equal(ids[2], INT32_MAX);
    ids[1] = 7;
    assert_int_equal(kwk_tree_ints(t, "a", ids, 1), 3); // the count says that there is more
    assert_int_equal(ids[1], 7);
    assert_int_equal(kwk_tree_ints(t, "b", ids, 3), 2);
    assert_int_equal(ids[1], -2);
    assert_int_equal(kwk_tree_ints(t, "b", NULL, 0), 2);
    assert_int_equal(kwk_tree_ints(t, "c", ids, 3), -1);
    assert_int_equal(kwk_tree_ints(t, "d", ids, 3), -1);
    assert_int_equal(kwk_tree_ints(t, "e", ids, 3), 0);
    kwk_tree_free(t);
}

static void a_tree_outlives_its_message(void **state)
{
    char m[] = "\x83" V "\xa1s\xa3xyz\xa1t\xa0";
    kwk_tree *t = parse(m, sizeof m - 1);

    memset(m, 0xc1, sizeof m);
    assert_string_equal(kwk_tree_str(t, "s"), "xyz");
    assert_string_equal(kwk_tree_str(t, "t"), "");
    kwk_tree_free(t);
}

static void what_is_no_message_of_this_version_is_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } bad[] = {
#define BAD(b, says) {b, sizeof b - 1, says}
        BAD("", "message of 0 bytes"),
        BAD("\x80", "no protocol version"),
        BAD("\x81\xa1v\x02", "version 2; this side speaks 1"),
        BAD("\x81\xa1v\xff", "no protocol version"),
        BAD("\x81\xa1v\xc0", "no protocol version"),
        BAD("\x82" V "\xa1s\xa3x\x00y", "NUL"),
        BAD("\x82" V "\xa3k\x00k\x01", "NUL"),
        BAD("\x82" V "\xa1s\x91\x81\xa1k\xa1\x00", "NUL"),
    };

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        kwk_tree *t = NULL;
        kwk_error err = {0};
        assert_int_equal(kwk_tree_parse(&t, bad[i].bytes, bad[i].n, &err), KWK_EPROTO);
        assert_null(t);
        assert_non_null(strstr(err.msg, bad[i].says));
    }
}

static void a_reply_that_is_neither_good_nor_an_error_is_a_violation(void **state)
{
    static const char *const replies[] = {
        "\x81" V, "\x82" V "\xa2ok\xc2", "\x82" V "\xa4" "code\x00", "\x82" V "\xa4" "code\x05"};
    static const size_t sizes[] = {4, 8, 10, 10};
    kwk_error err;

    for (size_t i = 0; i < CHECK_COUNT(replies); i++) {
        kwk_tree *t = parse(replies[i], sizes[i]);
        assert_int_equal(kwk_tree_status(t, NULL, &err), KWK_EPROTO);
        kwk_tree_free(t);
    }

    // an error of a later version, without a text
    kwk_tree *t = PARSE("\x83" V "\xa4" "code\xd1\xff\x00\xa8retry_ms\xff");
    int retry = 5;
    assert_int_equal(kwk_tree_status(t, &retry, &err), -256);
    assert_int_equal(retry, 0);
    assert_string_equal(err.msg, "unknown error");
    kwk_tree_free(t);
}

static void dropping_a_key_forgets_only_that(void **state)
{
    kwk_tree *t = PARSE("\x83" V "\xa2ok\xc3\xa1x\x05");
    char *json;

    kwk_tree_drop(t, "v");
    kwk_tree_drop(t, "absent");
    json = kwk_tree_json(t);
    assert_string_equal(json, "{\"ok\":true,\"x\":5}");
    free(json);
    kwk_tree_drop(t, "x");
    kwk_tree_drop(t, "ok");
    json = kwk_tree_json(t);
    assert_string_equal(json, "{}");
    free(json);
    kwk_tree_free(t);
}

static char *json_of_double(double v)
{
    kwk_buf b = {0};
    kwk_map m;
    kwk_tree *t;
    char *json;

    kwk_map_begin(&m, &b);
    kwk_map_int(&m, "v", 1);
    kwk_map_double(&m, "x", v);
    assert_int_equal(kwk_map_end(&m, NULL), KWK_OK);
    t = parse(b.data, b.size);
    kwk_tree_drop(t, "v");
    json = kwk_tree_json(t);
    kwk_tree_free(t);
    kwk_buf_fini(&b);
    return json;
}

static void json_numbers_are_exact_and_short(void **state)
{
    static const struct {
        double v;
        const char *json;
    } cases[] = {
        {0.1, "{\"x\":0.1}"},     {-2, "{\"x\":-2}"},
        {1e300, "{\"x\":1e+300}"}, {0.1 + 0.2, "{\"x\":0.30000000000000004}"},
        {NAN, "{\"x\":null}"},    {-INFINITY, "{\"x\":null}"},
    };
    uint64_t seed = 3;

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        char *json = json_of_double(cases[i].v);
        assert_string_equal(json, cases[i].json);
        free(json);
    }
    for (int i = 0; i < 2000; i++) {
        const uint64_t bits = check_random(&seed);
        double v;
        char *json;
        memcpy(&v, &bits, 8);
        if (!isfinite(v))
            continue;
        json = json_of_double(v);
        assert_true(strtod(json + 5, NULL) == v);
        free(json);
    }
}

static void json_is_the_same_in_a_locale_with_a_decimal_comma(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "ps_AF.UTF-8"};
    char *json;

    // Where no such locale is installed the test still checks the C locale.
    for (size_t i = 0; i < CHECK_COUNT(names); i++)
        if (setlocale(LC_NUMERIC, names[i]))
            break;
    json = json_of_double(1.5);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(json, "{\"x\":1.5}");
    free(json);
}

static void json_escapes_what_it_must_and_repairs_utf8(void **state)
{
    kwk_tree *t = PARSE("\x82" V "\xa1s\xd9\x1c" "\"\\\n\t\x7f\xc3\xa4\xff\xed\xa0\x80"
                        "\xe2\x82 end of the te\xf0");
    char *json;

    kwk_tree_drop(t, "v");
    json = kwk_tree_json(t);
    assert_string_equal(json, "{\"s\":\"\\\"\\\\\\n\\u0009\\u007f\xc3\xa4" "\xef\xbf\xbd"
                              "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" "\xef\xbf\xbd\xef\xbf\xbd"
                              " end of the te\xef\xbf\xbd\"}");
    free(json);
    kwk_tree_free(t);
}

static void json_has_every_type(void **state)
{
    kwk_tree *t = PARSE("\x89" V "\xa1" "a\xc0" "\xa1" "b\xc2"
                        "\xa1" "c\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
                        "\xa1" "d\xd3\x80\x00\x00\x00\x00\x00\x00\x00"
                        "\xa1" "e\xca\x3d\xcc\xcc\xcd"
                        "\xa1" "f\xc4\x04\x00\x01\xfe\xff\xa1g\x92\x80\x90\xa1h\xd4\x01\x00");
    char *json;

    kwk_tree_drop(t, "v");
    json = kwk_tree_json(t);
    assert_string_equal(json, "{\"a\":null,\"b\":false,\"c\":18446744073709551615,"
                              "\"d\":-9223372036854775808,\"e\":0.1,\"f\":\"AAH+/w==\","
                              "\"g\":[{},[]],\"h\":null}");
    free(json);
    kwk_tree_free(t);

    static const char *const base64[] = {"\"\"", "\"eA==\"", "\"eHk=\"", "\"eHl6\""};
    for (int n = 0; n < 4; n++) {
        char m[] = "\x82" V "\xa1" "b\xc4\x00xyz", want[32];
        m[7] = (char)n;
        t = parse(m, 8 + (size_t)n);
        kwk_tree_drop(t, "v");
        json = kwk_tree_json(t);
        snprintf(want, sizeof want, "{\"b\":%s}", base64[n]);
        assert_string_equal(json, want);
        free(json);
        kwk_tree_free(t);
    }
}

/* Mutations of a good reply: parsed or refused, and everything in the parsed ones can be read. */
static void mutated_replies_are_parsed_or_refused(void **state)
{
    static const char m[] = "\x88" V "\xa2ok\xc3"
                            "\xa6models\x92\x82\xa4name\xa1" "a\xa5state\xa5ready\x81\xa4name\xa2xy"
                            "\xa3ids\x93\x01\xcd\x01\x00\xff" "\xa1" "b\xc4\x04\x01\x02\x03\x04"
                            "\xa1" "f\xca\x3f\x80\x00\x00" "\xa4" "code\xfb" "\xa7message\xa3" "bad";
    uint64_t seed = 11;
    int parsed = 0;

    for (int i = 0; i < 20000; i++) {
        uint8_t copy[sizeof m];
        const size_t n = sizeof m - 1;
        const int k = check_random_int(&seed, 1, 3);
        kwk_tree *t;
        kwk_error err;

        memcpy(copy, m, n);
        for (int j = 0; j < k; j++)
            copy[check_random(&seed) % n] = (uint8_t)check_random(&seed);
        if (kwk_tree_parse(&t, copy, n, &err) < 0) {
            assert_int_equal(err.code, KWK_EPROTO);
            continue;
        }
        parsed++;
        int32_t ids[2];
        size_t size;
        char *json = kwk_tree_json(t);
        assert_int_equal(json[0], '{');
        free(json);
        kwk_tree_status(t, NULL, &err);
        kwk_tree_ints(t, "ids", ids, 2);
        kwk_tree_bin(t, "b", &size);
        kwk_tree_str(t, "models.0.state");
        kwk_tree_free(t);
    }
    assert_true(parsed > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_of_another_type_counts_as_absent),
        cmocka_unit_test(paths_reach_into_arrays_and_maps),
        cmocka_unit_test(int_arrays_come_in_two_forms_and_are_bounded),
        cmocka_unit_test(a_tree_outlives_its_message),
        cmocka_unit_test(what_is_no_message_of_this_version_is_refused),
        cmocka_unit_test(a_reply_that_is_neither_good_nor_an_error_is_a_violation),
        cmocka_unit_test(dropping_a_key_forgets_only_that),
        cmocka_unit_test(json_numbers_are_exact_and_short),
        cmocka_unit_test(json_is_the_same_in_a_locale_with_a_decimal_comma),
        cmocka_unit_test(json_escapes_what_it_must_and_repairs_utf8),
        cmocka_unit_test(json_has_every_type),
        cmocka_unit_test(mutated_replies_are_parsed_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
