/* SPDX-License-Identifier: Apache-2.0
 *
 * The door: hello, the session's memory, wake-ups, packs, and the death signal. What comes from the
 * daemon is checked like anything from outside.
 */
#include "client/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/buf.h"

enum { FDS = 3, FDS_ROOM = 8 }; // room for more, so that a daemon that sends more is noticed

/* Send one packet, with a descriptor if fd >= 0. */
static int send_packet(kwk_client *c, const kwk_buf *b, int fd, int64_t deadline, kwk_error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {b->data, b->size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *cmsg;
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    for (;;) {
        if (sendmsg(c->door, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return KWK_OK;
        if (errno == EAGAIN) {
            if (!kwk_wait_fd(c->door, POLLOUT, deadline))
                return kwk_fail(err, KWK_ETIMEOUT, "the door takes no data");
        } else if (errno == EBADF && fd >= 0) {
            return kwk_fail(err, KWK_EINVAL, "descriptor %d is not open", fd);
        } else if (errno != EINTR) {
            return kwk_fail(err, KWK_ECLOSED, "door: %s", strerror(errno));
        }
    }
}

/* Receive the answer to the hello; fds: what came with it, -1 where nothing did. */
static int receive_welcome(kwk_client *c, size_t *n, int fds[FDS_ROOM], int64_t deadline,
                           kwk_error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_ROOM * sizeof(int))];
    } control;
    struct iovec iov = {c->door_packet, KWK_DOOR_MAX};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t got;

    if (!kwk_wait_fd(c->door, POLLIN, deadline))
        return kwk_fail(err, KWK_ETIMEOUT, "no answer at the door");
    do
        got = recvmsg(c->door, &msg, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return kwk_fail(err, KWK_ECLOSED, "door: %s", strerror(errno));
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&msg); m; m = CMSG_NXTHDR(&msg, m)) {
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS)
            memcpy(fds, CMSG_DATA(m), m->cmsg_len - CMSG_LEN(0));
    }
    if (got == 0)
        return kwk_fail(err, KWK_ECLOSED, "kwkerd closed the door");
    if (msg.msg_flags & MSG_CTRUNC)
        return kwk_fail(err, KWK_EBUSY, "descriptors of the session were lost: too many are open");
    if (msg.msg_flags & MSG_TRUNC)
        return kwk_fail(err, KWK_EPROTO, "door message over %d bytes", KWK_DOOR_MAX);
    *n = (size_t)got;
    return KWK_OK;
}

/* The control socket's path: absolute, or relative to the runtime directory. */
static int set_ctl_path(kwk_client *c, const char *dir, const char *ctl, kwk_error *err)
{
    const char *base = ctl[0] == '/' ? "" : dir;
    const int n = snprintf(c->ctl_path, sizeof c->ctl_path, "%s%s%s", base, *base ? "/" : "", ctl);

    if (!*ctl || n < 0 || (size_t)n >= sizeof c->ctl_path)
        return kwk_fail(err, KWK_EPROTO, "door names control socket '%s'", ctl);
    return KWK_OK;
}

static int map_checked(void **out, int fd, size_t size, int writable, kwk_error *err)
{
    kwk_error why;
    const int rc = kwk_memfd_check(fd, size, err);

    if (rc < 0)
        return rc;
    *out = kwk_memfd_map(fd, size, writable, &why);
    return *out ? KWK_OK : kwk_fail(err, why.code, "%s", why.msg);
}

