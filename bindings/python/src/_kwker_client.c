/* SPDX-License-Identifier: Apache-2.0
 *
 * Client: a session with kwkerd. Any number of threads may use it; close() waits until they have
 * left the library (their waits end within SLICE_MS) and then ends every stream.
 */
#include "_kwker.h"

#include <time.h>

PyTypeObject *Client_Type;

bool client_enter(ClientObject *c)
{
    if (!c->client || c->closing) {
        raise_code(KWK_ECLOSED, "this client is closed");
        return false;
    }
    c->users++;
    return true;
}

void client_leave(ClientObject *c)
{
    c->users--;
}

static PyObject *client_open(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    char *names[] = {"address", "timeout_ms", "name", "logits_bytes", "event_loop", NULL};
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    PyObject *path = NULL, *address = Py_None;
    unsigned long long logits_bytes = 0;
    kwk_client *client = NULL;
    kwk_error err = {0};
    int rc;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OizKp", names, &address, &o.timeout_ms, &o.name,
                                     &logits_bytes, &o.event_loop))
        return NULL;
    if (address != Py_None && !PyUnicode_FSConverter(address, &path))
        return NULL;
    o.logits_bytes = (size_t)logits_bytes;
    const char *where = path ? PyBytes_AsString(path) : NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_open(&client, where, &o, &err);
    Py_END_ALLOW_THREADS
    Py_XDECREF(path);
    if (rc < 0)
        return raise_error(&err);
    ClientObject *c = PyObject_New(ClientObject, Client_Type);
    if (!c) {
        kwk_client_close(client);
        return NULL;
    }
    c->client = client;
    c->users = 0;
    c->closing = false;
    c->streams = NULL;
    pthread_mutex_init(&c->forward, NULL);
    return (PyObject *)c;
}

static void close_now(ClientObject *c)
{
    kwk_client *client = c->client;

    c->client = NULL;
    while (c->streams)
        stream_detach(c->streams);
    Py_BEGIN_ALLOW_THREADS
    kwk_client_close(client);
    Py_END_ALLOW_THREADS
}

static PyObject *client_close(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    ClientObject *c = (ClientObject *)obj;

    if (!c->client || c->closing)
        Py_RETURN_NONE;
    c->closing = true;
    while (c->users > 0) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&(struct timespec){0, 1000 * 1000}, NULL);
        Py_END_ALLOW_THREADS
    }
    close_now(c);
    Py_RETURN_NONE;
}

static void client_dealloc(PyObject *obj)
{
    ClientObject *c = (ClientObject *)obj;

    if (c->client) // no streams: each holds a reference
        close_now(c);
    pthread_mutex_destroy(&c->forward);
    free_object(obj);
}

static PyObject *client_query(PyObject *obj, PyObject *args)
{
    ClientObject *c = (ClientObject *)obj;
    const char *what;
    char *json = NULL;
    kwk_error err = {0};
    int rc;

    if (!PyArg_ParseTuple(args, "s", &what) || !client_enter(c))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_query(c->client, what, &json, &err);
    Py_END_ALLOW_THREADS
    client_leave(c);
    if (rc < 0)
        return raise_error(&err);
    PyObject *text = PyUnicode_FromString(json);
    kwk_client_free(json);
    return text;
}

typedef struct waiting {
    PyObject *progress;
    PyThreadState *saved;
} waiting;

static int on_progress(void *arg, double fraction)
{
    waiting *w = arg;
    int stop = 0;

    PyEval_RestoreThread(w->saved);
    if (PyErr_CheckSignals() < 0) {
        stop = 1;
    } else if (w->progress) {
        PyObject *r = PyObject_CallFunction(w->progress, "d", fraction);
        stop = !r;
        Py_XDECREF(r);
    }
    w->saved = PyEval_SaveThread();
    return stop;
}

