/* SPDX-License-Identifier: Apache-2.0
 *
 * Histograms and the Prometheus text of the counters. Any thread.
 */
#include "daemon/metrics.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t row_limits[KWKD_ROW_BUCKETS] = {1,  2,   4,   8,   16,   32,
                                                      64, 128, 256, 512, 1024, 4096};
static const uint32_t us_limits[KWKD_TIME_BUCKETS] = {
    500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 1000000, 5000000, 30000000};

static void observe(kwkd_histogram *h, const uint32_t *limits, int n, uint64_t value)
{
    int i = 0;

    while (i < n && value > limits[i])
        i++;
    kwkd_count(&h->bucket[i], 1);
    kwkd_count(&h->count, 1);
    kwkd_count(&h->sum, value);
}

void kwkd_count_rows(kwkd_metrics *m, uint64_t rows)
{
    kwkd_count(&m->steps, 1);
    observe(&m->step_rows, row_limits, KWKD_ROW_BUCKETS, rows);
    if (rows > kwkd_counted(&m->max_rows)) // one thread steps
        atomic_store_explicit(&m->max_rows, rows, memory_order_relaxed);
}

void kwkd_observe_us(kwkd_histogram *h, uint64_t us)
{
    observe(h, us_limits, KWKD_TIME_BUCKETS, us);
}

void kwkd_page_add(kwkd_page *p, const char *fmt, ...)
{
    for (int tries = 0; !p->failed && tries < 2; tries++) {
        const size_t room = p->capacity - p->n;
        size_t more;
        char *grown;
        va_list args;
        int n;

        va_start(args, fmt);
        n = vsnprintf(p->text ? p->text + p->n : NULL, room, fmt, args);
        va_end(args);
        if (n >= 0 && (size_t)n < room) {
            p->n += (size_t)n;
            return;
        }
        more = p->capacity + (n > 0 ? (size_t)n : 0) + 4096;
        grown = n < 0 ? NULL : realloc(p->text, more);
        if (!grown) {
            p->failed = 1;
            return;
        }
        p->text = grown;
        p->capacity = more;
    }
}

void kwkd_page_head(kwkd_page *p, const char *name, const char *type, const char *help)
{
    kwkd_page_add(p, "# HELP kwker_%s %s\n# TYPE kwker_%s %s\n", name, help, name, type);
}

void kwkd_page_value(kwkd_page *p, const char *name, const char *type, const char *help,
                     uint64_t value)
{
    kwkd_page_head(p, name, type, help);
    kwkd_page_add(p, "kwker_%s %" PRIu64 "\n", name, value);
}

const char *kwkd_label(const char *value, char *buf, size_t size)
{
    size_t n = 0;

    for (; *value && n + 3 < size; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            buf[n++] = '\\';
        buf[n++] = *value == '\n' ? 'n' : *value;
    }
    buf[n] = 0;
    return buf;
}

/* scale: what a limit and the sum are divided by (1 rows; 1e6 microseconds → seconds). */
static void histogram(kwkd_page *p, const char *name, const char *help, const kwkd_histogram *h,
                      const uint32_t *limits, int n, double scale)
{
    uint64_t total = 0;

    kwkd_page_head(p, name, "histogram", help);
    for (int i = 0; i < n; i++) {
        total += kwkd_counted(&h->bucket[i]);
        kwkd_page_add(p, "kwker_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, limits[i] / scale,
                      total);
    }
    total += kwkd_counted(&h->bucket[n]);
    kwkd_page_add(p, "kwker_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, total);
    kwkd_page_add(p, "kwker_%s_sum %.9g\n", name, (double)kwkd_counted(&h->sum) / scale);
    kwkd_page_add(p, "kwker_%s_count %" PRIu64 "\n", name, total);
}

void kwkd_page_metrics(kwkd_page *p, const kwkd_metrics *m)
{
    static const char *const finishes[KWKD_FINISHES] = {
        "error", "eos", "length", "cancel", "slow_client", "shutdown", NULL, NULL};
    const struct {
        const char *name, *help;
        const _Atomic uint64_t *value;
    } counters[] = {
        {"prompt_tokens_total", "Prompt tokens computed.", &m->prompt_tokens},
        {"new_tokens_total", "Tokens generated.", &m->new_tokens},
        {"submissions_total", "Submissions of sequences' tokens taken.", &m->submissions},
        {"steps_total", "Steps of the engine.", &m->steps},
        {"preempted_total", "Generations put back because KV blocks ran out.", &m->preempted},
        {"steps_retried_total", "Steps run again one sequence at a time after an error.",
         &m->retried},
        {"control_received_bytes_total", "Bytes received over NNG.", &m->control_rx},
        {"control_sent_bytes_total", "Bytes sent over NNG.", &m->control_tx},
        {"listener_repairs_total", "Times that NNG's listener had to be made anew.",
         &m->listener_repairs},
        {"sessions_opened_total", "Sessions opened.", &m->sessions_opened},
        {"sessions_refused_total", "Connections refused at the door.", &m->sessions_refused},
        {"sessions_killed_total", "Sessions ended for breaking the protocol.", &m->sessions_killed},
        {"loads_total", "Models loaded.", &m->loads},
        {"load_failures_total", "Loads that failed.", &m->load_failures},
        {"evictions_total", "Models unloaded for room or age.", &m->evictions},
    };

    kwkd_page_head(p, "requests_total", "counter", "Control requests, by operation.");
    for (int i = 1; i < KWK_OP_END; i++)
        kwkd_page_add(p, "kwker_requests_total{op=\"%s\"} %" PRIu64 "\n", kwk_op_name((kwk_op)i),
                      kwkd_counted(&m->requests[i]));
    kwkd_page_head(p, "errors_total", "counter", "Control requests answered by an error, by code.");
    for (int i = 1; i < KWKD_ERRORS; i++)
        if (strcmp(kwk_error_name(-i), "E?"))
            kwkd_page_add(p, "kwker_errors_total{error=\"%s\"} %" PRIu64 "\n", kwk_error_name(-i),
                          kwkd_counted(&m->errors[i]));
    kwkd_page_head(p, "generations_total", "counter", "Generations ended, by reason.");
    for (int i = 0; i < KWKD_FINISHES && finishes[i]; i++)
        kwkd_page_add(p, "kwker_generations_total{finish=\"%s\"} %" PRIu64 "\n", finishes[i],
                      kwkd_counted(&m->finished[i]));
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        kwkd_page_value(p, counters[i].name, "counter", counters[i].help,
                        kwkd_counted(counters[i].value));
    kwkd_page_value(p, "step_rows_max", "gauge", "Most rows of one step.",
                    kwkd_counted(&m->max_rows));
    histogram(p, "step_rows", "Rows of a step.", &m->step_rows, row_limits, KWKD_ROW_BUCKETS, 1);
    histogram(p, "step_seconds", "Time of a step.", &m->step_us, us_limits, KWKD_TIME_BUCKETS, 1e6);
    histogram(p, "first_token_seconds", "From the request to its first token.", &m->first_token_us,
              us_limits, KWKD_TIME_BUCKETS, 1e6);
}
