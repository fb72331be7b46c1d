/* SPDX-License-Identifier: Apache-2.0
 *
 * Exceptions: kwker.Error and one subclass for every row of proto/errors.inc, which is also Python's
 * built-in exception of the same meaning where there is one. A new row there needs nothing here.
 */
#include "_kwker.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    N_ERRORS = 0
#define KWK_ERR(num, name, text) +1
#include "proto/errors.inc"
#undef KWK_ERR
};

static const struct row {
    int code;
    const char *name, *text;
} rows[N_ERRORS] = {
#define KWK_ERR(num, name, text) {-(num), #name, text},
#include "proto/errors.inc"
#undef KWK_ERR
};

static PyObject *base_class;
static PyObject *classes[N_ERRORS];

static PyObject *builtin_twin(int code) // borrowed, or NULL
{
    switch (code) {
    case KWK_ENOMEM: return PyExc_MemoryError;
    case KWK_EINVAL: return PyExc_ValueError;
    case KWK_ENOENT: return PyExc_FileNotFoundError;
    case KWK_EIO: return PyExc_OSError;
    case KWK_EUNSUPPORTED: return PyExc_NotImplementedError;
    case KWK_EFORMAT: return PyExc_ValueError;
    case KWK_ECLOSED: return PyExc_ConnectionError;
    case KWK_ETIMEOUT: return PyExc_TimeoutError;
    case KWK_EPERM: return PyExc_PermissionError;
    case KWK_EFORKED: return PyExc_RuntimeError;
    default: return NULL;
    }
}

static PyObject *new_class(const char *name, const char *doc, PyObject *bases, int code,
                           const char *code_name)
{
    PyObject *dict = Py_BuildValue("{s:i,s:s,s:s}", "code", code, "name", code_name, "__module__",
                                   code ? "kwker.errors" : "kwker");
    char full[64];

    if (!dict)
        return NULL;
    snprintf(full, sizeof full, "%s.%s", code ? "kwker.errors" : "kwker", name);
    PyObject *cls = PyErr_NewExceptionWithDoc(full, doc, bases, dict);
    Py_DECREF(dict);
    return cls;
}

int errors_init(PyObject *module)
{
    PyObject *all = PyDict_New();

    base_class = new_class("Error", "What a call into Kwker raises; .code and .name say which kind.",
                           NULL, 0, "OK");
    if (!all || !base_class || PyModule_AddObjectRef(module, "Error", base_class) < 0)
        goto fail;
    for (int i = 0; i < N_ERRORS; i++) {
        PyObject *twin = builtin_twin(rows[i].code);
        PyObject *bases = twin ? PyTuple_Pack(2, base_class, twin) : PyTuple_Pack(1, base_class);
        if (!bases)
            goto fail;
        classes[i] = new_class(rows[i].name, rows[i].text, bases, rows[i].code, rows[i].name);
        Py_DECREF(bases);
        if (!classes[i] || PyDict_SetItemString(all, rows[i].name, classes[i]) < 0)
            goto fail;
    }
    if (PyModule_AddObjectRef(module, "errors", all) < 0)
        goto fail;
    Py_DECREF(all);
    return 0;
fail:
    Py_XDECREF(all);
    return -1;
}

PyObject *raise_error(const kwk_error *err)
{
    if (PyErr_Occurred())
        return NULL;
    for (int i = 0; i < N_ERRORS; i++) {
        if (rows[i].code != err->code)
            continue;
        PyErr_SetString(classes[i], err->msg[0] ? err->msg : rows[i].text);
        return NULL;
    }
    PyErr_SetString(base_class, err->msg);
    return NULL;
}

PyObject *raise_code(int code, const char *fmt, ...)
{
    kwk_error err = {.code = code};
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(err.msg, sizeof err.msg, fmt, ap);
    va_end(ap);
    return raise_error(&err);
}
