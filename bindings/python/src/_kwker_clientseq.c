/* SPDX-License-Identifier: Apache-2.0
 *
 * ClientSeq: a sequence kept in the daemon, and forward() over several of them. Logits are copied
 * out of the shared memory into the caller's array before another thread's forward of the same
 * client may overwrite them.
 */
#include "_kwker.h"

#include <stdlib.h>
#include <string.h>

typedef struct ClientSeqObject {
    PyObject_HEAD
    ClientObject *client; // strong
    kwk_client_seq *seq;
    bool busy;
} ClientSeqObject;

PyTypeObject *ClientSeq_Type;

static PyObject *wrap(ClientObject *c, kwk_client_seq *seq)
{
    ClientSeqObject *s = PyObject_New(ClientSeqObject, ClientSeq_Type);

    if (!s) {
        kwk_client_seq_free(seq);
        return NULL;
    }
    s->client = (ClientObject *)Py_NewRef((PyObject *)c);
    s->seq = seq;
    s->busy = false;
    return (PyObject *)s;
}

static bool seq_enter(ClientSeqObject *s)
{
    if (s->busy) {
        raise_code(KWK_EBUSY, "this sequence is used by another thread");
        return false;
    }
    if (!client_enter(s->client))
        return false;
    s->busy = true;
    return true;
}

static void seq_leave(ClientSeqObject *s)
{
    s->busy = false;
    client_leave(s->client);
}

PyObject *client_seq_open(PyObject *self, PyObject *args)
{
    ClientObject *c = (ClientObject *)self;
    kwk_client_seq *seq = NULL;
    const char *model = NULL;
    kwk_error err = {0};
    int rc;

    if (!PyArg_ParseTuple(args, "|z", &model) || !client_enter(c))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_seq_open(&seq, c->client, model, &err);
    Py_END_ALLOW_THREADS
    client_leave(c);
    return rc < 0 ? raise_error(&err) : wrap(c, seq);
}

static PyObject *seq_fork(PyObject *obj, PyObject *Py_UNUSED(unused))
{
    ClientSeqObject *s = (ClientSeqObject *)obj;
    kwk_client_seq *copy = NULL;
    kwk_error err = {0};
    int rc;

    if (!seq_enter(s))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_seq_fork(&copy, s->seq, &err);
    Py_END_ALLOW_THREADS
    seq_leave(s);
    return rc < 0 ? raise_error(&err) : wrap(s->client, copy);
}

static PyObject *seq_truncate(PyObject *obj, PyObject *args)
{
    ClientSeqObject *s = (ClientSeqObject *)obj;
    kwk_error err = {0};
    int n, rc;

    if (!PyArg_ParseTuple(args, "i", &n) || !seq_enter(s))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = kwk_client_seq_truncate(s->seq, n, &err);
    Py_END_ALLOW_THREADS
    seq_leave(s);
    if (rc < 0)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *seq_length(PyObject *obj, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(kwk_client_seq_length(((ClientSeqObject *)obj)->seq));
}

static PyObject *seq_vocab(PyObject *obj, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(kwk_client_seq_vocab(((ClientSeqObject *)obj)->seq));
}

static void seq_dealloc(PyObject *obj)
{
    ClientSeqObject *s = (ClientSeqObject *)obj;

    if (s->client->client && !s->client->closing) {
        s->client->users++;
        Py_BEGIN_ALLOW_THREADS
        kwk_client_seq_free(s->seq);
        Py_END_ALLOW_THREADS
        s->client->users--;
    }
    Py_DECREF(s->client);
    free_object(obj);
}

/* Everything that one call of forward borrows. */
typedef struct batch {
    Py_ssize_t n;
    array counts, tokens, positions, valid, logits;
    kwk_forward *items;
    int vocab, all_logits;
} batch;

static bool batch_fill(batch *b, PyObject *seqs)
{
    const int32_t *counts = b->counts.data;
    Py_ssize_t at = 0, n_logits = 0;

    for (Py_ssize_t i = 0; i < b->n; i++) {
        ClientSeqObject *s = (ClientSeqObject *)PyList_GetItem(seqs, i);
        if (counts[i] < 1 || counts[i] > b->tokens.n - at) {
            raise_code(KWK_EINVAL, "counts[%zd] is %d", i, counts[i]);
            return false;
        }
        b->items[i] = (kwk_forward){
            .seq = s->seq,
            .tokens = (const int32_t *)b->tokens.data + at,
            .n_tokens = counts[i],
            .positions = b->positions.data ? (const int32_t *)b->positions.data + at : NULL,
            .valid = b->valid.data ? (const uint8_t *)b->valid.data + at : NULL,
            .all_logits = b->all_logits,
        };
        at += counts[i];
        n_logits += b->all_logits ? counts[i] : 1;
        if (kwk_client_seq_vocab(s->seq) != b->vocab) {
            raise_code(KWK_EINVAL, "sequence %zd belongs to another model", i);
            return false;
        }
    }
    if (at != b->tokens.n || (b->logits.data && b->logits.n != n_logits * b->vocab)) {
        raise_code(KWK_EINVAL, "%zd tokens and %zd logits where counts need %zd and %zd",
                   b->tokens.n, b->logits.n, at, n_logits * b->vocab);
        return false;
    }
    return true;
}

static bool seqs_take(PyObject *seqs, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        ClientSeqObject *s = (ClientSeqObject *)PyList_GetItem(seqs, i);
        if (s->busy) {
            raise_code(KWK_EBUSY, "sequence %zd is used twice or by another thread", i);
            while (i-- > 0)
                ((ClientSeqObject *)PyList_GetItem(seqs, i))->busy = false;
            return false;
        }
        s->busy = true;
    }
    return true;
}

