/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels × rows × threads: which form of a kernel, and which thread does which part. Knows the
 * team and matrices, nothing of models or sequences. Called by every thread of the team inside a
 * step; nothing here changes a bit of any result.
 */
#ifndef KWK_ENGINE_OPS_H
#define KWK_ENGINE_OPS_H

#include <stdatomic.h>

#include "engine/executor.h"
#include "kernels/kernels.h"

/* Activations of some tokens, as the input of matrices. */
typedef struct kwk_input {
    float *x;   // (m, ldx) float32, padding columns 0
    size_t ldx; // >= padded columns, multiple of 16
    kwk_qact q; // the same quantised; q.q NULL: no integer format reads it
} kwk_input;

/* gemv for one token, small up to KWK_SMALL, gemm above. */
kwk_form kwk_ops_form(int m);

/* y (m, ldy) = tiles tile0 … tile1-1 of w times the first m tokens. scratch: KWK_MATMUL_SCRATCH
 * bytes of this thread. */
void kwk_ops_matmul(const kwk_kernels *k, const kwk_mat *w, int tile0, int tile1, int m,
                    const kwk_input *in, float *y, size_t ldy, void *scratch);

/* Quantise columns col0 … col0+n-1 of token i, both multiples of 32. */
void kwk_ops_quantise(const kwk_kernels *k, const kwk_input *in, int i, int col0, int n);

/* This thread's share lo <= i < hi of n items, contiguous. */
void kwk_ops_share(const kwk_worker *w, int n, int *lo, int *hi);

/* Called for tiles tile0 … tile1-1 of mats[i]. */
typedef void kwk_tiles_fn(void *arg, int i, int tile0, int tile1);

/* Call fn until every tile of the matrices, all fed by the same m tokens, is done by some thread.
 * gemv and small: one contiguous run of equal bytes per thread, which is what memory likes best.
 * gemm: pieces taken from *next as threads come free; it must be 0 at the start. */
void kwk_ops_each_tile(const kwk_mat *const *mats, int n_mats, int m, const kwk_worker *w,
                       atomic_int *next, kwk_tiles_fn *fn, void *arg);

#endif
