/* SPDX-License-Identifier: Apache-2.0
 *
 * The layers, top to bottom: what every thread of the team does in one step. A layer is five
 * phases with a barrier after each: norm + q, k, v | attention | output projection + residual |
 * norm + gate, up, activation | down + residual. Up to KWK_SMALL rows every thread repeats the norm
 * and the quantisation for itself; with more rows (or a tap) the rows are split and one more
 * barrier follows. Cannot fail: step.c has checked and allocated everything.
 */
#include "engine/forward.h"

#include <math.h>
#include <string.h>

#include "engine/rope_table.h"
#include "engine/sampler.h"

atomic_int *kwk_forward_ticket(kwk_self *t)
{
    const int now = t->phase;

    t->phase = (now + 1) % 3;
    if (t->w->id == 0) // the next one: nobody is there yet, and nobody is left from last time
        atomic_store_explicit(&t->f->ticket[t->phase].next, 0, memory_order_relaxed);
    return &t->f->ticket[now].next;
}

static void barrier(const kwk_self *t)
{
    kwk_barrier_wait(t->w->barrier);
}

/* After a barrier: the others may go on reading x meanwhile, and write it only after the next. */
static void tap(const kwk_self *t, int layer, kwk_tap_site site, const float *x, size_t ld,
                int cols)
{
    if (t->f->tap && t->w->id == 0)
        t->f->tap(t->f->tap_arg, layer, site, x, ld, t->c->n_rows, cols);
}

static void count_matmul(kwk_self *t, int m, int n)
{
    const kwk_form form = kwk_ops_form(m);

    if (t->w->id == 0)
        t->counts[form == KWK_GEMV          ? KWK_COUNT_GEMV
                  : form == KWK_SMALL_BATCH ? KWK_COUNT_SMALL
                                            : KWK_COUNT_GEMM] += (uint64_t)n;
}

static int is_int(const kwk_mat *w)
{
    return kwk_format_is_int(w->format);
}

/* ---- inputs of matrices --------------------------------------------------------------------- */

/* RMSNorm of rows of the residual stream, quantised where a matrix wants it. rows[i] is the
 * row of the chunk that becomes token i; NULL: i itself. */
static kwk_input norm_input(kwk_self *t, const float *weight, int m, const kwk_out *rows,
                            int quantised)
{
    const kwk_model *model = t->f->model;
    const kwk_scratch *s = model->scratch;
    const kwk_recipe *r = &model->recipe;
    const int each = m <= KWK_SMALL && !t->f->tap;
    const kwk_input in = each ? t->own->in : s->norm;
    int lo = 0, hi = m;

    if (!each)
        kwk_ops_share(t->w, m, &lo, &hi);
    for (int i = lo; i < hi; i++) {
        const int row = rows ? rows[i].row - t->c->row0 : i;

        model->kernels.rmsnorm(in.x + (size_t)i * in.ldx, s->x + (size_t)row * s->ld_hidden, weight,
                               r->hidden, r->rms_eps);
        if (quantised)
            kwk_ops_quantise(&model->kernels, &in, i, 0, kwk_pad32(r->hidden));
    }
    if (!each)
        barrier(t);
    return in;
}

/* The heads' outputs, quantised where o_proj wants it. */
static kwk_input heads_input(kwk_self *t, int quantised)
{
    const kwk_model *model = t->f->model;
    const int m = t->c->n_rows, each = m <= KWK_SMALL;
    kwk_input in = model->scratch->heads;
    int lo = 0, hi = m;

    if (!quantised)
        return in;
    if (each)
        in.q = t->own->in.q;
    else
        kwk_ops_share(t->w, m, &lo, &hi);
    for (int i = lo; i < hi; i++)
        kwk_ops_quantise(&model->kernels, &in, i, 0,
                         kwk_pad32(model->recipe.n_heads * model->recipe.head_dim));
    if (!each)
        barrier(t);
    return in;
}

/* ---- phases --------------------------------------------------------------------------------- */

static void embed(kwk_self *t)
{
    const kwk_model *m = t->f->model;
    const kwk_scratch *s = m->scratch;
    const kwk_recipe *r = &m->recipe;
    const int half = r->rope_dim / 2;
    kwk_gather_fn *gather = kwk_kernels_gather(&m->kernels, m->embed.format);
    int lo, hi;

    kwk_ops_share(t->w, t->c->n_rows, &lo, &hi);
    for (int i = lo; i < hi; i++) {
        const kwk_row *row = &t->f->rows[t->c->row0 + i];
        float *x = s->x + (size_t)i * s->ld_hidden;

        if (row->embedding) {
            memcpy(x, row->embedding, (size_t)r->hidden * sizeof *x);
            memset(x + r->hidden, 0, (size_t)(kwk_pad32(r->hidden) - r->hidden) * sizeof *x);
        } else {
            gather(x, &m->embed, row->token);
        }
        kwk_rope_table(s->cos + (size_t)i * (size_t)half, s->sin + (size_t)i * (size_t)half,
                       m->inv_freq, half, row->position);
    }
}

