/* SPDX-License-Identifier: Apache-2.0
 *
 * silu_mul: the contract in kernels.h, word for word.
 */
#include "kernels/kernels.h"

void kwk_silu_mul__ref(float *y, const float *g, const float *u, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = g[i] / (1.0f + kwk_expf(-g[i])) * u[i];
}
