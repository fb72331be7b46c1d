/* SPDX-License-Identifier: Apache-2.0
 *
 * A GGUF file gives the same model as the Hugging Face directory it was made of; what it holds
 * beyond that is refused by name.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/source.h"
#include "tests/support/tiny_gguf.h"

/* Write the builder's file and open it as a model. */
static int open_built(kwk_model **m, tiny_gguf *b, const char *precision, kwk_error *err)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "m.gguf");
    size_t n;
    uint8_t *file = tiny_gguf_finish(b, &n);

    o.precision = precision;
    o.kv_bytes = 1 << 20;
    tiny_write(dir, "m.gguf", file, n);
    const int rc = kwk_model_open(m, path, &o, err);
    free(file);
    free(path);
    tiny_dir_free(dir);
    return rc;
}

static void every_family_gives_the_model_of_its_directory(void **state)
{
    static const struct {
        const char *type, *dtype;
        int tied, biases;
    } cases[] = {
        {"llama", "F32", 1, 0}, {"llama", "F16", 0, 1},  {"llama", "BF16", 1, 0},
        {"qwen2", "F32", 0, 0}, {"qwen2", "BF16", 1, 0}, {"qwen3", "F32", 1, 0},
        {"qwen3", "F16", 0, 0},
    };

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        tiny_options o = TINY_OPTIONS;
        kwk_model_options mo = KWK_MODEL_OPTIONS_INIT;
        kwk_model *from_gguf = NULL, *from_memory;
        kwk_error err;
        tiny_gguf b = {0};
        o.model_type = cases[i].type;
        o.dtype = cases[i].dtype;
        o.tied = cases[i].tied;
        o.attention_bias = o.mlp_bias = cases[i].biases;
        o.tokenizer = 1;
        tiny_model *t = tiny_model_new(&o);
        tiny_gguf_model(&b, t);
        tiny_gguf_tokenizer(&b, t, "gpt-2");
        mo.kv_bytes = 1 << 20;
        assert_int_equal(kwk_model_open_memory(&from_memory, t->config, strlen(t->config), t->views,
                                               t->n_tensors, &mo, NULL),
                         KWK_OK);
        if (open_built(&from_gguf, &b, NULL, &err) < 0)
            fail_msg("%s: %s", cases[i].type, err.msg);
        /* The identity covers recipe, formats and every weight. */
        assert_memory_equal(&from_gguf->recipe, &from_memory->recipe, sizeof(kwk_recipe));
        assert_memory_equal(from_gguf->id, from_memory->id, 16);
        assert_string_equal(from_gguf->precision, from_memory->precision);
        assert_string_equal(from_gguf->rounded, "");
        assert_non_null(from_gguf->tokenizer_json);
        assert_string_equal(from_gguf->chat_template, "{{ messages[0].content }}");
        kwk_model_free(from_gguf);
        kwk_model_free(from_memory);
        tiny_model_free(t);
    }
}

/* A llama whose down projections are Q4_0 blocks of made-up bytes. */
static void quantised(tiny_gguf *b, uint32_t type, int block_bytes)
{
    tiny_options o = TINY_OPTIONS;
    uint64_t seed = 21;

    o.inter = 64; // rows of whole blocks
    tiny_model *t = tiny_model_new(&o);
    tiny_model part = *t;
    part.tensors = malloc((size_t)t->n_tensors * sizeof *part.tensors);
    part.n_tensors = 0;
    for (int i = 0; i < t->n_tensors; i++)
        if (!strstr(t->tensors[i].name, "down_proj"))
            part.tensors[part.n_tensors++] = t->tensors[i];
    tiny_gguf_model(b, &part);
    for (int layer = 0; layer < 2; layer++) {
        uint8_t data[40 * 2 * 64];
        char name[64];
        for (int k = 0; k < 80; k++) {
            uint8_t *block = data + k * block_bytes;
            for (int i = 0; i < block_bytes; i++)
                block[i] = (uint8_t)check_random(&seed);
            block[1] = 0x2c; // a harmless scale
        }
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", layer);
        tiny_gguf_tensor(b, name, type, 2, (int64_t[]){64, 40}, data, (size_t)(80 * block_bytes));
    }
    free(part.tensors);
    tiny_model_free(t);
}

static void quantised_files_mean_int8_unless_their_values_are_asked_for(void **state)
{
    static const struct {
        const char *asked, *precision, *rounded;
        kwk_format down;
    } cases[] = {
        {NULL, "int8", "source is quantised GGUF Q4_0; stored as int8", KWK_I8},
        {"int8", "int8", "source is quantised GGUF Q4_0; stored as int8", KWK_I8},
        {"int4", "int4", "source is quantised GGUF Q4_0; stored as int4", KWK_I8},
        {"float32", "float32", "", KWK_F32},
        {"bf16", "bf16", "source is quantised GGUF Q4_0; stored as bf16", KWK_BF16},
    };
    kwk_error err;

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        tiny_gguf b = {0};
        kwk_model *m;
        quantised(&b, 2, 18);
        if (open_built(&m, &b, cases[i].asked, &err) < 0)
            fail_msg("%s", err.msg);
        assert_string_equal(m->precision, cases[i].precision);
        assert_string_equal(m->rounded, cases[i].rounded);
        assert_int_equal(m->layers[0].down.format, cases[i].down);
        kwk_model_free(m);
    }
}

