/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream: one running generation of a Client. next() waits in slices of SLICE_MS with a look at
 * signals and at a closing client in between; cancel() may come from any thread at any time.
 */
#include "_kwker.h"

#include <stdlib.h>

PyTypeObject *Stream_Type;

/* A number of Python's as the fields of kwk_generate take it. */
typedef struct lists {
    int32_t *eos;
    kwk_client_bias *bias;
} lists;

static bool parse_eos(PyObject *list, kwk_generate *g, lists *l)
{
    const Py_ssize_t n = PyList_Size(list);

    l->eos = malloc(((size_t)n + 1) * sizeof *l->eos);
    if (!l->eos) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        const long id = PyLong_AsLong(PyList_GetItem(list, i));
        if (id == -1 && PyErr_Occurred())
            return false;
        if (id < INT32_MIN || id > INT32_MAX) {
            raise_code(KWK_EINVAL, "eos id %ld is out of range", id);
            return false;
        }
        l->eos[i] = (int32_t)id;
    }
    g->eos = l->eos;
    g->n_eos = (int)n;
    return true;
}

static bool parse_bias(PyObject *list, kwk_generate *g, lists *l)
{
    const Py_ssize_t n = PyList_Size(list);

    l->bias = malloc(((size_t)n + 1) * sizeof *l->bias);
    if (!l->bias) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "if;a bias is (id, value)", &l->bias[i].id,
                              &l->bias[i].bias))
            return false;
    g->bias = l->bias;
    g->n_bias = (int)n;
    return true;
}

PyObject *client_generate(PyObject *self, PyObject *args, PyObject *kwargs)
{
    char *names[] = {"prompt", "model", "max_new_tokens", "text", "do_sample", "temperature", "top_p",
                     "min_p", "repetition_penalty", "top_k", "min_new_tokens", "seed", "n_logprobs",
                     "ignore_eos", "eos", "bias", "tenant", NULL};
    kwk_generate g = KWK_GENERATE_INIT;
    PyObject *prompt_o, *seed = Py_None, *eos = NULL, *bias = NULL, *result = NULL;
    array prompt = ARRAY_INIT;
    lists l = {0};

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|z$ippffffiiOipO!O!z", names, &prompt_o, &g.model,
                                     &g.max_new_tokens, &g.text, &g.do_sample, &g.temperature,
                                     &g.top_p, &g.min_p, &g.repetition_penalty, &g.top_k,
                                     &g.min_new_tokens, &seed, &g.n_logprobs, &g.ignore_eos,
                                     &PyList_Type, &eos, &PyList_Type, &bias, &g.tenant) ||
        !array_get(&prompt, prompt_o, ARRAY_I32, false, -1, "prompt"))
        return NULL;
    if (seed != Py_None) {
        g.seed = PyLong_AsUnsignedLongLong(seed);
        g.has_seed = 1;
        if (PyErr_Occurred())
            goto out;
    }
    if (prompt.n > INT32_MAX || !prompt.data) {
        raise_code(KWK_EINVAL, "a prompt of %zd tokens", prompt.n);
        goto out;
    }
    g.prompt = prompt.data;
    g.n_prompt = (int)prompt.n;
    if ((!eos || parse_eos(eos, &g, &l)) && (!bias || parse_bias(bias, &g, &l)))
        result = stream_start((ClientObject *)self, &g);
out:
    free(l.eos);
    free(l.bias);
    array_release(&prompt);
    return result;
}

PyObject *stream_start(ClientObject *c, const kwk_generate *g)
{
    kwk_stream *stream = NULL;
    kwk_error err = {0};
    int rc;

    if (!client_enter(c))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_generate(&stream, c->client, g, &err);
    Py_END_ALLOW_THREADS
    StreamObject *s = rc < 0 ? NULL : PyObject_New(StreamObject, Stream_Type);
    if (!s) {
        kwk_stream_free(stream);
        client_leave(c);
        return rc < 0 ? raise_error(&err) : NULL;
    }
    s->client = (ClientObject *)Py_NewRef((PyObject *)c);
    s->stream = stream;
    s->busy = false;
    s->prev = NULL;
    s->next = c->streams;
    if (s->next)
        s->next->prev = s;
    c->streams = s;
    client_leave(c);
    return (PyObject *)s;
}

void stream_detach(StreamObject *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else if (s->client->streams == s)
        s->client->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->prev = s->next = NULL;
    s->stream = NULL;
}

static void stream_end(StreamObject *s) // frees; cancels if it still runs
{
    kwk_stream *stream = s->stream;

    if (!stream)
        return;
    stream_detach(s);
    if (s->client->client)
        kwk_stream_free(stream);
}

