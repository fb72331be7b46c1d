/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of generations, as the threads that answer requests see it: who waits, how many may,
 * which request repeats another, cancelling. Everything here is under the scheduler's lock and
 * short; what is queued is handed to the engine thread, which alone runs and ends it.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/scheduler_state.h"

/* ---- parties (under the lock)
 * ------------------------------------------------------------------------- */

kwkd_party *kwkd_party_get(kwkd_scheduler *s, uint32_t uid, const char *tenant)
{
    kwkd_party *p = s->parties;

    while (p && (p->uid != uid || strcmp(p->tenant, tenant)))
        p = p->next;
    if (!p) {
        p = calloc(1, sizeof *p);
        if (!p)
            return NULL;
        p->uid = uid;
        strncpy(p->tenant, tenant, sizeof p->tenant - 1);
        p->next = s->parties;
        s->parties = p;
    }
    p->refs++;
    return p;
}

void kwkd_party_put(kwkd_scheduler *s, kwkd_party *p)
{
    kwkd_party **at = &s->parties;

    if (!p || --p->refs)
        return;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    free(p);
}

/* ---- submitting ------------------------------------------------------------------------------ */

/* Under the lock: the inline job that a repeated request joins. */
static kwkd_job *find_inline(kwkd_scheduler *s, uint32_t uid, const char *request_id)
{
    for (kwkd_job *j = s->all; request_id && j; j = j->all_next)
        if (!j->session && j->uid == uid && j->request_id && !strcmp(j->request_id, request_id) &&
            j->n_calls && j->n_calls < KWKD_JOB_CALLS)
            return j;
    return NULL;
}

static int busy(kwkd_scheduler *s, int *retry_ms, kwk_error *err, int n, const char *whose)
{
    const int running = atomic_load(&s->running);
    const uint64_t ms = s->job_us / 1000 * (uint64_t)(s->n_queued + 1) / (uint64_t)running;

    *retry_ms = ms < 50 ? 50 : ms > 10000 ? 10000 : (int)ms;
    return kwk_fail(err, KWK_EBUSY, "%d generations wait%s, the queue is full", n, whose);
}

/* Under the lock. */
static int submit(kwkd_scheduler *s, kwkd_job *j, kwkd_call *call, int *retry_ms, kwk_error *err)
{
    kwkd_job *other = call ? find_inline(s, j->uid, j->request_id) : NULL;
    kwkd_party *p;

    if (s->mode != KWKD_RUN)
        return kwk_fail(err, KWK_ECLOSED, "the daemon ends");
    if (other) {
        other->calls[other->n_calls++] = call;
        return 1;
    }
    p = kwkd_party_get(s, j->uid, j->tenant);
    if (!p)
        return kwk_fail(err, KWK_ENOMEM, "a generation");
    if (s->n_queued >= atomic_load(&s->queue) || p->n_waiting >= atomic_load(&s->queue_per_user)) {
        const int rc = s->n_queued >= atomic_load(&s->queue)
                           ? busy(s, retry_ms, err, s->n_queued, "")
                           : busy(s, retry_ms, err, p->n_waiting, " for this user");
        kwkd_party_put(s, p);
        return rc;
    }
    j->unit.party = p;
    j->unit.session_served = j->session ? &j->session->engine.served : &p->inline_served;
    j->unit.arrival = ++s->arrivals;
    j->counted_waiting = 1;
    p->n_waiting++;
    s->n_queued++;
    s->n_all++;
    if (call)
        j->calls[j->n_calls++] = call;
    j->all_next = s->all;
    if (s->all)
        s->all->all_prev = j;
    s->all = j;
    j->work.run = kwkd_arrive_job;
    kwkd_enqueue(s, &j->work);
    return 0;
}

int kwkd_scheduler_submit(kwkd_scheduler *s, kwkd_job *job, kwkd_call *call, int *retry_ms,
                          kwk_error *err)
{
    int rc;

    pthread_mutex_lock(&s->lock);
    rc = submit(s, job, call, retry_ms, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 1)
        kwkd_job_free(job);
    return rc;
}

int kwkd_scheduler_repeated(kwkd_scheduler *s, const kwkd_session *session, uint32_t stream,
                            const char *request_id, uint64_t *seed)
{
    int found = 0;

    pthread_mutex_lock(&s->lock);
    for (const kwkd_job *j = s->all; j && !found; j = j->all_next) {
        found = j->session == session && j->stream == stream && j->request_id &&
                !strcmp(j->request_id, request_id);
        if (found)
            *seed = j->sampling.seed;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

int kwkd_scheduler_cancel(kwkd_scheduler *s, const kwkd_session *session, uint32_t stream,
                          uint32_t uid, const char *request_id)
{
    int n = 0;

    pthread_mutex_lock(&s->lock);
    for (kwkd_job *j = s->all; j; j = j->all_next) {
        const int hit = session ? j->session == session && j->stream == stream
                                : j->uid == uid && j->request_id && request_id &&
                                      !strcmp(j->request_id, request_id);
        if (hit && !atomic_exchange(&j->cancel, 1))
            n++;
    }
    if (n) {
        s->woken = 1;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint64_t kwkd_next_arrival(kwkd_scheduler *s)
{
    uint64_t n;

    pthread_mutex_lock(&s->lock);
    n = ++s->arrivals;
    pthread_mutex_unlock(&s->lock);
    return n;
}
