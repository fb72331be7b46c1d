/* SPDX-License-Identifier: Apache-2.0
 *
 * A generation from its request to its last record. kwkd_job_new() runs on control's threads, the
 * rest on the engine thread. Once a job runs, its buffers have grown to what a token needs, so a
 * token allocates nothing but, now and then, room for more ids.
 */
#include "daemon/job.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "proto/buf.h"

enum { LAST_RECORDS = 2 }; // held back text, and the end: there is always room for them

/* Make room for n more records and the last ones. Reuses the outbox as soon as it is empty. */
static int reserve(kwkd_job *j, int n)
{
    kwk_record *grown;
    int capacity;

    if (j->i_out == j->n_out)
        j->i_out = j->n_out = 0;
    if (j->n_out + n + LAST_RECORDS <= j->out_capacity)
        return KWK_OK;
    capacity = 2 * (j->n_out + n + LAST_RECORDS);
    grown = realloc(j->outbox, (size_t)capacity * sizeof *grown);
    if (!grown)
        return KWK_ENOMEM;
    j->outbox = grown;
    j->out_capacity = capacity;
    return KWK_OK;
}

/* ---- the request
 * ----------------------------------------------------------------------------------- */

/* The prompt, copied out of the message or out of the client's memory, where it may change under
 * us: what is checked is the copy. */
static int copy_prompt(kwkd_job *j, kwkd_session *session, const kwk_generate_req *req,
                       kwk_error *err)
{
    const int64_t n = req->has_span ? (int64_t)req->span_n : req->n_prompt;

    if (req->has_span && req->prompt)
        return kwk_fail(err, KWK_EINVAL, "prompt and span are both given");
    if (req->has_span && !session)
        return kwk_fail(err, KWK_EINVAL, "span needs a session");
    if (n < 1)
        return kwk_fail(err, KWK_EINVAL, "prompt is empty");
    if (n > KWK_PROMPT_MAX)
        return kwk_fail(err, KWK_EINVAL, "prompt has %lld tokens, at most %d fit a request",
                        (long long)n, KWK_PROMPT_MAX);
    if (req->has_span &&
        (req->span_offset % 4 || (uint64_t)req->span_offset + (uint64_t)n * 4 > session->in_bytes))
        return kwk_fail(err, KWK_EINVAL, "span: %lld tokens at byte %u are outside the %u bytes",
                        (long long)n, req->span_offset, session->in_bytes);
    j->ids_capacity = (int)n + 64;
    j->ids = malloc((size_t)j->ids_capacity * sizeof *j->ids);
    if (!j->ids)
        return kwk_fail(err, KWK_ENOMEM, "a prompt of %lld tokens", (long long)n);
    if (req->has_span)
        memcpy(j->ids, (const uint8_t *)session->in + KWK_IN_DATA_AT + req->span_offset,
               (size_t)n * 4);
    else
        memcpy(j->ids, req->prompt, (size_t)n * 4);
    __asm__ volatile("" ::: "memory"); // the copy is what is looked at from here on
    j->n_ids = j->n_prompt = (int)n;
    return KWK_OK;
}

static int check_ids(const char *what, const int32_t *ids, int n, int vocab, kwk_error *err)
{
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return kwk_fail(err, KWK_EINVAL, "%s: id %d at place %d is outside 0 to %d", what,
                            ids[i], i, vocab - 1);
    return KWK_OK;
}

/* How many tokens may follow, and whether the prompt fits at all. */
static int check_length(kwkd_job *j, const kwk_generate_req *req, int inline_tokens, kwk_error *err)
{
    const kwkd_model *m = j->model;
    const int n = j->n_prompt, room = m->max_tokens - n;

    if (req->max_new_tokens < -1)
        return kwk_fail(err, KWK_EINVAL, "max_new_tokens is %d, must be -1 or more",
                        req->max_new_tokens);
    if (n > m->info.max_ctx || (n == m->info.max_ctx && req->max_new_tokens != 0))
        return kwk_fail(err, KWK_EINVAL,
                        "prompt has %d tokens, the model's context %d (new tokens included)", n,
                        m->info.max_ctx);
    if (room < (req->max_new_tokens != 0))
        return kwk_fail(err, KWK_EFULL,
                        "prompt of %d tokens needs %d KV blocks of 32, the pool has %llu", n,
                        (n + 32) / 32, (unsigned long long)m->info.kv_blocks);
    if (req->inline_reply && req->max_new_tokens > inline_tokens)
        return kwk_fail(err, KWK_EINVAL, "max_new_tokens is %d, at most %d fit an inline reply",
                        req->max_new_tokens, inline_tokens);
    j->max_new = req->max_new_tokens < 0 || req->max_new_tokens > room ? room : req->max_new_tokens;
    if (req->inline_reply && j->max_new > inline_tokens)
        j->max_new = inline_tokens;
    return KWK_OK;
}

