/* SPDX-License-Identifier: Apache-2.0
 *
 * Models through the public header: every way of opening one gives the same model, and what is said
 * about it is true.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/kwk.h"
#include "tests/support/tiny_model.h"

enum { VOCAB = 99, STEPS = 12 };

static kwk_model_options options(const char *precision, int sealed)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;

    o.precision = precision;
    o.sealed = sealed;
    o.kv_bytes = 1 << 20;
    o.max_ctx = 64;
    return o;
}

/* Logits of a few greedy steps, one after the other: (STEPS, VOCAB). */
static float *run(kwk_model *m)
{
    float *logits = check_alloc(sizeof(float) * STEPS * VOCAB);
    const kwk_sampling greedy = KWK_SAMPLING_INIT;
    int32_t token = 1;
    kwk_error err;
    kwk_seq *s;

    assert_int_equal(kwk_seq_new(&s, m, &err), KWK_OK);
    for (int i = 0; i < STEPS; i++) {
        kwk_row row = {
            .seq = s, .token = token, .position = i, .want_logits = 1, .sampling = &greedy};
        kwk_step_args args = {
            .size = sizeof args, .rows = &row, .n_rows = 1, .logits = logits + i * VOCAB};
        assert_int_equal(kwk_step(m, &args, &err), KWK_OK);
        token = row.out_token;
    }
    kwk_seq_free(s);
    return logits;
}

static void every_way_of_opening_gives_the_same_model(void **state)
{
    static const char *const precisions[] = {"float32", "bf16", "int8", "int4"};
    tiny_options o = TINY_OPTIONS;
    kwk_error err;

    o.layers = 3;
    tiny_model *t = tiny_model_new(&o);
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "m.kwk");
    tiny_model_write(t, dir);
    for (size_t p = 0; p < CHECK_COUNT(precisions); p++) {
        enum { WAYS = 5 };
        kwk_model *m[WAYS] = {0};
        kwk_model_info first, info;
        const kwk_model_options plain = options(precisions[p], 0), sealed = options(NULL, 1);
        assert_int_equal(kwk_model_open(&m[0], dir, &plain, &err), KWK_OK);
        assert_int_equal(kwk_model_open_memory(&m[1], t->config, strlen(t->config), t->views,
                                               t->n_tensors, &plain, &err),
                         KWK_OK);
        assert_int_equal(kwk_model_save(m[0], path, &err), KWK_OK);
        assert_int_equal(kwk_model_open(&m[2], path, &plain, &err), KWK_OK);
        const int file = open(path, O_RDONLY);
        assert_int_equal(kwk_model_open_fd(&m[3], file, &sealed, &err), KWK_OK);
        close(file);
        const int fd = kwk_model_fd(m[3], &err);
        assert_true(fd >= 0);
        assert_int_equal(kwk_model_open_fd(&m[4], fd, &plain, &err), KWK_OK);
        kwk_model_describe(m[0], &first);
        float *want = run(m[0]);
        for (int i = 1; i < WAYS; i++) {
            kwk_model_describe(m[i], &info);
            assert_memory_equal(info.id, first.id, 16);
            assert_string_equal(info.precision, precisions[p]);
            assert_int_equal(info.packed_bytes, first.packed_bytes);
            float *got = run(m[i]);
            check_same_f32(got, want, STEPS * VOCAB, "%s, way %d", precisions[p], i);
            check_free(got);
        }
        check_free(want);
        for (int i = 0; i < WAYS; i++)
            kwk_model_free(m[i]);
        unlink(path);
    }
    free(path);
    tiny_dir_free(dir);
    tiny_model_free(t);
}

