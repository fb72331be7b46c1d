/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_store_f32: the contract in kernels.h. Scattered stores; SIMD would not pay.
 */
#include <string.h>

#include "kernels/kernels.h"

void kwk_kv_store_f32__ref(void *kb, void *vb, const float *k, const float *v, int dim, int slot)
{
    float *kd = (float *)kb + slot;

    for (int d = 0; d < dim; d++)
        kd[d * KWK_BLOCK] = k[d];
    memcpy((float *)vb + (size_t)slot * (size_t)dim, v, sizeof *v * (size_t)dim);
}
