/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of kwk-bench that are not the main program.
 */
#ifndef KWK_ENGINE_BENCH_H
#define KWK_ENGINE_BENCH_H

double kwk_bench_now(void); // seconds, monotonic

/* The most bytes a second that n threads of the team read from a buffer larger than the caches;
 * 0: no memory for it. */
double kwk_bench_read_bandwidth(int n_threads);

/* Time every kernel variant that this CPU runs, one thread, the best of so many repeats, and print
 * a table. 0 or 1 (an exit status). */
int kwk_bench_kernels(int json, int repeats);

#endif
