/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences that the daemon keeps for this session. Their lengths are mirrored here, so that forward.c
 * can check before it submits.
 */
#include "client/internal.h"

#include <stdlib.h>

void kwk_seq_destroy(kwk_client_seq *s)
{
    free(s);
}

/* A handle from a reply with "seq", "length", "vocab", "max_ctx". */
static int seq_from_reply(kwk_client_seq **out, kwk_client *c, const kwk_tree *t, kwk_error *err)
{
    const int64_t length = kwk_tree_int(t, "length", -1);
    const int64_t vocab = kwk_tree_int(t, "vocab", -1);
    const int64_t max_ctx = kwk_tree_int(t, "max_ctx", -1);
    const int has_id = kwk_tree_int(t, "seq", 0) || kwk_tree_int(t, "seq", 1) == 0;
    kwk_client_seq *s;

    if (!has_id || length < 0 || length > KWK_NEW_TOKENS_MAX || vocab < 1 ||
        vocab > 1 << 24 || max_ctx < length || max_ctx > INT32_MAX)
        return kwk_fail(err, KWK_EPROTO, "sequence of length %lld, vocab %lld, max_ctx %lld",
                        (long long)length, (long long)vocab, (long long)max_ctx);
    s = calloc(1, sizeof *s);
    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "out of memory for a sequence");
    s->client = c;
    s->id = (uint64_t)kwk_tree_int(t, "seq", 0);
    s->length = (int)length;
    s->vocab = (int)vocab;
    s->max_ctx = (int)max_ctx;
    pthread_mutex_lock(&c->lock);
    s->next = c->seqs;
    if (s->next)
        s->next->prev = s;
    c->seqs = s;
    pthread_mutex_unlock(&c->lock);
    *out = s;
    return KWK_OK;
}

static int open_seq(kwk_client_seq **out, kwk_client *c, const kwk_request *r, kwk_error *err)
{
    kwk_tree *t = NULL;
    int rc = kwk_client_call(c, r, c->timeout_ms, &t, NULL, err);

    if (rc == KWK_OK)
        rc = seq_from_reply(out, c, t, err);
    kwk_tree_free(t);
    return rc;
}

int kwk_client_seq_open(kwk_client_seq **out, kwk_client *c, const char *model, kwk_error *err)
{
    kwk_request r;
    int rc = kwk_client_check(c, err);

    if (rc == KWK_OK && !out)
        rc = kwk_fail(err, KWK_EINVAL, "out is NULL");
    if (rc < 0)
        return rc;
    r = kwk_client_request(c, KWK_OP_seq_open);
    r.u.seq_open.model = model;
    return open_seq(out, c, &r, err);
}

static int check_seq(const kwk_client_seq *s, kwk_error *err)
{
    int rc;

    if (!s)
        return kwk_fail(err, KWK_EINVAL, "sequence is NULL");
    rc = kwk_client_check(s->client, err);
    if (rc == KWK_OK && s->broken)
        rc = kwk_fail(err, KWK_EINVAL, "sequence of unknown state after an error: free it");
    return rc;
}

int kwk_client_seq_fork(kwk_client_seq **out, kwk_client_seq *s, kwk_error *err)
{
    kwk_request r;
    int rc = check_seq(s, err);

    if (rc == KWK_OK && !out)
        rc = kwk_fail(err, KWK_EINVAL, "out is NULL");
    if (rc < 0)
        return rc;
    r = kwk_client_request(s->client, KWK_OP_seq_fork);
    r.u.seq_fork.seq = s->id;
    return open_seq(out, s->client, &r, err);
}

int kwk_client_seq_truncate(kwk_client_seq *s, int length, kwk_error *err)
{
    kwk_request r;
    int rc = check_seq(s, err);

    if (rc == KWK_OK && (length < 0 || length > s->length))
        rc = kwk_fail(err, KWK_EINVAL, "length: %d is outside 0 to %d", length, s->length);
    if (rc < 0)
        return rc;
    r = kwk_client_request(s->client, KWK_OP_seq_truncate);
    r.u.seq_truncate.seq = s->id;
    r.u.seq_truncate.length = length;
    rc = kwk_client_call(s->client, &r, s->client->timeout_ms, NULL, NULL, err);
    if (rc == KWK_OK)
        s->length = length;
    return rc;
}

int kwk_client_seq_length(const kwk_client_seq *s)
{
    return s ? s->length : 0;
}

int kwk_client_seq_vocab(const kwk_client_seq *s)
{
    return s ? s->vocab : 0;
}

void kwk_client_seq_free(kwk_client_seq *s)
{
    kwk_client *c;
    kwk_request r;

    if (!s || kwk_client_check(s->client, NULL) < 0)
        return; // in a forked child: freed with the client
    c = s->client;
    r = kwk_client_request(c, KWK_OP_seq_close);
    r.u.seq_close.seq = s->id;
    (void)kwk_client_call(c, &r, c->timeout_ms, NULL, NULL, NULL); // gone with the session at last
    pthread_mutex_lock(&c->lock);
    if (s->prev)
        s->prev->next = s->next;
    else
        c->seqs = s->next;
    if (s->next)
        s->next->prev = s->prev;
    pthread_mutex_unlock(&c->lock);
    kwk_seq_destroy(s);
}
