/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step computes, for one model: every job that decodes and every short task, then a slice of
 * the prompts that wait. Who waits longest is next, users before sessions before order of arrival.
 * When KV blocks run out the youngest generation is put back and computed again later. Engine
 * thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/scheduler_state.h"

int kwkd_batch_init(kwkd_batch *b, kwk_error *err)
{
    memset(b, 0, sizeof *b);
    b->rows = calloc(KWKD_ROWS, sizeof *b->rows);
    b->spans = calloc(KWKD_ROWS, sizeof *b->spans);
    if (b->rows && b->spans)
        return KWK_OK;
    kwkd_batch_fini(b);
    return kwk_fail(err, KWK_ENOMEM, "rows of a step");
}

void kwkd_batch_fini(kwkd_batch *b)
{
    free(b->rows);
    free(b->spans);
    free(b->logits);
    memset(b, 0, sizeof *b);
}

static kwkd_job *as_job(kwkd_unit *u)
{
    return KWKD_OWNER(kwkd_job, unit, u);
}

static kwkd_task *as_task(kwkd_unit *u)
{
    return KWKD_OWNER(kwkd_task, unit, u);
}

/* ---- KV blocks
 * ---------------------------------------------------------------------------------------- */

static int64_t blocks(int n_slots)
{
    return (n_slots + KWKD_BLOCK - 1) / KWKD_BLOCK;
}

static int64_t free_blocks(const kwkd_model *m)
{
    kwk_model_info info;

    kwk_model_describe(m->engine, &info);
    return (int64_t)info.kv_blocks_free;
}

/* Blocks that clients' sequences hold: what is neither free nor a job's. */
static int64_t held_by_tasks(const kwkd_model *m)
{
    int64_t held = (int64_t)m->info.kv_blocks - free_blocks(m);

    for (const kwkd_job *j = m->lane.first_job; j; j = j->next)
        held -= blocks(j->n_computed);
    return held > 0 ? held : 0;
}

/* ---- the batch
 * ------------------------------------------------------------------------------------------- */

static kwkd_span *add_span(kwkd_scheduler *s, kwkd_unit *u, int n)
{
    kwkd_batch *b = &s->batch;
    kwkd_span *span = &b->spans[b->n_spans++];

    assert(b->n_rows + n <= KWKD_ROWS);
    *span = (kwkd_span){.unit = u, .first = b->n_rows, .n = n, .logits = b->n_logits};
    memset(b->rows + b->n_rows, 0, (size_t)n * sizeof *b->rows);
    b->n_rows += n;
    u->step = s->step;
    return span;
}

/* The next n tokens of a job. Its last token is followed by a choice. */
static void add_job(kwkd_scheduler *s, kwkd_job *j, int n)
{
    kwk_row *rows = s->batch.rows + add_span(s, &j->unit, n)->first;

    for (int i = 0; i < n; i++) {
        rows[i].seq = j->seq;
        rows[i].token = j->ids[j->n_computed + i];
        rows[i].position = j->n_computed + i;
    }
    if (j->n_computed + n == j->n_ids && j->max_new > 0) {
        j->history =
            (kwk_history){.ids = j->ids, .n_ids = j->n_ids, .n_new = kwkd_job_new_tokens(j)};
        rows[n - 1].sampling = &j->sampling;
        rows[n - 1].history = &j->history;
        rows[n - 1].out_top = j->top;
        rows[n - 1].out_token = -1;
    }
}

/* Logits of the task's next n tokens that the client gets. */
static int task_logits(const kwkd_task *t, int n)
{
    if (t->n_logits == t->n)
        return n;
    return t->n_logits && t->n_done + n == t->n;
}

