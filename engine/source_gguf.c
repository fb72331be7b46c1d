/* SPDX-License-Identifier: Apache-2.0
 *
 * A GGUF file as a source: its metadata becomes the config.json that the model's Hugging Face
 * directory would have (so one admission decides for both), its tensors get Hugging Face's names.
 * A metadata key of the model or a tensor that is not known here is refused by name. Loading
 * thread; rows: any thread.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "engine/source.h"
#include "engine/strbuf.h"
#include "engine/tokenizer_gguf.h"

typedef struct gguf_reader {
    kwk_gguf g;
    int fd;
} gguf_reader;

static const char *const architectures[] = {"llama", "qwen2", "qwen3"};

/* ---- metadata of the model ------------------------------------------------------------------- */

typedef enum key_rule { COUNT, REAL, IGNORE, ZERO, ONE, READ } key_rule;

/* GGUF's key behind "<architecture>.", and the config key it becomes. */
static const struct {
    const char *name, *config;
    key_rule rule;
    int required;
} keys[] = {
    {"block_count", "num_hidden_layers", COUNT, 1},
    {"context_length", "max_position_embeddings", COUNT, 1},
    {"embedding_length", "hidden_size", COUNT, 1},
    {"feed_forward_length", "intermediate_size", COUNT, 1},
    {"attention.head_count", "num_attention_heads", COUNT, 1},
    {"attention.head_count_kv", NULL, READ, 0},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", REAL, 1},
    {"attention.key_length", NULL, READ, 0},
    {"attention.value_length", NULL, READ, 0},
    {"rope.freq_base", NULL, READ, 0},
    {"rope.dimension_count", NULL, READ, 0},
    {"rope.scaling.type", NULL, READ, 0},
    {"rope.scaling.factor", NULL, READ, 0},
    {"rope.scale_linear", NULL, READ, 0},
    {"rope.scaling.original_context_length", NULL, IGNORE, 0}, // of kinds that are refused
    {"rope.scaling.finetuned", NULL, IGNORE, 0},
    {"vocab_size", NULL, IGNORE, 0}, // the embedding says it
    {"tensor_data_layout", NULL, IGNORE, 0},
    {"expert_count", NULL, ZERO, 0},
    {"expert_used_count", NULL, ZERO, 0},
    {"use_parallel_residual", NULL, ZERO, 0},
    {"attention.causal", NULL, ONE, 0},
};

static int refuse_key(const kwk_gguf *g, const kwk_gguf_key *k, kwk_error *err)
{
    return kwk_fail(err, KWK_EUNSUPPORTED, "%s: key '%.*s' or its value is not supported", g->what,
                    k->name_len > 100 ? 100 : (int)k->name_len, k->name);
}

/* The architecture's name with its length; NULL and an error: not one that we know. */
static const char *architecture(const kwk_gguf *g, kwk_error *err)
{
    const kwk_gguf_key *k = kwk_gguf_find(g, "general.architecture");
    const char *s = "?";
    size_t len = 1;

    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (kwk_gguf_string_is(k, architectures[i]))
            return architectures[i];
    kwk_gguf_string(k, &s, &len);
    kwk_fail(err, KWK_EUNSUPPORTED, "%s: architecture '%.*s' is not supported", g->what,
             len > 40 ? 40 : (int)len, s);
    return NULL;
}

static const kwk_gguf_key *find(const kwk_gguf *g, const char *arch, const char *name)
{
    char full[96];

    strcpy(full, arch);
    strcat(full, ".");
    strncat(full, name, sizeof full - strlen(full) - 1);
    return kwk_gguf_find(g, full);
}

