/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a Model: rows of Python's arrays become kwk_rows, a few at a time, so that signals are
 * seen about every SLICE_MS even in a long prompt (by I1 the cutting does not change a bit).
 */
#include "_kwker.h"

#include <stdlib.h>
#include <time.h>

enum { CHUNK_MIN = 32, CHUNK_MAX = 1024 };

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Where the next row comes from: sequence, row within it, row within all. */
typedef struct cursor {
    Py_ssize_t seq, row;
    int32_t in_seq;
} cursor;

static int fill_rows(const run_args *r, cursor *c, kwk_row *rows, int room, int *n_logits)
{
    const size_t hidden = (size_t)r->model->info.hidden;
    int n = 0;

    *n_logits = 0;
    while (n < room && c->row < r->n_rows) {
        if (c->in_seq == r->counts[c->seq]) {
            c->seq++;
            c->in_seq = 0;
            continue;
        }
        const Py_ssize_t i = c->row++;
        const int left = r->counts[c->seq] - c->in_seq++;
        rows[n++] = (kwk_row){
            .seq = ((SeqObject *)PyList_GetItem(r->seqs, c->seq))->seq,
            .token = r->tokens ? r->tokens[i] : 0,
            .embedding = r->embeddings ? r->embeddings + (size_t)i * hidden : NULL,
            .position = r->positions[i],
            .invalid = r->valid && !r->valid[i],
            .want_logits = left <= r->keep,
        };
        *n_logits += left <= r->keep;
    }
    return n;
}

static void adapt_chunk(ModelObject *m, int rows, double ms)
{
    if (rows < CHUNK_MIN || ms <= 0)
        return;
    const double factor = SLICE_MS / ms; // at most by two at a time: one slow step says little
    const double want = m->chunk * (factor < 0.5 ? 0.5 : factor > 2 ? 2 : factor);
    m->chunk = want < CHUNK_MIN ? CHUNK_MIN : want > CHUNK_MAX ? CHUNK_MAX : (int)want;
}

static bool seqs_take(const run_args *r, int *lengths)
{
    for (Py_ssize_t i = 0; i < r->n_seqs; i++) {
        SeqObject *s = (SeqObject *)PyList_GetItem(r->seqs, i);
        if (s->busy || s->model != r->model) {
            if (s->busy)
                raise_code(KWK_EBUSY, "sequence %zd is used twice or by another thread", i);
            else
                raise_code(KWK_EINVAL, "sequence %zd belongs to another model", i);
            while (i-- > 0)
                ((SeqObject *)PyList_GetItem(r->seqs, i))->busy = false;
            return false;
        }
        s->busy = true;
        lengths[i] = kwk_seq_length(s->seq);
    }
    return true;
}

static void seqs_give(const run_args *r, const int *lengths, bool undo)
{
    for (Py_ssize_t i = 0; i < r->n_seqs; i++) {
        SeqObject *s = (SeqObject *)PyList_GetItem(r->seqs, i);
        s->busy = false;
        if (undo)
            (void)kwk_seq_truncate(s->seq, lengths[i], NULL);
    }
}

bool run_rows(run_args *r)
{
    int *lengths = malloc(((size_t)r->n_seqs + 1) * sizeof *lengths);
    kwk_row *rows = malloc(CHUNK_MAX * sizeof *rows);
    float *logits = r->logits;
    kwk_error err = {0};
    cursor c = {0};
    int rc = 0;

    if (!lengths || !rows) {
        free(lengths);
        free(rows);
        PyErr_NoMemory();
        return false;
    }
    if (!seqs_take(r, lengths)) {
        free(lengths);
        free(rows);
        return false;
    }
    while (c.row < r->n_rows && rc == 0) {
        int n_logits;
        if (r->tap_first_row)
            *r->tap_first_row = (int)c.row;
        const int n = fill_rows(r, &c, rows, r->model->chunk, &n_logits);
        kwk_step_args args = {.size = sizeof args, .rows = rows, .n_rows = n, .logits = logits,
                              .tap = r->tap, .tap_arg = r->tap_arg};
        const double t0 = now_ms();
        Py_BEGIN_ALLOW_THREADS
        rc = kwk_step(r->model->model, &args, &err);
        Py_END_ALLOW_THREADS
        adapt_chunk(r->model, n, now_ms() - t0);
        if (logits)
            logits += (size_t)n_logits * (size_t)r->model->info.vocab;
        if (rc == 0 && PyErr_CheckSignals() < 0)
            rc = KWK_ECANCELED;
    }
    seqs_give(r, lengths, rc < 0);
    free(lengths);
    free(rows);
    if (rc < 0)
        raise_error(&err); // keeps the exception of a signal handler
    return rc == 0;
}

