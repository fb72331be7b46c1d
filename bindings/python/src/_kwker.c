/* SPDX-License-Identifier: Apache-2.0
 *
 * The extension module kwker._kwker: its functions and the order in which its parts come up.
 * Importing it opens nothing and starts no thread.
 */
#include "_kwker.h"

#include "engine/hash.h"

#include <string.h>

PyTypeObject *make_type(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromSpec(spec);

    if (!type || PyModule_AddObjectRef(module, name, type) < 0) {
        Py_XDECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type; // kept for ever: the module is
}

void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *isa(PyObject *Py_UNUSED(m), PyObject *Py_UNUSED(unused))
{
    const char *name = kwk_isa();

    if (!name)
        Py_RETURN_NONE;
    return PyUnicode_FromString(name);
}

static PyObject *threads(PyObject *Py_UNUSED(m), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(kwk_threads());
}

static PyObject *set_threads(PyObject *Py_UNUSED(m), PyObject *args)
{
    kwk_error err = {0};
    int n;

    if (!PyArg_ParseTuple(args, "i", &n))
        return NULL;
    if (kwk_set_threads(n, &err) < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *config_check(PyObject *Py_UNUSED(m), PyObject *args)
{
    const char *json;
    Py_ssize_t n;
    kwk_error err = {0};

    if (!PyArg_ParseTuple(args, "s#", &json, &n))
        return NULL;
    if (kwk_config_check(json, (size_t)n, &err) == KWK_OK)
        Py_RETURN_NONE;
    return PyUnicode_FromString(err.msg);
}

static PyObject *source_tokenizer(PyObject *Py_UNUSED(m), PyObject *args)
{
    PyObject *path = NULL;
    char *json = NULL, *chat = NULL;
    kwk_error err = {0};
    int rc;

    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_source_tokenizer(PyBytes_AsString(path), &json, &chat, &err);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (rc < 0)
        return raise_error(&err);
    PyObject *result = Py_BuildValue("(sz)", json, chat);
    kwk_free(json);
    kwk_free(chat);
    return result;
}

/* All of a buffer, or that many 8-byte words spread over it. */
static uint64_t hash_some(const void *data, size_t n, uint64_t seed, int words)
{
    if (words <= 0 || n <= (size_t)words * 8)
        return kwk_hash64(data, n, seed);
    uint64_t h = seed;
    for (size_t i = 0; i < (size_t)words; i++)
        h = kwk_hash64((const char *)data + (n - 8) / (size_t)words * i, 8, h);
    return h;
}

static PyObject *hash_buffer(PyObject *Py_UNUSED(m), PyObject *args)
{
    Py_buffer buf;
    PyObject *obj;
    unsigned long long seed;
    uint64_t h;

    if (!PyArg_ParseTuple(args, "OK", &obj, &seed) ||
        PyObject_GetBuffer(obj, &buf, PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    h = kwk_hash64(buf.buf, (size_t)buf.len, seed);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buf);
    return PyLong_FromUnsignedLongLong(h);
}

/* One hash over a few words of each of many buffers: finds a change of most elements for the price
 * of some cache lines. */
static PyObject *hash_buffers(PyObject *Py_UNUSED(m), PyObject *args)
{
    PyObject *list;
    unsigned long long h;
    int words;

    if (!PyArg_ParseTuple(args, "O!Ki", &PyList_Type, &list, &h, &words))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        Py_buffer buf;
        if (PyObject_GetBuffer(PyList_GetItem(list, i), &buf, PyBUF_C_CONTIGUOUS) < 0)
            return NULL;
        h = hash_some(buf.buf, (size_t)buf.len, h, words);
        PyBuffer_Release(&buf);
    }
    return PyLong_FromUnsignedLongLong(h);
}

static PyMethodDef functions[] = {
    {"isa", isa, METH_NOARGS, "Instruction set in use, or None."},
    {"threads", threads, METH_NOARGS, "Threads of the team."},
    {"set_threads", set_threads, METH_VARARGS, "set_threads(n): 0 is the default."},
    {"config_check", config_check, METH_VARARGS,
     "config_check(config_json): None, or why the model cannot run."},
    {"source_tokenizer", source_tokenizer, METH_VARARGS,
     "source_tokenizer(path): (tokenizer.json text, chat template or None)"},
    {"hash_buffer", hash_buffer, METH_VARARGS, "hash_buffer(buffer, seed): 64-bit hash"},
    {"hash_buffers", hash_buffers, METH_VARARGS,
     "hash_buffers(buffers, seed, words): one hash over that many words of each buffer"},
    {"choose", (PyCFunction)(void (*)(void))sample_choose, METH_VARARGS | METH_KEYWORDS,
     "choose(sampling, logits, histories, n_new, out, noise=None, choices=None): a token for each "
     "row; logits are overwritten."},
    {NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kwker._kwker",
                                        "libkwk and libkwkclient for Python.", -1, functions,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kwker(void);
PyMODINIT_FUNC PyInit__kwker(void)
{
    PyObject *m = PyModule_Create(&definition);

    if (!m || errors_init(m) < 0 || model_init(m) < 0 || seq_init(m) < 0 || sampling_init(m) < 0 ||
        moments_init(m) < 0 || client_init(m) < 0 || stream_init(m) < 0 || clientseq_init(m) < 0 ||
        PyModule_AddStringConstant(m, "version", kwk_version()) < 0 ||
        PyModule_AddIntConstant(m, "TAP_QKV", KWK_TAP_QKV) < 0 ||
        PyModule_AddIntConstant(m, "TAP_O", KWK_TAP_O) < 0 ||
        PyModule_AddIntConstant(m, "TAP_MLP", KWK_TAP_MLP) < 0 ||
        PyModule_AddIntConstant(m, "TAP_DOWN", KWK_TAP_DOWN) < 0 ||
        PyModule_AddIntConstant(m, "TAP_HEAD", KWK_TAP_HEAD) < 0) {
        Py_XDECREF(m);
        return NULL;
    }
    return m;
}
