/* SPDX-License-Identifier: Apache-2.0
 *
 * A random model built directly in memory, and its float64 forward pass, written as the textbook
 * formulas and sharing no code with the engine but the stored weights.
 */
#include "tests/support/hand_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/support/check.h"

static void *zeros(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);

    assert_non_null(p);
    memset(p, 0, (bytes + 127) & ~(size_t)63);
    return p;
}

static kwk_mat random_mat(int rows, int cols, kwk_format format, float scale, uint64_t *seed)
{
    kwk_mat w = {.format = format,
                 .rows = rows,
                 .cols = cols,
                 .rows_pad = kwk_pad32(rows),
                 .cols_pad = kwk_pad32(cols)};
    float *src = zeros((size_t)rows * (size_t)cols * sizeof *src);

    for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
        src[i] = scale * check_random_f32(seed);
    w.exponent = kwk_pack_exponent(format, scale);
    w.data = zeros(kwk_mat_tile_bytes(format, w.cols_pad) * (size_t)(w.rows_pad / KWK_TILE));
    for (int t = 0; t < w.rows_pad / KWK_TILE; t++) {
        const int left = rows - t * KWK_TILE;
        kwk_pack_tile(&w, t, src + (size_t)t * KWK_TILE * (size_t)cols, (size_t)cols,
                      left < KWK_TILE ? left : KWK_TILE, NULL);
    }
    free(src);
    return w;
}

static float *random_vector(int n, float centre, float spread, uint64_t *seed)
{
    float *v = zeros((size_t)n * sizeof *v);

    for (int i = 0; i < n; i++)
        v[i] = centre + spread * check_random_f32(seed);
    return v;
}

kwk_model *hand_model_new(const hand_config *c)
{
    kwk_model *m = zeros(sizeof *m);
    kwk_recipe *r = &m->recipe;
    uint64_t seed = c->seed + 1;
    const int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    kwk_error err = {0};

    *r = (kwk_recipe){.model_type = "hand",
                      .n_layers = c->n_layers,
                      .hidden = c->hidden,
                      .inter = c->inter,
                      .n_heads = c->n_heads,
                      .n_kv_heads = c->n_kv_heads,
                      .head_dim = c->head_dim,
                      .vocab = c->vocab,
                      .max_pos = 4096,
                      .rms_eps = 1e-5f,
                      .qk_norm = (uint8_t)c->qk_norm,
                      .tied = (uint8_t)c->tied,
                      .act = KWK_ACT_SILU,
                      .attn_scale = 1.0f / sqrtf((float)c->head_dim),
                      .rope_dim = c->rope_dim ? c->rope_dim : c->head_dim,
                      .rope_theta = 10000.0f,
                      .bos = -1,
                      .pad = -1};
    atomic_init(&m->refs, 1);
    m->image.fd = -1;
    m->inv_freq = zeros((size_t)r->rope_dim / 2 * sizeof(float));
    for (int i = 0; i < r->rope_dim / 2; i++)
        m->inv_freq[i] = 1.0f / powf(r->rope_theta, (float)(2 * i) / (float)r->rope_dim);
    /* Wide enough that attention and the activations are far from uniform. */
    const float wide = 3.0f / sqrtf((float)c->hidden);
    const kwk_format finer = c->finer ? c->finer : c->format;
    m->head = random_mat(c->vocab, c->hidden, finer, wide, &seed);
    m->embed =
        c->tied ? m->head : random_mat(c->vocab, c->hidden, c->embed ? c->embed : finer, 1, &seed);
    m->final_norm = random_vector(c->hidden, 1, 0.3f, &seed);
    m->layers = zeros((size_t)c->n_layers * sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++) {
        kwk_layer *l = &m->layers[i];

        l->attn_norm = random_vector(c->hidden, 1, 0.3f, &seed);
        l->mlp_norm = random_vector(c->hidden, 1, 0.3f, &seed);
        l->q = random_mat(q, c->hidden, c->format, wide, &seed);
        l->k = random_mat(kv, c->hidden, c->format, wide, &seed);
        l->v = random_mat(kv, c->hidden, finer, wide, &seed);
        l->o = random_mat(c->hidden, q, c->format, 2.0f / sqrtf((float)q), &seed);
        l->gate = random_mat(c->inter, c->hidden, c->format, wide, &seed);
        l->up = random_mat(c->inter, c->hidden, c->format, wide, &seed);
        l->down = random_mat(c->hidden, c->inter, finer, 2.0f / sqrtf((float)c->inter), &seed);
        if (c->qk_norm) {
            l->q_norm = random_vector(c->head_dim, 1, 0.5f, &seed);
            l->k_norm = random_vector(c->head_dim, 1, 0.5f, &seed);
        }
        if (c->bias) {
            l->q_bias = random_vector(q, 0, 0.5f, &seed);
            l->k_bias = random_vector(kv, 0, 0.5f, &seed);
            l->v_bias = random_vector(kv, 0, 0.5f, &seed);
        }
        if (c->bias > 1) {
            l->o_bias = random_vector(c->hidden, 0, 0.5f, &seed);
            l->gate_bias = random_vector(c->inter, 0, 0.5f, &seed);
            l->up_bias = random_vector(c->inter, 0, 0.5f, &seed);
            l->down_bias = random_vector(c->hidden, 0, 0.5f, &seed);
        }
    }
    opts.kv_bits = c->kv_bits;
    opts.max_ctx = c->max_ctx;
    opts.kv_bytes = c->kv_bytes ? c->kv_bytes : (uint64_t)64 << 20;
    if (kwk_model_start(m, &opts, &err) != KWK_OK)
        fail_msg("kwk_model_start: %s", err.msg);
    return m;
}

