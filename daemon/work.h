/* SPDX-License-Identifier: Apache-2.0
 *
 * A piece of work handed to the engine thread: embedded in what it is about, so that posting never
 * allocates. And the clock that the daemon's threads share.
 */
#ifndef KWK_DAEMON_WORK_H
#define KWK_DAEMON_WORK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct kwkd_scheduler;
struct kwkd_work;

typedef void kwkd_work_fn(struct kwkd_scheduler *s, struct kwkd_work *w); // on the engine thread

typedef struct kwkd_work {
    struct kwkd_work *next;
    kwkd_work_fn *run;
} kwkd_work;

/** Microseconds of the monotonic clock. */
static inline uint64_t kwkd_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/** The structure that holds a member, from a pointer to the member. */
#define KWKD_OWNER(type, member, p) ((type *)(void *)((char *)(p)-offsetof(type, member)))

#endif