typedef struct projection {
    const kwk_self *t;
    const kwk_mat *mats[3];
    float *y[3];
    size_t ld[3];
    const kwk_input *in;
    int m;
    const kwk_layer *layer;
    const kwk_out *out;
} projection;

static void matmul(const projection *p, int i, int tile0, int tile1)
{
    kwk_ops_matmul(&p->t->f->model->kernels, p->mats[i], tile0, tile1, p->m, p->in, p->y[i],
                   p->ld[i], p->t->own->matmul);
}

static void plain_tiles(void *arg, int i, int tile0, int tile1)
{
    matmul(arg, i, tile0, tile1);
}

static void add_bias(float *y, const float *bias, int col0, int n)
{
    for (int c = 0; c < n; c++)
        y[c] += bias[col0 + c];
}

/* Logical columns among those of tiles tile0 … tile1-1. */
static int columns(const kwk_mat *w, int tile0, int tile1)
{
    const int end = tile1 * KWK_TILE < w->rows ? tile1 * KWK_TILE : w->rows;

    return end - tile0 * KWK_TILE;
}

/* y, its bias, and onto the residual stream: a thread adds the columns it has just computed. */
static void residual_tiles(void *arg, int i, int tile0, int tile1)
{
    const projection *p = arg;
    const kwk_scratch *s = p->t->f->model->scratch;
    const float *bias = p->mats[0] == &p->layer->o ? p->layer->o_bias : p->layer->down_bias;
    const int col0 = tile0 * KWK_TILE, n = columns(p->mats[0], tile0, tile1);

    matmul(p, 0, tile0, tile1);
    for (int row = 0; row < p->m; row++) {
        float *y = p->y[0] + (size_t)row * p->ld[0] + col0;
        float *x = s->x + (size_t)row * s->ld_hidden + col0;

        if (bias)
            add_bias(y, bias, col0, n);
        for (int c = 0; c < n; c++)
            x[c] += y[c];
    }
}

/* Gate and up of the same columns, activated and quantised while they are in the cache. */
static void mlp_tiles(void *arg, int i, int tile0, int tile1)
{
    const projection *p = arg;
    const kwk_model *m = p->t->f->model;
    const int col0 = tile0 * KWK_TILE, n = columns(p->mats[0], tile0, tile1);
    const int quantised = is_int(&p->layer->down);

    matmul(p, 0, tile0, tile1);
    matmul(p, 1, tile0, tile1);
    for (int row = 0; row < p->m; row++) {
        float *gate = p->y[0] + (size_t)row * p->ld[0] + col0;
        float *up = p->y[1] + (size_t)row * p->ld[1] + col0;

        if (p->layer->gate_bias)
            add_bias(gate, p->layer->gate_bias, col0, n);
        if (p->layer->up_bias)
            add_bias(up, p->layer->up_bias, col0, n);
        m->kernels.silu_mul(gate, gate, up, n);
        if (quantised)
            kwk_ops_quantise(&m->kernels, &m->scratch->mid, row, col0, (tile1 - tile0) * KWK_TILE);
    }
}

static void self_attention(kwk_self *t, int l)
{
    const kwk_model *m = t->f->model;
    const kwk_layer *layer = &m->layers[l];
    kwk_scratch *s = m->scratch;
    const int rows = t->c->n_rows, heads = m->recipe.n_heads * m->recipe.head_dim;

    kwk_input in = norm_input(t, layer->attn_norm, rows, NULL,
                              is_int(&layer->q) || is_int(&layer->k) || is_int(&layer->v));
    tap(t, l, KWK_TAP_QKV, in.x, in.ldx, m->recipe.hidden);
    projection p = {.t = t,
                    .mats = {&layer->q, &layer->k, &layer->v},
                    .y = {s->q, s->k, s->v},
                    .ld = {s->ld_q, s->ld_kv, s->ld_kv},
                    .in = &in,
                    .m = rows,
                    .layer = layer};
    kwk_ops_each_tile(p.mats, 3, rows, t->w, kwk_forward_ticket(t), plain_tiles, &p);
    count_matmul(t, rows, 3);
    barrier(t);

    kwk_attention_run(t, l);
    barrier(t);

    in = heads_input(t, is_int(&layer->o));
    tap(t, l, KWK_TAP_O, in.x, in.ldx, heads);
    p.mats[0] = &layer->o;
    p.y[0] = s->y;
    p.ld[0] = s->ld_hidden;
    kwk_ops_each_tile(p.mats, 1, rows, t->w, kwk_forward_ticket(t), residual_tiles, &p);
    count_matmul(t, rows, 1);
    barrier(t);
}

