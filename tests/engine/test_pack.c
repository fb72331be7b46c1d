/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing (pack_build.c, pack_bind.c) keeps the values it promises to keep, obeys its options, and
 * stays within its memory.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/pack.h"
#include "kernels/half.h"
#include "tests/support/tiny_model.h"

static kwk_model *load_mixed(const tiny_model *t, const char *precision, int mix_bits)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    kwk_model *m = NULL;
    kwk_error err;

    o.precision = precision;
    o.mix_bits = mix_bits;
    o.kv_bytes = 1 << 20;
    if (kwk_model_open_memory(&m, t->config, strlen(t->config), t->views, t->n_tensors, &o, &err))
        fail_msg("%s: %s", precision ? precision : "own", err.msg);
    return m;
}

static kwk_model *load(const tiny_model *t, const char *precision)
{
    return load_mixed(t, precision, 0);
}

/* ---- values ---------------------------------------------------------------------------------- */

typedef float round_fn(float v);

static float as_is(float v)
{
    return v;
}

static float to_f16(float v)
{
    return kwk_f16_to_f32(kwk_f32_to_f16(v));
}

static float to_bf16(float v)
{
    return kwk_bf16_to_f32(kwk_f32_to_bf16(v));
}

static void check_mat(const kwk_mat *mat, const float *want, round_fn *round, kwk_format format,
                      const char *name)
{
    kwk_kernels k;
    float *row = check_alloc((size_t)mat->cols_pad * sizeof *row);

    kwk_kernels_init(&k, KWK_CPU_NONE);
    assert_int_equal(mat->format, format);
    assert_int_equal((uintptr_t)mat->data % 64, 0);
    double error = 0, power = 0;
    for (int r = 0; r < mat->rows; r++) {
        kwk_kernels_gather(&k, format)(row, mat, r);
        for (int c = 0; c < mat->cols; c++) {
            const float w = want[(size_t)r * (size_t)mat->cols + (size_t)c];
            if (round && row[c] != round(w))
                fail_msg("%s (%d, %d): %.9g, not %.9g", name, r, c, (double)row[c],
                         (double)round(w));
            error += ((double)row[c] - w) * ((double)row[c] - w);
            power += (double)w * w;
        }
        for (int c = mat->cols; c < mat->cols_pad; c++)
            assert_true(row[c] == 0);
    }
    if (!round) {
        const double limit = format == KWK_I8 ? 0.01 : format == KWK_I6 ? 0.03 : 0.12;
        if (!(sqrt(error / power) < limit))
            fail_msg("%s: relative error %.4f", name, sqrt(error / power));
    }
    check_free(row);
}

static void check_vector(const float *got, const tiny_model *t, const char *name, int n)
{
    assert_non_null(got);
    check_same_f32(got, tiny_model_weights(t, name), (size_t)n, "%s", name);
}

/* formats: of q, k, o, gate, up; of v, down; of embedding and head. */
static void check_model(const kwk_model *m, const tiny_model *t, kwk_format linear,
                        kwk_format sensitive, kwk_format head, round_fn *round)
{
    const tiny_options *o = &t->o;
    char name[96];

    check_mat(&m->embed, tiny_model_weights(t, "model.embed_tokens.weight"), round, head, "embed");
    if (o->tied)
        assert_ptr_equal(m->head.data, m->embed.data);
    else
        check_mat(&m->head, tiny_model_weights(t, "lm_head.weight"), round, head, "head");
    check_vector(m->final_norm, t, "model.norm.weight", o->hidden);
    for (int i = 0; i < o->layers; i++) {
        const kwk_layer *l = &m->layers[i];
        const int edge = i == 0 || i == o->layers - 1; // int4 keeps these finer
        const kwk_format f = edge ? sensitive : linear;
        const struct {
            const kwk_mat *mat;
            const char *name;
            kwk_format format;
        } mats[] = {
            {&l->q, "self_attn.q_proj", f},         {&l->k, "self_attn.k_proj", f},
            {&l->v, "self_attn.v_proj", sensitive}, {&l->o, "self_attn.o_proj", f},
            {&l->gate, "mlp.gate_proj", f},         {&l->up, "mlp.up_proj", f},
            {&l->down, "mlp.down_proj", sensitive},
        };
        for (size_t k = 0; k < CHECK_COUNT(mats); k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, mats[k].name);
            check_mat(mats[k].mat, tiny_model_weights(t, name), round, mats[k].format, name);
        }
        const int q = o->heads * o->head_dim, kv = o->kv_heads * o->head_dim;
        const struct {
            const float *v;
            const char *name;
            int n, present;
        } vectors[] = {
            {l->attn_norm, "input_layernorm.weight", o->hidden, 1},
            {l->mlp_norm, "post_attention_layernorm.weight", o->hidden, 1},
            {l->q_norm, "self_attn.q_norm.weight", o->head_dim, m->recipe.qk_norm},
            {l->k_norm, "self_attn.k_norm.weight", o->head_dim, m->recipe.qk_norm},
            {l->q_bias, "self_attn.q_proj.bias", q, m->recipe.q_bias},
            {l->k_bias, "self_attn.k_proj.bias", kv, m->recipe.k_bias},
            {l->v_bias, "self_attn.v_proj.bias", kv, m->recipe.v_bias},
            {l->o_bias, "self_attn.o_proj.bias", o->hidden, m->recipe.o_bias},
            {l->gate_bias, "mlp.gate_proj.bias", o->inter, m->recipe.mlp_bias},
            {l->up_bias, "mlp.up_proj.bias", o->inter, m->recipe.mlp_bias},
            {l->down_bias, "mlp.down_proj.bias", o->hidden, m->recipe.mlp_bias},
        };
        for (size_t k = 0; k < CHECK_COUNT(vectors); k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", i, vectors[k].name);
            if (vectors[k].present)
                check_vector(vectors[k].v, t, name, vectors[k].n);
            else
                assert_null(vectors[k].v);
        }
    }
}