static void free_vectors(const float *const *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((void *)v[i]);
}

void hand_model_free(kwk_model *m)
{
    if (!m)
        return;
    assert_int_equal(atomic_load(&m->refs), 1); // no sequence is left
    kwk_model_stop(m);
    for (int i = 0; i < m->recipe.n_layers; i++) {
        kwk_layer *l = &m->layers[i];
        const float *const v[] = {l->attn_norm, l->mlp_norm, l->q_norm,   l->k_norm,
                                  l->q_bias,    l->k_bias,   l->v_bias,   l->o_bias,
                                  l->gate_bias, l->up_bias,  l->down_bias};
        free_vectors(v, CHECK_COUNT(v));
        free(l->q.data);
        free(l->k.data);
        free(l->v.data);
        free(l->o.data);
        free(l->gate.data);
        free(l->up.data);
        free(l->down.data);
    }
    free(m->layers);
    free((void *)m->final_norm);
    if (!m->recipe.tied)
        free(m->embed.data);
    free(m->head.data);
    free(m->inv_freq);
    free(m);
}

/* ---- float64 -------------------------------------------------------------------------------- */

static void weights_of(const kwk_mat *w, double *out) // (rows, cols)
{
    kwk_kernels k;
    float *row = zeros((size_t)w->cols_pad * sizeof *row);

    kwk_kernels_init(&k, KWK_CPU_NONE);
    for (int r = 0; r < w->rows; r++) {
        kwk_kernels_gather(&k, w->format)(row, w, r);
        for (int c = 0; c < w->cols; c++)
            out[(size_t)r * (size_t)w->cols + (size_t)c] = (double)row[c];
    }
    free(row);
}

/* y (n, rows) = x (n, cols) times w, plus bias. */
static void linear(const kwk_mat *w, const float *bias, int n, const double *x, double *y)
{
    const size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    double *full = zeros(rows * cols * sizeof *full);
    double *in = zeros(cols * sizeof *in);
    float *f = zeros((size_t)w->cols_pad * sizeof *f);
    int8_t *q = zeros((size_t)w->cols_pad);
    float *scale = zeros((size_t)w->cols_pad * sizeof *scale);
    int32_t *sum = zeros((size_t)w->cols_pad * sizeof *sum);
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    weights_of(w, full);
    for (int i = 0; i < n; i++) {
        memcpy(in, x + (size_t)i * cols, cols * sizeof *in);
        if (kwk_format_is_int(w->format)) {
            for (size_t c = 0; c < cols; c++)
                f[c] = (float)in[c];
            k.quant_act(q, scale, sum, f, w->cols_pad);
            for (size_t c = 0; c < cols; c++)
                in[c] = (double)q[c] * (double)scale[c / 32];
        }
        for (size_t r = 0; r < rows; r++) {
            double s = bias ? (double)bias[r] : 0;
            for (size_t c = 0; c < cols; c++)
                s += full[r * cols + c] * in[c];
            y[(size_t)i * rows + r] = s;
        }
    }
    free(sum);
    free(scale);
    free(q);
    free(f);
    free(in);
    free(full);
}

static void rms_norm(double *y, const double *x, const float *w, int n, double eps)
{
    double ss = 0;

    for (int i = 0; i < n; i++)
        ss += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = (double)w[i] * x[i] / sqrt(ss / n + eps);
}

static void rotate(const kwk_model *m, double *x, int position)
{
    const int half = m->recipe.rope_dim / 2;

    for (int i = 0; i < half; i++) {
        const double angle = (double)((float)position * m->inv_freq[i]);
        const double a = x[i], b = x[i + half];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + half] = b * cos(angle) + a * sin(angle);
    }
}

static void heads(const kwk_model *m, double *x, int n, const float *norm, int position)
{
    for (int h = 0; h < n; h++, x += m->recipe.head_dim) {
        if (norm)
            rms_norm(x, x, norm, m->recipe.head_dim, (double)m->recipe.rms_eps);
        rotate(m, x, position);
    }
}

