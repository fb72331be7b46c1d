/* SPDX-License-Identifier: Apache-2.0
 *
 * Batched forward through the in ring. Each wave submits the next piece of every item that still has
 * tokens, then waits for all answers: pieces of one sequence are never in flight together, and the data
 * area is free again after every wave. Logits rows are laid out once for the whole call.
 */
#include "client/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 512,       // tokens of a submission: bounds the data area's use and the time of a wave
    ITEMS_MAX = 65536, // of a call
};

typedef struct item {
    kwk_forward *f;
    int length;   // of the sequence before the call
    int done;     // tokens run
    int n;        // tokens of the piece in flight; 0: none
    uint32_t row; // first row of its logits
    uint32_t answer;
} item;

typedef struct run {
    kwk_client *c;
    item *items;
    int n_items;
    uint32_t n_answers; // most submissions of a wave
} run;

static int n_rows(const kwk_forward *f)
{
    return f->all_logits ? f->n_tokens : 1;
}

static int check_items(kwk_client *c, const kwk_forward *items, int n_items, uint64_t number,
                       kwk_error *err)
{
    for (int i = 0; i < n_items; i++) {
        const kwk_forward *f = &items[i];
        if (!f->seq || f->seq->client != c)
            return kwk_fail(err, KWK_EINVAL, "item %d: sequence of another client", i);
        if (f->seq->broken)
            return kwk_fail(err, KWK_EINVAL, "item %d: sequence of unknown state: free it", i);
        if (f->seq->in_forward == number)
            return kwk_fail(err, KWK_EINVAL, "item %d: its sequence is in an item before", i);
        f->seq->in_forward = number;
        if (!f->tokens || f->n_tokens < 1)
            return kwk_fail(err, KWK_EINVAL, "item %d: no tokens", i);
        if (f->n_tokens > f->seq->max_ctx - f->seq->length)
            return kwk_fail(err, KWK_EFULL, "item %d: %d tokens after %d in a context of %d", i,
                            f->n_tokens, f->seq->length, f->seq->max_ctx);
    }
    return KWK_OK;
}

/* Rows of the logits area for every item; a row is as wide as the sequence's vocabulary. */
static int place_logits(run *r, kwk_error *err)
{
    uint64_t end = 0;

    for (int i = 0; i < r->n_items; i++) {
        const uint64_t width = (uint64_t)r->items[i].f->seq->vocab * sizeof(float);
        const uint64_t row = (end + width - 1) / width;
        end = (row + (uint64_t)n_rows(r->items[i].f)) * width;
        if (end > r->c->logits_size || row > UINT32_MAX)
            return kwk_fail(err, KWK_EFULL,
                            "logits of %d items need more than the session's %zu bytes",
                            r->n_items, r->c->logits_size);
        r->items[i].row = (uint32_t)row;
    }
    return KWK_OK;
}

static uint32_t piece_bytes(const kwk_forward *f, int n)
{
    return (uint32_t)n * (f->positions ? 8u : 4u) + (f->valid ? ((uint32_t)n + 3) / 4 * 4 : 0);
}

/* Copy a piece's arrays to the data area and describe them. */
static kwk_submission write_piece(const run *r, const item *it, uint32_t offset)
{
    const kwk_forward *f = it->f;
    uint8_t *p = (uint8_t *)r->c->in + KWK_IN_DATA_AT + offset;
    const size_t n = (size_t)it->n;
    kwk_submission sub = {
        .seq = f->seq->id,
        .tag = r->c->first_tag + it->answer,
        .n = (uint32_t)it->n,
        .offset = offset,
        .row = it->row,
    };

    memcpy(p, f->tokens + it->done, n * 4);
    p += n * 4;
    if (f->positions) {
        sub.flags |= KWK_SUB_POSITIONS;
        memcpy(p, f->positions + it->done, n * 4);
        p += n * 4;
    }
    if (f->valid) {
        sub.flags |= KWK_SUB_VALID;
        memcpy(p, f->valid + it->done, n);
    }
    if (f->all_logits) {
        sub.flags |= KWK_SUB_ALL_LOGITS;
        sub.row += (uint32_t)it->done;
    } else if (it->done + it->n < f->n_tokens) {
        sub.flags |= KWK_SUB_NO_LOGITS;
    }
    return sub;
}

/* Submit a piece of each unfinished item, as many as fit. Returns their number, or an error; what was
 * submitted before the error is counted in n_unanswered. */
static int submit_wave(run *r, kwk_error *err)
{
    kwk_client *c = r->c;
    uint32_t offset = 0, n = 0;
    int ring = 0, rc = KWK_OK;

    pthread_mutex_lock(&c->lock);
    c->next_tag += c->n_answers;
    c->first_tag = KWK_TAG_BIT | (c->next_tag & 0x3fffffffu);
    c->n_answers = r->n_answers;
    memset(c->answers, 0, r->n_answers * sizeof *c->answers);
    pthread_mutex_unlock(&c->lock);

    for (int i = 0; i < r->n_items && n < r->n_answers && rc >= 0; i++) {
        item *it = &r->items[i];
        kwk_submission sub;
        const int left = it->f->n_tokens - it->done;

        it->n = 0;
        if (!left)
            continue;
        it->n = left < PIECE ? left : PIECE;
        while (it->n > 1 && piece_bytes(it->f, it->n) > c->data_bytes - offset)
            it->n /= 2;
        if (piece_bytes(it->f, it->n) > c->data_bytes - offset) {
            it->n = 0;
            break; // the next wave
        }
        it->answer = n++;
        sub = write_piece(r, it, offset);
        offset += piece_bytes(it->f, it->n);
        pthread_mutex_lock(&c->lock);
        rc = kwk_sub_put(&c->sub_tail, c->ring.out, c->in, &sub, err);
        if (rc >= 0)
            c->n_unanswered++;
        else
            it->n = 0;
        pthread_mutex_unlock(&c->lock);
        ring |= rc == 1;
    }
    if (ring)
        kwk_door_ring(c);
    if (rc >= 0 && n == 0)
        return kwk_fail(err, KWK_EFULL, "data area of %u bytes holds no token", c->data_bytes);
    return rc < 0 ? rc : (int)n;
}

