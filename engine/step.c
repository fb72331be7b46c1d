/* SPDX-License-Identifier: Apache-2.0
 *
 * The step from outside: check the rows, plan chunks and attention items, allocate everything,
 * then let the team run forward.c. All that can fail happens in prepare(), on the executor thread
 * and before anything has changed.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/kv.h"

enum { MAX_ROWS = 4096 };

/* Rows of one sequence, all that this step has of it. */
typedef struct run {
    kwk_seq *seq;
    int row0, n_rows;
} run;

typedef struct step {
    kwk_forward forward;
    const kwk_step_args *args;
    int n_runs, n_pieces, n_chunks, n_out;
    run *runs;
    kwk_piece *pieces;
    kwk_chunk *chunks;
    kwk_out *out;
    int32_t *fresh; // blocks
    int n_fresh;
} step;

/* ---- checks --------------------------------------------------------------------------------- */

static int check_sampling(const kwk_row *row, int i, kwk_error *err)
{
    const kwk_sampling *s = row->sampling;
    const kwk_history *h = row->history;

    if (s->size < sizeof *s || !(s->temperature > 0) || s->n_logprobs < 0)
        return kwk_fail(err, KWK_EINVAL, "row %d: sampling was not checked", i);
    if (h && (h->n_ids < 0 || (h->n_ids > 0 && !h->ids)))
        return kwk_fail(err, KWK_EINVAL, "row %d: history of %d ids without a list", i, h->n_ids);
    return KWK_OK;
}

static int check_row(const kwk_model *m, const kwk_row *row, int i, kwk_error *err)
{
    if (!row->seq || row->seq->model != m)
        return kwk_fail(err, KWK_EINVAL, "row %d: its sequence is %s", i,
                        row->seq ? "of another model" : "NULL");
    if (!row->embedding && (row->token < 0 || row->token >= m->recipe.vocab))
        return kwk_fail(err, KWK_EINVAL, "row %d: token %d is not in 0..%d", i, row->token,
                        m->recipe.vocab - 1);
    for (int k = 0; row->embedding && k < m->recipe.hidden; k++)
        if (!isfinite(row->embedding[k]))
            return kwk_fail(err, KWK_EINVAL, "row %d: embedding[%d] is not finite", i, k);
    if (row->position < 0)
        return kwk_fail(err, KWK_EINVAL, "row %d: position %d is below 0", i, row->position);
    return row->sampling ? check_sampling(row, i, err) : KWK_OK;
}

/* Check every row, find the runs, count outputs. */
static int check_rows(step *st, kwk_error *err)
{
    static uint64_t serial; // of the steps of this process: only the executor gets here
    const kwk_model *m = st->forward.model;
    const kwk_step_args *a = st->args;

    serial++;
    for (int i = 0; i < a->n_rows; i++) {
        kwk_row *row = &a->rows[i];
        const int rc = check_row(m, row, i, err);

        if (rc != KWK_OK)
            return rc;
        if (row->want_logits && !a->logits)
            return kwk_fail(err, KWK_EINVAL, "row %d wants logits and there is no place for them",
                            i);
        if (i == 0 || row->seq != a->rows[i - 1].seq) {
            if (row->seq->mark == serial)
                return kwk_fail(err, KWK_EINVAL, "row %d: rows of one sequence must lie together",
                                i);
            row->seq->mark = serial;
            st->runs[st->n_runs++] = (run){row->seq, i, 0};
        }
        st->runs[st->n_runs - 1].n_rows++;
    }
    for (int i = 0; i < st->n_runs; i++) {
        const run *r = &st->runs[i];
        const int rc =
            r->n_rows > m->max_ctx - r->seq->length
                ? kwk_fail(err, KWK_EFULL, "row %d: %d slots and %d more pass the context of %d",
                           r->row0, r->seq->length, r->n_rows, m->max_ctx)
                : kwk_seq_reserve(r->seq, r->seq->length + r->n_rows, err);
        if (rc != KWK_OK)
            return rc;
    }
    return KWK_OK;
}

/* ---- the plan ------------------------------------------------------------------------------- */

typedef struct need {
    size_t parts; // floats
    size_t done;
    int out_rows, rows;
} need;