/* Counts must be positive and their sum must match; gives the number of logits rows, or -1. */
static Py_ssize_t check_counts(const int32_t *counts, Py_ssize_t n, Py_ssize_t n_rows, int keep)
{
    Py_ssize_t sum = 0, n_logits = 0;

    for (Py_ssize_t i = 0; i < n; i++) {
        if (counts[i] < 1) {
            raise_code(KWK_EINVAL, "counts[%zd] is %d", i, counts[i]);
            return -1;
        }
        sum += counts[i];
        n_logits += counts[i] < keep ? counts[i] : keep;
    }
    if (sum != n_rows || n_rows > INT32_MAX) {
        raise_code(KWK_EINVAL, "counts add up to %zd, there are %zd rows", sum, n_rows);
        return -1;
    }
    return n_logits;
}

PyObject *model_forward(PyObject *self, PyObject *args, PyObject *kwargs)
{
    char *names[] = {"seqs", "counts", "tokens", "positions", "valid", "keep", "logits",
                     "embeddings", NULL};
    PyObject *seqs, *counts_o, *tokens_o, *positions_o, *valid_o = NULL, *logits_o = NULL,
             *embeddings_o = NULL, *result = NULL;
    array counts = ARRAY_INIT, tokens = ARRAY_INIT, positions = ARRAY_INIT, valid = ARRAY_INIT,
          logits = ARRAY_INIT, embeddings = ARRAY_INIT;
    ModelObject *m = (ModelObject *)self;
    int keep = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO|OiOO", names, &PyList_Type, &seqs,
                                     &counts_o, &tokens_o, &positions_o, &valid_o, &keep, &logits_o,
                                     &embeddings_o))
        return NULL;
    const Py_ssize_t n_seqs = PyList_Size(seqs);
    PyObject *own = PyList_GetSlice(seqs, 0, n_seqs); // no other thread may change it meanwhile
    if (!own)
        return NULL;
    for (Py_ssize_t i = 0; i < n_seqs; i++) {
        if (!PyObject_TypeCheck(PyList_GetItem(own, i), Seq_Type)) {
            PyErr_Format(PyExc_TypeError, "seqs[%zd] is not a Seq", i);
            goto out;
        }
    }
    if (keep < 0) {
        raise_code(KWK_EINVAL, "keep is %d", keep);
        goto out;
    }
    if (!array_get(&positions, positions_o, ARRAY_I32, false, -1, "positions") ||
        !array_get(&counts, counts_o, ARRAY_I32, false, n_seqs, "counts") ||
        !array_get(&tokens, tokens_o, ARRAY_I32, false, positions.n, "tokens") ||
        !array_get(&valid, valid_o, ARRAY_U8, false, positions.n, "valid") ||
        !array_get(&embeddings, embeddings_o, ARRAY_F32, false, positions.n * m->info.hidden,
                   "embeddings"))
        goto out;
    if (!counts.data || !positions.data || (!tokens.data && !embeddings.data)) {
        PyErr_SetString(PyExc_TypeError, "counts, positions, and tokens or embeddings are needed");
        goto out;
    }
    const Py_ssize_t n_logits = check_counts(counts.data, n_seqs, positions.n, keep);
    if (n_logits < 0 || !array_get(&logits, logits_o, ARRAY_F32, true,
                                   n_logits * m->info.vocab, "logits"))
        goto out;
    if (n_logits > 0 && !logits.data) {
        PyErr_SetString(PyExc_TypeError, "logits is needed when keep is not 0");
        goto out;
    }
    run_args r = {.model = m, .seqs = own, .counts = counts.data, .n_seqs = n_seqs,
                  .n_rows = positions.n, .tokens = tokens.data, .positions = positions.data,
                  .valid = valid.data, .embeddings = embeddings.data, .keep = keep,
                  .logits = logits.data};
    if (run_rows(&r))
        result = Py_NewRef(Py_None);
out:
    array_release(&embeddings);
    array_release(&logits);
    array_release(&valid);
    array_release(&tokens);
    array_release(&counts);
    array_release(&positions);
    Py_DECREF(own);
    return result;
}
