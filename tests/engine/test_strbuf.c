/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing texts: JSON that our own reader takes back unchanged.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "engine/json.h"
#include "engine/strbuf.h"

static void pieces_are_joined(void **state)
{
    kwk_strbuf t = {0};

    for (int i = 0; i < 1000; i++)
        kwk_strbuf_str(&t, "abc");
    kwk_strbuf_int(&t, INT64_MIN);
    kwk_strbuf_add(&t, "xyz", 2);
    assert_int_equal(t.n, 3022);
    assert_string_equal(t.p + 2997, "abc-9223372036854775808xy");
    free(t.p);
}

static void every_byte_of_a_string_comes_back(void **state)
{
    char raw[127 + 6];
    kwk_strbuf t = {0};
    cJSON *root;

    for (int i = 1; i < 128; i++)
        raw[i - 1] = (char)i;
    memcpy(raw + 127, "\xc3\xa9\xe2\x82\xac", 6);
    kwk_strbuf_json(&t, raw, 132);
    assert_int_equal(kwk_json_parse(&root, t.p, t.n, 10, "text", NULL), KWK_OK);
    assert_string_equal(root->valuestring, raw);
    cJSON_Delete(root);
    free(t.p);
}

static void floats_come_back_with_their_bits(void **state)
{
    uint64_t seed = 3;
    float v[2000];

    check_fill_f32(v, 1000, CHECK_WIDE, &seed);
    check_fill_f32(v + 1000, 1000, CHECK_EXTREME, &seed);
    v[0] = 1e-5f;
    v[1] = -0.1f;
    for (int i = 0; i < 2000; i++) {
        kwk_strbuf t = {0};
        cJSON *root;
        kwk_strbuf_float(&t, v[i]);
        assert_int_equal(kwk_json_parse(&root, t.p, t.n, 10, "text", NULL), KWK_OK);
        const float back = (float)root->valuedouble;
        check_same_f32(&back, &v[i], 1, "%s", t.p);
        cJSON_Delete(root);
        free(t.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_joined),
        cmocka_unit_test(every_byte_of_a_string_comes_back),
        cmocka_unit_test(floats_come_back_with_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
