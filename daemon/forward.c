/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients' sequences: what their requests do to them, and their tasks from the submission to the
 * answer. A submission is hostile: it is copied once, then checked, then the shared memory is not
 * looked at again. Engine thread only.
 */
#include "daemon/forward.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/scheduler_state.h"

/* ---- sequences
 * ---------------------------------------------------------------------------------------- */

static kwkd_cseq *find(const kwkd_session *session, uint64_t id)
{
    kwkd_cseq *c = session->engine.seqs;

    while (c && c->id != id)
        c = c->next;
    return c;
}

static void cseq_free(kwkd_cseq *c)
{
    if (!c)
        return;
    assert(!c->first);
    kwk_seq_free(c->seq);
    kwkd_model_unref(c->model);
    free(c->positions);
    free(c);
}

/* Room for the answers of all tasks that may be in flight, so that answering never allocates. */
static int make_outbox(kwkd_session *session)
{
    if (!session->engine.answers)
        session->engine.answers = malloc(KWKD_TASKS * sizeof *session->engine.answers);
    return session->engine.answers ? KWK_OK : KWK_ENOMEM;
}

/* Give the session a sequence; takes c, also on error. */
static int adopt(kwkd_scheduler *s, kwkd_session *session, kwkd_cseq *c, kwk_error *err)
{
    const int most = atomic_load(&s->sequences);
    int rc = KWK_OK;

    if (session->engine.n_seqs >= most)
        rc = kwk_fail(err, KWK_EFULL, "the session has %d sequences, the most allowed", most);
    else if (make_outbox(session) < 0 || kwkd_poll_session(s, session, 1) < 0)
        rc = kwk_fail(err, KWK_ENOMEM, "a sequence");
    if (rc < 0) {
        cseq_free(c);
        return rc;
    }
    c->id = ++session->engine.last_seq;
    c->next = session->engine.seqs;
    session->engine.seqs = c;
    session->engine.n_seqs++;
    return KWK_OK;
}

static int cseq_new(kwkd_cseq **out, kwkd_model *model, kwk_error *err)
{
    kwkd_cseq *c = calloc(1, sizeof *c);

    if (!c)
        return kwk_fail(err, KWK_ENOMEM, "a sequence");
    c->model = kwkd_model_ref(model);
    *out = c;
    return KWK_OK;
}

/* Nothing is left to poll the session for. */
static void rest(kwkd_scheduler *s, kwkd_session *session)
{
    if (!session->engine.n_seqs && !session->engine.n_answers)
        (void)kwkd_poll_session(s, session, 0);
}

static void remove_seq(kwkd_scheduler *s, kwkd_session *session, kwkd_cseq *c)
{
    kwkd_cseq **at = &session->engine.seqs;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    session->engine.n_seqs--;
    cseq_free(c);
    rest(s, session);
}

/* ---- tasks
 * --------------------------------------------------------------------------------------------- */

static void task_link(kwkd_scheduler *s, kwkd_task *t)
{
    kwkd_model *m = t->cseq->model;

    t->unit.is_task = 1;
    t->unit.party = t->session->engine.party;
    t->unit.session_served = &t->session->engine.served;
    t->unit.arrival = kwkd_next_arrival(s);
    t->start = -1;
    kwkd_lane_open(s, m);
    t->prev = m->lane.last_task;
    if (t->prev)
        t->prev->next = t;
    else
        m->lane.first_task = t;
    m->lane.last_task = t;
    if (t->cseq->last)
        t->cseq->last->later = t;
    else
        t->cseq->first = t;
    t->cseq->last = t;
    t->session->engine.n_tasks++;
}

static void task_free(kwkd_task *t)
{
    if (t->tokens != t->few)
        free(t->tokens);
    free(t->positions);
    free(t->valid);
    free(t->own_logits);
    free(t);
}

static void task_unlink(kwkd_task *t)
{
    kwkd_model *m = t->cseq->model;

    assert(t->cseq->first == t);
    t->cseq->first = t->later;
    if (!t->later)
        t->cseq->last = NULL;
    if (t->prev)
        t->prev->next = t->next;
    else
        m->lane.first_task = t->next;
    if (t->next)
        t->next->prev = t->prev;
    else
        m->lane.last_task = t->prev;
}

