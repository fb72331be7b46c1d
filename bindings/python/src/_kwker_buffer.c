/* SPDX-License-Identifier: Apache-2.0
 *
 * Array arguments by the buffer protocol (array.array, numpy, torch through .numpy(), bytes for
 * uint8): item size, kind and length are checked here, once, so that no caller reads past an end.
 */
#include "_kwker.h"

#include <string.h>

static bool format_is(const char *format, array_kind kind)
{
    if (!format)
        format = "B";
    if (strchr("@=<", format[0]) && format[0]) // little-endian hosts only
        format++;
    if (strlen(format) != 1)
        return false;
    switch (kind) {
    case ARRAY_I32: return strchr("il", format[0]) != NULL; // item size decides
    case ARRAY_F32: return format[0] == 'f';
    case ARRAY_U8: return strchr("Bb?c", format[0]) != NULL;
    }
    return false;
}

bool array_get(array *a, PyObject *obj, array_kind kind, bool writable, Py_ssize_t n,
               const char *name)
{
    static const char *const names[] = {"int32", "float32", "uint8"};
    const Py_ssize_t size = kind == ARRAY_U8 ? 1 : 4;

    *a = (array)ARRAY_INIT;
    if (!obj || obj == Py_None)
        return true;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(obj, &a->view, flags) < 0)
        return false;
    a->held = true;
    if (a->view.itemsize != size || !format_is(a->view.format, kind)) {
        PyErr_Format(PyExc_TypeError, "%s must hold %s, not items of format '%s'", name,
                     names[kind], a->view.format ? a->view.format : "B");
        array_release(a);
        return false;
    }
    a->n = a->view.len / size;
    a->data = a->view.buf;
    if (n >= 0 && a->n != n) {
        PyErr_Format(PyExc_ValueError, "%s must have %zd items, has %zd", name, n, a->n);
        array_release(a);
        return false;
    }
    return true;
}

void array_release(array *a)
{
    if (a->held)
        PyBuffer_Release(&a->view);
    a->held = false;
    a->data = NULL;
}
