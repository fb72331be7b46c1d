/* SPDX-License-Identifier: Apache-2.0
 *
 * Model: a packed model of libkwk and its facts. Opening one is in _kwker_open.c, running it in
 * _kwker_step.c. Any number of threads may use a Model.
 */
#include "_kwker.h"

#include <string.h>

PyTypeObject *Model_Type;

PyObject *model_wrap(kwk_model *m)
{
    ModelObject *self = PyObject_New(ModelObject, Model_Type);

    if (!self) {
        kwk_model_free(m);
        return NULL;
    }
    self->model = m;
    self->chunk = 128;
    kwk_model_describe(m, &self->info);
    return (PyObject *)self;
}

static void model_dealloc(PyObject *obj)
{
    kwk_model *m = ((ModelObject *)obj)->model;

    Py_BEGIN_ALLOW_THREADS
    kwk_model_free(m);
    Py_END_ALLOW_THREADS
    free_object(obj);
}

static PyObject *id_list(const int32_t *ids, int n)
{
    PyObject *list = PyList_New(n);

    for (int i = 0; list && i < n; i++) {
        PyObject *v = PyLong_FromLong(ids[i]);
        if (!v || PyList_SetItem(list, i, v) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *model_describe(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    kwk_model_info i;

    kwk_model_describe(((ModelObject *)obj)->model, &i);
    PyObject *eos = id_list(i.eos, i.n_eos);
    if (!eos)
        return NULL;
    return Py_BuildValue(
        "{s:s,s:s,s:z,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:N,s:K,s:K,s:K,s:i,s:K,s:K,s:K,s:z,s:y#}",
        "model_type", i.model_type, "precision", i.precision, "rounded", i.rounded,
        "n_layers", i.n_layers, "hidden", i.hidden, "n_heads", i.n_heads,
        "n_kv_heads", i.n_kv_heads, "head_dim", i.head_dim, "vocab", i.vocab,
        "max_ctx", i.max_ctx, "bos", i.bos, "pad", i.pad, "eos", eos,
        "n_params", (unsigned long long)i.n_params,
        "weight_bytes", (unsigned long long)i.weight_bytes,
        "packed_bytes", (unsigned long long)i.packed_bytes, "kv_bits", i.kv_bits,
        "kv_bytes_per_slot", (unsigned long long)i.kv_bytes_per_slot,
        "kv_blocks", (unsigned long long)i.kv_blocks,
        "kv_blocks_free", (unsigned long long)i.kv_blocks_free,
        "chat_template", i.chat_template, "id", (const char *)i.id, (Py_ssize_t)sizeof i.id);
}

static PyObject *model_counters(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    kwk_counters c;

    kwk_model_counters(((ModelObject *)obj)->model, &c);
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "steps", (unsigned long long)c.steps,
        "rows", (unsigned long long)c.rows, "max_rows", (unsigned long long)c.max_rows,
        "gemv", (unsigned long long)c.gemv, "small", (unsigned long long)c.small,
        "gemm", (unsigned long long)c.gemm, "attn_decode", (unsigned long long)c.attn_decode,
        "attn_prefill", (unsigned long long)c.attn_prefill,
        "attn_merges", (unsigned long long)c.attn_merges,
        "blocks_copied", (unsigned long long)c.blocks_copied);
}

static PyObject *model_save(PyObject *obj, PyObject *path_arg)
{
    const kwk_model *m = ((ModelObject *)obj)->model;
    PyObject *path = NULL;
    kwk_error err = {0};
    int rc;

    if (!PyUnicode_FSConverter(path_arg, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_model_save(m, PyBytes_AsString(path), &err);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *model_fd(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    kwk_error err = {0};
    const int fd = kwk_model_fd(((ModelObject *)obj)->model, &err);

    return fd < 0 ? raise_error(&err) : PyLong_FromLong(fd);
}

static PyObject *model_token_bytes(PyObject *obj, PyObject *arg)
{
    const long id = PyLong_AsLong(arg);
    const uint8_t *bytes = NULL;
    size_t n = 0;
    kwk_error err = {0};

    if (id == -1 && PyErr_Occurred())
        return NULL;
    if (id < 0 || id > INT32_MAX)
        return raise_code(KWK_EINVAL, "token id %ld is out of range", id);
    if (kwk_model_token_bytes(((ModelObject *)obj)->model, (int32_t)id, &bytes, &n, &err) < 0)
        return raise_error(&err);
    return PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)n);
}

static PyObject *model_tokenizer_json(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    const char *json = NULL;
    size_t n = 0;
    kwk_error err = {0};

    if (kwk_model_tokenizer_json(((ModelObject *)obj)->model, &json, &n, &err) < 0)
        return raise_error(&err);
    return PyUnicode_DecodeUTF8(json, (Py_ssize_t)n, NULL);
}

static PyObject *model_seq(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    kwk_seq *seq = NULL;
    kwk_error err = {0};

    if (kwk_seq_new(&seq, ((ModelObject *)obj)->model, &err) < 0)
        return raise_error(&err);
    SeqObject *s = PyObject_New(SeqObject, Seq_Type);
    if (!s) {
        kwk_seq_free(seq);
        return NULL;
    }
    s->seq = seq;
    s->busy = false;
    s->model = (ModelObject *)Py_NewRef(obj);
    return (PyObject *)s;
}

int model_init(PyObject *module)
{
    static PyMethodDef own[] = {
        {"describe", model_describe, METH_NOARGS, "Facts of the model, as a dict."},
        {"counters", model_counters, METH_NOARGS, "What ran since the model was opened."},
        {"save", model_save, METH_O, "save(path): write the packed model, atomically."},
        {"fd", model_fd, METH_NOARGS, "Descriptor of the sealed packed image (borrowed)."},
        {"token_bytes", model_token_bytes, METH_O, "token_bytes(id): bytes of a token."},
        {"tokenizer_json", model_tokenizer_json, METH_NOARGS, "Text of tokenizer.json."},
        {"seq", model_seq, METH_NOARGS, "A new empty sequence."},
        {"forward", (PyCFunction)(void (*)(void))model_forward, METH_VARARGS | METH_KEYWORDS,
         "forward(seqs, counts, tokens, positions, valid=None, keep=0, logits=None,\n"
         "        embeddings=None): append rows to sequences and compute them."},
        {NULL}};
    static PyMethodDef methods[sizeof own / sizeof *own + 3];
    PyType_Slot slots[] = {{Py_tp_dealloc, model_dealloc}, {Py_tp_methods, methods},
                           {Py_tp_doc, "A packed model in this process."}, {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.Model", sizeof(ModelObject), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

    memcpy(methods, model_open_methods, 3 * sizeof *methods);
    memcpy(methods + 3, own, sizeof own);
    Model_Type = make_type(module, &spec, "Model");
    return Model_Type ? 0 : -1;
}
