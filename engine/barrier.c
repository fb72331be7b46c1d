/* SPDX-License-Identifier: Apache-2.0
 *
 * Spin-then-futex barrier. Sleeping and waking cost some 20 to 50 us, so a waiter spins up to about
 * that long; waits far longer than it (an idle team, a CPU taken away by another process) shorten
 * the spin of the next ones, and waits within reach of it lengthen it again.
 */
#include "engine/barrier.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_LEAST_NS = 2000,
    SPIN_MOST_NS = 60000,
    SPIN_BATCH = 32,      // pauses between two looks at the clock
    LONG_WAIT_NS = 400000 // spinning cannot have been the right thing
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void kwk_barrier_init(kwk_barrier *b, int n, int shared_cpu)
{
    atomic_init(&b->arrived, 0);
    atomic_init(&b->round, 0);
    atomic_init(&b->sleepers, 0);
    b->n = n;
    b->spin_max_ns = shared_cpu ? 0 : SPIN_MOST_NS;
    atomic_init(&b->spin_ns, b->spin_max_ns);
}

static void sleep_until(kwk_barrier *b, int round)
{
    /* Sequentially consistent with release(): either it sees this sleeper, or the kernel sees the
     * new round and does not sleep. */
    atomic_fetch_add(&b->sleepers, 1);
    while (atomic_load(&b->round) == round)
        syscall(SYS_futex, &b->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    atomic_fetch_sub(&b->sleepers, 1);
}

static void adapt(kwk_barrier *b, int spin, int64_t waited)
{
    if (waited > LONG_WAIT_NS)
        spin /= 2;
    else
        spin = spin * 2 + 1;
    if (spin < SPIN_LEAST_NS)
        spin = SPIN_LEAST_NS;
    if (spin > b->spin_max_ns)
        spin = b->spin_max_ns;
    atomic_store_explicit(&b->spin_ns, spin, memory_order_relaxed);
}

static void release(kwk_barrier *b, int round)
{
    atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
    atomic_store(&b->round, (int)((unsigned)round + 1));
    if (atomic_load(&b->sleepers))
        syscall(SYS_futex, &b->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int spin_batch(const kwk_barrier *b, int round)
{
    for (int i = 0; i < SPIN_BATCH; i++) {
        if (atomic_load_explicit(&b->round, memory_order_acquire) != round)
            return 1;
        relax();
    }
    return 0;
}

void kwk_barrier_wait(kwk_barrier *b)
{
    const int round = atomic_load_explicit(&b->round, memory_order_relaxed);

    if (b->n == 1)
        return;
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) == b->n - 1) {
        release(b, round);
        return;
    }

    if (spin_batch(b, round))
        return;
    const int spin = atomic_load_explicit(&b->spin_ns, memory_order_relaxed);
    const int64_t start = now_ns();
    while (now_ns() - start < spin)
        if (spin_batch(b, round))
            return;
    sleep_until(b, round);
    adapt(b, spin, now_ns() - start);
}
