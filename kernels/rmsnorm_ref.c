/* SPDX-License-Identifier: Apache-2.0
 *
 * rmsnorm: the contract in kernels.h, word for word.
 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/lane_sum.h"

void kwk_rmsnorm__ref(float *y, const float *x, const float *w, int n, float eps)
{
    float p[KWK_LANES] = {0};
    float r;

    for (int i = 0; i < n; i++)
        p[i % KWK_LANES] = fmaf(x[i], x[i], p[i % KWK_LANES]);
    r = 1.0f / sqrtf(kwk_lane_sum(p) / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = w[i] * (x[i] * r);
}
