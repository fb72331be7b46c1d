/* SPDX-License-Identifier: Apache-2.0
 *
 * exp and tanh for kernels: the formulas, their constants and the scalar form. Every operation is
 * one IEEE operation in a fixed order, so that the vector twins in simd_<isa>.h give the same bits
 * for every input, NaN included. Must not use libm beyond fmaf.
 *
 *   exp: n = x / ln 2 rounded to an integer, r = x - n ln 2, e^x = 2^n p(r); p is a minimax
 *        polynomial of degree 6 with p(0) = 1. Results below 2^-126 are +0 (no subnormals: they
 *        are slow on some CPUs), above FLT_MAX +inf; a NaN comes back as it is. Error < 1 ulp.
 *   tanh: of a = |x|, then x's sign: a < 0.625: a + a z q(z), z = a a; else
 *        1 - 2 / (exp(2 a) + 1). Error < 2 ulp.
 */
#ifndef KWK_KERNELS_MATH_H
#define KWK_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define KWK_EXP_LOG2E 0x1.715476p+0f
#define KWK_EXP_LN2_HI 0x1.62e43p-1f
#define KWK_EXP_LN2_LO -0x1.05c61p-29f
#define KWK_EXP_MAGIC 0x1.8p+23f    // adding it rounds to an integer and leaves it in the low bits
#define KWK_EXP_MIN -0x1.5d589ep+6f // the least x whose result is a normal number
#define KWK_EXP_MAX 0x1.62e42ep+6f  // the greatest x whose result is finite
#define KWK_EXP_C2 0x1.fffffcp-2f
#define KWK_EXP_C3 0x1.555492p-3f
#define KWK_EXP_C4 0x1.5558aap-5f
#define KWK_EXP_C5 0x1.12396ep-7f
#define KWK_EXP_C6 0x1.6a524ep-10f

#define KWK_TANH_SMALL 0.625f
#define KWK_TANH_C0 -0x1.555532p-2f
#define KWK_TANH_C1 0x1.1106f6p-3f
#define KWK_TANH_C2 -0x1.b835a4p-5f
#define KWK_TANH_C3 0x1.51f8cep-6f
#define KWK_TANH_C4 -0x1.750ce2p-8f

static inline float kwk_exp1(float x)
{
    const float t = fmaf(x, KWK_EXP_LOG2E, KWK_EXP_MAGIC);
    const float n = t - KWK_EXP_MAGIC;
    float r, p;
    uint32_t pbits, tbits;

    if (x != x)
        return x;
    if (x < KWK_EXP_MIN)
        return 0.0f;
    if (x > KWK_EXP_MAX)
        return INFINITY;
    r = fmaf(n, -KWK_EXP_LN2_HI, x); // exact
    r = fmaf(n, -KWK_EXP_LN2_LO, r);
    p = fmaf(KWK_EXP_C6, r, KWK_EXP_C5);
    p = fmaf(p, r, KWK_EXP_C4);
    p = fmaf(p, r, KWK_EXP_C3);
    p = fmaf(p, r, KWK_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    memcpy(&pbits, &p, 4);
    memcpy(&tbits, &t, 4);
    pbits += tbits << 23; // p * 2^n: n sits in the low bits of t, the rest is shifted out
    memcpy(&p, &pbits, 4);
    return p;
}

static inline float kwk_tanh1(float x)
{
    const float a = fabsf(x);
    float y;

    if (x != x)
        return x;
    if (a < KWK_TANH_SMALL) {
        const float z = a * a;
        float q = fmaf(KWK_TANH_C4, z, KWK_TANH_C3);
        q = fmaf(q, z, KWK_TANH_C2);
        q = fmaf(q, z, KWK_TANH_C1);
        q = fmaf(q, z, KWK_TANH_C0);
        y = fmaf(q * z, a, a);
    } else {
        y = 1.0f - 2.0f / (kwk_exp1(2.0f * a) + 1.0f);
    }
    return copysignf(y, x);
}

#endif
