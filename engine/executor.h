/* SPDX-License-Identifier: Apache-2.0
 *
 * The one executor thread of the process and its OpenMP team. Callers queue jobs and block; jobs
 * run one after another, each on the whole team. Knows nothing of models. The team lives in one
 * long parallel region and sleeps on its own barrier, so that an idle engine uses no CPU whatever
 * the OpenMP runtime's wait policy is.
 */
#ifndef KWK_ENGINE_EXECUTOR_H
#define KWK_ENGINE_EXECUTOR_H

#include "engine/barrier.h"
#include "proto/error.h"

typedef struct kwk_worker {
    int id; // 0 … n-1; 0 is the executor thread
    int n;  // threads of the team, as many as it really got
    kwk_barrier *barrier;
} kwk_worker;

typedef struct kwk_job {
    /* On the executor thread alone, n threads standing ready; not 0: the job ends with that code.
     * May be NULL. */
    int (*prepare)(void *arg, int n, kwk_error *err);
    /* On every thread of the team at once. */
    void (*work)(void *arg, const kwk_worker *w);
    /* On the executor thread alone, afterwards; not 0: do it all again, behind the jobs that have
     * queued meanwhile. May be NULL. */
    int (*finish)(void *arg);
    void *arg;
} kwk_job;

/**
 * Run a job; blocks until it has ended. Any thread but the executor's own team.
 *
 * @return KWK_OK, prepare's code, or KWK_ENOMEM when the executor thread cannot be started
 */
int kwk_executor_run(const kwk_job *job, kwk_error *err);

/* 1 while other jobs are waiting. Any thread. */
int kwk_executor_waiting(void);

/* Install the handlers that make fork() safe, once. The executor does it itself; whoever holds
 * kwk_kv_lock() must have called it before. */
void kwk_executor_guard_fork(void);

#endif
