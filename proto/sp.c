/* SPDX-License-Identifier: Apache-2.0
 *
 * REQ over NNG's ipc framing (sp.h). The peer may be hostile: lengths are checked before anything is
 * allocated. One thread at a time.
 */
#include "proto/sp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/buf.h"
#include "proto/unix_socket.h"

enum { PROTO_REQ = 0x30, PROTO_REP = 0x31, HEADER = 9, ID = 4 };

static void put_be(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * (n - 1 - i));
}

static uint64_t get_be(const uint8_t *p, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* Send all of two pieces before the deadline. */
static int send_all(int fd, const void *a, size_t na, const void *b, size_t nb, int64_t deadline,
                    kwk_error *err)
{
    struct iovec iov[2] = {{(void *)a, na}, {(void *)b, nb}};
    size_t left = na + nb;

    while (left) {
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
        const ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!kwk_wait_fd(fd, POLLOUT, deadline))
                return kwk_fail(err, KWK_ETIMEOUT, "control socket takes no data");
            continue;
        }
        if (n < 0)
            return kwk_fail(err, KWK_ECLOSED, "control connection: %s", strerror(errno));
        left -= (size_t)n;
        for (size_t done = (size_t)n, i = 0; i < 2; i++) {
            const size_t k = done < iov[i].iov_len ? done : iov[i].iov_len;
            iov[i].iov_base = (uint8_t *)iov[i].iov_base + k;
            iov[i].iov_len -= k;
            done -= k;
        }
    }
    return KWK_OK;
}

static int receive_all(int fd, void *p, size_t left, int64_t deadline, kwk_error *err)
{
    uint8_t *w = p;

    while (left) {
        const ssize_t n = recv(fd, w, left, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!kwk_wait_fd(fd, POLLIN, deadline))
                return kwk_fail(err, KWK_ETIMEOUT, "no reply from kwkerd in time");
            continue;
        }
        if (n < 0)
            return kwk_fail(err, KWK_ECLOSED, "control connection: %s", strerror(errno));
        if (n == 0)
            return kwk_fail(err, KWK_ECLOSED, "kwkerd closed the control connection");
        w += n;
        left -= (size_t)n;
    }
    return KWK_OK;
}

int kwk_sp_open(kwk_sp *s, const char *path, int timeout_ms, kwk_error *err)
{
    const int64_t deadline = kwk_now_ms() + timeout_ms;
    const uint8_t hello[8] = {0, 'S', 'P', 0, 0, PROTO_REQ, 0, 0};
    const uint8_t expected[8] = {0, 'S', 'P', 0, 0, PROTO_REP, 0, 0};
    uint8_t peer[8];
    int rc;
    const int fd = kwk_unix_connect(path, SOCK_STREAM, timeout_ms, err);

    *s = (kwk_sp){.fd = -1};
    if (fd < 0)
        return fd;
    rc = send_all(fd, hello, sizeof hello, NULL, 0, deadline, err);
    if (rc == KWK_OK)
        rc = receive_all(fd, peer, sizeof peer, deadline, err);
    if (rc == KWK_OK && memcmp(peer, expected, sizeof peer))
        rc = kwk_fail(err, KWK_EPROTO, "'%s' is no REP socket of the Scalability Protocols", path);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    s->fd = fd;
    return KWK_OK;
}

void kwk_sp_close(kwk_sp *s)
{
    if (s && s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

int kwk_sp_call(kwk_sp *s, const void *req, size_t n, kwk_buf *reply, int timeout_ms,
                kwk_error *err)
{
    const int64_t deadline = kwk_now_ms() + timeout_ms;
    const uint32_t id = 0x80000000u | s->next_id++;
    const size_t start = reply->size;
    uint8_t head[HEADER + ID] = {1};
    uint64_t length;
    uint8_t *body;
    int rc;

    if (s->fd < 0)
        return kwk_fail(err, KWK_ECLOSED, "control connection is closed");
    if (n > KWK_MSG_MAX)
        return kwk_fail(err, KWK_EFULL, "request of %zu bytes, %d allowed", n, KWK_MSG_MAX);
    put_be(head + 1, n + ID, 8);
    put_be(head + HEADER, id, ID);
    rc = send_all(s->fd, head, sizeof head, req, n, deadline, err);
    if (rc < 0)
        goto out;

    rc = receive_all(s->fd, head, sizeof head, deadline, err);
    if (rc < 0)
        goto out;
    length = get_be(head + 1, 8);
    if (head[0] != 1 || length < ID || length - ID > KWK_MSG_MAX) {
        rc = kwk_fail(err, KWK_EPROTO, "control reply of type %u and %llu bytes", head[0],
                      (unsigned long long)length);
        goto out;
    }
    if (get_be(head + HEADER, ID) != id) {
        rc = kwk_fail(err, KWK_EPROTO, "control reply to request %08llx instead of %08x",
                      (unsigned long long)get_be(head + HEADER, ID), id);
        goto out;
    }
    body = kwk_buf_grow(reply, (size_t)length - ID);
    if (!body && length > ID) {
        rc = kwk_fail(err, KWK_ENOMEM, "out of memory for a reply of %llu bytes",
                      (unsigned long long)length);
        goto out;
    }
    rc = receive_all(s->fd, body, (size_t)length - ID, deadline, err);
out:
    if (rc < 0) { // what would still come belongs to nobody
        reply->size = start;
        kwk_sp_close(s);
    }
    return rc;
}
