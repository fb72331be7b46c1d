/* SPDX-License-Identifier: Apache-2.0
 *
 * generate: check the request and queue its job. The tokens flow through the session's ring; or,
 * for an inline request, the call is kept and answered with all of them.
 */
#include "daemon/daemon.h"

static int accepted(kwkd_call *call, uint32_t stream, uint64_t seed, kwk_error *err)
{
    kwk_map m;

    kwk_reply_begin(&m, &call->reply);
    kwk_map_bool(&m, "accepted", 1);
    kwk_map_uint(&m, "stream", stream);
    kwk_map_uint(&m, "seed", seed);
    return kwk_map_end(&m, err);
}

int kwkd_req_generate(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    const kwk_generate_req *req = &call->request.u.generate;
    const int is_inline = req->inline_reply;
    kwkd_model *model = NULL;
    kwkd_job *job = NULL;
    uint64_t seed;
    int rc;

    if (!is_inline && call->session && req->request_id &&
        kwkd_scheduler_repeated(d->scheduler, call->session, req->stream, req->request_id, &seed))
        return accepted(call, req->stream, seed, err);
    rc = kwkd_store_find(d->store, req->model, &model, &call->retry_ms, err);
    if (rc == KWK_OK)
        rc = kwkd_job_new(&job, model, call->session, call->uid, req,
                          atomic_load(&d->inline_tokens), err);
    kwkd_model_unref(model);
    if (rc < 0)
        return rc;
    // the reply before the job: what was accepted can be said to be
    rc = is_inline ? kwkd_call_keep(call, err)
                   : accepted(call, req->stream, job->sampling.seed, err);
    if (rc == KWK_OK) // once queued, an inline call may be answered any time
        rc =
            kwkd_scheduler_submit(d->scheduler, job, is_inline ? call : NULL, &call->retry_ms, err);
    if (rc < 0) {
        kwkd_job_free(job);
        return rc;
    }
    return is_inline ? KWKD_LATER : KWK_OK;
}
