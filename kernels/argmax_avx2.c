/* SPDX-License-Identifier: Apache-2.0
 *
 * argmax for AVX2: find the greatest value chunk by chunk, then its index in the first chunk that
 * holds it, which is still in the cache.
 */
#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

enum { CHUNK = 4096 };

static float greatest(const float *x, int n) // -INFINITY when all are NaN
{
    const __m256 least = _mm256_set1_ps(-INFINITY);
    __m256 m0 = least, m1 = least, m2 = least, m3 = least;
    float best;
    int i;

    for (i = 0; i + 32 <= n; i += 32) { // max(NaN, m) is m
        m0 = _mm256_max_ps(_mm256_loadu_ps(x + i), m0);
        m1 = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), m1);
        m2 = _mm256_max_ps(_mm256_loadu_ps(x + i + 16), m2);
        m3 = _mm256_max_ps(_mm256_loadu_ps(x + i + 24), m3);
    }
    best = kwk_hmax8(_mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3)));
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

int kwk_argmax__avx2(const float *x, int n)
{
    float best = -INFINITY;
    int start = 0, i;

    for (int c = 0; c < n; c += CHUNK) {
        const float m = greatest(x + c, n - c < CHUNK ? n - c : CHUNK);
        if (m > best) {
            best = m;
            start = c;
        }
    }
    for (i = start; i + 8 <= n; i += 8) {
        const __m256 eq = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(best), _CMP_EQ_OQ);
        const int bits = _mm256_movemask_ps(eq);
        if (bits)
            return i + __builtin_ctz((unsigned)bits);
    }
    for (; i < n; i++)
        if (x[i] == best)
            return i;
    return -1;
}