static void the_facts_of_a_model_are_true(void **state)
{
    tiny_options o = TINY_OPTIONS;
    const kwk_model_options opts = options(NULL, 0);
    kwk_model_info info;
    kwk_model *m;
    uint64_t weights = 0;

    o.tokenizer = 1;
    o.model_type = "qwen2";
    o.tied = 0;
    tiny_model *t = tiny_model_new(&o);
    char *dir = tiny_dir_new();
    tiny_model_write(t, dir);
    assert_int_equal(kwk_model_open(&m, dir, &opts, NULL), KWK_OK);
    kwk_model_describe(m, &info);
    for (int i = 0; i < t->n_tensors; i++)
        weights += t->tensors[i].n;
    assert_int_equal(info.n_params, weights);
    assert_string_equal(info.model_type, "qwen2");
    assert_int_equal(info.n_layers, 2);
    assert_int_equal(info.hidden, 40);
    assert_int_equal(info.n_heads, 4);
    assert_int_equal(info.n_kv_heads, 2);
    assert_int_equal(info.head_dim, 10);
    assert_int_equal(info.vocab, 99);
    assert_int_equal(info.max_ctx, 64);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.pad, 0);
    assert_int_equal(info.n_eos, 1);
    assert_int_equal(info.eos[0], 2);
    assert_int_equal(info.kv_bits, 32);
    assert_int_equal(info.kv_bytes_per_slot, 2 * 2 * 2 * 10 * 4);
    assert_int_equal(info.kv_blocks, info.kv_blocks_free);
    assert_true(info.kv_blocks > 0);
    assert_string_equal(info.chat_template, "{{ messages[0].content }}");
    /* Padded matrices; of the embedding and the head only one is read. */
    const uint64_t big = 4 * 128 * 64, layer = 4 * (64 * 64 * 4 + 32 * 64 * 2 + 64 * 64);
    assert_true(info.packed_bytes > info.weight_bytes + big);
    assert_in_range(info.weight_bytes, big + 2 * layer, big + 2 * layer + 4 * 1000);
    kwk_model_free(m);

    const kwk_model_options int8 = options("int8", 0);
    assert_int_equal(kwk_model_open(&m, dir, &int8, NULL), KWK_OK);
    kwk_model_describe(m, &info);
    assert_int_equal(info.kv_bits, 16);
    kwk_model_free(m);
    tiny_dir_free(dir);
    tiny_model_free(t);
}

static void tokens_and_tokenizer_survive_packing(void **state)
{
    tiny_options o = TINY_OPTIONS;
    const kwk_model_options opts = options("int8", 0);
    char *dir, *path, *json = NULL, *template = NULL;
    const uint8_t *bytes;
    const char *text;
    kwk_error err;
    size_t n;

    o.tokenizer = 1;
    o.vocab = 103; // four tokens stand for nothing
    dir = tiny_model_dir(&o);
    path = tiny_path(dir, "m.kwk");
    const char *const paths[] = {dir, path};
    for (int i = 0; i < 2; i++) {
        kwk_model *m;
        assert_int_equal(kwk_model_open(&m, paths[i], &opts, &err), KWK_OK);
        assert_int_equal(kwk_model_token_bytes(m, 1, &bytes, &n, NULL), KWK_OK);
        assert_true(n == 3 && !memcmp(bytes, "<s>", 3));
        assert_int_equal(kwk_model_token_bytes(m, 3, &bytes, &n, NULL), KWK_OK);
        assert_true(n == 1 && bytes[0] == ' ');
        assert_int_equal(kwk_model_token_bytes(m, 98, &bytes, &n, NULL), KWK_OK);
        assert_true(n == 1 && bytes[0] == 0xc3);
        assert_int_equal(kwk_model_token_bytes(m, 102, &bytes, &n, NULL), KWK_OK);
        assert_int_equal(n, 0);
        assert_int_equal(kwk_model_token_bytes(m, 103, &bytes, &n, &err), KWK_EINVAL);
        assert_string_equal(err.msg, "token 103 is not in 0..102");
        assert_int_equal(kwk_model_token_bytes(m, -1, &bytes, &n, &err), KWK_EINVAL);
        assert_int_equal(kwk_model_tokenizer_json(m, &text, &n, NULL), KWK_OK);
        assert_int_equal(strlen(text), n);
        if (i == 0)
            assert_int_equal(kwk_model_save(m, path, NULL), KWK_OK);
        assert_int_equal(kwk_source_tokenizer(paths[i], &json, &template, &err), KWK_OK);
        assert_string_equal(json, text);
        assert_string_equal(template, "{{ messages[0].content }}");
        kwk_free(json);
        kwk_free(template);
        kwk_model_free(m);
    }
    free(path);
    tiny_dir_free(dir);

    o.tokenizer = 0;
    dir = tiny_model_dir(&o);
    kwk_model *m;
    assert_int_equal(kwk_model_open(&m, dir, &opts, &err), KWK_OK);
    assert_int_equal(kwk_model_token_bytes(m, 1, &bytes, &n, &err), KWK_ENOENT);
    assert_int_equal(kwk_model_tokenizer_json(m, &text, &n, &err), KWK_ENOENT);
    assert_int_equal(kwk_source_tokenizer(dir, &json, &template, &err), KWK_ENOENT);
    kwk_model_free(m);
    tiny_dir_free(dir);
}

