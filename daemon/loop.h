/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors and what to do when they are ready: epoll, for the one thread that runs the daemon.
 * Knows nothing of what the descriptors are.
 */
#ifndef KWK_DAEMON_LOOP_H
#define KWK_DAEMON_LOOP_H

#include <stdint.h>

#include "proto/error.h"

/* Embedded in its owner. Once removed it must stay in memory until kwkd_loop_dispatch() has
 * returned: events that epoll reported together may still name it; they are ignored. */
typedef struct kwkd_source {
    int fd; // -1: not in a loop
    void (*ready)(struct kwkd_source *src);
} kwkd_source;

/** A descriptor of epoll, or a negative KWK_E…. */
int kwkd_loop_open(kwk_error *err);

/** Call src->ready whenever fd is readable or hung up (level-triggered). */
int kwkd_loop_add(int loop, kwkd_source *src, int fd, void (*ready)(kwkd_source *src),
                  kwk_error *err);
void kwkd_loop_remove(int loop, kwkd_source *src); // the descriptor stays open

/** Serve what is ready now, or within timeout_ms (-1: wait). */
void kwkd_loop_dispatch(int loop, int timeout_ms);

/** A timer's descriptor (CLOCK_MONOTONIC), not set; kwkd_timer_set: first and then every period_ms,
 *  0: once; first_ms 0: off. kwkd_timer_clear: after it fired. */
int kwkd_timer_open(kwk_error *err);
void kwkd_timer_set(int fd, int first_ms, int period_ms);
void kwkd_timer_clear(int fd);

#endif