/* Answers go to the ring in the order in which they came up; what finds no room waits. */
static int flush_answers(kwkd_scheduler *s, kwkd_session *session, kwk_error *err)
{
    const int n = session->engine.n_answers;
    int64_t room;
    int i = 0;

    if (!n)
        return 0;
    room = kwk_out_free(&session->engine.ring, err);
    if (room < 0)
        return (int)room;
    for (; i < n && i < room; i++)
        kwk_out_put(&session->engine.ring, &session->engine.answers[i]);
    if (!i)
        return 0;
    memmove(session->engine.answers, session->engine.answers + i,
            (size_t)(n - i) * sizeof *session->engine.answers);
    session->engine.n_answers -= i;
    session->engine.n_tasks -= i;
    kwkd_mark_dirty(s, session);
    if (!session->engine.n_answers)
        s->n_unanswered--;
    rest(s, session);
    return 1;
}

static void answer(kwkd_scheduler *s, kwkd_session *session, const kwk_record *r)
{
    kwk_error err = {0};

    assert(session->engine.n_answers < KWKD_TASKS);
    if (!session->engine.n_answers)
        s->n_unanswered++;
    session->engine.answers[session->engine.n_answers++] = *r;
    if (!atomic_load(&session->dead) && flush_answers(s, session, &err) < 0)
        kwkd_session_broke(s, session, &err);
}

static void answer_error(kwkd_scheduler *s, kwkd_session *session, uint32_t tag,
                         const kwk_error *err)
{
    const size_t n = strlen(err->msg);
    kwk_record r = {.type = KWK_REC_ERROR, .stream = tag, .token = err->code};

    r.n_bytes = (uint16_t)kwkd_text_cut((const uint8_t *)err->msg, n, KWK_RECORD_PAYLOAD);
    memcpy(r.payload, err->msg, r.n_bytes);
    answer(s, session, &r);
}

/* The call of a task is done: its logits, inline. */
static void answer_call(kwkd_task *t)
{
    kwk_error err = {0};
    kwk_map m;
    int rc;

    kwk_reply_begin(&m, &t->call->reply);
    kwk_map_bin(&m, "logits", t->own_logits,
                (size_t)t->cseq->model->info.vocab * sizeof *t->own_logits);
    kwk_map_int(&m, "length", kwk_seq_length(t->cseq->seq));
    rc = kwk_map_end(&m, &err);
    kwkd_call_finish(t->call, rc, &err);
}

void kwkd_task_advance(kwkd_scheduler *s, kwkd_task *t, int n)
{
    kwkd_cseq *c = t->cseq;

    for (int i = 0; i < n; i++) // room was made when it began
        c->positions[c->n_positions + i] = kwkd_task_position(t, t->n_done + i);
    c->n_positions += n;
    t->n_done += n;
    if (t->n_done < t->n)
        return;
    task_unlink(t);
    if (t->call) {
        t->session->engine.n_tasks--;
        answer_call(t);
    } else {
        const kwk_record r = {
            .type = KWK_REC_LOGITS, .stream = t->tag, .aux = t->row, .token = t->n_logits};
        answer(s, t->session, &r);
    }
    task_free(t);
}

void kwkd_task_fail(kwkd_scheduler *s, kwkd_task *t, const kwk_error *err)
{
    if (t->start >= 0) {
        (void)kwk_seq_truncate(t->cseq->seq, t->start, NULL);
        t->cseq->n_positions = t->start;
    }
    task_unlink(t);
    if (t->call) {
        t->session->engine.n_tasks--;
        kwkd_call_finish(t->call, err->code, err);
    } else {
        answer_error(s, t->session, t->tag, err);
    }
    task_free(t);
}

int32_t kwkd_task_position(const kwkd_task *t, int i)
{
    if (t->positions)
        return t->positions[i];
    return (t->start > 0 ? t->cseq->positions[t->start - 1] + 1 : 0) + i;
}

