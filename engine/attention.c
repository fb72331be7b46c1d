/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one layer over the paged KV: bias, q/k norm and RoPE, the new slots' store, then
 * splits of 256 slots from slot 0 merged in ascending order, for decode and prefill alike, so that
 * a row's result does not depend on how its step was made up (invariant I1). Runs on every thread
 * of the team inside a step.
 */
#include <string.h>

#include "engine/forward.h"
#include "engine/kv.h"

enum { SPLIT_BLOCKS = KWK_SPLIT / KWK_BLOCK };

/* A KV head and the query heads of it that go together. */
typedef struct unit {
    int kv_head, head0, n_heads;
} unit;

static int group_of(const kwk_recipe *r)
{
    return r->n_heads / r->n_kv_heads;
}

static int units_per_head(const kwk_recipe *r)
{
    return (group_of(r) + KWK_ATTN_QUERIES - 1) / KWK_ATTN_QUERIES;
}

int kwk_attention_units(const kwk_recipe *r)
{
    return r->n_kv_heads * units_per_head(r);
}

int kwk_attention_tile_rows(const kwk_recipe *r)
{
    const int rows = KWK_ATTN_QUERIES / group_of(r);

    return rows < 1 ? 1 : rows;
}

int kwk_attention_splits(int n_slots)
{
    return (n_slots + KWK_SPLIT - 1) / KWK_SPLIT;
}

size_t kwk_attention_part_floats(const kwk_recipe *r)
{
    const int group = group_of(r);

    return (size_t)(group < KWK_ATTN_QUERIES ? group : KWK_ATTN_QUERIES) *
           ((size_t)r->head_dim + 2);
}

static unit unit_at(const kwk_recipe *r, int i)
{
    const int per = units_per_head(r), group = group_of(r);
    const int first = i % per * KWK_ATTN_QUERIES;
    const int n = group - first < KWK_ATTN_QUERIES ? group - first : KWK_ATTN_QUERIES;

    return (unit){i / per, i / per * group + first, n};
}

/* ---- heads of new rows ---------------------------------------------------------------------- */

/* Bias, norm per head and RoPE on n heads that lie side by side. */
static void turn_heads(const kwk_self *t, float *x, int n, const float *bias, const float *norm,
                       int row)
{
    const kwk_model *m = t->f->model;
    const kwk_recipe *r = &m->recipe;
    const size_t half = (size_t)r->rope_dim / 2, dim = (size_t)r->head_dim;

    if (bias)
        for (size_t i = 0; i < (size_t)n * dim; i++)
            x[i] += bias[i];
    if (norm)
        for (int h = 0; h < n; h++)
            m->kernels.rmsnorm(x + (size_t)h * dim, x + (size_t)h * dim, norm, r->head_dim,
                               r->rms_eps);
    m->kernels.rope(x, m->scratch->cos + (size_t)row * half, m->scratch->sin + (size_t)row * half,
                    n, r->rope_dim, dim);
}

static void turn_queries(const kwk_self *t, float *q, int layer, int head0, int n, int row)
{
    const kwk_layer *l = &t->f->model->layers[layer];
    const size_t at = (size_t)head0 * (size_t)t->f->model->recipe.head_dim;

    turn_heads(t, q, n, l->q_bias ? l->q_bias + at : NULL, l->q_norm, row);
}

/* Finish one KV head of a row in place and store it. */
static void store_head(const kwk_self *t, const kwk_piece *p, int layer, int head, int row)
{
    const kwk_model *m = t->f->model;
    const kwk_layer *l = &m->layers[layer];
    const kwk_scratch *s = m->scratch;
    const int dim = m->recipe.head_dim, slot = p->slot0 + row - p->row0;
    const size_t at = (size_t)head * (size_t)dim;
    const int32_t block = p->seq->blocks[slot / KWK_BLOCK];
    kwk_kv_store_f32_fn *store =
        m->kv_bits == 16 ? m->kernels.kv_store_f16 : m->kernels.kv_store_f32;
    float *k = s->k + (size_t)row * s->ld_kv + at;
    float *v = s->v + (size_t)row * s->ld_kv + at;

    turn_heads(t, k, 1, l->k_bias ? l->k_bias + at : NULL, l->k_norm, row);
    if (l->v_bias)
        for (int i = 0; i < dim; i++)
            v[i] += l->v_bias[at + (size_t)i];
    store(kwk_kv_k(m->kv, block, layer, head), kwk_kv_v(m->kv, block, layer, head), k, v, dim,
          slot % KWK_BLOCK);
}

