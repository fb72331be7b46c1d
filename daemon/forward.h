/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences that clients keep and the tasks that run tokens on them: a submission from a session's
 * ring, or a `forward` request. Engine thread only. Where steps are made is batch.c's affair.
 */
#ifndef KWK_DAEMON_FORWARD_H
#define KWK_DAEMON_FORWARD_H

#include "daemon/call.h"
#include "daemon/job.h"
#include "daemon/session.h"
#include "daemon/store.h"

enum { KWKD_TASKS = 256 }; // of a session, taken from its ring and not answered

struct kwkd_scheduler;

typedef struct kwkd_cseq {
    struct kwkd_cseq *next; // of the session
    uint64_t id;            // within the session
    kwkd_model *model;      // one reference
    kwk_seq *seq;
    int32_t *positions; // of each slot: to continue after the last one, also after a truncation
    int n_positions, capacity;
    struct kwkd_task *first, *last; // in flight, in order; only the first takes part in steps
} kwkd_cseq;

typedef struct kwkd_task {
    kwkd_unit unit;
    struct kwkd_task *prev, *next; // of the model, by arrival
    struct kwkd_task *later;       // of the sequence
    kwkd_session *session;         // which outlives its tasks
    kwkd_cseq *cseq;
    kwkd_call *call; // NULL: from the ring
    uint32_t tag, row;
    int n, n_done;               // tokens
    int n_logits;                // rows that the client gets: 0, 1 (the last token's) or n
    int start;                   // slots of the sequence before; -1: not begun
    int32_t *tokens, *positions; // positions NULL: continue
    uint8_t *valid;              // NULL: all
    float *logits;               // where the first row goes
    float *own_logits;           // a call's
    int32_t few[16];             // tokens of a short task, so that a decode step allocates no array
} kwkd_task;

/** Write answers that waited for room, take what the session submitted. 1: it had some; 0: nothing;
 *  KWK_EPROTO: it broke the rules. */
int kwkd_forward_poll(struct kwkd_scheduler *s, kwkd_session *session, kwk_error *err);

/** Run a seq_… or forward request; answers the call, now or when its step is done. */
void kwkd_forward_call(struct kwkd_scheduler *s, kwkd_call *call);

/** The task is about to run for the first time. On error it is gone. */
int kwkd_task_begin(struct kwkd_scheduler *s, kwkd_task *t, int64_t held_blocks);

/** Position of its i-th token. */
int32_t kwkd_task_position(const kwkd_task *t, int i);

/** n more tokens were computed; after the last the task is answered and gone. */
void kwkd_task_advance(struct kwkd_scheduler *s, kwkd_task *t, int n);

/** It failed: the sequence is as before, the task is gone. */
void kwkd_task_fail(struct kwkd_scheduler *s, kwkd_task *t, const kwk_error *err);

/** Drop tasks and sequences of a session that ended. */
void kwkd_forward_drop(struct kwkd_scheduler *s, kwkd_session *session);

#endif