/* Attention items of a chunk whose pieces are known. */
static void plan_items(const kwk_recipe *r, kwk_chunk *c, kwk_piece *pieces, int n_threads,
                       need *need)
{
    const int units = kwk_attention_units(r), tile_rows = kwk_attention_tile_rows(r);
    const int64_t n_single = (int64_t)c->n_pieces * units;
    size_t parts = 0;
    int done = 0;

    c->single = units == r->n_kv_heads;
    for (int i = 0; i < c->n_pieces; i++) {
        kwk_piece *p = &pieces[i];
        const int splits = kwk_attention_splits(p->slot0 + 1);

        p->item0 = c->n_items;
        p->n_splits = 1;
        p->n_tiles = (p->n_rows + tile_rows - 1) / tile_rows;
        if (p->n_rows > 1) {
            c->single = 0;
        } else if (splits > 1 && n_single < 4 * (int64_t)n_threads) {
            p->n_splits = splits; // too few rows to keep every thread busy: cut them
            p->part0 = parts;
            p->done0 = done;
            parts += (size_t)(units * splits) * kwk_attention_part_floats(r);
            done += units;
        }
        c->n_items += units * p->n_tiles * p->n_splits;
    }
    if (parts > need->parts)
        need->parts = parts;
    if ((size_t)done > need->done)
        need->done = (size_t)done;
}

static void plan(step *st, int n_threads, need *need)
{
    const kwk_step_args *a = st->args;
    const kwk_recipe *r = &st->forward.model->recipe;
    int at = 0; // run

    for (int row0 = 0; row0 < a->n_rows; row0 += KWK_CHUNK_ROWS) {
        kwk_chunk *c = &st->chunks[st->n_chunks++];
        kwk_piece *pieces = &st->pieces[st->n_pieces];
        const int end = row0 + KWK_CHUNK_ROWS < a->n_rows ? row0 + KWK_CHUNK_ROWS : a->n_rows;

        *c = (kwk_chunk){.row0 = row0, .n_rows = end - row0, .pieces = pieces, .out0 = st->n_out};
        for (int row = row0; row < end;) {
            const run *run = &st->runs[at];
            const int last = run->row0 + run->n_rows < end ? run->row0 + run->n_rows : end;

            pieces[c->n_pieces++] = (kwk_piece){.seq = run->seq,
                                                .row0 = row - row0,
                                                .n_rows = last - row,
                                                .slot0 = run->seq->length + row - run->row0};
            row = last;
            at += last == run->row0 + run->n_rows;
        }
        st->n_pieces += c->n_pieces;
        plan_items(r, c, pieces, n_threads, need);
        for (int row = row0; row < end; row++)
            if (a->rows[row].want_logits || a->rows[row].sampling)
                st->out[st->n_out++].row = row;
        c->n_out = st->n_out - c->out0;
        if (c->n_rows > need->rows)
            need->rows = c->n_rows;
        if (c->n_out > need->out_rows)
            need->out_rows = c->n_out < KWK_HEAD_ROWS ? c->n_out : KWK_HEAD_ROWS;
    }
}

static int make_tables(step *st, kwk_error *err)
{
    const size_t rows = (size_t)st->args->n_rows;
    const size_t chunks = (rows + KWK_CHUNK_ROWS - 1) / KWK_CHUNK_ROWS;

    st->runs = malloc(rows * sizeof *st->runs);
    st->pieces = calloc(rows + chunks, sizeof *st->pieces);
    st->chunks = calloc(chunks, sizeof *st->chunks);
    st->out = calloc(rows, sizeof *st->out);
    if (!st->runs || !st->pieces || !st->chunks || !st->out)
        return kwk_fail(err, KWK_ENOMEM, "no memory to plan a step of %zu rows", rows);
    return KWK_OK;
}

/* ---- changes: nothing here fails ------------------------------------------------------------ */

static void append_rows(step *st)
{
    kwk_model *m = st->forward.model;
    const int32_t *next = st->fresh;
    int copied = 0;

    for (int i = 0; i < st->n_runs; i++) {
        const run *r = &st->runs[i];
        const int first = r->seq->length;

        copied += kwk_seq_place_blocks(r->seq, first, r->n_rows, &next);
        kwk_seq_append(r->seq, r->n_rows);
        for (int k = 0; k < r->n_rows; k++)
            kwk_seq_mark_written(r->seq, first + k, !st->args->rows[r->row0 + k].invalid);
    }
    kwk_kv_release(m->kv, next, (int)(st->fresh + st->n_fresh - next));
    atomic_fetch_add_explicit(&m->counters[KWK_COUNT_BLOCKS_COPIED], (uint64_t)copied,
                              memory_order_relaxed);
}

