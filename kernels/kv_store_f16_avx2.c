/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_store_f16 for AVX2 + F16C: converts 8 at a time. K's stores are scattered, so that wider
 * registers would not pay.
 */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

static inline __m128i saturated8(__m256 x) // min and max keep a NaN in their second operand
{
    x = _mm256_min_ps(_mm256_set1_ps(65504.0f), x);
    x = _mm256_max_ps(_mm256_set1_ps(-65504.0f), x);
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

void kwk_kv_store_f16__avx2(void *kb, void *vb, const float *k, const float *v, int dim, int slot)
{
    uint16_t *kd = (uint16_t *)kb + slot, *vd = (uint16_t *)vb + (size_t)slot * (size_t)dim;

    for (int d = 0; d < dim; d += 8) {
        const int n = dim - d < 8 ? dim - d : 8;
        const __m256i m = kwk_mask8(n);
        uint16_t h[8];

        _mm_storeu_si128((__m128i *)h, saturated8(_mm256_maskload_ps(k + d, m)));
        for (int i = 0; i < n; i++)
            kd[(d + i) * KWK_BLOCK] = h[i];
        _mm_storeu_si128((__m128i *)h, saturated8(_mm256_maskload_ps(v + d, m)));
        memcpy(vd + d, h, sizeof *h * (size_t)n);
    }
}
