/* SPDX-License-Identifier: Apache-2.0
 *
 * exp_diff for AVX-512: 16 at a time, the last ones masked.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_exp_diff__avx512(float *e, const float *x, int n, float most)
{
    const __m512 top = _mm512_set1_ps(most);

    for (int i = 0; i < n; i += 16) {
        const __mmask16 k = kwk_mask16(n - i);
        const __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), top);
        _mm512_mask_storeu_ps(e + i, k, kwk_exp16(v));
    }
}
