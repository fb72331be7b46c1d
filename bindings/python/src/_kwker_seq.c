/* SPDX-License-Identifier: Apache-2.0
 *
 * Seq: one line of decoding in this process. A Seq used by two threads at once is refused (EBUSY),
 * never undefined.
 */
#include "_kwker.h"

PyTypeObject *Seq_Type;

static bool seq_free_to_use(SeqObject *s)
{
    if (!s->busy)
        return true;
    raise_code(KWK_EBUSY, "this sequence is used by another thread");
    return false;
}

static void seq_dealloc(PyObject *obj)
{
    SeqObject *s = (SeqObject *)obj;

    kwk_seq_free(s->seq);
    Py_DECREF(s->model);
    free_object(obj);
}

static PyObject *seq_fork(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    SeqObject *s = (SeqObject *)obj;
    kwk_seq *copy = NULL;
    kwk_error err = {0};

    if (!seq_free_to_use(s))
        return NULL;
    if (kwk_seq_fork(&copy, s->seq, &err) < 0)
        return raise_error(&err);
    SeqObject *f = PyObject_New(SeqObject, Seq_Type);
    if (!f) {
        kwk_seq_free(copy);
        return NULL;
    }
    f->seq = copy;
    f->busy = false;
    f->model = (ModelObject *)Py_NewRef((PyObject *)s->model);
    return (PyObject *)f;
}

static PyObject *seq_truncate(PyObject *obj, PyObject *args)
{
    SeqObject *s = (SeqObject *)obj;
    kwk_error err = {0};
    int n;

    if (!PyArg_ParseTuple(args, "i", &n) || !seq_free_to_use(s))
        return NULL;
    if (kwk_seq_truncate(s->seq, n, &err) < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *seq_append_holes(PyObject *obj, PyObject *args)
{
    SeqObject *s = (SeqObject *)obj;
    kwk_error err = {0};
    int n;

    if (!PyArg_ParseTuple(args, "i", &n) || !seq_free_to_use(s))
        return NULL;
    if (kwk_seq_append_holes(s->seq, n, &err) < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *seq_set_valid(PyObject *obj, PyObject *args)
{
    SeqObject *s = (SeqObject *)obj;
    array valid = ARRAY_INIT;
    kwk_error err = {0};
    PyObject *buf;
    int first, rc;

    if (!PyArg_ParseTuple(args, "iO", &first, &buf) || !seq_free_to_use(s) ||
        !array_get(&valid, buf, ARRAY_U8, false, -1, "valid"))
        return NULL;
    rc = valid.n > INT32_MAX ? kwk_fail(&err, KWK_EINVAL, "%zd validity bits", valid.n)
                             : kwk_seq_set_valid(s->seq, first, (int)valid.n, valid.data, &err);
    array_release(&valid);
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *seq_export_kv(PyObject *obj, PyObject *args)
{
    SeqObject *s = (SeqObject *)obj;
    const kwk_model_info *info = &s->model->info;
    array k = ARRAY_INIT, v = ARRAY_INIT;
    kwk_error err = {0};
    PyObject *k_buf, *v_buf;
    int layer, rc = -1;

    if (!PyArg_ParseTuple(args, "iOO", &layer, &k_buf, &v_buf) || !seq_free_to_use(s))
        return NULL;
    const Py_ssize_t n = (Py_ssize_t)info->n_kv_heads * kwk_seq_length(s->seq) * info->head_dim;
    if (array_get(&k, k_buf, ARRAY_F32, true, n, "k") &&
        array_get(&v, v_buf, ARRAY_F32, true, n, "v")) {
        rc = kwk_seq_export_kv(s->seq, layer, k.data, v.data, &err);
        if (rc < 0)
            raise_error(&err);
    }
    array_release(&k);
    array_release(&v);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *seq_import_kv(PyObject *obj, PyObject *args)
{
    SeqObject *s = (SeqObject *)obj;
    const kwk_model_info *info = &s->model->info;
    array k = ARRAY_INIT, v = ARRAY_INIT;
    kwk_error err = {0};
    PyObject *k_buf, *v_buf;
    int layer, first, n, rc = -1;

    if (!PyArg_ParseTuple(args, "iiiOO", &layer, &first, &n, &k_buf, &v_buf) ||
        !seq_free_to_use(s))
        return NULL;
    if (n < 0)
        return raise_code(KWK_EINVAL, "%d slots", n);
    const Py_ssize_t size = (Py_ssize_t)info->n_kv_heads * n * info->head_dim;
    if (array_get(&k, k_buf, ARRAY_F32, false, size, "k") &&
        array_get(&v, v_buf, ARRAY_F32, false, size, "v")) {
        rc = kwk_seq_import_kv(s->seq, layer, first, n, k.data, v.data, &err);
        if (rc < 0)
            raise_error(&err);
    }
    array_release(&k);
    array_release(&v);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *seq_length(PyObject *obj, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(kwk_seq_length(((SeqObject *)obj)->seq));
}

int seq_init(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"fork", seq_fork, METH_NOARGS, "A copy that shares full blocks."},
        {"truncate", seq_truncate, METH_VARARGS, "truncate(n): drop slots from n on."},
        {"append_holes", seq_append_holes, METH_VARARGS, "append_holes(n): n invalid slots."},
        {"set_valid", seq_set_valid, METH_VARARGS, "set_valid(first, uint8 array)"},
        {"export_kv", seq_export_kv, METH_VARARGS,
         "export_kv(layer, k, v): into float32 arrays (n_kv_heads, length, head_dim)"},
        {"import_kv", seq_import_kv, METH_VARARGS, "import_kv(layer, first, n, k, v)"},
        {NULL}};
    static PyGetSetDef getset[] = {{"length", seq_length, NULL, "slots in use", NULL}, {NULL}};
    PyType_Slot slots[] = {{Py_tp_dealloc, seq_dealloc}, {Py_tp_methods, methods},
                           {Py_tp_getset, getset},
                           {Py_tp_doc, "One line of decoding."}, {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.Seq", sizeof(SeqObject), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

    Seq_Type = make_type(module, &spec, "Seq");
    return Seq_Type ? 0 : -1;
}
