/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon put together: kwkerd.h. One thread calls everything here but kwkd_stop(); it runs the
 * door, the listener's guard, the ticks, and the end. The order of the end: no new work,
 * generations drain, engine thread, loaders, replies, control, door.
 */
#include "daemon/daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/control.h"
#include "daemon/door.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/rundir.h"

enum { TICK_MS = 1000, DRAIN_TICK_MS = 10 };

struct kwkd_parts {
    struct kwkd *d;
    kwkd_options options;
    kwkd_conf *conf;
    kwkd_rundir dir;
    int loop;
    int stop_fd, tick_fd;
    kwkd_source stop, tick;
    kwkd_control *control;
    kwkd_door *door;
    int n_stops; // kwkd_stop() calls seen
    int ended;
    uint64_t drain_until_us, idle_since_us, ticked_us;
    uint64_t pulse; // at the last kwkd_healthy()
};

/* ---- configuration
 * ------------------------------------------------------------------------------------- */

static int read_conf(const kwkd_options *o, kwkd_conf **out, kwk_error *err)
{
    const kwkd_conf_input in = {.file = o->config,
                                .runtime_dir = o->runtime_dir,
                                .models = o->models,
                                .n_models = o->n_models};
    kwkd_conf *conf = calloc(1, sizeof *conf);
    int rc;

    if (!conf)
        return kwk_fail(err, KWK_ENOMEM, "the configuration");
    rc = kwkd_conf_load(conf, &in, err);
    if (rc < 0)
        free(conf);
    else
        *out = conf;
    return rc;
}

static void free_conf(kwkd_conf *conf)
{
    if (conf)
        kwkd_conf_fini(conf);
    free(conf);
}

/* Hand conf to all parts, then let go of the old one. */
static void use_conf(struct kwkd *d, kwkd_conf *conf)
{
    struct kwkd_parts *p = d->parts;

    kwkd_log_level((kwkd_level)conf->log_level);
    kwkd_sessions_configure(&d->sessions, conf);
    kwkd_scheduler_configure(d->scheduler, conf);
    kwkd_store_configure(d->store, conf);
    atomic_store(&d->inline_requests, conf->inline_requests);
    atomic_store(&d->inline_tokens, conf->inline_tokens);
    if (p->conf != conf)
        free_conf(p->conf);
    p->conf = conf;
}

static void load_models(struct kwkd *d)
{
    const kwkd_conf *conf = d->parts->conf;

    for (int i = 0; i < conf->n_models; i++) {
        const kwkd_model_conf *m = &conf->models[i];
        const kwkd_load load = {.name = m->name,
                                .path = m->path,
                                .fd = -1,
                                .precision = m->precision,
                                .mix_bits = m->mix_bits,
                                .max_ctx = m->max_ctx,
                                .pin = m->pin,
                                .uid = geteuid(),
                                .configured = 1};
        kwk_error err = {0};
        if (kwkd_store_load(d->store, &load, NULL, NULL, &err) < 0)
            kwkd_log(KWKD_ERROR, "model not loaded", "name=%s message=%s", m->name, err.msg);
    }
}

/* ---- ticks and the end
 * ------------------------------------------------------------------------------------ */

static void end(struct kwkd *d)
{
    struct kwkd_parts *p = d->parts;

    if (p->ended)
        return;
    p->ended = 1;
    if (d->scheduler)
        kwkd_scheduler_stop(d->scheduler);
    if (d->store)
        kwkd_store_stop(d->store);
    kwkd_control_close(p->control);
    p->control = NULL;
    if (p->door)
        kwkd_log(KWKD_NOTICE, "ended", "pid=%d", getpid());
    kwkd_door_close(p->door);
    p->door = NULL;
}

static void begin_drain(struct kwkd *d)
{
    struct kwkd_parts *p = d->parts;

    kwkd_log(KWKD_NOTICE, "ending", "drain_ms=%d", p->conf->drain_ms);
    p->drain_until_us = kwkd_now_us() + (uint64_t)p->conf->drain_ms * 1000;
    kwkd_scheduler_drain(d->scheduler);
    kwkd_store_stop(d->store);
    kwkd_timer_set(p->tick_fd, 1, DRAIN_TICK_MS);
}