static void round_half(double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (double)kwk_f16_to_f32(kwk_f32_to_f16((float)x[i]));
}

/* One head of one row over slots 0 … i. */
static void attend(const kwk_recipe *r, int i, const uint8_t *valid, const double *q,
                   const double *k, const double *v, size_t ld, double *out)
{
    double most = -INFINITY, sum = 0;
    double *t = zeros(((size_t)i + 1) * sizeof *t);

    for (int j = 0; j <= i; j++) {
        for (int d = 0; d < r->head_dim; d++)
            t[j] += q[d] * k[(size_t)j * ld + (size_t)d];
        t[j] *= (double)r->attn_scale;
        if ((!valid || valid[j]) && t[j] > most)
            most = t[j];
    }
    for (int d = 0; d < r->head_dim; d++)
        out[d] = 0;
    for (int j = 0; j <= i; j++) {
        const double p = !valid || valid[j] ? exp(t[j] - most) : 0;
        sum += p;
        for (int d = 0; d < r->head_dim && p > 0; d++)
            out[d] += p * v[(size_t)j * ld + (size_t)d];
    }
    for (int d = 0; d < r->head_dim; d++)
        out[d] = sum > 0 ? out[d] / sum : 0;
    free(t);
}

void hand_model_forward(const kwk_model *m, int n, const int32_t *token, const int32_t *position,
                        const uint8_t *valid, double *logits)
{
    const kwk_recipe *r = &m->recipe;
    const size_t rows = (size_t)n, hidden = (size_t)r->hidden, inter = (size_t)r->inter;
    const size_t nq = (size_t)(r->n_heads * r->head_dim),
                 nkv = (size_t)(r->n_kv_heads * r->head_dim);
    const int group = r->n_heads / r->n_kv_heads;
    double *embed = zeros((size_t)r->vocab * hidden * sizeof *embed);
    double *x = zeros(rows * hidden * sizeof *x), *y = zeros(rows * hidden * sizeof *y);
    double *q = zeros(rows * nq * sizeof *q), *att = zeros(rows * nq * sizeof *att);
    double *k = zeros(rows * nkv * sizeof *k), *v = zeros(rows * nkv * sizeof *v);
    double *gate = zeros(rows * inter * sizeof *gate), *up = zeros(rows * inter * sizeof *up);

    weights_of(&m->embed, embed);
    for (size_t i = 0; i < rows; i++)
        memcpy(x + i * hidden, embed + (size_t)token[i] * hidden, hidden * sizeof *x);
    for (int li = 0; li < r->n_layers; li++) {
        const kwk_layer *l = &m->layers[li];

        for (size_t i = 0; i < rows; i++)
            rms_norm(y + i * hidden, x + i * hidden, l->attn_norm, r->hidden, (double)r->rms_eps);
        linear(&l->q, l->q_bias, n, y, q);
        linear(&l->k, l->k_bias, n, y, k);
        linear(&l->v, l->v_bias, n, y, v);
        for (size_t i = 0; i < rows; i++) {
            heads(m, q + i * nq, r->n_heads, l->q_norm, position[i]);
            heads(m, k + i * nkv, r->n_kv_heads, l->k_norm, position[i]);
        }
        if (m->kv_bits == 16) {
            round_half(k, rows * nkv);
            round_half(v, rows * nkv);
        }
        for (int i = 0; i < n; i++)
            for (int h = 0; h < r->n_heads; h++) {
                const size_t at = (size_t)h * (size_t)r->head_dim;
                const size_t kv = (size_t)(h / group) * (size_t)r->head_dim;
                attend(r, i, valid, q + (size_t)i * nq + at, k + kv, v + kv, nkv,
                       att + (size_t)i * nq + at);
            }
        linear(&l->o, l->o_bias, n, att, y);
        for (size_t i = 0; i < rows * hidden; i++)
            x[i] += y[i];
        for (size_t i = 0; i < rows; i++)
            rms_norm(y + i * hidden, x + i * hidden, l->mlp_norm, r->hidden, (double)r->rms_eps);
        linear(&l->gate, l->gate_bias, n, y, gate);
        linear(&l->up, l->up_bias, n, y, up);
        for (size_t i = 0; i < rows * inter; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        linear(&l->down, l->down_bias, n, gate, y);
        for (size_t i = 0; i < rows * hidden; i++)
            x[i] += y[i];
    }
    for (size_t i = 0; i < rows; i++)
        rms_norm(y + i * hidden, x + i * hidden, m->final_norm, r->hidden, (double)r->rms_eps);
    linear(&m->head, NULL, n, y, logits);
    free(up);
    free(gate);
    free(v);
    free(k);
    free(att);
    free(q);
    free(y);
    free(x);
    free(embed);
}
