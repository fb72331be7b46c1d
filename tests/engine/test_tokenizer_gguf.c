/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.json out of GGUF metadata. That its ids equal llama.cpp's was compared by hand on 3000
 * texts for each kind; here: the text is well formed, says what its kind must say, and stands for
 * the same bytes as the metadata.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/json.h"
#include "engine/tokenizer_gguf.h"
#include "tests/support/tiny_gguf.h"

static int read_built(kwk_tokenizer *t, tiny_gguf *b, kwk_error *err)
{
    const int fd = memfd_create("t", MFD_CLOEXEC);
    kwk_gguf g;
    size_t n;
    uint8_t *file = tiny_gguf_finish(b, &n);

    assert_int_equal(write(fd, file, n), n);
    memset(t, 0, sizeof *t);
    assert_int_equal(kwk_gguf_read(&g, fd, n, "f", NULL), KWK_OK);
    const int rc = kwk_gguf_tokenizer(&g, t, err);
    kwk_gguf_free(&g);
    close(fd);
    free(file);
    return rc;
}

static tiny_model *model(int vocab)
{
    tiny_options o = TINY_OPTIONS;

    o.vocab = vocab;
    o.layers = 1;
    return tiny_model_new(&o);
}

/* Bytes from the JSON are the bytes from the metadata. */
static void check_bytes(const kwk_tokenizer *t)
{
    kwk_tokenizer again = {0};

    assert_int_equal(strlen(t->json), t->json_len);
    assert_int_equal(kwk_tokenizer_bytes(&again, t->json, t->json_len, NULL), KWK_OK);
    assert_true(again.n_tokens <= t->n_tokens);
    for (int i = 0; i < again.n_tokens; i++) {
        const size_t n = t->offset[i + 1] - t->offset[i];
        assert_int_equal(again.offset[i + 1] - again.offset[i], n);
        assert_memory_equal(again.bytes + again.offset[i], t->bytes + t->offset[i], n);
    }
    kwk_tokenizer_free(&again);
}

static void byte_level_vocabularies_become_tokenizer_json(void **state)
{
    static const struct {
        const char *pre, *has, *has_not;
    } kinds[] = {
        {"gpt-2", "\"use_regex\":true", "\"Digits\""},
        {"smollm", "{\"type\":\"Digits\",\"individual_digits\":true}", "\"NFC\""},
        {"llama-bpe", "\\\\p{N}{1,3}|", "\"ignore_merges\":false"},
        {"qwen2", "\"normalizer\":{\"type\":\"NFC\"}", "\\\\p{N}{1,3}|"},
    };
    static const char *const merges[] = {"a b", "\xc4\xa0 a", "ab c"};
    tiny_model *m = model(103);

    for (size_t i = 0; i < CHECK_COUNT(kinds); i++) {
        tiny_gguf b = {0};
        kwk_tokenizer t;
        kwk_error err;
        cJSON *root;
        tiny_gguf_tokenizer(&b, m, kinds[i].pre);
        if (read_built(&t, &b, &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(t.n_tokens, 103);
        assert_int_equal(kwk_json_parse(&root, t.json, t.json_len, 10000, "json", NULL), KWK_OK);
        assert_int_equal(cJSON_GetArraySize(kwk_json_get(root, "added_tokens")), 3);
        const cJSON *vocab = kwk_json_get(kwk_json_get(root, "model"), "vocab");
        assert_int_equal(cJSON_GetArraySize(vocab), 99); // without the unused ones
        assert_int_equal(kwk_json_get(vocab, "\xc3\x83")->valueint, 98);
        cJSON_Delete(root);
        assert_non_null(strstr(t.json, kinds[i].has));
        assert_null(strstr(t.json, kinds[i].has_not));
        assert_string_equal(t.chat_template, "{{ messages[0].content }}");
        check_bytes(&t);
        kwk_tokenizer_free(&t);
    }

    tiny_gguf b = {0};
    kwk_tokenizer t;
    static const char *const tokens[] = {"a",
                                         "b",
                                         "c",
                                         "\xc4\xa0",
                                         "ab",
                                         "abc",
                                         "\xc4\xa0"
                                         "a"};
    tiny_gguf_str(&b, "tokenizer.ggml.model", "gpt2");
    tiny_gguf_str(&b, "tokenizer.ggml.pre", "gpt-2");
    tiny_gguf_strs(&b, "tokenizer.ggml.tokens", 7, tokens);
    tiny_gguf_strs(&b, "tokenizer.ggml.merges", 3, merges);
    assert_int_equal(read_built(&t, &b, NULL), KWK_OK);
    assert_non_null(
        strstr(t.json, "\"merges\":[[\"a\",\"b\"],[\"\xc4\xa0\",\"a\"],[\"ab\",\"c\"]]"));
    check_bytes(&t);
    kwk_tokenizer_free(&t);
    tiny_model_free(m);
}

static void the_start_token_is_added_when_the_file_or_the_kind_says_so(void **state)
{
    static const struct {
        const char *pre;
        int key, adds;
    } cases[] = {{"gpt-2", -1, 0}, {"gpt-2", 1, 1}, {"llama-bpe", -1, 1}, {"llama-bpe", 0, 0}};
    tiny_model *m = model(99);

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        tiny_gguf b = {0};
        kwk_tokenizer t;
        tiny_gguf_tokenizer(&b, m, cases[i].pre);
        if (cases[i].key >= 0)
            tiny_gguf_bool(&b, "tokenizer.ggml.add_bos_token", cases[i].key);
        assert_int_equal(read_built(&t, &b, NULL), KWK_OK);
        assert_true((strstr(t.json, "TemplateProcessing") != NULL) == cases[i].adds);
        kwk_tokenizer_free(&t);
    }
    tiny_model_free(m);
}

static const char *const pieces[] = {"<unk>",
                                     "<s>",
                                     "</s>",
                                     "<0x0A>",
                                     "<0xC3>",
                                     "\xe2\x96\x81",
                                     "a",
                                     "b",
                                     "ab",
                                     "\xe2\x96\x81"
                                     "a",
                                     "\xe2\x96\x81"
                                     "ab"};
static const int32_t piece_types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1};
static const float scores[] = {0, 0, 0, 0, 0, -9, -8, -7, -2, -1, -3};