static void float_formats_keep_or_round_every_value_as_promised(void **state)
{
    static const struct {
        const char *source, *precision;
        kwk_format stored;
        round_fn *round;
        const char *name, *rounded;
    } cases[] = {
        {"F32", NULL, KWK_F32, as_is, "float32", NULL},
        {"F16", NULL, KWK_F16, as_is, "f16", NULL},
        {"BF16", NULL, KWK_BF16, as_is, "bf16", NULL},
        {"F32", "float32", KWK_F32, as_is, "float32", NULL},
        {"F16", "float32", KWK_F16, as_is, "float32", NULL},
        {"BF16", "float32", KWK_BF16, as_is, "float32", NULL},
        {"F32", "f16", KWK_F16, to_f16, "f16", "source is float32; stored as f16"},
        {"BF16", "f16", KWK_F16, as_is, "f16", NULL}, // these values fit
        {"F16", "f16", KWK_F16, as_is, "f16", NULL},
        {"F32", "bf16", KWK_BF16, to_bf16, "bf16", "source is float32; stored as bf16"},
        {"F16", "bf16", KWK_BF16, to_bf16, "bf16", "source is f16; stored as bf16"},
        {"BF16", "bf16", KWK_BF16, as_is, "bf16", NULL},
    };
    static const char *const types[] = {"llama", "qwen2", "qwen3"};

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        tiny_options o = TINY_OPTIONS;
        kwk_model_info info;
        o.model_type = types[i % 3];
        o.tied = i % 2;
        o.attention_bias = o.mlp_bias = o.model_type == types[0] && i % 2;
        o.dtype = cases[i].source;
        tiny_model *t = tiny_model_new(&o);
        kwk_model *m = load(t, cases[i].precision);
        check_model(m, t, cases[i].stored, cases[i].stored, cases[i].stored, cases[i].round);
        kwk_model_describe(m, &info);
        assert_string_equal(info.precision, cases[i].name);
        if (cases[i].rounded)
            assert_string_equal(info.rounded, cases[i].rounded);
        else
            assert_null(info.rounded);
        kwk_model_free(m);
        tiny_model_free(t);
    }
}

/* Give the first n tensors (or all) of a float32 model values that bf16 holds. */
static void make_exact(tiny_model *t, int n)
{
    for (int i = 0; i < t->n_tensors && i < n; i++) {
        for (size_t k = 0; k < t->tensors[i].n; k++) {
            t->tensors[i].w[k] = to_bf16(t->tensors[i].w[k]);
            ((float *)t->tensors[i].raw)[k] = t->tensors[i].w[k];
        }
    }
}