static const kwk_piece *piece_of_row(const kwk_chunk *c, int row)
{
    int lo = 0, hi = c->n_pieces;

    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (c->pieces[mid].row0 <= row)
            lo = mid;
        else
            hi = mid;
    }
    return &c->pieces[lo];
}

/* All heads of this thread's share of the rows. */
static void turn_and_store(kwk_self *t, int layer)
{
    const kwk_recipe *r = &t->f->model->recipe;
    const kwk_scratch *s = t->f->model->scratch;
    int lo, hi;

    kwk_ops_share(t->w, t->c->n_rows, &lo, &hi);
    for (int row = lo; row < hi; row++) {
        const kwk_piece *p = piece_of_row(t->c, row);

        turn_queries(t, s->q + (size_t)row * s->ld_q, layer, 0, r->n_heads, row);
        for (int h = 0; h < r->n_kv_heads; h++)
            store_head(t, p, layer, h, row);
    }
}

/* ---- one split ------------------------------------------------------------------------------ */

/* Queries against split `split` of a KV head; the last slot any of them sees is `last`. */
static void attend(const kwk_self *t, const kwk_piece *p, int layer, int kv_head, int split,
                   int last, const kwk_attn_query *queries, int n)
{
    const kwk_model *m = t->f->model;
    const int block0 = split * SPLIT_BLOCKS;
    const int blocks = last / KWK_BLOCK + 1 - block0;
    kwk_attn a = {
        .query = queries,
        .n_queries = n,
        .n_blocks = blocks < SPLIT_BLOCKS ? blocks : SPLIT_BLOCKS,
        .dim = m->recipe.head_dim,
        .scale = m->recipe.attn_scale,
        .scratch = t->own->attn,
    };

    for (int i = 0; i < a.n_blocks; i++) {
        const int32_t block = p->seq->blocks[block0 + i];
        a.k[i] = kwk_kv_k(m->kv, block, layer, kv_head);
        a.v[i] = kwk_kv_v(m->kv, block, layer, kv_head);
        a.valid[i] = p->seq->valid[block0 + i];
    }
    if (m->kv_bits == 16)
        m->kernels.attn_f16(&a);
    else
        m->kernels.attn_f32(&a);
}

static float *output(const kwk_self *t, int row, int head)
{
    const kwk_scratch *s = t->f->model->scratch;

    return s->heads.x + (size_t)row * s->heads.ldx +
           (size_t)head * (size_t)t->f->model->recipe.head_dim;
}

/* ---- a single row --------------------------------------------------------------------------- */

/* Merge the parts of a unit, split after split, into the first one; write the heads. */
static void merge_splits(kwk_self *t, const unit *u, float *parts, int n_splits, int row)
{
    const kwk_model *m = t->f->model;
    const int dim = m->recipe.head_dim;
    const size_t one = (size_t)dim + 2, stride = kwk_attention_part_floats(&m->recipe);

    for (int h = 0; h < u->n_heads; h++) {
        float *a = parts + (size_t)h * one;
        for (int s = 1; s < n_splits; s++)
            m->kernels.attn_merge(a, a + (size_t)s * stride, dim);
        m->kernels.attn_finish(output(t, row, u->head0 + h), a, dim);
    }
    t->counts[KWK_COUNT_ATTN_MERGES] += (uint64_t)(n_splits - 1);
}

/* One row against splits split0 … split1-1 of its sequence. When the whole chunk is made of single
 * rows, the item also finishes its queries, and the item with the last split stores the new slot.
 */
static void single_row(kwk_self *t, const kwk_piece *p, const unit *u, int unit_no, int layer,
                       int split)
{
    const kwk_model *m = t->f->model;
    const kwk_scratch *s = m->scratch;
    const int row = p->row0, dim = m->recipe.head_dim, slots = p->slot0 + 1;
    const int n_splits = kwk_attention_splits(slots), cut = p->n_splits > 1;
    const size_t one = (size_t)dim + 2, stride = kwk_attention_part_floats(&m->recipe);
    float *q = s->q + (size_t)row * s->ld_q + (size_t)u->head0 * (size_t)dim;
    float *parts = t->own->parts, *next = parts + KWK_ATTN_QUERIES * one;
    kwk_attn_query queries[KWK_ATTN_QUERIES];

    if (t->c->single) {
        memcpy(t->own->q, q, (size_t)u->n_heads * (size_t)dim * sizeof *q);
        q = t->own->q;
        turn_queries(t, q, layer, u->head0, u->n_heads, row);
        if (!cut || split == n_splits - 1)
            store_head(t, p, layer, u->kv_head, row);
    }
    if (cut)
        parts = s->parts + p->part0 + (size_t)(unit_no * n_splits) * stride;
    for (int i = cut ? split : 0; i < (cut ? split + 1 : n_splits); i++) {
        float *part = cut ? parts + (size_t)i * stride : i == 0 ? parts : next;

        for (int h = 0; h < u->n_heads; h++)
            queries[h] = (kwk_attn_query){q + (size_t)h * (size_t)dim, 0, p->slot0 - i * KWK_SPLIT,
                                          part + (size_t)h * one};
        attend(t, p, layer, u->kv_head, i, p->slot0, queries, u->n_heads);
        if (!cut && i > 0) {
            for (int h = 0; h < u->n_heads; h++)
                m->kernels.attn_merge(parts + (size_t)h * one, part + (size_t)h * one, dim);
            t->counts[KWK_COUNT_ATTN_MERGES]++;
        }
    }
    t->counts[KWK_COUNT_ATTN_DECODE]++;
    if (!cut) {
        for (int h = 0; h < u->n_heads; h++)
            m->kernels.attn_finish(output(t, row, u->head0 + h), parts + (size_t)h * one, dim);
    } else if (atomic_fetch_add(&s->done[p->done0 + unit_no], 1) == n_splits - 1) {
        atomic_store_explicit(&s->done[p->done0 + unit_no], 0, memory_order_relaxed);
        merge_splits(t, u, parts, n_splits, row);
    }
}

