/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler: the engine thread and what other threads may ask of it. It decides what each step
 * computes: every sequence that decodes, one row each, and a bounded slice of the prompts that
 * wait, in turn between users, then between their sessions. Nothing else is ever run, so one
 * request alone and many at once take the same path.
 */
#ifndef KWK_DAEMON_SCHEDULER_H
#define KWK_DAEMON_SCHEDULER_H

#include "daemon/conf.h"
#include "daemon/job.h"

typedef struct kwkd_scheduler kwkd_scheduler;

int kwkd_scheduler_new(kwkd_scheduler **out, kwkd_metrics *metrics, kwk_error *err);
void kwkd_scheduler_configure(kwkd_scheduler *s, const kwkd_conf *conf); // any time, any thread
int kwkd_scheduler_start(kwkd_scheduler *s, kwk_error *err);             // the engine thread

/** Refuse new generations, drop the waiting ones (KWK_FINISH_SHUTDOWN), let the others run. */
void kwkd_scheduler_drain(kwkd_scheduler *s);

/** End everything that runs with KWK_FINISH_SHUTDOWN and the thread with it. */
void kwkd_scheduler_stop(kwkd_scheduler *s);
void kwkd_scheduler_free(kwkd_scheduler *s); // stopped; NULL allowed

/** Run one turn on this thread instead (tests). 1: it did something, 0: nothing to do. */
int kwkd_scheduler_turn(kwkd_scheduler *s);

/** Hand over work; it runs on the engine thread within a step. KWK_ECLOSED: stopped, w not taken.
 */
int kwkd_scheduler_post(kwkd_scheduler *s, kwkd_work *w, kwk_error *err);
void kwkd_scheduler_wake(kwkd_scheduler *s); // a client rang: look at the submissions

/** The engine thread learns of a session (takes a reference), and of its end. */
int kwkd_scheduler_add_session(kwkd_scheduler *s, kwkd_session *session, kwk_error *err);
void kwkd_scheduler_drop_session(kwkd_scheduler *s, kwkd_session *session);

/**
 * Queue a job.
 *
 * @param call  inline: answered when the job ends; a call with the request id of an inline job of
 *              the same user joins that one. NULL otherwise
 *
 * @return 0 taken; 1 joined another, job was freed; KWK_EBUSY the queue is full (*retry_ms is set);
 *         KWK_ECLOSED; on error job remains the caller's
 */
int kwkd_scheduler_submit(kwkd_scheduler *s, kwkd_job *job, kwkd_call *call, int *retry_ms,
                          kwk_error *err);

/** Is a generation of this session with this stream and request id under way? 1 and its seed, or 0:
 *  a client may repeat a request whose answer it lost. */
int kwkd_scheduler_repeated(kwkd_scheduler *s, const kwkd_session *session, uint32_t stream,
                            const char *request_id, uint64_t *seed);

/** Cancel by session and stream (session != NULL), or by request id of a user. @return how many */
int kwkd_scheduler_cancel(kwkd_scheduler *s, const kwkd_session *session, uint32_t stream,
                          uint32_t uid, const char *request_id);

/** Generations that run and that wait. */
void kwkd_scheduler_counts(kwkd_scheduler *s, int *running, int *waiting);

/** No job is left (a drain is over). */
int kwkd_scheduler_idle(kwkd_scheduler *s);

/** A number that changes while the thread makes progress; 0 while it sleeps for want of work. */
uint64_t kwkd_scheduler_pulse(kwkd_scheduler *s);

#endif
