/* SPDX-License-Identifier: Apache-2.0
 *
 * The working memory of a model's steps: activations, tables, what each thread has to itself. Grows
 * before a step and is kept; belongs to the executor thread and, inside a step, to its team.
 */
#ifndef KWK_ENGINE_SCRATCH_H
#define KWK_ENGINE_SCRATCH_H

#include "engine/model.h"
#include "engine/ops.h"

enum {
    KWK_CHUNK_ROWS = 256, // rows that go through the layers together
    KWK_HEAD_ROWS = 64,   // rows that go through the head together
};

/* What one thread has to itself. */
typedef struct kwk_private {
    void *matmul, *attn, *sampler;
    kwk_input in; // (KWK_SMALL, max(hidden, heads * head_dim))
    float *q;     // (KWK_ATTN_QUERIES, head_dim)
    float *parts; // (2, KWK_ATTN_QUERIES, head_dim + 2)
} kwk_private;

typedef struct kwk_scratch {
    /* what it was made for */
    int rows, out_rows, threads;
    size_t n_parts, n_done;
    uint8_t *arena;
    size_t bytes;
    /* (rows, ld): x residual stream, y a projection's output before it is added to x */
    float *x, *y, *q, *k, *v, *up;
    size_t ld_hidden, ld_q, ld_kv, ld_inter, ld_vocab;
    float *cos, *sin; // (rows, rope_dim / 2)
    kwk_input norm;   // (rows, hidden) after a norm
    kwk_input heads;  // (rows, heads * head_dim) output of attention
    kwk_input mid;    // (rows, inter) gate, then the activated input of down
    float *logits;    // (out_rows, ld_vocab)
    float *parts;     // (n_parts) splits of decode that different threads compute
    atomic_int *done; // (n_done) how many of them are there; 0 between phases
    kwk_private *own; // (threads)
} kwk_scratch;

/**
 * Make m->scratch at least this large; an old one is replaced, its contents are lost.
 *
 * @param rows      1..KWK_CHUNK_ROWS
 * @param out_rows  0..KWK_HEAD_ROWS
 * @param n_parts   floats of `parts`
 * @param n_done    counters of `done`
 *
 * @return KWK_OK; KWK_ENOMEM, m->scratch is unchanged
 */
int kwk_scratch_reserve(kwk_model *m, int rows, int out_rows, int threads, size_t n_parts,
                        size_t n_done, kwk_error *err);
void kwk_scratch_free(kwk_scratch *s);

#endif
