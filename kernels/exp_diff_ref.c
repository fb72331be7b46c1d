/* SPDX-License-Identifier: Apache-2.0
 *
 * exp_diff: the contract in kernels.h, word for word.
 */
#include "kernels/kernels.h"

void kwk_exp_diff__ref(float *e, const float *x, int n, float most)
{
    for (int i = 0; i < n; i++)
        e[i] = kwk_expf(x[i] - most);
}
