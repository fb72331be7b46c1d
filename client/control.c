/* SPDX-License-Identifier: Apache-2.0
 *
 * Control requests over one SP connection, which is opened again when the daemon dropped it. A request
 * is never sent twice: what the daemon did with it is not known then.
 */
#include "client/internal.h"

#include <poll.h>
#include <string.h>

enum { RETRY_MS = 10 }; // between two connections that were closed at once

kwk_request kwk_client_request(const kwk_client *c, kwk_op op)
{
    kwk_request r = {.op = op, .has_session = 1};

    memcpy(r.session, c->session, sizeof r.session);
    return r;
}

/* A connection at rest has nothing to read: if it has, it was closed or is out of step. */
static int is_stale(const kwk_sp *s)
{
    struct pollfd pfd = {.fd = s->fd, .events = POLLIN | POLLRDHUP};

    return s->fd >= 0 && poll(&pfd, 1, 0) > 0;
}

static int time_left(int64_t deadline)
{
    const int64_t left = deadline - kwk_now_ms();

    return left < 0 ? 0 : (int)left;
}

/* NNG 1.5's listener, once broken by a peer that hung up early, greets and then serves nobody; kwkerd
 * notices, makes a new one, and closes what came by the old one. So a question that may be repeated
 * goes first. */
int kwk_control_open(kwk_client *c, int64_t deadline, kwk_error *err)
{
    const kwk_request status = {.op = KWK_OP_status};
    kwk_buf b = {0};
    int rc = kwk_request_encode(&b, &status, err);

    while (rc == KWK_OK) {
        kwk_buf reply = {0};
        rc = kwk_sp_open(&c->sp, c->ctl_path, time_left(deadline), err);
        if (rc == KWK_OK)
            rc = kwk_sp_call(&c->sp, b.data, b.size, &reply, time_left(deadline), err);
        kwk_buf_fini(&reply);
        if (rc != KWK_ECLOSED || !time_left(deadline) || kwk_door_is_closed(c))
            break;
        rc = KWK_OK; // again; the connection is closed
        (void)poll(NULL, 0, RETRY_MS);
    }
    kwk_buf_fini(&b);
    return rc;
}

/* Send and receive; ctl_lock held. */
static int exchange(kwk_client *c, const kwk_buf *b, kwk_buf *reply, int timeout_ms,
                    kwk_error *err)
{
    const int64_t deadline = kwk_now_ms() + timeout_ms;
    int rc = KWK_OK;

    if (is_stale(&c->sp))
        kwk_sp_close(&c->sp);
    if (c->sp.fd < 0)
        rc = kwk_control_open(c, deadline, err);
    if (rc < 0)
        return rc;
    return kwk_sp_call(&c->sp, b->data, b->size, reply, time_left(deadline), err);
}

int kwk_client_call(kwk_client *c, const kwk_request *req, int timeout_ms, kwk_tree **out,
                    int *answered, kwk_error *err)
{
    kwk_buf b = {0}, reply = {0};
    kwk_tree *t = NULL;
    int rc, retry_ms = 0;
    kwk_error said = {0};

    if (answered)
        *answered = 1; // until it is sent, the daemon knows nothing of it
    pthread_mutex_lock(&c->lock);
    rc = kwk_client_dead(c, err);
    pthread_mutex_unlock(&c->lock);
    if (rc == KWK_OK)
        rc = kwk_request_encode(&b, req, err);
    if (rc < 0)
        goto out;

    if (answered)
        *answered = 0;
    pthread_mutex_lock(&c->ctl_lock);
    rc = exchange(c, &b, &reply, timeout_ms, err);
    pthread_mutex_unlock(&c->ctl_lock);
    if (rc < 0) {
        if (kwk_door_is_closed(c))
            rc = kwk_fail(err, KWK_ECLOSED, "kwkerd closed the session");
        goto out;
    }
    rc = kwk_tree_parse(&t, reply.data, reply.size, err);
    if (rc < 0)
        goto out;
    if (answered)
        *answered = 1;
    rc = kwk_tree_status(t, &retry_ms, &said);
    if (rc < 0) {
        if (retry_ms)
            kwk_fail(err, rc, "%s; try again in %d ms", said.msg, retry_ms);
        else
            kwk_fail(err, rc, "%s", said.msg);
        goto out;
    }
    if (out) {
        *out = t;
        t = NULL;
    }
out:
    kwk_tree_free(t);
    kwk_buf_fini(&reply);
    kwk_buf_fini(&b);
    return rc;
}
