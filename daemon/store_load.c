/* SPDX-License-Identifier: Apache-2.0
 *
 * The loader threads: one for paths, which also frees released models, one for packs, so that a
 * slow descriptor delays packs only. The store's lock is never held while loading.
 */
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/store_state.h"
#include "daemon/work.h"

/* Bytes of the other models, loaded or on the way. */
static uint64_t others(kwkd_store *s, const kwkd_entry *self)
{
    uint64_t sum = 0;

    for (const kwkd_entry *e = s->entries; e; e = e->next) {
        if (e == self)
            continue;
        if (e->state == KWKD_READY)
            sum += e->model->info.packed_bytes;
        else if (e->state == KWKD_LOADING && e->checked)
            sum += atomic_load(&e->total);
    }
    return sum;
}

static kwkd_entry *oldest_idle(kwkd_store *s)
{
    kwkd_entry *best = NULL;

    for (kwkd_entry *e = s->entries; e; e = e->next)
        if (e->state == KWKD_READY && !e->pin && kwkd_model_is_idle(e->model) &&
            (!best || atomic_load(&e->model->used_us) < atomic_load(&best->model->used_us)))
            best = e;
    return best;
}

/* Make room for `total` more bytes of e under the budget. */
static int make_room(kwkd_store *s, kwkd_entry *e, uint64_t total)
{
    const uint64_t budget = (uint64_t)s->conf->model_bytes;

    e->checked = 1;
    if (!budget)
        return KWK_OK;
    while (others(s, e) + total > budget) {
        kwkd_entry *victim = total <= budget ? oldest_idle(s) : NULL;
        if (!victim)
            return kwk_fail(
                &e->error, KWK_EFULL,
                "model of %llu bytes: others have %llu of the %llu that models may take",
                (unsigned long long)total, (unsigned long long)others(s, e),
                (unsigned long long)budget);
        kwkd_store_evict(s, victim, "room");
    }
    return KWK_OK;
}

static int progress(void *arg, uint64_t done, uint64_t total) // kwk_progress_fn
{
    kwkd_entry *e = arg;
    kwkd_store *s = e->store;
    int rc = KWK_OK;

    atomic_store(&e->total, total);
    atomic_store(&e->loaded, done);
    if (!e->checked) {
        pthread_mutex_lock(&s->lock);
        rc = make_room(s, e, total);
        pthread_mutex_unlock(&s->lock);
    }
    return rc < 0 || atomic_load(&e->cancel);
}

/* Load e, which this thread has taken. */
static void load(kwkd_store *s, kwkd_entry *e)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    const uint64_t start = kwkd_now_us();
    kwk_model *engine = NULL;
    kwkd_model *model = NULL;
    kwkd_waiter *waiters;
    kwk_error err = {0};
    int rc, dropped;

    o.precision = e->precision;
    o.mix_bits = e->mix_bits;
    o.max_ctx = e->max_ctx;
    o.progress = progress;
    o.progress_arg = e;
    pthread_mutex_lock(&s->lock);
    o.kv_bytes = (uint64_t)s->conf->kv_bytes;
    pthread_mutex_unlock(&s->lock);
    kwkd_log(KWKD_INFO, "model loading", "name=%s path=%s precision=%s uid=%u", e->name, e->path,
             e->precision, e->uid);
    rc = e->fd >= 0 ? kwk_model_open_fd(&engine, e->fd, &o, &err)
                    : kwk_model_open(&engine, e->path, &o, &err);
    if (rc == KWK_ECANCELED && e->error.code) { // it was the budget that cancelled
        err = e->error;
        rc = err.code;
    }
    if (rc == KWK_OK)
        rc = kwkd_model_new(&model, e, engine, &err);
    if (rc < 0) {
        kwk_model_free(engine);
        kwkd_count(&s->metrics->load_failures, 1);
        kwkd_log(KWKD_WARNING, "model failed", "name=%s error=%s message=%s", e->name,
                 kwk_error_name(rc), err.msg);
    } else {
        kwkd_count(&s->metrics->loads, 1);
        kwkd_log(KWKD_NOTICE, "model ready",
                 "name=%s type=%s precision=%s bytes=%lu context=%d ms=%lu", e->name,
                 model->info.model_type, model->info.precision,
                 (unsigned long)model->info.packed_bytes, model->max_tokens,
                 (unsigned long)((kwkd_now_us() - start) / 1000));
    }
    pthread_mutex_lock(&s->lock);
    waiters = e->waiters;
    e->waiters = NULL;
    e->taken = 0;
    e->model = model;
    e->state = rc < 0 ? KWKD_FAILED : KWKD_READY;
    e->error = err;
    if (e->fd >= 0)
        close(e->fd);
    e->fd = -1;
    dropped = e->dropped;
    pthread_mutex_unlock(&s->lock);
    if (dropped) { // unloaded meanwhile
        kwkd_model_unref(model);
        kwkd_entry_free(e);
        kwkd_store_tell_cancelled(waiters, "the model was unloaded");
    } else {
        kwkd_store_tell(waiters, rc, &err);
    }
}

static kwkd_entry *next_load(kwkd_store *s, int kind)
{
    for (kwkd_entry *e = s->entries; e; e = e->next)
        if (e->state == KWKD_LOADING && !e->taken && (e->fd >= 0) == (kind == KWKD_PACKS_BY_FD))
            return e;
    return NULL;
}

void *kwkd_store_loader(void *arg)
{
    kwkd_loader *l = arg;
    kwkd_store *s = l->store;

    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        kwkd_entry *e = next_load(s, l->kind);
        kwkd_model *m = l->kind == KWKD_PATHS ? s->released : NULL;
        if (m)
            s->released = m->next;
        else if (e)
            e->taken = 1;
        else {
            pthread_cond_wait(&s->change, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (m)
            kwkd_model_destroy(m);
        else
            load(s, e);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
