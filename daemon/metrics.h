/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of the daemon and their Prometheus text. Counters are atomics that any thread adds to;
 * gauges are read from their owners when the text is made (req_metrics.c).
 */
#ifndef KWK_DAEMON_METRICS_H
#define KWK_DAEMON_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "proto/msg.h"

enum { KWKD_ROW_BUCKETS = 12, KWKD_TIME_BUCKETS = 12, KWKD_ERRORS = 16, KWKD_FINISHES = 8 };

typedef struct kwkd_histogram {
    _Atomic uint64_t bucket[16]; // not cumulative; the last is +Inf
    _Atomic uint64_t count, sum; // sum in the unit of the observed values
} kwkd_histogram;

/* Zero-initialise. */
typedef struct kwkd_metrics {
    _Atomic uint64_t requests[KWK_OP_END];
    _Atomic uint64_t errors[KWKD_ERRORS];     // by -code
    _Atomic uint64_t finished[KWKD_FINISHES]; // by kwk_finish; 0: by an error
    _Atomic uint64_t prompt_tokens, new_tokens, submissions;
    _Atomic uint64_t steps, max_rows, preempted, retried;
    _Atomic uint64_t control_rx, control_tx; // bytes over NNG
    _Atomic uint64_t listener_repairs, sessions_opened, sessions_refused, sessions_killed;
    _Atomic uint64_t loads, load_failures, evictions;
    kwkd_histogram step_rows;      // rows
    kwkd_histogram first_token_us; // from the request to the first token
    kwkd_histogram step_us;
} kwkd_metrics;

static inline void kwkd_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static inline uint64_t kwkd_counted(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}
void kwkd_count_rows(kwkd_metrics *m, uint64_t rows); // a step of so many rows
void kwkd_observe_us(kwkd_histogram *h, uint64_t us);

/* ---- text
 * ------------------------------------------------------------------------------------------- */

/** A growing text. The first failure sticks: check `failed` at the end. Zero-initialise;
 * free(text). */
typedef struct kwkd_page {
    char *text;
    size_t n, capacity;
    int failed; // out of memory
} kwkd_page;
void kwkd_page_add(kwkd_page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** "# HELP" and "# TYPE" lines of a metric; type "counter", "gauge", "histogram". */
void kwkd_page_head(kwkd_page *p, const char *name, const char *type, const char *help);

/** A metric without labels, with its head. */
void kwkd_page_value(kwkd_page *p, const char *name, const char *type, const char *help,
                     uint64_t value);

/** A label's value, escaped as the format wants it, into buf; cut where it does not fit. */
const char *kwkd_label(const char *value, char *buf, size_t size);

/** All counters of m. */
void kwkd_page_metrics(kwkd_page *p, const kwkd_metrics *m);

#endif