/* Sizes from the welcome, memory from the descriptors. */
static int map_session(kwk_client *c, const kwk_tree *t, const int fds[FDS_ROOM], kwk_error *err)
{
    const int64_t out_slots = kwk_tree_int(t, "out_slots", -1);
    const int64_t in_bytes = kwk_tree_int(t, "in_bytes", -1);
    const int64_t logits_bytes = kwk_tree_int(t, "logits_bytes", 0);
    const int n_fds = logits_bytes > 0 ? 3 : 2;
    int rc;

    for (int i = 0; i < FDS_ROOM; i++)
        if ((fds[i] >= 0) != (i < n_fds))
            return kwk_fail(err, KWK_EPROTO, "door sent another number of descriptors than %d",
                            n_fds);
    if (out_slots < KWK_OUT_SLOTS_MIN || out_slots > KWK_OUT_SLOTS_MAX || in_bytes < 0 ||
        in_bytes > KWK_IN_DATA_MAX || logits_bytes < 0 || logits_bytes > (int64_t)1 << 46)
        return kwk_fail(err, KWK_EPROTO, "door announced %lld slots, %lld and %lld bytes",
                        (long long)out_slots, (long long)in_bytes, (long long)logits_bytes);

    c->out_size = kwk_out_size((uint32_t)out_slots);
    c->in_size = kwk_in_size((uint32_t)in_bytes);
    c->logits_size = (size_t)logits_bytes;
    rc = map_checked(&c->out, fds[0], c->out_size, 0, err);
    if (rc == KWK_OK)
        rc = map_checked(&c->in, fds[1], c->in_size, 1, err);
    if (rc == KWK_OK && logits_bytes)
        rc = map_checked(&c->logits, fds[2], c->logits_size, 0, err);
    if (rc < 0)
        return rc;
    c->data_bytes = (uint32_t)in_bytes;
    return kwk_out_consumer_init(&c->ring, c->out, c->out_size, c->in, c->in_size, err);
}

static int enter(kwk_client *c, const char *dir, size_t n, const int fds[FDS_ROOM],
                 kwk_error *err)
{
    kwk_tree *t = NULL;
    const void *session;
    const char *ctl;
    size_t n_session = 0;
    int rc = kwk_tree_parse(&t, c->door_packet, n, err);

    if (rc == KWK_OK)
        rc = kwk_tree_status(t, NULL, err);
    if (rc < 0)
        goto out;
    session = kwk_tree_bin(t, "session", &n_session);
    ctl = kwk_tree_str(t, "ctl");
    if (!session || n_session != sizeof c->session || !ctl) {
        rc = kwk_fail(err, KWK_EPROTO, "door answered without a session or a control socket");
        goto out;
    }
    memcpy(c->session, session, sizeof c->session);
    rc = set_ctl_path(c, dir, ctl, err);
    if (rc == KWK_OK)
        rc = map_session(c, t, fds, err);
out:
    kwk_tree_free(t);
    return rc;
}

int kwk_door_open(kwk_client *c, const char *dir, const kwk_client_options *opts,
                  kwk_error *err)
{
    const int64_t deadline = kwk_now_ms() + c->timeout_ms;
    const kwk_hello_req hello = {
        .client = opts->name ? opts->name : program_invocation_short_name,
        .logits_bytes = opts->logits_bytes,
    };
    int fds[FDS_ROOM] = {-1, -1, -1, -1, -1, -1, -1, -1};
    kwk_buf b = {0};
    char path[128];
    size_t n = 0;
    int rc;

    c->door_packet = malloc(KWK_DOOR_MAX + 1);
    if (!c->door_packet)
        return kwk_fail(err, KWK_ENOMEM, "out of memory for a client");
    rc = kwk_hello_req_encode(&b, &hello, err);
    if (rc < 0)
        goto out;
    snprintf(path, sizeof path, "%s/door.sock", dir);
    rc = c->door = kwk_unix_connect(path, SOCK_SEQPACKET, c->timeout_ms, err);
    if (rc < 0)
        goto out;
    rc = send_packet(c, &b, -1, deadline, err);
    if (rc == KWK_OK)
        rc = receive_welcome(c, &n, fds, deadline, err);
    if (rc == KWK_OK)
        rc = enter(c, dir, n, fds, err);
out:
    for (int i = 0; i < FDS_ROOM; i++)
        if (fds[i] >= 0)
            close(fds[i]); // the mappings stay
    kwk_buf_fini(&b);
    return rc;
}

