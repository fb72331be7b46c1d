/* SPDX-License-Identifier: Apache-2.0
 *
 * libkwkclient: talk to kwkerd from any process. Depends on libc and msgpack-c alone; starts no
 * threads; keeps no global state; never writes to standard output or error; raises no SIGPIPE.
 *
 * Threads: a client may be used from any number of threads at once; a stream or sequence by one at a
 * time. After fork() the child gets KWK_EFORKED from every call (closing is allowed).
 * Errors: int, 0 or a negative KWK_E…, text in *err (may be NULL). KWK_ECLOSED: the daemon is gone;
 * a waiting call notices within 200 ms. All …_free and …_close functions accept NULL.
 */
#ifndef KWK_CLIENT_KWKCLIENT_H
#define KWK_CLIENT_KWKCLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kwk_client kwk_client;         // a session with one kwkerd
typedef struct kwk_stream kwk_stream;         // one running generation
typedef struct kwk_client_seq kwk_client_seq; // a sequence kept in the daemon

typedef struct kwk_client_options {
    size_t size;         // sizeof(kwk_client_options)
    int timeout_ms;      // of each call; 0: 30,000
    const char *name;    // "program/version" for the daemon's log; NULL: the process's name
    size_t logits_bytes; // shared memory for logits rows; 0: none (forward needs some)
    int event_loop;      // 1: wake-ups come as bytes on kwk_client_fd() too
} kwk_client_options;
#define KWK_CLIENT_OPTIONS_INIT {sizeof(kwk_client_options), 0, 0, 0, 0}

/**
 * Open a session.
 *
 * @param address  runtime directory of the daemon; NULL: $KWKER_DAEMON, else $XDG_RUNTIME_DIR/kwker
 *                 if a door is there, else /run/kwker
 *
 * @return KWK_OK; KWK_ENOENT no daemon there (message names the path); KWK_EPERM; KWK_EPROTO another
 *         version; KWK_EBUSY too many sessions; KWK_ETIMEOUT
 */
KWK_API int kwk_client_open(kwk_client **out, const char *address, const kwk_client_options *opts,
                            kwk_error *err);
/** End the session: cancels what runs and frees all streams and sequences of it, so that their handles
 *  must not be used any more, not even to free them. No other call may be running. */
KWK_API void kwk_client_close(kwk_client *c);

/** Version of the library ("0.1.0"); static string. */
KWK_API const char *kwk_client_version(void);

/** Descriptor that turns readable when something happened (event loops, with the option event_loop;
 *  borrowed). After it did, call kwk_client_drain() and then kwk_stream_next(…, timeout 0) on the
 *  streams until it returns 0. KWK_ECLOSED from drain: the daemon is gone; the streams still give what
 *  came before. */
KWK_API int kwk_client_fd(const kwk_client *c);
KWK_API int kwk_client_drain(kwk_client *c, kwk_error *err);

/* ---- questions and models -------------------------------------------------------------------- */

/** "status", "models" or "metrics": the reply as JSON text (metrics: {"text": Prometheus text}).
 *  *json is the caller's: kwk_client_free. */
KWK_API int kwk_client_query(kwk_client *c, const char *what, char **json, kwk_error *err);

typedef struct kwk_client_load {
    size_t size;
    const char *name;      // required
    const char *path;      // seen from this process, under the daemon's model directories; or NULL and
    int fd;                //   fd >= 0: a .kwk file or sealed memfd, handed over at the door
    const char *precision; // NULL: the model's own
    int mix_bits, max_ctx; // 0: default
    int pin;
    int timeout_ms;        // 0: 600,000
    int (*progress)(void *arg, double fraction); // may be NULL; nonzero stops waiting
    void *progress_arg;
} kwk_client_load;
#define KWK_CLIENT_LOAD_INIT {sizeof(kwk_client_load), 0, 0, -1, 0, 0, 0, 0, 0, 0, 0}

/** Load a model and wait until it is ready. Loading what is already loaded the same way is KWK_OK. */
KWK_API int kwk_client_load_model(kwk_client *c, const kwk_client_load *load, kwk_error *err);
KWK_API int kwk_client_unload(kwk_client *c, const char *name, kwk_error *err);
KWK_API int kwk_client_pin(kwk_client *c, const char *name, int pin, kwk_error *err);
KWK_API void kwk_client_free(void *p);

/* ---- generate -------------------------------------------------------------------------------- */

typedef struct kwk_client_bias {
    int32_t id;
    float bias;
} kwk_client_bias;