/* Every "<architecture>.…" key is known and has a value that we compute. */
static int check_keys(const kwk_gguf *g, const char *arch, kwk_error *err)
{
    const size_t prefix = strlen(arch) + 1;
    int64_t n;

    for (size_t i = 0; i < g->n_keys; i++) {
        const kwk_gguf_key *k = &g->keys[i];
        size_t j = 0;
        if (k->name_len <= prefix || memcmp(k->name, arch, prefix - 1) != 0 ||
            k->name[prefix - 1] != '.')
            continue;
        while (j < sizeof keys / sizeof *keys &&
               (strlen(keys[j].name) != k->name_len - prefix ||
                memcmp(keys[j].name, k->name + prefix, k->name_len - prefix) != 0))
            j++;
        if (j == sizeof keys / sizeof *keys)
            return refuse_key(g, k, err);
        if ((keys[j].rule == ZERO && !kwk_gguf_int(k, 0, 0, &n)) ||
            (keys[j].rule == ONE && !kwk_gguf_int(k, 1, 1, &n)))
            return refuse_key(g, k, err);
    }
    if (kwk_gguf_find(g, "split.count") && !kwk_gguf_int(kwk_gguf_find(g, "split.count"), 0, 1, &n))
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: one of several files of a split model",
                        g->what);
    return KWK_OK;
}

static void put_key(kwk_strbuf *t, const char *key)
{
    kwk_strbuf_str(t, ",\"");
    kwk_strbuf_str(t, key);
    kwk_strbuf_str(t, "\":");
}

static void put_int(kwk_strbuf *t, const char *key, int64_t v)
{
    put_key(t, key);
    kwk_strbuf_int(t, v);
}

static int put_table(const kwk_gguf *g, const char *arch, kwk_strbuf *t, kwk_error *err)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const kwk_gguf_key *k = find(g, arch, keys[i].name);
        int64_t n;
        float f;
        if (!keys[i].config)
            continue;
        if (!k)
            return kwk_fail(err, KWK_EFORMAT, "%s: key '%s.%s' is missing", g->what, arch,
                            keys[i].name);
        if (keys[i].rule == COUNT) { // lists of one number per layer are not supported
            if (!kwk_gguf_int(k, 0, INT32_MAX, &n))
                return refuse_key(g, k, err);
            put_int(t, keys[i].config, n);
        } else {
            if (!kwk_gguf_float(k, &f) || !isfinite(f))
                return refuse_key(g, k, err);
            put_key(t, keys[i].config);
            kwk_strbuf_float(t, f);
        }
    }
    return KWK_OK;
}

/* Head sizes: kv heads, head_dim, and that RoPE covers the whole head. */
static int put_heads(const kwk_gguf *g, const char *arch, kwk_strbuf *t, int *head_dim,
                     kwk_error *err)
{
    const kwk_gguf_key *kv = find(g, arch, "attention.head_count_kv");
    const kwk_gguf_key *key = find(g, arch, "attention.key_length");
    const kwk_gguf_key *value = find(g, arch, "attention.value_length");
    const kwk_gguf_key *rope = find(g, arch, "rope.dimension_count");
    int64_t hidden = 0, heads = 1, n, dim;

    kwk_gguf_int(find(g, arch, "embedding_length"), 1, INT32_MAX, &hidden);
    kwk_gguf_int(find(g, arch, "attention.head_count"), 1, INT32_MAX, &heads);
    n = heads;
    if (kv && !kwk_gguf_int(kv, 1, INT32_MAX, &n))
        return refuse_key(g, kv, err);
    put_int(t, "num_key_value_heads", n);
    dim = hidden / heads;
    if (key && !kwk_gguf_int(key, 1, KWK_HEAD_DIM_MAX, &dim))
        return refuse_key(g, key, err);
    if (value && !kwk_gguf_int(value, dim, dim, &n))
        return refuse_key(g, value, err);
    if (rope && !kwk_gguf_int(rope, dim, dim, &n))
        return refuse_key(g, rope, err);
    if (dim < 1 || dim > KWK_HEAD_DIM_MAX)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: heads of %lld", g->what, (long long)dim);
    put_int(t, "head_dim", dim);
    *head_dim = (int)dim;
    return KWK_OK;
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

static const kwk_gguf_tensor *find_tensor(const kwk_gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].name_len == strlen(name) &&
            !memcmp(g->tensors[i].name, name, g->tensors[i].name_len))
            return &g->tensors[i];
    return NULL;
}

/* Llama 3's scaling comes as a tensor with the factor of each frequency. The parameters they were
 * made with are found again by trying those that were ever published. */
