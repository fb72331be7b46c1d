/* SPDX-License-Identifier: Apache-2.0
 *
 * From the out ring to the queues of streams and the answers of submissions. Whoever calls takes what
 * is there for everybody; of those who must wait, one sleeps on the ring and the others on the
 * condition variable. No thread of its own.
 */
#include "client/internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void kwk_client_die(kwk_client *c, int code, const char *text)
{
    if (!c->death.code)
        kwk_fail(&c->death, code, "%s", text);
    pthread_cond_broadcast(&c->changed);
}

int kwk_client_dead(const kwk_client *c, kwk_error *err)
{
    return c->death.code ? kwk_fail(err, c->death.code, "%s", c->death.msg) : KWK_OK;
}

static void take_answer(kwk_client *c, const kwk_record *rec)
{
    const uint32_t i = rec->stream - c->first_tag;
    kwk_answer *a;

    if (c->n_unanswered)
        c->n_unanswered--;
    c->n_answered++;
    if (!c->answers || i >= c->n_answers)
        return; // of a forward that gave up
    a = &c->answers[i];
    if (rec->type == KWK_REC_ERROR) {
        a->state = rec->token < 0 ? rec->token : KWK_EPROTO;
        memcpy(a->msg, rec->payload, rec->n_bytes);
        a->msg[rec->n_bytes] = 0;
    } else {
        a->state = 1;
        a->row = rec->aux;
        a->n_rows = (uint32_t)rec->token;
    }
}

int kwk_pump(kwk_client *c)
{
    kwk_record rec;
    kwk_error err;
    int n = 0, rc = 0;

    while (!c->death.code && (rc = kwk_out_take(&c->ring, &rec, &err)) == 1) {
        n++;
        if (rec.stream & KWK_TAG_BIT) {
            if (rec.type == KWK_REC_LOGITS || rec.type == KWK_REC_ERROR)
                take_answer(c, &rec);
        } else {
            const int slot = (int)(rec.stream % KWK_STREAMS);
            if (c->slots[slot] && c->slots[slot]->id == rec.stream)
                kwk_stream_push(c, slot, &rec);
        }
    }
    if (rc < 0)
        kwk_client_die(c, rc, err.msg);
    return n;
}

static void wait_for_change(kwk_client *c, int64_t ms)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_nsec += ms * 1000000;
    ts.tv_sec += ts.tv_nsec / 1000000000;
    ts.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&c->changed, &c->lock, &ts);
}

void kwk_pump_wait(kwk_client *c, int64_t deadline)
{
    const int64_t left = deadline - kwk_now_ms();
    const int slice = left < 0 ? 0 : left < KWK_SLICE_MS ? (int)left : KWK_SLICE_MS;
    kwk_out_consumer ring;
    int closed;

    if (c->death.code)
        return;
    if (c->sleeping) {
        wait_for_change(c, slice);
        return;
    }
    c->sleeping = 1;
    ring = c->ring; // others may take records meanwhile
    pthread_mutex_unlock(&c->lock);
    (void)kwk_out_wait(&ring, slice, 0);
    closed = kwk_door_is_closed(c);
    pthread_mutex_lock(&c->lock);
    c->sleeping = 0;
    (void)kwk_pump(c);
    if (closed)
        (void)kwk_door_read(c); // notes the death and its reason
    // Those whose records came, and one who takes over the sleeper's place.
    pthread_cond_broadcast(&c->changed);
}
