/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/executor.c: one job at a time on the team it really got, from many threads, across fork,
 * and no CPU when idle. Tests that need an environment of their own run this program again.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/executor.h"
#include "engine/kwk.h"
#include "engine/model.h"
#include "tests/support/check.h"

typedef struct probe {
    atomic_int inside, most_inside, calls, prepared_for;
    atomic_uint ids; // bit i: worker i took part
    int n;           // team that work saw
    int refuse;      // what prepare returns
    int again;       // how often finish asks for more
    int nap_us;
} probe;

static int prepare(void *arg, int n, kwk_error *err)
{
    probe *p = arg;

    atomic_store(&p->prepared_for, n);
    return p->refuse ? kwk_fail(err, p->refuse, "refused %d", 7) : KWK_OK;
}

static void work(void *arg, const kwk_worker *w)
{
    probe *p = arg;
    const int inside = atomic_fetch_add(&p->inside, 1) + 1;

    if (w->id == 0) {
        p->n = w->n;
        if (p->nap_us)
            usleep((unsigned)p->nap_us);
    }
    atomic_fetch_or(&p->ids, 1u << w->id);
    kwk_barrier_wait(w->barrier);
    if (inside > atomic_load(&p->most_inside))
        atomic_store(&p->most_inside, inside);
    kwk_barrier_wait(w->barrier);
    atomic_fetch_sub(&p->inside, 1);
    atomic_fetch_add(&p->calls, 1);
}

static int finish(void *arg)
{
    probe *p = arg;

    return p->again-- > 0;
}

static int run_probe(probe *p, kwk_error *err)
{
    const kwk_job job = {prepare, work, finish, p};

    return kwk_executor_run(&job, err);
}

static void a_job_runs_once_on_every_thread_of_the_team(void **state)
{
    for (int n = 1; n <= 5; n++) { // more than this machine may have
        probe p = {0};

        assert_int_equal(kwk_set_threads(n, NULL), KWK_OK);
        assert_int_equal(kwk_threads(), n);
        assert_int_equal(run_probe(&p, NULL), KWK_OK);
        assert_int_equal(p.n, n);
        assert_int_equal(atomic_load(&p.prepared_for), n);
        assert_int_equal(atomic_load(&p.calls), n);
        assert_int_equal(atomic_load(&p.most_inside), n);
        assert_int_equal(atomic_load(&p.ids), (1u << n) - 1);
    }
    assert_int_equal(kwk_set_threads(0, NULL), KWK_OK);
    assert_true(kwk_threads() >= 1);
}

static void a_thread_count_out_of_range_is_refused(void **state)
{
    kwk_error err = {0};

    assert_int_equal(kwk_set_threads(257, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "threads 257 is not in 0..256");
    assert_int_equal(kwk_set_threads(-1, &err), KWK_EINVAL);
}

static void a_refused_job_gives_its_error_and_no_work(void **state)
{
    probe p = {.refuse = KWK_EFULL};
    kwk_error err = {0};

    assert_int_equal(run_probe(&p, &err), KWK_EFULL);
    assert_string_equal(err.msg, "refused 7");
    assert_int_equal(atomic_load(&p.calls), 0);
}

static void a_job_that_asks_for_more_runs_again(void **state)
{
    probe p = {.again = 3};

    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    assert_int_equal(run_probe(&p, NULL), KWK_OK);
    assert_int_equal(atomic_load(&p.calls), 4 * 2);
}

static void call_back(void *arg, const kwk_worker *w)
{
    probe p = {0};

    if (w->id == 0)
        *(int *)arg = run_probe(&p, NULL);
}

static void a_call_from_inside_a_job_is_refused_and_does_not_hang(void **state)
{
    int rc = 1;
    const kwk_job job = {.work = call_back, .arg = &rc};

    assert_int_equal(kwk_executor_run(&job, NULL), KWK_OK);
    assert_int_equal(rc, KWK_EINVAL);
}

static void *caller(void *arg)
{
    probe *p = arg;

    for (int i = 0; i < 200; i++)
        if (run_probe(p, NULL) != KWK_OK)
            abort();
    return NULL;
}

static void four_threads_at_once_take_turns(void **state)
{
    probe p = {0};
    pthread_t t[4];

    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, caller, &p), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&p.calls), 4 * 200 * 2);
    assert_int_equal(atomic_load(&p.most_inside), 2); // never two jobs at once
}

