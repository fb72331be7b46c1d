/* SPDX-License-Identifier: Apache-2.0
 *
 * The models and the threads that load them: one for paths, which also frees released models (that
 * can take long), one for packs, so that a slow descriptor delays packs only. All state is under
 * one lock that is never held while loading. Functions of store.h: any thread.
 */
#include "daemon/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/work.h"

enum { LOADS_MAX = 16, MODELS_MAX = 256, RETRY_MS = 500 };
enum { PATHS, PACKS, LOADERS };

typedef struct waiter {
    struct waiter *next;
    kwkd_loaded_fn *done;
    void *arg;
} waiter;

typedef struct entry {
    struct entry *next; // sorted by name
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
    waiter *waiters;
} entry;

typedef struct loader {
    kwkd_store *store;
    int kind;
    pthread_t thread;
    int started;
} loader;

struct kwkd_store {
    pthread_mutex_t lock;
    pthread_cond_t change;
    kwkd_metrics *metrics;
    const kwkd_conf *conf; // borrowed; replaced under the lock
    entry *entries;
    kwkd_model *released; // to be freed
    int stopping;
    loader loaders[LOADERS];
};

/* ---- models
 * ------------------------------------------------------------------------------------------ */

kwkd_model *kwkd_model_ref(kwkd_model *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

static void model_destroy(kwkd_model *m)
{
    kwk_model_free(m->engine);
    free(m->name);
    free(m);
}

void kwkd_model_unref(kwkd_model *m)
{
    kwkd_store *s;
    int left_to_us;

    if (!m)
        return;
    atomic_store(&m->used_us, kwkd_now_us());
    s = m->store;
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&s->lock);
    left_to_us = s->stopping;
    if (!left_to_us) {
        m->next = s->released;
        s->released = m;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    if (left_to_us)
        model_destroy(m);
}

static int idle(const kwkd_model *m) // only the store holds it
{
    return atomic_load(&m->refs) == 1;
}

static int model_new(kwkd_model **out, const entry *e, kwk_model *engine, kwk_error *err)
{
    kwkd_model *m = calloc(1, sizeof *m);
    uint64_t slots;

    if (m)
        m->name = strdup(e->name);
    if (!m || !m->name) {
        free(m);
        return kwk_fail(err, KWK_ENOMEM, "a model's entry");
    }
    atomic_init(&m->refs, 1);
    m->store = e->store;
    m->engine = engine;
    kwk_model_describe(engine, &m->info);
    slots = m->info.kv_blocks * 32;
    m->max_tokens = slots < (uint64_t)m->info.max_ctx ? (int)slots : m->info.max_ctx;
    atomic_init(&m->used_us, kwkd_now_us());
    for (int32_t id = 0; id < m->info.vocab; id++) {
        const uint8_t *bytes;
        size_t n = 0;
        if (kwk_model_token_bytes(engine, id, &bytes, &n, NULL) == KWK_OK) {
            m->has_text = 1;
            if (n > m->max_token_bytes)
                m->max_token_bytes = n;
        } else if (id == 0) {
            break; // the source has no tokenizer
        }
    }
    *out = m;
    return KWK_OK;
}

/* ---- entries
 * ------------------------------------------------------------------------------------------ */

static void entry_free(entry *e)
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

static entry **find(kwkd_store *s, const char *name) // where it is, or would be
{
    entry **at = &s->entries;

    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    return at;
}

static entry *lookup(kwkd_store *s, const char *name)
{
    entry *e = *find(s, name);

    return e && !strcmp(e->name, name) ? e : NULL;
}

/* Take e out of the list. What loads is left to its loader; the rest is freed here. */
static void drop(kwkd_store *s, entry *e, waiter **waiters)
{
    entry **at = find(s, e->name);

    assert(*at == e);
    *at = e->next;
    e->dropped = 1;
    atomic_store(&e->cancel, 1);
    if (e->taken)
        return;
    while (e->waiters) { // was queued
        waiter *w = e->waiters;
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
    entry_free(e);
}

static void tell(waiter *waiters, int rc, const kwk_error *err)
{
    while (waiters) {
        waiter *w = waiters;
        waiters = w->next;
        w->done(w->arg, rc, err);
        free(w);
    }
}

static void tell_cancelled(waiter *waiters, const char *why)
{
    kwk_error err = {0};

    if (waiters)
        tell(waiters, kwk_fail(&err, KWK_ECANCELED, "%s", why), &err);
}

/* ---- loading
 * ------------------------------------------------------------------------------------------- */

/* Bytes of the other models, loaded or on the way. */
static uint64_t others(kwkd_store *s, const entry *self)
{
    uint64_t sum = 0;

    for (const entry *e = s->entries; e; e = e->next) {
        if (e == self)
            continue;
        if (e->state == KWKD_READY)
            sum += e->model->info.packed_bytes;
        else if (e->state == KWKD_LOADING && e->checked)
            sum += atomic_load(&e->total);
    }
    return sum;
}

static entry *oldest_idle(kwkd_store *s)
{
    entry *best = NULL;

    for (entry *e = s->entries; e; e = e->next)
        if (e->state == KWKD_READY && !e->pin && idle(e->model) &&
            (!best || atomic_load(&e->model->used_us) < atomic_load(&best->model->used_us)))
            best = e;
    return best;
}

static void evict(kwkd_store *s, entry *e, const char *why)
{
    waiter *none = NULL;

    kwkd_log(KWKD_NOTICE, "model evicted", "name=%s bytes=%lu reason=%s", e->name,
             (unsigned long)e->model->info.packed_bytes, why);
    kwkd_count(&s->metrics->evictions, 1);
    drop(s, e, &none);
}

/* Make room for `total` more bytes of e under the budget. */
static int make_room(kwkd_store *s, entry *e, uint64_t total)
{
    const uint64_t budget = (uint64_t)s->conf->model_bytes;

    e->checked = 1;
    if (!budget)
        return KWK_OK;
    while (others(s, e) + total > budget) {
        entry *victim = total <= budget ? oldest_idle(s) : NULL;
        if (!victim)
            return kwk_fail(
                &e->error, KWK_EFULL,
                "model of %llu bytes: others have %llu of the %llu that models may take",
                (unsigned long long)total, (unsigned long long)others(s, e),
                (unsigned long long)budget);
        evict(s, victim, "room");
    }
    return KWK_OK;
}

static int progress(void *arg, uint64_t done, uint64_t total) // kwk_progress_fn
{
    entry *e = arg;
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
static void load(kwkd_store *s, entry *e)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    const uint64_t start = kwkd_now_us();
    kwk_model *engine = NULL;
    kwkd_model *model = NULL;
    waiter *waiters;
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
        rc = model_new(&model, e, engine, &err);
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
        entry_free(e);
        tell_cancelled(waiters, "the model was unloaded");
    } else {
        tell(waiters, rc, &err);
    }
}

static entry *next_load(kwkd_store *s, int kind)
{
    for (entry *e = s->entries; e; e = e->next)
        if (e->state == KWKD_LOADING && !e->taken && (e->fd >= 0) == (kind == PACKS))
            return e;
    return NULL;
}

static void *run(void *arg)
{
    loader *l = arg;
    kwkd_store *s = l->store;

    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        entry *e = next_load(s, l->kind);
        kwkd_model *m = l->kind == PATHS ? s->released : NULL;
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
            model_destroy(m);
        else
            load(s, e);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- what may be loaded
 * ----------------------------------------------------------------------------------- */

/* Is `path` below `dir`, by name, without "..": nothing outside is even looked at? */
static int below(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    return !strncmp(path, dir, n) && path[n] == '/' && path[n + 1] && !strstr(path, "/../") &&
           (strlen(path) < 3 || strcmp(path + strlen(path) - 3, "/.."));
}

/* The real path of what a client asks for, if it lies under a model directory or is a configured
 * model's; malloc'd. */
static int resolve(const kwkd_conf *conf, const char *path, char **out, kwk_error *err)
{
    int by_name = 0, by_place = 0;
    char *real;

    for (int i = 0; i < conf->n_models; i++)
        by_name |= !strcmp(conf->models[i].path, path);
    by_place = by_name;
    for (int i = 0; i < conf->n_model_dirs && !by_name; i++) { // as configured, or what it links to
        char *dir = realpath(conf->model_dirs[i], NULL);
        by_name = below(path, conf->model_dirs[i]) || (dir && below(path, dir));
        free(dir);
    }
    if (!by_name)
        return kwk_fail(err, KWK_EPERM, "'%s' is not under a model directory of this daemon", path);
    real = realpath(path, NULL);
    if (!real)
        return kwk_fail(err, errno == ENOENT || errno == ENOTDIR ? KWK_ENOENT : KWK_EIO, "'%s': %s",
                        path, strerror(errno));
    for (int i = 0; i < conf->n_model_dirs && !by_place; i++) { // links may lead elsewhere
        char *dir = realpath(conf->model_dirs[i], NULL);
        by_place = dir && below(real, dir);
        free(dir);
    }
    if (!by_place) {
        free(real);
        return kwk_fail(err, KWK_EPERM, "'%s' leads out of the model directories", path);
    }
    *out = real;
    return KWK_OK;
}

/* A descriptor whose reads cannot hang on its owner's own file server. */
static int check_pack(int fd, struct stat *st, kwk_error *err)
{
    static const unsigned long remote[] = {
        0x65735546, 0x6969, 0xff534d42, 0xfe534d42, 0x01021997, 0x00c36400, 0x5346414f,
    }; // FUSE, NFS, CIFS, SMB2, 9P, Ceph, AFS
    struct statfs fs;
    const int flags = fcntl(fd, F_GETFL);

    if (fstat(fd, st) < 0 || fstatfs(fd, &fs) < 0 || flags < 0)
        return kwk_fail(err, KWK_EIO, "pack: %s", strerror(errno));
    if (!S_ISREG(st->st_mode) || (flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY)
        return kwk_fail(err, KWK_EUNSUPPORTED, "pack: no regular file or memfd open for reading");
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        if ((unsigned long)fs.f_type == remote[i])
            return kwk_fail(err, KWK_EUNSUPPORTED,
                            "pack: on a network or user-space file system; use a sealed memfd");
    return KWK_OK;
}

static int same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static int same(const entry *e, const kwkd_load *l, const char *path, const struct stat *st)
{
    if (!same_text(e->precision, l->precision) || e->mix_bits != l->mix_bits ||
        e->max_ctx != l->max_ctx)
        return 0;
    if (l->path)
        return e->path[0] && !strcmp(e->path, path);
    return !e->path[0] && e->dev == st->st_dev && e->ino == st->st_ino;
}

/* ---- store.h
 * ------------------------------------------------------------------------------------------------
 */

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
    for (int i = 0; i < LOADERS; i++) {
        loader *l = &s->loaders[i];
        int rc;
        l->store = s;
        l->kind = i;
        rc = pthread_create(&l->thread, NULL, run, l);
        if (rc) {
            kwkd_store_stop(s);
            kwkd_store_free(s);
            return kwk_fail(err, KWK_ENOMEM, "a loader thread: %s", strerror(rc));
        }
        l->started = 1;
        pthread_setname_np(l->thread, i == PATHS ? "kwkd-load" : "kwkd-pack");
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
    waiter *waiters = NULL;

    pthread_mutex_lock(&s->lock);
    s->stopping = 1;
    for (entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        if (e->state == KWKD_LOADING)
            drop(s, e, &waiters);
    }
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    tell_cancelled(waiters, "the daemon ends");
}

void kwkd_store_free(kwkd_store *s)
{
    waiter *none = NULL;

    if (!s)
        return;
    for (int i = 0; i < LOADERS; i++)
        if (s->loaders[i].started)
            pthread_join(s->loaders[i].thread, NULL);
    while (s->entries)
        drop(s, s->entries, &none);
    while (s->released) {
        kwkd_model *m = s->released;
        s->released = m->next;
        model_destroy(m);
    }
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int entry_new(entry **out, kwkd_store *s, const kwkd_load *l, const char *path,
                     const struct stat *st, kwk_error *err)
{
    entry *e = calloc(1, sizeof *e);

    if (!e)
        return kwk_fail(err, KWK_ENOMEM, "a model's entry");
    e->store = s;
    e->fd = -1;
    e->name = strdup(l->name);
    e->path = strdup(path);
    e->precision = l->precision ? strdup(l->precision) : NULL;
    if (!e->name || !e->path || (l->precision && !e->precision)) {
        entry_free(e);
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
                 entry **out, kwk_error *err)
{
    entry *old = lookup(s, l->name), *e = NULL, **at;
    waiter *none = NULL;
    int n = 0, loading = 0, rc;

    for (const entry *c = s->entries; c; c = c->next) {
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
        drop(s, old, &none);
    if (!l->path)
        e->fd = l->fd;
    at = find(s, l->name);
    e->next = *at;
    *at = e;
    pthread_cond_broadcast(&s->change);
    *out = e;
    return KWK_OK;
}

static int may_change(const entry *e, uint32_t uid)
{
    return uid == 0 || uid == geteuid() || (uid == e->uid && !e->configured);
}

/* Under the lock, everything checked. *w is used when there is something to wait for. */
static int load_locked(kwkd_store *s, const kwkd_load *l, const char *path, const struct stat *st,
                       waiter **w, kwk_error *err)
{
    entry *e = lookup(s, l->name);
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
    waiter *w = done ? calloc(1, sizeof *w) : NULL;
    struct stat st = {0};
    char *path = NULL;
    int rc = KWK_OK;

    if (done && !w)
        return kwk_fail(err, KWK_ENOMEM, "a waiting request");
    if (w)
        *w = (waiter){.done = done, .arg = arg};
    if (!l->path) {
        rc = check_pack(l->fd, &st, err);
    } else if (l->configured) {
        path = realpath(l->path, NULL); // missing: the load says so
    } else { // the lock also keeps the configuration; resolving touches model directories only
        pthread_mutex_lock(&s->lock);
        rc = resolve(s->conf, l->path, &path, err);
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
    waiter *waiters = NULL;
    entry *e;
    int rc = KWK_OK;

    pthread_mutex_lock(&s->lock);
    e = lookup(s, name);
    if (!e)
        rc = kwk_fail(err, KWK_ENOENT, "model '%s' is not loaded", name);
    else if (!may_change(e, uid))
        rc = kwk_fail(err, KWK_EPERM, "model '%s' belongs to another user", name);
    else
        drop(s, e, &waiters);
    pthread_mutex_unlock(&s->lock);
    tell_cancelled(waiters, "the model was unloaded");
    if (rc == KWK_OK)
        kwkd_log(KWKD_NOTICE, "model unloaded", "name=%s uid=%u", name, uid);
    return rc;
}

int kwkd_store_pin(kwkd_store *s, const char *name, int pin, uint32_t uid, kwk_error *err)
{
    entry *e;
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

static double fraction(const entry *e)
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
    entry *e;

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
    entry *e;
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
    for (const entry *e = s->entries; e; e = e->next) {
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
    for (const entry *e = s->entries; e; e = e->next) {
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
    for (entry *e = s->entries, *next; keep && e; e = next) {
        next = e->next;
        if (e->state == KWKD_READY && !e->pin && idle(e->model) &&
            now - atomic_load(&e->model->used_us) > keep)
            evict(s, e, "keep_alive");
    }
    pthread_mutex_unlock(&s->lock);
}
