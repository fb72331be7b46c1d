/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/barrier.c: nobody passes early, however many threads and however long the waits.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "engine/barrier.h"
#include "tests/support/check.h"

enum { MAX_THREADS = 8 };

typedef struct run {
    kwk_barrier b;
    int n, rounds, nap_every; // the first thread naps for 1 ms every so many rounds; 0: never
    _Atomic int id;
    int mark[MAX_THREADS]; // plain: the barrier must order it
    _Atomic int early;
} run;

static void *take_part(void *arg)
{
    run *r = arg;
    const int id = atomic_fetch_add(&r->id, 1);

    for (int i = 1; i <= r->rounds; i++) {
        if (id == 0 && r->nap_every && i % r->nap_every == 0)
            usleep(1000);
        r->mark[id] = i;
        kwk_barrier_wait(&r->b);
        for (int t = 0; t < r->n; t++)
            if (r->mark[t] != i)
                atomic_fetch_add(&r->early, 1);
        kwk_barrier_wait(&r->b);
    }
    return NULL;
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check_run(int n, int rounds, int nap_every, int shared_cpu)
{
    static run r;
    pthread_t threads[MAX_THREADS];

    r = (run){.n = n, .rounds = rounds, .nap_every = nap_every};
    kwk_barrier_init(&r.b, n, shared_cpu);
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_part, &r), 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&r.early), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(r.mark[i], rounds);
    assert_int_equal(atomic_load(&r.b.sleepers), 0);
}

static void every_thread_sees_what_the_others_wrote(void **state)
{
    check_run(1, 1000, 0, 0);
    check_run(2, 5000, 0, 0);
    check_run(3, 500, 0, 1);
    check_run(MAX_THREADS, 200, 0, 1); // more threads than CPUs
}

static void long_waits_sleep_and_shorten_the_spin(void **state)
{
    const double before = cpu_seconds();

    check_run(2, 200, 1, 0); // 200 ms of naps
    assert_true(cpu_seconds() - before < 0.1);
}

static void *come_late(void *arg)
{
    run *r = arg;

    for (int i = 0; i < 50; i++) {
        const double until = cpu_seconds() + 20e-6; // busy: a nap would last too long
        while (cpu_seconds() < until)
            ;
        kwk_barrier_wait(&r->b);
    }
    return NULL;
}

static void spinning_recovers_when_waits_are_short_again(void **state)
{
    static run r;
    int best = 0;

    for (int attempt = 0; attempt < 50 && best < 20000; attempt++) { // others use this machine too
        pthread_t t;

        kwk_barrier_init(&r.b, 2, 0);
        atomic_store(&r.b.spin_ns, 0); // as after very long waits
        assert_int_equal(pthread_create(&t, NULL, come_late, &r), 0);
        for (int i = 0; i < 50; i++)
            kwk_barrier_wait(&r.b);
        pthread_join(t, NULL);
        if (atomic_load(&r.b.spin_ns) > best)
            best = atomic_load(&r.b.spin_ns);
    }
    assert_true(best >= 20000);
    assert_true(best <= r.b.spin_max_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_sees_what_the_others_wrote),
        cmocka_unit_test(long_waits_sleep_and_shorten_the_spin),
        cmocka_unit_test(spinning_recovers_when_waits_are_short_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