/* ---- several rows --------------------------------------------------------------------------- */

/* A tile of rows against all the slots they see. */
static void query_tile(kwk_self *t, const kwk_piece *p, const unit *u, int layer, int tile)
{
    const kwk_model *m = t->f->model;
    const kwk_scratch *s = m->scratch;
    const int dim = m->recipe.head_dim, tile_rows = kwk_attention_tile_rows(&m->recipe);
    const int first = tile * tile_rows; // row of the piece
    const int n_rows = p->n_rows - first < tile_rows ? p->n_rows - first : tile_rows;
    const int last = p->slot0 + first + n_rows - 1;
    const size_t one = (size_t)dim + 2;
    float *sum = t->own->parts, *next = sum + KWK_ATTN_QUERIES * one;
    kwk_attn_query queries[KWK_ATTN_QUERIES];

    for (int i = 0; i < kwk_attention_splits(last + 1); i++) {
        float *part = i == 0 ? sum : next;
        int n = 0;

        for (int k = 0; k < n_rows; k++)
            for (int h = 0; h < u->n_heads; h++, n++)
                queries[n] = (kwk_attn_query){s->q + (size_t)(p->row0 + first + k) * s->ld_q +
                                                  (size_t)(u->head0 + h) * (size_t)dim,
                                              0, p->slot0 + first + k - i * KWK_SPLIT,
                                              part + (size_t)n * one};
        attend(t, p, layer, u->kv_head, i, last, queries, n);
        for (int k = 0; k < n && i > 0; k++) // a row that sees nothing of it: an exact identity
            m->kernels.attn_merge(sum + (size_t)k * one, part + (size_t)k * one, dim);
        t->counts[KWK_COUNT_ATTN_MERGES] += i > 0;
    }
    for (int k = 0, n = 0; k < n_rows; k++)
        for (int h = 0; h < u->n_heads; h++, n++)
            m->kernels.attn_finish(output(t, p->row0 + first + k, u->head0 + h),
                                   sum + (size_t)n * one, dim);
    t->counts[KWK_COUNT_ATTN_PREFILL]++;
}

static void run_item(kwk_self *t, int layer, int item)
{
    const kwk_chunk *c = t->c;
    int lo = 0, hi = c->n_pieces;

    while (hi - lo > 1) { // the last piece that begins at or before it
        const int mid = (lo + hi) / 2;
        if (c->pieces[mid].item0 <= item)
            lo = mid;
        else
            hi = mid;
    }
    const kwk_piece *p = &c->pieces[lo];
    const int local = item - p->item0;
    if (p->n_rows == 1) {
        const unit u = unit_at(&t->f->model->recipe, local / p->n_splits);
        single_row(t, p, &u, local / p->n_splits, layer, local % p->n_splits);
    } else { // late rows see most: they come first, so that no thread is left with one at the end
        const int units = kwk_attention_units(&t->f->model->recipe);
        const unit u = unit_at(&t->f->model->recipe, local % units);
        query_tile(t, p, &u, layer, p->n_tiles - 1 - local / units);
    }
}

void kwk_attention_run(kwk_self *t, int layer)
{
    atomic_int *next = kwk_forward_ticket(t);
    int item;

    if (!t->c->single) {
        turn_and_store(t, layer);
        kwk_barrier_wait(t->w->barrier);
    }
    while ((item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < t->c->n_items)
        run_item(t, layer, item);
}