static int check_begin(kwkd_scheduler *s, kwkd_task *t, int64_t held_blocks, kwk_error *err)
{
    kwkd_cseq *c = t->cseq;
    const kwk_model_info *info = &c->model->info;
    const int length = kwk_seq_length(c->seq);
    const int64_t need =
        (length + t->n + KWKD_BLOCK - 1) / KWKD_BLOCK - (length + KWKD_BLOCK - 1) / KWKD_BLOCK;
    const int64_t most = (int64_t)info->kv_blocks * atomic_load(&s->kv_percent) / 100;

    if (length + t->n > info->max_ctx)
        return kwk_fail(err, KWK_EFULL, "%d tokens after %d; the context has %d", t->n, length,
                        info->max_ctx);
    if (need && held_blocks + need > most)
        return kwk_fail(err, KWK_EFULL,
                        "%lld more KV blocks: sequences hold %lld of the %lld that they may",
                        (long long)need, (long long)held_blocks, (long long)most);
    if (!t->positions && length && c->positions[length - 1] > INT32_MAX - t->n)
        return kwk_fail(err, KWK_EINVAL, "positions after %d", c->positions[length - 1]);
    if (length + t->n > c->capacity) {
        const int capacity = (length + t->n) * 3 / 2 + 64;
        int32_t *grown = realloc(c->positions, (size_t)capacity * sizeof *grown);
        if (!grown)
            return kwk_fail(err, KWK_ENOMEM, "positions of %d slots", capacity);
        c->positions = grown;
        c->capacity = capacity;
    }
    return KWK_OK;
}

int kwkd_task_begin(kwkd_scheduler *s, kwkd_task *t, int64_t held_blocks)
{
    kwk_error err = {0};
    const int rc = check_begin(s, t, held_blocks, &err);

    if (rc < 0)
        kwkd_task_fail(s, t, &err);
    else
        t->start = kwk_seq_length(t->cseq->seq);
    return rc;
}

/* ---- submissions
 * ---------------------------------------------------------------------------------------- */

/* Copy n elements out of the client's data area, or fail when they are not inside it. */
static int copy_in(const kwkd_session *session, uint64_t offset, size_t bytes, void *to,
                   kwk_error *err)
{
    if (offset % 4 || offset + bytes > session->in_bytes)
        return kwk_fail(err, KWK_EINVAL, "%zu bytes at byte %llu are outside the %u bytes of data",
                        bytes, (unsigned long long)offset, session->in_bytes);
    memcpy(to, (const uint8_t *)session->in + KWK_IN_DATA_AT + offset, bytes);
    __asm__ volatile("" ::: "memory"); // the copy is what is looked at from here on
    return KWK_OK;
}

static int copy_tokens(const kwkd_session *session, const kwk_submission *sub, kwkd_task *t,
                       kwk_error *err)
{
    const size_t n = sub->n;
    uint64_t at = sub->offset;
    int rc;

    if (n > sizeof t->few / sizeof *t->few)
        t->tokens = malloc(n * sizeof *t->tokens);
    if (sub->flags & KWK_SUB_POSITIONS)
        t->positions = malloc(n * sizeof *t->positions);
    if (sub->flags & KWK_SUB_VALID)
        t->valid = malloc(n);
    if (!t->tokens || (!t->positions && (sub->flags & KWK_SUB_POSITIONS)) ||
        (!t->valid && (sub->flags & KWK_SUB_VALID)))
        return kwk_fail(err, KWK_ENOMEM, "a submission of %zu tokens", n);
    rc = copy_in(session, at, n * 4, t->tokens, err);
    at += n * 4;
    if (rc == KWK_OK && t->positions) {
        rc = copy_in(session, at, n * 4, t->positions, err);
        at += n * 4;
    }
    if (rc == KWK_OK && t->valid)
        rc = copy_in(session, at, n, t->valid, err);
    return rc;
}

static int check_tokens(kwkd_task *t, kwk_error *err)
{
    const int vocab = t->cseq->model->info.vocab;

    for (int i = 0; i < t->n; i++) {
        if (t->tokens[i] < 0 || t->tokens[i] >= vocab)
            return kwk_fail(err, KWK_EINVAL, "token %d at place %d is outside 0 to %d",
                            t->tokens[i], i, vocab - 1);
        if (t->positions && t->positions[i] < 0)
            return kwk_fail(err, KWK_EINVAL, "position %d at place %d", t->positions[i], i);
        if (t->valid && t->valid[i] > 1)
            return kwk_fail(err, KWK_EINVAL, "valid is %d at place %d, not 0 or 1", t->valid[i], i);
    }
    return KWK_OK;
}

