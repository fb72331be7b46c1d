/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny random models and the files they come in. One thread.
 */
#include "tests/support/tiny_model.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/half.h"
#include "tests/support/check.h"

static size_t dtype_bytes(const char *dtype)
{
    return !strcmp(dtype, "F32") ? 4 : 2;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void add(tiny_model *m, uint64_t *seed, float base, const char *name, int rows, int cols)
{
    tiny_tensor *t = &m->tensors[m->n_tensors++];

    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = cols ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->n = (size_t)rows * (size_t)(cols ? cols : 1);
    t->w = malloc(t->n * sizeof *t->w);
    t->raw = malloc(t->n * dtype_bytes(m->o.dtype));
    assert_true(t->w && t->raw);
    for (size_t i = 0; i < t->n; i++) {
        float v = base + m->o.scale * check_random_f32(seed);
        if (!strcmp(m->o.dtype, "BF16")) {
            const uint16_t h = kwk_f32_to_bf16(v);
            ((uint16_t *)t->raw)[i] = h;
            v = kwk_bf16_to_f32(h);
        } else if (!strcmp(m->o.dtype, "F16")) {
            const uint16_t h = kwk_f32_to_f16(v);
            ((uint16_t *)t->raw)[i] = h;
            v = kwk_f16_to_f32(h);
        } else {
            ((float *)t->raw)[i] = v;
        }
        t->w[i] = v;
    }
}

static void add_layer(tiny_model *m, uint64_t *seed, int layer)
{
    const tiny_options *o = &m->o;
    const int q = o->heads * o->head_dim, kv = o->kv_heads * o->head_dim;
    const int llama = !strcmp(o->model_type, "llama");
    const int qkv_bias = llama ? o->attention_bias : !strcmp(o->model_type, "qwen2");
    const int o_bias = llama && o->attention_bias, mlp_bias = llama && o->mlp_bias;
    const struct {
        const char *name;
        int rows, cols, present;
        float base;
    } list[] = {
        {"input_layernorm.weight", o->hidden, 0, 1, 1},
        {"post_attention_layernorm.weight", o->hidden, 0, 1, 1},
        {"self_attn.q_norm.weight", o->head_dim, 0, !strcmp(o->model_type, "qwen3"), 1},
        {"self_attn.k_norm.weight", o->head_dim, 0, !strcmp(o->model_type, "qwen3"), 1},
        {"self_attn.q_proj.weight", q, o->hidden, 1, 0},
        {"self_attn.k_proj.weight", kv, o->hidden, 1, 0},
        {"self_attn.v_proj.weight", kv, o->hidden, 1, 0},
        {"self_attn.o_proj.weight", o->hidden, q, 1, 0},
        {"self_attn.q_proj.bias", q, 0, qkv_bias, 0},
        {"self_attn.k_proj.bias", kv, 0, qkv_bias, 0},
        {"self_attn.v_proj.bias", kv, 0, qkv_bias, 0},
        {"self_attn.o_proj.bias", o->hidden, 0, o_bias, 0},
        {"mlp.gate_proj.weight", o->inter, o->hidden, 1, 0},
        {"mlp.up_proj.weight", o->inter, o->hidden, 1, 0},
        {"mlp.down_proj.weight", o->hidden, o->inter, 1, 0},
        {"mlp.gate_proj.bias", o->inter, 0, mlp_bias, 0},
        {"mlp.up_proj.bias", o->inter, 0, mlp_bias, 0},
        {"mlp.down_proj.bias", o->hidden, 0, mlp_bias, 0},
    };

    for (size_t i = 0; i < CHECK_COUNT(list); i++) {
        char name[96];
        if (!list[i].present)
            continue;
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, list[i].name);
        add(m, seed, list[i].base, name, list[i].rows, list[i].cols);
    }
}

