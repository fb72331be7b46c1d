/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor thread: the only OpenMP master that this library ever has, so it never meddles with
 * the thread pool, the affinity or the settings of the threads that call it. Its life: wait for a
 * job (asleep), run it with the team, wake the caller. Callers' jobs live on their stacks.
 *
 * fork(): the handlers wait for the running job and hold the queue still; the child forgets the
 * executor, whose thread does not exist there, and starts another on first use.
 */
#include "engine/executor.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/kv.h"
#include "engine/kwk.h"
#include "engine/limits.h"
#include "engine/model.h"

typedef struct queued {
    const kwk_job *job;
    kwk_error *err;
    int rc;
    atomic_int done; // futex word
    struct queued *next;
} queued;

static struct {
    pthread_mutex_t lock; // of everything up to `tail`
    pthread_cond_t work;  // the queue is no longer empty
    pthread_cond_t idle;  // no job is running
    int started, running;
    queued *head, **tail;
    atomic_int n_waiting;
    atomic_int wanted; // kwk_set_threads(); 0: the default
    atomic_int preset; // that default, found once; 0: not yet
    /* the executor's, read by its team between two barriers */
    const kwk_job *job; // NULL: the region ends
    kwk_barrier start, phase;
    atomic_int ready; // both barriers are initialised
    kwk_cores cores;
} ex = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .idle = PTHREAD_COND_INITIALIZER,
    .tail = &ex.head,
};
static _Thread_local int is_team; // this thread belongs to the team
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;

/* ---- thread count --------------------------------------------------------------------------- */

static int find_default(void)
{
    const char *text = getenv("KWKER_THREADS");

    if (text && *text) {
        char *end;
        const long n = strtol(text, &end, 10);
        if (!*end && n >= 1 && n <= KWK_MAX_THREADS)
            return (int)n;
    }
    return kwk_limits_threads("");
}

int kwk_threads(void)
{
    int n = atomic_load(&ex.wanted);

    if (n == 0 && (n = atomic_load(&ex.preset)) == 0) {
        n = find_default();
        atomic_store(&ex.preset, n);
    }
    return n;
}

int kwk_set_threads(int n, kwk_error *err)
{
    if (n < 0 || n > KWK_MAX_THREADS)
        return kwk_fail(err, KWK_EINVAL, "threads %d is not in 0..%d", n, KWK_MAX_THREADS);
    atomic_store(&ex.wanted, n);
    return KWK_OK;
}

/* A team that takes every core gets a core each. A smaller one is left to the scheduler, which
 * knows what else runs: another process may have chosen the same cores. */
static void place_thread(int id, int n)
{
    const cpu_set_t *set = n == ex.cores.n ? &ex.cores.core[id] : &ex.cores.all;
    char name[16]; // as long as Linux allows

    snprintf(name, sizeof name, "kwk-team-%d", id);
    (void)pthread_setname_np(pthread_self(), name);

    if (n > 1 && CPU_COUNT(set) > 0)
        (void)sched_setaffinity(0, sizeof *set, set);
}

/* ---- the team ------------------------------------------------------------------------------- */

static void follow(const kwk_worker *w)
{
    for (;;) {
        kwk_barrier_wait(&ex.start);
        if (!ex.job)
            return;
        ex.job->work(ex.job->arg, w);
        kwk_barrier_wait(&ex.phase);
    }
}

static int run_job(const kwk_job *job, const kwk_worker *w, kwk_error *err)
{
    if (job->prepare) {
        const int rc = job->prepare(job->arg, w->n, err);
        if (rc != KWK_OK)
            return rc;
    }
    ex.job = job;
    kwk_barrier_wait(&ex.start);
    job->work(job->arg, w);
    kwk_barrier_wait(&ex.phase);
    return KWK_OK;
}

static void append(queued *q)
{
    q->next = NULL;
    *ex.tail = q;
    ex.tail = &q->next;
    atomic_fetch_add(&ex.n_waiting, 1);
}

/* The next job, or NULL when the team must be made anew for it: its size has changed. */
static queued *take(int size)
{
    queued *q = NULL;

    pthread_mutex_lock(&ex.lock);
    while (!ex.head)
        pthread_cond_wait(&ex.work, &ex.lock);
    if (kwk_threads() == size) {
        q = ex.head;
        ex.head = q->next;
        if (!ex.head)
            ex.tail = &ex.head;
        atomic_fetch_sub(&ex.n_waiting, 1);
        ex.running = 1;
    }
    pthread_mutex_unlock(&ex.lock);
    return q;
}

