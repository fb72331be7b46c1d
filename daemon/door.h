/* SPDX-License-Identifier: Apache-2.0
 *
 * The door: the AF_UNIX SOCK_SEQPACKET socket where sessions begin and end. It checks who knocks,
 * hands over the sealed memories, takes packs, passes on rings, and notices death: by the
 * connection's end, and by the process's, in case a forked child still holds the connection. Runs
 * on the thread that runs the daemon; knows no model and no generation.
 */
#ifndef KWK_DAEMON_DOOR_H
#define KWK_DAEMON_DOOR_H

#include "daemon/metrics.h"
#include "daemon/scheduler.h"
#include "daemon/session.h"

typedef struct kwkd_door kwkd_door;

typedef struct kwkd_door_options {
    int loop;            // kwkd_loop_open()
    const char *path;    // of the socket
    int listen_fd;       // already bound and listening (taken), or -1: bind path
    const char *control; // the control socket's path, told to clients
    kwkd_sessions *sessions;
    kwkd_scheduler *scheduler;
    kwkd_metrics *metrics;
    void (*opened)(void *arg); // after each session that opens; may be NULL
    void *opened_arg;
} kwkd_door_options;

/** Open the door. `path` must be free (kwkd_socket_clear). */
int kwkd_door_open(kwkd_door **out, const kwkd_door_options *opts, kwk_error *err);

/** Once a second: connections that say nothing are closed. */
void kwkd_door_tick(kwkd_door *d);

/** Between dispatches: free what was closed. */
void kwkd_door_sweep(kwkd_door *d);

/** Close every session and the socket; removes the path unless listen_fd was given. */
void kwkd_door_close(kwkd_door *d);

#endif