static char *config_text(const tiny_options *o)
{
    char *text = malloc(4096);
    const char *rope = o->rope ? o->rope : "{\"rope_theta\": 10000.0, \"rope_type\": \"default\"}";
    const char *llama = !strcmp(o->model_type, "llama") ? "\"pretraining_tp\": 1, " : "";
    char biases[128] = "";

    assert_non_null(text);
    if (*llama)
        snprintf(biases, sizeof biases, "\"attention_bias\": %s, \"mlp_bias\": %s, ",
                 o->attention_bias ? "true" : "false", o->mlp_bias ? "true" : "false");
    const int n = snprintf(
        text, 4096,
        "{\"architectures\": [\"CausalLM\"], %s%s%s\"bos_token_id\": 1, \"eos_token_id\": 2, "
        "\"pad_token_id\": 0, \"dtype\": \"%s\", \"head_dim\": %d, \"hidden_act\": \"silu\", "
        "\"hidden_size\": %d, \"initializer_range\": 0.02, \"intermediate_size\": %d, "
        "\"max_position_embeddings\": %d, \"model_type\": \"%s\", \"num_attention_heads\": %d, "
        "\"num_hidden_layers\": %d, \"num_key_value_heads\": %d, \"rms_norm_eps\": 1e-05, "
        "\"rope_parameters\": %s, \"tie_word_embeddings\": %s, "
        "\"transformers_version\": \"5.24.0\", \"use_cache\": true, \"vocab_size\": %d}",
        o->config, llama, biases,
        !strcmp(o->dtype, "F32")   ? "float32"
        : !strcmp(o->dtype, "F16") ? "float16"
                                   : "bfloat16",
        o->head_dim, o->hidden, o->inter, o->max_pos, o->model_type, o->heads, o->layers,
        o->kv_heads, rope, o->tied ? "true" : "false", o->vocab);
    assert_in_range(n, 1, 4095);
    return text;
}

tiny_model *tiny_model_new(const tiny_options *o)
{
    tiny_model *m = calloc(1, sizeof *m);
    uint64_t seed = o->seed;

    assert_non_null(m);
    m->o = *o;
    m->config = config_text(o);
    m->tensors = calloc((size_t)o->layers * 18 + 3, sizeof *m->tensors);
    assert_non_null(m->tensors);
    add(m, &seed, 0, "model.embed_tokens.weight", o->vocab, o->hidden);
    for (int layer = 0; layer < o->layers; layer++)
        add_layer(m, &seed, layer);
    add(m, &seed, 1, "model.norm.weight", o->hidden, 0);
    if (!o->tied)
        add(m, &seed, 0, "lm_head.weight", o->vocab, o->hidden);

    m->views = calloc((size_t)m->n_tensors, sizeof *m->views);
    assert_non_null(m->views);
    for (int i = 0; i < m->n_tensors; i++) {
        const tiny_tensor *t = &m->tensors[i];
        m->views[i] = (kwk_tensor_view){
            t->name, m->o.dtype, t->n_dims, {t->shape[0], t->shape[1], 0}, t->raw};
    }
    return m;
}

void tiny_model_free(tiny_model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_tensors; i++) {
        free(m->tensors[i].w);
        free(m->tensors[i].raw);
    }
    free(m->tensors);
    free(m->views);
    free(m->config);
    free(m);
}

const float *tiny_model_weights(const tiny_model *m, const char *name)
{
    for (int i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensors[i].name, name))
            return m->tensors[i].w;
    fail_msg("the tiny model has no tensor %s", name);
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* One safetensors file of the tensors first, first + step, … */
static void write_safetensors(const tiny_model *m, const char *dir, const char *name, int first,
                              int step)
{
    const size_t item = dtype_bytes(m->o.dtype);
    size_t data = 0, room = 4096 + (size_t)m->n_tensors * 256, n = 0;

    for (int i = first; i < m->n_tensors; i += step)
        data += m->tensors[i].n * item;
    uint8_t *file = calloc(1, 8 + room + data);
    assert_non_null(file);
    char *head = (char *)file + 8;

    n += (size_t)sprintf(head, "{\"__metadata__\": {\"format\": \"pt\"}");
    size_t at = 0;
    for (int i = first; i < m->n_tensors; i += step) {
        const tiny_tensor *t = &m->tensors[i];
        n += (size_t)sprintf(head + n, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [%d", t->name,
                             m->o.dtype, (int)t->shape[0]);
        if (t->n_dims == 2)
            n += (size_t)sprintf(head + n, ", %d", (int)t->shape[1]);
        n += (size_t)sprintf(head + n, "], \"data_offsets\": [%zu, %zu]}", at, at + t->n * item);
        at += t->n * item;
    }
    head[n++] = '}';
    while (n % 8)
        head[n++] = ' ';
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> 8 * i);
    at = 8 + n;
    for (int i = first; i < m->n_tensors; i += step) {
        memcpy(file + at, m->tensors[i].raw, m->tensors[i].n * item);
        at += m->tensors[i].n * item;
    }
    tiny_write(dir, name, file, at);
    free(file);
}

