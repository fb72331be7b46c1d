/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_merge: the contract in kernels.h, word for word.
 */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

void kwk_attn_merge__ref(float *a, const float *b, int dim)
{
    float m, ea, eb;

    if (b[1] == 0.0f)
        return;
    if (a[1] == 0.0f) {
        memcpy(a, b, sizeof *a * (size_t)(dim + 2));
        return;
    }
    m = a[0] > b[0] ? a[0] : b[0];
    ea = kwk_expf(a[0] - m);
    eb = kwk_expf(b[0] - m);
    a[0] = m;
    for (int i = 1; i < dim + 2; i++)
        a[i] = fmaf(a[i], ea, b[i] * eb);
}
