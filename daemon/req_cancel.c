/* SPDX-License-Identifier: Apache-2.0
 *
 * cancel: end generations early, by stream of the session or by request id. What has ended already
 * is no error: the answer counts what was still under way.
 */
#include "daemon/daemon.h"

int kwkd_req_cancel(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    const kwk_cancel_req *req = &call->request.u.cancel;
    kwk_map m;
    int n;

    if (!req->has_stream && !req->request_id)
        return kwk_fail(err, KWK_EINVAL, "stream or request_id is required");
    n = kwkd_scheduler_cancel(d->scheduler, req->has_stream ? call->session : NULL, req->stream,
                              call->uid, req->request_id);
    kwk_reply_begin(&m, &call->reply);
    kwk_map_int(&m, "cancelled", n);
    return kwk_map_end(&m, err);
}
