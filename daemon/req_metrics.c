/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics: the counters, and what their owners hold at this moment, as Prometheus text.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/daemon.h"

static const struct {
    const char *name, *type, *help;
} model_metrics[] = {
    {"model_packed_bytes", "gauge", "Bytes of a model's packed weights."},
    {"model_kv_blocks", "gauge", "KV blocks of a model's pool."},
    {"model_kv_blocks_free", "gauge", "Of them, free ones."},
    {"model_steps_total", "counter", "Steps of a model."},
    {"model_rows_total", "counter", "Rows of its steps."},
    {"model_rows_max", "gauge", "Most rows of one of its steps."},
    {"model_matmul_gemv_total", "counter", "Matrix products with one row."},
    {"model_matmul_small_total", "counter", "Matrix products with a few rows."},
    {"model_matmul_gemm_total", "counter", "Matrix products with many rows."},
    {"model_attention_decode_total", "counter", "Attention items with one row of a sequence."},
    {"model_attention_prefill_total", "counter", "Attention items with more."},
    {"model_attention_merges_total", "counter", "Merges of attention's splits."},
    {"model_kv_blocks_copied_total", "counter", "KV blocks copied on write."},
};
enum { N_MODEL_METRICS = sizeof model_metrics / sizeof *model_metrics };

typedef struct rows {
    kwkd_page *page;
    int i; // which of the above
} rows;

static void add_model(void *arg, const kwkd_model_row *row)
{
    const rows *r = arg;
    kwk_model_info info;
    kwk_counters c = {0};
    char label[2 * KWK_NAME_MAX];

    if (row->state != KWKD_READY)
        return;
    kwk_model_describe(row->model->engine, &info);
    kwk_model_counters(row->model->engine, &c);
    const uint64_t values[N_MODEL_METRICS] = {
        info.packed_bytes,
        info.kv_blocks,
        info.kv_blocks_free,
        c.steps,
        c.rows,
        c.max_rows,
        c.gemv,
        c.small,
        c.gemm,
        c.attn_decode,
        c.attn_prefill,
        c.attn_merges,
        c.blocks_copied,
    };
    kwkd_page_add(r->page, "kwker_%s{model=\"%s\"} %" PRIu64 "\n", model_metrics[r->i].name,
                  kwkd_label(row->name, label, sizeof label), values[r->i]);
}

static uint64_t session_bytes(kwkd_sessions *t)
{
    uint64_t n;

    pthread_mutex_lock(&t->lock);
    n = t->bytes;
    pthread_mutex_unlock(&t->lock);
    return n;
}

int kwkd_req_metrics(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    kwkd_page page = {0};
    int running, waiting, ready, loading, rc;
    rows r = {.page = &page};
    kwk_map m;

    kwkd_scheduler_counts(d->scheduler, &running, &waiting);
    kwkd_store_counts(d->store, &ready, &loading, NULL);
    kwkd_page_metrics(&page, &d->metrics);
    kwkd_page_value(&page, "uptime_seconds", "gauge", "Time since the start.",
                    (kwkd_now_us() - d->start_us) / 1000000);
    kwkd_page_value(&page, "sessions", "gauge", "Open sessions.",
                    (uint64_t)kwkd_sessions_count(&d->sessions));
    kwkd_page_value(&page, "session_bytes", "gauge", "Their shared memory.",
                    session_bytes(&d->sessions));
    kwkd_page_value(&page, "running", "gauge", "Generations that run.", (uint64_t)running);
    kwkd_page_value(&page, "queued", "gauge", "Generations that wait.", (uint64_t)waiting);
    kwkd_page_value(&page, "models", "gauge", "Models that are loaded.", (uint64_t)ready);
    kwkd_page_value(&page, "models_loading", "gauge", "Models that are being loaded.",
                    (uint64_t)loading);
    for (r.i = 0; r.i < N_MODEL_METRICS; r.i++) {
        kwkd_page_head(&page, model_metrics[r.i].name, model_metrics[r.i].type,
                       model_metrics[r.i].help);
        kwkd_store_each(d->store, add_model, &r);
    }
    rc = page.failed ? kwk_fail(err, KWK_ENOMEM, "the text of the metrics") : KWK_OK;
    if (rc == KWK_OK) {
        kwk_reply_begin(&m, &call->reply);
        kwk_map_str(&m, "text", page.text);
        rc = kwk_map_end(&m, err);
    }
    free(page.text);
    return rc;
}