static void float32_tensors_that_bf16_holds_are_stored_in_half_the_bytes(void **state)
{
    tiny_options o = TINY_OPTIONS;
    tiny_model *t = tiny_model_new(&o);

    make_exact(t, 1000);
    kwk_model *m = load(t, NULL);
    check_model(m, t, KWK_BF16, KWK_BF16, KWK_BF16, as_is);
    assert_string_equal(m->precision, "float32");
    kwk_model_free(m);
    m = load(t, "bf16"); // rounds nothing
    assert_string_equal(m->precision, "bf16");
    assert_string_equal(m->rounded, "");
    kwk_model_free(m);

    /* One value more in the last row of one matrix, and that matrix stays float32. */
    tiny_tensor *last = &t->tensors[t->n_tensors - 2];
    assert_string_equal(last->name, "model.layers.1.mlp.down_proj.weight");
    last->w[last->n - 1] = ((float *)last->raw)[last->n - 1] = 0.1f;
    m = load(t, NULL);
    assert_int_equal(m->layers[1].down.format, KWK_F32);
    assert_int_equal(m->layers[0].down.format, KWK_BF16);
    check_mat(&m->layers[1].down, last->w, as_is, KWK_F32, "down");
    kwk_model_free(m);
    m = load(t, "bf16");
    assert_string_equal(m->rounded, "source is float32; stored as bf16");
    kwk_model_free(m);
    tiny_model_free(t);
}

static void integer_formats_are_near_and_int4_keeps_its_sensitive_tensors(void **state)
{
    for (int tied = 0; tied < 2; tied++) {
        tiny_options o = TINY_OPTIONS;
        o.layers = 3;
        o.hidden = 300; // more than a superblock
        o.tied = tied;
        tiny_model *t = tiny_model_new(&o);
        kwk_model *m = load(t, "int8");
        check_model(m, t, KWK_I8, KWK_I8, KWK_I8, NULL);
        assert_string_equal(m->precision, "int8");
        assert_string_equal(m->rounded, "source is float32; stored as int8");
        kwk_model_free(m);
        m = load(t, "balanced");
        assert_string_equal(m->precision, "int8");
        kwk_model_free(m);
        m = load(t, "int4");
        check_model(m, t, KWK_I4, KWK_I8, KWK_I8, NULL); // far below a billion parameters
        assert_string_equal(m->precision, "int4");
        const uint64_t bytes = m->weight_bytes;
        kwk_model_free(m);
        m = load_mixed(t, "int4", 8);
        check_model(m, t, KWK_I4, KWK_I8, KWK_I8, NULL);
        assert_true(m->weight_bytes == bytes);
        kwk_model_free(m);
        m = load_mixed(t, "int4", 6);
        check_model(m, t, KWK_I4, KWK_I6, KWK_I6, NULL);
        assert_string_equal(m->precision, "int4");
        assert_true(m->weight_bytes < bytes);
        kwk_model_free(m);
        m = load_mixed(t, "int8", 6); // int4's alone
        check_model(m, t, KWK_I8, KWK_I8, KWK_I8, NULL);
        kwk_model_free(m);
        tiny_model_free(t);
    }
}

static void packing_does_not_depend_on_the_number_of_threads(void **state)
{
    static const char *const precisions[] = {"float32", "bf16", "int8", "int4", "int4"};
    static const int mix_bits[] = {0, 0, 0, 8, 6};
    tiny_options o = TINY_OPTIONS;
    uint8_t *first[CHECK_COUNT(precisions)] = {0};

    o.layers = 3;
    tiny_model *t = tiny_model_new(&o);
    for (int threads = 1; threads <= 5; threads += 2) {
        assert_int_equal(kwk_set_threads(threads, NULL), KWK_OK);
        for (size_t p = 0; p < CHECK_COUNT(precisions); p++) {
            kwk_model *m = load_mixed(t, precisions[p], mix_bits[p]);
            if (!first[p]) {
                first[p] = malloc(m->image.size);
                memcpy(first[p], m->image.base, m->image.size);
            }
            check_same(m->image.base, first[p], m->image.size, "%d threads", threads);
            kwk_model_free(m);
        }
    }
    kwk_set_threads(0, NULL);
    for (size_t p = 0; p < CHECK_COUNT(precisions); p++)
        free(first[p]);
    tiny_model_free(t);
}

/* ---- options --------------------------------------------------------------------------------- */

typedef struct importance_log {
    int calls;
    char last[96];
    float *values;
} importance_log;

static const float *importance(void *arg, const char *name, int cols)
{
    importance_log *log = arg;

    log->calls++;
    snprintf(log->last, sizeof log->last, "%s", name);
    return strstr(name, "q_proj") && cols == 40 ? log->values : NULL;
}