static void types_that_are_not_read_are_named(void **state)
{
    tiny_gguf b = {0};
    kwk_model *m = NULL;
    kwk_error err;

    quantised(&b, 16, 18);
    assert_int_equal(open_built(&m, &b, NULL, &err), KWK_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "tensor 'model.layers.0.mlp.down_proj.weight' has the type "
                                    "IQ2_XXS, which is not read"));
}

typedef void change_fn(tiny_gguf *b);

static int open_changed(change_fn *change, kwk_error *err)
{
    tiny_options o = TINY_OPTIONS;
    tiny_model *t = tiny_model_new(&o);
    tiny_gguf b = {0};
    kwk_model *m = NULL;

    tiny_gguf_model(&b, t);
    if (change)
        change(&b);
    const int rc = open_built(&m, &b, NULL, err);
    kwk_model_free(m);
    tiny_model_free(t);
    return rc;
}

static void add_experts(tiny_gguf *b)
{
    tiny_gguf_u32(b, "llama.expert_count", 8);
}

static void add_no_experts(tiny_gguf *b)
{
    tiny_gguf_u32(b, "llama.expert_count", 0);
    tiny_gguf_str(b, "llama.rope.scaling.type", "none");
    tiny_gguf_u32(b, "llama.rope.dimension_count", 10);
    tiny_gguf_u32(b, "other.key", 5);
}

static void add_window(tiny_gguf *b)
{
    tiny_gguf_u32(b, "llama.attention.sliding_window", 4096);
}

static void add_yarn(tiny_gguf *b)
{
    tiny_gguf_str(b, "llama.rope.scaling.type", "yarn");
}

static void add_partial_rope(tiny_gguf *b)
{
    tiny_gguf_u32(b, "llama.rope.dimension_count", 4);
}

static void add_split(tiny_gguf *b)
{
    tiny_gguf_u32(b, "split.count", 2);
}

static void add_tensor(tiny_gguf *b)
{
    tiny_gguf_tensor(b, "blk.0.ffn_gate_inp.weight", 0, 1, (int64_t[]){1}, "1234", 4);
}

static void add_odd_layer(tiny_gguf *b)
{
    tiny_gguf_tensor(b, "blk.01.attn_q.weight", 0, 1, (int64_t[]){1}, "1234", 4);
}

static void add_freqs(tiny_gguf *b)
{
    static const float ones[5] = {1, 2, 1, 1, 1};
    tiny_gguf_tensor(b, "rope_freqs.weight", 0, 1, (int64_t[]){5}, ones, sizeof ones);
}

static void what_is_not_known_is_refused_by_name(void **state)
{
    static const struct {
        change_fn *change;
        const char *message;
    } cases[] = {
        {add_experts, "key 'llama.expert_count' or its value is not supported"},
        {add_window, "key 'llama.attention.sliding_window' or its value is not supported"},
        {add_yarn, "key 'llama.rope.scaling.type' or its value is not supported"},
        {add_partial_rope, "key 'llama.rope.dimension_count' or its value is not supported"},
        {add_split, "one of several files of a split model"},
        {add_tensor, "tensor 'blk.0.ffn_gate_inp.weight' is not known"},
        {add_odd_layer, "tensor 'blk.01.attn_q.weight' is not known"},
        {add_freqs, "the factors in 'rope_freqs.weight' are not Llama 3's"},
    };
    kwk_error err;

    assert_int_equal(open_changed(NULL, &err), KWK_OK);
    assert_int_equal(open_changed(add_no_experts, &err), KWK_OK);
    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        assert_int_equal(open_changed(cases[i].change, &err), KWK_EUNSUPPORTED);
        if (!strstr(err.msg, cases[i].message))
            fail_msg("%s", err.msg);
    }
    tiny_gguf b = {0};
    kwk_model *m;
    tiny_gguf_str(&b, "general.architecture", "mamba");
    assert_int_equal(open_built(&m, &b, NULL, &err), KWK_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "architecture 'mamba' is not supported"));
    assert_int_equal(open_built(&m, &b, NULL, &err), KWK_EUNSUPPORTED); // no key at all
    tiny_gguf_str(&b, "general.architecture", "llama");
    assert_int_equal(open_built(&m, &b, NULL, &err), KWK_EFORMAT);
    assert_non_null(strstr(err.msg, "no tensor 'token_embd.weight'"));
}

