/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32 and attn_f16: the contract in kernels.h, word for word. The two differ in how an
 * element of K or V becomes a float.
 */
#ifndef KWK_KERNELS_ATTN_REF_H
#define KWK_KERNELS_ATTN_REF_H

#include <math.h>

#include "kernels/attn.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/lane_sum.h"

static inline float kwk_attn_at(const void *block, int i, int half)
{
    return half ? kwk_f16_to_f32(((const uint16_t *)block)[i]) : ((const float *)block)[i];
}

static inline void kwk_attn_ref_query(const kwk_attn *a, const kwk_attn_query *q, int half)
{
    float t[KWK_SPLIT], lanes[KWK_LANES] = {0}, max = -INFINITY;
    float *o = q->part + 2;
    uint32_t seen[KWK_ATTN_BLOCKS];
    const int n = a->n_blocks * KWK_BLOCK;

    for (int b = 0; b < a->n_blocks; b++)
        seen[b] = kwk_attn_seen(a, q, b);
    for (int d = 0; d < a->dim; d++)
        o[d] = 0.0f;
    for (int j = 0; j < n; j++) {
        float dot = 0.0f;
        if (!(seen[j / KWK_BLOCK] >> (j % KWK_BLOCK) & 1))
            continue;
        for (int d = 0; d < a->dim; d++)
            dot = fmaf(q->q[d],
                       kwk_attn_at(a->k[j / KWK_BLOCK], d * KWK_BLOCK + j % KWK_BLOCK, half), dot);
        t[j] = dot * a->scale;
        if (a->softcap > 0)
            t[j] = a->softcap * kwk_tanhf(t[j] / a->softcap);
        if (t[j] > max)
            max = t[j];
    }
    for (int j = 0; j < n; j++) {
        float p;
        if (!(seen[j / KWK_BLOCK] >> (j % KWK_BLOCK) & 1))
            continue;
        p = kwk_expf(t[j] - max);
        lanes[j % KWK_LANES] += p;
        for (int d = 0; d < a->dim; d++)
            o[d] =
                fmaf(p, kwk_attn_at(a->v[j / KWK_BLOCK], j % KWK_BLOCK * a->dim + d, half), o[d]);
    }
    q->part[0] = max + 0.0f;
    q->part[1] = kwk_lane_sum(lanes);
    for (int d = 0; d < a->dim; d++)
        o[d] += 0.0f;
}

static inline void kwk_attn_ref(const kwk_attn *a, int half)
{
    for (int i = 0; i < a->n_queries; i++)
        kwk_attn_ref_query(a, &a->query[i], half);
}

#endif
