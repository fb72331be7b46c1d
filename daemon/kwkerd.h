/* SPDX-License-Identifier: Apache-2.0
 *
 * libkwkerd: the daemon inside any program. kwkerd itself is a main() around this header.
 *
 * Threads: the functions of one daemon belong to one thread, except kwkd_stop(), which may be
 * called from any thread and from a signal handler. The daemon starts threads of its own (engine,
 * loaders, NNG's). After fork() the child must not touch it. Errors: 0 or a negative KWK_E…, text
 * in *err.
 */
#ifndef KWK_DAEMON_KWKERD_H
#define KWK_DAEMON_KWKERD_H

#include <stddef.h>

#include "proto/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kwkd kwkd;

typedef struct kwkd_options {
    size_t size;               // sizeof(kwkd_options)
    const char *config;        // JSON file; NULL: $KWKER_CONFIG, else none
    const char *runtime_dir;   // NULL: from the configuration, else $RUNTIME_DIRECTORY, else
                               //   $XDG_RUNTIME_DIR/kwker, else /run/kwker
    const char *const *models; // (n_models) "NAME=PATH[,precision=P][,mix_bits=B][,ctx=N][,pin]"
    int n_models;
    int door_fd; // listening AF_UNIX SOCK_SEQPACKET socket to use as the door (taken); -1: make one
    int log_fd;  // where to log; -1: nowhere
} kwkd_options;
#define KWKD_OPTIONS_INIT                                                                          \
    {                                                                                              \
        .size = sizeof(kwkd_options), .door_fd = -1, .log_fd = -1                                  \
    }

/**
 * Start a daemon: when this returns it answers, and loads its configured models in the background.
 *
 * @param out   the caller's: kwkd_free()
 * @param opts  strings are borrowed until kwkd_free()
 *
 * @return KWK_OK; KWK_EINVAL the configuration (the message has file and line); KWK_EBUSY another
 *         kwkerd owns the runtime directory; KWK_EPERM, KWK_EIO, KWK_ENOMEM
 */
KWK_API int kwkd_new(kwkd **out, const kwkd_options *opts, kwk_error *err);

/** Descriptor that is readable when kwkd_dispatch() has something to do; at least once a second. */
KWK_API int kwkd_fd(const kwkd *d);

/** Do what is due, without waiting. 1: go on; 0: it has ended after kwkd_stop(). */
KWK_API int kwkd_dispatch(kwkd *d);

/** Wait and dispatch until the daemon has ended. */
KWK_API void kwkd_run(kwkd *d);

/** End: take no new work, let running generations finish for at most drain_ms. The second call ends
 *  them at once. Any thread; safe in signal handlers. */
KWK_API void kwkd_stop(kwkd *d);

/** Read the configuration again. Runtime directory, group, threads and contexts stay as they are.
 * On error nothing has changed. */
KWK_API int kwkd_reload(kwkd *d, kwk_error *err);

/** 1 unless the engine had work and made no progress since the last call. For watchdogs. */
KWK_API int kwkd_healthy(kwkd *d);

/** One line on what it does, for people ("2 models, 3 sessions, 1 running"), into buf. */
KWK_API void kwkd_describe(kwkd *d, char *buf, size_t size);

/** End at once if it runs, remove the sockets, free everything. NULL allowed. */
KWK_API void kwkd_free(kwkd *d);

#ifdef __cplusplus
}
#endif

#endif