/* Llama 3.2's factors as its conversion writes them, for heads of 64 and theta 500000. */
static void llama3_scaling_is_recognised_in_its_tensor(void **state)
{
    tiny_options o = TINY_OPTIONS;
    kwk_recipe r = {.rope_dim = 64, .rope_theta = 10000}, scaled = {.rope_dim = 64,
                                                                    .rope_theta = 10000,
                                                                    .rope_type = KWK_ROPE_LLAMA3,
                                                                    .rope_factor = 32,
                                                                    .rope_low_freq = 1,
                                                                    .rope_high_freq = 4,
                                                                    .rope_original_max_pos = 8192};
    float plain[32], slow[32], factors[32];
    tiny_gguf b = {0};
    kwk_model *m;
    kwk_error err;

    o.head_dim = 64;
    o.max_pos = 100000;
    tiny_model *t = tiny_model_new(&o);
    tiny_gguf_model(&b, t);
    kwk_recipe_inv_freq(&r, plain);
    kwk_recipe_inv_freq(&scaled, slow);
    for (int i = 0; i < 32; i++)
        factors[i] = plain[i] / slow[i];
    assert_true(factors[0] == 1 && factors[31] == 32);
    tiny_gguf_tensor(&b, "rope_freqs.weight", 0, 1, (int64_t[]){32}, factors, sizeof factors);
    if (open_built(&m, &b, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(m->recipe.rope_type, KWK_ROPE_LLAMA3);
    assert_true(m->recipe.rope_factor == 32);
    check_same_f32(m->inv_freq, slow, 32, "inv_freq");
    kwk_model_free(m);
    tiny_model_free(t);
}

static void linear_scaling_and_ends_of_turns_are_read(void **state)
{
    tiny_options o = TINY_OPTIONS;
    tiny_model *t = tiny_model_new(&o);
    tiny_gguf b = {0};
    kwk_model *m;

    tiny_gguf_model(&b, t);
    tiny_gguf_tokenizer(&b, t, "gpt-2");
    tiny_gguf_u32(&b, "tokenizer.ggml.eot_token_id", 5);
    tiny_gguf_u32(&b, "tokenizer.ggml.eom_token_id", 2);
    tiny_gguf_str(&b, "llama.rope.scaling.type", "linear");
    tiny_gguf_f32(&b, "llama.rope.scaling.factor", 2.5f);
    assert_int_equal(open_built(&m, &b, NULL, NULL), KWK_OK);
    assert_int_equal(m->recipe.n_eos, 2);
    assert_int_equal(m->recipe.eos[0], 2);
    assert_int_equal(m->recipe.eos[1], 5);
    assert_int_equal(m->recipe.rope_type, KWK_ROPE_LINEAR);
    assert_true(m->recipe.rope_factor == 2.5f);
    kwk_model_free(m);
    tiny_model_free(t);
}

static void every_damaged_header_byte_is_survived(void **state)
{
    tiny_options o = TINY_OPTIONS;
    tiny_gguf b = {0};
    size_t n;

    o.layers = 1;
    tiny_model *t = tiny_model_new(&o);
    tiny_gguf_model(&b, t);
    tiny_gguf_tokenizer(&b, t, "llama-bpe");
    const size_t head = 24 + b.keys.n + b.infos.n;
    uint8_t *file = tiny_gguf_finish(&b, &n);
    const int fd = memfd_create("t", MFD_CLOEXEC);
    assert_int_equal(write(fd, file, n), n);
    for (size_t i = 0; i < head; i++) {
        const uint8_t bad = file[i] ^ (uint8_t)(1 << i % 8);
        kwk_source s;
        kwk_tokenizer tok = {0};
        assert_int_equal(pwrite(fd, &bad, 1, (off_t)i), 1);
        const int rc = kwk_source_open_gguf(&s, "f", dup(fd), n, NULL);
        if (rc == KWK_OK) {
            const int tc = s.tokenizer(&s, &tok, NULL);
            assert_true(tc == KWK_OK || tc == KWK_EFORMAT || tc == KWK_EUNSUPPORTED);
            kwk_tokenizer_free(&tok);
            kwk_source_close(&s);
        } else {
            assert_true(rc == KWK_EFORMAT || rc == KWK_EUNSUPPORTED);
        }
        assert_int_equal(pwrite(fd, &file[i], 1, (off_t)i), 1);
    }
    close(fd);
    free(file);
    tiny_model_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_model_of_its_directory),
        cmocka_unit_test(quantised_files_mean_int8_unless_their_values_are_asked_for),
        cmocka_unit_test(types_that_are_not_read_are_named),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(llama3_scaling_is_recognised_in_its_tensor),
        cmocka_unit_test(linear_scaling_and_ends_of_turns_are_read),
        cmocka_unit_test(every_damaged_header_byte_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