static void end_job(queued *q, int again)
{
    pthread_mutex_lock(&ex.lock);
    ex.running = 0;
    if (again)
        append(q);
    pthread_cond_broadcast(&ex.idle);
    pthread_mutex_unlock(&ex.lock);
    if (!again) {
        atomic_store(&q->done, 1); // from here on q may be gone; waking a stale address is harmless
        syscall(SYS_futex, &q->done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

static void lead(const kwk_worker *w, int size)
{
    queued *q;

    while ((q = take(size))) {
        q->rc = run_job(q->job, w, q->err);
        end_job(q, q->rc == KWK_OK && q->job->finish && q->job->finish(q->job->arg));
    }
    ex.job = NULL;
    kwk_barrier_wait(&ex.start);
}

static void *executor_main(void *arg)
{
    omp_set_dynamic(0); // this thread's own setting: the load of the moment must not size the team
    for (;;) {
        const int size = kwk_threads();

        kwk_limits_cores(&ex.cores, "");
        atomic_store(&ex.ready, 0);
#pragma omp parallel num_threads(size)
        {
            const kwk_worker w = {omp_get_thread_num(), omp_get_num_threads(), &ex.phase};

            is_team = 1;
            place_thread(w.id, w.n);
            if (w.id == 0) {
                kwk_barrier_init(&ex.start, w.n, w.n > ex.cores.n_cpus);
                kwk_barrier_init(&ex.phase, w.n, w.n > ex.cores.n_cpus);
                atomic_store_explicit(&ex.ready, 1, memory_order_release);
            }
            while (!atomic_load_explicit(&ex.ready, memory_order_acquire))
                sched_yield(); // once in the life of a team
            if (w.id == 0)
                lead(&w, size);
            else
                follow(&w);
        }
    }
    return NULL;
}

/* ---- callers -------------------------------------------------------------------------------- */

static int start_executor(kwk_error *err) // with the lock
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    if (ex.started)
        return KWK_OK;
    /* The host's signal handlers run on the host's threads; faults and profilers excepted. */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    sigdelset(&all, SIGTRAP);
    sigdelset(&all, SIGPROF);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); // the team inherits it
    rc = pthread_create(&thread, &attr, executor_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return kwk_fail(err, KWK_ENOMEM, "the executor thread cannot be started: %s", strerror(rc));
    ex.started = 1;
    return KWK_OK;
}

int kwk_executor_run(const kwk_job *job, kwk_error *err)
{
    queued q = {.job = job, .err = err};
    int rc;

    if (is_team)
        return kwk_fail(err, KWK_EINVAL, "the engine was called from inside its own step");
    kwk_executor_guard_fork();
    pthread_mutex_lock(&ex.lock);
    rc = start_executor(err);
    if (rc == KWK_OK) {
        append(&q);
        pthread_cond_signal(&ex.work);
    }
    pthread_mutex_unlock(&ex.lock);
    if (rc != KWK_OK)
        return rc;
    while (!atomic_load(&q.done))
        syscall(SYS_futex, &q.done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return q.rc;
}

int kwk_executor_waiting(void)
{
    return atomic_load_explicit(&ex.n_waiting, memory_order_relaxed) > 0;
}

/* ---- fork ----------------------------------------------------------------------------------- */

static void before_fork(void)
{
    if (is_team)
        return; // from a tap: its own step would be waited for
    pthread_mutex_lock(&ex.lock);
    while (ex.running)
        pthread_cond_wait(&ex.idle, &ex.lock);
    kwk_kv_lock();
}

static void after_fork_parent(void)
{
    if (is_team)
        return;
    kwk_kv_unlock();
    pthread_mutex_unlock(&ex.lock);
}

static void after_fork_child(void)
{
    pthread_mutex_init(&ex.lock, NULL);
    pthread_cond_init(&ex.work, NULL);
    pthread_cond_init(&ex.idle, NULL);
    ex.started = ex.running = 0;
    ex.head = NULL; // their callers are threads of the parent
    ex.tail = &ex.head;
    atomic_store(&ex.n_waiting, 0);
    atomic_store(&ex.preset, 0); // the child may be given other CPUs
    is_team = 0;
    kwk_kv_unlock_child();
}

static void install_handlers(void)
{
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void kwk_executor_guard_fork(void)
{
    pthread_once(&guard_once, install_handlers);
}

/* ---- parallel for --------------------------------------------------------------------------- */

typedef struct for_job {
    int n;
    atomic_int next;
    void (*fn)(void *arg, int i);
    void *arg;
} for_job;

/* Gives way between two items when somebody's step is waiting: a load must not stall decoding. */
static void for_work(void *arg, const kwk_worker *w)
{
    for_job *f = arg;
    int i;

    while ((i = atomic_fetch_add(&f->next, 1)) < f->n) {
        f->fn(f->arg, i);
        if (kwk_executor_waiting())
            break;
    }
}

static int for_again(void *arg)
{
    for_job *f = arg;

    return atomic_load(&f->next) < f->n;
}

int kwk_parallel_for(int n, void (*fn)(void *arg, int i), void *arg, kwk_error *err)
{
    for_job f = {.n = n, .fn = fn, .arg = arg};
    const kwk_job job = {.work = for_work, .finish = for_again, .arg = &f};

    return n > 0 ? kwk_executor_run(&job, err) : KWK_OK;
}
