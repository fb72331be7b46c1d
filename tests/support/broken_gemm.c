/* SPDX-License-Identifier: Apache-2.0
 *
 * A gemm that sums in descending order of columns.
 */
#include "tests/support/broken_gemm.h"

#include <math.h>
#include <stdlib.h>

void broken_gemm(const kwk_kernels *k, const kwk_matmul *a)
{
    const kwk_mat *w = a->w;
    float *row = aligned_alloc(64, (size_t)(w->cols_pad + 16) / 16 * 64);

    for (int r = a->tile0 * KWK_TILE; r < a->tile1 * KWK_TILE; r++) {
        if (r < w->rows)
            kwk_kernels_gather(k, w->format)(row, w, r);
        for (int t = 0; t < a->m; t++) {
            float sum = 0;
            for (int c = w->cols - 1; c >= 0 && r < w->rows; c--) {
                const size_t i = (size_t)t, j = (size_t)c;
                const float x = a->x ? a->x[i * a->ldx + j]
                                     : (float)a->q->q[i * a->q->ldq + j] *
                                           a->q->scale[i * a->q->lds + j / KWK_GROUP];
                sum = fmaf(row[c], x, sum);
            }
            a->y[(size_t)t * a->ldy + (size_t)r] = sum;
        }
    }
    free(row);
}
