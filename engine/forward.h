/* SPDX-License-Identifier: Apache-2.0
 *
 * The planned step and what its threads do with it. step.c checks the rows and makes the plan;
 * forward.c runs the layers, attention.c the attention of one layer. Nothing here can fail.
 */
#ifndef KWK_ENGINE_FORWARD_H
#define KWK_ENGINE_FORWARD_H

#include "engine/model.h"
#include "engine/scratch.h"
#include "engine/seq.h"

/* Rows of one sequence inside a chunk. Its attention is cut into items that any thread may take:
 * unit × query tile, or for a single row unit × split; a unit is a KV head with up to
 * KWK_ATTN_QUERIES of its query heads. */
typedef struct kwk_piece {
    kwk_seq *seq;
    int row0, n_rows; // in the chunk
    int slot0;        // of its first row
    int item0;        // first of its items
    int n_splits;     // items of a unit when it is a single row cut by split, else 1
    int n_tiles;      // query tiles of a unit; 1 for a single row
    size_t part0;     // n_splits > 1: where its parts begin in kwk_scratch.parts
    int done0;        //               and its counters in kwk_scratch.done
} kwk_piece;

typedef struct kwk_chunk {
    int row0, n_rows; // of the step
    const kwk_piece *pieces;
    int n_pieces;
    int n_items;     // of attention
    int single;      // every piece is one row, and a unit holds all query heads of its KV head
    int out0, n_out; // rows with an output
} kwk_chunk;

/* A row whose logits are wanted, by the caller or by the sampler. */
typedef struct kwk_out {
    int row;       // of the step
    float *logits; // the caller's, or NULL
} kwk_out;

typedef struct kwk_forward {
    kwk_model *model;
    kwk_row *rows;
    kwk_tap_fn *tap; // NULL: none
    void *tap_arg;
    const kwk_chunk *chunks;
    int n_chunks;
    const kwk_out *out;
    /* pieces of work not yet taken, one counter per phase in turn */
    struct {
        _Alignas(128) atomic_int next;
    } ticket[3];
} kwk_forward;

/* One thread of the team, inside a step. */
typedef struct kwk_self {
    kwk_forward *f;
    const kwk_worker *w;
    kwk_private *own;
    const kwk_chunk *c;
    int phase; // of f->ticket; every thread counts alike
    uint64_t counts[KWK_COUNT_END];
} kwk_self;

/* The counter of the next phase whose work is handed out piece by piece. A barrier must lie
 * between two such phases. */
atomic_int *kwk_forward_ticket(kwk_self *t);

/* kwk_job.work: the whole step. arg: kwk_forward. */
void kwk_forward_run(void *arg, const kwk_worker *w);

/* ---- attention.c ---------------------------------------------------------------------------- */

int kwk_attention_units(const kwk_recipe *r);     // of one sequence
int kwk_attention_tile_rows(const kwk_recipe *r); // rows of a query tile
int kwk_attention_splits(int n_slots);
size_t kwk_attention_part_floats(const kwk_recipe *r); // parts of one unit and split

/* One layer: kwk_scratch.q, .k, .v → KV slots and kwk_scratch.heads. Ends without a barrier. */
void kwk_attention_run(kwk_self *t, int layer);

#endif