static void importance_is_asked_for_every_matrix_and_changes_the_bits(void **state)
{
    tiny_options o = TINY_OPTIONS;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    float values[40] = {1000};
    importance_log log = {.values = values};
    kwk_model *m;

    o.layers = 3;
    tiny_model *t = tiny_model_new(&o);
    opts.precision = "int4";
    opts.kv_bytes = 1 << 20;
    opts.importance = importance;
    opts.importance_arg = &log;
    assert_int_equal(kwk_model_open_memory(&m, t->config, strlen(t->config), t->views, t->n_tensors,
                                           &opts, NULL),
                     KWK_OK);
    assert_int_equal(log.calls, 3 * 7 + 1);
    assert_string_equal(log.last, "model.layers.2.mlp.down_proj.weight");
    kwk_model *equal = load(t, "int4");
    const size_t bytes = kwk_mat_tile_bytes(KWK_I4, 64) * 2;
    assert_memory_not_equal(m->layers[1].q.data, equal->layers[1].q.data, bytes);
    assert_memory_equal(m->layers[1].k.data, equal->layers[1].k.data, bytes / 2);
    kwk_model_free(equal);
    kwk_model_free(m);

    opts.precision = "float32";
    log.calls = 0;
    assert_int_equal(kwk_model_open_memory(&m, t->config, strlen(t->config), t->views, t->n_tensors,
                                           &opts, NULL),
                     KWK_OK);
    assert_int_equal(log.calls, 0);
    kwk_model_free(m);
    tiny_model_free(t);
}

static void importance_that_is_no_weight_is_refused(void **state)
{
    static const float bad[] = {-1, NAN, INFINITY};
    tiny_options o = TINY_OPTIONS;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    tiny_model *t = tiny_model_new(&o);
    kwk_model *m = NULL;
    kwk_error err;

    opts.precision = "int8";
    opts.importance = importance;
    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        float values[40] = {0};
        importance_log log = {.values = values};
        values[39] = bad[i];
        opts.importance_arg = &log;
        assert_int_equal(kwk_model_open_memory(&m, t->config, strlen(t->config), t->views,
                                               t->n_tensors, &opts, &err),
                         KWK_EINVAL);
        assert_null(m);
        assert_non_null(strstr(err.msg, "importance of column 39 of "
                                        "'model.layers.0.self_attn.q_proj.weight' is "));
    }
    tiny_model_free(t);
}

typedef struct progress_log {
    int calls, stop_at;
    uint64_t last, total;
} progress_log;

static int progress(void *arg, uint64_t done, uint64_t total)
{
    progress_log *log = arg;

    assert_true(done >= log->last && done <= total);
    assert_true(!log->total || total == log->total);
    log->last = done;
    log->total = total;
    return log->calls++ == log->stop_at;
}

static void progress_grows_to_the_end_and_may_cancel_at_any_call(void **state)
{
    tiny_options o = TINY_OPTIONS;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    progress_log log = {.stop_at = -1};
    kwk_model *m = NULL;
    kwk_error err;

    o.layers = 1;
    tiny_model *t = tiny_model_new(&o);
    opts.precision = "int8";
    opts.kv_bytes = 1 << 20;
    opts.progress = progress;
    opts.progress_arg = &log;
    assert_int_equal(kwk_model_open_memory(&m, t->config, strlen(t->config), t->views, t->n_tensors,
                                           &opts, &err),
                     KWK_OK);
    assert_int_equal(log.last, log.total);
    kwk_model_free(m);
    const int calls = log.calls;
    assert_true(calls > 8);
    for (int stop = 0; stop < calls; stop++) {
        log = (progress_log){.stop_at = stop};
        m = NULL;
        assert_int_equal(kwk_model_open_memory(&m, t->config, strlen(t->config), t->views,
                                               t->n_tensors, &opts, &err),
                         KWK_ECANCELED);
        assert_null(m);
        assert_int_equal(log.calls, stop + 1);
    }
    tiny_model_free(t);
}

static void refuses(const tiny_model *t, const kwk_model_options *o, int code, const char *message)
{
    kwk_model *m = NULL;
    kwk_error err = {0};
    const int rc =
        kwk_model_open_memory(&m, t->config, strlen(t->config), t->views, t->n_tensors, o, &err);

    assert_null(m);
    assert_string_equal(err.msg, message);
    assert_int_equal(rc, code);
}

