/* SPDX-License-Identifier: Apache-2.0
 *
 * For the daemon's tests: a daemon without sockets over the fake engine, calls without NNG,
 * sessions with a client's side. Failures go through cmocka.
 */
#ifndef KWK_TESTS_DAEMON_HARNESS_H
#define KWK_TESTS_DAEMON_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/daemon.h"
#include "tests/support/fake_engine.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef struct harness {
    struct kwkd d; // without parts
    kwkd_conf conf;
    char dir[64];   // temporary
    char model[80]; // a file in it, as good as any model
    int threaded;   // the engine thread runs; else harness_turns() does its work
} harness;

/* Start; conf_json NULL: defaults. The model directory is the harness's own. */
void harness_start(harness *h, int threaded, const char *conf_json);
void harness_stop(harness *h);

/* Load the model under a name and wait; the result. */
int harness_load(harness *h, const char *name);

/* Let the scheduler work until it has nothing to do (not threaded). */
void harness_turns(harness *h);

/* ---- a client's session
 * ------------------------------------------------------------------------------ */

typedef struct client {
    kwkd_session *session; // one reference
    int door;              // the client's end
    kwk_out_consumer ring;
    uint8_t *in;         // the client's mapping
    const float *logits; // likewise
    size_t out_size, in_size, logits_size;
    uint64_t sub_tail;
} client;

void client_open(client *c, harness *h, uint32_t out_slots, size_t logits_bytes);
void client_close(client *c, harness *h); // as the door does when the client is gone
int32_t *client_data(client *c);          // the data area
kwk_in_stream *client_stream(client *c, uint32_t stream);
kwk_in_header *client_header(client *c);

/* The next record, counted as taken; 0: none. */
int client_take(client *c, kwk_record *r);

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct pending pending; // a call under way

pending *call_start(harness *h, const client *c,
                    kwk_request *req); // c may be NULL: uid 1000, pid 7

/* The same in two halves: what the client does, and what the daemon does. */
pending *call_prepare(harness *h, const client *c, kwk_request *req);
void call_go(pending *p);
int call_done(pending *p);
void call_free(pending *p);    // a call that is done, whatever its reply
void call_hang_up(pending *p); // the peer is gone

/* Wait for the reply and free the call. The code of an error reply, or 0 and the tree. */
int call_end(harness *h, pending *p, kwk_tree **tree, kwk_error *err);

/* Start and end. */
int call(harness *h, const client *c, kwk_request *req, kwk_tree **tree, kwk_error *err);

/* ---- generations
 * ----------------------------------------------------------------------------------------- */

/* A greedy request; the prompt is borrowed. */
kwk_request harness_generate(uint32_t stream, const int32_t *prompt, int n, int max_new);

/* Send a request that must be answered well. */
void harness_accept(harness *h, const client *c, kwk_request *req);

/* Read a stream to its end, turning the scheduler; how many tokens, the last record in *last. */
int harness_drain(harness *h, client *c, int32_t *tokens, kwk_record *last);

/* Fail unless these are the tokens that greedy decoding gives after the prompt. */
void expect_greedy(const int32_t *prompt, int n_prompt, const int32_t *tokens, int n);

void make_prompt(int32_t *prompt, int n, int seed);

#endif
