/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the Python extension: what its files share. Each file wraps one idea of libkwk or
 * libkwkclient; no logic of its own beyond what Python needs (references, the GIL, signals).
 * Every function here is called with the GIL held unless it says otherwise.
 */
#ifndef KWK_PYTHON_KWKER_H
#define KWK_PYTHON_KWKER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdbool.h>

#include "client/kwkclient.h"
#include "engine/kwk.h"

enum { SLICE_MS = 100 }; // longest wait between two looks at Python's signals

/* ---- errors: _kwker_error.c -------------------------------------------------------------------- */

int errors_init(PyObject *module);

/* Raise the exception of err->code with its text, unless one is pending. Returns NULL. */
PyObject *raise_error(const kwk_error *err);
PyObject *raise_code(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- buffers: _kwker_buffer.c ------------------------------------------------------------------ */

/* What an array argument must be. */
typedef enum array_kind { ARRAY_I32, ARRAY_F32, ARRAY_U8 } array_kind;

/* An array borrowed from Python by the buffer protocol: C-contiguous, of one kind. */
typedef struct array {
    Py_buffer view;
    bool held;
    Py_ssize_t n; // items
    void *data;   // NULL for None
} array;
#define ARRAY_INIT {.held = false, .n = 0, .data = NULL}

/* Borrow obj (None gives an array without data). n < 0: any length; else exactly n items. False with
 * an exception set that names the argument. */
bool array_get(array *a, PyObject *obj, array_kind kind, bool writable, Py_ssize_t n,
               const char *name);
void array_release(array *a); // more than once is fine

/* ---- engine ------------------------------------------------------------------------------------- */

typedef struct ModelObject {
    PyObject_HEAD
    kwk_model *model;
    kwk_model_info info;
    int chunk; // rows of a prompt in one step, adapted so that a step takes about SLICE_MS
} ModelObject;

typedef struct SeqObject {
    PyObject_HEAD
    kwk_seq *seq;
    ModelObject *model; // strong
    bool busy;          // in a step of some thread
} SeqObject;

typedef struct SamplingObject {
    PyObject_HEAD
    kwk_sampling s;
    int vocab;
} SamplingObject;

/* Second moments of the inputs of every matrix, from taps. */
typedef struct moments moments;

extern PyTypeObject *Model_Type, *Seq_Type, *Sampling_Type, *Moments_Type;
extern PyTypeObject *Client_Type, *Stream_Type, *ClientSeq_Type;

int model_init(PyObject *module);
int seq_init(PyObject *module);
int sampling_init(PyObject *module);
int moments_init(PyObject *module);
int client_init(PyObject *module);
int stream_init(PyObject *module);
int clientseq_init(PyObject *module);

PyObject *model_wrap(kwk_model *m);       // takes the reference
extern PyMethodDef model_open_methods[3 + 1]; // static methods: open, open_fd, open_memory
PyObject *model_forward(PyObject *self, PyObject *args, PyObject *kwargs); // _kwker_step.c
PyObject *sample_choose(PyObject *self, PyObject *args, PyObject *kwargs); // _kwker_sample.c

/* Run rows step by step, at most m->chunk rows each, with a look at signals between two steps. On
 * failure the sequences are cut back to their old lengths and an exception is set. */
typedef struct run_args {
    ModelObject *model;
    PyObject *seqs;     // list of Seq
    const int32_t *counts; // (n_seqs) rows of each
    Py_ssize_t n_seqs;
    Py_ssize_t n_rows;  // sum of counts
    const int32_t *tokens, *positions; // (n_rows)
    const uint8_t *valid;              // (n_rows) or NULL: all valid
    const float *embeddings;           // (n_rows, hidden) or NULL
    int keep;           // logits of the last `keep` rows of each sequence
    float *logits;      // (sum of min(keep, count), vocab) or NULL when keep is 0
    kwk_tap_fn *tap;
    void *tap_arg;
    int *tap_first_row; // out, read by the tap: index in n_rows of the step's first row
} run_args;
bool run_rows(run_args *r);

/* ---- client ------------------------------------------------------------------------------------- */

typedef struct StreamObject StreamObject;

typedef struct ClientObject {
    PyObject_HEAD
    kwk_client *client;     // NULL: closed
    int users;              // threads inside the library with the GIL released
    bool closing;
    pthread_mutex_t forward; // held without the GIL, from a forward until its logits are copied
    StreamObject *streams;   // all live ones: closing the client ends them
} ClientObject;

struct StreamObject {
    PyObject_HEAD
    ClientObject *client; // strong
    kwk_stream *stream;   // NULL: freed
    bool busy;
    StreamObject *prev, *next;
};

/* Bracket a call into the library: false with an exception when the client is closed. */
bool client_enter(ClientObject *c);
void client_leave(ClientObject *c);

PyObject *stream_start(ClientObject *c, const kwk_generate *g); // _kwker_stream.c
void stream_detach(StreamObject *s);                            // the client is going away
PyObject *client_generate(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *client_seq_open(PyObject *self, PyObject *args);
PyObject *client_forward(PyObject *self, PyObject *args, PyObject *kwargs);

/* ---- small things ------------------------------------------------------------------------------- */

PyTypeObject *make_type(PyObject *module, PyType_Spec *spec, const char *name);
void free_object(PyObject *self); // ends a tp_dealloc of a heap type

#endif