static int fill_task(const kwkd_session *session, const kwk_submission *sub, kwkd_task *t,
                     kwk_error *err)
{
    const uint64_t row_bytes = (uint64_t)t->cseq->model->info.vocab * sizeof(float);
    int rc;

    if (sub->n < 1 || sub->n > KWK_PROMPT_MAX)
        return kwk_fail(err, KWK_EINVAL, "submission of %u tokens, not from 1 to %d", sub->n,
                        KWK_PROMPT_MAX);
    t->n = (int)sub->n;
    t->tag = sub->tag;
    t->row = sub->row;
    t->n_logits = sub->flags & KWK_SUB_NO_LOGITS ? 0 : sub->flags & KWK_SUB_ALL_LOGITS ? t->n : 1;
    if (((uint64_t)sub->row + (uint64_t)t->n_logits) * row_bytes > session->logits_bytes &&
        t->n_logits)
        return kwk_fail(err, KWK_EFULL, "%d rows of logits from row %u on; %llu rows fit",
                        t->n_logits, sub->row,
                        (unsigned long long)(session->logits_bytes / row_bytes));
    if (t->n_logits)
        t->logits = session->logits + (size_t)sub->row * (size_t)t->cseq->model->info.vocab;
    rc = copy_tokens(session, sub, t, err);
    return rc < 0 ? rc : check_tokens(t, err);
}

/* A submission becomes a task, or an error record. */
static int take(kwkd_scheduler *s, kwkd_session *session, const kwk_submission *sub, kwk_error *err)
{
    kwkd_task *t = calloc(1, sizeof *t);
    kwk_error bad = {0};
    int rc;

    if (!t)
        return kwk_fail(err, KWK_ENOMEM, "a submission");
    kwkd_count(&s->metrics->submissions, 1);
    t->tokens = t->few;
    t->session = session;
    t->cseq = find(session, sub->seq);
    if (!t->cseq)
        rc = kwk_fail(&bad, KWK_ENOENT, "sequence %llu is not open", (unsigned long long)sub->seq);
    else
        rc = fill_task(session, sub, t, &bad);
    if (rc == KWK_OK) {
        task_link(s, t);
        return KWK_OK;
    }
    task_free(t);
    session->engine.n_tasks++; // until its answer is in the ring
    answer_error(s, session, sub->tag, &bad);
    return KWK_OK;
}