static void stop_ready(kwkd_source *src)
{
    struct kwkd_parts *p = KWKD_OWNER(struct kwkd_parts, stop, src);
    uint64_t n;

    if (read(p->stop_fd, &n, sizeof n) != sizeof n)
        return;
    if (!p->n_stops)
        begin_drain(p->d);
    p->n_stops += n > 2 ? 2 : (int)n;
    if (p->n_stops > 1)
        p->drain_until_us = 0;
}

static void check_idle(struct kwkd *d, uint64_t now)
{
    struct kwkd_parts *p = d->parts;
    int loading;

    kwkd_store_counts(d->store, NULL, &loading, NULL);
    if (kwkd_sessions_count(&d->sessions) || !kwkd_scheduler_idle(d->scheduler) || loading)
        p->idle_since_us = now;
    else if (p->conf->idle_exit_s && !p->n_stops &&
             now - p->idle_since_us > (uint64_t)p->conf->idle_exit_s * 1000000) {
        kwkd_log(KWKD_NOTICE, "idle", "seconds=%d", p->conf->idle_exit_s);
        kwkd_stop(d);
    }
}

static void tick_ready(kwkd_source *src)
{
    struct kwkd_parts *p = KWKD_OWNER(struct kwkd_parts, tick, src);
    const uint64_t now = kwkd_now_us();
    struct kwkd *d = p->d;

    kwkd_timer_clear(p->tick_fd);
    if (p->n_stops && (now >= p->drain_until_us || kwkd_scheduler_idle(d->scheduler))) {
        end(d);
        return;
    }
    if (now - p->ticked_us < TICK_MS * 900)
        return;
    p->ticked_us = now;
    kwkd_control_probe(p->control);
    kwkd_door_tick(p->door);
    kwkd_store_tick(d->store);
    check_idle(d, now);
}

static void session_opened(void *arg)
{
    const struct kwkd *d = arg;

    kwkd_control_probe(d->parts->control); // its client will connect to control next
}

/* ---- kwkerd.h -------------------------------------------------------------------------------- */

static int open_parts(struct kwkd *d, kwk_error *err)
{
    struct kwkd_parts *p = d->parts;
    char path[256];
    int rc;

    if (p->conf->runtime_dir)
        rc = snprintf(path, sizeof path, "%s", p->conf->runtime_dir) < (int)sizeof path ? 0 : -1;
    else
        rc = kwkd_rundir_default(path, sizeof path, err);
    if (rc < 0)
        return kwk_fail(err, KWK_EINVAL, "the runtime directory's name is too long");
    rc = kwkd_rundir_open(&p->dir, path, p->conf->group, err);
    if (rc == KWK_OK && p->options.door_fd < 0)
        rc = kwkd_socket_clear(p->dir.door, err);
    if (rc == KWK_OK)
        rc = kwkd_socket_clear(p->dir.control, err);
    if (rc == KWK_OK && p->conf->threads)
        rc = kwk_set_threads(p->conf->threads, err);
    if (rc == KWK_OK)
        rc = kwkd_store_new(&d->store, &d->metrics, err);
    if (rc == KWK_OK)
        rc = kwkd_scheduler_new(&d->scheduler, &d->metrics, err);
    if (rc < 0)
        return rc;
    use_conf(d, p->conf);
    rc = kwkd_scheduler_start(d->scheduler, err);
    if (rc == KWK_OK)
        rc = p->loop = kwkd_loop_open(err);
    if (rc >= 0)
        rc = p->tick_fd = kwkd_timer_open(err);
    if (rc >= 0) {
        p->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (p->stop_fd < 0)
            rc = kwk_fail(err, KWK_EIO, "eventfd: %s", strerror(errno));
    }
    if (rc >= 0)
        rc = kwkd_loop_add(p->loop, &p->stop, p->stop_fd, stop_ready, err);
    if (rc == KWK_OK)
        rc = kwkd_loop_add(p->loop, &p->tick, p->tick_fd, tick_ready, err);
    if (rc == KWK_OK)
        rc = kwkd_control_open(&p->control, d, &p->dir, p->loop, p->conf->contexts, err);
    if (rc == KWK_OK) { // the door last: it tells clients where control is
        const kwkd_door_options o = {.loop = p->loop,
                                     .path = p->dir.door,
                                     .listen_fd = p->options.door_fd,
                                     .control = p->dir.control,
                                     .sessions = &d->sessions,
                                     .scheduler = d->scheduler,
                                     .metrics = &d->metrics,
                                     .opened = session_opened,
                                     .opened_arg = d};
        p->options.door_fd = -1; // taken
        rc = kwkd_door_open(&p->door, &o, err);
        if (rc == KWK_OK && o.listen_fd < 0)
            rc = kwkd_socket_open_to_group(&p->dir, p->dir.door, err);
    }
    return rc < 0 ? rc : KWK_OK;
}

