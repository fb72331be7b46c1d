/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a Model: from a path, a descriptor, or tensors in Python's memory. The load runs without
 * the GIL; its callbacks take it again for progress, signals (Ctrl-C cancels) and importance.
 */
#include "_kwker.h"

#include <stdlib.h>
#include <string.h>

/* What the callbacks of one load need. */
typedef struct loading {
    PyObject *progress;   // callable(done, total) or NULL
    PyObject *importance; // callable(name, cols) -> float32 array or None, or NULL
    array *held;          // arrays given by importance, borrowed by the engine until the load ends
    int n_held, room;
    PyThreadState *saved; // while the GIL is released
} loading;

static int on_progress(void *arg, uint64_t done, uint64_t total)
{
    loading *l = arg;
    int stop = 0;

    PyEval_RestoreThread(l->saved);
    if (PyErr_CheckSignals() < 0) {
        stop = 1;
    } else if (l->progress) {
        PyObject *r = PyObject_CallFunction(l->progress, "KK", (unsigned long long)done,
                                            (unsigned long long)total);
        stop = !r;
        Py_XDECREF(r);
    }
    l->saved = PyEval_SaveThread(); // a pending exception stays with the thread state
    return stop;
}

static const float *ask_importance(loading *l, const char *name, int cols)
{
    array *a;

    PyObject *r = PyErr_Occurred() ? NULL : PyObject_CallFunction(l->importance, "si", name, cols);
    if (!r || r == Py_None) {
        Py_XDECREF(r);
        return NULL;
    }
    if (l->n_held == l->room) {
        const int room = l->room ? 2 * l->room : 64;
        array *grown = realloc(l->held, (size_t)room * sizeof *grown);
        if (!grown) {
            PyErr_NoMemory();
            Py_DECREF(r);
            return NULL;
        }
        l->held = grown;
        l->room = room;
    }
    a = &l->held[l->n_held];
    const bool ok = array_get(a, r, ARRAY_F32, false, cols, name);
    Py_DECREF(r); // the view keeps its object
    if (!ok)
        return NULL;
    l->n_held++;
    return a->data;
}

static const float *on_importance(void *arg, const char *name, int cols)
{
    loading *l = arg;

    PyEval_RestoreThread(l->saved);
    const float *w = ask_importance(l, name, cols);
    l->saved = PyEval_SaveThread();
    return w;
}

static void loading_end(loading *l)
{
    for (int i = 0; i < l->n_held; i++)
        array_release(&l->held[i]);
    free(l->held);
}

/* Options from keywords; pointers into them live as long as kwargs. */
static bool parse_options(PyObject *kwargs, kwk_model_options *o, loading *l)
{
    char *names[] = {"precision", "mix_bits", "max_ctx", "kv_bytes", "kv_bits", "sealed",
                     "progress", "importance", NULL};
    PyObject *none = PyTuple_New(0), *progress = Py_None, *importance = Py_None;
    unsigned long long kv_bytes = 0;

    *o = (kwk_model_options)KWK_MODEL_OPTIONS_INIT;
    *l = (loading){0};
    if (!none)
        return false;
    const int ok = PyArg_ParseTupleAndKeywords(
        none, kwargs, "|$ziiKipOO", names, &o->precision, &o->mix_bits, &o->max_ctx, &kv_bytes,
        &o->kv_bits, &o->sealed, &progress, &importance);
    Py_DECREF(none);
    if (!ok)
        return false;
    o->kv_bytes = kv_bytes;
    o->progress = on_progress;
    o->progress_arg = l;
    l->progress = progress == Py_None ? NULL : progress;
    if (importance != Py_None) {
        l->importance = importance;
        o->importance = on_importance;
        o->importance_arg = l;
    }
    return true;
}

static PyObject *finish(int rc, kwk_model *m, loading *l, const kwk_error *err)
{
    loading_end(l);
    if (PyErr_Occurred()) { // raised by a callback: it wins over the code that it caused
        kwk_model_free(m);
        return NULL;
    }
    return rc < 0 ? raise_error(err) : model_wrap(m);
}

static PyObject *open_path(PyObject *Py_UNUSED(cls), PyObject *args, PyObject *kwargs)
{
    PyObject *path = NULL;
    kwk_model *m = NULL;
    kwk_model_options o;
    kwk_error err = {0};
    loading l;
    int rc;

    if (!parse_options(kwargs, &o, &l) || !PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path))
        return NULL;
    l.saved = PyEval_SaveThread();
    rc = kwk_model_open(&m, PyBytes_AsString(path), &o, &err);
    PyEval_RestoreThread(l.saved);
    Py_DECREF(path);
    return finish(rc, m, &l, &err);
}