static int match_llama3(const kwk_source *s, const gguf_reader *r, float theta, int head_dim,
                        const kwk_gguf_tensor *freqs, float *factor, kwk_error *err)
{
    const kwk_src_tensor t = {.name = "rope_freqs.weight",
                              .type = freqs->type,
                              .type_name = "?",
                              .n_dims = 1,
                              .shape = {freqs->dim[0]},
                              .fd = r->fd,
                              .offset = freqs->offset};
    float got[KWK_HEAD_DIM_MAX / 2], scaled[KWK_HEAD_DIM_MAX / 2], plain[KWK_HEAD_DIM_MAX / 2];
    kwk_recipe want = {.rope_dim = head_dim, .rope_theta = theta};
    uint8_t scratch[sizeof got];

    if (freqs->n_dims != 1 || freqs->dim[0] != head_dim / 2 || !freqs->type ||
        freqs->type->kind != KWK_KIND_F32)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tensor 'rope_freqs.weight' has an unknown form",
                        r->g.what);
    const int rc = kwk_source_read(s, &t, 0, 1, got, KWK_HEAD_DIM_MAX / 2, scratch, err);
    if (rc < 0)
        return rc;
    *factor = 1;
    for (int i = 0; i < head_dim / 2; i++)
        *factor = got[i] > *factor ? got[i] : *factor;
    kwk_recipe_inv_freq(&want, plain);
    want.rope_type = KWK_ROPE_LLAMA3;
    want.rope_factor = *factor;
    want.rope_low_freq = 1;
    want.rope_high_freq = 4;
    want.rope_original_max_pos = 8192;
    kwk_recipe_inv_freq(&want, scaled);
    for (int i = 0; i < head_dim / 2; i++)
        if (!(fabsf(plain[i] / scaled[i] / got[i] - 1) < 1e-5f)) // NaN too
            return kwk_fail(err, KWK_EUNSUPPORTED,
                            "%s: the factors in 'rope_freqs.weight' are not "
                            "Llama 3's",
                            r->g.what);
    return KWK_OK;
}

static int put_rope(const kwk_source *s, const gguf_reader *r, const char *arch, int head_dim,
                    kwk_strbuf *t, kwk_error *err)
{
    const kwk_gguf *g = &r->g;
    const kwk_gguf_key *base = find(g, arch, "rope.freq_base");
    const kwk_gguf_key *type = find(g, arch, "rope.scaling.type");
    const kwk_gguf_key *scaling = find(g, arch, "rope.scaling.factor");
    const kwk_gguf_key *old = find(g, arch, "rope.scale_linear");
    const kwk_gguf_tensor *freqs = find_tensor(g, "rope_freqs.weight");
    float theta = 10000, factor = 1;
    const char *kind = "default";

    if (base && (!kwk_gguf_float(base, &theta) || !isfinite(theta)))
        return refuse_key(g, base, err);
    if ((scaling && !kwk_gguf_float(scaling, &factor)) || !isfinite(factor))
        return refuse_key(g, scaling, err);
    if (old && (!kwk_gguf_float(old, &factor) || !isfinite(factor)))
        return refuse_key(g, old, err);
    if (type && !kwk_gguf_string_is(type, "none") && !kwk_gguf_string_is(type, "linear"))
        return refuse_key(g, type, err);
    if (kwk_gguf_string_is(type, "none"))
        factor = 1;
    if (factor != 1 && factor != 0)
        kind = "linear";
    if (freqs) {
        if (*kind == 'l')
            return kwk_fail(err, KWK_EUNSUPPORTED, "%s: two kinds of RoPE scaling", g->what);
        const int rc = match_llama3(s, r, theta, head_dim, freqs, &factor, err);
        if (rc < 0)
            return rc;
        kind = "llama3";
    }
    put_key(t, "rope_parameters");
    kwk_strbuf_str(t, "{\"rope_type\":\"");
    kwk_strbuf_str(t, kind);
    kwk_strbuf_str(t, "\"");
    put_key(t, "rope_theta");
    kwk_strbuf_float(t, theta);
    if (*kind != 'd') {
        put_key(t, "factor");
        kwk_strbuf_float(t, factor);
    }
    if (!strcmp(kind, "llama3"))
        kwk_strbuf_str(t, ",\"low_freq_factor\":1,\"high_freq_factor\":4,"
                          "\"original_max_position_embeddings\":8192");
    kwk_strbuf_str(t, "}");
    return KWK_OK;
}

