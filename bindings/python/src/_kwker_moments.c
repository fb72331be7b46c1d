/* SPDX-License-Identifier: Apache-2.0
 *
 * Moments: mean square of every column of the inputs of a model's matrices over calibration text,
 * gathered by taps. The first position of a text is left out: its activations are far larger than
 * all others' and would drown them. The tap runs on the engine's thread and touches no Python.
 */
#include "_kwker.h"

#include <stdlib.h>

enum { N_SITES = KWK_TAP_HEAD + 1 };

typedef struct sums {
    double *sum; // (cols) or NULL
    int cols;
} sums;

typedef struct MomentsObject {
    PyObject_HEAD
    ModelObject *model; // strong
    sums *sums;         // (n_layers + 1, N_SITES); the last layer is the head's
    uint64_t n_rows;    // counted so far
    int first_row;      // of the current step, within the text
    bool failed;        // out of memory in a tap
    bool busy;
} MomentsObject;

PyTypeObject *Moments_Type;

static void tap(void *arg, int layer, kwk_tap_site site, const float *x, size_t ld, int n_rows,
                int cols)
{
    MomentsObject *m = arg;

    if (site == KWK_TAP_HIDDEN || layer < 0 || layer > m->model->info.n_layers)
        return;
    sums *s = &m->sums[layer * N_SITES + (int)site];
    if (!s->sum) {
        s->sum = calloc((size_t)cols, sizeof *s->sum);
        s->cols = cols;
    }
    if (!s->sum || s->cols != cols) {
        m->failed = true;
        return;
    }
    for (int r = m->first_row == 0 ? 1 : 0; r < n_rows; r++)
        for (int c = 0; c < cols; c++)
            s->sum[c] += (double)x[(size_t)r * ld + (size_t)c] * x[(size_t)r * ld + (size_t)c];
}

static PyObject *moments_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    char *names[] = {"model", NULL};
    PyObject *model;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, Model_Type, &model))
        return NULL;
    MomentsObject *m = PyObject_New(MomentsObject, Moments_Type);
    if (!m)
        return NULL;
    m->model = (ModelObject *)Py_NewRef(model);
    m->n_rows = 0;
    m->first_row = 0;
    m->failed = m->busy = false;
    m->sums = calloc(((size_t)m->model->info.n_layers + 1) * N_SITES, sizeof *m->sums);
    if (!m->sums) {
        Py_DECREF(m);
        return PyErr_NoMemory();
    }
    return (PyObject *)m;
}

static void moments_dealloc(PyObject *obj)
{
    MomentsObject *m = (MomentsObject *)obj;

    for (int i = 0; m->sums && i < (m->model->info.n_layers + 1) * N_SITES; i++)
        free(m->sums[i].sum);
    free(m->sums);
    Py_DECREF(m->model);
    free_object(obj);
}

static bool add_text(MomentsObject *m, const array *tokens, const int32_t *positions)
{
    const int32_t count = (int32_t)tokens->n;
    PyObject *seq = PyObject_CallMethod((PyObject *)m->model, "seq", NULL);
    PyObject *seqs = seq ? PyList_New(1) : NULL;

    if (!seqs) {
        Py_XDECREF(seq);
        return false;
    }
    PyList_SetItem(seqs, 0, seq); // takes it
    run_args r = {.model = m->model, .seqs = seqs, .counts = &count, .n_seqs = 1,
                  .n_rows = count, .tokens = tokens->data, .positions = positions, .tap = tap,
                  .tap_arg = m, .tap_first_row = &m->first_row};
    bool ok = run_rows(&r);
    Py_DECREF(seqs);
    if (ok && m->failed) {
        PyErr_NoMemory();
        ok = false;
    }
    m->n_rows += (uint64_t)(count - 1);
    return ok;
}

static PyObject *moments_add(PyObject *obj, PyObject *arg)
{
    MomentsObject *m = (MomentsObject *)obj;
    array tokens = ARRAY_INIT;

    if (m->busy)
        return raise_code(KWK_EBUSY, "these moments are used by another thread");
    if (!array_get(&tokens, arg, ARRAY_I32, false, -1, "tokens"))
        return NULL;
    if (tokens.n < 2 || tokens.n > m->model->info.max_ctx) {
        raise_code(KWK_EINVAL, "a calibration text of %zd tokens (2 to %d)", tokens.n,
                   m->model->info.max_ctx);
        array_release(&tokens);
        return NULL;
    }
    int32_t *positions = malloc((size_t)tokens.n * sizeof *positions);
    for (int32_t i = 0; positions && i < tokens.n; i++)
        positions[i] = i;
    m->busy = true;
    const bool ok = positions ? add_text(m, &tokens, positions) : (PyErr_NoMemory(), false);
    m->busy = false;
    free(positions);
    array_release(&tokens);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* get(layer, site): mean squares as the bytes of float32, or None where nothing was seen. */
static PyObject *moments_get(PyObject *obj, PyObject *args)
{
    MomentsObject *m = (MomentsObject *)obj;
    int layer, site;

    if (!PyArg_ParseTuple(args, "ii", &layer, &site))
        return NULL;
    if (layer < 0 || layer > m->model->info.n_layers || site < 0 || site >= N_SITES)
        return raise_code(KWK_EINVAL, "layer %d, site %d", layer, site);
    const sums *s = &m->sums[layer * N_SITES + site];
    if (!s->sum || m->n_rows == 0)
        Py_RETURN_NONE;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)s->cols * 4);
    if (!bytes)
        return NULL;
    float *out = (float *)(void *)PyBytes_AsString(bytes); // at least 8-byte aligned by CPython
    for (int c = 0; c < s->cols; c++)
        out[c] = (float)(s->sum[c] / (double)m->n_rows);
    return bytes;
}

int moments_init(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"add", moments_add, METH_O, "add(tokens): run one text (int32) and count its rows."},
        {"get", moments_get, METH_VARARGS, "get(layer, site): float32 bytes, or None."},
        {NULL}};
    PyType_Slot slots[] = {{Py_tp_dealloc, moments_dealloc}, {Py_tp_new, moments_new},
                           {Py_tp_methods, methods},
                           {Py_tp_doc, "Mean squares of the inputs of a model's matrices."},
                           {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.Moments", sizeof(MomentsObject), 0, Py_TPFLAGS_DEFAULT, slots};

    Moments_Type = make_type(module, &spec, "Moments");
    return Moments_Type ? 0 : -1;
}
