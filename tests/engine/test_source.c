/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories and memory as sources (source.c, source_dir.c, source_memory.c): same tensors, same
 * values, and what is missing or odd is named.
 */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/source.h"
#include "tests/support/tiny_model.h"

/* Every tensor of m is in s with the same values, however its rows are asked for. */
static void check_values(const kwk_source *s, const tiny_model *m)
{
    assert_int_equal(s->n_tensors, m->n_tensors);
    for (int i = 0; i < m->n_tensors; i++) {
        const tiny_tensor *want = &m->tensors[i];
        const kwk_src_tensor *t = kwk_source_find(s, want->name);
        assert_non_null(t);
        const int rows = (int)kwk_src_rows(t), cols = (int)kwk_src_cols(t);
        assert_int_equal((size_t)rows * (size_t)cols, want->n);
        for (int row = 0, n; row < rows; row += n) {
            n = rows - row < 7 ? rows - row : 7;
            void *scratch = malloc(kwk_source_scratch(t, n) + 1);
            float *y = check_alloc((size_t)n * (size_t)(cols + 3) * sizeof *y);
            assert_int_equal(kwk_source_read(s, t, row, n, y, (size_t)cols + 3, scratch, NULL), 0);
            for (int r = 0; r < n; r++)
                check_same_f32(y + (size_t)r * (size_t)(cols + 3),
                               want->w + (size_t)(row + r) * (size_t)cols, (size_t)cols,
                               "%s row %d", want->name, row + r);
            check_free(y);
            free(scratch);
        }
    }
}

static void a_directory_gives_the_tensors_that_were_written(void **state)
{
    static const char *const dtypes[] = {"F32", "F16", "BF16"};

    for (int i = 0; i < 6; i++) {
        tiny_options o = TINY_OPTIONS;
        o.dtype = dtypes[i % 3];
        o.shards = i < 3 ? 1 : 3;
        o.tied = i % 2;
        tiny_model *m = tiny_model_new(&o);
        char *dir = tiny_dir_new();
        kwk_source s;
        kwk_error err;
        tiny_model_write(m, dir);
        if (kwk_source_open_dir(&s, dir, &err) < 0)
            fail_msg("%s", err.msg);
        assert_string_equal(s.config, m->config);
        assert_non_null(strstr(s.generation, "eos_token_id"));
        check_values(&s, m);
        kwk_source_close(&s);
        tiny_dir_free(dir);
        tiny_model_free(m);
    }
}

static void memory_gives_the_same(void **state)
{
    tiny_options o = TINY_OPTIONS;
    o.dtype = "BF16";
    tiny_model *m = tiny_model_new(&o);
    kwk_source s;

    assert_int_equal(
        kwk_source_open_memory(&s, m->config, strlen(m->config), m->views, m->n_tensors, NULL),
        KWK_OK);
    assert_string_equal(s.config, m->config);
    check_values(&s, m);
    kwk_source_close(&s);
    tiny_model_free(m);
}