static bool batch_run(batch *b, ClientObject *c)
{
    kwk_error err = {0};
    float *out = b->logits.data;
    int rc;

    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&c->forward);
    rc = kwk_client_forward(c->client, b->items, (int)b->n, &err);
    for (Py_ssize_t i = 0; rc == 0 && out && i < b->n; i++) {
        const size_t n = (size_t)(b->all_logits ? b->items[i].n_tokens : 1) * (size_t)b->vocab;
        memcpy(out, b->items[i].logits, n * sizeof *out);
        out += n;
    }
    pthread_mutex_unlock(&c->forward);
    Py_END_ALLOW_THREADS
    if (rc < 0)
        raise_error(&err);
    return rc >= 0;
}

PyObject *client_forward(PyObject *self, PyObject *args, PyObject *kwargs)
{
    char *names[] = {"seqs", "counts", "tokens", "positions", "valid", "all_logits", "logits", NULL};
    ClientObject *c = (ClientObject *)self;
    PyObject *seqs, *counts_o, *tokens_o, *positions_o = NULL, *valid_o = NULL, *logits_o = NULL;
    batch b = {.counts = ARRAY_INIT, .tokens = ARRAY_INIT, .positions = ARRAY_INIT,
               .valid = ARRAY_INIT, .logits = ARRAY_INIT};
    bool ok = false;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|OOpO", names, &PyList_Type, &seqs, &counts_o,
                                     &tokens_o, &positions_o, &valid_o, &b.all_logits, &logits_o))
        return NULL;
    b.n = PyList_Size(seqs);
    PyObject *own = PyList_GetSlice(seqs, 0, b.n);
    b.items = calloc((size_t)b.n + 1, sizeof *b.items);
    if (!own || !b.items || b.n < 1) {
        if (own && b.items)
            raise_code(KWK_EINVAL, "no sequences");
        goto out;
    }
    for (Py_ssize_t i = 0; i < b.n; i++) {
        PyObject *s = PyList_GetItem(own, i);
        if (!PyObject_TypeCheck(s, ClientSeq_Type) || ((ClientSeqObject *)s)->client != c) {
            PyErr_Format(PyExc_TypeError, "seqs[%zd] is not a sequence of this client", i);
            goto out;
        }
    }
    if (!array_get(&b.counts, counts_o, ARRAY_I32, false, b.n, "counts") ||
        !array_get(&b.tokens, tokens_o, ARRAY_I32, false, -1, "tokens") ||
        !array_get(&b.positions, positions_o, ARRAY_I32, false, b.tokens.n, "positions") ||
        !array_get(&b.valid, valid_o, ARRAY_U8, false, b.tokens.n, "valid") ||
        !array_get(&b.logits, logits_o, ARRAY_F32, true, -1, "logits"))
        goto out;
    if (!b.counts.data || !b.tokens.data) {
        PyErr_SetString(PyExc_TypeError, "counts and tokens are needed");
        goto out;
    }
    if (!client_enter(c))
        goto out;
    if (seqs_take(own, b.n)) {
        b.vocab = kwk_client_seq_vocab(((ClientSeqObject *)PyList_GetItem(own, 0))->seq);
        ok = batch_fill(&b, own) && batch_run(&b, c) && PyErr_CheckSignals() == 0;
        for (Py_ssize_t i = 0; i < b.n; i++)
            ((ClientSeqObject *)PyList_GetItem(own, i))->busy = false;
    }
    client_leave(c);
out:
    array_release(&b.logits);
    array_release(&b.valid);
    array_release(&b.positions);
    array_release(&b.tokens);
    array_release(&b.counts);
    free(b.items);
    Py_XDECREF(own);
    if (!ok)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    Py_RETURN_NONE;
}

int clientseq_init(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"fork", seq_fork, METH_NOARGS, "A copy in the daemon."},
        {"truncate", seq_truncate, METH_VARARGS, "truncate(n): drop slots from n on."},
        {NULL}};
    static PyGetSetDef getset[] = {{"length", seq_length, NULL, "slots in use", NULL},
                                   {"vocab", seq_vocab, NULL, "size of a logits row", NULL},
                                   {NULL}};
    PyType_Slot slots[] = {{Py_tp_dealloc, seq_dealloc}, {Py_tp_methods, methods},
                           {Py_tp_getset, getset},
                           {Py_tp_doc, "A sequence kept in the daemon."}, {0, NULL}};
    PyType_Spec spec = {"kwker._kwker.ClientSeq", sizeof(ClientSeqObject), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

    ClientSeq_Type = make_type(module, &spec, "ClientSeq");
    return ClientSeq_Type ? 0 : -1;
}
