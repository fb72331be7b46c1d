/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_merge for AVX2.
 */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

void kwk_attn_merge__avx2(float *a, const float *b, int dim)
{
    __m256 eav, ebv;
    float m, ea, eb;
    int i;

    if (b[1] == 0.0f)
        return;
    if (a[1] == 0.0f) {
        memcpy(a, b, sizeof *a * (size_t)(dim + 2));
        return;
    }
    m = a[0] > b[0] ? a[0] : b[0];
    ea = kwk_exp1(a[0] - m);
    eb = kwk_exp1(b[0] - m);
    eav = _mm256_set1_ps(ea);
    ebv = _mm256_set1_ps(eb);
    a[0] = m;
    for (i = 1; i + 8 <= dim + 2; i += 8) // the sum and o alike
        _mm256_storeu_ps(a + i, _mm256_fmadd_ps(_mm256_loadu_ps(a + i), eav,
                                                _mm256_mul_ps(_mm256_loadu_ps(b + i), ebv)));
    for (; i < dim + 2; i++)
        a[i] = fmaf(a[i], ea, b[i] * eb);
}
