/* SPDX-License-Identifier: Apache-2.0
 *
 * A generation: what was asked, how far it is, and its way to the client. Made and checked by the
 * thread that answers the request; from then on the engine thread's alone, except for `cancel`.
 * Knows neither steps nor other jobs; the scheduler decides when it runs.
 */
#ifndef KWK_DAEMON_JOB_H
#define KWK_DAEMON_JOB_H

#include <stdatomic.h>

#include "daemon/call.h"
#include "daemon/metrics.h"
#include "daemon/session.h"
#include "daemon/store.h"
#include "daemon/text.h"
#include "daemon/work.h"

enum { KWKD_JOB_CALLS = 4 }; // repeated inline requests that share a job

/* Who waits and runs: a user and tenant. Kept by the scheduler while it has jobs or sessions. */
typedef struct kwkd_party {
    struct kwkd_party *next;
    uint32_t uid;
    char tenant[KWK_NAME_MAX + 1];
    int refs;               // under the scheduler's lock
    int n_waiting;          // likewise
    uint64_t served;        // engine thread: when a prompt of it last got rows
    uint64_t inline_served; // the same for its requests without a session
} kwkd_party;

/* Something that takes part in steps: a job, or a task (forward.h). First member of both. */
typedef struct kwkd_unit {
    int is_task;
    kwkd_party *party;
    uint64_t *session_served;
    uint64_t arrival; // order among all units
    uint64_t step;    // last step that it was part of
} kwkd_unit;

typedef enum kwkd_phase {
    KWKD_WAITING, // for its first rows, or put back by preemption
    KWKD_PREFILL, // its prompt is being computed
    KWKD_DECODE,
    KWKD_CLOSING, // over; its last records wait for room in the ring
} kwkd_phase;

typedef struct kwkd_job {
    kwkd_unit unit;
    kwkd_work work;
    struct kwkd_job *prev, *next;         // of its model, by arrival
    struct kwkd_job *all_prev, *all_next; // of all, under the scheduler's lock
    kwkd_model *model;                    // one reference
    kwkd_session *session;                // one reference; NULL: inline
    kwkd_call *calls[KWKD_JOB_CALLS];     // inline: who waits (under the scheduler's lock)
    int n_calls;
    uint32_t uid, stream;
    char *request_id; // NULL: none
    char *tenant;     // never NULL
    atomic_int cancel;

    /* what was asked */
    kwk_sampling sampling;
    kwk_logit_bias *bias;
    int32_t *eos; // ends the generation, unless n_eos is 0
    int n_eos;
    int n_prompt, max_new; // max_new: as far as the context allows
    int want_text, want_logprobs, credit;

    /* how far it is */
    kwkd_phase phase;
    kwk_finish finish; // CLOSING; 0: by the error
    kwk_error error;
    kwk_seq *seq;   // NULL: WAITING, CLOSING
    int n_computed; // slots of seq
    int32_t *ids;   // (n_ids) prompt and generated
    int n_ids, ids_capacity;
    kwk_history history;
    kwk_logprob top[KWK_LOGPROBS_MAX];
    int counted_waiting; // counts in party->n_waiting
    uint64_t submitted_us, admitted_us, first_us, last_us;

    /* on the way to the ring */
    kwk_record *outbox; // (n_out), from i_out on not yet put
    int n_out, i_out, out_capacity;
    uint64_t published, consumed; // records of the stream put, and taken as the client says
    uint64_t paused_us;           // since when it cannot write; 0: it can
    kwkd_text text;
    uint8_t *piece; // a token's text (kwkd_text_bound(model->max_token_bytes))

    /* inline: all of it */
    kwk_buf all_text;
    float *logprobs; // (new tokens), as many as ids has room
} kwkd_job;

/**
 * Check a request and make its job.
 *
 * @param out      the caller's: kwkd_job_free() or kwkd_scheduler_submit()
 * @param session  of the request; NULL: none. Unless the request is inline, the job keeps a
 * reference and reserves the stream id
 * @param inline_tokens  most new tokens of an inline reply
 *
 * @return KWK_OK; KWK_EINVAL naming field and value; KWK_EFULL the prompt can never fit (with the
 *         numbers); KWK_EUNSUPPORTED; KWK_ENOMEM
 */
int kwkd_job_new(kwkd_job **out, kwkd_model *model, kwkd_session *session, uint32_t uid,
                 const kwk_generate_req *req, int inline_tokens, kwk_error *err);
void kwkd_job_free(kwkd_job *j); // NULL allowed; its calls must have been answered

static inline int kwkd_job_new_tokens(const kwkd_job *j)
{
    return j->n_ids - j->n_prompt;
}

/* ---- the engine thread
 * --------------------------------------------------------------------------- */

/** A token was chosen. Adds it, makes its records, and finishes the job when it was the last. */
void kwkd_job_token(kwkd_job *j, int32_t token, float logprob, uint64_t now_us);

/** Some of its prompt was computed. */
void kwkd_job_progress(kwkd_job *j);

/** End it: frees the sequence, makes the last records. No effect when it is CLOSING already. */
void kwkd_job_finish(kwkd_job *j, kwk_finish why, uint64_t now_us);
void kwkd_job_fail(kwkd_job *j, const kwk_error *err, uint64_t now_us);

/**
 * Move records to the ring as far as room and credit allow, and find out whether the job may run.
 *
 * @return 1 it can write (paused_us is 0), 0 it must wait, KWK_EPROTO the client broke the rules
 */
int kwkd_job_flush(kwkd_job *j, uint64_t now_us, kwk_error *err);

/** Has the client asked in shared memory to cancel it? */
int kwkd_job_cancelled(const kwkd_job *j);

/** Fields of the reply of an inline job that is CLOSING. KWK_EFULL: larger than a message. */
int kwkd_job_reply(const kwkd_job *j, kwk_buf *reply, kwk_error *err);

/** "eos", "length", "cancel", "slow_client", "shutdown". */
const char *kwkd_finish_name(kwk_finish f);

#endif
