/* SPDX-License-Identifier: Apache-2.0
 *
 * What systemd is told and tells: the notification datagrams of sd_notify(3) and the sockets of
 * sd_listen_fds(3), by hand, because libsystemd is a large thing to need for one datagram. Knows
 * nothing of the daemon. Called by the thread that runs the daemon.
 */
#ifndef KWK_DAEMON_NOTIFY_H
#define KWK_DAEMON_NOTIFY_H

#include <stdint.h>

#include "proto/error.h"

/** Send "READY=1", "STATUS=…", "WATCHDOG=1", "STOPPING=1" or several lines of them.
 *  @return 1 sent, 0 nobody asked ($NOTIFY_SOCKET is not set), or KWK_EIO; never blocks */
int kwkd_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Time within which systemd wants WATCHDOG=1, in microseconds; 0: it does not. */
uint64_t kwkd_notify_watchdog_us(void);

/** The descriptor that systemd passed under `name` (LISTEN_FDNAMES; a single one needs no name), a
 *  listening AF_UNIX socket of SOCK_SEQPACKET; now CLOEXEC. -1: none; KWK_EINVAL: another kind. */
int kwkd_listen_fd(const char *name, kwk_error *err);

#endif
