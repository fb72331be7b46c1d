/* SPDX-License-Identifier: Apache-2.0
 *
 * argmax: the contract in kernels.h, word for word.
 */
#include "kernels/kernels.h"

int kwk_argmax__ref(const float *x, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (x[i] == x[i] && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}
