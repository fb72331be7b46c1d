/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32, AVX-512: attn_avx512.h with K and V in float32.
 */
#include "kernels/attn_avx512.h"

void kwk_attn_f32__avx512(const kwk_attn *a)
{
    kwk_attn_avx512(a, 0);
}
