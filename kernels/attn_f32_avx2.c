/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32, AVX2: attn_avx2.h with K and V in float32.
 */
#include "kernels/attn_avx2.h"

void kwk_attn_f32__avx2(const kwk_attn *a)
{
    kwk_attn_avx2(a, 0);
}
