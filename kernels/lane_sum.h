/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a lane sum (kernels.h), for references.
 */
#ifndef KWK_KERNELS_LANE_SUM_H
#define KWK_KERNELS_LANE_SUM_H

#include "kernels/kernels.h"

/* The 16 partial sums to one; p is used up. */
static inline float kwk_lane_sum(float *p)
{
    for (int half = KWK_LANES / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            p[i] += p[i + half];
    return p[0];
}

#endif
