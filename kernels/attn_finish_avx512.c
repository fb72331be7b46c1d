/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_finish for AVX-512.
 */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_attn_finish__avx512(float *y, const float *a, int dim)
{
    const __m512 sum = _mm512_set1_ps(a[1]);

    if (a[1] == 0.0f) {
        memset(y, 0, sizeof *y * (size_t)dim);
        return;
    }
    for (int d = 0; d < dim; d += 16) {
        const __mmask16 m = kwk_mask16(dim - d);
        _mm512_mask_storeu_ps(y + d, m, _mm512_div_ps(_mm512_maskz_loadu_ps(m, a + 2 + d), sum));
    }
}
