/* SPDX-License-Identifier: Apache-2.0
 *
 * unload: take a model's name away. What runs on it goes on; the memory is freed after the last.
 */
#include "daemon/daemon.h"

int kwkd_req_unload(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    return kwkd_store_unload(d->store, call->request.u.unload.name, call->uid, err);
}
