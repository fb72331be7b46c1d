/* SPDX-License-Identifier: Apache-2.0
 *
 * The control socket: SP REP over NNG, many requests at once. All that knows NNG, and the guard
 * against the defect of NNG 1.5 that stops its listener for good when a peer connects and hangs up
 * before the handshake (fixed in 1.6.0): the listener is probed, and made anew when it is silent.
 *
 * Requests run on NNG's threads; open, close, ticks and probes on the thread that runs the daemon.
 */
#ifndef KWK_DAEMON_CONTROL_H
#define KWK_DAEMON_CONTROL_H

#include "daemon/daemon.h"
#include "daemon/rundir.h"

typedef struct kwkd_control kwkd_control;

/**
 * Listen.
 *
 * @param dir         the socket is dir->control, which must be free (kwkd_socket_clear); borrowed
 * @param loop        for the probes' descriptors
 * @param n_contexts  requests that may be under way at once
 */
int kwkd_control_open(kwkd_control **out, struct kwkd *d, const kwkd_rundir *dir, int loop,
                      int n_contexts, kwk_error *err);

/** Probe the listener now, unless a probe is under way. Once a second, and when a client is about
 * to connect. */
void kwkd_control_probe(kwkd_control *c);

/** Let replies go out for a moment, then close. Every call must have been finished. */
void kwkd_control_close(kwkd_control *c);

#endif