static void stream_dealloc(PyObject *obj)
{
    StreamObject *s = (StreamObject *)obj;

    stream_end(s);
    Py_DECREF(s->client);
    free_object(obj);
}

static PyObject *stream_close(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    StreamObject *s = (StreamObject *)obj;

    if (s->busy)
        return raise_code(KWK_EBUSY, "this stream is used by another thread");
    stream_end(s);
    Py_RETURN_NONE;
}

static PyObject *top_list(const kwk_event *e)
{
    PyObject *list = PyList_New(e->n_top);

    for (int i = 0; list && i < e->n_top; i++) {
        PyObject *pair = Py_BuildValue("(if)", e->top[i].id, (double)e->top[i].logprob);
        if (!pair || PyList_SetItem(list, i, pair) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

/* ("token", id, logprob, text or None, top), ("text", text) or ("done", dict). */
static PyObject *event_object(const kwk_event *e)
{
    PyObject *top;

    switch (e->type) {
    case KWK_EVENT_TOKEN:
        top = top_list(e);
        if (!top)
            return NULL;
        return Py_BuildValue("(sifz#N)", "token", e->token, (double)e->logprob, e->text,
                             (Py_ssize_t)e->n_text, top);
    case KWK_EVENT_TEXT:
        return Py_BuildValue("(ss#)", "text", e->text, (Py_ssize_t)e->n_text);
    case KWK_EVENT_DONE:
        return Py_BuildValue("(s{s:s,s:I,s:I,s:I,s:K,s:K,s:K})", "done",
                             "finish_reason", e->finish_reason, "prompt_tokens", e->prompt_tokens,
                             "new_tokens", e->new_tokens, "cached_tokens", e->cached_tokens,
                             "queue_us", (unsigned long long)e->queue_us,
                             "prefill_us", (unsigned long long)e->prefill_us,
                             "decode_us", (unsigned long long)e->decode_us);
    }
    return raise_code(KWK_EPROTO, "unknown event %d", (int)e->type);
}

/* next(timeout_ms=-1): an event, or None when there was none in that time. */
static PyObject *stream_next(PyObject *obj, PyObject *args)
{
    StreamObject *s = (StreamObject *)obj;
    kwk_event e = {0};
    kwk_error err = {0};
    PyObject *result = NULL;
    int timeout_ms = -1, rc = 0;

    if (!PyArg_ParseTuple(args, "|i", &timeout_ms))
        return NULL;
    if (s->busy)
        return raise_code(KWK_EBUSY, "this stream is used by another thread");
    if (!client_enter(s->client))
        return NULL;
    if (!s->stream) {
        client_leave(s->client);
        return raise_code(KWK_ECLOSED, "this stream has ended");
    }
    s->busy = true;
    for (;;) {
        const int slice = timeout_ms < 0 || timeout_ms > SLICE_MS ? SLICE_MS : timeout_ms;
        if (slice == 0) {
            rc = kwk_stream_next(s->stream, &e, 0, &err);
        } else {
            Py_BEGIN_ALLOW_THREADS
            rc = kwk_stream_next(s->stream, &e, slice, &err);
            Py_END_ALLOW_THREADS
        }
        if (timeout_ms > 0)
            timeout_ms -= slice;
        if (rc != 0 || timeout_ms == 0 || s->client->closing || PyErr_CheckSignals() < 0)
            break;
    }
    if (PyErr_Occurred())
        result = NULL;
    else if (rc < 0)
        raise_error(&err);
    else if (rc > 0)
        result = event_object(&e);
    else if (s->client->closing)
        raise_code(KWK_ECLOSED, "this client is closed");
    else
        result = Py_NewRef(Py_None);
    s->busy = false;
    client_leave(s->client);
    return result;
}

static PyObject *stream_cancel(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    StreamObject *s = (StreamObject *)obj;
    kwk_error err = {0};

    if (!s->stream || !s->client->client || s->client->closing)
        Py_RETURN_NONE; // nothing runs any more
    if (kwk_stream_cancel(s->stream, &err) < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

int stream_init(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"next", stream_next, METH_VARARGS, "next(timeout_ms=-1): an event or None."},
        {"cancel", stream_cancel, METH_NOARGS, "Ask the daemon to stop. Any thread."},
        {"close", stream_close, METH_NOARGS, "Forget the stream; cancels if it still runs."},
        {NULL}};
    PyType_Slot slots[] = {{Py_tp_dealloc, stream_dealloc}, {Py_tp_methods, methods},
                           {Py_tp_doc, "A running generation."}, {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.Stream", sizeof(StreamObject), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

    Stream_Type = make_type(module, &spec, "Stream");
    return Stream_Type ? 0 : -1;
}
