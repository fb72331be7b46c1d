/* SPDX-License-Identifier: Apache-2.0
 *
 * seq_open, seq_fork, seq_truncate, seq_export, seq_close and forward: about the session's own
 * sequences, which belong to the engine thread; so the call is handed over (forward.c).
 */
#include "daemon/daemon.h"
#include "daemon/forward.h"

static void run(struct kwkd_scheduler *s, kwkd_work *w)
{
    kwkd_forward_call(s, KWKD_OWNER(kwkd_call, work, w));
}

static int hand_over(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    int rc;

    call->work.run = run;
    rc = kwkd_scheduler_post(d->scheduler, &call->work, err);
    return rc < 0 ? rc : KWKD_LATER;
}

int kwkd_req_seq_open(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    int rc = kwkd_store_find(d->store, call->request.u.seq_open.model, &call->model,
                             &call->retry_ms, err);

    return rc < 0 ? rc : hand_over(d, call, err);
}

int kwkd_req_seq_fork(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    return hand_over(d, call, err);
}

int kwkd_req_seq_truncate(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    return hand_over(d, call, err);
}

int kwkd_req_seq_export(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    return hand_over(d, call, err);
}

int kwkd_req_seq_close(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    return hand_over(d, call, err);
}

int kwkd_req_forward(struct kwkd *d, kwkd_call *call, kwk_error *err)
{
    return hand_over(d, call, err);
}