static void count_item(void *arg, int i)
{
    atomic_int *seen = arg;

    atomic_fetch_add(&seen[i], 1);
}

static void parallel_for_runs_every_item_once(void **state)
{
    static atomic_int seen[1000];

    assert_int_equal(kwk_parallel_for(1000, count_item, seen, NULL), KWK_OK);
    assert_int_equal(kwk_parallel_for(0, count_item, seen, NULL), KWK_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(atomic_load(&seen[i]), 1);
}

static void nap_item(void *arg, int i)
{
    usleep(2000);
}

static void *long_for(void *arg)
{
    (void)kwk_parallel_for(400, nap_item, NULL, NULL);
    return NULL;
}

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void a_long_parallel_for_gives_way_to_other_jobs(void **state)
{
    pthread_t t;
    probe p = {0};

    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    assert_int_equal(pthread_create(&t, NULL, long_for, NULL), 0); // 400 ms or more in all
    usleep(20000);
    const double start = seconds(CLOCK_MONOTONIC);
    assert_int_equal(run_probe(&p, NULL), KWK_OK);
    assert_true(seconds(CLOCK_MONOTONIC) - start < 0.2);
    pthread_join(t, NULL);
}

static void an_idle_team_uses_no_cpu(void **state)
{
    probe p = {0};

    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(run_probe(&p, NULL), KWK_OK);
    usleep(20000);
    const double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
    usleep(300000);
    assert_true(seconds(CLOCK_PROCESS_CPUTIME_ID) - before < 0.005);
}

static void the_callers_affinity_stays_its_own(void **state)
{
    cpu_set_t before, after;
    probe p = {0};

    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(run_probe(&p, NULL), KWK_OK);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static atomic_int signals_here, signals_elsewhere;
static pthread_t host;

static void on_signal(int number)
{
    atomic_fetch_add(pthread_equal(pthread_self(), host) ? &signals_here : &signals_elsewhere, 1);
}

static void the_hosts_signals_are_not_handled_by_the_team(void **state)
{
    probe p = {0};

    host = pthread_self();
    assert_true(signal(SIGUSR1, on_signal) != SIG_ERR);
    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    assert_int_equal(run_probe(&p, NULL), KWK_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_true(atomic_load(&signals_here) > 0);
    assert_int_equal(atomic_load(&signals_elsewhere), 0);
    assert_true(signal(SIGUSR1, SIG_DFL) != SIG_ERR);
}

/* In a child: exit status 0 when its own steps work. */
static int use_in_child(void)
{
    probe p = {0};
    static atomic_int seen[10];

    if (run_probe(&p, NULL) != KWK_OK || atomic_load(&p.calls) != p.n)
        return 1;
    if (kwk_parallel_for(10, count_item, seen, NULL) != KWK_OK || atomic_load(&seen[9]) != 1)
        return 2;
    return 0;
}

static void wait_for_child(pid_t pid)
{
    int status = -1;

    for (int ms = 0; ms < 20000; ms += 5) {
        const pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) {
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
            return;
        }
        usleep(5000);
    }
    kill(pid, 9);
    waitpid(pid, &status, 0);
    fail_msg("the child hangs");
}

static atomic_int stop;

static void *keep_busy(void *arg)
{
    probe p = {.nap_us = 300};

    while (!atomic_load(&stop))
        if (run_probe(&p, NULL) != KWK_OK)
            abort();
    return NULL;
}

static void fork_in_mid_use_leaves_parent_and_child_working(void **state)
{
    pthread_t t[2];

    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    atomic_store(&stop, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, keep_busy, NULL), 0);
    for (int i = 0; i < 20; i++) {
        const pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0)
            _exit(use_in_child());
        wait_for_child(pid);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(use_in_child(), 0); // and the parent goes on
}

static const char *self;

/* Run this program again with NAME=VALUE pairs and one scene; its exit status must be 0. */
static void rerun(const char *scene, const char *env1, const char *env2)
{
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        putenv((char *)env1);
        putenv((char *)env2);
        execl(self, self, scene, (char *)NULL);
        _exit(99);
    }
    wait_for_child(pid);
}

