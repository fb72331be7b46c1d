/* SPDX-License-Identifier: Apache-2.0
 *
 * Token bytes out of tokenizer.json: byte-level and SentencePiece vocabularies, and texts that are
 * not what they should be.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer.h"

#define BYTE_LEVEL "\"decoder\": {\"type\": \"ByteLevel\"}"
#define SENTENCEPIECE                                                                              \
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", "                \
    "\"pattern\": {\"String\": \"\xe2\x96\x81\"}, \"content\": \" \"}, {\"type\": "                \
    "\"ByteFallback\"}, {\"type\": \"Fuse\"}]}"

static int load(kwk_tokenizer *t, const char *json, kwk_error *err)
{
    char *copy = malloc(strlen(json) + 1);
    int rc;

    assert_non_null(copy);
    memcpy(copy, json, strlen(json));
    memset(t, 0, sizeof *t);
    rc = kwk_tokenizer_bytes(t, copy, strlen(json), err);
    free(copy);
    if (rc < 0)
        assert_true(!t->offset && !t->bytes);
    return rc;
}

static void token_is(const kwk_tokenizer *t, int id, const char *want)
{
    const size_t n = t->offset[id + 1] - t->offset[id];

    assert_in_range(id, 0, t->n_tokens - 1);
    if (n != strlen(want) || memcmp(t->bytes + t->offset[id], want, n) != 0)
        fail_msg("token %d is '%.*s', not '%s'", id, (int)n, t->bytes + t->offset[id], want);
}

static void byte_level_tokens_are_bytes(void **state)
{
    kwk_tokenizer t;

    assert_int_equal(load(&t,
                          "{\"added_tokens\": [{\"id\": 6, \"content\": \"<|\\u00e9nd|>\"}, "
                          "{\"id\": 0, \"content\": \"\xc4\xa0x\"}], \"model\": {\"type\": "
                          "\"BPE\", \"vocab\": {\"\xc4\xa0the\": 1, \"\xc3\x83\xc2\xa9\": 2, "
                          "\"\xc4\x8a\": 3, \"\xe2\x82\xac\": 5, \"z\": 0}, \"merges\": [[\"a\","
                          " \"b\"]]}, " BYTE_LEVEL "}",
                          NULL),
                     KWK_OK);
    assert_int_equal(t.n_tokens, 7);
    token_is(&t, 0, "\xc4\xa0x"); // added tokens stand for themselves, and win over the vocabulary
    token_is(&t, 1, " the");
    token_is(&t, 2, "\xc3\xa9");
    token_is(&t, 3, "\n");
    token_is(&t, 4, "");
    token_is(&t, 5, "\xe2\x82\xac"); // not in the alphabet: as it is
    token_is(&t, 6, "<|\xc3\xa9nd|>");
    kwk_tokenizer_free(&t);
}

static void sentencepiece_tokens_have_blanks_and_raw_bytes(void **state)
{
    kwk_tokenizer t;

    assert_int_equal(load(&t,
                          "{" SENTENCEPIECE ", \"model\": {\"vocab\": {\"<unk>\": 0, \"<0x0A>\": 1,"
                          " \"<0xFF>\": 2, \"\xe2\x96\x81\xe2\x96\x81of\": 3, \"<0xfg>\": 4}}}",
                          NULL),
                     KWK_OK);
    token_is(&t, 0, "<unk>");
    token_is(&t, 1, "\n");
    token_is(&t, 2, "\xff");
    token_is(&t, 3, "  of");
    token_is(&t, 4, "<0xfg>");
    kwk_tokenizer_free(&t);

    assert_int_equal(load(&t,
                          "{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"<s>\", 0.0], "
                          "[\"\xe2\x96\x81\", -1.5, [1]], [\"x\", {\"a\": []}]], \"unk_id\": 0}, "
                          "\"decoder\": {\"type\": \"Metaspace\", \"replacement\": "
                          "\"\xe2\x96\x81\"}}",
                          NULL),
                     KWK_OK);
    assert_int_equal(t.n_tokens, 3);
    token_is(&t, 1, " ");
    token_is(&t, 2, "x");
    kwk_tokenizer_free(&t);
}

static void the_alphabet_covers_every_byte_once(void **state)
{
    int seen[256] = {0}, n = 0;

    for (uint32_t c = 0; c < 0x500; c++) {
        const int byte = kwk_byte_level(c);
        if (byte < 0)
            continue;
        assert_in_range(byte, 0, 255);
        assert_int_equal(seen[byte]++, 0);
        n++;
    }
    assert_int_equal(n, 256);
    assert_int_equal(kwk_byte_level('A'), 'A');
    assert_int_equal(kwk_byte_level(0x120), ' ');
    assert_int_equal(kwk_byte_level(0x143), 0xad);
    assert_int_equal(kwk_byte_level(0x10ffff), -1);
}

static void other_kinds_are_refused_by_name(void **state)
{
    kwk_tokenizer t;
    kwk_error err;

    assert_int_equal(load(&t,
                          "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}, "
                          "\"decoder\": {\"type\": \"WordPiece\"}}",
                          &err),
                     KWK_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "'WordPiece'"));
    assert_int_equal(load(&t, "{}", &err), KWK_EUNSUPPORTED);
}

static void damaged_texts_are_typed_errors(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{",
        "{\"model\": 1}",
        "{\"model\": {\"vocab\": 1}}",
        "{\"model\": {\"vocab\": {\"a\": -1}}}",
        "{\"model\": {\"vocab\": {\"a\": 4194304}}}",
        "{\"model\": {\"vocab\": {\"a\": 1.5}}}",
        "{\"model\": {\"vocab\": {\"a\": \"1\"}}}",
        "{\"model\": {\"vocab\": [1]}}",
        "{\"model\": {\"vocab\": [[]]}}",
        "{\"model\": {\"vocab\": [[1]]}}",
        "{\"added_tokens\": {}}",
        "{\"added_tokens\": [1]}",
        "{\"added_tokens\": [{\"id\": 1}]}",
        "{\"added_tokens\": [{\"content\": \"a\"}]}",
        "{\"added_tokens\": [{\"content\": \"a\", \"id\": 99999999}]}",
        "{} {}",
    };
    kwk_tokenizer t;

    for (size_t i = 0; i < CHECK_COUNT(bad); i++)
        if (load(&t, bad[i], NULL) != KWK_EFORMAT)
            fail_msg("accepted: %s", bad[i]);
}

static void every_truncation_and_every_byte_is_survived(void **state)
{
    static const char text[] =
        "{\"added_tokens\": [{\"id\": 2, \"content\": \"<e>\"}], \"model\": {\"type\": \"BPE\", "
        "\"vocab\": {\"\\u0120a\": 0, \"b\": 1}, \"merges\": []}, " BYTE_LEVEL "}";
    char copy[sizeof text];
    kwk_tokenizer t;

    for (size_t n = 0; n < sizeof text - 1; n++) {
        memcpy(copy, text, n);
        copy[n] = 0;
        assert_int_equal(load(&t, copy, NULL), KWK_EFORMAT);
    }
    for (size_t i = 0; i < sizeof text - 1; i++) {
        for (int byte = 1; byte < 256; byte++) {
            memcpy(copy, text, sizeof text);
            copy[i] = (char)byte;
            const int rc = load(&t, copy, NULL);
            assert_true(rc == KWK_OK || rc == KWK_EFORMAT || rc == KWK_EUNSUPPORTED);
            kwk_tokenizer_free(&t);
        }
    }
}

static void template_is(const char *json, const char *want)
{
    char *text = NULL;

    assert_int_equal(kwk_tokenizer_template(&text, json, strlen(json), NULL), KWK_OK);
    if (want) {
        assert_non_null(text);
        assert_string_equal(text, want);
    } else {
        assert_null(text);
    }
    free(text);
}

static void the_chat_template_is_found_in_both_spellings(void **state)
{
    char *text = NULL;

    template_is("{\"a\": {\"chat_template\": \"no\"}, \"chat_template\": \"{{ \\\"x\\\" }}\\n\"}",
                "{{ \"x\" }}\n");
    template_is("{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}, {\"name\": "
                "\"default\", \"template\": \"D\"}, 5]}",
                "D");
    template_is("{\"chat_template\": [{\"name\": \"rag\", \"template\": \"R\"}]}", NULL);
    template_is("{\"chat_template\": null}", NULL);
    template_is("{}", NULL);
    assert_int_equal(kwk_tokenizer_template(&text, "[]", 2, NULL), KWK_EFORMAT);
    assert_int_equal(kwk_tokenizer_template(&text, "{\"chat_template\": \"a\"", 21, NULL),
                     KWK_EFORMAT);
    assert_int_equal(
        kwk_tokenizer_template(&text,
                               "{\"chat_template\": [{\"name\": \"default\", \"template\": "
                               "\"a\"",
                               58, NULL),
        KWK_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_tokens_are_bytes),
        cmocka_unit_test(sentencepiece_tokens_have_blanks_and_raw_bytes),
        cmocka_unit_test(the_alphabet_covers_every_byte_once),
        cmocka_unit_test(other_kinds_are_refused_by_name),
        cmocka_unit_test(damaged_texts_are_typed_errors),
        cmocka_unit_test(every_truncation_and_every_byte_is_survived),
        cmocka_unit_test(the_chat_template_is_found_in_both_spellings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
