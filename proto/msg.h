/* SPDX-License-Identifier: Apache-2.0
 *
 * Control and door messages as C structs, with their codecs (PROTOCOL.md is the specification).
 * msgpack maps; unknown keys are skipped, so that old and new sides can talk; duplicate keys,
 * trailing bytes, deep nesting and oversized counts are refused before anything is allocated.
 * Pure functions: no sockets, no threads. Both sides use both directions.
 */
#ifndef KWK_PROTO_MSG_H
#define KWK_PROTO_MSG_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

/* Limits: everything a peer can make us allocate. */
enum {
    KWK_PROTO_VERSION = 1,
    KWK_MSG_MAX = 1 << 20,     // bytes of a control message
    KWK_DOOR_MAX = 64 << 10,   // bytes of a door message
    KWK_NAME_MAX = 255,        // bytes of a model or tenant name, request id
    KWK_PATH_MAX_BYTES = 4095,
    KWK_PROMPT_MAX = 1 << 18,  // tokens of an inline prompt (4 bytes each fit a message) or a span
    KWK_EOS_MAX = 64,
    KWK_BIAS_MAX = 4096,
    KWK_LOGPROBS_MAX = 12,     // alternatives a record can carry
    KWK_NEW_TOKENS_MAX = 1 << 24,
    KWK_DEPTH_MAX = 8,
    KWK_KEYS_MAX = 256,        // keys of one map
    KWK_OBJECTS_MAX = 1 << 19, // msgpack objects of a message
};

typedef enum kwk_op {
    KWK_OP_NONE = 0,
#define KWK_REQUEST(name, session) KWK_OP_##name,
#include "proto/requests.inc"
#undef KWK_REQUEST
    KWK_OP_END
} kwk_op;

const char *kwk_op_name(kwk_op op); // "generate"; NULL out of range

/* A growing output buffer. Zero-initialise; kwk_buf_fini() frees. */
typedef struct kwk_buf {
    uint8_t *data;
    size_t size, capacity;
} kwk_buf;
void kwk_buf_fini(kwk_buf *b);

/* ---- requests -----------------------------------------------------------------------------------
 * Decoded strings and arrays belong to the request (kwk_request_fini frees them); NULL: not given.
 * When encoding, they are borrowed from the caller. Strings are NUL-terminated, without NUL inside.  */

typedef struct kwk_bias {
    int32_t id;
    float bias;
} kwk_bias;

typedef struct kwk_load_req {
    const char *name;      // required: 1..255 bytes
    const char *path;      // one of path and pack
    uint64_t pack;         // id from the door's "pack" message; 0: not given
    const char *precision; // NULL: the model's own
    int32_t mix_bits;      // 0: default
    int32_t max_ctx;       // 0: the model's
    int32_t pin;           // 1: never evicted
    int32_t wait;          // 1: answer when loaded; 0: answer at once, progress is in `models`
} kwk_load_req;

typedef struct kwk_name_req { // unload, pin
    const char *name; // required
    int32_t pin;      // pin: 1 pin, 0 unpin
} kwk_name_req;

typedef struct kwk_generate_req {
    const char *model;      // NULL: the only or default model
    const char *request_id; // NULL, or an id that makes a repeated request harmless
    const char *tenant;     // NULL: ""
    uint32_t stream;        // stream id, unused by any running stream of the session
    int32_t inline_reply;   // key "inline": 1: all tokens in the reply, no session needed
    const int32_t *prompt;  // (n_prompt) inline tokens, or NULL: span
    int32_t n_prompt;
    uint32_t span_offset, span_n; // tokens in the in area's data: byte offset, count
    int32_t has_span;
    int32_t max_new_tokens; // -1: up to the context's end; 0: only prefill
    int32_t text;           // 1: text pieces with the tokens
    int32_t do_sample;      // 0: greedy
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k, min_new_tokens;
    uint64_t seed;
    int32_t has_seed;       // 0: the daemon draws one and reports it
    int32_t n_logprobs;     // 0..KWK_LOGPROBS_MAX
    int32_t logprobs;       // 1: the chosen token's logprob in its record
    int32_t ignore_eos;
    const int32_t *eos;     // (n_eos) NULL: the model's
    int32_t n_eos;
    const kwk_bias *bias;   // key "logit_bias": array of [id, bias]
    int32_t n_bias;
    int32_t credit;         // most records ahead of the client; 0: the ring's size
} kwk_generate_req;
#define KWK_GENERATE_REQ_INIT \
    {.max_new_tokens = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1}

typedef struct kwk_seq_req {  // seq_open, seq_fork, seq_truncate, seq_export, seq_close
    const char *model;        // seq_open
    uint64_t seq;             // the others
    int32_t length;           // seq_truncate
    int32_t layer;            // seq_export: answers K and V in the logits area from `row` on
    uint32_t row;             //
} kwk_seq_req;

typedef struct kwk_forward_req { // answers the last token's logits inline; submissions are faster
    uint64_t seq;
    const int32_t *tokens; // (n_tokens)
    int32_t n_tokens;
    const int32_t *positions; // NULL: continue after the last
    int32_t n_positions;
} kwk_forward_req;

typedef struct kwk_cancel_req {
    uint32_t stream;
    int32_t has_stream;     // with a session
    const char *request_id; // or by request id of the same user
} kwk_cancel_req;