/* Bytes planned for a model of so many tokens; nothing is packed. */
static uint64_t planned(const tiny_model *t, int vocab, const void *data, int mix_bits)
{
    static kwk_tensor_view views[32];
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    progress_log log = {.stop_at = 0};
    kwk_model *m = NULL;
    kwk_error err = {0};
    char config[512];

    snprintf(config, sizeof config,
             "{\"model_type\": \"llama\", \"vocab_size\": %d, \"hidden_size\": 4096, "
             "\"intermediate_size\": 64, \"num_hidden_layers\": 1, \"num_attention_heads\": 32, "
             "\"num_key_value_heads\": 16, \"tie_word_embeddings\": true}",
             vocab);
    assert_true(t->n_tensors <= (int)CHECK_COUNT(views));
    for (int i = 0; i < t->n_tensors; i++) {
        views[i] = t->views[i];
        views[i].data = data;
        for (int d = 0; d < views[i].n_dims; d++) {
            int64_t *n = &views[i].shape[d];
            *n = *n == 99 ? vocab : *n == 40 ? 4096 : *n == 20 ? 2048 : 64;
        }
    }
    o.precision = "int4";
    o.mix_bits = mix_bits;
    o.progress = progress;
    o.progress_arg = &log;
    if (kwk_model_open_memory(&m, config, strlen(config), views, t->n_tensors, &o, &err) !=
        KWK_ECANCELED)
        fail_msg("%s", err.msg);
    return log.total;
}

static void int4_keeps_its_sensitive_tensors_at_6_bits_from_a_billion_parameters_on(void **state)
{
    /* q, o; k, v; gate, up, down; norms */
    const int rest = 2 * 4096 * 4096 + 2 * 2048 * 4096 + 3 * 64 * 4096 + 3 * 4096;
    const int vocab = (1000000000 - rest + 4095) / 4096;
    const size_t bytes = (size_t)vocab * 4096 * sizeof(float);
    tiny_options o = TINY_OPTIONS;
    void *zeros = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert_ptr_not_equal(zeros, MAP_FAILED);
    o.layers = 1;
    o.tied = 1;
    tiny_model *t = tiny_model_new(&o);
    assert_true(planned(t, vocab, zeros, 6) < planned(t, vocab, zeros, 8));
    assert_true(planned(t, vocab, zeros, 0) == planned(t, vocab, zeros, 6));
    assert_true(planned(t, vocab - 1, zeros, 0) == planned(t, vocab - 1, zeros, 8));
    tiny_model_free(t);
    munmap(zeros, bytes);
}

static void bad_options_and_bad_tensors_are_named(void **state)
{
    tiny_options small = TINY_OPTIONS;
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    tiny_model *t = tiny_model_new(&small);
    kwk_tensor_view *down = NULL, saved;

    o.precision = "int3";
    refuses(t, &o, KWK_EINVAL,
            "precision 'int3' is not float32, f16, bf16, int8, balanced or int4");
    o.precision = "int4";
    o.mix_bits = 7;
    refuses(t, &o, KWK_EINVAL, "mix_bits 7 is not 0, 6 or 8");
    o.mix_bits = 0;

    for (int i = 0; i < t->n_tensors; i++)
        if (strstr(t->views[i].name, "1.mlp.down_proj"))
            down = &t->views[i];
    saved = *down;
    down->name = "x";
    refuses(t, NULL, KWK_EFORMAT, "model: tensor 'model.layers.1.mlp.down_proj.weight' is missing");
    *down = saved;
    down->shape[0]++;
    refuses(t, NULL, KWK_EFORMAT,
            "model: tensor 'model.layers.1.mlp.down_proj.weight' has the "
            "shape (41, 37), the config says (40, 37)");
    *down = saved;
    down->n_dims = 3;
    down->shape[2] = 1;
    refuses(t, NULL, KWK_EFORMAT,
            "model: tensor 'model.layers.1.mlp.down_proj.weight' has the "
            "shape (1480, 1), the config says (40, 37)");
    *down = saved;

    float *w = (float *)(uintptr_t)down->data, last = w[40 * 37 - 1];
    w[40 * 37 - 1] = NAN;
    static const char *const all[] = {"float32", "f16", "bf16", "int8", "int4"};
    for (size_t i = 0; i < CHECK_COUNT(all); i++) {
        o.precision = all[i];
        refuses(t, &o, KWK_EFORMAT,
                "model: tensor 'model.layers.1.mlp.down_proj.weight' holds a "
                "value that is not finite");
    }
    w[40 * 37 - 1] = 65520;
    o.precision = "f16";
    refuses(t, &o, KWK_EINVAL,
            "model: tensor 'model.layers.1.mlp.down_proj.weight' holds 65520, "
            "beyond f16's range");
    w[40 * 37 - 1] = last;
    w = (float *)(uintptr_t)t->views[t->n_tensors - 1].data; // the final norm
    w[0] = -INFINITY;
    refuses(t, NULL, KWK_EFORMAT,
            "model: tensor 'model.norm.weight' holds a value that is not finite");
    tiny_model_free(t);
}

