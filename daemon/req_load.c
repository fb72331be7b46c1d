/* SPDX-License-Identifier: Apache-2.0
 *
 * load: put a model into memory, from a path under the model directories or from a pack that the
 * session handed over at the door. With `wait` the call is kept until the load has ended.
 */
#include <unistd.h>

#include "daemon/daemon.h"

static int reply(kwkd_call *call, const char *state, kwk_error *err)
{
    kwk_map m;

    kwk_reply_begin(&m, &call->reply);
    kwk_map_str(&m, "state", state);
    return kwk_map_end(&m, err);
}

static void loaded(void *arg, int rc, const kwk_error *err) // a loader's thread
{
    kwkd_call *call = arg;
    kwk_error local = *err;

    if (rc == KWK_OK)
        rc = reply(call, "ready", &local);
    kwkd_call_finish(call, rc, &local);
}

int kwkd_req_load(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    const kwk_load_req *req = &call->request.u.load;
    kwkd_load load = {.name = req->name,
                      .path = req->path,
                      .fd = -1,
                      .precision = req->precision,
                      .mix_bits = req->mix_bits,
                      .max_ctx = req->max_ctx,
                      .pin = req->pin,
                      .uid = call->uid};
    int rc = KWK_OK;

    if (!req->path == !req->pack)
        return kwk_fail(err, KWK_EINVAL, "one of path and pack is required");
    if (req->wait)
        rc = kwkd_call_keep(call, err);
    if (rc == KWK_OK && req->pack)
        rc = kwkd_session_take_pack(call->session, req->pack, &load.fd, err);
    if (rc < 0)
        return rc;
    // with `wait` and a load that runs the call is no longer ours: a loader may answer it any time
    const int wait = req->wait;
    rc = kwkd_store_load(d->store, &load, wait ? loaded : NULL, call, err);
    if (rc < 0) {
        if (load.fd >= 0)
            close(load.fd);
        if (rc == KWK_EBUSY)
            call->retry_ms = 1000;
        return rc;
    }
    if (rc == 0 && wait)
        return KWKD_LATER;
    return reply(call, rc ? "ready" : "loading", err);
}
