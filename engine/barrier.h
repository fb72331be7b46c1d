/* SPDX-License-Identifier: Apache-2.0
 *
 * The barrier of the executor's team: a counter and a short spin, then a futex, so that a phase
 * costs well under a microsecond and an idle team costs nothing. How long to spin adapts to how
 * long the waits turn out to be. Knows nothing of what the team does. Threads: the n of the team.
 */
#ifndef KWK_ENGINE_BARRIER_H
#define KWK_ENGINE_BARRIER_H

#include <stdatomic.h>

typedef struct kwk_barrier {
    _Alignas(128) atomic_int arrived;
    _Alignas(128) atomic_int round; // the futex's word
    atomic_int sleepers;
    _Alignas(128) atomic_int spin_ns; // how long a waiter spins before it sleeps
    int n;                            // threads
    int spin_max_ns;
} kwk_barrier;

/* shared_cpu: more threads than CPUs, so that spinning keeps the awaited thread from running. */
void kwk_barrier_init(kwk_barrier *b, int n, int shared_cpu);

/* Returns when all n threads have called it; what they wrote before is visible after. */
void kwk_barrier_wait(kwk_barrier *b);

#endif