/* ---- memory ---------------------------------------------------------------------------------- */

#ifndef __SANITIZE_ADDRESS__ // whose own memory would be counted
static uint64_t status_kb(const char *field)
{
    char line[256];
    uint64_t kb = 0;
    FILE *f = fopen("/proc/self/status", "r");

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field)))
            kb = strtoull(line + strlen(field) + 1, NULL, 10);
    fclose(f);
    assert_true(kb > 0);
    return kb;
}

/* 200 MB of float32 (a sparse file of zeros) become 50 MB of int8. */
static void loading_takes_the_packed_size_and_64_mib(void **state)
{
    tiny_options o = TINY_OPTIONS;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "model.safetensors");
    kwk_model *m;
    kwk_error err;

    o.layers = 1;
    tiny_model *t = tiny_model_new(&o); // for its names and its form
    size_t n = 0, at = 0;
    char *head = calloc(1, 8192);
    assert_non_null(head);
    n += (size_t)sprintf(head + 8, "{");
    for (int i = 0; i < t->n_tensors; i++) {
        const tiny_tensor *x = &t->tensors[i];
        int64_t dims[2] = {x->shape[0], x->n_dims == 2 ? x->shape[1] : 1};
        for (int d = 0; d < 2; d++) // 40 hidden or 40 of q, 20 of k and v, 37 inter, 99 vocabulary
            dims[d] = dims[d] == 40 ? 1024 : dims[d] == 20 ? 512 : dims[d] == 37 ? 15000 : dims[d];
        const size_t bytes = (size_t)(dims[0] * dims[1]) * 4;
        n += (size_t)sprintf(head + 8 + n, "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [%d",
                             i ? ", " : "", x->name, (int)dims[0]);
        if (x->n_dims == 2)
            n += (size_t)sprintf(head + 8 + n, ", %d", (int)dims[1]);
        n += (size_t)sprintf(head + 8 + n, "], \"data_offsets\": [%zu, %zu]}", at, at + bytes);
        at += bytes;
    }
    n += (size_t)sprintf(head + 8 + n, "}");
    head[0] = (char)n;
    head[1] = (char)(n >> 8);
    tiny_write(dir, "model.safetensors", head, 8 + n);
    assert_int_equal(truncate(path, (off_t)(8 + n + at)), 0);
    assert_true(at > 180 << 20);
    tiny_model_free(t);
    char config[512];
    snprintf(config, sizeof config,
             "{\"model_type\": \"llama\", \"vocab_size\": 99, \"hidden_size\": 1024, "
             "\"intermediate_size\": 15000, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
             "\"num_key_value_heads\": 2, \"tie_word_embeddings\": true}");
    tiny_write(dir, "config.json", config, strlen(config));

    opts.precision = "int8";
    opts.kv_bytes = 1 << 20;
    FILE *f = fopen("/proc/self/clear_refs", "w"); // resets the peak
    assert_non_null(f);
    fputs("5", f);
    fclose(f);
    const uint64_t before = status_kb("VmRSS:");
    if (kwk_model_open(&m, dir, &opts, &err) < 0)
        fail_msg("%s", err.msg);
    const uint64_t peak = status_kb("VmHWM:");
    assert_true((peak - before) * 1024 < m->image.size + (64 << 20));
    kwk_model_free(m);
    free(head);
    free(path);
    tiny_dir_free(dir);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_formats_keep_or_round_every_value_as_promised),
        cmocka_unit_test(float32_tensors_that_bf16_holds_are_stored_in_half_the_bytes),
        cmocka_unit_test(integer_formats_are_near_and_int4_keeps_its_sensitive_tensors),
        cmocka_unit_test(packing_does_not_depend_on_the_number_of_threads),
        cmocka_unit_test(importance_is_asked_for_every_matrix_and_changes_the_bits),
        cmocka_unit_test(importance_that_is_no_weight_is_refused),
        cmocka_unit_test(progress_grows_to_the_end_and_may_cancel_at_any_call),
        cmocka_unit_test(int4_keeps_its_sensitive_tensors_at_6_bits_from_a_billion_parameters_on),
        cmocka_unit_test(bad_options_and_bad_tensors_are_named),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(loading_takes_the_packed_size_and_64_mib),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