static void bad_views_are_refused(void **state)
{
    static const float data[4];
    const kwk_tensor_view good = {"a", "F32", 1, {4}, data};
    const struct {
        kwk_tensor_view v;
        int code;
    } bad[] = {
        {{NULL, "F32", 1, {4}, data}, KWK_EINVAL},
        {{"a", NULL, 1, {4}, data}, KWK_EINVAL},
        {{"a", "F32", 0, {4}, data}, KWK_EINVAL},
        {{"a", "F32", 4, {4}, data}, KWK_EINVAL},
        {{"a", "F32", 1, {4}, NULL}, KWK_EINVAL},
        {{"a", "F64", 1, {4}, data}, KWK_EUNSUPPORTED},
        {{"a", "Q4_0", 1, {4}, data}, KWK_EUNSUPPORTED},
        {{"a", "F32", 1, {-4}, data}, KWK_EFORMAT},
        {{"a", "F32", 2, {INT64_MAX, INT64_MAX}, data}, KWK_EFORMAT},
        {{"", "F32", 1, {4}, data}, KWK_EFORMAT},
    };
    kwk_source s;
    kwk_error err;

    assert_int_equal(kwk_source_open_memory(&s, "{}", 2, &good, 1, &err), KWK_OK);
    kwk_source_close(&s);
    for (size_t i = 0; i < CHECK_COUNT(bad); i++)
        assert_int_equal(kwk_source_open_memory(&s, "{}", 2, &bad[i].v, 1, &err), bad[i].code);
    const kwk_tensor_view twice[2] = {good, good};
    assert_int_equal(kwk_source_open_memory(&s, "{}", 2, twice, 2, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "model: tensor 'a' appears twice");
    assert_int_equal(kwk_source_open_memory(&s, NULL, 0, &good, 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_source_open_memory(&s, "{}", 2, NULL, 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_source_open_memory(&s, "{}", 2, NULL, -1, &err), KWK_EINVAL);
}

/* Open a tiny directory with one file replaced (or removed: text NULL). */
static int open_with(const char *name, const char *text, int shards, kwk_error *err)
{
    tiny_options o = TINY_OPTIONS;
    kwk_source s;

    o.shards = shards;
    char *dir = tiny_model_dir(&o), *path = tiny_path(dir, name);
    if (text)
        tiny_write(dir, name, text, strlen(text));
    else
        unlink(path);
    const int rc = kwk_source_open_dir(&s, dir, err);
    if (!rc)
        kwk_source_close(&s);
    free(path);
    tiny_dir_free(dir);
    return rc;
}

static void missing_and_odd_files_are_named(void **state)
{
    static const char index_name[] = "model.safetensors.index.json";
    kwk_error err;
    kwk_source s;

    assert_int_equal(open_with("config.json", NULL, 1, &err), KWK_ENOENT);
    assert_non_null(strstr(err.msg, "config.json"));
    assert_int_equal(open_with("generation_config.json", NULL, 1, &err), KWK_OK);
    assert_int_equal(open_with("model.safetensors", NULL, 1, &err), KWK_ENOENT);
    assert_int_equal(open_with("model.safetensors", "", 1, &err), KWK_EFORMAT);
    assert_int_equal(open_with("model-00002-of-00003.safetensors", NULL, 3, &err), KWK_ENOENT);
    assert_int_equal(open_with(index_name, "{\"weight_map\": {\"a\": \"../x\"}}", 3, &err),
                     KWK_EFORMAT);
    assert_string_equal(err.msg, "model.safetensors.index.json: 'a' is in no plainly named file");
    assert_int_equal(open_with(index_name, "{\"weight_map\": {\"a\": 5}}", 3, &err), KWK_EFORMAT);
    assert_int_equal(open_with(index_name, "{\"weight_map\": {\"a\": \".\"}}", 3, &err),
                     KWK_EFORMAT);
    assert_int_equal(open_with(index_name, "{\"weight_map\": []}", 3, &err), KWK_EFORMAT);
    assert_int_equal(open_with(index_name,
                               "{\"weight_map\": {\"no.such\": "
                               "\"model-00001-of-00003.safetensors\"}}",
                               3, &err),
                     KWK_EFORMAT);
    assert_string_equal(err.msg, "model.safetensors.index.json: tensor 'no.such' is not in "
                                 "model-00001-of-00003.safetensors");
    assert_int_equal(kwk_source_open_dir(&s, "/no/such/dir", &err), KWK_ENOENT);

    char *dir = tiny_dir_new();
    tiny_write(dir, "config.json", "{}", 2);
    tiny_write(dir, "pytorch_model.bin", "x", 1);
    assert_int_equal(kwk_source_open_dir(&s, dir, &err), KWK_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "pytorch_model.bin"));
    tiny_dir_free(dir);
}

static void a_file_cut_while_open_is_an_error_not_a_crash(void **state)
{
    tiny_options o = TINY_OPTIONS;
    char *dir = tiny_model_dir(&o), *path = tiny_path(dir, "model.safetensors");
    float y[40];
    uint8_t scratch[160];
    kwk_source s;
    kwk_error err;

    assert_int_equal(kwk_source_open_dir(&s, dir, NULL), KWK_OK);
    const kwk_src_tensor *t = kwk_source_find(&s, "model.norm.weight");
    assert_int_equal(truncate(path, 3000), 0);
    assert_int_equal(kwk_source_read(&s, t, 0, 1, y, 40, scratch, &err), KWK_EFORMAT);
    assert_non_null(strstr(err.msg, "the file ends"));
    kwk_source_close(&s);
    free(path);
    tiny_dir_free(dir);
}

static void the_directorys_tokenizer_and_template_come_along(void **state)
{
    tiny_options o = TINY_OPTIONS;
    kwk_tokenizer t = {0};
    kwk_source s;
    char *dir;

    o.tokenizer = 1;
    dir = tiny_model_dir(&o);
    assert_int_equal(kwk_source_open_dir(&s, dir, NULL), KWK_OK);
    assert_int_equal(s.tokenizer(&s, &t, NULL), KWK_OK);
    assert_int_equal(t.n_tokens, 99);
    assert_int_equal(t.bytes[t.offset[3]], ' ');
    assert_int_equal(t.bytes[t.offset[98]], 0xc3);
    assert_string_equal(t.chat_template, "{{ messages[0].content }}");
    assert_int_equal(strlen(t.json), t.json_len);
    kwk_tokenizer_free(&t);

    tiny_write(dir, "chat_template.jinja", "J", 1); // wins
    assert_int_equal(s.tokenizer(&s, &t, NULL), KWK_OK);
    assert_string_equal(t.chat_template, "J");
    kwk_tokenizer_free(&t);
    tiny_write(dir, "tokenizer.json", "{\"a\": 1", 7);
    assert_int_equal(s.tokenizer(&s, &t, NULL), KWK_EFORMAT);
    kwk_tokenizer_free(&t);
    kwk_source_close(&s);
    tiny_dir_free(dir);

    o.tokenizer = 0;
    dir = tiny_model_dir(&o);
    assert_int_equal(kwk_source_dir_tokenizer(dir, &t, NULL), KWK_OK);
    assert_true(!t.json && !t.chat_template && !t.offset);
    tiny_dir_free(dir);
}

/* Rows 0, 1, 2, … of a head are stored at 0, 2, 4, …, 1, 3, 5, … */
static void interleaved_heads_are_put_in_order(void **state)
{
    enum { HEAD = 10, ROWS = 30 };
    float data[ROWS], y[7];
    kwk_source s = {.what = "x"};
    kwk_src_tensor t = {.type = kwk_weight_type_by_dtype("F32"),
                        .n_dims = 2,
                        .shape = {ROWS, 1},
                        .interleaved = HEAD};

    for (int head = 0; head < ROWS / HEAD; head++)
        for (int i = 0; i < HEAD; i++)
            data[head * HEAD + i % (HEAD / 2) * 2 + i / (HEAD / 2)] = (float)(head * HEAD + i);
    t.data = (const uint8_t *)data;
    for (int row = 0; row + 7 <= ROWS; row++) {
        assert_int_equal(kwk_source_read(&s, &t, row, 7, y, 1, NULL, NULL), KWK_OK);
        for (int i = 0; i < 7; i++)
            assert_true(y[i] == (float)(row + i));
    }

    /* The same from a file, through scratch of the promised size. */
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "x");
    tiny_write(dir, "x", data, sizeof data);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    t.data = NULL;
    t.fd = fileno(f);
    void *scratch = malloc(kwk_source_scratch(&t, 7));
    for (int row = 0; row + 7 <= ROWS; row++) {
        assert_int_equal(kwk_source_read(&s, &t, row, 7, y, 1, scratch, NULL), KWK_OK);
        for (int i = 0; i < 7; i++)
            assert_true(y[i] == (float)(row + i));
    }
    free(scratch);
    fclose(f);
    free(path);
    tiny_dir_free(dir);
}

static void types_that_are_not_read_are_named(void **state)
{
    const kwk_source s = {.what = "m.gguf"};
    const kwk_src_tensor t = {.name = "a", .type_name = "IQ2_XXS", .n_dims = 1, .shape = {256}};
    kwk_error err;

    assert_int_equal(kwk_source_read(&s, &t, 0, 1, NULL, 0, NULL, &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "m.gguf: tensor 'a' has the type IQ2_XXS, which is not read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_gives_the_tensors_that_were_written),
        cmocka_unit_test(memory_gives_the_same),
        cmocka_unit_test(bad_views_are_refused),
        cmocka_unit_test(missing_and_odd_files_are_named),
        cmocka_unit_test(a_file_cut_while_open_is_an_error_not_a_crash),
        cmocka_unit_test(the_directorys_tokenizer_and_template_come_along),
        cmocka_unit_test(interleaved_heads_are_put_in_order),
        cmocka_unit_test(types_that_are_not_read_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