static PyObject *client_load(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    char *names[] = {"name", "path", "fd", "precision", "mix_bits", "max_ctx", "pin", "timeout_ms",
                     "progress", NULL};
    ClientObject *c = (ClientObject *)obj;
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    PyObject *path_arg = Py_None, *path = NULL, *progress = Py_None;
    waiting w = {0};
    kwk_error err = {0};
    int rc;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|OiziipiO", names, &l.name, &path_arg, &l.fd,
                                     &l.precision, &l.mix_bits, &l.max_ctx, &l.pin, &l.timeout_ms,
                                     &progress))
        return NULL;
    if (path_arg != Py_None) {
        if (!PyUnicode_FSConverter(path_arg, &path))
            return NULL;
        l.path = PyBytes_AsString(path);
    }
    l.progress = on_progress;
    l.progress_arg = &w;
    w.progress = progress == Py_None ? NULL : progress;
    if (!client_enter(c)) {
        Py_XDECREF(path);
        return NULL;
    }
    w.saved = PyEval_SaveThread();
    rc = kwk_client_load_model(c->client, &l, &err);
    PyEval_RestoreThread(w.saved);
    client_leave(c);
    Py_XDECREF(path);
    if (PyErr_Occurred())
        return NULL;
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *client_unload(PyObject *obj, PyObject *args)
{
    ClientObject *c = (ClientObject *)obj;
    const char *name;
    kwk_error err = {0};
    int rc;

    if (!PyArg_ParseTuple(args, "s", &name) || !client_enter(c))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_unload(c->client, name, &err);
    Py_END_ALLOW_THREADS
    client_leave(c);
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *client_pin(PyObject *obj, PyObject *args)
{
    ClientObject *c = (ClientObject *)obj;
    const char *name;
    kwk_error err = {0};
    int pin, rc;

    if (!PyArg_ParseTuple(args, "sp", &name, &pin) || !client_enter(c))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_pin(c->client, name, pin, &err);
    Py_END_ALLOW_THREADS
    client_leave(c);
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *client_fd(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    ClientObject *c = (ClientObject *)obj;

    if (!c->client || c->closing)
        return raise_code(KWK_ECLOSED, "this client is closed");
    return PyLong_FromLong(kwk_client_fd(c->client));
}

static PyObject *client_drain(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    ClientObject *c = (ClientObject *)obj;
    kwk_error err = {0};

    if (!client_enter(c))
        return NULL;
    const int rc = kwk_client_drain(c->client, &err); // never blocks
    client_leave(c);
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *client_closed(PyObject *obj, void *Py_UNUSED(unused))
{
    ClientObject *c = (ClientObject *)obj;

    return PyBool_FromLong(!c->client || c->closing);
}

int client_init(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"close", client_close, METH_NOARGS, "End the session; what runs is cancelled."},
        {"query", client_query, METH_VARARGS, "query(what): reply as JSON text."},
        {"load", (PyCFunction)(void (*)(void))client_load, METH_VARARGS | METH_KEYWORDS,
         "load(name, path=None, fd=-1, precision=None, …): load a model and wait for it."},
        {"unload", client_unload, METH_VARARGS, "unload(name)"},
        {"pin", client_pin, METH_VARARGS, "pin(name, pin)"},
        {"fd", client_fd, METH_NOARGS, "Descriptor for an event loop (borrowed)."},
        {"drain", client_drain, METH_NOARGS, "After fd() turned readable."},
        {"generate", (PyCFunction)(void (*)(void))client_generate, METH_VARARGS | METH_KEYWORDS,
         "generate(prompt, model=None, …): start a generation; a Stream."},
        {"seq_open", client_seq_open, METH_VARARGS, "seq_open(model): a ClientSeq."},
        {"forward", (PyCFunction)(void (*)(void))client_forward, METH_VARARGS | METH_KEYWORDS,
         "forward(seqs, counts, tokens, positions, valid, all_logits, logits)"},
        {NULL}};
    static PyGetSetDef getset[] = {{"closed", client_closed, NULL, "closed by us", NULL}, {NULL}};
    PyType_Slot slots[] = {{Py_tp_dealloc, client_dealloc}, {Py_tp_new, client_open},
                           {Py_tp_methods, methods}, {Py_tp_getset, getset},
                           {Py_tp_doc, "A session with kwkerd."}, {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.Client", sizeof(ClientObject), 0, Py_TPFLAGS_DEFAULT, slots};

    Client_Type = make_type(module, &spec, "Client");
    return Client_Type ? 0 : -1;
}