static void add_task(kwkd_scheduler *s, kwkd_task *t, int n)
{
    kwkd_span *span = add_span(s, &t->unit, n);
    kwk_row *rows = s->batch.rows + span->first;

    span->n_logits = task_logits(t, n);
    s->batch.n_logits += span->n_logits;
    for (int i = 0; i < n; i++) {
        rows[i].seq = t->cseq->seq;
        rows[i].token = t->tokens[t->n_done + i];
        rows[i].position = kwkd_task_position(t, t->n_done + i);
        rows[i].invalid = t->valid && !t->valid[t->n_done + i];
        rows[i].want_logits = span->n_logits == n || (span->n_logits && i == n - 1);
    }
}

/* Take span i out again, before the step. */
static void remove_span(kwkd_batch *b, int i)
{
    const kwkd_span gone = b->spans[i];

    memmove(b->rows + gone.first, b->rows + gone.first + gone.n,
            (size_t)(b->n_rows - gone.first - gone.n) * sizeof *b->rows);
    memmove(b->spans + i, b->spans + i + 1, (size_t)(b->n_spans - i - 1) * sizeof *b->spans);
    b->n_rows -= gone.n;
    b->n_spans--;
    b->n_logits -= gone.n_logits;
    for (; i < b->n_spans; i++) {
        b->spans[i].first -= gone.n;
        b->spans[i].logits -= gone.n_logits;
    }
}

/* ---- preemption
 * ------------------------------------------------------------------------------------------ */

/* Put a job back into the queue: its ids stay, its slots are computed again later, with the same
 * bits as before. */
static void preempt(kwkd_scheduler *s, kwkd_job *j)
{
    kwkd_batch *b = &s->batch;

    for (int i = 0; i < b->n_spans; i++) {
        if (b->spans[i].unit == &j->unit) {
            remove_span(b, i);
            break;
        }
    }
    kwk_seq_free(j->seq);
    j->seq = NULL;
    j->n_computed = 0;
    j->phase = KWKD_WAITING;
    kwkd_count(&s->metrics->preempted, 1);
    kwkd_log(KWKD_DEBUG, "generation preempted", "model=%s tokens=%d", j->model->name, j->n_ids);
}

/* The youngest of those that cannot go on anyway, else the youngest. NULL: no job holds blocks. */
static kwkd_job *victim(const kwkd_model *m, int paused_only)
{
    kwkd_job *youngest = NULL;

    for (kwkd_job *j = m->lane.last_job; j; j = j->prev) {
        if (!j->seq)
            continue;
        if (j->paused_us)
            return j;
        if (!youngest)
            youngest = j;
    }
    return paused_only ? NULL : youngest;
}

/* Free blocks until the batch fits, or fail tasks that cannot be helped. */
static void make_room(kwkd_scheduler *s, kwkd_model *m)
{
    kwkd_batch *b = &s->batch;

    while (b->n_spans) {
        const int need = kwk_step_blocks(m->engine, b->rows, b->n_rows);
        const int64_t have = free_blocks(m);
        kwkd_job *j;
        int i;
        if (need <= have)
            return;
        j = victim(m, 0);
        if (j) {
            preempt(s, j);
            continue;
        }
        for (i = b->n_spans - 1; i > 0; i--) // no job is left, all spans are tasks
            if (kwk_step_blocks(m->engine, b->rows + b->spans[i].first, b->spans[i].n) > 0)
                break;
        kwk_error err = {0};
        kwkd_unit *u = b->spans[i].unit;
        kwk_fail(&err, KWK_EFULL, "%d KV blocks are needed, %lld of %llu are free", need,
                 (long long)have, (unsigned long long)m->info.kv_blocks);
        remove_span(b, i);
        kwkd_task_fail(s, as_task(u), &err);
    }
}

/* ---- admission
 * ---------------------------------------------------------------------------------------------- */

/* Whether there are blocks for all that the job has, beside what the admitted ones still need. */
static int fits(const kwkd_model *m, const kwkd_job *job)
{
    int64_t need = blocks(job->n_ids + (job->max_new > 0));

    for (const kwkd_job *j = m->lane.first_job; j; j = j->next) {
        if (j->phase == KWKD_PREFILL)
            need += blocks(j->n_ids) - blocks(j->n_computed);
        if (j->seq && j->n_ids % KWKD_BLOCK >= KWKD_BLOCK - 8) // will soon need its next one
            need++;
    }
    return need <= free_blocks(m);
}

