/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread's loop, the inbox that feeds it, and how jobs and sessions end. Functions of
 * scheduler.h run on any thread and touch only what the lock or atomics protect; everything else
 * runs on the engine thread. Nothing here waits for a client: what cannot be written is tried
 * again.
 */
#include "daemon/scheduler_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/log.h"

/* ---- the inbox
 * --------------------------------------------------------------------------------------------- */

void kwkd_enqueue(kwkd_scheduler *s, kwkd_work *w)
{
    w->next = NULL;
    *s->inbox_end = w;
    s->inbox_end = &w->next;
    pthread_cond_signal(&s->wake);
}

int kwkd_scheduler_post(kwkd_scheduler *s, kwkd_work *w, kwk_error *err)
{
    int rc = KWK_OK;

    pthread_mutex_lock(&s->lock);
    if (s->mode == KWKD_STOPPED)
        rc = kwk_fail(err, KWK_ECLOSED, "the daemon ends");
    else
        kwkd_enqueue(s, w);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void kwkd_scheduler_wake(kwkd_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->woken = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void run_inbox(kwkd_scheduler *s)
{
    kwkd_work *w;

    pthread_mutex_lock(&s->lock);
    w = s->inbox;
    s->inbox = NULL;
    s->inbox_end = &s->inbox;
    s->woken = 0;
    pthread_mutex_unlock(&s->lock);
    while (w) {
        kwkd_work *next = w->next; // running it may free it
        w->run(s, w);
        w = next;
        s->moved = 1;
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

void kwkd_lane_open(kwkd_scheduler *s, kwkd_model *m)
{
    if (m->lane.listed)
        return;
    kwkd_model_ref(m);
    m->lane.listed = 1;
    m->lane.prev = NULL;
    m->lane.next = s->lanes;
    if (s->lanes)
        s->lanes->lane.prev = m;
    s->lanes = m;
}

static void lane_close(kwkd_scheduler *s, kwkd_model *m)
{
    if (m->lane.prev)
        m->lane.prev->lane.next = m->lane.next;
    else
        s->lanes = m->lane.next;
    if (m->lane.next)
        m->lane.next->lane.prev = m->lane.prev;
    m->lane.listed = 0;
    kwkd_model_unref(m);
}

static void lane_remove(kwkd_job *j)
{
    kwkd_model *m = j->model;

    if (j->prev)
        j->prev->next = j->next;
    else
        m->lane.first_job = j->next;
    if (j->next)
        j->next->prev = j->prev;
    else
        m->lane.last_job = j->prev;
}

void kwkd_arrive_job(kwkd_scheduler *s, kwkd_work *w)
{
    kwkd_job *j = KWKD_OWNER(kwkd_job, work, w);
    kwkd_model *m = j->model;

    kwkd_lane_open(s, m);
    j->prev = m->lane.last_job;
    if (j->prev)
        j->prev->next = j;
    else
        m->lane.first_job = j;
    m->lane.last_job = j;
}

/* ---- sessions -------------------------------------------------------------------------------- */

void kwkd_mark_dirty(kwkd_scheduler *s, kwkd_session *session)
{
    session->engine.dirty = 1;
    if (session->engine.is_listed)
        return;
    session->engine.is_listed = 1;
    session->engine.dirty_next = s->dirty;
    s->dirty = session;
}

static void publish(kwkd_scheduler *s)
{
    while (s->dirty) {
        kwkd_session *session = s->dirty;
        s->dirty = session->engine.dirty_next;
        session->engine.dirty = session->engine.is_listed = 0;
        // a full socket means that the client has bytes to wake it anyway
        if (kwk_out_publish(&session->engine.ring) && !atomic_load(&session->dead))
            (void)send(session->door, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

void kwkd_session_broke(kwkd_scheduler *s, kwkd_session *session, const kwk_error *err)
{
    if (atomic_load(&session->dead))
        return;
    kwkd_log(KWKD_WARNING, "session killed", "uid=%u pid=%d client=%s reason=%s", session->uid,
             session->pid, session->client, err->msg);
    kwkd_count(&s->metrics->sessions_killed, 1);
    kwkd_session_kill(session);
}

int kwkd_poll_session(kwkd_scheduler *s, kwkd_session *session, int on)
{
    int i = 0;

    while (i < s->n_polled && s->polled[i] != session)
        i++;
    if (!on && i < s->n_polled) {
        atomic_store(&session->engine.ring.out->sub_sleeping, 1);
        s->polled[i] = s->polled[--s->n_polled];
    }
    if (on && i == s->n_polled) {
        if (s->n_polled == s->polled_capacity) {
            const int capacity = s->polled_capacity + 64;
            kwkd_session **grown = realloc(s->polled, (size_t)capacity * sizeof *grown);
            if (!grown)
                return KWK_ENOMEM;
            s->polled = grown;
            s->polled_capacity = capacity;
        }
        s->polled[s->n_polled++] = session;
        atomic_store(&session->engine.ring.out->sub_sleeping, 0);
    }
    return KWK_OK;
}

static void arrive_session(kwkd_scheduler *s, kwkd_work *w)
{
    kwkd_session *session = KWKD_OWNER(kwkd_session, engine.arrive, w);

    session->engine.prev = NULL;
    session->engine.next = s->sessions;
    if (s->sessions)
        s->sessions->engine.prev = session;
    s->sessions = session;
}

static void retire(kwkd_scheduler *s, kwkd_job *j);

static void leave_session(kwkd_scheduler *s, kwkd_work *w)
{
    kwkd_session *session = KWKD_OWNER(kwkd_session, engine.leave, w);

    for (kwkd_model *m = s->lanes; m; m = m->lane.next) { // empty lanes close in their next sweep
        for (kwkd_job *j = m->lane.first_job, *next; j; j = next) {
            next = j->next;
            if (j->session != session)
                continue;
            kwkd_job_finish(j, KWK_FINISH_CANCEL, kwkd_now_us());
            retire(s, j);
        }
    }
    kwkd_forward_drop(s, session);
    (void)kwkd_poll_session(s, session, 0);
    assert(!session->engine.is_listed); // turns end with nothing on the list
    if (session->engine.prev)
        session->engine.prev->engine.next = session->engine.next;
    else
        s->sessions = session->engine.next;
    if (session->engine.next)
        session->engine.next->engine.prev = session->engine.prev;
    pthread_mutex_lock(&s->lock);
    kwkd_party_put(s, session->engine.party);
    pthread_mutex_unlock(&s->lock);
    kwkd_session_unref(session);
}

int kwkd_scheduler_add_session(kwkd_scheduler *s, kwkd_session *session, kwk_error *err)
{
    int rc = KWK_OK;

    session->engine.arrive.run = arrive_session;
    session->engine.leave.run = leave_session;
    pthread_mutex_lock(&s->lock);
    if (s->mode != KWKD_RUN)
        rc = kwk_fail(err, KWK_ECLOSED, "the daemon ends");
    else if (!(session->engine.party = kwkd_party_get(s, session->uid, "")))
        rc = kwk_fail(err, KWK_ENOMEM, "a session");
    else
        kwkd_enqueue(s, &kwkd_session_ref(session)->engine.arrive);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void kwkd_scheduler_drop_session(kwkd_scheduler *s, kwkd_session *session)
{
    if (session->engine.party) // was added; once stopped, the thread has dropped it itself
        (void)kwkd_scheduler_post(s, &session->engine.leave, NULL);
}

/* ---- jobs' ends ------------------------------------------------------------------------------ */

static void answer(kwkd_scheduler *s, kwkd_job *j)
{
    kwkd_call *calls[KWKD_JOB_CALLS];
    int n;

    pthread_mutex_lock(&s->lock);
    n = j->n_calls;
    memcpy(calls, j->calls, sizeof calls);
    j->n_calls = 0;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n; i++) {
        kwk_error err = j->error;
        int rc = j->finish ? kwkd_job_reply(j, &calls[i]->reply, &err) : j->error.code;
        kwkd_call_finish(calls[i], rc, &err);
    }
}

/* The end of a CLOSING job: nothing of it is left to be told. */
static void retire(kwkd_scheduler *s, kwkd_job *j)
{
    const uint64_t us = j->last_us - j->submitted_us;

    lane_remove(j);
    pthread_mutex_lock(&s->lock); // out of `all` first: no call may join any more
    if (j->all_prev)
        j->all_prev->all_next = j->all_next;
    else
        s->all = j->all_next;
    if (j->all_next)
        j->all_next->all_prev = j->all_prev;
    if (j->counted_waiting) {
        s->n_queued--;
        j->unit.party->n_waiting--;
    }
    if (j->finish == KWK_FINISH_EOS || j->finish == KWK_FINISH_LENGTH)
        s->job_us = s->job_us ? (7 * s->job_us + us) / 8 : us;
    pthread_mutex_unlock(&s->lock);
    kwkd_count(&s->metrics->finished[j->finish], 1);
    answer(s, j);
    pthread_mutex_lock(&s->lock);
    kwkd_party_put(s, j->unit.party);
    s->n_all--;
    pthread_mutex_unlock(&s->lock);
    kwkd_job_free(j);
    s->moved = 1;
}

/* Nobody is there to read it. */
static int abandoned(kwkd_scheduler *s, kwkd_job *j)
{
    int gone = 1;

    if (j->session)
        return atomic_load(&j->session->dead);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < j->n_calls; i++)
        gone &= atomic_load(&j->calls[i]->gone);
    pthread_mutex_unlock(&s->lock);
    return gone;
}

/* What ends a job from outside. */
static void check_end(kwkd_scheduler *s, kwkd_job *j, int draining)
{
    if (j->phase == KWKD_CLOSING)
        return;
    if (kwkd_job_cancelled(j) || abandoned(s, j))
        kwkd_job_finish(j, KWK_FINISH_CANCEL, s->now_us);
    else if (j->paused_us && s->now_us - j->paused_us > atomic_load(&s->slow_us))
        kwkd_job_finish(j, KWK_FINISH_SLOW, s->now_us);
    else if (draining && j->phase == KWKD_WAITING && !j->admitted_us)
        kwkd_job_finish(j, KWK_FINISH_SHUTDOWN, s->now_us);
}

static void flush(kwkd_scheduler *s, kwkd_job *j)
{
    const int before = j->n_out - j->i_out;
    kwk_error err = {0};

    if (j->session && atomic_load(&j->session->dead))
        return;
    if (kwkd_job_flush(j, s->now_us, &err) < 0)
        kwkd_session_broke(s, j->session, &err);
    if (j->session && j->session->engine.dirty)
        kwkd_mark_dirty(s, j->session);
    s->moved |= j->n_out - j->i_out != before;
}

/* Everything about the model's work but computing: ends, records. The lane may close. */
static void sweep(kwkd_scheduler *s, kwkd_model *m, int draining)
{
    for (kwkd_job *j = m->lane.first_job, *next; j; j = next) {
        next = j->next;
        check_end(s, j, draining);
        flush(s, j);
        if (j->phase == KWKD_CLOSING &&
            (!j->session || j->i_out == j->n_out || atomic_load(&j->session->dead)))
            retire(s, j);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void poll_submissions(kwkd_scheduler *s)
{
    for (int i = 0; i < s->n_polled; i++) {
        kwkd_session *session = s->polled[i];
        kwk_error err = {0};
        int rc = atomic_load(&session->dead) ? 0 : kwkd_forward_poll(s, session, &err);
        if (rc < 0)
            kwkd_session_broke(s, session, &err);
        s->moved |= rc > 0;
    }
}

static void count_jobs(kwkd_scheduler *s)
{
    int running = 0, waiting = 0;

    for (const kwkd_model *m = s->lanes; m; m = m->lane.next) {
        for (const kwkd_job *j = m->lane.first_job; j; j = j->next) {
            running += j->phase == KWKD_PREFILL || j->phase == KWKD_DECODE;
            waiting += j->phase == KWKD_WAITING;
        }
    }
    atomic_store_explicit(&s->n_running, running, memory_order_relaxed);
    atomic_store_explicit(&s->n_waiting, waiting, memory_order_relaxed);
}

int kwkd_scheduler_turn(kwkd_scheduler *s)
{
    int draining;

    s->moved = 0;
    atomic_fetch_add(&s->pulse, 1);
    run_inbox(s);
    pthread_mutex_lock(&s->lock);
    draining = s->mode != KWKD_RUN;
    pthread_mutex_unlock(&s->lock);
    s->now_us = kwkd_now_us();
    poll_submissions(s);
    for (kwkd_model *m = s->lanes, *next; m; m = next) {
        next = m->lane.next;
        sweep(s, m, draining);
        if (kwkd_batch_step(s, m)) {
            s->moved = 1;
            s->now_us = kwkd_now_us();
            sweep(s, m, draining); // the step's tokens leave at once
            publish(s);
        }
        if (!m->lane.first_job && !m->lane.first_task)
            lane_close(s, m);
    }
    publish(s);
    count_jobs(s);
    return s->moved;
}

/* Tell the clients that their submissions need a ring of the door, then look once more.
 * @return 1 nothing was submitted meanwhile: safe to sleep */
static int lie_down(kwkd_scheduler *s)
{
    int safe = 1;

    for (int i = 0; i < s->n_polled; i++)
        atomic_store(&s->polled[i]->engine.ring.out->sub_sleeping, 1);
    for (int i = 0; i < s->n_polled; i++) {
        const kwk_in_header *in = s->polled[i]->in;
        if (!atomic_load(&s->polled[i]->dead) &&
            atomic_load(&in->sub_tail) != s->polled[i]->engine.sub_head)
            safe = s->polled[i]->engine.n_tasks >= KWKD_TASKS ? safe : 0;
    }
    return safe;
}

static void get_up(kwkd_scheduler *s)
{
    for (int i = 0; i < s->n_polled; i++)
        atomic_store(&s->polled[i]->engine.ring.out->sub_sleeping, 0);
}

/* Sleep until there is work; with work that cannot go on (clients that do not read), for idle_ms.
 */
static void sleep_until_work(kwkd_scheduler *s, int idle_ms) // under the lock
{
    struct timespec until;

    if (s->inbox || s->woken || s->mode == KWKD_STOP || !lie_down(s)) {
        get_up(s);
        return;
    }
    if (!s->lanes && !s->n_unanswered) {
        atomic_store(&s->asleep, 1);
        pthread_cond_wait(&s->wake, &s->lock);
        atomic_store(&s->asleep, 0);
    } else {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)idle_ms * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&s->wake, &s->lock, &until);
    }
    get_up(s);
}

/* End everything. Nothing new is taken from here on. */
static void end_all(kwkd_scheduler *s)
{
    kwk_error err = {0};

    kwk_fail(&err, KWK_ECLOSED, "the daemon ends");
    pthread_mutex_lock(&s->lock);
    s->mode = KWKD_STOPPED;
    pthread_mutex_unlock(&s->lock);
    run_inbox(s); // what was taken before
    s->now_us = kwkd_now_us();
    for (kwkd_model *m = s->lanes; m; m = m->lane.next) {
        for (kwkd_job *j = m->lane.first_job, *next; j; j = next) {
            next = j->next;
            kwkd_job_finish(j, KWK_FINISH_SHUTDOWN, s->now_us);
            flush(s, j);
            retire(s, j);
        }
        for (kwkd_task *t = m->lane.first_task, *next; t; t = next) {
            next = t->next;
            kwkd_task_fail(s, t, &err);
        }
    }
    publish(s);
    while (s->sessions)
        leave_session(s, &s->sessions->engine.leave);
    while (s->lanes)
        lane_close(s, s->lanes);
    count_jobs(s);
}

static void *run(void *arg)
{
    enum { IDLE_MS_MAX = 64 };
    kwkd_scheduler *s = arg;
    int idle_ms = 1, stop = 0;

    while (!stop) {
        if (kwkd_scheduler_turn(s))
            idle_ms = 1;
        else {
            pthread_mutex_lock(&s->lock);
            sleep_until_work(s, idle_ms);
            pthread_mutex_unlock(&s->lock);
            idle_ms = 2 * idle_ms < IDLE_MS_MAX ? 2 * idle_ms : IDLE_MS_MAX;
        }
        pthread_mutex_lock(&s->lock);
        stop = s->mode == KWKD_STOP;
        pthread_mutex_unlock(&s->lock);
    }
    end_all(s);
    return NULL;
}

/* ---- scheduler.h
 * ---------------------------------------------------------------------------------------------- */

int kwkd_scheduler_new(kwkd_scheduler **out, kwkd_metrics *metrics, kwk_error *err)
{
    kwkd_scheduler *s = calloc(1, sizeof *s);
    pthread_condattr_t attr;
    int rc;

    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "the scheduler");
    rc = kwkd_batch_init(&s->batch, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    s->metrics = metrics;
    s->inbox_end = &s->inbox;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    *out = s;
    return KWK_OK;
}

void kwkd_scheduler_configure(kwkd_scheduler *s, const kwkd_conf *conf)
{
    atomic_store(&s->queue, conf->queue);
    atomic_store(&s->queue_per_user, conf->queue_per_user);
    atomic_store(&s->running, conf->running);
    atomic_store(&s->slice, conf->slice);
    atomic_store(&s->kv_percent, conf->sequence_kv_percent);
    atomic_store(&s->sequences, conf->sequences);
    atomic_store(&s->slow_us, (uint64_t)conf->slow_client_ms * 1000);
}

int kwkd_scheduler_start(kwkd_scheduler *s, kwk_error *err)
{
    const int rc = pthread_create(&s->thread, NULL, run, s);

    if (rc)
        return kwk_fail(err, KWK_ENOMEM, "the engine thread: %s", strerror(rc));
    s->started = 1;
    pthread_setname_np(s->thread, "kwkd-engine");
    return KWK_OK;
}

static void set_mode(kwkd_scheduler *s, int mode)
{
    pthread_mutex_lock(&s->lock);
    if ((int)s->mode < mode)
        s->mode = mode;
    s->woken = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void kwkd_scheduler_drain(kwkd_scheduler *s)
{
    set_mode(s, KWKD_DRAIN);
}

void kwkd_scheduler_stop(kwkd_scheduler *s)
{
    set_mode(s, KWKD_STOP);
    if (s->started)
        pthread_join(s->thread, NULL);
    else if (s->mode != KWKD_STOPPED)
        end_all(s);
    s->started = 0;
}

void kwkd_scheduler_free(kwkd_scheduler *s)
{
    if (!s)
        return;
    assert(!s->all && !s->sessions && !s->parties);
    kwkd_batch_fini(&s->batch);
    free(s->polled);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void kwkd_scheduler_counts(kwkd_scheduler *s, int *running, int *waiting)
{
    *running = atomic_load(&s->n_running);
    *waiting = atomic_load(&s->n_waiting);
}

int kwkd_scheduler_idle(kwkd_scheduler *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->n_all;
    pthread_mutex_unlock(&s->lock);
    return n == 0;
}

uint64_t kwkd_scheduler_pulse(kwkd_scheduler *s)
{
    return atomic_load(&s->asleep) ? 0 : atomic_load(&s->pulse);
}