static int scene_limited(void) // OMP_THREAD_LIMIT=1: the barrier must not wait for a second thread
{
    probe p = {0};

    kwk_set_threads(4, NULL);
    return run_probe(&p, NULL) == KWK_OK && p.n == 1 && use_in_child() == 0 ? 0 : 1;
}

static int scene_dynamic(void) // OMP_DYNAMIC: whatever the runtime gives
{
    probe p = {0};

    kwk_set_threads(3, NULL);
    return run_probe(&p, NULL) == KWK_OK && atomic_load(&p.calls) == p.n ? 0 : 1;
}

static int scene_active(void) // OMP_WAIT_POLICY=active: the runtime would spin for ever
{
    probe p = {0};

    kwk_set_threads(2, NULL);
    for (int i = 0; i < 20; i++)
        run_probe(&p, NULL);
    usleep(20000);
    const double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
    usleep(200000);
    return seconds(CLOCK_PROCESS_CPUTIME_ID) - before < 0.005 ? 0 : 1;
}

static int scene_threads(void) // KWKER_THREADS=3
{
    probe p = {0};

    return kwk_threads() == 3 && run_probe(&p, NULL) == KWK_OK && p.n == 3 ? 0 : 1;
}

static void a_thread_limit_of_the_openmp_runtime_is_obeyed(void **state)
{
    rerun("limited", "OMP_THREAD_LIMIT=1", "KWKER_THREADS=2");
}

static void dynamic_adjustment_of_the_openmp_runtime_is_survived(void **state)
{
    rerun("dynamic", "OMP_DYNAMIC=true", "OMP_PROC_BIND=true");
}

static void an_idle_team_uses_no_cpu_under_an_active_wait_policy(void **state)
{
    rerun("active", "OMP_WAIT_POLICY=active", "GOMP_SPINCOUNT=infinite");
}

static void the_environment_sets_the_number_of_threads(void **state)
{
    rerun("threads", "KWKER_THREADS=3", "OMP_NUM_THREADS=1");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_runs_once_on_every_thread_of_the_team),
        cmocka_unit_test(a_thread_count_out_of_range_is_refused),
        cmocka_unit_test(a_refused_job_gives_its_error_and_no_work),
        cmocka_unit_test(a_job_that_asks_for_more_runs_again),
        cmocka_unit_test(a_call_from_inside_a_job_is_refused_and_does_not_hang),
        cmocka_unit_test(four_threads_at_once_take_turns),
        cmocka_unit_test(parallel_for_runs_every_item_once),
        cmocka_unit_test(a_long_parallel_for_gives_way_to_other_jobs),
        cmocka_unit_test(an_idle_team_uses_no_cpu),
        cmocka_unit_test(the_callers_affinity_stays_its_own),
        cmocka_unit_test(the_hosts_signals_are_not_handled_by_the_team),
        cmocka_unit_test(fork_in_mid_use_leaves_parent_and_child_working),
        cmocka_unit_test(a_thread_limit_of_the_openmp_runtime_is_obeyed),
        cmocka_unit_test(dynamic_adjustment_of_the_openmp_runtime_is_survived),
        cmocka_unit_test(an_idle_team_uses_no_cpu_under_an_active_wait_policy),
        cmocka_unit_test(the_environment_sets_the_number_of_threads),
    };

    self = argv[0];
    if (argc == 2) {
        if (!strcmp(argv[1], "limited"))
            return scene_limited();
        if (!strcmp(argv[1], "dynamic"))
            return scene_dynamic();
        if (!strcmp(argv[1], "active"))
            return scene_active();
        if (!strcmp(argv[1], "threads"))
            return scene_threads();
        return 98;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