static void count_step(kwk_model *m, int n_rows)
{
    atomic_fetch_add_explicit(&m->counters[KWK_COUNT_STEPS], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->counters[KWK_COUNT_ROWS], (uint64_t)n_rows, memory_order_relaxed);
    if ((uint64_t)n_rows > atomic_load(&m->counters[KWK_COUNT_MAX_ROWS])) // the only writer
        atomic_store(&m->counters[KWK_COUNT_MAX_ROWS], (uint64_t)n_rows);
}

static int prepare(void *arg, int n_threads, kwk_error *err)
{
    step *st = arg;
    kwk_model *m = st->forward.model;
    const kwk_step_args *a = st->args;
    need need = {0};
    int rc = make_tables(st, err);

    if (rc == KWK_OK)
        rc = check_rows(st, err);
    if (rc != KWK_OK)
        return rc;
    plan(st, n_threads, &need);
    rc = kwk_scratch_reserve(m, need.rows, need.out_rows, n_threads, need.parts, need.done, err);
    if (rc != KWK_OK)
        return rc;
    for (int i = 0; i < st->n_runs; i++)
        st->n_fresh +=
            kwk_seq_blocks_needed(st->runs[i].seq, st->runs[i].seq->length, st->runs[i].n_rows);
    st->fresh = malloc(((size_t)st->n_fresh + 1) * sizeof *st->fresh);
    if (!st->fresh)
        return kwk_fail(err, KWK_ENOMEM, "no memory for a list of %d blocks", st->n_fresh);
    if (kwk_kv_alloc(m->kv, st->fresh, st->n_fresh) != KWK_OK)
        return kwk_fail(err, KWK_EFULL, "%d KV blocks are needed and %d are free", st->n_fresh,
                        kwk_kv_free_blocks(m->kv));

    append_rows(st);
    float *logits = a->logits;
    for (int i = 0; i < st->n_out; i++)
        if (a->rows[st->out[i].row].want_logits) {
            st->out[i].logits = logits;
            logits += m->recipe.vocab;
        }
    st->forward.chunks = st->chunks;
    st->forward.n_chunks = st->n_chunks;
    st->forward.out = st->out;
    count_step(m, a->n_rows);
    return KWK_OK;
}

/* ---- outside -------------------------------------------------------------------------------- */

int kwk_step(kwk_model *m, kwk_step_args *a, kwk_error *err)
{
    step st = {0};
    const kwk_job job = {.prepare = prepare, .work = kwk_forward_run, .arg = &st};
    int rc;

    if (!m || !a || a->size < sizeof *a || !a->rows)
        return kwk_fail(err, KWK_EINVAL, "model, arguments or rows are NULL, or size is wrong");
    if (a->n_rows < 1 || a->n_rows > MAX_ROWS)
        return kwk_fail(err, KWK_EINVAL, "n_rows %d is not in 1..%d", a->n_rows, MAX_ROWS);
    st.args = a;
    st.forward.model = m;
    st.forward.rows = a->rows;
    st.forward.tap = a->tap;
    st.forward.tap_arg = a->tap_arg;
    rc = kwk_executor_run(&job, err);
    free(st.fresh);
    free(st.out);
    free(st.chunks);
    free(st.pieces);
    free(st.runs);
    return rc;
}

int kwk_step_blocks(const kwk_model *m, const kwk_row *rows, int n_rows)
{
    int need = 0;

    for (int i = 0, n; i < n_rows; i += n) {
        for (n = 1; i + n < n_rows && rows[i + n].seq == rows[i].seq;)
            n++;
        if (rows[i].seq && rows[i].seq->model == m)
            need += kwk_seq_blocks_needed(rows[i].seq, rows[i].seq->length, n);
    }
    return need;
}

void kwk_model_counters(const kwk_model *m, kwk_counters *c)
{
    uint64_t v[KWK_COUNT_END];

    for (int i = 0; i < KWK_COUNT_END; i++)
        v[i] = atomic_load_explicit(&m->counters[i], memory_order_relaxed);
    *c = (kwk_counters){.steps = v[KWK_COUNT_STEPS],
                        .rows = v[KWK_COUNT_ROWS],
                        .max_rows = v[KWK_COUNT_MAX_ROWS],
                        .gemv = v[KWK_COUNT_GEMV],
                        .small = v[KWK_COUNT_SMALL],
                        .gemm = v[KWK_COUNT_GEMM],
                        .attn_decode = v[KWK_COUNT_ATTN_DECODE],
                        .attn_prefill = v[KWK_COUNT_ATTN_PREFILL],
                        .attn_merges = v[KWK_COUNT_ATTN_MERGES],
                        .blocks_copied = v[KWK_COUNT_BLOCKS_COPIED]};
}
