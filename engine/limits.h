/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process may use of the machine: cores by CPU affinity, CPU time and memory by cgroup
 * (v2, v1). Reads /proc and /sys only; keeps nothing but the affinity seen when the library was
 * loaded. Any thread. `root` is a prefix of those paths: "" outside tests.
 */
#ifndef KWK_ENGINE_LIMITS_H
#define KWK_ENGINE_LIMITS_H

#include <sched.h>
#include <stdint.h>

enum { KWK_MAX_THREADS = 256 };

typedef struct kwk_cores {
    int n;                           // physical cores, 1..KWK_MAX_THREADS
    int n_cpus;                      // logical CPUs
    cpu_set_t all;                   // every CPU the process may run on; empty: unknown
    cpu_set_t core[KWK_MAX_THREADS]; // (n) the CPUs of each core, a subset of all
} kwk_cores;

/* Cores that the process may use by its affinity. OpenMP runtimes may bind the main thread to one
 * core (OMP_PROC_BIND and its like); then the CPUs of their places count, or without places the
 * affinity at load. */
void kwk_limits_cores(kwk_cores *c, const char *root);

/* Whole CPUs that the cgroup's quota allows, at least 1; INT32_MAX: no quota. */
int kwk_limits_quota(const char *root);

/* Bytes of memory: the machine's or the cgroup's limit, whichever is less. */
uint64_t kwk_limits_memory(const char *root);

/* Threads to use when nobody chose: min(cores, quota). */
int kwk_limits_threads(const char *root);

#endif
