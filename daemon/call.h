/* SPDX-License-Identifier: Apache-2.0
 *
 * A control request that is being answered: who asks, what, and the reply as it grows. The
 * transport (control.c, over NNG) embeds a call in each of its contexts; handlers know only this. A
 * handler answers at once or keeps the call and answers later from another thread.
 */
#ifndef KWK_DAEMON_CALL_H
#define KWK_DAEMON_CALL_H

#include <stdatomic.h>

#include "daemon/session.h"
#include "daemon/store.h"
#include "daemon/work.h"
#include "proto/msg.h"

struct kwkd;

enum { KWKD_LATER = 1 }; // a handler's answer: the call was kept

typedef struct kwkd_call {
    struct kwkd *daemon;
    uint32_t uid; // credentials of the connection
    int32_t pid;
    kwk_request request;   // decoded; lives until the call is finished
    kwkd_session *session; // one reference, when the request names one
    kwkd_model *model;     // likewise (seq_open)
    kwk_buf reply;
    int retry_ms;           // with KWK_EBUSY
    int counted;            // holds a place among the slow ones (kwkd_call_keep)
    atomic_int gone;        // the client hung up: an answer is of no use
    struct kwkd_call *next; // of whoever keeps it
    kwkd_work work;
    void (*send)(struct kwkd_call *call); // the transport's: reply is complete
} kwkd_call;

/** Run a request of n bytes. call: daemon, uid, pid and send are set, the rest is zero. The reply
 * goes out by call->send(), on this thread before the return or later on another. */
void kwkd_call_run(kwkd_call *call, const void *data, size_t n);

/**
 * Claim a place for a call that takes long (an inline generation, a waiting load).
 *
 * @return KWK_OK; KWK_EBUSY: `inline_requests` are taken, so that others still get an answer
 */
int kwkd_call_keep(kwkd_call *call, kwk_error *err);

/** Send the reply: the one in call->reply, or for rc < 0 the error. Ends the call: the caller must
 * not touch it afterwards. */
void kwkd_call_finish(kwkd_call *call, int rc, const kwk_error *err);

#endif
