/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f16, the reference: attn_ref.h with K and V in IEEE half.
 */
#include "kernels/attn_ref.h"

void kwk_attn_f16__ref(const kwk_attn *a)
{
    kwk_attn_ref(a, 1);
}
