/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the scheduler: its state, shared by scheduler.c (thread, queue, jobs' ends), batch.c (what
 * a step computes) and forward.c (clients' own sequences). Nobody else includes this.
 */
#ifndef KWK_DAEMON_SCHEDULER_STATE_H
#define KWK_DAEMON_SCHEDULER_STATE_H

#include <pthread.h>

#include "daemon/forward.h"
#include "daemon/scheduler.h"

enum {
    KWKD_ROWS = 4096,      // of a step
    KWKD_SMALL = 16,       // a task of at most so many rows counts as decoding
    KWKD_SMALL_ROWS = 512, // of a step, for such tasks; of one session:
    KWKD_SMALL_ROWS_SESSION = 128,
    KWKD_LOGITS_BYTES = 64 << 20, // of a step
    KWKD_BLOCK = 32,              // slots of a KV block
};

/* One unit's rows in a step. */
typedef struct kwkd_span {
    kwkd_unit *unit;
    int first, n;         // rows
    int logits, n_logits; // rows of the step's logits
} kwkd_span;

typedef struct kwkd_batch {
    kwk_row *rows;    // (KWKD_ROWS)
    kwkd_span *spans; // (KWKD_ROWS)
    int n_rows, n_spans, n_logits;
    float *logits; // grown as needed
    size_t logits_capacity;
} kwkd_batch;

struct kwkd_scheduler {
    kwkd_metrics *metrics;
    pthread_t thread;
    int started;

    pthread_mutex_t lock;
    pthread_cond_t wake; // monotonic clock
    /* under the lock */
    kwkd_work *inbox, **inbox_end;
    int woken;
    enum { KWKD_RUN, KWKD_DRAIN, KWKD_STOP, KWKD_STOPPED } mode;
    kwkd_job *all; // every job that was submitted and has not ended
    int n_all, n_queued;
    kwkd_party *parties;
    uint64_t arrivals;
    uint64_t job_us; // running mean of a generation's time, for the retry time

    /* settings */
    atomic_int queue, queue_per_user, running, slice, kv_percent, sequences;
    _Atomic uint64_t slow_us;

    /* for others to read */
    _Atomic uint64_t pulse;
    atomic_int asleep, n_running, n_waiting;

    /* the engine thread's */
    kwkd_session *sessions;
    kwkd_session **polled; // sessions with sequences
    int n_polled, polled_capacity;
    int n_unanswered;    // sessions whose tasks' answers wait for room
    kwkd_session *dirty; // have records to publish
    kwkd_model *lanes;   // models with work
    uint64_t clock;      // of turns: who was served when
    uint64_t step;
    uint64_t now_us;
    int moved; // this turn did something
    kwkd_batch batch;
};

/* ---- scheduler.c
 * ---------------------------------------------------------------------------------- */

/** Put a model on the list of lanes, if it is not there. */
void kwkd_lane_open(kwkd_scheduler *s, kwkd_model *m);

/** The session broke the protocol: end it. */
void kwkd_session_broke(kwkd_scheduler *s, kwkd_session *session, const kwk_error *err);

/** Records of the session were put: publish at the end of the turn. */
void kwkd_mark_dirty(kwkd_scheduler *s, kwkd_session *session);

/** Poll this session's submissions from now on, or no longer. */
int kwkd_poll_session(kwkd_scheduler *s, kwkd_session *session, int on);

/** Hand w to the engine thread; under the lock. */
void kwkd_enqueue(kwkd_scheduler *s, kwkd_work *w);

kwkd_work_fn kwkd_arrive_job; // of a job: it joins its model's lane

/* ---- queue.c
 * ------------------------------------------------------------------------------------- */

/** The party of a user and tenant, one reference; NULL: out of memory. Both under the lock. */
kwkd_party *kwkd_party_get(kwkd_scheduler *s, uint32_t uid, const char *tenant);
void kwkd_party_put(kwkd_scheduler *s, kwkd_party *p); // NULL allowed

/** The next place in the order of arrival. */
uint64_t kwkd_next_arrival(kwkd_scheduler *s);

/* ---- batch.c
 * ---------------------------------------------------------------------------------------- */

int kwkd_batch_init(kwkd_batch *b, kwk_error *err);
void kwkd_batch_fini(kwkd_batch *b);

/** Choose rows of the model's work and run them. 1: a step ran; 0: nothing could run. */
int kwkd_batch_step(kwkd_scheduler *s, kwkd_model *m);

#endif
