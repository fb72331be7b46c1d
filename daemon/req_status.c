/* SPDX-License-Identifier: Apache-2.0
 *
 * status: whether the daemon lives and what it is doing. Answered from counters, so it stays quick
 * however busy the engine is.
 */
#include <unistd.h>

#include "daemon/daemon.h"

int kwkd_req_status(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    int running, waiting, ready, loading;
    kwk_map m;

    kwkd_scheduler_counts(d->scheduler, &running, &waiting);
    kwkd_store_counts(d->store, &ready, &loading, NULL);
    kwk_reply_begin(&m, &call->reply);
    kwk_map_str(&m, "server", KWKD_SERVER);
    kwk_map_int(&m, "pid", getpid());
    kwk_map_uint(&m, "uptime_ms", (kwkd_now_us() - d->start_us) / 1000);
    kwk_map_str(&m, "isa", kwk_isa());
    kwk_map_int(&m, "threads", kwk_threads());
    kwk_map_bool(&m, "ready", !loading);
    kwk_map_int(&m, "sessions", kwkd_sessions_count(&d->sessions));
    kwk_map_int(&m, "running", running);
    kwk_map_int(&m, "queued", waiting);
    kwk_map_int(&m, "models", ready + loading);
    return kwk_map_end(&m, err);
}