/* ---- the config ------------------------------------------------------------------------------ */

static void put_tokens(const kwk_gguf *g, kwk_strbuf *t)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id, seen[3];
    int n = 0;

    id = -1;
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.bos_token_id"), 0, INT32_MAX, &id);
    put_int(t, "bos_token_id", id);
    id = -1;
    kwk_gguf_int(kwk_gguf_find(g, "tokenizer.ggml.padding_token_id"), 0, INT32_MAX, &id);
    put_int(t, "pad_token_id", id);
    put_key(t, "eos_token_id");
    kwk_strbuf_str(t, "[");
    for (int i = 0; i < 3; i++) { // end of text, of a turn, of a message
        int known = !kwk_gguf_int(kwk_gguf_find(g, ends[i]), 0, INT32_MAX, &id);
        for (int k = 0; k < n && !known; k++)
            known = seen[k] == id;
        if (known)
            continue;
        kwk_strbuf_str(t, n ? "," : "");
        kwk_strbuf_int(t, id);
        seen[n++] = id;
    }
    kwk_strbuf_str(t, "]");
}

static int make_config(kwk_source *s, const gguf_reader *r, const char *arch, int *head_dim,
                       kwk_error *err)
{
    const kwk_gguf *g = &r->g;
    const kwk_gguf_tensor *embed = find_tensor(g, "token_embd.weight");
    kwk_strbuf t = {0};
    int rc;

    if (!embed || embed->n_dims != 2)
        return kwk_fail(err, KWK_EFORMAT, "%s: no tensor 'token_embd.weight'", g->what);
    kwk_strbuf_str(&t, "{\"model_type\":\"");
    kwk_strbuf_str(&t, arch);
    kwk_strbuf_str(&t, "\"");
    put_int(&t, "vocab_size", embed->dim[1]);
    put_key(&t, "tie_word_embeddings");
    kwk_strbuf_str(&t, find_tensor(g, "output.weight") ? "false" : "true");
    if (strcmp(arch, "qwen2") != 0) {
        put_key(&t, "attention_bias");
        kwk_strbuf_str(&t, find_tensor(g, "blk.0.attn_q.bias") ? "true" : "false");
    }
    if (!strcmp(arch, "llama")) {
        put_key(&t, "mlp_bias");
        kwk_strbuf_str(&t, find_tensor(g, "blk.0.ffn_gate.bias") ? "true" : "false");
    }
    if ((rc = put_table(g, arch, &t, err)) < 0 ||
        (rc = put_heads(g, arch, &t, head_dim, err)) < 0 ||
        (rc = put_rope(s, r, arch, *head_dim, &t, err)) < 0) {
        free(t.p);
        return rc;
    }
    put_tokens(g, &t);
    kwk_strbuf_str(&t, "}");
    if (t.failed) {
        free(t.p);
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", g->what);
    }
    s->config = t.p;
    s->config_len = t.n;
    return KWK_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const struct {
    const char *gguf, *hf;
} names[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const struct {
    const char *gguf, *hf;
} layer_names[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

/* The part of *s before the last dot, when what follows is "weight" or "bias"; else NULL. */
static const char *split_name(const char *s, size_t len, size_t *stem)
{
    static const char *const endings[] = {".weight", ".bias"};

    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(endings[i]);
        if (len > n && !memcmp(s + len - n, endings[i], n)) {
            *stem = len - n;
            return endings[i];
        }
    }
    return NULL;
}

/* "blk.12.attn_q" → "model.layers.12.self_attn.q_proj"; *is_qk: a q or k projection. 0: unknown. */
static int map_layer(const char *s, size_t len, char *out, int *is_qk)
{
    size_t digits = 0;

    if (len < 6 || memcmp(s, "blk.", 4) != 0)
        return 0;
    while (4 + digits < len && s[4 + digits] >= '0' && s[4 + digits] <= '9')
        digits++;
    if (digits == 0 || digits > 3 || 4 + digits == len || s[4 + digits] != '.' ||
        (s[4] == '0' && digits > 1))
        return 0;
    const char *rest = s + 5 + digits;
    const size_t rest_len = len - 5 - digits;
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++) {
        if (strlen(layer_names[i].gguf) != rest_len || memcmp(layer_names[i].gguf, rest, rest_len))
            continue;
        *is_qk = !strcmp(layer_names[i].gguf, "attn_q") || !strcmp(layer_names[i].gguf, "attn_k");
        strcpy(out, "model.layers.");
        strncat(out, s + 4, digits);
        strcat(out, ".");
        strcat(out, layer_names[i].hf);
        return 1;
    }
    return 0;
}

static int map_name(const kwk_gguf_tensor *t, char *out, int *is_qk)
{
    size_t stem;
    const char *ending = split_name(t->name, t->name_len, &stem);
    int found = 0;

    *is_qk = 0;
    if (!ending)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        found = strlen(names[i].gguf) == stem && !memcmp(names[i].gguf, t->name, stem);
        if (found)
            strcpy(out, names[i].hf);
    }
    if (!found)
        found = map_layer(t->name, stem, out, is_qk);
    if (found)
        strcat(out, ending);
    return found;
}