static void write_sharded(const tiny_model *m, const char *dir)
{
    char *index = malloc(4096 + (size_t)m->n_tensors * 192);
    size_t n = 0;

    assert_non_null(index);
    n += (size_t)sprintf(index, "{\"metadata\": {\"total_size\": 0}, \"weight_map\": {");
    for (int i = 0; i < m->n_tensors; i++)
        n += (size_t)sprintf(index + n, "%s\"%s\": \"model-%05d-of-%05d.safetensors\"",
                             i ? ", " : "", m->tensors[i].name, i % m->o.shards + 1, m->o.shards);
    n += (size_t)sprintf(index + n, "}}");
    tiny_write(dir, "model.safetensors.index.json", index, n);
    free(index);
    for (int s = 0; s < m->o.shards; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, m->o.shards);
        write_safetensors(m, dir, name, s, m->o.shards);
    }
}

static void write_tokenizer(const tiny_model *m, const char *dir)
{
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    static const char config[] = "{\"chat_template\": \"{{ messages[0].content }}\"}";
    char *text = malloc(16384);
    size_t n = 0;

    assert_non_null(text);
    n += (size_t)sprintf(text, "{\"version\": \"1.0\", \"added_tokens\": [");
    for (int i = 0; i < 3 && i < m->o.vocab; i++)
        n += (size_t)sprintf(text + n,
                             "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, "
                             "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                             "\"special\": true}",
                             i ? ", " : "", i, special[i]);
    n += (size_t)sprintf(text + n,
                         "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                         "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "
                         "true}, \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", "
                         "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": "
                         "true}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"<unk>\": 0, "
                         "\"<s>\": 1, \"</s>\": 2");
    for (int i = 3; i < m->o.vocab && i < 99; i++) {
        const int c = 32 + i - 3;
        const char *escape = c == '"' || c == '\\' ? "\\" : "";
        if (i == 98) // byte 0xC3 is spelt U+00C3
            n += (size_t)sprintf(text + n, ", \"\\u00c3\": 98");
        else if (c == ' ') // and the space U+0120
            n += (size_t)sprintf(text + n, ", \"\\u0120\": %d", i);
        else
            n += (size_t)sprintf(text + n, ", \"%s%c\": %d", escape, c, i);
    }
    n += (size_t)sprintf(text + n, "}, \"merges\": []}}");
    tiny_write(dir, "tokenizer.json", text, n);
    free(text);
    tiny_write(dir, "tokenizer_config.json", config, sizeof config - 1);
}

void tiny_model_write(const tiny_model *m, const char *dir)
{
    static const char generation[] =
        "{\"_from_model_config\": true, \"bos_token_id\": 1, \"eos_token_id\": 2, "
        "\"pad_token_id\": 0, \"transformers_version\": \"5.24.0\"}";

    tiny_write(dir, "config.json", m->config, strlen(m->config));
    tiny_write(dir, "generation_config.json", generation, sizeof generation - 1);
    if (m->o.shards > 1)
        write_sharded(m, dir);
    else
        write_safetensors(m, dir, "model.safetensors", 0, 1);
    if (m->o.tokenizer)
        write_tokenizer(m, dir);
}

char *tiny_model_dir(const tiny_options *o)
{
    tiny_model *m = tiny_model_new(o);
    char *dir = tiny_dir_new();

    tiny_model_write(m, dir);
    tiny_model_free(m);
    return dir;
}

char *tiny_dir_new(void)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = tiny_path(tmp && *tmp ? tmp : "/tmp", "kwk-test-XXXXXX");

    assert_non_null(mkdtemp(dir));
    return dir;
}

void tiny_dir_free(char *dir)
{
    DIR *d;

    if (!dir)
        return;
    d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}

char *tiny_path(const char *dir, const char *name)
{
    const size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);

    assert_non_null(path);
    snprintf(path, n, "%s/%s", dir, name);
    return path;
}

void tiny_write(const char *dir, const char *name, const void *data, size_t n)
{
    char *path = tiny_path(dir, name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(path);
}

uint8_t *tiny_read(const char *dir, const char *name, size_t *n)
{
    char *path = tiny_path(dir, name);
    FILE *f = fopen(path, "rb");
    uint8_t *data;

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    data = malloc(*n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *n, f), *n);
    data[*n] = 0;
    fclose(f);
    free(path);
    return data;
}

char *tiny_shared(const char *name)
{
    const char *shared = getenv("KWK_SHARED"), *source = getenv("KWK_SOURCE_DIR");
    const char *ci = getenv("CI");
    char *dir = shared && *shared ? tiny_path(shared, "data")
                                  : tiny_path(source ? source : ".", "../shared/data");
    char *path = tiny_path(dir, name);

    free(dir);
    if (access(path, R_OK) == 0)
        return path;
    if (ci && !strcmp(ci, "true"))
        fail_msg("%s is missing", path);
    free(path);
    return NULL;
}
