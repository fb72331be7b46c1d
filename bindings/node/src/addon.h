/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the parts of the Node addon. The JavaScript layer (index.js) is the only caller: it
 * checks types for people; the native side checks them again, since a wrong one must not crash.
 *
 * A session is counted: JavaScript's handle, each running promise and each stream hold it; the
 * libkwkclient session is closed by the last one. All fields are for the JavaScript thread, except
 * where the wake-up thread is named.
 */
#ifndef KWK_BINDINGS_NODE_ADDON_H
#define KWK_BINDINGS_NODE_ADDON_H

#include <node_api.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/kwkclient.h"

typedef struct session {
    kwk_client *client;
    int refs;
    bool closed; // close() was called; no new work
    /* The wake-up thread sleeps on the client's descriptor and calls the JavaScript wake function;
     * it waits for `drained` before it sleeps again. */
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
    sem_t drained;
    napi_threadsafe_function wake;
} session;

session *session_ref(session *s);
void session_unref(session *s);
void session_close(session *s); // stops the thread and what runs; the memory goes with the last ref

/* The session behind a JavaScript value, or NULL with an exception pending. */
session *session_get(napi_env env, napi_value v);

/* Throw, or make, an Error with .code ("EINVAL") and .errno (the number) from *err. */
void throw_error(napi_env env, const kwk_error *err);
napi_value make_error(napi_env env, const kwk_error *err);

/* Read obj[name]; absent, undefined and null leave *out as it is. false: wrong type, with a
 * TypeError pending that names the field. */
bool get_int(napi_env env, napi_value obj, const char *name, int64_t lo, int64_t hi, int64_t *out);
bool get_double(napi_env env, napi_value obj, const char *name, double *out);
bool get_bool(napi_env env, napi_value obj, const char *name, int *out);
/* malloc'd copies, the caller's. */
bool get_string(napi_env env, napi_value obj, const char *name, char **out);
bool get_ids(napi_env env, napi_value obj, const char *name, int32_t **out, int *n);

/* Functions of the module: async.c and stream.c. */
napi_value js_open(napi_env env, napi_callback_info info);
napi_value js_query(napi_env env, napi_callback_info info);
napi_value js_load(napi_env env, napi_callback_info info);
napi_value js_unload(napi_env env, napi_callback_info info);
napi_value js_pin(napi_env env, napi_callback_info info);
napi_value js_generate(napi_env env, napi_callback_info info);
napi_value js_watch(napi_env env, napi_callback_info info);
napi_value js_drain(napi_env env, napi_callback_info info);
napi_value js_next(napi_env env, napi_callback_info info);
napi_value js_cancel(napi_env env, napi_callback_info info);

/* Wrap a started stream for JavaScript. Takes stream and one reference of s. */
napi_value stream_wrap(napi_env env, session *s, kwk_stream *stream);

#endif
