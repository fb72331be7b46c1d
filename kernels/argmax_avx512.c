/* SPDX-License-Identifier: Apache-2.0
 *
 * argmax for AVX-512: find the greatest value chunk by chunk, then its index in the first chunk
 * that holds it, which is still in the cache.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

enum { CHUNK = 4096 };

static float greatest(const float *x, int n) // -INFINITY when all are NaN
{
    const __m512 least = _mm512_set1_ps(-INFINITY);
    __m512 m0 = least, m1 = least, m2 = least, m3 = least;
    int i;

    for (i = 0; i + 64 <= n; i += 64) { // max(NaN, m) is m
        m0 = _mm512_max_ps(_mm512_loadu_ps(x + i), m0);
        m1 = _mm512_max_ps(_mm512_loadu_ps(x + i + 16), m1);
        m2 = _mm512_max_ps(_mm512_loadu_ps(x + i + 32), m2);
        m3 = _mm512_max_ps(_mm512_loadu_ps(x + i + 48), m3);
    }
    for (; i < n; i += 16)
        m0 = _mm512_max_ps(_mm512_mask_loadu_ps(least, kwk_mask16(n - i), x + i), m0);
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3)));
}

int kwk_argmax__avx512(const float *x, int n)
{
    float best = -INFINITY;
    int start = 0;

    for (int c = 0; c < n; c += CHUNK) {
        const float m = greatest(x + c, n - c < CHUNK ? n - c : CHUNK);
        if (m > best) {
            best = m;
            start = c;
        }
    }
    for (int i = start; i < n; i += 16) {
        const __mmask16 m = kwk_mask16(n - i);
        const __mmask16 eq = _mm512_mask_cmp_ps_mask(m, _mm512_maskz_loadu_ps(m, x + i),
                                                     _mm512_set1_ps(best), _CMP_EQ_OQ);
        if (eq)
            return i + __builtin_ctz(eq);
    }
    return -1;
}
