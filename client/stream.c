/* SPDX-License-Identifier: Apache-2.0
 *
 * Generations: starting, the queue between ring and reader, events, cancelling. A stream holds a slot
 * of the session until its end record arrived, even when its owner is gone before.
 */
#include "client/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(kwk_client_bias) == sizeof(kwk_bias) &&
                   offsetof(kwk_client_bias, bias) == offsetof(kwk_bias, bias),
               "biases are passed on as they are");
_Static_assert(sizeof(kwk_event_logprob) == 8 && KWK_LOGPROBS_MAX * 8 == KWK_RECORD_PAYLOAD,
               "alternatives as they lie in a record");

static kwk_in_stream *in_slot(const kwk_client *c, int slot)
{
    return (kwk_in_stream *)((uint8_t *)c->in + KWK_IN_STREAMS_AT) + slot;
}

void kwk_stream_destroy(kwk_stream *s)
{
    free(s->queue);
    free(s);
}

/* Remove from the client's list and free; lock held. */
static void forget(kwk_stream *s)
{
    kwk_client *c = s->client;

    if (s->slot >= 0)
        c->slots[s->slot] = NULL;
    if (s->prev)
        s->prev->next = s->next;
    else
        c->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    kwk_stream_destroy(s);
}

/* ---- the queue --------------------------------------------------------------------------------- */

static int reserve(kwk_stream *s)
{
    const uint32_t capacity = s->capacity ? s->capacity * 2 : 16;
    kwk_record *queue;

    if (s->count < s->capacity)
        return 0;
    queue = malloc(capacity * sizeof *queue);
    if (!queue)
        return -1;
    for (uint32_t i = 0; i < s->count; i++)
        queue[i] = s->queue[(s->first + i) & (s->capacity - 1)];
    free(s->queue);
    s->queue = queue;
    s->capacity = capacity;
    s->first = 0;
    return 0;
}

static void publish_consumed(kwk_stream *s, uint64_t n)
{
    s->consumed += n;
    if (s->slot >= 0) // afterwards the slot may be another stream's
        atomic_store_explicit(&in_slot(s->client, s->slot)->consumed, s->consumed,
                              memory_order_release);
}

void kwk_stream_push(kwk_client *c, int slot, const kwk_record *rec)
{
    kwk_stream *s = c->slots[slot];
    const int ends = rec->type == KWK_REC_DONE || rec->type == KWK_REC_ERROR;

    if (s->orphan) {
        publish_consumed(s, 1);
        if (ends)
            forget(s);
        return;
    }
    if (s->count > c->ring.n_slots + KWK_QUEUE_SLACK) {
        kwk_client_die(c, KWK_EPROTO, "kwkerd sends more than the stream's credit");
        return;
    }
    if (reserve(s) < 0) {
        kwk_client_die(c, KWK_ENOMEM, "out of memory for records");
        return;
    }
    s->queue[(s->first + s->count++) & (s->capacity - 1)] = *rec;
    if (ends) {
        c->slots[slot] = NULL;
        s->slot = -1;
    }
}

static const kwk_record *peek(const kwk_stream *s, uint32_t i)
{
    return i < s->count ? &s->queue[(s->first + i) & (s->capacity - 1)] : NULL;
}

static void drop(kwk_stream *s, uint32_t n)
{
    s->first = (s->first + n) & (s->capacity - 1);
    s->count -= n;
    publish_consumed(s, n);
}

/* ---- events ------------------------------------------------------------------------------------ */

static void token_event(kwk_stream *s, kwk_event *e, const kwk_record *rec,
                        const kwk_record *logprobs)
{
    e->type = KWK_EVENT_TOKEN;
    e->token = rec->token;
    e->logprob = rec->logprob;
    e->n_text = kwk_text_add(&s->text, rec->payload, rec->n_bytes);
    e->text = s->text.out;
    if (logprobs) {
        e->n_top = logprobs->n_bytes / (int)sizeof *s->top;
        memcpy(s->top, logprobs->payload, (size_t)e->n_top * sizeof *s->top);
        e->top = s->top;
    }
}

