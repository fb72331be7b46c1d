/* SPDX-License-Identifier: Apache-2.0
 *
 * From a message to its handler and back. Runs on the transport's thread; kwkd_call_finish() also
 * on the engine thread and the loaders. Knows no NNG.
 */
#include "daemon/call.h"

#include "daemon/daemon.h"

static int dispatch(kwkd_call *call, kwk_error *err)
{
    static kwkd_handler *const handlers[KWK_OP_END] = {
#define KWK_REQUEST(name, session) [KWK_OP_##name] = kwkd_req_##name,
#include "proto/requests.inc"
#undef KWK_REQUEST
    };
    struct kwkd *d = call->daemon;
    const kwk_op op = call->request.op;
    int rc;

    kwkd_count(&d->metrics.requests[op], 1);
    if (call->request.has_session) { // it is given where the operation needs one: the codec's duty
        rc = kwkd_session_find(&call->session, &d->sessions, call->request.session, call->uid,
                               call->pid, err);
        if (rc < 0)
            return rc;
    }
    return handlers[op](d, call, err);
}

void kwkd_call_run(kwkd_call *call, const void *data, size_t n)
{
    kwk_error err = {0};
    int rc = kwk_request_decode(&call->request, data, n, &err);

    if (rc == KWK_OK)
        rc = dispatch(call, &err);
    else
        call->request = (kwk_request){0};
    if (rc != KWKD_LATER)
        kwkd_call_finish(call, rc, &err);
}

int kwkd_call_keep(kwkd_call *call, kwk_error *err)
{
    struct kwkd *d = call->daemon;
    const int most = atomic_load(&d->inline_requests);

    if (atomic_fetch_add(&d->n_kept, 1) >= most) {
        atomic_fetch_sub(&d->n_kept, 1);
        call->retry_ms = 200;
        return kwk_fail(err, KWK_EBUSY, "%d requests wait for their results, the most allowed",
                        most);
    }
    call->counted = 1;
    return KWK_OK;
}

void kwkd_call_finish(kwkd_call *call, int rc, const kwk_error *err)
{
    struct kwkd *d = call->daemon;
    kwk_map m;

    if (rc < 0) {
        call->reply.size = 0;
        if (-rc < KWKD_ERRORS)
            kwkd_count(&d->metrics.errors[-rc], 1);
        if (kwk_reply_error(&call->reply, err, rc == KWK_EBUSY ? call->retry_ms : 0) < 0)
            call->reply.size = 0; // out of memory: the transport sends nothing
    } else if (!call->reply.size) {
        kwk_reply_begin(&m, &call->reply);
        if (kwk_map_end(&m, NULL) < 0)
            call->reply.size = 0;
    }
    if (call->counted)
        atomic_fetch_sub(&d->n_kept, 1);
    call->counted = 0;
    kwk_request_fini(&call->request);
    kwkd_session_unref(call->session);
    kwkd_model_unref(call->model);
    call->session = NULL;
    call->model = NULL;
    call->send(call);
}