static void a_tokenizer_that_cannot_be_expressed_does_not_stop_a_model(void **state)
{
    static const char other[] = "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}";
    tiny_options o = TINY_OPTIONS;
    const kwk_model_options opts = options(NULL, 0);
    char *dir = tiny_model_dir(&o);
    const uint8_t *bytes;
    const char *text;
    kwk_model *m;
    size_t n;

    tiny_write(dir, "tokenizer.json", other, sizeof other - 1);
    assert_int_equal(kwk_model_open(&m, dir, &opts, NULL), KWK_OK);
    assert_int_equal(kwk_model_token_bytes(m, 0, &bytes, &n, NULL), KWK_ENOENT);
    assert_int_equal(kwk_model_tokenizer_json(m, &text, &n, NULL), KWK_OK);
    assert_string_equal(text, other);
    kwk_model_free(m);
    tiny_dir_free(dir);
}

static void opening_what_is_not_a_model_is_a_typed_error(void **state)
{
    tiny_options o = TINY_OPTIONS;
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "x"), *json, *template;
    const kwk_model_options opts = options(NULL, 0);
    kwk_model *m = NULL;
    kwk_error err;

    assert_int_equal(kwk_model_open(&m, path, &opts, &err), KWK_ENOENT);
    assert_int_equal(kwk_model_open(&m, dir, &opts, &err), KWK_ENOENT);
    assert_int_equal(kwk_model_open(&m, "/dev/zero", &opts, &err), KWK_EFORMAT);
    tiny_write(dir, "x", "", 0);
    assert_int_equal(kwk_model_open(&m, path, &opts, &err), KWK_EFORMAT);
    tiny_write(dir, "x", "hello, world", 12);
    assert_int_equal(kwk_model_open(&m, path, &opts, &err), KWK_EFORMAT);
    assert_non_null(strstr(err.msg, "neither a GGUF file nor a packed model"));
    assert_int_equal(kwk_source_tokenizer(path, &json, &template, &err), KWK_EFORMAT);
    tiny_write(dir, "x", "KWKPACK", 8);
    assert_int_equal(kwk_model_open(&m, path, &opts, &err), KWK_EFORMAT);
    assert_int_equal(kwk_model_open_fd(&m, -1, &opts, &err), KWK_EINVAL);
    const int null = open("/dev/null", O_RDONLY);
    assert_int_equal(kwk_model_open_fd(&m, null, &opts, &err), KWK_EFORMAT);
    close(null);
    assert_int_equal(kwk_model_open(NULL, path, &opts, &err), KWK_EINVAL);
    assert_int_equal(kwk_model_open(&m, NULL, &opts, &err), KWK_EINVAL);
    assert_int_equal(kwk_source_tokenizer(NULL, &json, &template, &err), KWK_EINVAL);
    assert_null(m);
    free(path);
    tiny_dir_free(dir);

    dir = tiny_model_dir(&o);
    kwk_model_options bad = options(NULL, 0);
    bad.size = 4;
    assert_int_equal(kwk_model_open(&m, dir, &bad, &err), KWK_EINVAL);
    bad.size = sizeof bad + 8;
    assert_int_equal(kwk_model_open(&m, dir, &bad, &err), KWK_EINVAL);
    bad = options(NULL, 0);
    bad.kv_bits = 8;
    assert_int_equal(kwk_model_open(&m, dir, &bad, &err), KWK_EINVAL);
    tiny_write(dir, "config.json", "{\"model_type\": \"gpt2\"}", 22);
    assert_int_equal(kwk_model_open(&m, dir, &opts, &err), KWK_EUNSUPPORTED);
    assert_null(m);
    tiny_dir_free(dir);
}

