/* SPDX-License-Identifier: Apache-2.0
 *
 * The models by name: what is asked for, who may ask, what becomes of it. All state is under one
 * lock, held for moments. Functions of store.h: any thread.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/paths.h"
#include "daemon/store_state.h"
#include "daemon/work.h"

enum { LOADS_MAX = 16, MODELS_MAX = 256, RETRY_MS = 500 };

/* ---- entries
 * ------------------------------------------------------------------------------------------ */

void kwkd_entry_free(kwkd_entry *e)
{
    if (!e)
        return;
    assert(!e->waiters);
    if (e->fd >= 0)
        close(e->fd);
    free(e->name);
    free(e->path);
    free(e->precision);
    free(e);
}

static kwkd_entry **find(kwkd_store *s, const char *name) // where it is, or would be
{
    kwkd_entry **at = &s->entries;

    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    return at;
}

static kwkd_entry *lookup(kwkd_store *s, const char *name)
{
    kwkd_entry *e = *find(s, name);

    return e && !strcmp(e->name, name) ? e : NULL;
}

/* Take e out of the list. What loads is left to its loader; the rest is freed here. */
void kwkd_store_drop(kwkd_store *s, kwkd_entry *e, kwkd_waiter **waiters)
{
    kwkd_entry **at = find(s, e->name);

    assert(*at == e);
    *at = e->next;
    e->dropped = 1;
    atomic_store(&e->cancel, 1);
    if (e->taken)
        return;
    while (e->waiters) { // was queued
        kwkd_waiter *w = e->waiters;
        e->waiters = w->next;
        w->next = *waiters;
        *waiters = w;
    }
    if (e->model) {
        // kwkd_model_unref() would take the lock again; the store's is never the last but here
        if (atomic_fetch_sub_explicit(&e->model->refs, 1, memory_order_acq_rel) == 1) {
            e->model->next = s->released;
            s->released = e->model;
            pthread_cond_broadcast(&s->change);
        }
    }
    kwkd_entry_free(e);
}

void kwkd_store_tell(kwkd_waiter *waiters, int rc, const kwk_error *err)
{
    while (waiters) {
        kwkd_waiter *w = waiters;
        waiters = w->next;
        w->done(w->arg, rc, err);
        free(w);
    }
}

void kwkd_store_tell_cancelled(kwkd_waiter *waiters, const char *why)
{
    kwk_error err = {0};

    if (waiters)
        kwkd_store_tell(waiters, kwk_fail(&err, KWK_ECANCELED, "%s", why), &err);
}

void kwkd_store_evict(kwkd_store *s, kwkd_entry *e, const char *why)
{
    kwkd_waiter *none = NULL;

    kwkd_log(KWKD_NOTICE, "model evicted", "name=%s bytes=%lu reason=%s", e->name,
             (unsigned long)e->model->info.packed_bytes, why);
    kwkd_count(&s->metrics->evictions, 1);
    kwkd_store_drop(s, e, &none);
}

/* ---- store.h --------------------------------------------------------------------------------- */

static int same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static int same(const kwkd_entry *e, const kwkd_load *l, const char *path, const struct stat *st)
{
    if (!same_text(e->precision, l->precision) || e->mix_bits != l->mix_bits ||
        e->max_ctx != l->max_ctx)
        return 0;
    if (l->path)
        return e->path[0] && !strcmp(e->path, path);
    return !e->path[0] && e->dev == st->st_dev && e->ino == st->st_ino;
}

int kwkd_store_new(kwkd_store **out, kwkd_metrics *metrics, kwk_error *err)
{
    static const kwkd_conf nothing;
    kwkd_store *s = calloc(1, sizeof *s);

    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "the model store");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    s->metrics = metrics;
    s->conf = &nothing;
    for (int i = 0; i < KWKD_LOADERS; i++) {
        kwkd_loader *l = &s->loaders[i];
        int rc;
        l->store = s;
        l->kind = i;
        rc = pthread_create(&l->thread, NULL, kwkd_store_loader, l);
        if (rc) {
            kwkd_store_stop(s);
            kwkd_store_free(s);
            return kwk_fail(err, KWK_ENOMEM, "a loader thread: %s", strerror(rc));
        }
        l->started = 1;
        pthread_setname_np(l->thread, i == KWKD_PATHS ? "kwkd-load" : "kwkd-pack");
    }
    *out = s;
    return KWK_OK;
}