typedef struct kwk_generate {
    size_t size;
    const char *model;     // NULL: the only or default model
    const int32_t *prompt; // (n_prompt) token ids
    int n_prompt;          // >= 1
    int max_new_tokens;    // -1: up to the end of the context
    int text;              // 1: events carry text
    int do_sample;         // 0: greedy
    float temperature, top_p, min_p, repetition_penalty;
    int top_k, min_new_tokens;
    uint64_t seed;
    int has_seed;          // 0: the daemon draws one
    int n_logprobs;        // 0..12 alternatives
    int ignore_eos;
    const int32_t *eos;    // (n_eos) NULL: the model's
    int n_eos;
    const kwk_client_bias *bias; // (n_bias)
    int n_bias;
    const char *tenant;    // NULL: ""
    int logprobs;          // 1: events carry the chosen token's logprob (n_logprobs > 0: always)
} kwk_generate;
#define KWK_GENERATE_INIT \
    {.size = sizeof(kwk_generate), .max_new_tokens = -1, .temperature = 1, .top_p = 1, \
     .repetition_penalty = 1}

/** Start a generation. KWK_EBUSY: the queue is full (message has the retry time);
 *  KWK_EINVAL names the field. */
KWK_API int kwk_client_generate(kwk_stream **out, kwk_client *c, const kwk_generate *g,
                                kwk_error *err);

typedef enum kwk_event_type { KWK_EVENT_TOKEN = 1, KWK_EVENT_TEXT, KWK_EVENT_DONE } kwk_event_type;

typedef struct kwk_event_logprob {
    int32_t id;
    float logprob;
} kwk_event_logprob;

typedef struct kwk_event {
    kwk_event_type type;
    int32_t token;       // TOKEN
    float logprob;       // TOKEN
    const char *text;    // TOKEN, TEXT: complete UTF-8, (n_text) bytes, borrowed until the next call
    size_t n_text;
    const kwk_event_logprob *top; // TOKEN: (n_top), borrowed likewise
    int n_top;
    const char *finish_reason; // DONE: "eos", "length", "cancel", "slow_client", "shutdown"
    uint32_t prompt_tokens, new_tokens, cached_tokens; // DONE
    uint64_t queue_us, prefill_us, decode_us;          // DONE
} kwk_event;

/**
 * The next event of a stream.
 *
 * @param timeout_ms  -1: wait for ever; 0: do not wait
 *
 * @return 1 an event; 0 none within the time; or an error, which ends the stream
 */
KWK_API int kwk_stream_next(kwk_stream *s, kwk_event *event, int timeout_ms, kwk_error *err);

/** The seed that the generation uses, given or drawn. */
KWK_API uint64_t kwk_stream_seed(const kwk_stream *s);

/** Ask the daemon to stop; the DONE event still comes. Any thread. Never blocks. */
KWK_API int kwk_stream_cancel(kwk_stream *s, kwk_error *err);
KWK_API void kwk_stream_free(kwk_stream *s); // cancels if it still runs

/** Prompt and wait: tokens into the caller's array.
 *  @return number of tokens written (<= max_tokens), or an error */
KWK_API int kwk_client_generate_all(kwk_client *c, const kwk_generate *g, int32_t *tokens,
                                    int max_tokens, kwk_error *err);

/* ---- sequences ------------------------------------------------------------------------------- */

KWK_API int kwk_client_seq_open(kwk_client_seq **out, kwk_client *c, const char *model,
                                kwk_error *err);
KWK_API int kwk_client_seq_fork(kwk_client_seq **out, kwk_client_seq *s, kwk_error *err);
KWK_API int kwk_client_seq_truncate(kwk_client_seq *s, int length, kwk_error *err);
KWK_API int kwk_client_seq_length(const kwk_client_seq *s);
KWK_API int kwk_client_seq_vocab(const kwk_client_seq *s);
KWK_API void kwk_client_seq_free(kwk_client_seq *s);

/** One item of a batched forward. */
typedef struct kwk_forward {
    kwk_client_seq *seq;
    const int32_t *tokens;    // (n_tokens)
    int n_tokens;
    const int32_t *positions; // NULL: continue after the last position
    const uint8_t *valid;     // NULL: all valid
    int all_logits;           // 1: logits of every token; 0: of the last one
    const float *logits;      // out: (1 or n_tokens, vocab) float32 in shared memory, borrowed until
                              //   the next forward of this client
} kwk_forward;

/** Run tokens of several sequences, together in as few steps as they fit. All or the first error: then
 *  every sequence is as before. A sequence may be in one item only. The session's timeout counts from
 *  the last progress; after KWK_ETIMEOUT the sequences can only be freed. KWK_EFULL: the logits area or
 *  the context is too small. Calls of several threads run one after the other. */
KWK_API int kwk_client_forward(kwk_client *c, kwk_forward *items, int n_items, kwk_error *err);

#ifdef __cplusplus
}
#endif

#endif
