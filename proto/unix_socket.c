/* SPDX-License-Identifier: Apache-2.0
 *
 * Local sockets (unix_socket.h). Any thread; no state.
 */
#include "proto/unix_socket.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int connect_error(const char *path, int e, kwk_error *err)
{
    switch (e) {
    case ENOENT:
    case ENOTDIR:
        return kwk_fail(err, KWK_ENOENT, "no kwkerd at '%s'", path);
    case ECONNREFUSED:
        return kwk_fail(err, KWK_ENOENT, "no kwkerd listens at '%s'", path);
    case EACCES:
    case EPERM:
        return kwk_fail(err, KWK_EPERM, "'%s': %s", path, strerror(e));
    case EPROTOTYPE:
        return kwk_fail(err, KWK_EPROTO, "'%s' is another kind of socket", path);
    case EAGAIN: // the backlog stayed full
        return kwk_fail(err, KWK_ETIMEOUT, "'%s' accepts nobody", path);
    }
    return kwk_fail(err, KWK_EIO, "connect to '%s': %s", path, strerror(e));
}

int kwk_unix_connect(const char *path, int type, int timeout_ms, kwk_error *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct timeval limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    const size_t n = strlen(path);
    int fd, rc, e;

    if (n == 0 || n >= sizeof sa.sun_path)
        return kwk_fail(err, KWK_EINVAL, "socket path of %zu bytes, 1 to %zu allowed: '%s'", n,
                        sizeof sa.sun_path - 1, path);
    memcpy(sa.sun_path, path, n);
    if (timeout_ms < 1)
        limit.tv_usec = 1000; // 0 would be for ever

    fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        e = errno;
        return kwk_fail(err, e == EMFILE || e == ENFILE ? KWK_EBUSY : KWK_EIO, "socket: %s",
                        strerror(e));
    }
    // A full backlog makes connect() wait for as long as a send may.
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    do
        rc = connect(fd, (const struct sockaddr *)&sa, sizeof sa);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        rc = connect_error(path, errno, err);
        close(fd);
        return rc;
    }
    return fd;
}

int64_t kwk_now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int kwk_wait_fd(int fd, short events, int64_t deadline)
{
    for (;;) {
        struct pollfd pfd = {.fd = fd, .events = events};
        const int64_t left = deadline - kwk_now_ms();
        const int n = poll(&pfd, 1, left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left);

        if (n > 0)
            return 1;
        if (n == 0 && left <= 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return 1; // let the read or write report it
    }
}
