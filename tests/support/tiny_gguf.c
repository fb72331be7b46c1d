/* SPDX-License-Identifier: Apache-2.0
 *
 * Builder of GGUF files. One thread.
 */
#include "tests/support/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, ALIGNMENT = 32 };

static void put(tiny_bytes *b, const void *data, size_t n)
{
    while (b->n + n > b->room) {
        b->room = b->room ? 2 * b->room : 4096;
        b->p = realloc(b->p, b->room);
        assert_non_null(b->p);
    }
    if (n)
        memcpy(b->p + b->n, data, n);
    b->n += n;
}

static void put_int(tiny_bytes *b, uint64_t v, size_t bytes)
{
    put(b, &v, bytes);
}

static void put_string(tiny_bytes *b, const char *s)
{
    put_int(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static void key(tiny_gguf *g, const char *name, uint32_t type)
{
    g->n_keys++;
    put_string(&g->keys, name);
    put_int(&g->keys, type, 4);
}

static void array(tiny_gguf *g, const char *name, uint32_t element, int n)
{
    key(g, name, ARRAY);
    put_int(&g->keys, element, 4);
    put_int(&g->keys, (uint64_t)n, 8);
}

void tiny_gguf_u32(tiny_gguf *g, const char *name, uint32_t v)
{
    key(g, name, U32);
    put_int(&g->keys, v, 4);
}

void tiny_gguf_f32(tiny_gguf *g, const char *name, float v)
{
    key(g, name, F32);
    put(&g->keys, &v, 4);
}

void tiny_gguf_bool(tiny_gguf *g, const char *name, int v)
{
    key(g, name, BOOL);
    put_int(&g->keys, (uint64_t)v, 1);
}

void tiny_gguf_str(tiny_gguf *g, const char *name, const char *v)
{
    key(g, name, STRING);
    put_string(&g->keys, v);
}

void tiny_gguf_strs(tiny_gguf *g, const char *name, int n, const char *const *v)
{
    array(g, name, STRING, n);
    for (int i = 0; i < n; i++)
        put_string(&g->keys, v[i]);
}

void tiny_gguf_i32s(tiny_gguf *g, const char *name, int n, const int32_t *v)
{
    array(g, name, I32, n);
    put(&g->keys, v, (size_t)n * 4);
}

void tiny_gguf_f32s(tiny_gguf *g, const char *name, int n, const float *v)
{
    array(g, name, F32, n);
    put(&g->keys, v, (size_t)n * 4);
}

void tiny_gguf_tensor(tiny_gguf *g, const char *name, uint32_t type, int n_dims,
                      const int64_t *dims, const void *data, size_t bytes)
{
    static const uint8_t zeros[ALIGNMENT];

    g->n_tensors++;
    put_string(&g->infos, name);
    put_int(&g->infos, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        put_int(&g->infos, (uint64_t)dims[i], 8);
    put_int(&g->infos, type, 4);
    put_int(&g->infos, g->data.n, 8);
    put(&g->data, data, bytes);
    put(&g->data, zeros, (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT);
}

uint8_t *tiny_gguf_finish(tiny_gguf *g, size_t *n)
{
    static const uint8_t zeros[ALIGNMENT];
    tiny_bytes file = {0};

    put(&file, "GGUF", 4);
    put_int(&file, g->version ? g->version : 3, 4);
    put_int(&file, g->n_tensors, 8);
    put_int(&file, g->n_keys, 8);
    if (g->keys.n)
        put(&file, g->keys.p, g->keys.n);
    if (g->infos.n)
        put(&file, g->infos.p, g->infos.n);
    put(&file, zeros, (ALIGNMENT - file.n % ALIGNMENT) % ALIGNMENT);
    if (g->data.n)
        put(&file, g->data.p, g->data.n);
    free(g->keys.p);
    free(g->infos.p);
    free(g->data.p);
    memset(g, 0, sizeof *g);
    *n = file.n;
    return file.p;
}

/* ---- tiny models ----------------------------------------------------------------------------- */

static const struct {
    const char *hf, *gguf;
} names[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
};

static void gguf_name(const char *hf, char *out, size_t room)
{
    int layer = -1, at = 0;
    char stem[64];
    const char *ending = strrchr(hf, '.');

    if (sscanf(hf, "model.layers.%d.%n", &layer, &at) != 1)
        at = 0;
    snprintf(stem, sizeof stem, "%.*s", (int)(ending - hf - at), hf + at);
    for (size_t i = 0; i < CHECK_COUNT(names); i++) {
        if (strcmp(names[i].hf, stem) != 0)
            continue;
        if (at)
            snprintf(out, room, "blk.%d.%s%s", layer, names[i].gguf, ending);
        else
            snprintf(out, room, "%s%s", names[i].gguf, ending);
        return;
    }
    fail_msg("no GGUF name for %s", hf);
}

/* Row i of every head goes to 2 (i % half) + i / half. */
static void interleave(const tiny_tensor *t, int head, size_t item, uint8_t *out)
{
    const size_t row = (t->n_dims == 2 ? (size_t)t->shape[1] : 1) * item;

    for (int64_t r = 0; r < t->shape[0]; r++) {
        const int64_t i = r % head, to = r - i + 2 * (i % (head / 2)) + i / (head / 2);
        memcpy(out + (size_t)to * row, (const uint8_t *)t->raw + (size_t)r * row, row);
    }
}

static void add_tensor(tiny_gguf *g, const tiny_model *m, const tiny_tensor *t)
{
    const int is_qk = strstr(t->name, "q_proj") || strstr(t->name, "k_proj");
    const int matrix = t->n_dims == 2, llama = !strcmp(m->o.model_type, "llama");
    const char *dtype = matrix ? m->o.dtype : "F32";
    const uint32_t type = !strcmp(dtype, "F32") ? 0 : !strcmp(dtype, "F16") ? 1 : 30;
    const size_t item = type ? 2 : 4;
    const int64_t dims[2] = {matrix ? t->shape[1] : t->shape[0], t->shape[0]};
    tiny_tensor plain = *t;
    uint8_t *data = malloc(t->n * item);
    char name[96];

    assert_non_null(data);
    if (!matrix)
        plain.raw = t->w;
    if (is_qk && llama)
        interleave(&plain, m->o.head_dim, item, data);
    else
        memcpy(data, plain.raw, t->n * item);
    gguf_name(t->name, name, sizeof name);
    tiny_gguf_tensor(g, name, type, t->n_dims, dims, data, t->n * item);
    free(data);
}

static const char *arch_key(const tiny_model *m, const char *name)
{
    static char full[96];

    snprintf(full, sizeof full, "%s.%s", m->o.model_type, name);
    return full;
}

void tiny_gguf_model(tiny_gguf *g, const tiny_model *m)
{
    const tiny_options *o = &m->o;

    tiny_gguf_str(g, "general.architecture", o->model_type);
    tiny_gguf_str(g, "general.name", "tiny");
    tiny_gguf_u32(g, arch_key(m, "block_count"), (uint32_t)o->layers);
    tiny_gguf_u32(g, arch_key(m, "context_length"), (uint32_t)o->max_pos);
    tiny_gguf_u32(g, arch_key(m, "embedding_length"), (uint32_t)o->hidden);
    tiny_gguf_u32(g, arch_key(m, "feed_forward_length"), (uint32_t)o->inter);
    tiny_gguf_u32(g, arch_key(m, "attention.head_count"), (uint32_t)o->heads);
    tiny_gguf_u32(g, arch_key(m, "attention.head_count_kv"), (uint32_t)o->kv_heads);
    tiny_gguf_u32(g, arch_key(m, "attention.key_length"), (uint32_t)o->head_dim);
    tiny_gguf_u32(g, arch_key(m, "attention.value_length"), (uint32_t)o->head_dim);
    tiny_gguf_f32(g, arch_key(m, "rope.freq_base"), 10000);
    tiny_gguf_f32(g, arch_key(m, "attention.layer_norm_rms_epsilon"), 1e-5f);
    for (int i = 0; i < m->n_tensors; i++)
        add_tensor(g, m, &m->tensors[i]);
}

void tiny_gguf_tokenizer(tiny_gguf *g, const tiny_model *m, const char *pre)
{
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    const int n = m->o.vocab;
    char(*text)[16] = calloc((size_t)n, sizeof *text);
    const char **tokens = calloc((size_t)n, sizeof *tokens);
    int32_t *types = calloc((size_t)n, sizeof *types);

    assert_true(text && tokens && types);
    for (int i = 0; i < n; i++) {
        types[i] = i < 3 ? 3 : i < 99 ? 1 : 5; // control, normal, unused
        if (i < 3)
            snprintf(text[i], sizeof text[i], "%s", special[i]);
        else if (i == 3)
            snprintf(text[i], sizeof text[i], "\xc4\xa0"); // the blank
        else if (i < 98)
            snprintf(text[i], sizeof text[i], "%c", 32 + i - 3);
        else if (i == 98)
            snprintf(text[i], sizeof text[i], "\xc3\x83"); // the byte 0xC3
        else
            snprintf(text[i], sizeof text[i], "[PAD%d]", i);
        tokens[i] = text[i];
    }
    tiny_gguf_str(g, "tokenizer.ggml.model", "gpt2");
    tiny_gguf_str(g, "tokenizer.ggml.pre", pre);
    tiny_gguf_strs(g, "tokenizer.ggml.tokens", n, tokens);
    tiny_gguf_i32s(g, "tokenizer.ggml.token_type", n, types);
    tiny_gguf_strs(g, "tokenizer.ggml.merges", 0, NULL);
    tiny_gguf_u32(g, "tokenizer.ggml.bos_token_id", 1);
    tiny_gguf_u32(g, "tokenizer.ggml.eos_token_id", 2);
    tiny_gguf_u32(g, "tokenizer.ggml.padding_token_id", 0);
    tiny_gguf_str(g, "tokenizer.chat_template", "{{ messages[0].content }}");
    free(types);
    free(tokens);
    free(text);
}