int kwkd_forward_poll(kwkd_scheduler *s, kwkd_session *session, kwk_error *err)
{
    int rc = flush_answers(s, session, err), any = rc > 0;

    while (rc >= 0 && session->engine.n_tasks < KWKD_TASKS) {
        kwk_submission sub;
        rc = kwk_sub_take(&session->engine.sub_head, session->engine.ring.out, session->in, &sub,
                          err);
        if (rc <= 0)
            break;
        any = 1;
        rc = take(s, session, &sub, err);
    }
    return rc < 0 ? rc : any;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The sequence of a request, at rest; NULL: *err says why not. */
static kwkd_cseq *own_seq(kwkd_call *call, uint64_t id, kwk_error *err)
{
    kwkd_cseq *c = find(call->session, id);

    if (!c) {
        kwk_fail(err, KWK_ENOENT, "sequence %llu is not open", (unsigned long long)id);
        return NULL;
    }
    if (c->first) {
        call->retry_ms = 5;
        kwk_fail(err, KWK_EBUSY, "sequence %llu: a submission is in flight",
                 (unsigned long long)id);
        return NULL;
    }
    return c;
}

static int reply_seq(kwkd_call *call, const kwkd_cseq *c, kwk_error *err)
{
    kwk_map m;

    kwk_reply_begin(&m, &call->reply);
    kwk_map_uint(&m, "seq", c->id);
    kwk_map_int(&m, "length", kwk_seq_length(c->seq));
    kwk_map_int(&m, "vocab", c->model->info.vocab);
    kwk_map_int(&m, "max_ctx", c->model->info.max_ctx);
    return kwk_map_end(&m, err);
}

static int seq_open(kwkd_scheduler *s, kwkd_call *call, kwk_error *err)
{
    kwkd_cseq *c = NULL;
    int rc = cseq_new(&c, call->model, err);

    if (rc == KWK_OK)
        rc = kwk_seq_new(&c->seq, call->model->engine, err);
    if (rc == KWK_OK)
        rc = adopt(s, call->session, c, err);
    else
        cseq_free(c);
    return rc < 0 ? rc : reply_seq(call, c, err);
}

static int seq_fork(kwkd_scheduler *s, kwkd_call *call, kwk_error *err)
{
    const kwkd_cseq *from = own_seq(call, call->request.u.seq_fork.seq, err);
    kwkd_cseq *c = NULL;
    int rc = from ? cseq_new(&c, from->model, err) : err->code;

    if (rc < 0)
        return rc;
    rc = kwk_seq_fork(&c->seq, from->seq, err);
    c->positions = malloc((size_t)from->n_positions * sizeof *c->positions + 1);
    if (rc == KWK_OK && !c->positions)
        rc = kwk_fail(err, KWK_ENOMEM, "positions of %d slots", from->n_positions);
    if (rc < 0) {
        cseq_free(c);
        return rc;
    }
    if (from->n_positions)
        memcpy(c->positions, from->positions, (size_t)from->n_positions * sizeof *c->positions);
    c->n_positions = c->capacity = from->n_positions;
    rc = adopt(s, call->session, c, err);
    return rc < 0 ? rc : reply_seq(call, c, err);
}

static int reply_length(kwkd_call *call, int length, kwk_error *err)
{
    kwk_map m;

    kwk_reply_begin(&m, &call->reply);
    kwk_map_int(&m, "length", length);
    return kwk_map_end(&m, err);
}

static int seq_truncate(kwkd_scheduler *s, kwkd_call *call, kwk_error *err)
{
    const kwk_seq_req *req = &call->request.u.seq_truncate;
    kwkd_cseq *c = own_seq(call, req->seq, err);
    int rc = c ? kwk_seq_truncate(c->seq, req->length, err) : err->code;

    if (rc < 0)
        return rc;
    c->n_positions = req->length;
    return reply_length(call, req->length, err);
}

static int seq_close(kwkd_scheduler *s, kwkd_call *call, kwk_error *err)
{
    kwkd_cseq *c = own_seq(call, call->request.u.seq_close.seq, err);
    int length;

    if (!c)
        return err->code;
    length = kwk_seq_length(c->seq);
    remove_seq(s, call->session, c);
    return reply_length(call, length, err);
}

static int seq_export(kwkd_scheduler *s, kwkd_call *call, kwk_error *err)
{
    const kwk_seq_req *req = &call->request.u.seq_export;
    kwkd_session *session = call->session;
    const kwk_model_info *info;
    uint64_t row_bytes, floats, at;
    const kwkd_cseq *c = own_seq(call, req->seq, err);
    kwk_map m;
    int length, rc;

    if (!c)
        return err->code;
    info = &c->model->info;
    length = kwk_seq_length(c->seq);
    row_bytes = (uint64_t)info->vocab * sizeof(float);
    floats = (uint64_t)info->n_kv_heads * (uint64_t)length * (uint64_t)info->head_dim;
    at = (uint64_t)req->row * (uint64_t)info->vocab;
    if (req->layer < 0 || req->layer >= info->n_layers)
        return kwk_fail(err, KWK_EINVAL, "layer is %d, not from 0 to %d", req->layer,
                        info->n_layers - 1);
    if ((at + 2 * floats) * sizeof(float) > session->logits_bytes)
        return kwk_fail(err, KWK_EFULL, "%llu bytes from row %u on; the logits area has %llu",
                        (unsigned long long)(2 * floats * sizeof(float)), req->row,
                        (unsigned long long)session->logits_bytes);
    if (length) {
        rc = kwk_seq_export_kv(c->seq, req->layer, session->logits + at,
                               session->logits + at + floats, err);
        if (rc < 0)
            return rc;
    }
    kwk_reply_begin(&m, &call->reply);
    kwk_map_int(&m, "length", length);
    kwk_map_int(&m, "n_kv_heads", info->n_kv_heads);
    kwk_map_int(&m, "head_dim", info->head_dim);
    kwk_map_uint(&m, "rows", (2 * floats * sizeof(float) + row_bytes - 1) / row_bytes);
    return kwk_map_end(&m, err);
}

/* A task whose answer is the call's reply. */
static int forward(kwkd_scheduler *s, kwkd_call *call, kwk_error *err)
{
    const kwk_forward_req *req = &call->request.u.forward;
    kwkd_cseq *c = own_seq(call, req->seq, err);
    kwkd_task *t;
    int rc;

    if (!c)
        return err->code;
    if (req->n_tokens < 1 || req->n_tokens > KWK_PROMPT_MAX)
        return kwk_fail(err, KWK_EINVAL, "tokens: %d of them, not from 1 to %d", req->n_tokens,
                        KWK_PROMPT_MAX);
    if (req->positions && req->n_positions != req->n_tokens)
        return kwk_fail(err, KWK_EINVAL, "positions: %d of them for %d tokens", req->n_positions,
                        req->n_tokens);
    if ((size_t)c->model->info.vocab * sizeof(float) > KWK_MSG_MAX - 256)
        return kwk_fail(err, KWK_EFULL,
                        "logits of %d tokens do not fit a message; use the session's ring",
                        c->model->info.vocab);
    if (call->session->engine.n_tasks >= KWKD_TASKS) {
        call->retry_ms = 50;
        return kwk_fail(err, KWK_EBUSY, "%d submissions are in flight", KWKD_TASKS);
    }
    t = calloc(1, sizeof *t);
    if (!t)
        return kwk_fail(err, KWK_ENOMEM, "a submission");
    t->session = call->session;
    t->cseq = c;
    t->call = call;
    t->n = req->n_tokens;
    t->n_logits = 1;
    t->tokens = malloc((size_t)t->n * sizeof *t->tokens);
    t->positions = req->positions ? malloc((size_t)t->n * sizeof *t->positions) : NULL;
    t->own_logits = t->logits = malloc((size_t)c->model->info.vocab * sizeof *t->logits);
    if (!t->tokens || !t->logits || (req->positions && !t->positions)) {
        task_free(t);
        return kwk_fail(err, KWK_ENOMEM, "a submission of %d tokens", req->n_tokens);
    }
    memcpy(t->tokens, req->tokens, (size_t)t->n * sizeof *t->tokens);
    if (t->positions)
        memcpy(t->positions, req->positions, (size_t)t->n * sizeof *t->positions);
    rc = check_tokens(t, err);
    if (rc < 0) {
        task_free(t);
        return rc;
    }
    task_link(s, t);
    return KWKD_LATER;
}

void kwkd_forward_call(kwkd_scheduler *s, kwkd_call *call)
{
    kwk_error err = {0};
    int rc;

    if (atomic_load(&call->session->dead)) {
        rc = kwk_fail(&err, KWK_ECLOSED, "the session has ended");
        kwkd_call_finish(call, rc, &err);
        return;
    }
    switch (call->request.op) {
    case KWK_OP_seq_open:
        rc = seq_open(s, call, &err);
        break;
    case KWK_OP_seq_fork:
        rc = seq_fork(s, call, &err);
        break;
    case KWK_OP_seq_truncate:
        rc = seq_truncate(s, call, &err);
        break;
    case KWK_OP_seq_close:
        rc = seq_close(s, call, &err);
        break;
    case KWK_OP_seq_export:
        rc = seq_export(s, call, &err);
        break;
    case KWK_OP_forward:
        rc = forward(s, call, &err);
        break;
    default:
        rc = kwk_fail(&err, KWK_EPROTO, "request %d is not about sequences", call->request.op);
    }
    if (rc != KWKD_LATER)
        kwkd_call_finish(call, rc, &err);
}

void kwkd_forward_drop(kwkd_scheduler *s, kwkd_session *session)
{
    kwk_error err = {0};

    kwk_fail(&err, KWK_ECLOSED, "the session has ended");
    for (kwkd_cseq *c = session->engine.seqs; c; c = session->engine.seqs) {
        while (c->first) {
            kwkd_task *t = c->first;
            task_unlink(t);
            if (t->call)
                kwkd_call_finish(t->call, err.code, &err);
            task_free(t);
        }
        session->engine.seqs = c->next;
        cseq_free(c);
    }
    if (session->engine.n_answers)
        s->n_unanswered--;
    session->engine.n_seqs = session->engine.n_tasks = session->engine.n_answers = 0;
    free(session->engine.answers);
    session->engine.answers = NULL;
}