static int copy_eos(kwkd_job *j, const kwk_generate_req *req, kwk_error *err)
{
    const kwk_model_info *info = &j->model->info;
    const int32_t *eos = req->eos ? req->eos : info->eos;
    const int n = req->ignore_eos ? 0 : req->eos ? req->n_eos : info->n_eos;
    int rc;

    if (!n)
        return KWK_OK;
    rc = check_ids("eos", eos, n, info->vocab, err);
    if (rc < 0)
        return rc;
    j->eos = malloc((size_t)n * sizeof *j->eos);
    if (!j->eos)
        return kwk_fail(err, KWK_ENOMEM, "%d end tokens", n);
    memcpy(j->eos, eos, (size_t)n * sizeof *j->eos);
    j->n_eos = n;
    return KWK_OK;
}

static int set_sampling(kwkd_job *j, const kwk_generate_req *req, kwk_error *err)
{
    kwk_sampling *s = &j->sampling;

    *s = (kwk_sampling)KWK_SAMPLING_INIT;
    if (req->do_sample) { // ignored when greedy, whatever they are
        s->do_sample = 1;
        s->temperature = req->temperature;
        s->top_k = req->top_k;
        s->top_p = req->top_p;
        s->min_p = req->min_p;
    }
    s->repetition_penalty = req->repetition_penalty;
    s->min_new_tokens = req->min_new_tokens;
    s->n_logprobs = req->n_logprobs;
    s->seed = req->seed;
    if (!req->has_seed) {
        if (getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
            return kwk_fail(err, KWK_EIO, "getrandom gave no seed");
        s->seed &= INT64_MAX; // positive in every language
    }
    s->eos = j->eos;
    s->n_eos = j->n_eos;
    if (req->n_logprobs < 0 || req->n_logprobs > KWK_LOGPROBS_MAX)
        return kwk_fail(err, KWK_EINVAL, "n_logprobs is %d, not from 0 to %d", req->n_logprobs,
                        KWK_LOGPROBS_MAX);
    if (req->n_bias) {
        j->bias = malloc((size_t)req->n_bias * sizeof *j->bias);
        if (!j->bias)
            return kwk_fail(err, KWK_ENOMEM, "%d entries of logit_bias", req->n_bias);
        for (int i = 0; i < req->n_bias; i++)
            j->bias[i] = (kwk_logit_bias){req->bias[i].id, req->bias[i].bias};
        s->bias = j->bias;
        s->n_bias = req->n_bias;
    }
    return kwk_sampling_check(s, j->model->info.vocab, err);
}

static int set_output(kwkd_job *j, kwkd_session *session, const kwk_generate_req *req,
                      kwk_error *err)
{
    int rc;

    j->want_text = req->text != 0;
    j->want_logprobs = req->logprobs || req->n_logprobs;
    if (j->want_text && !j->model->has_text)
        return kwk_fail(err, KWK_EUNSUPPORTED, "text: model '%s' has no tokenizer", j->model->name);
    if (j->want_text) {
        j->piece = malloc(kwkd_text_bound(j->model->max_token_bytes));
        if (!j->piece)
            return kwk_fail(err, KWK_ENOMEM, "text of a token");
    }
    if (req->inline_reply) {
        if (!j->want_logprobs)
            return KWK_OK;
        j->logprobs = malloc((size_t)j->max_new * sizeof *j->logprobs + 1);
        return j->logprobs ? KWK_OK : kwk_fail(err, KWK_ENOMEM, "%d logprobs", j->max_new);
    }
    if (req->credit < 0)
        return kwk_fail(err, KWK_EINVAL, "credit is %d, must be 0 or more", req->credit);
    j->credit = (int)session->out_slots;
    if (req->credit && req->credit < j->credit)
        j->credit = req->credit;
    rc = reserve(j, 1);
    if (rc < 0)
        return kwk_fail(err, rc, "records of a stream");
    rc = kwkd_session_take_stream(session, req->stream, err);
    if (rc < 0)
        return rc;
    j->stream = req->stream;
    j->session = kwkd_session_ref(session);
    return KWK_OK;
}

int kwkd_job_new(kwkd_job **out, kwkd_model *model, kwkd_session *session, uint32_t uid,
                 const kwk_generate_req *req, int inline_tokens, kwk_error *err)
{
    kwkd_job *j = calloc(1, sizeof *j);
    int rc;

    if (!j)
        return kwk_fail(err, KWK_ENOMEM, "a generation");
    j->model = kwkd_model_ref(model);
    j->uid = uid;
    j->submitted_us = kwkd_now_us();
    if (!req->inline_reply && !session) {
        rc = kwk_fail(err, KWK_EINVAL, "session is required, or inline: true");
        goto out;
    }
    j->tenant = strdup(req->tenant ? req->tenant : "");
    j->request_id = req->request_id ? strdup(req->request_id) : NULL;
    if (!j->tenant || (req->request_id && !j->request_id)) {
        rc = kwk_fail(err, KWK_ENOMEM, "a generation");
        goto out;
    }
    rc = copy_prompt(j, session, req, err);
    if (rc == KWK_OK)
        rc = check_ids("prompt", j->ids, j->n_prompt, model->info.vocab, err);
    if (rc == KWK_OK)
        rc = check_length(j, req, inline_tokens, err);
    if (rc == KWK_OK)
        rc = copy_eos(j, req, err);
    if (rc == KWK_OK)
        rc = set_sampling(j, req, err);
    if (rc == KWK_OK)
        rc = set_output(j, session, req, err); // last: it reserves the stream
out:
    if (rc < 0)
        kwkd_job_free(j);
    else
        *out = j;
    return rc;
}

void kwkd_job_free(kwkd_job *j)
{
    if (!j)
        return;
    assert(!j->n_calls);
    kwk_seq_free(j->seq);
    if (j->session)
        kwkd_session_free_stream(j->session, j->stream);
    kwkd_session_unref(j->session);
    kwkd_model_unref(j->model);
    free(j->request_id);
    free(j->tenant);
    free(j->bias);
    free(j->eos);
    free(j->ids);
    free(j->outbox);
    free(j->piece);
    free(j->logprobs);
    kwk_buf_fini(&j->all_text);
    free(j);
}

/* ---- records
 * ---------------------------------------------------------------------------------------- */

/* The next record of the outbox, zeroed; room for it was made. */
static kwk_record *new_record(kwkd_job *j, kwk_record_type type)
{
    kwk_record *r = &j->outbox[j->n_out++];

    assert(j->n_out <= j->out_capacity);
    memset(r, 0, sizeof *r);
    r->type = (uint16_t)type;
    r->stream = j->stream;
    return r;
}

static size_t fill_text(kwk_record *r, const uint8_t *text, size_t n)
{
    const size_t part = kwkd_text_cut(text, n, KWK_RECORD_PAYLOAD);

    memcpy(r->payload, text, part);
    r->n_bytes = (uint16_t)part;
    return part;
}

/* Text that did not fit the token's record. */
static void add_text(kwkd_job *j, const uint8_t *text, size_t n)
{
    while (n) {
        const size_t part = fill_text(new_record(j, KWK_REC_TEXT), text, n);
        text += part;
        n -= part;
    }
}

static int add_token(kwkd_job *j, int32_t token, float logprob, const uint8_t *text, size_t n)
{
    // a record's text is at most three bytes short of full, where a character would be cut
    const int n_text = (int)(n / (KWK_RECORD_PAYLOAD - 3)) + 1;
    kwk_record *r;
    size_t part;
    int rc = reserve(j, 2 + n_text);

    if (rc < 0)
        return rc;
    r = new_record(j, KWK_REC_TOKEN);
    r->token = token;
    r->logprob = logprob;
    part = fill_text(r, text, n);
    if (j->sampling.n_logprobs) {
        r = new_record(j, KWK_REC_LOGPROBS);
        r->token = token;
        r->n_bytes = (uint16_t)((size_t)j->sampling.n_logprobs * sizeof *j->top);
        memcpy(r->payload, j->top, r->n_bytes);
    }
    add_text(j, text + part, n - part);
    return KWK_OK;
}
_Static_assert(sizeof(kwk_logprob) * KWK_LOGPROBS_MAX <= KWK_RECORD_PAYLOAD,
               "logprobs fit a record");

/* ---- on the way
 * -------------------------------------------------------------------------------------- */

static int add_id(kwkd_job *j, int32_t token)
{
    if (j->n_ids == j->ids_capacity) {
        const int capacity = j->ids_capacity + j->ids_capacity / 2;
        int32_t *grown = realloc(j->ids, (size_t)capacity * sizeof *grown);
        if (!grown)
            return KWK_ENOMEM;
        j->ids = grown;
        j->ids_capacity = capacity;
    }
    j->ids[j->n_ids++] = token;
    return KWK_OK;
}

static int ends(const kwkd_job *j, int32_t token)
{
    for (int i = 0; i < j->n_eos; i++)
        if (j->eos[i] == token)
            return 1;
    return 0;
}

void kwkd_job_token(kwkd_job *j, int32_t token, float logprob, uint64_t now_us)
{
    const int is_end = ends(j, token);
    const uint8_t *bytes;
    size_t n = 0, n_piece = 0;
    int rc = add_id(j, token);

    if (!j->first_us)
        j->first_us = now_us;
    // the end token's own text ("</s>") is not the model's answer
    if (j->want_text && !is_end &&
        kwk_model_token_bytes(j->model->engine, token, &bytes, &n, NULL) == KWK_OK &&
        n <= j->model->max_token_bytes)
        n_piece = kwkd_text_push(&j->text, bytes, n, j->piece);
    if (rc == KWK_OK && j->session)
        rc = add_token(j, token, logprob, j->piece ? j->piece : (const uint8_t *)"", n_piece);
    if (rc == KWK_OK && !j->session) {
        if (j->logprobs)
            j->logprobs[kwkd_job_new_tokens(j) - 1] = logprob;
        if (n_piece && kwk_buf_write(&j->all_text, (const char *)j->piece, n_piece))
            rc = KWK_ENOMEM;
    }
    if (rc < 0) {
        kwk_error err = {0};
        kwk_fail(&err, rc, "%s after %d tokens", kwk_error_text(rc), kwkd_job_new_tokens(j));
        kwkd_job_fail(j, &err, now_us);
    } else if (is_end) {
        kwkd_job_finish(j, KWK_FINISH_EOS, now_us);
    } else if (kwkd_job_new_tokens(j) >= j->max_new) {
        kwkd_job_finish(j, KWK_FINISH_LENGTH, now_us);
    }
}

/* Progress may be missed: it goes straight to a ring that has room to spare, or not at all. */
void kwkd_job_progress(kwkd_job *j)
{
    kwk_record r = {.type = KWK_REC_PROGRESS,
                    .stream = j->stream,
                    .token = j->n_computed,
                    .aux = (uint32_t)j->n_prompt};

    if (!j->session || j->i_out < j->n_out || kwkd_job_new_tokens(j) ||
        j->published - j->consumed >= (uint64_t)j->credit / 2 ||
        kwk_out_free(&j->session->engine.ring, NULL) <= j->session->out_slots / 2)
        return;
    kwk_out_put(&j->session->engine.ring, &r);
    j->published++;
    j->session->engine.dirty = 1;
}

static void close_job(kwkd_job *j, uint64_t now_us)
{
    j->phase = KWKD_CLOSING;
    j->last_us = now_us;
    kwk_seq_free(j->seq);
    j->seq = NULL;
    j->n_computed = 0;
}

static kwk_done summary(const kwkd_job *j)
{
    const uint64_t admitted = j->admitted_us ? j->admitted_us : j->last_us;
    const uint64_t first = j->first_us ? j->first_us : j->last_us;

    return (kwk_done){.prompt_tokens = (uint32_t)j->n_prompt,
                      .new_tokens = (uint32_t)kwkd_job_new_tokens(j),
                      .queue_us = admitted - j->submitted_us,
                      .prefill_us = first - admitted,
                      .decode_us = j->last_us - first};
}

void kwkd_job_finish(kwkd_job *j, kwk_finish why, uint64_t now_us)
{
    uint8_t rest[4];
    const size_t n = j->phase == KWKD_CLOSING ? 0 : kwkd_text_end(&j->text, rest);
    kwk_done done;
    kwk_record *r;

    if (j->phase == KWKD_CLOSING)
        return;
    j->finish = why;
    close_job(j, now_us);
    if (!j->session) {
        if (n)
            (void)kwk_buf_write(&j->all_text, (const char *)rest, n);
        return;
    }
    add_text(j, rest, n);
    r = new_record(j, KWK_REC_DONE);
    done = summary(j);
    r->token = (int32_t)why;
    r->n_bytes = sizeof done;
    memcpy(r->payload, &done, sizeof done);
}

void kwkd_job_fail(kwkd_job *j, const kwk_error *err, uint64_t now_us)
{
    kwk_record *r;

    if (j->phase == KWKD_CLOSING)
        return;
    j->error = *err;
    close_job(j, now_us);
    if (!j->session)
        return;
    r = new_record(j, KWK_REC_ERROR);
    r->token = err->code;
    (void)fill_text(r, (const uint8_t *)err->msg, strlen(err->msg));
}

static kwk_in_stream *shared_words(const kwkd_job *j)
{
    return (kwk_in_stream *)((uint8_t *)j->session->in + KWK_IN_STREAMS_AT) +
           j->stream % KWK_STREAMS;
}

int kwkd_job_cancelled(const kwkd_job *j)
{
    if (atomic_load_explicit(&j->cancel, memory_order_relaxed))
        return 1;
    return j->session && atomic_load_explicit(&shared_words(j)->cancel, memory_order_relaxed);
}

int kwkd_job_flush(kwkd_job *j, uint64_t now_us, kwk_error *err)
{
    kwkd_session *s = j->session;
    int64_t room;

    if (!s)
        return 1;
    if (j->published) {
        const uint64_t consumed =
            atomic_load_explicit(&shared_words(j)->consumed, memory_order_relaxed);
        if (consumed < j->consumed || consumed > j->published)
            return kwk_fail(err, KWK_EPROTO, "stream %u: %llu records taken, not from %llu to %llu",
                            j->stream, (unsigned long long)consumed,
                            (unsigned long long)j->consumed, (unsigned long long)j->published);
        j->consumed = consumed;
    }
    room = kwk_out_free(&s->engine.ring, err);
    if (room < 0)
        return (int)room;
    for (; j->i_out < j->n_out && room > 0; j->i_out++, room--) {
        const int is_last = j->phase == KWKD_CLOSING && j->i_out == j->n_out - 1;
        if (!is_last && j->published - j->consumed >= (uint64_t)j->credit)
            break;
        kwk_out_put(&s->engine.ring, &j->outbox[j->i_out]);
        j->published++;
        s->engine.dirty = 1;
    }
    if (j->i_out == j->n_out && room > 0 && j->published - j->consumed < (uint64_t)j->credit) {
        j->paused_us = 0;
        return 1;
    }
    if (!j->paused_us)
        j->paused_us = now_us;
    return 0;
}

/* ---- inline
 * ------------------------------------------------------------------------------------------ */

const char *kwkd_finish_name(kwk_finish f)
{
    switch (f) {
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
    return "error";
}

int kwkd_job_reply(const kwkd_job *j, kwk_buf *reply, kwk_error *err)
{
    const kwk_done done = summary(j);
    const int n = kwkd_job_new_tokens(j);
    kwk_map m;
    int rc;

    kwk_reply_begin(&m, reply);
    kwk_map_open(&m, "tokens", 0);
    for (int i = 0; i < n; i++)
        kwk_map_int(&m, NULL, j->ids[j->n_prompt + i]);
    kwk_map_close(&m);
    kwk_map_str(&m, "finish_reason", kwkd_finish_name(j->finish));
    kwk_map_uint(&m, "prompt_tokens", done.prompt_tokens);
    kwk_map_uint(&m, "new_tokens", done.new_tokens);
    kwk_map_uint(&m, "cached_tokens", done.cached_tokens);
    kwk_map_uint(&m, "seed", j->sampling.seed);
    if (j->want_text)
        kwk_map_bin(&m, "text", j->all_text.data, j->all_text.size);
    if (j->logprobs) {
        kwk_map_open(&m, "logprobs", 0);
        for (int i = 0; i < n; i++)
            kwk_map_double(&m, NULL, (double)j->logprobs[i]);
        kwk_map_close(&m);
    }
    kwk_map_uint(&m, "queue_us", done.queue_us);
    kwk_map_uint(&m, "prefill_us", done.prefill_us);
    kwk_map_uint(&m, "decode_us", done.decode_us);
    rc = kwk_map_end(&m, err);
    if (rc == KWK_OK && reply->size > KWK_MSG_MAX)
        rc = kwk_fail(err, KWK_EFULL, "reply of %zu bytes; a message has at most %d", reply->size,
                      KWK_MSG_MAX);
    return rc;
}
