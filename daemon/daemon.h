/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon as its parts see it: what request handlers may use. Only daemon.c makes and ends one.
 */
#ifndef KWK_DAEMON_DAEMON_H
#define KWK_DAEMON_DAEMON_H

#include "daemon/call.h"
#include "daemon/conf.h"
#include "daemon/kwkerd.h"
#include "daemon/metrics.h"
#include "daemon/scheduler.h"
#include "daemon/session.h"
#include "daemon/store.h"

#define KWKD_SERVER "kwkerd/" KWK_VERSION

struct kwkd {
    kwkd_metrics metrics;
    kwkd_sessions sessions;
    kwkd_store *store;
    kwkd_scheduler *scheduler;
    uint64_t start_us;
    atomic_int inline_requests, inline_tokens; // settings
    atomic_int n_kept;                         // calls that take long (kwkd_call_keep)
    struct kwkd_parts *parts;                  // daemon.c's
};

/* A handler: answers call->request. KWK_OK: call->reply is complete (an empty one means "ok" and no
 * fields); KWKD_LATER: the call was kept, kwkd_call_finish() comes from elsewhere; or an error. */
typedef int kwkd_handler(struct kwkd *d, kwkd_call *call, kwk_error *err);

#define KWK_REQUEST(name, session) kwkd_handler kwkd_req_##name;
#include "proto/requests.inc"
#undef KWK_REQUEST

#endif
