/* SPDX-License-Identifier: Apache-2.0
 *
 * Register loops for AVX2: float32 FMA, and int8 products as the integer kernels form them.
 */
#include <immintrin.h>

#include "kernels/peak.h"

enum { CHAINS = 10 };

double kwk_peak_f32__avx2(long rounds)
{
    __m256 acc[CHAINS], x = _mm256_set1_ps(1e-3f), w = _mm256_set1_ps(0.5f);

    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm256_setzero_ps();
    for (long r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+x"(x), "+x"(w));
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm256_fmadd_ps(x, w, acc[i]);
    }
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : "+x"(acc[i]));
    return (double)rounds * CHAINS * 8 * 2;
}

double kwk_peak_i8__avx2(long rounds)
{
    __m256i acc[CHAINS], x = _mm256_set1_epi8(1), w = _mm256_set1_epi8(2);
    const __m256i ones = _mm256_set1_epi16(1);

    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm256_setzero_si256();
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) {
            __asm__ volatile("" : "+x"(x), "+x"(w));
            const __m256i pairs = _mm256_maddubs_epi16(w, x);
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs, ones));
        }
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : "+x"(acc[i]));
    return (double)rounds * CHAINS * 32 * 2;
}