static PyObject *open_fd(PyObject *Py_UNUSED(cls), PyObject *args, PyObject *kwargs)
{
    kwk_model *m = NULL;
    kwk_model_options o;
    kwk_error err = {0};
    loading l;
    int fd, rc;

    if (!parse_options(kwargs, &o, &l) || !PyArg_ParseTuple(args, "i", &fd))
        return NULL;
    l.saved = PyEval_SaveThread();
    rc = kwk_model_open_fd(&m, fd, &o, &err);
    PyEval_RestoreThread(l.saved);
    return finish(rc, m, &l, &err);
}

static int dtype_size(const char *dtype)
{
    if (!strcmp(dtype, "F32"))
        return 4;
    return !strcmp(dtype, "F16") || !strcmp(dtype, "BF16") ? 2 : 0;
}

/* One (name, dtype, shape, buffer) into a view; the buffer may have any item type, its size in bytes
 * must be that of the tensor. */
static bool tensor_from(PyObject *item, kwk_tensor_view *t, Py_buffer *buf, bool *held)
{
    PyObject *shape, *data;

    if (!PyArg_ParseTuple(item, "ssO!O;a tensor is (name, dtype, shape, buffer)", &t->name, &t->dtype,
                          &PyTuple_Type, &shape, &data))
        return false;
    const Py_ssize_t n_dims = PyTuple_Size(shape);
    Py_ssize_t size = dtype_size(t->dtype);
    if (n_dims < 1 || n_dims > 3 || !size) {
        raise_code(KWK_EUNSUPPORTED, "tensor %s: dtype %s with %zd dimensions", t->name, t->dtype,
                   n_dims);
        return false;
    }
    t->n_dims = (int)n_dims;
    for (int d = 0; d < t->n_dims; d++) {
        t->shape[d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
        if (t->shape[d] == -1 && PyErr_Occurred())
            return false;
        if (t->shape[d] < 1 || t->shape[d] > PY_SSIZE_T_MAX / size) {
            raise_code(KWK_EINVAL, "tensor %s: dimension %d is %lld", t->name, d,
                       (long long)t->shape[d]);
            return false;
        }
        size *= (Py_ssize_t)t->shape[d];
    }
    if (PyObject_GetBuffer(data, buf, PyBUF_C_CONTIGUOUS) < 0)
        return false;
    *held = true;
    if (buf->len != size) {
        raise_code(KWK_EINVAL, "tensor %s: %zd bytes where its shape needs %zd", t->name, buf->len,
                   size);
        return false;
    }
    t->data = buf->buf;
    return true;
}

static PyObject *open_memory(PyObject *Py_UNUSED(cls), PyObject *args, PyObject *kwargs)
{
    const char *config;
    Py_ssize_t n_config;
    PyObject *list, *result = NULL;
    kwk_model *m = NULL;
    kwk_model_options o;
    kwk_error err = {0};
    loading l;

    if (!parse_options(kwargs, &o, &l) ||
        !PyArg_ParseTuple(args, "s#O!", &config, &n_config, &PyList_Type, &list))
        return NULL;
    const Py_ssize_t n = PyList_Size(list);
    kwk_tensor_view *tensors = calloc((size_t)n + 1, sizeof *tensors);
    Py_buffer *bufs = calloc((size_t)n + 1, sizeof *bufs);
    bool *held = calloc((size_t)n + 1, sizeof *held);
    if (!tensors || !bufs || !held) {
        PyErr_NoMemory();
        goto out;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!tensor_from(PyList_GetItem(list, i), &tensors[i], &bufs[i], &held[i]))
            goto out;
    l.saved = PyEval_SaveThread();
    const int rc = kwk_model_open_memory(&m, config, (size_t)n_config, tensors, (int)n, &o, &err);
    PyEval_RestoreThread(l.saved);
    result = finish(rc, m, &l, &err);
out:
    for (Py_ssize_t i = 0; held && bufs && i < n; i++)
        if (held[i])
            PyBuffer_Release(&bufs[i]);
    free(held);
    free(bufs);
    free(tensors);
    return result;
}

#define STATIC_KW METH_VARARGS | METH_KEYWORDS | METH_STATIC
PyMethodDef model_open_methods[] = {
    {"open", (PyCFunction)(void (*)(void))open_path, STATIC_KW,
     "open(path, *, precision=None, mix_bits=0, max_ctx=0, kv_bytes=0, kv_bits=0, sealed=False,\n"
     "     progress=None, importance=None): load a directory, .gguf or .kwk file."},
    {"open_fd", (PyCFunction)(void (*)(void))open_fd, STATIC_KW, "open_fd(fd, *, …): a .kwk image."},
    {"open_memory", (PyCFunction)(void (*)(void))open_memory, STATIC_KW,
     "open_memory(config_json, [(name, dtype, shape, buffer), …], *, …)"},
    {NULL}};
