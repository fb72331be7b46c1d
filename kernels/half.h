/* SPDX-License-Identifier: Apache-2.0
 *
 * float32 <-> IEEE half and bfloat16, in portable C and with the bits of the x86 instructions:
 * round to nearest even, subnormals kept, overflow to infinity, NaNs made quiet with the upper
 * payload bits. For packing, references and tails; hot loops use instructions. Any thread.
 */
#ifndef KWK_KERNELS_HALF_H
#define KWK_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kwk_f32_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float kwk_bits_f32(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float kwk_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t exp = (h >> 10) & 31, mant = h & 0x3ff;

    if (exp == 31) // infinity, NaN
        return kwk_bits_f32(sign | 0x7f800000 | mant << 13 | (mant ? 0x00400000 : 0));
    if (exp == 0) { // mant * 2^-24, exact
        const float f = (float)mant * 0x1p-24f;
        return kwk_bits_f32(sign | kwk_f32_bits(f));
    }
    return kwk_bits_f32(sign | (exp + 112) << 23 | mant << 13);
}

static inline uint16_t kwk_f32_to_f16(float f)
{
    const uint32_t u = kwk_f32_bits(f), a = u & 0x7fffffff;
    const uint32_t sign = (u >> 16) & 0x8000;

    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000) // 65520 and above round to infinity
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { // below 2^-14: the last bit of the result is 2^-24
        const uint32_t exp = a >> 23;
        if (exp < 102) // below 2^-25
            return (uint16_t)sign;
        const uint32_t mant = (a & 0x007fffff) | 0x00800000, shift = 126 - exp; // 14..24
        const uint32_t q = mant >> shift, half = 1u << (shift - 1);
        const uint32_t rest = mant & (2 * half - 1);
        return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1)))));
    }
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
}

static inline float kwk_bf16_to_f32(uint16_t h)
{
    return kwk_bits_f32((uint32_t)h << 16);
}

static inline uint16_t kwk_f32_to_bf16(float f)
{
    const uint32_t u = kwk_f32_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#endif
