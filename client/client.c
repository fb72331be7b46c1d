/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a session, where the daemon is looked for, and the checks that every call
 * starts with. The rings are pump.c's, the sockets door.c's and control.c's.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

const char *kwk_client_version(void)
{
    return KWK_VERSION;
}

void kwk_client_free(void *p)
{
    free(p);
}

int kwk_client_check(const kwk_client *c, kwk_error *err)
{
    if (!c)
        return kwk_fail(err, KWK_EINVAL, "client is NULL");
    if (c->pid != getpid())
        return kwk_fail(err, KWK_EFORKED, "client of process %d used in its child %d",
                        (int)c->pid, (int)getpid());
    return KWK_OK;
}

int kwk_copy_options(void *dst, size_t dst_size, const void *src, const char *what,
                     kwk_error *err)
{
    size_t size;

    if (!src)
        return kwk_fail(err, KWK_EINVAL, "%s is NULL", what);
    memcpy(&size, src, sizeof size);
    if (size < sizeof size || size > 4096)
        return kwk_fail(err, KWK_EINVAL, "%s has size %zu: not initialised", what, size);
    for (size_t i = dst_size; i < size; i++)
        if (((const uint8_t *)src)[i])
            return kwk_fail(err, KWK_EUNSUPPORTED, "%s has fields of a later version", what);
    memcpy(dst, src, size < dst_size ? size : dst_size);
    return KWK_OK;
}

/* The runtime directory that the caller means. */
static int find_dir(char dir[108], const char *address, kwk_error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char door[128];
    int n;

    if (!address || !*address)
        address = getenv("KWKER_DAEMON");
    if (address && *address) {
        n = snprintf(dir, 108, "%s", address);
    } else {
        n = runtime && *runtime ? snprintf(dir, 108, "%s/kwker", runtime) : 0;
        if (n > 0 && n < 108) {
            snprintf(door, sizeof door, "%s/door.sock", dir);
            if (access(door, F_OK) == 0)
                return KWK_OK;
        }
        n = snprintf(dir, 108, "/run/kwker");
    }
    if (n >= 108 - (int)sizeof "/door.sock")
        return kwk_fail(err, KWK_EINVAL, "address of %d bytes is too long for a socket: '%s'", n,
                        address);
    return KWK_OK;
}

/* One descriptor for event loops. Not the door itself: a thread that waits for a reply at the door
 * takes wake-ups off it, and must be able to put one back. */
static int open_event_loop(kwk_client *c, kwk_error *err)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP};

    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->epoll < 0 || c->event < 0 || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->door, &ev) < 0 ||
        epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->event, &ev) < 0)
        return kwk_fail(err, KWK_EIO, "event descriptor: %s", strerror(errno));
    atomic_store(&c->ring.in->want_door, 1);
    return KWK_OK;
}

static void init_locks(kwk_client *c)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->ctl_lock, NULL);
    pthread_mutex_init(&c->area_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
}

int kwk_client_open(kwk_client **out, const char *address, const kwk_client_options *opts,
                    kwk_error *err)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_client *c = NULL;
    char dir[108];
    int rc = KWK_OK;

    if (!out)
        return kwk_fail(err, KWK_EINVAL, "out is NULL");
    if (opts)
        rc = kwk_copy_options(&o, sizeof o, opts, "kwk_client_options", err);
    if (rc == KWK_OK && o.timeout_ms < 0)
        rc = kwk_fail(err, KWK_EINVAL, "timeout_ms: %d is negative", o.timeout_ms);
    if (rc == KWK_OK)
        rc = find_dir(dir, address, err);
    if (rc < 0)
        return rc;

    c = calloc(1, sizeof *c);
    if (!c)
        return kwk_fail(err, KWK_ENOMEM, "out of memory for a client");
    init_locks(c);
    c->pid = getpid();
    c->timeout_ms = o.timeout_ms ? o.timeout_ms : KWK_TIMEOUT_MS;
    c->door = c->epoll = c->event = c->sp.fd = -1;
    rc = kwk_door_open(c, dir, &o, err);
    if (rc == KWK_OK)
        rc = kwk_control_open(c, kwk_now_ms() + c->timeout_ms, err);
    if (rc == KWK_OK && o.event_loop)
        rc = open_event_loop(c, err);
    if (rc < 0) {
        kwk_client_close(c);
        return rc;
    }
    *out = c;
    return KWK_OK;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* In a forked child this only drops the child's copies: the parent's session goes on, and no lock is
 * touched, since another thread may have held it at the fork. */
void kwk_client_close(kwk_client *c)
{
    if (!c)
        return;
    close_fd(c->epoll);
    close_fd(c->event);
    kwk_sp_close(&c->sp);
    close_fd(c->door); // the daemon cancels what runs
    while (c->streams) {
        kwk_stream *s = c->streams;
        c->streams = s->next;
        kwk_stream_destroy(s);
    }
    while (c->seqs) {
        kwk_client_seq *s = c->seqs;
        c->seqs = s->next;
        kwk_seq_destroy(s);
    }
    if (c->out)
        munmap(c->out, c->out_size);
    if (c->in)
        munmap(c->in, c->in_size);
    if (c->logits)
        munmap(c->logits, c->logits_size);
    free(c->answers);
    kwk_buf_fini(&c->door_reply);
    free(c->door_packet);
    if (c->pid == getpid()) {
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->area_lock);
        pthread_mutex_destroy(&c->ctl_lock);
        pthread_mutex_destroy(&c->lock);
    }
    free(c);
}

int kwk_client_fd(const kwk_client *c)
{
    return !c ? -1 : c->epoll >= 0 ? c->epoll : c->door;
}

int kwk_client_drain(kwk_client *c, kwk_error *err)
{
    uint64_t count;
    int rc = kwk_client_check(c, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&c->lock);
    if (c->event >= 0 && read(c->event, &count, sizeof count) < 0) {
        // nothing was put back
    }
    kwk_door_read(c);
    if (kwk_pump(c))
        pthread_cond_broadcast(&c->changed);
    rc = kwk_client_dead(c, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}
