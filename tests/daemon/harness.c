/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's parts without sockets; see harness.h.
 */
#include "tests/daemon/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

void harness_start(harness *h, int threaded, const char *conf_json)
{
    const kwkd_conf_input nothing = {0};
    kwk_error err = {0};
    char file[96];

    memset(h, 0, sizeof *h);
    h->threaded = threaded;
    strcpy(h->dir, "/tmp/kwkd-test-XXXXXX");
    assert_non_null(mkdtemp(h->dir));
    snprintf(h->model, sizeof h->model, "%s/model", h->dir);
    write_file(h->model, "weights");
    if (conf_json) {
        kwkd_conf_input in = {.file = file};
        snprintf(file, sizeof file, "%s/conf", h->dir);
        write_file(file, conf_json);
        assert_int_equal(kwkd_conf_load(&h->conf, &in, &err), KWK_OK);
    } else {
        assert_int_equal(kwkd_conf_load(&h->conf, &nothing, &err), KWK_OK);
    }
    h->conf.model_dirs[h->conf.n_model_dirs++] = strdup(h->dir);
    h->d.start_us = kwkd_now_us();
    kwkd_sessions_init(&h->d.sessions);
    assert_int_equal(kwkd_store_new(&h->d.store, &h->d.metrics, &err), KWK_OK);
    assert_int_equal(kwkd_scheduler_new(&h->d.scheduler, &h->d.metrics, &err), KWK_OK);
    kwkd_sessions_configure(&h->d.sessions, &h->conf);
    kwkd_store_configure(h->d.store, &h->conf);
    kwkd_scheduler_configure(h->d.scheduler, &h->conf);
    h->d.inline_requests = h->conf.inline_requests;
    h->d.inline_tokens = h->conf.inline_tokens;
    if (threaded)
        assert_int_equal(kwkd_scheduler_start(h->d.scheduler, &err), KWK_OK);
}

