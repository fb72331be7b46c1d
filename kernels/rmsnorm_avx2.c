/* SPDX-License-Identifier: Apache-2.0
 *
 * rmsnorm for AVX2: two registers hold the 16 partial sums of the contract.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

void kwk_rmsnorm__avx2(float *y, const float *x, const float *w, int n, float eps)
{
    const int whole = n & ~7;
    __m256 lo = _mm256_setzero_ps(), hi = lo, rv;
    float r;
    int i;

    for (i = 0; i + 16 <= n; i += 16) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    if (i < n) { // zeros change no partial sum
        const __m256 a = _mm256_maskload_ps(x + i, kwk_mask8(n - i));
        lo = _mm256_fmadd_ps(a, a, lo);
    }
    if (i + 8 < n) {
        const __m256 b = _mm256_maskload_ps(x + i + 8, kwk_mask8(n - i - 8));
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    r = 1.0f / sqrtf(kwk_lane_sum8(lo, hi) / (float)n + eps);
    rv = _mm256_set1_ps(r);
    for (i = 0; i < whole; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(w + i),
                                              _mm256_mul_ps(_mm256_loadu_ps(x + i), rv)));
    for (; i < n; i++)
        y[i] = w[i] * (x[i] * r);
}