static const char *finish_name(int32_t finish)
{
    switch (finish) {
    case KWK_FINISH_EOS:
        return "eos";
    case KWK_FINISH_LENGTH:
        return "length";
    case KWK_FINISH_CANCEL:
        return "cancel";
    case KWK_FINISH_SLOW:
        return "slow_client";
    case KWK_FINISH_SHUTDOWN:
        return "shutdown";
    }
    return "unknown";
}

static int done_event(kwk_stream *s, kwk_event *e, const kwk_record *rec, kwk_error *err)
{
    kwk_done done;

    s->over = 1;
    if (rec->n_bytes < sizeof done)
        return kwk_fail(err, KWK_EPROTO, "end record of %u bytes", rec->n_bytes);
    memcpy(&done, rec->payload, sizeof done);
    e->type = KWK_EVENT_DONE;
    e->finish_reason = finish_name(rec->token);
    e->prompt_tokens = done.prompt_tokens;
    e->new_tokens = done.new_tokens;
    e->cached_tokens = done.cached_tokens;
    e->queue_us = done.queue_us;
    e->prefill_us = done.prefill_us;
    e->decode_us = done.decode_us;
    return 1;
}

/* Make an event of what is queued: 1, 0 nothing complete is there, or the error that ends it. */
static int next_event(kwk_stream *s, kwk_event *e, kwk_error *err)
{
    const kwk_record *rec;

    while ((rec = peek(s, 0)) != NULL) {
        const kwk_record first = *rec, *second;

        memset(e, 0, sizeof *e);
        switch (first.type) {
        case KWK_REC_TOKEN:
            second = s->n_logprobs ? peek(s, 1) : NULL;
            if (s->n_logprobs && !second && s->slot >= 0)
                return 0; // its alternatives follow at once
            if (second && second->type != KWK_REC_LOGPROBS)
                second = NULL;
            token_event(s, e, &first, second);
            drop(s, second ? 2 : 1);
            return 1;
        case KWK_REC_TEXT:
            e->type = KWK_EVENT_TEXT;
            e->n_text = kwk_text_add(&s->text, first.payload, first.n_bytes);
            e->text = s->text.out;
            drop(s, 1);
            if (e->n_text)
                return 1;
            break;
        case KWK_REC_DONE:
            e->type = KWK_EVENT_TEXT;
            e->n_text = kwk_text_end(&s->text);
            e->text = s->text.out;
            if (e->n_text)
                return 1; // the record stays for the next call
            drop(s, 1);
            return done_event(s, e, &first, err);
        case KWK_REC_ERROR:
            s->over = 1;
            drop(s, 1);
            return kwk_fail(err, first.token < 0 ? first.token : KWK_EPROTO, "%.*s",
                            (int)first.n_bytes, first.payload);
        default: // progress, and what later versions add
            drop(s, 1);
        }
    }
    return 0;
}

