/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_finish for AVX2.
 */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

void kwk_attn_finish__avx2(float *y, const float *a, int dim)
{
    const float sum = a[1];
    int d;

    if (sum == 0.0f) {
        memset(y, 0, sizeof *y * (size_t)dim);
        return;
    }
    for (d = 0; d + 8 <= dim; d += 8)
        _mm256_storeu_ps(y + d, _mm256_div_ps(_mm256_loadu_ps(a + 2 + d), _mm256_set1_ps(sum)));
    for (; d < dim; d++)
        y[d] = a[2 + d] / sum;
}
