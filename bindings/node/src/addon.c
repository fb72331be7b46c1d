/* SPDX-License-Identifier: Apache-2.0
 *
 * Module start, sessions, errors, and the reading of arguments. JavaScript thread only, but for
 * session_close's handshake with the wake-up thread.
 */
#include "bindings/node/src/addon.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

session *session_ref(session *s)
{
    s->refs++;
    return s;
}

void session_close(session *s)
{
    if (s->closed)
        return;
    s->closed = true;
    if (s->has_thread) {
        atomic_store(&s->stop, true);
        sem_post(&s->drained);
        pthread_join(s->thread, NULL); // it sleeps at most 100 ms at a time
        s->has_thread = false;
        napi_release_threadsafe_function(s->wake, napi_tsfn_abort);
    }
}

void session_unref(session *s)
{
    if (!s || --s->refs)
        return;
    session_close(s);
    kwk_client_close(s->client);
    sem_destroy(&s->drained);
    free(s);
}

session *session_get(napi_env env, napi_value v)
{
    void *p = NULL;

    if (napi_get_value_external(env, v, &p) != napi_ok || !p) {
        napi_throw_type_error(env, "EINVAL", "not a session");
        return NULL;
    }
    if (((session *)p)->closed) {
        kwk_error err = {0};
        kwk_fail(&err, KWK_ECLOSED, "the client is closed");
        throw_error(env, &err);
        return NULL;
    }
    return p;
}

napi_value make_error(napi_env env, const kwk_error *err)
{
    napi_value code, text, number, error;

    napi_create_string_utf8(env, kwk_error_name(err->code), NAPI_AUTO_LENGTH, &code);
    napi_create_string_utf8(env, err->msg[0] ? err->msg : kwk_error_text(err->code),
                            NAPI_AUTO_LENGTH, &text);
    napi_create_error(env, code, text, &error);
    napi_create_int32(env, err->code, &number);
    napi_set_named_property(env, error, "errno", number);
    return error;
}

void throw_error(napi_env env, const kwk_error *err)
{
    napi_throw(env, make_error(env, err));
}

/* obj[name] as *v; false when it is absent, undefined or null. */
static bool get_field(napi_env env, napi_value obj, const char *name, napi_value *v)
{
    napi_valuetype type = napi_undefined;

    if (napi_get_named_property(env, obj, name, v) != napi_ok ||
        napi_typeof(env, *v, &type) != napi_ok)
        return false;
    return type != napi_undefined && type != napi_null;
}

static bool wrong(napi_env env, const char *name, const char *want)
{
    char text[160];

    snprintf(text, sizeof text, "%s must be %s", name, want);
    napi_throw_type_error(env, "EINVAL", text);
    return false;
}

bool get_double(napi_env env, napi_value obj, const char *name, double *out)
{
    napi_value v;

    if (!get_field(env, obj, name, &v))
        return true;
    return napi_get_value_double(env, v, out) == napi_ok || wrong(env, name, "a number");
}

bool get_int(napi_env env, napi_value obj, const char *name, int64_t lo, int64_t hi, int64_t *out)
{
    napi_value v;
    double d;
    char want[96];

    if (!get_field(env, obj, name, &v))
        return true;
    snprintf(want, sizeof want, "an integer from %lld to %lld", (long long)lo, (long long)hi);
    if (napi_get_value_double(env, v, &d) != napi_ok || !(d >= (double)lo && d <= (double)hi) ||
        d != floor(d))
        return wrong(env, name, want);
    *out = (int64_t)d;
    return true;
}

bool get_bool(napi_env env, napi_value obj, const char *name, int *out)
{
    napi_value v;
    bool b;

    if (!get_field(env, obj, name, &v))
        return true;
    if (napi_get_value_bool(env, v, &b) != napi_ok)
        return wrong(env, name, "true or false");
    *out = b;
    return true;
}

bool get_string(napi_env env, napi_value obj, const char *name, char **out)
{
    napi_value v;
    size_t n;
    char *s;

    if (!get_field(env, obj, name, &v))
        return true;
    if (napi_get_value_string_utf8(env, v, NULL, 0, &n) != napi_ok)
        return wrong(env, name, "a string");
    s = malloc(n + 1);
    if (!s)
        return wrong(env, name, "smaller: out of memory");
    napi_get_value_string_utf8(env, v, s, n + 1, &n);
    if (strlen(s) != n) {
        free(s);
        return wrong(env, name, "a string without NUL characters");
    }
    *out = s;
    return true;
}

bool get_ids(napi_env env, napi_value obj, const char *name, int32_t **out, int *n)
{
    napi_value v, item;
    napi_typedarray_type type;
    void *data;
    size_t length, offset;
    uint32_t count;
    bool is = false;
    int32_t *ids;
    double d;

    if (!get_field(env, obj, name, &v))
        return true;
    napi_is_typedarray(env, v, &is);
    if (is) {
        napi_get_typedarray_info(env, v, &type, &length, &data, NULL, &offset);
        if (type != napi_int32_array || length > INT32_MAX / 4)
            return wrong(env, name, "an Int32Array or an array of integers");
        ids = malloc(length * 4 + 4);
        if (!ids)
            return wrong(env, name, "smaller: out of memory");
        if (length)
            memcpy(ids, data, length * 4);
        *out = ids;
        *n = (int)length;
        return true;
    }
    napi_is_array(env, v, &is);
    if (!is || napi_get_array_length(env, v, &count) != napi_ok || count > INT32_MAX / 4)
        return wrong(env, name, "an Int32Array or an array of integers");
    ids = malloc((size_t)count * 4 + 4);
    if (!ids)
        return wrong(env, name, "smaller: out of memory");
    for (uint32_t i = 0; i < count; i++) {
        if (napi_get_element(env, v, i, &item) != napi_ok ||
            napi_get_value_double(env, item, &d) != napi_ok ||
            !(d >= INT32_MIN && d <= INT32_MAX) || d != floor(d)) {
            free(ids);
            return wrong(env, name, "an array of 32-bit integers");
        }
        ids[i] = (int32_t)d;
    }
    *out = ids;
    *n = (int)count;
    return true;
}

static napi_value js_close(napi_env env, napi_callback_info info)
{
    size_t argc = 1;
    napi_value argv[1];
    void *p = NULL;

    napi_get_cb_info(env, info, &argc, argv, NULL, NULL);
    if (argc == 1 && napi_get_value_external(env, argv[0], &p) == napi_ok && p)
        session_close(p);
    return NULL;
}

NAPI_MODULE_INIT()
{
    static const struct {
        const char *name;
        napi_callback fn;
    } table[] = {
        {"open", js_open},     {"close", js_close},       {"query", js_query},
        {"load", js_load},     {"unload", js_unload},     {"pin", js_pin},
        {"generate", js_generate}, {"watch", js_watch},   {"drain", js_drain},
        {"next", js_next},     {"cancel", js_cancel},
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        napi_value fn;
        if (napi_create_function(env, table[i].name, NAPI_AUTO_LENGTH, table[i].fn, NULL, &fn) !=
                napi_ok ||
            napi_set_named_property(env, exports, table[i].name, fn) != napi_ok)
            return NULL;
    }
    return exports;
}
