/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: the settings of a choice, and choose(), which picks a token for each row of a batch.
 */
#include "_kwker.h"

#include <stdlib.h>

PyTypeObject *Sampling_Type;

static void sampling_dealloc(PyObject *obj)
{
    SamplingObject *self = (SamplingObject *)obj;

    free((void *)self->s.eos);
    free((void *)self->s.bias);
    free_object(obj);
}

static bool set_eos(kwk_sampling *s, PyObject *list)
{
    const Py_ssize_t n = PyList_Size(list);
    int32_t *eos = malloc(((size_t)n + 1) * sizeof *eos);

    s->eos = eos;
    if (!eos || n > INT32_MAX) {
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
        eos[i] = (int32_t)id;
    }
    s->n_eos = (int)n;
    return true;
}

static bool set_bias(kwk_sampling *s, PyObject *list)
{
    const Py_ssize_t n = PyList_Size(list);
    kwk_logit_bias *bias = malloc(((size_t)n + 1) * sizeof *bias);

    s->bias = bias;
    if (!bias || n > INT32_MAX) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "if;a bias is (id, value)", &bias[i].id,
                              &bias[i].bias))
            return false;
    s->n_bias = (int)n;
    return true;
}

static PyObject *sampling_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    char *names[] = {"vocab", "do_sample", "temperature", "top_k", "top_p", "min_p",
                     "repetition_penalty", "min_new_tokens", "eos", "bias", "seed", NULL};
    kwk_sampling s = KWK_SAMPLING_INIT;
    PyObject *eos = NULL, *bias = NULL;
    unsigned long long seed = 0;
    kwk_error err = {0};
    int vocab;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|$pfifffiO!O!K", names, &vocab, &s.do_sample,
                                     &s.temperature, &s.top_k, &s.top_p, &s.min_p,
                                     &s.repetition_penalty, &s.min_new_tokens, &PyList_Type, &eos,
                                     &PyList_Type, &bias, &seed))
        return NULL;
    if (vocab < 1)
        return raise_code(KWK_EINVAL, "vocab is %d", vocab);
    s.seed = seed;
    SamplingObject *self = PyObject_New(SamplingObject, Sampling_Type);
    if (!self)
        return NULL;
    self->s = s;
    self->vocab = vocab;
    if ((eos && !set_eos(&self->s, eos)) || (bias && !set_bias(&self->s, bias)))
        goto fail;
    if (kwk_sampling_check(&self->s, vocab, &err) < 0) {
        raise_error(&err);
        goto fail;
    }
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

/* One row of choose(); history ids come from Python, so they are checked here. */
static int choose_one(const kwk_sampling *s, int vocab, const array *ids, int n_new,
                      const float *noise, float *logits, int32_t *token, kwk_error *err)
{
    const int32_t *id = ids->data;
    const kwk_history h = {.ids = id, .n_ids = (int)ids->n, .n_new = n_new, .noise = noise};

    for (Py_ssize_t i = 0; i < ids->n; i++)
        if (id[i] < 0 || id[i] >= vocab)
            return kwk_fail(err, KWK_EINVAL, "token id %d in the history, vocabulary of %d", id[i],
                            vocab);
    return kwk_sample(s, &h, logits, vocab, token, NULL, NULL, err);
}

PyObject *sample_choose(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    char *names[] = {"sampling", "logits", "histories", "n_new", "out", "noise", "choices", NULL};
    PyObject *sampling, *logits_o, *histories, *out_o, *noise_o = NULL, *choices_o = NULL;
    array logits = ARRAY_INIT, out = ARRAY_INIT, noise = ARRAY_INIT, choices = ARRAY_INIT;
    array *ids = NULL;
    kwk_error err = {0};
    int n_new, rc = -1;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!iO|OO", names, Sampling_Type, &sampling,
                                     &logits_o, &PyList_Type, &histories, &n_new, &out_o, &noise_o,
                                     &choices_o))
        return NULL;
    const Py_ssize_t n = PyList_Size(histories);
    const int vocab = ((SamplingObject *)sampling)->vocab;
    ids = calloc((size_t)n + 1, sizeof *ids);
    if (!ids) {
        PyErr_NoMemory();
        goto out;
    }
    if (!array_get(&logits, logits_o, ARRAY_F32, true, n * vocab, "logits") ||
        !array_get(&out, out_o, ARRAY_I32, true, n, "out") ||
        !array_get(&noise, noise_o, ARRAY_F32, false, n * vocab, "noise") ||
        !array_get(&choices, choices_o, ARRAY_I32, false, n, "choices"))
        goto out;
    if (n > 0 && (!logits.data || !out.data)) {
        PyErr_SetString(PyExc_TypeError, "logits and out are needed");
        goto out;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!array_get(&ids[i], PyList_GetItem(histories, i), ARRAY_I32, false, -1, "history"))
            goto out;
    rc = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && rc == 0; i++) {
        kwk_sampling s = ((SamplingObject *)sampling)->s;
        if (choices.data)
            s.choice = (uint32_t)((int32_t *)choices.data)[i];
        rc = choose_one(&s, vocab, &ids[i], n_new,
                        noise.data ? (float *)noise.data + (size_t)i * (size_t)vocab : NULL,
                        (float *)logits.data + (size_t)i * (size_t)vocab, (int32_t *)out.data + i,
                        &err);
    }
    Py_END_ALLOW_THREADS
    if (rc < 0)
        raise_error(&err);
out:
    for (Py_ssize_t i = 0; ids && i < n; i++)
        array_release(&ids[i]);
    free(ids);
    array_release(&choices);
    array_release(&noise);
    array_release(&out);
    array_release(&logits);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

int sampling_init(PyObject *module)
{
    PyType_Slot slots[] = {{Py_tp_dealloc, sampling_dealloc}, {Py_tp_new, sampling_new},
                           {Py_tp_doc, "Settings of a choice, checked."}, {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.Sampling", sizeof(SamplingObject), 0, Py_TPFLAGS_DEFAULT,
                        slots};

    Sampling_Type = make_type(module, &spec, "Sampling");
    return Sampling_Type ? 0 : -1;
}