int kwkd_new(kwkd **out, const kwkd_options *opts, kwk_error *err)
{
    struct kwkd *d = calloc(1, sizeof *d);
    struct kwkd_parts *p = calloc(1, sizeof *p);
    int rc;

    if (!d || !p) {
        free(d);
        free(p);
        return kwk_fail(err, KWK_ENOMEM, "the daemon");
    }
    d->parts = p;
    p->d = d;
    p->options = *opts;
    p->loop = p->stop_fd = p->tick_fd = p->stop.fd = p->tick.fd = p->dir.lock_fd = -1;
    d->start_us = p->idle_since_us = p->ticked_us = kwkd_now_us();
    kwkd_sessions_init(&d->sessions);
    kwkd_log_open(opts->log_fd, KWKD_INFO);
    rc = read_conf(opts, &p->conf, err);
    if (rc == KWK_OK)
        rc = open_parts(d, err);
    if (rc < 0) {
        kwkd_free(d);
        return rc;
    }
    kwkd_timer_set(p->tick_fd, TICK_MS, TICK_MS);
    kwkd_log(KWKD_NOTICE, "started", "version=%s pid=%d dir=%s isa=%s threads=%d", KWK_VERSION,
             getpid(), p->dir.path, kwk_isa(), kwk_threads());
    load_models(d);
    *out = d;
    return KWK_OK;
}

int kwkd_fd(const kwkd *d)
{
    return d->parts->loop;
}

static int dispatch(kwkd *d, int timeout_ms)
{
    struct kwkd_parts *p = d->parts;

    if (p->ended)
        return 0;
    kwkd_loop_dispatch(p->loop, timeout_ms);
    if (p->door)
        kwkd_door_sweep(p->door);
    return !p->ended;
}

int kwkd_dispatch(kwkd *d)
{
    return dispatch(d, 0);
}

void kwkd_run(kwkd *d)
{
    while (dispatch(d, -1))
        ;
}

void kwkd_stop(kwkd *d)
{
    const uint64_t one = 1;
    const int saved = errno;

    if (write(d->parts->stop_fd, &one, sizeof one) < 0) {
        // the counter cannot be full, and nothing else can fail
    }
    errno = saved;
}

int kwkd_reload(kwkd *d, kwk_error *err)
{
    kwkd_conf *conf = NULL;
    int rc = read_conf(&d->parts->options, &conf, err);

    if (rc < 0)
        return rc;
    use_conf(d, conf);
    load_models(d); // those that are there already stay
    kwkd_log(KWKD_NOTICE, "configuration read again", "models=%d", conf->n_models);
    return KWK_OK;
}

int kwkd_healthy(kwkd *d)
{
    const uint64_t before = d->parts->pulse;

    d->parts->pulse = kwkd_scheduler_pulse(d->scheduler);
    return !d->parts->pulse || d->parts->pulse != before;
}

void kwkd_describe(kwkd *d, char *buf, size_t size)
{
    int running, waiting, ready, loading;
    double progress;
    int n;

    kwkd_scheduler_counts(d->scheduler, &running, &waiting);
    kwkd_store_counts(d->store, &ready, &loading, &progress);
    n = snprintf(buf, size, "%d models, %d sessions, %d running, %d waiting", ready,
                 kwkd_sessions_count(&d->sessions), running, waiting);
    if (loading && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n, ", loading %d (%d %%)", loading, (int)(progress * 100));
}

void kwkd_free(kwkd *d)
{
    struct kwkd_parts *p;

    if (!d)
        return;
    p = d->parts;
    end(d);
    kwkd_store_free(d->store);
    kwkd_scheduler_free(d->scheduler);
    kwkd_sessions_fini(&d->sessions);
    if (p->options.door_fd >= 0)
        close(p->options.door_fd);
    if (p->loop >= 0)
        close(p->loop);
    if (p->stop_fd >= 0)
        close(p->stop_fd);
    if (p->tick_fd >= 0)
        close(p->tick_fd);
    kwkd_rundir_close(&p->dir);
    free_conf(p->conf);
    free(p);
    free(d);
}
