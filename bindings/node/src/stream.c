/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and their wake-ups. A thread of the session sleeps on the client's descriptor and calls
 * JavaScript's wake function; JavaScript then takes events without waiting (next). No pool thread
 * is held while a stream runs, so any number of streams may be open.
 */
#include <poll.h>
#include <stdlib.h>

#include "bindings/node/src/addon.h"

typedef struct stream {
    session *session; // a reference
    kwk_stream *stream;
} stream;

static void finalize_stream(napi_env env, void *data, void *hint)
{
    stream *t = data;

    (void)env;
    (void)hint;
    kwk_stream_free(t->stream); // before the session: its reference keeps the client open
    session_unref(t->session);
    free(t);
}

napi_value stream_wrap(napi_env env, session *s, kwk_stream *stream_taken)
{
    stream *t = calloc(1, sizeof *t);
    napi_value v;

    if (!t || napi_create_external(env, t, finalize_stream, NULL, &v) != napi_ok) {
        free(t);
        kwk_stream_free(stream_taken);
        session_unref(s);
        return NULL;
    }
    t->session = s;
    t->stream = stream_taken;
    return v;
}

static stream *stream_get(napi_env env, napi_callback_info info)
{
    size_t argc = 1;
    napi_value argv[1];
    void *p = NULL;

    napi_get_cb_info(env, info, &argc, argv, NULL, NULL);
    if (argc != 1 || napi_get_value_external(env, argv[0], &p) != napi_ok || !p) {
        napi_throw_type_error(env, "EINVAL", "not a stream");
        return NULL;
    }
    return p;
}

static void set_number(napi_env env, napi_value obj, const char *name, double d)
{
    napi_value v;

    napi_create_double(env, d, &v);
    napi_set_named_property(env, obj, name, v);
}

static void set_string(napi_env env, napi_value obj, const char *name, const char *s, size_t n)
{
    napi_value v;

    napi_create_string_utf8(env, s, n, &v);
    napi_set_named_property(env, obj, name, v);
}

static napi_value make_event(napi_env env, const kwk_event *e)
{
    napi_value o, list, item;

    napi_create_object(env, &o);
    switch (e->type) {
    case KWK_EVENT_TOKEN:
        set_string(env, o, "type", "token", NAPI_AUTO_LENGTH);
        set_number(env, o, "token", e->token);
        set_number(env, o, "logprob", e->logprob);
        if (e->n_text)
            set_string(env, o, "text", e->text, e->n_text);
        if (e->n_top) {
            napi_create_array_with_length(env, (size_t)e->n_top, &list);
            for (int i = 0; i < e->n_top; i++) {
                napi_create_object(env, &item);
                set_number(env, item, "id", e->top[i].id);
                set_number(env, item, "logprob", e->top[i].logprob);
                napi_set_element(env, list, (uint32_t)i, item);
            }
            napi_set_named_property(env, o, "top", list);
        }
        break;
    case KWK_EVENT_TEXT:
        set_string(env, o, "type", "text", NAPI_AUTO_LENGTH);
        set_string(env, o, "text", e->text, e->n_text);
        break;
    case KWK_EVENT_DONE:
        set_string(env, o, "type", "done", NAPI_AUTO_LENGTH);
        set_string(env, o, "finishReason", e->finish_reason, NAPI_AUTO_LENGTH);
        set_number(env, o, "promptTokens", e->prompt_tokens);
        set_number(env, o, "newTokens", e->new_tokens);
        set_number(env, o, "cachedTokens", e->cached_tokens);
        set_number(env, o, "queueUs", (double)e->queue_us);
        set_number(env, o, "prefillUs", (double)e->prefill_us);
        set_number(env, o, "decodeUs", (double)e->decode_us);
        break;
    }
    return o;
}

/* next(stream) → the next event, or null when there is none yet. Throws what ended the stream. */
napi_value js_next(napi_env env, napi_callback_info info)
{
    stream *t = stream_get(env, info);
    kwk_event e;
    kwk_error err = {0};
    napi_value v;
    int rc;

    if (!t)
        return NULL;
    if (t->session->closed)
        rc = kwk_fail(&err, KWK_ECLOSED, "the client is closed");
    else
        rc = kwk_stream_next(t->stream, &e, 0, &err);
    if (rc < 0) {
        throw_error(env, &err);
        return NULL;
    }
    if (rc)
        return make_event(env, &e);
    napi_get_null(env, &v);
    return v;
}

napi_value js_cancel(napi_env env, napi_callback_info info)
{
    stream *t = stream_get(env, info);
    kwk_error err = {0};

    if (t && !t->session->closed && kwk_stream_cancel(t->stream, &err) < 0)
        throw_error(env, &err);
    return NULL;
}

/* ---- wake-ups --------------------------------------------------------------------------------- */

static void *wake_thread(void *arg)
{
    session *s = arg;
    struct pollfd p = {.fd = kwk_client_fd(s->client), .events = POLLIN};

    while (!atomic_load(&s->stop)) {
        if (poll(&p, 1, 100) <= 0)
            continue;
        if (napi_call_threadsafe_function(s->wake, NULL, napi_tsfn_nonblocking) != napi_ok)
            break;
        while (sem_wait(&s->drained)) // EINTR
            ;
    }
    return NULL;
}

/* watch(session, wake): call wake() whenever something may have happened, until close. wake must
 * call drain(session). The thread does not keep the process alive. */
napi_value js_watch(napi_env env, napi_callback_info info)
{
    size_t argc = 2;
    napi_value argv[2], name;
    session *s;

    napi_get_cb_info(env, info, &argc, argv, NULL, NULL);
    s = argc == 2 ? session_get(env, argv[0]) : NULL;
    if (!s)
        return NULL;
    napi_create_string_utf8(env, "kwker wake", NAPI_AUTO_LENGTH, &name);
    if (s->has_thread ||
        napi_create_threadsafe_function(env, argv[1], NULL, name, 1, 1, NULL, NULL, NULL, NULL,
                                        &s->wake) != napi_ok) {
        napi_throw_error(env, "EINVAL", "watch is called once, with a function");
        return NULL;
    }
    napi_unref_threadsafe_function(env, s->wake);
    if (pthread_create(&s->thread, NULL, wake_thread, s)) {
        napi_release_threadsafe_function(s->wake, napi_tsfn_abort);
        napi_throw_error(env, "ENOMEM", "cannot start a thread");
        return NULL;
    }
    s->has_thread = true;
    return NULL;
}

/* drain(session): take the wake-up bytes; the thread sleeps again. Throws when the daemon is gone. */
napi_value js_drain(napi_env env, napi_callback_info info)
{
    size_t argc = 1;
    napi_value argv[1];
    session *s;
    kwk_error err = {0};
    int rc;

    napi_get_cb_info(env, info, &argc, argv, NULL, NULL);
    s = argc == 1 ? session_get(env, argv[0]) : NULL;
    if (!s)
        return NULL;
    rc = kwk_client_drain(s->client, &err);
    if (rc < 0) {
        atomic_store(&s->stop, true); // the descriptor stays readable: stop watching it
        sem_post(&s->drained);
        throw_error(env, &err);
        return NULL;
    }
    sem_post(&s->drained);
    return NULL;
}
