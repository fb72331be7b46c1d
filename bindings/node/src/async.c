/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that wait for the daemon: each runs on a thread of Node's pool and settles a promise. The
 * pool thread sees only the `call`; JavaScript values are touched on the JavaScript thread.
 */
#include <stdlib.h>
#include <string.h>

#include "bindings/node/src/addon.h"

typedef struct call call;
struct call {
    napi_async_work work;
    napi_deferred deferred;
    session *session; // a reference; NULL for open
    void (*run)(call *c);                            // pool thread
    napi_value (*result)(napi_env env, call *c);     // JavaScript thread, after success
    int rc;
    kwk_error err;
    /* arguments and results */
    char *address, *name, *path, *precision, *json, *model, *tenant;
    int32_t *prompt, *eos;
    int64_t timeout_ms, max_ctx, mix_bits;
    int pin;
    kwk_generate generate;
    kwk_client *client;
    kwk_stream *stream;
};

static void call_free(call *c)
{
    if (!c)
        return;
    free(c->address);
    free(c->name);
    free(c->path);
    free(c->precision);
    free(c->model);
    free(c->tenant);
    free(c->prompt);
    free(c->eos);
    kwk_client_free(c->json);
    kwk_stream_free(c->stream);
    kwk_client_close(c->client);
    session_unref(c->session);
    free(c);
}

static void execute(napi_env env, void *data)
{
    call *c = data;

    (void)env;
    c->run(c);
}

static void complete(napi_env env, napi_status status, void *data)
{
    call *c = data;
    napi_value value = NULL;

    if (status != napi_ok)
        c->rc = kwk_fail(&c->err, KWK_ECANCELED, "canceled");
    if (c->rc >= 0)
        value = c->result(env, c);
    if (value)
        napi_resolve_deferred(env, c->deferred, value);
    else
        napi_reject_deferred(env, c->deferred, make_error(env, &c->err));
    napi_delete_async_work(env, c->work);
    call_free(c);
}

static napi_value undefined(napi_env env, call *c)
{
    napi_value v;

    (void)c;
    napi_get_undefined(env, &v);
    return v;
}

/* Start the call; takes c. Returns its promise. */
static napi_value start(napi_env env, call *c)
{
    napi_value promise = NULL, name;

    napi_create_string_utf8(env, "kwker", NAPI_AUTO_LENGTH, &name);
    if (napi_create_promise(env, &c->deferred, &promise) != napi_ok ||
        napi_create_async_work(env, NULL, name, execute, complete, c, &c->work) != napi_ok ||
        napi_queue_async_work(env, c->work) != napi_ok) {
        call_free(c);
        napi_throw_error(env, "ENOMEM", "out of memory");
        return NULL;
    }
    return promise;
}

/* Arguments (session, options) → a call; NULL with an exception pending. */
static call *prepare(napi_env env, napi_callback_info info, bool with_session, napi_value *options)
{
    size_t argc = 2;
    napi_value argv[2];
    napi_valuetype type = napi_undefined;
    session *s = NULL;
    call *c;

    napi_get_cb_info(env, info, &argc, argv, NULL, NULL);
    if (argc != 2 || napi_typeof(env, argv[1], &type) != napi_ok || type != napi_object) {
        napi_throw_type_error(env, "EINVAL", "expected a session and an options object");
        return NULL;
    }
    if (with_session) {
        s = session_get(env, argv[0]);
        if (!s)
            return NULL;
    }
    c = calloc(1, sizeof *c);
    if (!c) {
        napi_throw_error(env, "ENOMEM", "out of memory");
        return NULL;
    }
    if (s)
        c->session = session_ref(s);
    c->result = undefined;
    *options = argv[1];
    return c;
}

/* ---- open ----------------------------------------------------------------------------------- */

static void run_open(call *c)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;

    o.timeout_ms = (int)c->timeout_ms;
    o.name = c->name;
    o.event_loop = 1;
    c->rc = kwk_client_open(&c->client, c->address, &o, &c->err);
}

static void finalize_session(napi_env env, void *data, void *hint)
{
    (void)env;
    (void)hint;
    session_close(data);
    session_unref(data);
}

static napi_value result_open(napi_env env, call *c)
{
    session *s = calloc(1, sizeof *s);
    napi_value v;

    if (!s || sem_init(&s->drained, 0, 0)) {
        free(s);
        c->rc = kwk_fail(&c->err, KWK_ENOMEM, "out of memory");
        return NULL;
    }
    s->client = c->client;
    s->refs = 1;
    c->client = NULL;
    if (napi_create_external(env, s, finalize_session, NULL, &v) != napi_ok) {
        session_unref(s);
        c->rc = kwk_fail(&c->err, KWK_ENOMEM, "out of memory");
        return NULL;
    }
    return v;
}

napi_value js_open(napi_env env, napi_callback_info info)
{
    napi_value o;
    call *c = prepare(env, info, false, &o);

    if (!c)
        return NULL;
    if (!get_string(env, o, "address", &c->address) || !get_string(env, o, "name", &c->name) ||
        !get_int(env, o, "timeoutMs", 0, INT32_MAX, &c->timeout_ms)) {
        call_free(c);
        return NULL;
    }
    c->run = run_open;
    c->result = result_open;
    return start(env, c);
}

/* ---- questions and models --------------------------------------------------------------------- */

static void run_query(call *c)
{
    c->rc = kwk_client_query(c->session->client, c->name, &c->json, &c->err);
}