static void sentencepiece(tiny_gguf *b)
{
    tiny_gguf_str(b, "tokenizer.ggml.model", "llama");
    tiny_gguf_strs(b, "tokenizer.ggml.tokens", 11, pieces);
    tiny_gguf_i32s(b, "tokenizer.ggml.token_type", 11, piece_types);
    tiny_gguf_u32(b, "tokenizer.ggml.unknown_token_id", 0);
    tiny_gguf_u32(b, "tokenizer.ggml.bos_token_id", 1);
}

static void sentencepiece_merges_follow_the_scores(void **state)
{
    tiny_gguf b = {0};
    kwk_tokenizer t;
    kwk_error err;

    sentencepiece(&b);
    tiny_gguf_f32s(&b, "tokenizer.ggml.scores", 11, scores);
    if (read_built(&t, &b, &err) < 0)
        fail_msg("%s", err.msg);
    assert_non_null(strstr(t.json, "\"merges\":[[\"\xe2\x96\x81\",\"a\"],[\"a\",\"b\"],"
                                   "[\"\xe2\x96\x81\",\"ab\"],[\"\xe2\x96\x81"
                                   "a\",\"b\"]]"));
    assert_non_null(strstr(t.json, "\"unk_token\":\"<unk>\""));
    assert_non_null(strstr(t.json, "\"byte_fallback\":true"));
    assert_non_null(strstr(t.json, "\"Prepend\""));
    assert_non_null(strstr(t.json, "TemplateProcessing"));
    check_bytes(&t);
    assert_int_equal(t.bytes[t.offset[4]], 0xc3);
    assert_int_equal(t.bytes[t.offset[5]], ' ');
    kwk_tokenizer_free(&t);

    sentencepiece(&b);
    assert_int_equal(read_built(&t, &b, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "f: no tokenizer.ggml.scores");
    kwk_tokenizer_free(&t);
    sentencepiece(&b);
    tiny_gguf_f32s(&b, "tokenizer.ggml.scores", 11, scores);
    tiny_gguf_bool(&b, "tokenizer.ggml.add_space_prefix", 0);
    assert_int_equal(read_built(&t, &b, &err), KWK_OK);
    assert_null(strstr(t.json, "\"Prepend\""));
    kwk_tokenizer_free(&t);
}

static void what_cannot_be_expressed_is_named_but_bytes_stay(void **state)
{
    tiny_model *m = model(99);
    tiny_gguf b = {0};
    kwk_tokenizer t;
    kwk_error err;

    tiny_gguf_tokenizer(&b, m, "tekken");
    assert_int_equal(read_built(&t, &b, &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "f: tokenizer.ggml.pre is 'tekken', which is not known");
    assert_null(t.json);
    assert_int_equal(t.n_tokens, 99);
    assert_non_null(t.chat_template);
    kwk_tokenizer_free(&t);

    tiny_gguf_str(&b, "tokenizer.ggml.model", "bert");
    tiny_gguf_strs(&b, "tokenizer.ggml.tokens", 11, pieces);
    assert_int_equal(read_built(&t, &b, &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "f: tokenizer.ggml.model is 'bert', which is not known");
    kwk_tokenizer_free(&t);

    tiny_gguf_tokenizer(&b, m, "gpt-2");
    tiny_gguf_bool(&b, "tokenizer.ggml.add_eos_token", 1);
    assert_int_equal(read_built(&t, &b, &err), KWK_EUNSUPPORTED);
    kwk_tokenizer_free(&t);

    static const char *const twice[] = {"a", "b", "a"};
    tiny_gguf_str(&b, "tokenizer.ggml.model", "gpt2");
    tiny_gguf_strs(&b, "tokenizer.ggml.tokens", 3, twice);
    assert_int_equal(read_built(&t, &b, &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "f: tokens 0 and 2 are the same text");
    kwk_tokenizer_free(&t);

    assert_int_equal(read_built(&t, &b, &err), KWK_OK); // nothing at all
    assert_true(!t.json && !t.offset && !t.chat_template);
    tiny_model_free(m);
}

static void damaged_arrays_are_refused(void **state)
{
    static const char *const bad_text[] = {"a", "\xff", "c"};
    static const char *const bad_merges[] = {"a b", "ab", " b", "a "};
    static const int32_t types[] = {1, 1};
    kwk_tokenizer t;
    tiny_gguf b = {0};
    kwk_error err;

    tiny_gguf_str(&b, "tokenizer.ggml.model", "gpt2");
    tiny_gguf_strs(&b, "tokenizer.ggml.tokens", 3, bad_text);
    assert_int_equal(read_built(&t, &b, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "f: token 1 is not UTF-8");
    kwk_tokenizer_free(&t);

    tiny_gguf_str(&b, "tokenizer.ggml.model", "gpt2");
    tiny_gguf_i32s(&b, "tokenizer.ggml.tokens", 2, types);
    assert_int_equal(read_built(&t, &b, &err), KWK_EFORMAT);
    kwk_tokenizer_free(&t);

    tiny_gguf_str(&b, "tokenizer.ggml.model", "gpt2");
    tiny_gguf_strs(&b, "tokenizer.ggml.tokens", 11, pieces);
    tiny_gguf_i32s(&b, "tokenizer.ggml.token_type", 2, types);
    assert_int_equal(read_built(&t, &b, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "f: tokenizer.ggml.token_type");
    kwk_tokenizer_free(&t);

    for (int i = 1; i < 4; i++) {
        tiny_gguf_str(&b, "tokenizer.ggml.model", "gpt2");
        tiny_gguf_str(&b, "tokenizer.ggml.pre", "gpt-2");
        tiny_gguf_strs(&b, "tokenizer.ggml.tokens", 11, pieces);
        tiny_gguf_strs(&b, "tokenizer.ggml.merges", 1, &bad_merges[i]);
        assert_int_equal(read_built(&t, &b, &err), KWK_EFORMAT);
        assert_string_equal(err.msg, "f: merge 0");
        kwk_tokenizer_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_vocabularies_become_tokenizer_json),
        cmocka_unit_test(the_start_token_is_added_when_the_file_or_the_kind_says_so),
        cmocka_unit_test(sentencepiece_merges_follow_the_scores),
        cmocka_unit_test(what_cannot_be_expressed_is_named_but_bytes_stay),
        cmocka_unit_test(damaged_arrays_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