static void a_pack_keeps_its_own_precision(void **state)
{
    tiny_options o = TINY_OPTIONS;
    char *dir = tiny_model_dir(&o), *path = tiny_path(dir, "m.kwk");
    kwk_model_options opts = options("int8", 0);
    kwk_model *m;
    kwk_error err;

    assert_int_equal(kwk_model_open(&m, dir, &opts, &err), KWK_OK);
    assert_int_equal(kwk_model_save(m, path, &err), KWK_OK);
    assert_int_equal(kwk_model_fd(m, &err), KWK_EUNSUPPORTED);
    kwk_model_free(m);
    opts.precision = "balanced"; // another name for it
    assert_int_equal(kwk_model_open(&m, path, &opts, &err), KWK_OK);
    kwk_model_free(m);
    opts.precision = "bf16";
    assert_int_equal(kwk_model_open(&m, path, &opts, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "precision 'bf16' of a model packed as int8");
    free(path);
    tiny_dir_free(dir);
}

static void references_keep_a_model_alive(void **state)
{
    tiny_options o = TINY_OPTIONS;
    const kwk_model_options opts = options(NULL, 0);
    char *dir = tiny_model_dir(&o);
    kwk_model_info info;
    kwk_model *m;
    kwk_seq *s;

    assert_int_equal(kwk_model_open(&m, dir, &opts, NULL), KWK_OK);
    assert_ptr_equal(kwk_model_retain(m), m);
    kwk_model_free(m);
    kwk_model_describe(m, &info);
    assert_int_equal(info.vocab, 99);
    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    kwk_model_free(m); // the sequence holds it
    assert_int_equal(kwk_seq_append_holes(s, 3, NULL), KWK_OK);
    kwk_seq_free(s);
    kwk_model_free(NULL);
    assert_null(kwk_model_retain(NULL));
    tiny_dir_free(dir);
}

/* The published greedy story of a real trained model, token for token. */
static void stories260k_tells_its_published_story(void **state)
{
    char *dir = tiny_shared("stories260K");
    const kwk_sampling greedy = KWK_SAMPLING_INIT;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    kwk_model *m;
    kwk_seq *s;
    int32_t token = 1;
    size_t n;

    if (!dir)
        check_skip("no ../shared/data");
    opts.kv_bytes = 64 << 20;
    char *text = (char *)tiny_read(dir, "greedy_from_bos_256.json", &n), *at = text + 1;
    assert_int_equal(kwk_model_open(&m, dir, &opts, NULL), KWK_OK);
    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    for (int i = 0; i <= 256; i++) {
        assert_int_equal(strtol(at, &at, 10), token);
        at++;
        kwk_row row = {.seq = s, .token = token, .position = i, .sampling = &greedy};
        kwk_step_args args = {.size = sizeof args, .rows = &row, .n_rows = 1};
        assert_int_equal(kwk_step(m, &args, NULL), KWK_OK);
        token = row.out_token;
    }
    kwk_seq_free(s);
    kwk_model_free(m);
    free(text);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_of_opening_gives_the_same_model),
        cmocka_unit_test(the_facts_of_a_model_are_true),
        cmocka_unit_test(tokens_and_tokenizer_survive_packing),
        cmocka_unit_test(a_tokenizer_that_cannot_be_expressed_does_not_stop_a_model),
        cmocka_unit_test(opening_what_is_not_a_model_is_a_typed_error),
        cmocka_unit_test(a_pack_keeps_its_own_precision),
        cmocka_unit_test(references_keep_a_model_alive),
        cmocka_unit_test(stories260k_tells_its_published_story),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