typedef struct kwk_request {
    kwk_op op;
    uint8_t session[16];
    int has_session;
    union {
        kwk_load_req load;
        kwk_name_req unload, pin;
        kwk_generate_req generate;
        kwk_seq_req seq_open, seq_fork, seq_truncate, seq_export, seq_close;
        kwk_forward_req forward;
        kwk_cancel_req cancel;
    } u;
    void *arena; // decoder's memory
} kwk_request;

/** Decode n bytes. KWK_EPROTO: not a message of this version; KWK_EUNSUPPORTED: an unknown op, or a
 *  key that this version does not do yet; KWK_EINVAL: a field is missing, out of range or of the
 *  wrong type (the message names it). On error *req needs no kwk_request_fini. */
int kwk_request_decode(kwk_request *req, const void *data, size_t n, kwk_error *err);
int kwk_request_encode(kwk_buf *out, const kwk_request *req, kwk_error *err);
void kwk_request_fini(kwk_request *req);

/* ---- replies ------------------------------------------------------------------------------------
 * A reply is a msgpack map: "v" and either "ok": true with the op's fields, or "error" (name),
 * "code", "message", and for KWK_EBUSY "retry_ms". Daemon handlers build the fields with the writer
 * below; the client reads them with the reader. */

/* Writer: one map, keys in any order. The first error sticks; kwk_map_end reports it. */
typedef struct kwk_map {
    kwk_buf *out;
    size_t start;
    uint32_t n[KWK_DEPTH_MAX]; // items written at each level
    size_t at[KWK_DEPTH_MAX];  // where each level's count lies
    uint8_t is_map[KWK_DEPTH_MAX];
    int depth;
    int failed;
} kwk_map;
void kwk_map_begin(kwk_map *m, kwk_buf *out);
void kwk_map_int(kwk_map *m, const char *key, int64_t v); // key NULL inside an array
void kwk_map_uint(kwk_map *m, const char *key, uint64_t v);
void kwk_map_bool(kwk_map *m, const char *key, int v);
void kwk_map_double(kwk_map *m, const char *key, double v);
void kwk_map_str(kwk_map *m, const char *key, const char *s); // NULL: nil
void kwk_map_bin(kwk_map *m, const char *key, const void *p, size_t n);
void kwk_map_open(kwk_map *m, const char *key, int is_map); // nested map (1) or array (0)
void kwk_map_close(kwk_map *m);
int kwk_map_end(kwk_map *m, kwk_error *err);

/** Start of a good reply ("v", "ok") or the whole of an error reply. */
void kwk_reply_begin(kwk_map *m, kwk_buf *out);
int kwk_reply_error(kwk_buf *out, const kwk_error *e, int retry_ms);

/* Reader of a decoded map (reply or door message). A key may be a path: keys and array indices joined
 * by dots ("models.0.name"). nil counts as absent, and so does a value of another type. */
typedef struct kwk_tree kwk_tree;
/** KWK_EPROTO: not a message of this version (or a string in it holds a NUL byte); KWK_ENOMEM. */
int kwk_tree_parse(kwk_tree **out, const void *data, size_t n, kwk_error *err);
void kwk_tree_free(kwk_tree *t);
int64_t kwk_tree_int(const kwk_tree *t, const char *key, int64_t otherwise); // ids above 2^63 wrap
double kwk_tree_double(const kwk_tree *t, const char *key, double otherwise);
const char *kwk_tree_str(const kwk_tree *t, const char *key); // NULL: absent; borrowed
const void *kwk_tree_bin(const kwk_tree *t, const char *key, size_t *n); // NULL: absent; borrowed
/** int32 array under key (array of ints, or bin of little-endian int32): count, -1 absent. Copies at
 *  most max values into out. */
int kwk_tree_ints(const kwk_tree *t, const char *key, int32_t *out, int max);
int kwk_tree_count(const kwk_tree *t, const char *key); // of a nested array or map; -1 absent
void kwk_tree_drop(kwk_tree *t, const char *key);       // forget a key of the outermost map
/** An error reply becomes *err and its code; a good one KWK_OK. *retry_ms: 0 if absent. */
int kwk_tree_status(const kwk_tree *t, int *retry_ms, kwk_error *err);
/** The whole map as JSON text (bin as base64), malloc'd; NULL: out of memory. */
char *kwk_tree_json(const kwk_tree *t);

/* ---- door ---------------------------------------------------------------------------------------
 * SOCK_SEQPACKET; every packet but the daemon's 1-byte wake-ups is a msgpack map (PROTOCOL.md). */

typedef struct kwk_hello_req { // client → daemon, first packet
    int32_t version;
    const char *client;    // "name/version", for the log
    uint32_t out_slots;    // 0: default
    uint32_t in_bytes;     // 0: default
    uint64_t logits_bytes; // size of the logits area; 0: none
    void *arena;
} kwk_hello_req;
int kwk_hello_req_encode(kwk_buf *out, const kwk_hello_req *h, kwk_error *err);
int kwk_hello_req_decode(kwk_hello_req *h, const void *data, size_t n, kwk_error *err);
void kwk_hello_req_fini(kwk_hello_req *h);

#endif