void harness_stop(harness *h)
{
    char command[96];

    kwkd_scheduler_stop(h->d.scheduler);
    kwkd_store_stop(h->d.store);
    kwkd_store_free(h->d.store);
    kwkd_scheduler_free(h->d.scheduler);
    kwkd_sessions_fini(&h->d.sessions);
    kwkd_conf_fini(&h->conf);
    snprintf(command, sizeof command, "rm -rf %s", h->dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(atomic_load(&fake_count.models), 0); // nothing leaked
    assert_int_equal(atomic_load(&fake_count.seqs), 0);
}

int harness_load(harness *h, const char *name)
{
    kwk_request req = {.op = KWK_OP_load};
    kwk_tree *tree = NULL;
    int rc;

    req.u.load = (kwk_load_req){.name = name, .path = h->model, .wait = 1};
    rc = call(h, NULL, &req, &tree, NULL);
    kwk_tree_free(tree);
    return rc;
}

void harness_turns(harness *h)
{
    for (int i = 0; i < 100000; i++)
        if (!kwkd_scheduler_turn(h->d.scheduler))
            return;
    fail_msg("the scheduler does not come to rest");
}

/* ---- sessions
 * ------------------------------------------------------------------------------------------ */

void client_open(client *c, harness *h, uint32_t out_slots, size_t logits_bytes)
{
    const kwk_hello_req hello = {
        .version = 1, .client = "test/1", .out_slots = out_slots, .logits_bytes = logits_bytes};
    int pair[2], fds[3], n;
    kwk_error err = {0};

    memset(c, 0, sizeof *c);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
    c->door = pair[0];
    if (kwkd_session_open(&c->session, &h->d.sessions, pair[1], 1000, 7, &hello, fds, &n, &err) < 0)
        fail_msg("%s", err.msg);
    c->out_size = kwk_out_size(c->session->out_slots);
    c->in_size = kwk_in_size(c->session->in_bytes);
    c->logits_size = c->session->logits_bytes;
    c->in = kwk_memfd_map(fds[1], c->in_size, 1, &err);
    assert_non_null(c->in);
    assert_int_equal(kwk_out_consumer_init(&c->ring, kwk_memfd_map(fds[0], c->out_size, 0, &err),
                                           c->out_size, c->in, c->in_size, &err),
                     KWK_OK);
    if (n == 3)
        c->logits = kwk_memfd_map(fds[2], c->logits_size, 0, &err);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    assert_int_equal(kwkd_scheduler_add_session(h->d.scheduler, c->session, &err), KWK_OK);
}

void client_close(client *c, harness *h)
{
    munmap((void *)c->ring.out, c->out_size);
    munmap(c->in, c->in_size);
    if (c->logits)
        munmap((void *)c->logits, c->logits_size);
    close(c->door);
    kwkd_session_close(&h->d.sessions, c->session);
    kwkd_scheduler_drop_session(h->d.scheduler, c->session);
    kwkd_session_unref(c->session);
}

int32_t *client_data(client *c)
{
    return (int32_t *)(void *)(c->in + KWK_IN_DATA_AT);
}

kwk_in_stream *client_stream(client *c, uint32_t stream)
{
    return (kwk_in_stream *)(void *)(c->in + KWK_IN_STREAMS_AT) + stream % KWK_STREAMS;
}

kwk_in_header *client_header(client *c)
{
    return (kwk_in_header *)(void *)c->in;
}

int client_take(client *c, kwk_record *r)
{
    kwk_error err = {0};
    const int rc = kwk_out_take(&c->ring, r, &err);

    assert_true(rc >= 0);
    if (rc && r->type != KWK_REC_LOGITS)
        atomic_fetch_add(&client_stream(c, r->stream)->consumed, 1);
    return rc;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct pending {
    kwkd_call call;
    kwk_buf message, reply;
    atomic_int done;
};

static void take_reply(kwkd_call *call)
{
    pending *p = KWKD_OWNER(pending, call, call);

    p->reply = call->reply;
    call->reply = (kwk_buf){0};
    atomic_store(&p->done, 1);
}

pending *call_prepare(harness *h, const client *c, kwk_request *req)
{
    pending *p = calloc(1, sizeof *p);
    kwk_error err = {0};

    assert_non_null(p);
    if (c) {
        req->has_session = 1;
        memcpy(req->session, c->session->id, 16);
    }
    if (kwk_request_encode(&p->message, req, &err) < 0)
        fail_msg("%s", err.msg);
    p->call = (kwkd_call){.daemon = &h->d, .uid = 1000, .pid = 7, .send = take_reply};
    return p;
}

void call_go(pending *p)
{
    kwkd_call_run(&p->call, p->message.data, p->message.size);
}

pending *call_start(harness *h, const client *c, kwk_request *req)
{
    pending *p = call_prepare(h, c, req);

    call_go(p);
    return p;
}

void call_free(pending *p)
{
    assert_true(call_done(p));
    kwk_buf_fini(&p->message);
    kwk_buf_fini(&p->reply);
    free(p);
}

int call_done(pending *p)
{
    return atomic_load(&p->done);
}

void call_hang_up(pending *p)
{
    atomic_store(&p->call.gone, 1);
}

int call_end(harness *h, pending *p, kwk_tree **tree, kwk_error *err)
{
    kwk_tree *t = NULL;
    kwk_error local = {0};
    int retry_ms = 0, rc;

    for (int i = 0; !call_done(p) && i < 10000; i++) {
        if (h->threaded || !kwkd_scheduler_turn(h->d.scheduler))
            usleep(1000);
    }
    assert_true(call_done(p));
    assert_int_equal(kwk_tree_parse(&t, p->reply.data, p->reply.size, &local), KWK_OK);
    rc = kwk_tree_status(t, &retry_ms, &local);
    if (rc == KWK_EBUSY)
        assert_true(retry_ms > 0);
    if (err)
        *err = local;
    if (tree && rc == KWK_OK)
        *tree = t;
    else
        kwk_tree_free(t);
    call_free(p);
    return rc;
}

int call(harness *h, const client *c, kwk_request *req, kwk_tree **tree, kwk_error *err)
{
    return call_end(h, call_start(h, c, req), tree, err);
}

/* ---- generations
 * ----------------------------------------------------------------------------------------- */

kwk_request harness_generate(uint32_t stream, const int32_t *prompt, int n, int max_new)
{
    kwk_request r = {.op = KWK_OP_generate};

    r.u.generate = (kwk_generate_req)KWK_GENERATE_REQ_INIT;
    r.u.generate.stream = stream;
    r.u.generate.prompt = prompt;
    r.u.generate.n_prompt = n;
    r.u.generate.max_new_tokens = max_new;
    return r;
}

void harness_accept(harness *h, const client *c, kwk_request *req)
{
    kwk_error err = {0};

    if (call(h, c, req, NULL, &err) < 0)
        fail_msg("%s", err.msg);
}

int harness_drain(harness *h, client *c, int32_t *tokens, kwk_record *last)
{
    int n = 0;

    for (int i = 0; i < 100000; i++) {
        if (!client_take(c, last)) {
            kwkd_scheduler_turn(h->d.scheduler);
            continue;
        }
        if (last->type == KWK_REC_TOKEN)
            tokens[n++] = last->token;
        if (last->type == KWK_REC_DONE || last->type == KWK_REC_ERROR)
            return n;
    }
    fail_msg("the stream does not end");
    return 0;
}

void expect_greedy(const int32_t *prompt, int n_prompt, const int32_t *tokens, int n)
{
    int32_t *ids = malloc((size_t)(n_prompt + n) * sizeof *ids);

    assert_non_null(ids);
    memcpy(ids, prompt, (size_t)n_prompt * sizeof *ids);
    for (int i = 0; i < n; i++) {
        assert_int_equal(tokens[i], fake_next(ids, n_prompt + i));
        ids[n_prompt + i] = tokens[i];
    }
    free(ids);
}

void make_prompt(int32_t *prompt, int n, int seed)
{
    for (int i = 0; i < n; i++)
        prompt[i] = 3 + (i * 7 + seed) % 200;
}
