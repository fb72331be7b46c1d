/* SPDX-License-Identifier: Apache-2.0
 *
 * rmsnorm for AVX-512: one register holds the 16 partial sums of the contract.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

void kwk_rmsnorm__avx512(float *y, const float *x, const float *w, int n, float eps)
{
    const int whole = n & ~15;
    const __mmask16 tail = kwk_mask16(n - whole);
    __m512 p = _mm512_setzero_ps(), rv;
    int i;

    for (i = 0; i < whole; i += 16) {
        const __m512 a = _mm512_loadu_ps(x + i);
        p = _mm512_fmadd_ps(a, a, p);
    }
    if (tail) { // zeros change no partial sum
        const __m512 a = _mm512_maskz_loadu_ps(tail, x + i);
        p = _mm512_fmadd_ps(a, a, p);
    }
    rv = _mm512_set1_ps(1.0f / sqrtf(kwk_lane_sum16(p) / (float)n + eps));
    for (i = 0; i < whole; i += 16)
        _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_loadu_ps(w + i),
                                              _mm512_mul_ps(_mm512_loadu_ps(x + i), rv)));
    if (tail) {
        const __m512 a = _mm512_mul_ps(_mm512_maskz_loadu_ps(tail, x + i), rv);
        _mm512_mask_storeu_ps(y + i, tail, _mm512_mul_ps(_mm512_maskz_loadu_ps(tail, w + i), a));
    }
}
