/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_merge for AVX-512.
 */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_attn_merge__avx512(float *a, const float *b, int dim)
{
    __m512 ea, eb;
    float m;

    if (b[1] == 0.0f)
        return;
    if (a[1] == 0.0f) {
        memcpy(a, b, sizeof *a * (size_t)(dim + 2));
        return;
    }
    m = a[0] > b[0] ? a[0] : b[0];
    ea = _mm512_set1_ps(kwk_exp1(a[0] - m));
    eb = _mm512_set1_ps(kwk_exp1(b[0] - m));
    a[0] = m;
    for (int i = 1; i < dim + 2; i += 16) { // the sum and o alike
        const __mmask16 k = kwk_mask16(dim + 2 - i);
        const __m512 bv = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, b + i), eb);
        const __m512 av = _mm512_maskz_loadu_ps(k, a + i);
        _mm512_mask_storeu_ps(a + i, k, _mm512_fmadd_ps(av, ea, bv));
    }
}