int kwk_stream_next(kwk_stream *s, kwk_event *event, int timeout_ms, kwk_error *err)
{
    const int64_t deadline = timeout_ms < 0 ? INT64_MAX : kwk_now_ms() + timeout_ms;
    kwk_client *c;
    kwk_event e;
    int rc;

    if (!s || !event)
        return kwk_fail(err, KWK_EINVAL, "%s is NULL", s ? "event" : "stream");
    c = s->client;
    rc = kwk_client_check(c, err);
    if (rc < 0)
        return rc;
    if (s->over)
        return kwk_fail(err, KWK_EINVAL, "the stream has ended");

    pthread_mutex_lock(&c->lock);
    for (;;) {
        rc = next_event(s, &e, err);
        if (rc != 0)
            break;
        if (kwk_pump(c)) {
            pthread_cond_broadcast(&c->changed);
            continue;
        }
        rc = kwk_client_dead(c, err);
        if (rc < 0) {
            s->over = 1;
            break;
        }
        if (kwk_now_ms() < deadline) {
            kwk_pump_wait(c, deadline);
        } else if (kwk_door_is_closed(c)) {
            (void)kwk_door_read(c); // notes the death; what came before is seen first
        } else {
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (rc == 1)
        *event = e;
    return rc;
}

/* ---- starting and ending ----------------------------------------------------------------------- */

/* A new stream in a free slot, known to the pump before the daemon knows it. */
static int new_stream(kwk_stream **out, kwk_client *c, const kwk_generate *g, kwk_error *err)
{
    kwk_stream *s = calloc(1, sizeof *s);
    int rc;

    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "out of memory for a stream");
    pthread_mutex_lock(&c->lock);
    (void)kwk_pump(c); // ends of streams free slots
    rc = kwk_client_dead(c, err);
    for (int i = 0; rc == KWK_OK && c->slots[c->next_id % KWK_STREAMS]; i++, c->next_id++)
        if (i == KWK_STREAMS)
            rc = kwk_fail(err, KWK_EBUSY, "%d streams of this session run already", KWK_STREAMS);
    if (rc == KWK_OK) {
        kwk_in_stream *in;
        s->client = c;
        s->id = c->next_id++ & ~KWK_TAG_BIT;
        s->slot = (int)(s->id % KWK_STREAMS);
        s->n_logprobs = g->n_logprobs;
        c->slots[s->slot] = s;
        s->next = c->streams;
        if (s->next)
            s->next->prev = s;
        c->streams = s;
        in = in_slot(c, s->slot);
        atomic_store(&in->consumed, 0);
        atomic_store(&in->cancel, 0);
    }
    pthread_mutex_unlock(&c->lock);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *out = s;
    return KWK_OK;
}

/* Tell the daemon through the in area; lock held. */
static void set_cancel(kwk_stream *s)
{
    kwk_client *c = s->client;

    if (s->slot < 0)
        return;
    atomic_store(&in_slot(c, s->slot)->cancel, 1);
    if (atomic_load(&c->ring.out->sub_sleeping))
        kwk_door_ring(c);
}

/* Long prompts lie in the data area while the request is under way. */
static int send_generate(kwk_client *c, kwk_request *r, const kwk_generate *g, kwk_tree **reply,
                         int *answered, kwk_error *err)
{
    kwk_generate_req *q = &r->u.generate;
    int rc;

    if (g->n_prompt <= KWK_PROMPT_INLINE) {
        q->prompt = g->prompt;
        q->n_prompt = g->n_prompt;
        return kwk_client_call(c, r, c->timeout_ms, reply, answered, err);
    }
    *answered = 1;
    if (g->n_prompt > KWK_PROMPT_MAX || (uint32_t)g->n_prompt > c->data_bytes / 4)
        return kwk_fail(err, KWK_EINVAL, "prompt: %d items, %d allowed", g->n_prompt,
                        c->data_bytes / 4 < KWK_PROMPT_MAX ? (int)(c->data_bytes / 4)
                                                           : KWK_PROMPT_MAX);
    pthread_mutex_lock(&c->area_lock);
    memcpy((uint8_t *)c->in + KWK_IN_DATA_AT, g->prompt, (size_t)g->n_prompt * 4);
    q->has_span = 1;
    q->span_n = (uint32_t)g->n_prompt;
    rc = kwk_client_call(c, r, c->timeout_ms, reply, answered, err);
    pthread_mutex_unlock(&c->area_lock);
    return rc;
}

int kwk_client_generate(kwk_stream **out, kwk_client *c, const kwk_generate *generate,
                        kwk_error *err)
{
    kwk_generate g = KWK_GENERATE_INIT;
    kwk_tree *reply = NULL;
    kwk_stream *s = NULL;
    kwk_request r;
    int answered = 1;
    int rc = kwk_client_check(c, err);

    if (rc == KWK_OK && !out)
        rc = kwk_fail(err, KWK_EINVAL, "out is NULL");
    if (rc == KWK_OK)
        rc = kwk_copy_options(&g, sizeof g, generate, "kwk_generate", err);
    if (rc == KWK_OK && (!g.prompt || g.n_prompt < 1))
        rc = kwk_fail(err, KWK_EINVAL, "prompt: empty");
    if (rc == KWK_OK && (g.n_logprobs < 0 || g.n_logprobs > KWK_LOGPROBS_MAX))
        rc = kwk_fail(err, KWK_EINVAL, "n_logprobs: %d is outside 0 to %d", g.n_logprobs,
                      KWK_LOGPROBS_MAX);
    if (rc == KWK_OK)
        rc = new_stream(&s, c, &g, err);
    if (rc < 0)
        return rc;

    r = kwk_client_request(c, KWK_OP_generate);
    r.u.generate = (kwk_generate_req){
        .model = g.model,
        .tenant = g.tenant,
        .stream = s->id,
        .max_new_tokens = g.max_new_tokens,
        .text = g.text != 0,
        .do_sample = g.do_sample != 0,
        .temperature = g.temperature,
        .top_p = g.top_p,
        .min_p = g.min_p,
        .repetition_penalty = g.repetition_penalty,
        .top_k = g.top_k,
        .min_new_tokens = g.min_new_tokens,
        .seed = g.seed,
        .has_seed = g.has_seed != 0,
        .n_logprobs = g.n_logprobs,
        .logprobs = g.logprobs || g.n_logprobs,
        .ignore_eos = g.ignore_eos != 0,
        .eos = g.eos,
        .n_eos = g.n_eos,
        .bias = (const kwk_bias *)g.bias,
        .n_bias = g.n_bias,
    };
    rc = send_generate(c, &r, &g, &reply, &answered, err);
    if (rc < 0) {
        pthread_mutex_lock(&c->lock);
        if (answered) {
            forget(s);
        } else { // it may run: its slot is free when its end comes
            s->orphan = 1;
            set_cancel(s);
        }
        pthread_mutex_unlock(&c->lock);
        return rc;
    }
    s->seed = (uint64_t)kwk_tree_int(reply, "seed", (int64_t)g.seed);
    kwk_tree_free(reply);
    *out = s;
    return KWK_OK;
}

uint64_t kwk_stream_seed(const kwk_stream *s)
{
    return s ? s->seed : 0;
}

int kwk_stream_cancel(kwk_stream *s, kwk_error *err)
{
    int rc;

    if (!s)
        return kwk_fail(err, KWK_EINVAL, "stream is NULL");
    rc = kwk_client_check(s->client, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->client->lock);
    set_cancel(s);
    pthread_mutex_unlock(&s->client->lock);
    return KWK_OK;
}

void kwk_stream_free(kwk_stream *s)
{
    kwk_client *c;

    if (!s || kwk_client_check(s->client, NULL) < 0)
        return; // in a forked child: freed with the client
    c = s->client;
    pthread_mutex_lock(&c->lock);
    if (s->slot >= 0 && !c->death.code) {
        set_cancel(s);
        s->orphan = 1;
        publish_consumed(s, s->count);
        s->count = 0;
        (void)kwk_pump(c);
    } else {
        forget(s);
    }
    pthread_mutex_unlock(&c->lock);
}

int kwk_client_generate_all(kwk_client *c, const kwk_generate *generate, int32_t *tokens,
                            int max_tokens, kwk_error *err)
{
    kwk_generate g = KWK_GENERATE_INIT;
    kwk_stream *s = NULL;
    kwk_event e;
    int n = 0, rc;

    if (max_tokens < 0 || (max_tokens && !tokens))
        return kwk_fail(err, KWK_EINVAL, "tokens: no room for %d", max_tokens);
    rc = kwk_copy_options(&g, sizeof g, generate, "kwk_generate", err);
    if (rc < 0)
        return rc;
    if (g.max_new_tokens < 0 || g.max_new_tokens > max_tokens)
        g.max_new_tokens = max_tokens;
    rc = kwk_client_generate(&s, c, &g, err);
    if (rc < 0)
        return rc;
    while ((rc = kwk_stream_next(s, &e, -1, err)) == 1 && e.type != KWK_EVENT_DONE)
        if (e.type == KWK_EVENT_TOKEN && n < max_tokens)
            tokens[n++] = e.token;
    if (rc == 1 && strcmp(e.finish_reason, "slow_client") == 0)
        rc = kwk_fail(err, KWK_ECANCELED, "kwkerd ended the stream: slow_client");
    else if (rc == 1 && strcmp(e.finish_reason, "shutdown") == 0)
        rc = kwk_fail(err, KWK_ECLOSED, "kwkerd ended the stream: shutdown");
    kwk_stream_free(s);
    return rc < 0 ? rc : n;
}
