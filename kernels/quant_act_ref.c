/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference of quant_act (contract in kernels.h). Assumes the default rounding mode.
 */
#include <float.h>
#include <math.h>

#include "kernels/kernels.h"

void kwk_quant_act__ref(int8_t *q, float *scale, int32_t *sum, const float *x, int n)
{
    for (int g = 0; g < n / KWK_GROUP; g++, q += KWK_GROUP, x += KWK_GROUP) {
        float amax = 0;
        int32_t total = 0;
        int finite = 1;

        for (int k = 0; k < KWK_GROUP; k++) {
            amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
            finite &= fabsf(x[k]) <= FLT_MAX;
        }
        const float inv = 127.0f / amax;
        const int zero = !finite || !(inv <= FLT_MAX);
        for (int k = 0; k < KWK_GROUP; k++) {
            q[k] = (int8_t)(zero ? 0 : lrintf(x[k] * inv));
            total += q[k];
        }
        scale[g] = !finite ? NAN : zero ? 0 : amax / 127.0f;
        sum[g] = total;
    }
}
