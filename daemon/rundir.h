/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime directory: where it lies, that nobody else may write in it, the lock that makes one
 * kwkerd its owner for life, and what to do with a socket that a killed one left behind.
 * Knows no protocol. Called before threads start.
 */
#ifndef KWK_DAEMON_RUNDIR_H
#define KWK_DAEMON_RUNDIR_H

#include <stddef.h>
#include <sys/types.h>

#include "proto/error.h"

enum { KWKD_SOCKET_MODE = 0660 };

typedef struct kwkd_rundir {
    char path[92];     // leaves room for "/kwkerd.sock.new" in a sockaddr_un
    char door[108];    // path/door.sock
    char control[108]; // path/kwkerd.sock
    gid_t group;       // of the sockets; (gid_t)-1: ours
    int lock_fd;       // flock for life
} kwkd_rundir;

/** The default: $RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/kwker, else /run/kwker. */
int kwkd_rundir_default(char *buf, size_t size, kwk_error *err);

/**
 * Make the directory if it is missing, check it, take its lock.
 *
 * @param path   must leave room for the sockets' names within a socket address
 * @param group  name of the group that may connect; NULL: the process's own
 *
 * @return KWK_OK; KWK_EINVAL path too long, no such group; KWK_EPERM others may write in it;
 * KWK_EBUSY another kwkerd owns it (tried for a second: a killed one needs a moment to die);
 * KWK_EIO
 */
int kwkd_rundir_open(kwkd_rundir *r, const char *path, const char *group, kwk_error *err);
void kwkd_rundir_close(kwkd_rundir *r);

/**
 * Make `path` free for a new socket. With the directory's lock held, a socket that refuses
 * connections was left by a dead process and is removed.
 *
 * @return KWK_OK; KWK_EBUSY something listens there; KWK_EPERM it is no socket
 */
int kwkd_socket_clear(const char *path, kwk_error *err);

/** Give the socket file at `path` its group and mode. */
int kwkd_socket_open_to_group(const kwkd_rundir *r, const char *path, kwk_error *err);

#endif
