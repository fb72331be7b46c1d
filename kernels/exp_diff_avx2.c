/* SPDX-License-Identifier: Apache-2.0
 *
 * exp_diff for AVX2: 8 at a time, the rest one by one.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

void kwk_exp_diff__avx2(float *e, const float *x, int n, float most)
{
    const __m256 top = _mm256_set1_ps(most);
    int i;

    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(e + i, kwk_exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), top)));
    for (; i < n; i++)
        e[i] = kwk_exp1(x[i] - most);
}