/* Wait until nothing is in flight; the time counts from the last answer. */
static int wait_answers(kwk_client *c, kwk_error *err)
{
    int64_t deadline = kwk_now_ms() + c->timeout_ms;
    uint64_t seen = UINT64_MAX;
    int rc = KWK_OK;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        (void)kwk_pump(c);
        if (!c->n_unanswered)
            break;
        rc = kwk_client_dead(c, err);
        if (rc < 0)
            break;
        if (seen != c->n_answered) {
            seen = c->n_answered;
            deadline = kwk_now_ms() + c->timeout_ms;
        } else if (kwk_now_ms() >= deadline) {
            rc = kwk_fail(err, KWK_ETIMEOUT, "%u submissions are not answered", c->n_unanswered);
            break;
        }
        kwk_pump_wait(c, deadline);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Take the answers of a wave: the first error, after all good ones are counted. */
static int take_wave(run *r, kwk_error *err)
{
    int rc = KWK_OK;

    for (int i = 0; i < r->n_items; i++) {
        item *it = &r->items[i];
        const kwk_answer *a = &r->c->answers[it->answer];
        const int skipped = !it->f->all_logits && it->done + it->n < it->f->n_tokens;
        const uint32_t row = it->row + (it->f->all_logits ? (uint32_t)it->done : 0);
        const uint32_t rows = skipped ? 0 : it->f->all_logits ? (uint32_t)it->n : 1;

        if (!it->n)
            continue;
        if (a->state < 0) {
            if (rc == KWK_OK)
                rc = kwk_fail(err, a->state, "%s", a->msg);
        } else if (a->state == 0 || (rows && (a->row != row || a->n_rows != rows))) {
            if (rc == KWK_OK)
                rc = kwk_fail(err, KWK_EPROTO, "logits of item %d in row %u instead of %u", i,
                              a->row, row);
            it->f->seq->broken = 1;
        } else {
            it->done += it->n;
        }
        it->n = 0;
    }
    return rc;
}

/* After an error: sequences as they were. */
static void roll_back(run *r)
{
    kwk_request q = kwk_client_request(r->c, KWK_OP_seq_truncate);

    for (int i = 0; i < r->n_items; i++) {
        item *it = &r->items[i];
        kwk_client_seq *s = it->f->seq;

        if (it->n)
            s->broken = 1; // in flight: it may still change
        if (s->broken || !it->done)
            continue;
        q.u.seq_truncate.seq = s->id;
        q.u.seq_truncate.length = it->length;
        if (kwk_client_call(r->c, &q, r->c->timeout_ms, NULL, NULL, NULL) < 0)
            s->broken = 1;
    }
}

static int run_items(run *r, kwk_error *err)
{
    int rc = wait_answers(r->c, err); // what an earlier call left behind uses the same areas

    if (rc < 0)
        return rc;
    for (;;) {
        int left = 0, waited;
        kwk_error why;

        for (int i = 0; i < r->n_items; i++)
            left |= r->items[i].f->n_tokens - r->items[i].done;
        if (!left)
            return KWK_OK;
        rc = submit_wave(r, err);
        waited = wait_answers(r->c, rc < 0 ? &why : err);
        if (waited < 0)
            return rc < 0 ? rc : waited;
        waited = take_wave(r, rc < 0 ? &why : err);
        if (rc < 0 || waited < 0)
            return rc < 0 ? rc : waited;
    }
}

int kwk_client_forward(kwk_client *c, kwk_forward *items, int n_items, kwk_error *err)
{
    run r = {.c = c, .n_items = n_items};
    int rc = kwk_client_check(c, err);

    if (rc == KWK_OK && (!items || n_items < 1 || n_items > ITEMS_MAX))
        rc = kwk_fail(err, KWK_EINVAL, "n_items: %d is outside 1 to %d", n_items, ITEMS_MAX);
    if (rc < 0)
        return rc;
    r.n_answers = n_items < KWK_SUB_SLOTS ? (uint32_t)n_items : KWK_SUB_SLOTS;
    r.items = calloc((size_t)n_items, sizeof *r.items);
    if (!r.items)
        return kwk_fail(err, KWK_ENOMEM, "out of memory for %d items", n_items);

    pthread_mutex_lock(&c->area_lock);
    if (!c->answers)
        c->answers = calloc(KWK_SUB_SLOTS, sizeof *c->answers);
    rc = c->answers ? check_items(c, items, n_items, ++c->n_forwards, err)
                    : kwk_fail(err, KWK_ENOMEM, "out of memory for %d items", n_items);
    for (int i = 0; rc == KWK_OK && i < n_items; i++)
        r.items[i] = (item){.f = &items[i], .length = items[i].seq->length};
    if (rc == KWK_OK)
        rc = place_logits(&r, err);
    if (rc == KWK_OK) {
        rc = run_items(&r, err);
        if (rc < 0)
            roll_back(&r);
    }
    if (rc == KWK_OK) {
        for (int i = 0; i < n_items; i++) {
            items[i].seq->length += items[i].n_tokens;
            items[i].logits = (const float *)c->logits +
                              (size_t)r.items[i].row * (size_t)items[i].seq->vocab;
        }
    }
    pthread_mutex_unlock(&c->area_lock);
    free(r.items);
    return rc;
}
