/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_store_f16: the contract in kernels.h, word for word.
 */
#include "kernels/half.h"
#include "kernels/kernels.h"

static uint16_t saturated(float x)
{
    return kwk_f32_to_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
}

void kwk_kv_store_f16__ref(void *kb, void *vb, const float *k, const float *v, int dim, int slot)
{
    uint16_t *kd = (uint16_t *)kb + slot, *vd = (uint16_t *)vb + (size_t)slot * (size_t)dim;

    for (int d = 0; d < dim; d++) {
        kd[d * KWK_BLOCK] = saturated(k[d]);
        vd[d] = saturated(v[d]);
    }
}
