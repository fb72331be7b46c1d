/* SPDX-License-Identifier: Apache-2.0
 *
 * Register loops for AVX-512: float32 FMA, and int8 products by VNNI.
 */
#include <immintrin.h>

#include "kernels/peak.h"

enum { CHAINS = 12 };

double kwk_peak_f32__avx512(long rounds)
{
    __m512 acc[CHAINS], x = _mm512_set1_ps(1e-3f), w = _mm512_set1_ps(0.5f);

    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_setzero_ps();
    for (long r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+v"(x), "+v"(w));
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(x, w, acc[i]);
    }
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : "+v"(acc[i]));
    return (double)rounds * CHAINS * 16 * 2;
}

double kwk_peak_i8__avx512(long rounds)
{
    __m512i acc[CHAINS], x = _mm512_set1_epi8(1), w = _mm512_set1_epi8(2);

    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_setzero_si512();
    for (long r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+v"(x), "+v"(w));
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_dpbusd_epi32(acc[i], w, x);
    }
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : "+v"(acc[i]));
    return (double)rounds * CHAINS * 64 * 2;
}
