/* SPDX-License-Identifier: Apache-2.0
 *
 * Models by name: load on a loader thread with progress and cancel, unload, pin, evict. Many may
 * ask for a model: it is loaded once. Opens only what the configuration names or lies under its
 * model directories; anything else comes by descriptor. Knows no request and no session.
 *
 * A kwkd_model is reference-counted: whoever runs it holds it, so unloading only takes the name
 * away.
 */
#ifndef KWK_DAEMON_STORE_H
#define KWK_DAEMON_STORE_H

#include <stdatomic.h>

#include "daemon/conf.h"
#include "daemon/metrics.h"
#include "engine/kwk.h"

struct kwkd_job;
struct kwkd_task;

typedef struct kwkd_store kwkd_store;

typedef struct kwkd_model {
    atomic_int refs;
    kwkd_store *store;
    char *name;
    kwk_model *engine;
    kwk_model_info info;
    size_t max_token_bytes;   // most bytes of a token's text
    int has_text;             // the source had a tokenizer
    int max_tokens;           // longest sequence: the context, or what the KV pool holds
    _Atomic uint64_t used_us; // last use
    struct kwkd_model *next;  // store's list of the released

    /* The engine thread's part: its work on this model. */
    struct {
        struct kwkd_model *prev, *next; // scheduler's list of models with work
        int listed;
        struct kwkd_job *first_job, *last_job;    // by arrival
        struct kwkd_task *first_task, *last_task; // by arrival
    } lane;
} kwkd_model;

kwkd_model *kwkd_model_ref(kwkd_model *m);
void kwkd_model_unref(kwkd_model *m); // NULL allowed; the memory is freed on a loader thread

/* What to load. Strings are copied. */
typedef struct kwkd_load {
    const char *name;
    const char *path;      // or NULL and
    int fd;                //   a pack's descriptor, taken on success
    const char *precision; // NULL: the model's own
    int mix_bits, max_ctx, pin;
    uint32_t uid;   // who asks
    int configured; // 1: from the configuration: any path, and only root or we may unload it
} kwkd_load;

/** Called once when a load ends, on a loader thread, or in kwkd_store_free. rc: its result. */
typedef void kwkd_loaded_fn(void *arg, int rc, const kwk_error *err);

int kwkd_store_new(kwkd_store **out, kwkd_metrics *metrics, kwk_error *err); // starts the loaders
void kwkd_store_configure(kwkd_store *s, const kwkd_conf *conf);
void kwkd_store_stop(kwkd_store *s); // cancels what loads; nothing new starts
void kwkd_store_free(kwkd_store *s); // every kwkd_model must have been released

/**
 * Load, or join the load that runs.
 *
 * @param done  NULL: do not wait; else called with arg when the load has ended, or not at all if it
 *              is ready already
 *
 * @return 1 ready already (the same model), 0 it loads; KWK_EINVAL another model has the name, bad
 *         option; KWK_EPERM the path is not under a model directory; KWK_ENOENT no such path;
 *         KWK_EUNSUPPORTED a descriptor of a kind that could block us; KWK_EBUSY too many loads
 * wait
 */
int kwkd_store_load(kwkd_store *s, const kwkd_load *load, kwkd_loaded_fn *done, void *arg,
                    kwk_error *err);

/** Take the name away; a running load is cancelled. KWK_ENOENT; KWK_EPERM uid neither loaded it nor
 * is root nor the daemon's user. */
int kwkd_store_unload(kwkd_store *s, const char *name, uint32_t uid, kwk_error *err);
int kwkd_store_pin(kwkd_store *s, const char *name, int pin, uint32_t uid, kwk_error *err);

/**
 * A model to run, one reference.
 *
 * @param name  NULL: the default: the configured one, else the only one
 *
 * @return KWK_OK; KWK_ENOENT; KWK_EINVAL no name and no default; KWK_EBUSY it loads (retry_ms is
 * set); or the error that its load ended with
 */
int kwkd_store_find(kwkd_store *s, const char *name, kwkd_model **out, int *retry_ms,
                    kwk_error *err);

typedef enum kwkd_state { KWKD_LOADING, KWKD_READY, KWKD_FAILED } kwkd_state;

/* One row of the list of models. */
typedef struct kwkd_model_row {
    const char *name;
    kwkd_state state;
    double progress;   // 0…1
    const char *error; // failed
    int code;          // failed: KWK_E…
    const char *path;  // "" for a pack
    uint32_t uid;      // who loaded it
    int pin;
    kwkd_model *model; // ready
} kwkd_model_row;

/** Call fn for each model, sorted by name, under the store's lock: fn must not call the store. */
void kwkd_store_each(kwkd_store *s, void (*fn)(void *arg, const kwkd_model_row *row), void *arg);

/** Counts for status and the log. progress: of the loads, 0…1. Any may be NULL. */
void kwkd_store_counts(kwkd_store *s, int *ready, int *loading, double *progress);

/** Once a second: unload what was not used for keep_alive_s. */
void kwkd_store_tick(kwkd_store *s);

#endif
