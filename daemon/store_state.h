/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the store: its state, shared by store.c (names and who may do what), store_load.c (the
 * loader threads) and model.c (a loaded model). Everything in it is under its lock, but for atomics
 * and what a comment says. Nobody else includes this.
 */
#ifndef KWK_DAEMON_STORE_STATE_H
#define KWK_DAEMON_STORE_STATE_H

#include <pthread.h>
#include <sys/types.h>

#include "daemon/store.h"

enum { KWKD_PATHS, KWKD_PACKS_BY_FD, KWKD_LOADERS };

typedef struct kwkd_waiter {
    struct kwkd_waiter *next;
    kwkd_loaded_fn *done;
    void *arg;
} kwkd_waiter;

typedef struct kwkd_entry {
    struct kwkd_entry *next; // sorted by name
    kwkd_store *store;
    char *name, *path, *precision; // path "" for a pack; precision NULL: own
    int fd;                        // pack, until loaded; -1
    dev_t dev;
    ino_t ino; // of the pack
    int mix_bits, max_ctx, pin, configured;
    uint32_t uid;
    kwkd_state state;
    int taken;   // a loader works on it
    int dropped; // out of the list; its loader frees it
    int checked; // its size was held against the budget
    atomic_int cancel;
    _Atomic uint64_t loaded, total; // bytes
    kwk_error error;
    kwkd_model *model;
    kwkd_waiter *waiters;
} kwkd_entry;

typedef struct kwkd_loader {
    kwkd_store *store;
    int kind;
    pthread_t thread;
    int started;
} kwkd_loader;

struct kwkd_store {
    pthread_mutex_t lock;
    pthread_cond_t change;
    kwkd_metrics *metrics;
    const kwkd_conf *conf; // borrowed; replaced under the lock
    kwkd_entry *entries;
    kwkd_model *released; // to be freed
    int stopping;
    kwkd_loader loaders[KWKD_LOADERS];
};

/* ---- store.c; under the lock ----------------------------------------------------------------- */

/** Take e out of the list: what loads is left to its loader, the rest is freed. Who waited for it
 * is put before *waiters, to be told without the lock. */
void kwkd_store_drop(kwkd_store *s, kwkd_entry *e, kwkd_waiter **waiters);

void kwkd_store_evict(kwkd_store *s, kwkd_entry *e, const char *why);
void kwkd_entry_free(kwkd_entry *e); // not in the list any more; NULL allowed

/* without the lock */
void kwkd_store_tell(kwkd_waiter *waiters, int rc, const kwk_error *err);
void kwkd_store_tell_cancelled(kwkd_waiter *waiters, const char *why);

/* ---- store_load.c
 * -------------------------------------------------------------------------------- */

void *kwkd_store_loader(void *loader); // a loader's thread

/* ---- model.c
 * ------------------------------------------------------------------------------------- */

/** A model for its entry, one reference; takes `engine` on success. */
int kwkd_model_new(kwkd_model **out, const kwkd_entry *e, kwk_model *engine, kwk_error *err);
void kwkd_model_destroy(kwkd_model *m);
int kwkd_model_is_idle(const kwkd_model *m); // only the store holds it

#endif
