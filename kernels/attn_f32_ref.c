/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32, the reference: attn_ref.h with K and V in float32.
 */
#include "kernels/attn_ref.h"

void kwk_attn_f32__ref(const kwk_attn *a)
{
    kwk_attn_ref(a, 0);
}