static void mlp(kwk_self *t, int l)
{
    const kwk_model *m = t->f->model;
    const kwk_layer *layer = &m->layers[l];
    kwk_scratch *s = m->scratch;
    const int rows = t->c->n_rows;

    kwk_input in =
        norm_input(t, layer->mlp_norm, rows, NULL, is_int(&layer->gate) || is_int(&layer->up));
    tap(t, l, KWK_TAP_MLP, in.x, in.ldx, m->recipe.hidden);
    projection p = {.t = t,
                    .mats = {&layer->gate, &layer->up},
                    .y = {s->mid.x, s->up},
                    .ld = {s->mid.ldx, s->ld_inter},
                    .in = &in,
                    .m = rows,
                    .layer = layer};
    kwk_ops_each_tile(p.mats, 1, rows, t->w, kwk_forward_ticket(t), mlp_tiles, &p);
    count_matmul(t, rows, 2);
    barrier(t);

    tap(t, l, KWK_TAP_DOWN, s->mid.x, s->mid.ldx, m->recipe.inter);
    p.mats[0] = &layer->down;
    p.y[0] = s->y;
    p.ld[0] = s->ld_hidden;
    p.in = &s->mid;
    kwk_ops_each_tile(p.mats, 1, rows, t->w, kwk_forward_ticket(t), residual_tiles, &p);
    count_matmul(t, rows, 1);
    barrier(t);
}

/* ---- the head ------------------------------------------------------------------------------- */

/* Logits, and the caller's copy of what this thread has just computed. */
static void head_tiles(void *arg, int i, int tile0, int tile1)
{
    const projection *p = arg;
    const size_t col0 = (size_t)tile0 * KWK_TILE;
    const size_t n = (size_t)columns(p->mats[0], tile0, tile1);

    matmul(p, 0, tile0, tile1);
    for (int row = 0; row < p->m; row++)
        if (p->out[row].logits)
            memcpy(p->out[row].logits + col0, p->y[0] + (size_t)row * p->ld[0] + col0,
                   n * sizeof(float));
}

static int is_plain_greedy(const kwk_row *row)
{
    const kwk_sampling *s = row->sampling;

    return !s->do_sample && !row->allowed && s->n_bias == 0 && s->repetition_penalty == 1 &&
           (row->history ? row->history->n_new : 0) >= s->min_new_tokens && s->n_logprobs == 0 &&
           !row->out_top;
}

static void sample_row(const kwk_self *t, kwk_row *row, float *logits)
{
    const kwk_model *m = t->f->model;
    kwk_choice c = {.sampling = row->sampling,
                    .history = row->history,
                    .allowed = row->allowed,
                    .want_logprob = row->out_top || row->sampling->n_logprobs > 0,
                    .top = row->out_top};

    if (is_plain_greedy(row)) {
        const int best = m->kernels.argmax(logits, m->recipe.vocab);
        row->out_token = best >= 0 && logits[best] > -INFINITY ? best : -1;
        row->out_logprob = NAN;
        return;
    }
    kwk_sampler_choose(&c, logits, m->recipe.vocab, t->own->sampler, 0, &m->kernels);
    row->out_token = c.token;
    row->out_logprob = c.logprob;
}

static void head(kwk_self *t)
{
    const kwk_model *m = t->f->model;
    kwk_scratch *s = m->scratch;

    if (t->f->tap) { // every row, as the head would see it
        const kwk_input in = norm_input(t, m->final_norm, t->c->n_rows, NULL, 0);
        tap(t, m->recipe.n_layers, KWK_TAP_HEAD, in.x, in.ldx, m->recipe.hidden);
        barrier(t);
    }
    for (int first = 0; first < t->c->n_out; first += KWK_HEAD_ROWS) {
        const kwk_out *out = t->f->out + t->c->out0 + first;
        const int left = t->c->n_out - first;
        const int n = left < KWK_HEAD_ROWS ? left : KWK_HEAD_ROWS;
        const kwk_input in = norm_input(t, m->final_norm, n, out, is_int(&m->head));
        const projection p = {.t = t,
                              .mats = {&m->head},
                              .y = {s->logits},
                              .ld = {s->ld_vocab},
                              .in = &in,
                              .m = n,
                              .out = out};
        atomic_int *next;
        int i;

        kwk_ops_each_tile(p.mats, 1, n, t->w, kwk_forward_ticket(t), head_tiles, (void *)&p);
        count_matmul(t, n, 1);
        barrier(t);
        next = kwk_forward_ticket(t);
        while ((i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < n)
            if (t->f->rows[out[i].row].sampling)
                sample_row(t, &t->f->rows[out[i].row], s->logits + (size_t)i * s->ld_vocab);
        barrier(t);
    }
}

void kwk_forward_run(void *arg, const kwk_worker *w)
{
    kwk_forward *f = arg;
    kwk_model *m = f->model;
    const kwk_scratch *s = m->scratch;
    kwk_self t = {.f = f, .w = w, .own = &m->scratch->own[w->id]};

    for (int i = 0; i < f->n_chunks; i++) {
        t.c = &f->chunks[i];
        embed(&t);
        barrier(&t);
        tap(&t, -1, KWK_TAP_HIDDEN, s->x, s->ld_hidden, m->recipe.hidden);
        for (int l = 0; l < m->recipe.n_layers; l++) {
            self_attention(&t, l);
            mlp(&t, l);
            tap(&t, l, KWK_TAP_HIDDEN, s->x, s->ld_hidden, m->recipe.hidden);
        }
        head(&t);
    }
    for (int i = 0; i < KWK_COUNT_END; i++)
        if (t.counts[i])
            atomic_fetch_add_explicit(&m->counters[i], t.counts[i], memory_order_relaxed);
}