static napi_value result_json(napi_env env, call *c)
{
    napi_value v = NULL;

    napi_create_string_utf8(env, c->json, NAPI_AUTO_LENGTH, &v);
    return v;
}

napi_value js_query(napi_env env, napi_callback_info info)
{
    napi_value o;
    call *c = prepare(env, info, true, &o);

    if (!c)
        return NULL;
    if (!get_string(env, o, "what", &c->name) || !c->name) {
        call_free(c);
        return NULL;
    }
    c->run = run_query;
    c->result = result_json;
    return start(env, c);
}

static void run_load(call *c)
{
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;

    l.name = c->name;
    l.path = c->path;
    l.precision = c->precision;
    l.mix_bits = (int)c->mix_bits;
    l.max_ctx = (int)c->max_ctx;
    l.pin = c->pin;
    l.timeout_ms = (int)c->timeout_ms;
    c->rc = kwk_client_load_model(c->session->client, &l, &c->err);
}

static void run_unload(call *c)
{
    c->rc = kwk_client_unload(c->session->client, c->name, &c->err);
}

static void run_pin(call *c)
{
    c->rc = kwk_client_pin(c->session->client, c->name, c->pin, &c->err);
}

static napi_value start_named(napi_env env, napi_callback_info info, void (*run)(call *c))
{
    napi_value o;
    call *c = prepare(env, info, true, &o);

    if (!c)
        return NULL;
    if (!get_string(env, o, "name", &c->name) || !get_string(env, o, "path", &c->path) ||
        !get_string(env, o, "precision", &c->precision) ||
        !get_int(env, o, "mixBits", 0, 8, &c->mix_bits) ||
        !get_int(env, o, "maxCtx", 0, INT32_MAX, &c->max_ctx) ||
        !get_int(env, o, "timeoutMs", 0, INT32_MAX, &c->timeout_ms) ||
        !get_bool(env, o, "pin", &c->pin)) {
        call_free(c);
        return NULL;
    }
    c->run = run;
    return start(env, c);
}

napi_value js_load(napi_env env, napi_callback_info info)
{
    return start_named(env, info, run_load);
}

napi_value js_unload(napi_env env, napi_callback_info info)
{
    return start_named(env, info, run_unload);
}

napi_value js_pin(napi_env env, napi_callback_info info)
{
    return start_named(env, info, run_pin);
}

/* ---- generate --------------------------------------------------------------------------------- */

static void run_generate(call *c)
{
    c->rc = kwk_client_generate(&c->stream, c->session->client, &c->generate, &c->err);
}

static napi_value result_generate(napi_env env, call *c)
{
    kwk_stream *stream = c->stream;
    napi_value v;

    if (c->session->closed) {
        c->rc = kwk_fail(&c->err, KWK_ECLOSED, "the client is closed");
        return NULL;
    }
    c->stream = NULL;
    v = stream_wrap(env, session_ref(c->session), stream);
    if (!v)
        c->rc = kwk_fail(&c->err, KWK_ENOMEM, "out of memory");
    return v;
}

napi_value js_generate(napi_env env, napi_callback_info info)
{
    napi_value o;
    call *c = prepare(env, info, true, &o);
    kwk_generate *g;
    int64_t max_new = -1, top_k = 0, min_new = 0, seed = -1, logprobs = 0;
    double temperature = 1, top_p = 1, min_p = 0, penalty = 1;

    if (!c)
        return NULL;
    g = &c->generate;
    *g = (kwk_generate)KWK_GENERATE_INIT;
    if (!get_string(env, o, "model", &c->model) || !get_string(env, o, "tenant", &c->tenant) ||
        !get_ids(env, o, "prompt", &c->prompt, &g->n_prompt) ||
        !get_ids(env, o, "eos", &c->eos, &g->n_eos) ||
        !get_int(env, o, "maxNewTokens", -1, INT32_MAX, &max_new) ||
        !get_int(env, o, "topK", 0, INT32_MAX, &top_k) ||
        !get_int(env, o, "minNewTokens", 0, INT32_MAX, &min_new) ||
        !get_int(env, o, "seed", 0, (1ll << 53) - 1, &seed) ||
        !get_int(env, o, "logprobs", 0, 12, &logprobs) ||
        !get_double(env, o, "temperature", &temperature) ||
        !get_double(env, o, "topP", &top_p) || !get_double(env, o, "minP", &min_p) ||
        !get_double(env, o, "repetitionPenalty", &penalty) ||
        !get_bool(env, o, "doSample", &g->do_sample) || !get_bool(env, o, "text", &g->text) ||
        !get_bool(env, o, "ignoreEos", &g->ignore_eos)) {
        call_free(c);
        return NULL;
    }
    g->model = c->model;
    g->tenant = c->tenant;
    g->prompt = c->prompt;
    g->eos = c->eos;
    g->max_new_tokens = (int)max_new;
    g->top_k = (int)top_k;
    g->min_new_tokens = (int)min_new;
    g->has_seed = seed >= 0;
    g->seed = seed >= 0 ? (uint64_t)seed : 0;
    g->n_logprobs = (int)logprobs;
    g->temperature = (float)temperature;
    g->top_p = (float)top_p;
    g->min_p = (float)min_p;
    g->repetition_penalty = (float)penalty;
    c->run = run_generate;
    c->result = result_generate;
    return start(env, c);
}
