/* SPDX-License-Identifier: Apache-2.0
 *
 * epoll and timerfd. No state but the kernel's.
 */
#include "daemon/loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

int kwkd_loop_open(kwk_error *err)
{
    const int fd = epoll_create1(EPOLL_CLOEXEC);

    return fd < 0 ? kwk_fail(err, KWK_EIO, "epoll_create1: %s", strerror(errno)) : fd;
}

int kwkd_loop_add(int loop, kwkd_source *src, int fd, void (*ready)(kwkd_source *src),
                  kwk_error *err)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = src};

    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &ev) < 0)
        return kwk_fail(err, KWK_EIO, "epoll_ctl: %s", strerror(errno));
    src->fd = fd;
    src->ready = ready;
    return KWK_OK;
}

void kwkd_loop_remove(int loop, kwkd_source *src)
{
    if (src->fd >= 0)
        (void)epoll_ctl(loop, EPOLL_CTL_DEL, src->fd, NULL);
    src->fd = -1;
}

void kwkd_loop_dispatch(int loop, int timeout_ms)
{
    enum { EVENTS = 32 };
    struct epoll_event events[EVENTS];
    const int n = epoll_wait(loop, events, EVENTS, timeout_ms);

    for (int i = 0; i < n; i++) {
        kwkd_source *src = events[i].data.ptr;
        if (src->fd >= 0)
            src->ready(src);
    }
}

int kwkd_timer_open(kwk_error *err)
{
    const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

    return fd < 0 ? kwk_fail(err, KWK_EIO, "timerfd_create: %s", strerror(errno)) : fd;
}

static struct timespec from_ms(int ms)
{
    return (struct timespec){ms / 1000, (long)(ms % 1000) * 1000000};
}

void kwkd_timer_set(int fd, int first_ms, int period_ms)
{
    const struct itimerspec t = {from_ms(period_ms), from_ms(first_ms)};

    (void)timerfd_settime(fd, 0, &t, NULL);
}

void kwkd_timer_clear(int fd)
{
    uint64_t n;

    if (read(fd, &n, sizeof n) < 0) {
        // it had not fired
    }
}