int kwk_door_is_closed(const kwk_client *c)
{
    struct pollfd pfd = {.fd = c->door, .events = POLLRDHUP};

    return poll(&pfd, 1, 0) > 0 && (pfd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

void kwk_door_ring(kwk_client *c)
{
    // EAGAIN: bytes that nobody has read yet lie there already
    (void)send(c->door, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Why the daemon ended the session, if it said so before. */
static void die_at_the_door(kwk_client *c)
{
    kwk_tree *t = NULL;
    kwk_error said = {0};

    if (c->door_reply.size && kwk_tree_parse(&t, c->door_reply.data, c->door_reply.size, NULL) == 0)
        (void)kwk_tree_status(t, NULL, &said);
    kwk_tree_free(t);
    (void)kwk_pump(c); // what it published before counts
    if (said.code)
        kwk_client_die(c, said.code, said.msg);
    else
        kwk_client_die(c, KWK_ECLOSED, "kwkerd closed the session");
}

int kwk_door_read(kwk_client *c)
{
    int wake_ups = 0;

    while (!c->death.code) {
        const ssize_t n = recv(c->door, c->door_packet, KWK_DOOR_MAX + 1, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n == 1) {
            wake_ups = 1;
        } else if (n > 1 && n <= KWK_DOOR_MAX) {
            c->door_reply.size = 0;
            if (kwk_buf_write(&c->door_reply, (const char *)c->door_packet, (size_t)n))
                kwk_client_die(c, KWK_ENOMEM, "out of memory for a door message");
            pthread_cond_broadcast(&c->changed);
        } else if (n > KWK_DOOR_MAX) {
            kwk_client_die(c, KWK_EPROTO, "door message is too long");
        } else {
            die_at_the_door(c);
        }
    }
    return wake_ups;
}

static int pack_reply(kwk_client *c, uint64_t *id, kwk_error *err)
{
    kwk_tree *t = NULL;
    int rc = kwk_tree_parse(&t, c->door_reply.data, c->door_reply.size, err);

    c->door_reply.size = 0;
    if (rc == KWK_OK)
        rc = kwk_tree_status(t, NULL, err);
    if (rc == KWK_OK) {
        *id = (uint64_t)kwk_tree_int(t, "pack", 0);
        if (!*id)
            rc = kwk_fail(err, KWK_EPROTO, "door answered a pack without an id");
    }
    kwk_tree_free(t);
    return rc;
}

int kwk_door_pack(kwk_client *c, int fd, uint64_t *id, kwk_error *err)
{
    const int64_t deadline = kwk_now_ms() + c->timeout_ms;
    int rc, took_wake_up = 0;
    kwk_buf b = {0};
    kwk_map m;

    kwk_map_begin(&m, &b);
    kwk_map_int(&m, "v", KWK_PROTO_VERSION);
    kwk_map_str(&m, "op", "pack");
    rc = kwk_map_end(&m, err);
    if (rc < 0)
        goto out;

    // The control lock makes packs one at a time, so that the next reply is this one's.
    pthread_mutex_lock(&c->ctl_lock);
    pthread_mutex_lock(&c->lock);
    took_wake_up |= kwk_door_read(c);
    c->door_reply.size = 0;
    pthread_mutex_unlock(&c->lock);
    rc = send_packet(c, &b, fd, deadline, err);
    while (rc == KWK_OK) {
        const int ready = kwk_wait_fd(c->door, POLLIN, deadline < kwk_now_ms() + KWK_SLICE_MS
                                                           ? deadline
                                                           : kwk_now_ms() + KWK_SLICE_MS);
        pthread_mutex_lock(&c->lock);
        if (ready)
            took_wake_up |= kwk_door_read(c);
        if (c->door_reply.size) {
            rc = pack_reply(c, id, err);
            pthread_mutex_unlock(&c->lock);
            break;
        }
        rc = kwk_client_dead(c, err);
        pthread_mutex_unlock(&c->lock);
        if (rc == KWK_OK && kwk_now_ms() >= deadline)
            rc = kwk_fail(err, KWK_ETIMEOUT, "no answer at the door");
    }
    pthread_mutex_unlock(&c->ctl_lock);
    if (took_wake_up && c->event >= 0) { // they were meant for the event loop
        const uint64_t one = 1;
        if (write(c->event, &one, sizeof one) < 0) {
            // it is readable already
        }
    }
out:
    kwk_buf_fini(&b);
    return rc;
}