static int add_tensors(kwk_source *s, const gguf_reader *r, const char *arch, int head_dim,
                       kwk_error *err)
{
    for (size_t i = 0; i < r->g.n_tensors; i++) {
        const kwk_gguf_tensor *from = &r->g.tensors[i];
        kwk_src_tensor t = {
            .type = from->type, .fd = r->fd, .offset = from->offset, .n_dims = from->n_dims};
        const char *type = kwk_gguf_type_name(from->type_id);
        char name[128];
        int is_qk;
        if (from->name_len == 17 && !memcmp(from->name, "rope_freqs.weight", 17))
            continue; // is in the config
        if (!map_name(from, name, &is_qk))
            return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tensor '%.*s' is not known", r->g.what,
                            from->name_len > 100 ? 100 : (int)from->name_len, from->name);
        t.type_name = type ? type : "of an unknown number";
        for (int d = 0; d < from->n_dims; d++)
            t.shape[d] = from->dim[from->n_dims - 1 - d];
        if (is_qk && !strcmp(arch, "llama")) {
            const int64_t rows = t.shape[0]; // of a bias, its only dimension
            if (rows % head_dim)
                return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%.*s' has %lld rows in heads of %d",
                                r->g.what, (int)from->name_len, from->name, (long long)rows,
                                head_dim);
            t.interleaved = head_dim;
        }
        const int rc = kwk_source_add(s, &t, name, strlen(name), err);
        if (rc < 0)
            return rc;
    }
    return kwk_source_sort(s, err);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int gguf_tokenizer(const kwk_source *s, kwk_tokenizer *out, kwk_error *err)
{
    const gguf_reader *r = s->reader;

    return kwk_gguf_tokenizer(&r->g, out, err);
}

static void close_reader(kwk_source *s)
{
    gguf_reader *r = s->reader;

    kwk_gguf_free(&r->g);
    close(r->fd);
    free(r);
}

int kwk_source_open_gguf(kwk_source *s, const char *path, int fd, uint64_t size, kwk_error *err)
{
    gguf_reader *r = calloc(1, sizeof *r);
    int head_dim = 0, rc;

    memset(s, 0, sizeof *s);
    if (!r) {
        close(fd);
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", path);
    }
    r->fd = fd;
    s->what = path;
    s->reader = r;
    s->close = close_reader;
    s->tokenizer = gguf_tokenizer;
    rc = kwk_gguf_read(&r->g, fd, size, path, err);
    if (!rc) {
        const char *arch = architecture(&r->g, err);
        rc = arch ? check_keys(&r->g, arch, err) : KWK_EUNSUPPORTED;
        if (!rc)
            rc = make_config(s, r, arch, &head_dim, err);
        if (!rc)
            rc = add_tensors(s, r, arch, head_dim, err);
    }
    if (rc < 0)
        kwk_source_close(s);
    return rc;
}

int kwk_source_gguf_tokenizer(const char *path, int fd, uint64_t size, kwk_tokenizer *out,
                              kwk_error *err)
{
    kwk_gguf g;
    int rc = kwk_gguf_read(&g, fd, size, path, err);

    if (!rc) {
        rc = kwk_gguf_tokenizer(&g, out, err);
        kwk_gguf_free(&g);
    }
    close(fd);
    return rc;
}