/* Admit a waiting job, if there is room. 1 admitted; 0 it must wait; -1 it ended in an error. */
static int admit(kwkd_scheduler *s, kwkd_model *m, kwkd_job *j)
{
    kwk_error err = {0};
    kwkd_job *other;

    while (!fits(m, j)) {
        other = victim(m, 1); // stalled clients make way
        if (other) {
            preempt(s, other);
            continue;
        }
        if (victim(m, 0)) // others will end
            return 0;
        kwk_fail(&err, KWK_EFULL,
                 "%d tokens need %lld KV blocks of 32; %lld of %llu are free, open sequences hold "
                 "the rest",
                 j->n_ids, (long long)blocks(j->n_ids + 1), (long long)free_blocks(m),
                 (unsigned long long)m->info.kv_blocks);
        kwkd_job_fail(j, &err, s->now_us);
        return -1;
    }
    if (kwk_seq_new(&j->seq, m->engine, &err) < 0) {
        kwkd_job_fail(j, &err, s->now_us);
        return -1;
    }
    j->phase = KWKD_PREFILL;
    if (!j->admitted_us)
        j->admitted_us = s->now_us;
    if (j->counted_waiting) {
        pthread_mutex_lock(&s->lock);
        j->counted_waiting = 0;
        j->unit.party->n_waiting--;
        s->n_queued--;
        pthread_mutex_unlock(&s->lock);
    }
    return 1;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Is a served before b? */
static int before(const kwkd_unit *a, const kwkd_unit *b)
{
    if (a->party != b->party && a->party->served != b->party->served)
        return a->party->served < b->party->served;
    if (a->session_served != b->session_served && *a->session_served != *b->session_served)
        return *a->session_served < *b->session_served;
    return a->arrival < b->arrival;
}

/* May the task take part: only the first of its sequence does. Begins it; 0: not, or it is gone. */
static int ready(kwkd_scheduler *s, kwkd_model *m, kwkd_task *t)
{
    if (t->cseq->first != t || atomic_load(&t->session->dead))
        return 0;
    return t->start >= 0 || kwkd_task_begin(s, t, held_by_tasks(m)) == KWK_OK;
}

static void add_decoding(kwkd_scheduler *s, kwkd_model *m)
{
    for (kwkd_job *j = m->lane.first_job; j; j = j->next)
        if (j->phase == KWKD_DECODE && !j->paused_us && s->batch.n_rows < KWKD_ROWS)
            add_job(s, j, 1);
}

/* Rows of logits that a step may still take. */
static int logits_room(const kwkd_scheduler *s, const kwkd_model *m)
{
    const int most = (int)(KWKD_LOGITS_BYTES / ((size_t)m->info.vocab * sizeof(float)));

    return (most ? most : 1) - s->batch.n_logits;
}

/* Rows of the session's short tasks in this step. */
static int *small_rows(const kwkd_scheduler *s, kwkd_session *session)
{
    if (session->engine.rows_step != s->step) {
        session->engine.rows_step = s->step;
        session->engine.rows = 0;
    }
    return &session->engine.rows;
}

static void add_small_tasks(kwkd_scheduler *s, kwkd_model *m)
{
    int left = KWKD_SMALL_ROWS;

    for (kwkd_task *t = m->lane.first_task, *next; t && left > 0; t = next) {
        const int n = t->n - t->n_done;
        next = t->next;
        if (n > KWKD_SMALL || n > left || s->batch.n_rows + n > KWKD_ROWS ||
            *small_rows(s, t->session) + n > KWKD_SMALL_ROWS_SESSION ||
            task_logits(t, n) > logits_room(s, m) || !ready(s, m, t))
            continue;
        add_task(s, t, n);
        *small_rows(s, t->session) += n;
        left -= n;
    }
}

static int running(const kwkd_model *m)
{
    int n = 0;

    for (const kwkd_job *j = m->lane.first_job; j; j = j->next)
        n += j->seq && !j->paused_us;
    return n;
}

/* The next prompt to get rows; NULL: none can. */
static kwkd_unit *next_prompt(kwkd_scheduler *s, kwkd_model *m, int admit_more)
{
    kwkd_unit *best = NULL;

    for (kwkd_job *j = m->lane.first_job; j; j = j->next)
        if (j->unit.step != s->step && !j->paused_us &&
            (j->phase == KWKD_PREFILL || (j->phase == KWKD_WAITING && admit_more)) &&
            (!best || before(&j->unit, best)))
            best = &j->unit;
    for (kwkd_task *t = m->lane.first_task, *next; t; t = next) {
        next = t->next;
        if (t->unit.step != s->step && t->n - t->n_done > KWKD_SMALL &&
            (!best || before(&t->unit, best)) && ready(s, m, t))
            best = &t->unit;
    }
    return best;
}

static void add_prompts(kwkd_scheduler *s, kwkd_model *m)
{
    int left = atomic_load(&s->slice), admit_more = running(m) < atomic_load(&s->running);

    if (left > KWKD_ROWS - s->batch.n_rows)
        left = KWKD_ROWS - s->batch.n_rows;
    while (left > 0) {
        kwkd_unit *u = next_prompt(s, m, admit_more);
        int n;
        if (!u)
            return;
        if (!u->is_task && as_job(u)->phase == KWKD_WAITING) {
            const int rc = admit(s, m, as_job(u));
            if (rc == 0) // strictly in turn: a long prompt is not overtaken for ever by short ones
                admit_more = 0;
            if (rc <= 0)
                continue;
            admit_more = running(m) < atomic_load(&s->running);
        }
        n = u->is_task ? as_task(u)->n - as_task(u)->n_done
                       : as_job(u)->n_ids - as_job(u)->n_computed;
        if (n > left)
            n = left;
        if (u->is_task) {
            const int room = logits_room(s, m);
            if (task_logits(as_task(u), n) > room && n > room)
                n = room;
            if (n <= 0) {
                u->step = s->step; // not this time
                continue;
            }
            add_task(s, as_task(u), n);
        } else {
            add_job(s, as_job(u), n);
        }
        left -= n;
        u->party->served = *u->session_served = ++s->clock;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static void apply_job(kwkd_scheduler *s, kwkd_job *j, const kwk_row *last, int n)
{
    const int was_prompt = j->phase == KWKD_PREFILL, was_first = !j->first_us;
    kwk_error err = {0};

    j->n_computed += n;
    if (was_prompt)
        kwkd_count(&s->metrics->prompt_tokens, (uint64_t)n);
    if (j->n_computed < j->n_ids) {
        kwkd_job_progress(j);
        return;
    }
    if (!last->sampling) { // max_new_tokens 0
        kwkd_job_finish(j, KWK_FINISH_LENGTH, s->now_us);
        return;
    }
    if (last->out_token < 0 || last->out_token >= j->model->info.vocab) {
        kwk_fail(&err, KWK_EINVAL, "no token can be chosen: every score is NaN or -inf");
        kwkd_job_fail(j, &err, s->now_us);
        return;
    }
    j->phase = KWKD_DECODE;
    kwkd_job_token(j, last->out_token, last->out_logprob, s->now_us);
    kwkd_count(&s->metrics->new_tokens, 1);
    if (was_first)
        kwkd_observe_us(&s->metrics->first_token_us, s->now_us - j->submitted_us);
}

/* logits: the span's first row, where the engine put it. */
static void apply(kwkd_scheduler *s, const kwkd_span *span, const float *logits)
{
    kwkd_task *t;

    if (!span->unit->is_task) {
        apply_job(s, as_job(span->unit), &s->batch.rows[span->first + span->n - 1], span->n);
        return;
    }
    t = as_task(span->unit);
    if (span->n_logits) {
        const size_t vocab = (size_t)t->cseq->model->info.vocab;
        float *to = t->logits + (t->n_logits == t->n ? (size_t)t->n_done * vocab : 0);
        if (to != logits)
            memcpy(to, logits, (size_t)span->n_logits * vocab * sizeof *to);
    }
    kwkd_task_advance(s, t, span->n);
}

static void fail_span(kwkd_scheduler *s, const kwkd_span *span, const kwk_error *err)
{
    if (span->unit->is_task)
        kwkd_task_fail(s, as_task(span->unit), err);
    else
        kwkd_job_fail(as_job(span->unit), err, s->now_us);
}

static int grow_logits(kwkd_batch *b, size_t n, kwk_error *err)
{
    float *grown;

    if (n <= b->logits_capacity)
        return KWK_OK;
    grown = realloc(b->logits, n * sizeof *grown);
    if (!grown)
        return kwk_fail(err, KWK_ENOMEM, "%zu logits", n);
    b->logits = grown;
    b->logits_capacity = n;
    return KWK_OK;
}

/* Run spans i to i + n - 1 as one step and hand out what came of it. */
static int run_spans(kwkd_scheduler *s, kwkd_model *m, int i, int n, kwk_error *err)
{
    kwkd_batch *b = &s->batch;
    const kwkd_span *first = &b->spans[i], *last = &b->spans[i + n - 1];
    const size_t vocab = (size_t)m->info.vocab;
    kwk_step_args args = {.size = sizeof args,
                          .rows = b->rows + first->first,
                          .n_rows = last->first + last->n - first->first};
    const int n_logits = last->logits + last->n_logits - first->logits;
    const uint64_t start = kwkd_now_us();
    float *logits = NULL;
    int rc;

    for (int k = i; n_logits && k < i + n; k++) { // all of them one task's: straight to the client
        if (b->spans[k].n_logits == n_logits) {
            kwkd_task *t = as_task(b->spans[k].unit);
            logits = t->logits + (t->n_logits == t->n ? (size_t)t->n_done * vocab : 0);
        }
    }
    if (n_logits && !logits) {
        rc = grow_logits(b, (size_t)n_logits * vocab, err);
        if (rc < 0)
            return rc;
        logits = b->logits;
    }
    args.logits = logits;
    rc = kwk_step(m->engine, &args, err);
    if (rc < 0)
        return rc;
    s->now_us = kwkd_now_us();
    kwkd_count_rows(s->metrics, (uint64_t)args.n_rows);
    kwkd_observe_us(&s->metrics->step_us, s->now_us - start);
    for (int k = i; k < i + n; k++) {
        const size_t row = (size_t)(b->spans[k].logits - first->logits);
        apply(s, &b->spans[k], logits ? logits + row * vocab : NULL);
    }
    return KWK_OK;
}

/* When the batch fails, run its units one by one: what is wrong with one must not touch the others.
 */
static void run_batch(kwkd_scheduler *s, kwkd_model *m)
{
    kwkd_batch *b = &s->batch;
    kwk_error err = {0};

    if (run_spans(s, m, 0, b->n_spans, &err) == KWK_OK)
        return;
    kwkd_log(KWKD_WARNING, "step failed", "model=%s rows=%d error=%s message=%s", m->name,
             b->n_rows, kwk_error_name(err.code), err.msg);
    kwkd_count(&s->metrics->retried, 1);
    for (int i = 0; i < b->n_spans; i++)
        if (run_spans(s, m, i, 1, &err) < 0)
            fail_span(s, &b->spans[i], &err);
}

int kwkd_batch_step(kwkd_scheduler *s, kwkd_model *m)
{
    kwkd_batch *b = &s->batch;

    s->step++;
    b->n_rows = b->n_spans = b->n_logits = 0;
    add_decoding(s, m);
    add_small_tasks(s, m);
    add_prompts(s, m);
    make_room(s, m);
    if (!b->n_spans)
        return 0;
    run_batch(s, m);
    return 1;
}
