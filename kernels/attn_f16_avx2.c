/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f16, AVX2: attn_avx2.h with K and V in IEEE half.
 */
#include "kernels/attn_avx2.h"

void kwk_attn_f16__avx2(const kwk_attn *a)
{
    kwk_attn_avx2(a, 1);
}
