/* SPDX-License-Identifier: Apache-2.0
 *
 * systemd's two environment protocols: notification and socket passing. No state.
 */
#include "daemon/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int kwkd_notify(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char text[512];
    size_t n;
    socklen_t size;
    ssize_t sent;
    va_list args;
    int fd;

    if (!path || (path[0] != '/' && path[0] != '@'))
        return 0;
    n = strlen(path);
    if (n < 2 || n >= sizeof to.sun_path)
        return KWK_EIO;
    memcpy(to.sun_path, path, n + 1);
    size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
    if (path[0] == '@') { // abstract namespace: a leading NUL, and the length counts
        to.sun_path[0] = 0;
        size--;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return KWK_EIO;
    sent =
        sendto(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&to, size);
    close(fd);
    return sent < 0 ? KWK_EIO : 1;
}

/* The value of an environment variable as a number, or 0. */
static uint64_t env_number(const char *name)
{
    const char *s = getenv(name);
    char *end;
    unsigned long long v;

    if (!s || *s < '0' || *s > '9')
        return 0;
    errno = 0;
    v = strtoull(s, &end, 10);
    return *end || errno ? 0 : v;
}

uint64_t kwkd_notify_watchdog_us(void)
{
    const uint64_t pid = env_number("WATCHDOG_PID");

    return pid && pid != (uint64_t)getpid() ? 0 : env_number("WATCHDOG_USEC");
}

/* Is `name` the n-th of the names separated by colons? */
static int named(const char *names, uint64_t n, const char *name)
{
    if (!names)
        return 0;
    for (; n; n--) {
        names = strchr(names, ':');
        if (!names)
            return 0;
        names++;
    }
    return !strncmp(names, name, strlen(name)) && strchr(":", names[strlen(name)]);
}

static int socket_option(int fd, int option)
{
    int v = -1;
    socklen_t n = sizeof v;

    return getsockopt(fd, SOL_SOCKET, option, &v, &n) < 0 ? -1 : v;
}

int kwkd_listen_fd(const char *name, kwk_error *err)
{
    enum { FIRST = 3 };
    const uint64_t n = env_number("LISTEN_FDS");
    const char *names = getenv("LISTEN_FDNAMES");

    if (env_number("LISTEN_PID") != (uint64_t)getpid() || n > 64)
        return -1;
    for (uint64_t i = 0; i < n; i++) {
        const int fd = FIRST + (int)i;
        if (n > 1 && !named(names, i, name)) // the only one needs no name
            continue;
        if (socket_option(fd, SO_DOMAIN) != AF_UNIX ||
            socket_option(fd, SO_TYPE) != SOCK_SEQPACKET || socket_option(fd, SO_ACCEPTCONN) != 1)
            return kwk_fail(err, KWK_EINVAL,
                            "descriptor %d from systemd is no listening AF_UNIX SOCK_SEQPACKET",
                            fd);
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
            return kwk_fail(err, KWK_EIO, "descriptor %d from systemd: %s", fd, strerror(errno));
        return fd;
    }
    return -1;
}
