/* SPDX-License-Identifier: Apache-2.0
 *
 * The session table and the sessions' shared memory. Any thread; locks are held for moments only.
 */
#include "daemon/session.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

void kwkd_sessions_init(kwkd_sessions *t)
{
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
}

void kwkd_sessions_fini(kwkd_sessions *t)
{
    assert(t->n == 0);
    pthread_mutex_destroy(&t->lock);
}

void kwkd_sessions_configure(kwkd_sessions *t, const kwkd_conf *conf)
{
    pthread_mutex_lock(&t->lock);
    t->most = conf->sessions;
    t->most_per_user = conf->sessions_per_user;
    t->session_bytes = (uint64_t)conf->session_bytes;
    t->user_bytes = (uint64_t)conf->user_bytes;
    t->total_bytes = (uint64_t)conf->total_bytes;
    pthread_mutex_unlock(&t->lock);
}

int kwkd_sessions_count(kwkd_sessions *t)
{
    int n;

    pthread_mutex_lock(&t->lock);
    n = t->n;
    pthread_mutex_unlock(&t->lock);
    return n;
}

static kwkd_session **bucket_of(kwkd_sessions *t, const uint8_t id[16])
{
    return &t->bucket[id[0]]; // ids are random
}

/* Is there room for one more session of uid with so many bytes? If so, count it. */
static int admit(kwkd_sessions *t, kwkd_session *s, kwk_error *err)
{
    uint64_t bytes = 0;
    int n = 0, rc = KWK_OK;

    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < KWKD_SESSION_BUCKETS; i++) {
        for (const kwkd_session *c = t->bucket[i]; c; c = c->hash_next) {
            if (c->uid == s->uid) {
                n++;
                bytes += c->bytes;
            }
        }
    }
    if (s->bytes > t->session_bytes)
        rc = kwk_fail(err, KWK_EINVAL, "a session of %llu bytes; at most %llu are allowed",
                      (unsigned long long)s->bytes, (unsigned long long)t->session_bytes);
    else if (t->n >= t->most)
        rc = kwk_fail(err, KWK_EBUSY, "%d sessions are open, the most allowed", t->n);
    else if (n >= t->most_per_user)
        rc = kwk_fail(err, KWK_EBUSY, "user %u has %d sessions, the most allowed", s->uid, n);
    else if (bytes + s->bytes > t->user_bytes || t->bytes + s->bytes > t->total_bytes)
        rc = kwk_fail(err, KWK_EBUSY, "shared memory is used up: user %u has %llu bytes, all %llu",
                      s->uid, (unsigned long long)bytes, (unsigned long long)t->bytes);
    if (rc == KWK_OK) {
        kwkd_session **b = bucket_of(t, s->id);
        s->hash_next = *b;
        *b = s;
        t->n++;
        t->bytes += s->bytes;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

static void leave(kwkd_sessions *t, kwkd_session *s)
{
    pthread_mutex_lock(&t->lock);
    for (kwkd_session **at = bucket_of(t, s->id); *at; at = &(*at)->hash_next) {
        if (*at == s) {
            *at = s->hash_next;
            t->n--;
            t->bytes -= s->bytes;
            break;
        }
    }
    pthread_mutex_unlock(&t->lock);
}

/* One memory: made, mapped for us, sealed; its descriptor goes to the client. */
static int make_memory(const char *name, size_t size, int read_only, void **map, int *fd,
                       kwk_error *err)
{
    int rc = kwk_memfd_create(name, size, err);

    if (rc < 0)
        return rc;
    *fd = rc;
    *map = kwk_memfd_map(*fd, size, 1, err);
    if (!*map)
        return err->code;
    return kwk_memfd_seal(*fd, read_only, err);
}

static int check_hello(const kwk_hello_req *h, kwkd_session *s, kwk_error *err)
{
    s->out_slots = h->out_slots ? h->out_slots : KWK_OUT_SLOTS_DEFAULT;
    s->in_bytes = h->in_bytes ? h->in_bytes : KWK_IN_DATA_DEFAULT;
    if (h->logits_bytes > INT64_MAX / 4)
        return kwk_fail(err, KWK_EINVAL, "logits_bytes is %llu",
                        (unsigned long long)h->logits_bytes);
    s->logits_bytes = (h->logits_bytes + KWK_RING_PAGE - 1) / KWK_RING_PAGE * KWK_RING_PAGE;
    if (s->out_slots < KWK_OUT_SLOTS_MIN || s->out_slots > KWK_OUT_SLOTS_MAX)
        return kwk_fail(err, KWK_EINVAL, "out_slots is %u, not from %d to %d", s->out_slots,
                        KWK_OUT_SLOTS_MIN, KWK_OUT_SLOTS_MAX);
    if (s->in_bytes > KWK_IN_DATA_MAX || s->in_bytes % 4)
        return kwk_fail(err, KWK_EINVAL, "in_bytes is %u, not a multiple of 4 up to %d",
                        s->in_bytes, KWK_IN_DATA_MAX);
    s->bytes = kwk_out_size(s->out_slots) + kwk_in_size(s->in_bytes) + s->logits_bytes;
    return KWK_OK;
}

static void destroy(kwkd_session *s)
{
    if (s->out)
        munmap(s->out, kwk_out_size(s->out_slots));
    if (s->in)
        munmap(s->in, kwk_in_size(s->in_bytes));
    if (s->logits)
        munmap(s->logits, s->logits_bytes);
    for (int i = 0; i < KWKD_PACKS; i++)
        if (s->packs[i].id)
            close(s->packs[i].fd);
    if (s->door >= 0)
        close(s->door);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int kwkd_session_open(kwkd_session **out, kwkd_sessions *t, int door, uint32_t uid, int32_t pid,
                      const kwk_hello_req *hello, int fds[3], int *n_fds, kwk_error *err)
{
    kwkd_session *s = calloc(1, sizeof *s);
    kwk_error local = {0};
    void *logits = NULL;
    int rc, admitted = 0;

    if (!err)
        err = &local;
    fds[0] = fds[1] = fds[2] = -1;
    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "a session");
    pthread_mutex_init(&s->lock, NULL);
    atomic_init(&s->refs, 1);
    s->door = -1;
    s->uid = uid;
    s->pid = pid;
    snprintf(s->client, sizeof s->client, "%s", hello->client ? hello->client : "");
    rc = check_hello(hello, s, err);
    if (rc < 0)
        goto out;
    if (getrandom(s->id, sizeof s->id, 0) != sizeof s->id) {
        rc = kwk_fail(err, KWK_EIO, "getrandom: %s", strerror(errno));
        goto out;
    }
    rc = admit(t, s, err); // before the memory is made: quotas bound what we allocate
    if (rc < 0)
        goto out;
    admitted = 1;
    rc = make_memory("kwker-out", kwk_out_size(s->out_slots), 1, &s->out, &fds[0], err);
    if (rc == KWK_OK)
        rc = make_memory("kwker-in", kwk_in_size(s->in_bytes), 0, &s->in, &fds[1], err);
    if (rc == KWK_OK && s->logits_bytes)
        rc = make_memory("kwker-logits", s->logits_bytes, 1, &logits, &fds[2], err);
    s->logits = logits;
    if (rc < 0)
        goto out;
    kwk_out_producer_init(&s->engine.ring, s->out, s->in, s->out_slots, s->in_bytes);
    atomic_store(&s->engine.ring.out->sub_sleeping, 1); // not polled until a sequence is open
    s->door = door;
    *n_fds = s->logits_bytes ? 3 : 2;
    *out = s;
out:
    if (rc < 0) {
        if (admitted)
            leave(t, s);
        for (int i = 0; i < 3; i++) {
            if (fds[i] >= 0)
                close(fds[i]);
            fds[i] = -1;
        }
        destroy(s);
    }
    return rc;
}

void kwkd_session_close(kwkd_sessions *t, kwkd_session *s)
{
    atomic_store(&s->dead, 1);
    leave(t, s);
}

void kwkd_session_kill(kwkd_session *s)
{
    if (!atomic_exchange(&s->dead, 1))
        shutdown(s->door, SHUT_RDWR);
}

int kwkd_session_find(kwkd_session **out, kwkd_sessions *t, const uint8_t id[16], uint32_t uid,
                      int32_t pid, kwk_error *err)
{
    kwkd_session *s;

    pthread_mutex_lock(&t->lock);
    s = *bucket_of(t, id);
    while (s && (memcmp(s->id, id, 16) || s->uid != uid || s->pid != pid || atomic_load(&s->dead)))
        s = s->hash_next;
    if (s)
        kwkd_session_ref(s);
    pthread_mutex_unlock(&t->lock);
    if (!s) // one answer for all reasons: others' sessions are not to be found out
        return kwk_fail(err, KWK_EPERM, "session is not one of this process (uid %u, pid %d)", uid,
                        pid);
    *out = s;
    return KWK_OK;
}

kwkd_session *kwkd_session_ref(kwkd_session *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void kwkd_session_unref(kwkd_session *s)
{
    if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
        destroy(s);
}

int kwkd_session_take_stream(kwkd_session *s, uint32_t id, kwk_error *err)
{
    const uint32_t slot = id % KWK_STREAMS;
    int rc = KWK_OK;

    pthread_mutex_lock(&s->lock);
    if (s->stream_used[slot]) {
        rc =
            kwk_fail(err, KWK_EINVAL, "stream %u: stream %u runs in its slot", id, s->stream[slot]);
    } else {
        s->stream_used[slot] = 1;
        s->stream[slot] = id;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void kwkd_session_free_stream(kwkd_session *s, uint32_t id)
{
    pthread_mutex_lock(&s->lock);
    s->stream_used[id % KWK_STREAMS] = 0;
    pthread_mutex_unlock(&s->lock);
}

int kwkd_session_add_pack(kwkd_session *s, int fd, uint64_t *id, kwk_error *err)
{
    uint64_t name;
    int i = 0, rc = KWK_OK;

    if (getrandom(&name, sizeof name, 0) != sizeof name)
        return kwk_fail(err, KWK_EIO, "getrandom: %s", strerror(errno));
    name = (name & INT64_MAX) | 1; // positive in every language, never 0
    pthread_mutex_lock(&s->lock);
    while (i < KWKD_PACKS && s->packs[i].id)
        i++;
    if (i == KWKD_PACKS) {
        rc = kwk_fail(err, KWK_EFULL, "%d packs wait to be loaded, the most allowed", KWKD_PACKS);
    } else {
        s->packs[i].id = *id = name;
        s->packs[i].fd = fd;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int kwkd_session_take_pack(kwkd_session *s, uint64_t id, int *fd, kwk_error *err)
{
    int rc = KWK_ENOENT;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < KWKD_PACKS; i++) {
        if (id && s->packs[i].id == id) {
            *fd = s->packs[i].fd;
            s->packs[i].id = 0;
            rc = KWK_OK;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc < 0 ? kwk_fail(err, rc, "pack %llu was not handed over by this session",
                             (unsigned long long)id)
                  : KWK_OK;
}