void kwkd_store_configure(kwkd_store *s, const kwkd_conf *conf)
{
    pthread_mutex_lock(&s->lock);
    s->conf = conf;
    pthread_mutex_unlock(&s->lock);
}

void kwkd_store_stop(kwkd_store *s)
{
    kwkd_waiter *waiters = NULL;

    pthread_mutex_lock(&s->lock);
    s->stopping = 1;
    for (kwkd_entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        if (e->state == KWKD_LOADING)
            kwkd_store_drop(s, e, &waiters);
    }
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    kwkd_store_tell_cancelled(waiters, "the daemon ends");
}

void kwkd_store_free(kwkd_store *s)
{
    kwkd_waiter *none = NULL;

    if (!s)
        return;
    for (int i = 0; i < KWKD_LOADERS; i++)
        if (s->loaders[i].started)
            pthread_join(s->loaders[i].thread, NULL);
    while (s->entries)
        kwkd_store_drop(s, s->entries, &none);
    while (s->released) {
        kwkd_model *m = s->released;
        s->released = m->next;
        kwkd_model_destroy(m);
    }
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int entry_new(kwkd_entry **out, kwkd_store *s, const kwkd_load *l, const char *path,
                     const struct stat *st, kwk_error *err)
{
    kwkd_entry *e = calloc(1, sizeof *e);

    if (!e)
        return kwk_fail(err, KWK_ENOMEM, "a model's entry");
    e->store = s;
    e->fd = -1;
    e->name = strdup(l->name);
    e->path = strdup(path);
    e->precision = l->precision ? strdup(l->precision) : NULL;
    if (!e->name || !e->path || (l->precision && !e->precision)) {
        kwkd_entry_free(e);
        return kwk_fail(err, KWK_ENOMEM, "a model's entry");
    }
    e->dev = st->st_dev;
    e->ino = st->st_ino;
    e->mix_bits = l->mix_bits;
    e->max_ctx = l->max_ctx;
    e->pin = l->pin;
    e->uid = l->uid;
    e->configured = l->configured;
    *out = e;
    return KWK_OK;
}

/* Under the lock: put a new entry into the list, in the place of a failed one. */
static int enter(kwkd_store *s, const kwkd_load *l, const char *path, const struct stat *st,
                 kwkd_entry **out, kwk_error *err)
{
    kwkd_entry *old = lookup(s, l->name), *e = NULL, **at;
    kwkd_waiter *none = NULL;
    int n = 0, loading = 0, rc;

    for (const kwkd_entry *c = s->entries; c; c = c->next) {
        n++;
        loading += c->state == KWKD_LOADING;
    }
    if (s->stopping)
        return kwk_fail(err, KWK_ECLOSED, "the daemon ends");
    if (loading >= LOADS_MAX && !l->configured)
        return kwk_fail(err, KWK_EBUSY, "%d models are being loaded", loading);
    if (n >= MODELS_MAX)
        return kwk_fail(err, KWK_EFULL, "%d models are loaded, the most possible", n);
    rc = entry_new(&e, s, l, path, st, err);
    if (rc < 0)
        return rc;
    if (old) // failed
        kwkd_store_drop(s, old, &none);
    if (!l->path)
        e->fd = l->fd;
    at = find(s, l->name);
    e->next = *at;
    *at = e;
    pthread_cond_broadcast(&s->change);
    *out = e;
    return KWK_OK;
}

static int may_change(const kwkd_entry *e, uint32_t uid)
{
    return uid == 0 || uid == geteuid() || (uid == e->uid && !e->configured);
}

/* Under the lock, everything checked. *w is used when there is something to wait for. */
static int load_locked(kwkd_store *s, const kwkd_load *l, const char *path, const struct stat *st,
                       kwkd_waiter **w, kwk_error *err)
{
    kwkd_entry *e = lookup(s, l->name);
    int rc;

    if (e && e->state != KWKD_FAILED && !same(e, l, path, st))
        return kwk_fail(err, KWK_EINVAL,
                        "model '%s' is there already, from another source or with other options",
                        l->name);
    if (e && e->state == KWKD_FAILED && !may_change(e, l->uid))
        return kwk_fail(err, KWK_EPERM, "model '%s' belongs to another user", l->name);
    if (!e || e->state == KWKD_FAILED) {
        rc = enter(s, l, path, st, &e, err);
        if (rc < 0)
            return rc;
    } else if (!l->path) {
        close(l->fd); // taken, and not needed
    }
    if (l->pin && may_change(e, l->uid))
        e->pin = 1;
    if (e->state == KWKD_READY)
        return 1;
    if (*w) {
        (*w)->next = e->waiters;
        e->waiters = *w;
        *w = NULL;
    }
    return 0;
}

int kwkd_store_load(kwkd_store *s, const kwkd_load *l, kwkd_loaded_fn *done, void *arg,
                    kwk_error *err)
{
    kwkd_waiter *w = done ? calloc(1, sizeof *w) : NULL;
    struct stat st = {0};
    char *path = NULL;
    int rc = KWK_OK;

    if (done && !w)
        return kwk_fail(err, KWK_ENOMEM, "a waiting request");
    if (w)
        *w = (kwkd_waiter){.done = done, .arg = arg};
    if (!l->path) {
        rc = kwkd_pack_check(l->fd, &st, err);
    } else if (l->configured) {
        path = realpath(l->path, NULL); // missing: the load says so
    } else { // the lock also keeps the configuration; resolving touches model directories only
        pthread_mutex_lock(&s->lock);
        rc = kwkd_path_resolve(s->conf, l->path, &path, err);
        pthread_mutex_unlock(&s->lock);
    }
    if (rc == KWK_OK) {
        pthread_mutex_lock(&s->lock);
        rc = load_locked(s, l, path ? path : l->path ? l->path : "", &st, &w, err);
        pthread_mutex_unlock(&s->lock);
    }
    free(w);
    free(path);
    return rc;
}

int kwkd_store_unload(kwkd_store *s, const char *name, uint32_t uid, kwk_error *err)
{
    kwkd_waiter *waiters = NULL;
    kwkd_entry *e;
    int rc = KWK_OK;

    pthread_mutex_lock(&s->lock);
    e = lookup(s, name);
    if (!e)
        rc = kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", name);
    else if (!may_change(e, uid))
        rc = kwk_fail(err, KWK_EPERM, "model '%s' belongs to another user", name);
    else
        kwkd_store_drop(s, e, &waiters);
    pthread_mutex_unlock(&s->lock);
    kwkd_store_tell_cancelled(waiters, "the model was unloaded");
    if (rc == KWK_OK)
        kwkd_log(KWKD_NOTICE, "model unloaded", "name=%s uid=%u", name, uid);
    return rc;
}

int kwkd_store_pin(kwkd_store *s, const char *name, int pin, uint32_t uid, kwk_error *err)
{
    kwkd_entry *e;
    int rc = KWK_OK;

    pthread_mutex_lock(&s->lock);
    e = lookup(s, name);
    if (!e)
        rc = kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", name);
    else if (!may_change(e, uid))
        rc = kwk_fail(err, KWK_EPERM, "model '%s' belongs to another user", name);
    else
        e->pin = pin;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static double fraction(const kwkd_entry *e)
{
    const uint64_t total = atomic_load(&e->total), done = atomic_load(&e->loaded);

    if (e->state == KWKD_READY)
        return 1;
    return total ? (double)(done < total ? done : total) / (double)total : 0;
}

/* Under the lock: the name to use when none is given. */
static const char *default_name(kwkd_store *s, kwk_error *err)
{
    if (s->conf->default_model)
        return s->conf->default_model;
    if (s->conf->n_models)
        return s->conf->models[0].name;
    if (s->entries && !s->entries->next)
        return s->entries->name;
    kwk_fail(err, KWK_EINVAL,
             s->entries ? "model is required: several are loaded" : "no model is loaded");
    return NULL;
}

/* Under the lock: a configured model that was unloaded comes back when it is asked for. */
static int start_configured(kwkd_store *s, const char *name, kwk_error *err)
{
    const struct stat none = {0};
    kwkd_entry *e;

    for (int i = 0; i < s->conf->n_models; i++) {
        const kwkd_model_conf *c = &s->conf->models[i];
        const kwkd_load l = {.name = c->name,
                             .path = c->path,
                             .fd = -1,
                             .precision = c->precision,
                             .mix_bits = c->mix_bits,
                             .max_ctx = c->max_ctx,
                             .pin = c->pin,
                             .uid = geteuid(),
                             .configured = 1};
        char *real;
        int rc;
        if (strcmp(c->name, name))
            continue;
        real = realpath(c->path, NULL);
        rc = enter(s, &l, real ? real : c->path, &none, &e, err);
        free(real);
        return rc < 0 ? rc : kwk_fail(err, KWK_EBUSY, "model '%s' is being loaded again", name);
    }
    return kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", name);
}

int kwkd_store_find(kwkd_store *s, const char *name, kwkd_model **out, int *retry_ms,
                    kwk_error *err)
{
    kwkd_entry *e;
    int rc = KWK_OK;

    pthread_mutex_lock(&s->lock);
    if (!name)
        name = default_name(s, err);
    e = name ? lookup(s, name) : NULL;
    if (!name) {
        rc = KWK_EINVAL;
    } else if (!e) {
        rc = start_configured(s, name, err);
    } else if (e->state == KWKD_LOADING) {
        rc = kwk_fail(err, KWK_EBUSY, "model '%s' is being loaded (%d %%)", name,
                      (int)(fraction(e) * 100));
    } else if (e->state == KWKD_FAILED) {
        rc = kwk_fail(err, e->error.code, "model '%s': %s", name, e->error.msg);
    } else {
        *out = kwkd_model_ref(e->model);
        atomic_store(&e->model->used_us, kwkd_now_us());
    }
    if (rc == KWK_EBUSY)
        *retry_ms = RETRY_MS;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void kwkd_store_each(kwkd_store *s, void (*fn)(void *arg, const kwkd_model_row *row), void *arg)
{
    pthread_mutex_lock(&s->lock);
    for (const kwkd_entry *e = s->entries; e; e = e->next) {
        const kwkd_model_row row = {.name = e->name,
                                    .state = e->state,
                                    .progress = fraction(e),
                                    .error = e->state == KWKD_FAILED ? e->error.msg : NULL,
                                    .code = e->error.code,
                                    .path = e->path,
                                    .uid = e->uid,
                                    .pin = e->pin,
                                    .model = e->model};
        fn(arg, &row);
    }
    pthread_mutex_unlock(&s->lock);
}

void kwkd_store_counts(kwkd_store *s, int *ready, int *loading, double *done)
{
    int n_ready = 0, n_loading = 0;
    double sum = 0;

    pthread_mutex_lock(&s->lock);
    for (const kwkd_entry *e = s->entries; e; e = e->next) {
        n_ready += e->state == KWKD_READY;
        if (e->state == KWKD_LOADING) {
            n_loading++;
            sum += fraction(e);
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (ready)
        *ready = n_ready;
    if (loading)
        *loading = n_loading;
    if (done)
        *done = n_loading ? sum / n_loading : 1;
}

void kwkd_store_tick(kwkd_store *s)
{
    const uint64_t now = kwkd_now_us();
    uint64_t keep;

    pthread_mutex_lock(&s->lock);
    keep = (uint64_t)s->conf->keep_alive_s * 1000000;
    for (kwkd_entry *e = s->entries, *next; keep && e; e = next) {
        next = e->next;
        if (e->state == KWKD_READY && !e->pin && kwkd_model_is_idle(e->model) &&
            now - atomic_load(&e->model->used_us) > keep)
            kwkd_store_evict(s, e, "keep_alive");
    }
    pthread_mutex_unlock(&s->lock);
}
