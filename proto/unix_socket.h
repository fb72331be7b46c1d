/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting to a local socket, with deadlines; shared by door and control.
 */
#ifndef KWK_PROTO_UNIX_SOCKET_H
#define KWK_PROTO_UNIX_SOCKET_H

#include <stdint.h>

#include "proto/error.h"

/** Connect a blocking, close-on-exec socket of `type` (SOCK_STREAM, SOCK_SEQPACKET) to `path`.
 *  @return the descriptor; KWK_ENOENT nobody listens there; KWK_EPERM; KWK_EPROTO another kind of
 *          socket; KWK_ETIMEOUT; KWK_EINVAL path too long; KWK_EBUSY no descriptors; KWK_EIO */
int kwk_unix_connect(const char *path, int type, int timeout_ms, kwk_error *err);

/** Milliseconds of a clock that never jumps. */
int64_t kwk_now_ms(void);

/** Wait until fd is ready for `events` (poll's) or kwk_now_ms() reaches deadline: 1 ready (or the
 *  peer is gone), 0 timed out. */
int kwk_wait_fd(int fd, short events, int64_t deadline);

#endif
