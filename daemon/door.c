/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections from accept to death. Every send and receive is MSG_DONTWAIT; a client that does not
 * take its answer loses its session, not our time.
 */
#include "daemon/door.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/rundir.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 // Linux 6.5
#endif

enum {
    BACKLOG = 1024,
    ACCEPTS = 64,        // at once, before others get their turn
    PACKETS = 16,        // likewise
    SILENT_US = 5000000, // a connection must say hello within
    STRANGERS = 256,     // connections beside the sessions
    STRANGERS_USER = 32, // of one user
    RETRY_MS = 200,
};

typedef struct conn {
    struct conn *prev, *next;
    kwkd_source socket, process;
    kwkd_door *door;
    int fd, pidfd; // fd: the session's, once there is one
    uint32_t uid;
    int32_t pid;
    kwkd_session *session; // NULL: no hello yet
    uint64_t since_us;
} conn;

struct kwkd_door {
    kwkd_door_options o;
    kwkd_source listener;
    int spare; // given up when no descriptor is left, to accept and refuse
    int ours;  // the path is to be removed
    conn *conns, *closed;
    int n_strangers;
    uint8_t packet[KWK_DOOR_MAX + 1];
};

/* ---- connections
 * ---------------------------------------------------------------------------------------- */

static void conn_close(conn *c)
{
    kwkd_door *d = c->door;

    kwkd_loop_remove(d->o.loop, &c->socket);
    kwkd_loop_remove(d->o.loop, &c->process);
    if (c->pidfd >= 0)
        close(c->pidfd);
    (void)shutdown(c->fd, SHUT_RDWR); // the session may live a little longer than its client
    if (c->session) {
        kwkd_log(KWKD_DEBUG, "session closed", "uid=%u pid=%d client=%s", c->uid, c->pid,
                 c->session->client);
        kwkd_session_close(d->o.sessions, c->session);
        kwkd_scheduler_drop_session(d->o.scheduler, c->session);
        kwkd_session_unref(c->session);
    } else {
        close(c->fd);
        d->n_strangers--;
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        d->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next = d->closed;
    d->closed = c;
}

void kwkd_door_sweep(kwkd_door *d)
{
    while (d->closed) {
        conn *c = d->closed;
        d->closed = c->next;
        free(c);
    }
}

/* One packet, with descriptors. 0 or KWK_E…: it did not go out, whole, at once. */
static int send_packet(int fd, const kwk_buf *b, const int *fds, int n_fds)
{
    struct iovec iov = {b->data, b->size};
    union {
        struct cmsghdr header; // for its alignment
        char space[CMSG_SPACE(3 * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        struct cmsghdr *c;
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? KWK_ECLOSED : KWK_OK;
}

static void send_error(int fd, const kwk_error *err)
{
    kwk_buf b = {0};

    if (kwk_reply_error(&b, err, err->code == KWK_EBUSY ? RETRY_MS : 0) == KWK_OK)
        (void)send_packet(fd, &b, NULL, 0);
    kwk_buf_fini(&b);
}

/* ---- hello
 * ---------------------------------------------------------------------------------------------- */

static int send_welcome(conn *c, const kwkd_session *s, const int *fds, int n_fds)
{
    kwk_buf b = {0};
    kwk_map m;
    int rc;

    kwk_reply_begin(&m, &b);
    kwk_map_bin(&m, "session", s->id, sizeof s->id);
    kwk_map_str(&m, "ctl", c->door->o.control);
    kwk_map_str(&m, "server", KWKD_SERVER);
    kwk_map_uint(&m, "out_slots", s->out_slots);
    kwk_map_uint(&m, "in_bytes", s->in_bytes);
    kwk_map_uint(&m, "logits_bytes", s->logits_bytes);
    rc = kwk_map_end(&m, NULL);
    if (rc == KWK_OK)
        rc = send_packet(c->fd, &b, fds, n_fds);
    kwk_buf_fini(&b);
    return rc;
}

static int open_session(conn *c, const kwk_hello_req *hello, kwk_error *err)
{
    kwkd_door *d = c->door;
    kwkd_session *s = NULL;
    int fds[3], n_fds = 0, rc;

    if (hello->version != KWK_PROTO_VERSION)
        return kwk_fail(err, KWK_EPROTO, "this daemon speaks version %d, the client %d",
                        KWK_PROTO_VERSION, hello->version);
    rc = kwkd_session_open(&s, d->o.sessions, c->fd, c->uid, c->pid, hello, fds, &n_fds, err);
    if (rc < 0)
        return rc;
    c->session = s; // owns c->fd from here on
    d->n_strangers--;
    rc = kwkd_scheduler_add_session(d->o.scheduler, s, err);
    if (rc == KWK_OK) {
        kwkd_count(&d->o.metrics->sessions_opened, 1);
        kwkd_log(KWKD_DEBUG, "session opened", "uid=%u pid=%d client=%s bytes=%lu", c->uid, c->pid,
                 s->client, (unsigned long)s->bytes);
        rc = send_welcome(c, s, fds, n_fds);
    }
    for (int i = 0; i < n_fds; i++)
        close(fds[i]);
    return rc;
}

static int take_hello(conn *c, const uint8_t *data, size_t n)
{
    kwkd_door *d = c->door;
    kwk_hello_req hello;
    kwk_error err = {0};
    int rc = kwk_hello_req_decode(&hello, data, n, &err);

    if (rc == KWK_OK) {
        rc = open_session(c, &hello, &err);
        kwk_hello_req_fini(&hello);
    }
    if (rc < 0) {
        kwkd_count(&d->o.metrics->sessions_refused, 1);
        kwkd_log(KWKD_INFO, "session refused", "uid=%u pid=%d error=%s message=%s", c->uid, c->pid,
                 kwk_error_name(rc), err.msg);
        if (err.code)
            send_error(c->fd, &err);
    } else if (d->o.opened) {
        d->o.opened(d->o.opened_arg);
    }
    return rc;
}

/* ---- packs
 * ---------------------------------------------------------------------------------------------- */

/* {"op": "pack"} with one descriptor; *fd is taken when it is kept. */
static int take_pack(conn *c, const uint8_t *data, size_t n, int *fd)
{
    kwk_tree *tree = NULL;
    kwk_error err = {0};
    uint64_t id = 0;
    kwk_buf b = {0};
    kwk_map m;
    const char *op;
    int rc = kwk_tree_parse(&tree, data, n, &err);

    if (rc < 0)
        return rc;
    op = kwk_tree_str(tree, "op");
    if (!op || strcmp(op, "pack"))
        rc = KWK_EPROTO;
    else if (*fd < 0)
        rc = kwk_fail(&err, KWK_EINVAL, "pack comes without a descriptor");
    else
        rc = kwkd_session_add_pack(c->session, *fd, &id, &err);
    kwk_tree_free(tree);
    if (rc == KWK_EPROTO)
        return rc;
    if (rc < 0) { // the session goes on
        send_error(c->fd, &err);
        return KWK_OK;
    }
    *fd = -1;
    kwk_reply_begin(&m, &b);
    kwk_map_uint(&m, "pack", id);
    rc = kwk_map_end(&m, &err);
    if (rc == KWK_OK)
        rc = send_packet(c->fd, &b, NULL, 0);
    kwk_buf_fini(&b);
    return rc;
}

/* ---- packets
 * -------------------------------------------------------------------------------------------- */

/* The first descriptor of a message, the others closed; -1: none. */
static int take_descriptor(struct msghdr *msg)
{
    int first = -1;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (first < 0)
                first = fd;
            else
                close(fd);
        }
    }
    return first;
}

/* One packet. 1: there was one; 0: none; KWK_E…: the connection has ended or must. */
static int take_packet(conn *c)
{
    kwkd_door *d = c->door;
    struct iovec iov = {d->packet, sizeof d->packet};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(16 * sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    const ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int fd, rc;

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : KWK_ECLOSED;
    fd = take_descriptor(&msg);
    if (n == 0)
        rc = KWK_ECLOSED;
    else if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || n > KWK_DOOR_MAX)
        rc = KWK_EPROTO;
    else if (!c->session)
        rc = take_hello(c, d->packet, (size_t)n);
    else if (n > 1)
        rc = take_pack(c, d->packet, (size_t)n, &fd);
    else
        rc = KWK_OK; // a ring
    if (rc == KWK_OK && n == 1)
        kwkd_scheduler_wake(d->o.scheduler);
    if (fd >= 0)
        close(fd);
    return rc < 0 ? rc : 1;
}

static void socket_ready(kwkd_source *src)
{
    conn *c = KWKD_OWNER(conn, socket, src);
    int rc = 1;

    for (int i = 0; i < PACKETS && rc > 0; i++)
        rc = take_packet(c);
    if (rc < 0)
        conn_close(c);
}

static void process_ended(kwkd_source *src)
{
    conn_close(KWKD_OWNER(conn, process, src));
}

/* ---- accept
 * ---------------------------------------------------------------------------------------------- */

/* A descriptor of the peer's process; -1: not to be had (another pid namespace, an old kernel). Its
 * number may have been reused between connect() and now, unless the kernel remembers (6.5). */
static int peer_process(int fd, int32_t pid)
{
    int pidfd = -1;
    socklen_t n = sizeof pidfd;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
        return pidfd;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static int check_strangers(const kwkd_door *d, uint32_t uid, kwk_error *err)
{
    int n = 0;

    if (d->n_strangers < STRANGERS_USER) // cannot be exceeded by one user either
        return KWK_OK;
    for (const conn *c = d->conns; c; c = c->next)
        n += !c->session && c->uid == uid;
    if (n >= STRANGERS_USER || d->n_strangers >= STRANGERS)
        return kwk_fail(err, KWK_EBUSY, "%d connections have not said hello", d->n_strangers);
    return KWK_OK;
}

static void welcome(kwkd_door *d, int fd)
{
    struct ucred who = {.pid = -1};
    socklen_t size = sizeof who;
    kwk_error err = {0};
    conn *c = NULL;
    int rc = KWK_OK;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
        rc = kwk_fail(&err, KWK_EPERM, "no credentials");
    if (rc == KWK_OK)
        rc = check_strangers(d, who.uid, &err);
    if (rc == KWK_OK && !(c = calloc(1, sizeof *c)))
        rc = kwk_fail(&err, KWK_ENOMEM, "a connection");
    if (rc < 0)
        goto refuse;
    c->door = d;
    c->fd = fd;
    c->uid = who.uid;
    c->pid = who.pid;
    c->since_us = kwkd_now_us();
    c->socket.fd = c->process.fd = -1;
    c->pidfd = peer_process(fd, who.pid);
    if (c->pidfd < 0 && errno == ESRCH) { // gone already
        rc = KWK_ECLOSED;
        goto refuse;
    }
    rc = kwkd_loop_add(d->o.loop, &c->socket, fd, socket_ready, &err);
    if (rc == KWK_OK && c->pidfd >= 0)
        rc = kwkd_loop_add(d->o.loop, &c->process, c->pidfd, process_ended, &err);
    if (rc < 0)
        goto refuse;
    c->next = d->conns;
    if (d->conns)
        d->conns->prev = c;
    d->conns = c;
    d->n_strangers++;
    socket_ready(&c->socket); // the hello, or the end, is often there already
    return;
refuse:
    kwkd_count(&d->o.metrics->sessions_refused, 1);
    if (err.code)
        send_error(fd, &err);
    // an unread hello would turn our close into a reset, and that would eat the reason
    while (recv(fd, d->packet, sizeof d->packet, MSG_DONTWAIT) > 0)
        ;
    if (c) {
        kwkd_loop_remove(d->o.loop, &c->socket);
        if (c->pidfd >= 0)
            close(c->pidfd);
        free(c);
    }
    close(fd);
}

/* No descriptor is left: use the spare one to take the connection and close it, else it would stay
 * ready for ever and we would spin. */
static void refuse_one(kwkd_door *d)
{
    int fd;

    close(d->spare);
    fd = accept4(d->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        close(fd);
    d->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    kwkd_count(&d->o.metrics->sessions_refused, 1);
}

static void listener_ready(kwkd_source *src)
{
    kwkd_door *d = KWKD_OWNER(kwkd_door, listener, src);

    for (int i = 0; i < ACCEPTS; i++) {
        const int fd = accept4(src->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            welcome(d, fd);
        else if (errno == EMFILE || errno == ENFILE)
            refuse_one(d);
        else if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* ---- the door
 * --------------------------------------------------------------------------------------------- */

static int bind_socket(const char *path, kwk_error *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof at.sun_path)
        return kwk_fail(err, KWK_EINVAL, "'%s' is longer than the %zu bytes of a socket's address",
                        path, sizeof at.sun_path - 1);
    strcpy(at.sun_path, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return kwk_fail(err, KWK_EIO, "socket: %s", strerror(errno));
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        const int e = errno;
        close(fd);
        return kwk_fail(err, KWK_EIO, "binding '%s': %s", path, strerror(e));
    }
    return fd;
}

int kwkd_door_open(kwkd_door **out, const kwkd_door_options *opts, kwk_error *err)
{
    kwkd_door *d = calloc(1, sizeof *d);
    int fd = opts->listen_fd, rc = KWK_OK;

    if (!d)
        return kwk_fail(err, KWK_ENOMEM, "the door");
    d->o = *opts;
    d->listener.fd = -1;
    d->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fd = bind_socket(opts->path, err);
        d->ours = fd >= 0;
        // nobody can connect before listen(), so the mode is in time
        if (fd < 0)
            rc = fd;
        else if (chmod(opts->path, KWKD_SOCKET_MODE) < 0 || listen(fd, BACKLOG) < 0)
            rc = kwk_fail(err, KWK_EIO, "listening on '%s': %s", opts->path, strerror(errno));
    } else if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0) {
        rc = kwk_fail(err, KWK_EIO, "descriptor %d: %s", fd, strerror(errno));
    }
    if (rc == KWK_OK)
        rc = kwkd_loop_add(opts->loop, &d->listener, fd, listener_ready, err);
    if (rc < 0) {
        if (fd >= 0)
            close(fd);
        kwkd_door_close(d);
        return rc;
    }
    *out = d;
    return KWK_OK;
}

void kwkd_door_tick(kwkd_door *d)
{
    const uint64_t now = kwkd_now_us();

    for (conn *c = d->conns, *next; c && d->n_strangers; c = next) {
        next = c->next;
        if (!c->session && now - c->since_us > SILENT_US)
            conn_close(c);
    }
}

void kwkd_door_close(kwkd_door *d)
{
    const int fd = d ? d->listener.fd : -1;

    if (!d)
        return;
    while (d->conns)
        conn_close(d->conns);
    kwkd_door_sweep(d);
    if (fd >= 0) {
        kwkd_loop_remove(d->o.loop, &d->listener);
        close(fd);
    }
    if (d->ours)
        (void)unlink(d->o.path);
    if (d->spare >= 0)
        close(d->spare);
    free(d);
}
