/* SPDX-License-Identifier: Apache-2.0
 *
 * pin: keep a model from being evicted, or no longer.
 */
#include "daemon/daemon.h"

int kwkd_req_pin(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    const kwk_name_req *req = &call->request.u.pin;

    return kwkd_store_pin(d->store, req->name, req->pin != 0, call->uid, err);
}
