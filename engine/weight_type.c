/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight types and their decoders. Block layouts are those of GGUF files (little-endian, halves as
 * scales). Pure; any thread.
 */
#include "engine/weight_type.h"

#include <string.h>

#include "kernels/half.h"

static float half(const uint8_t *p)
{
    return kwk_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* ---- plain types ----------------------------------------------------------------------------- */

static void decode_f32(float *y, const uint8_t *x, size_t n)
{
    memcpy(y, x, n * 4);
}

static void decode_f16(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = half(x + 2 * i);
}

static void decode_bf16(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, x + 2 * i, 2);
        y[i] = kwk_bf16_to_f32(h);
    }
}

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

/* d; 16 bytes: weights 0..15 in the low nibbles, 16..31 in the high ones. */
static void decode_q4_0(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32, y += 32, x += 18) {
        const float d = half(x);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)((x[2 + j] & 15) - 8) * d;
            y[j + 16] = (float)((x[2 + j] >> 4) - 8) * d;
        }
    }
}

/* d, m; nibbles as above. */
static void decode_q4_1(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32, y += 32, x += 20) {
        const float d = half(x), m = half(x + 2);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)(x[4 + j] & 15) * d + m;
            y[j + 16] = (float)(x[4 + j] >> 4) * d + m;
        }
    }
}

/* d; 4 bytes with the fifth bits of weights 0..31; nibbles. */
static void decode_q5_0(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32, y += 32, x += 22) {
        const float d = half(x);
        uint32_t high;
        memcpy(&high, x + 2, 4);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)((int)((x[6 + j] & 15) | (high >> j & 1) << 4) - 16) * d;
            y[j + 16] = (float)((int)(x[6 + j] >> 4 | (high >> (j + 16) & 1) << 4) - 16) * d;
        }
    }
}

static void decode_q5_1(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32, y += 32, x += 24) {
        const float d = half(x), m = half(x + 2);
        uint32_t high;
        memcpy(&high, x + 4, 4);
        for (int j = 0; j < 16; j++) {
            y[j] = (float)((x[8 + j] & 15) | (high >> j & 1) << 4) * d + m;
            y[j + 16] = (float)(x[8 + j] >> 4 | (high >> (j + 16) & 1) << 4) * d + m;
        }
    }
}

static void decode_q8_0(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32, y += 32, x += 34) {
        const float d = half(x);
        for (int j = 0; j < 32; j++)
            y[j] = (float)(int8_t)x[2 + j] * d;
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void decode_iq4_nl(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32, y += 32, x += 18) {
        const float d = half(x);
        for (int j = 0; j < 16; j++) {
            y[j] = d * (float)iq4_values[x[2 + j] & 15];
            y[j + 16] = d * (float)iq4_values[x[2 + j] >> 4];
        }
    }
}

/* ---- superblocks of 256 ---------------------------------------------------------------------- */

/* 16 bytes of scale and minimum nibbles; 64 of 2-bit codes; d, dmin. A run of 128 weights takes 32
 * code bytes, two bits at a time; each 16 weights have their scale. */
static void decode_q2_k(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 256, x += 84) {
        const float d = half(x + 80), dmin = half(x + 82);
        for (int g = 0; g < 16; g++, y += 16) {
            const uint8_t *codes = x + 16 + g / 8 * 32 + g % 2 * 16;
            const int shift = g % 8 / 2 * 2;
            const float scale = d * (float)(x[g] & 15), min = dmin * (float)(x[g] >> 4);
            for (int j = 0; j < 16; j++)
                y[j] = scale * (float)(codes[j] >> shift & 3) - min;
        }
    }
}

/* 32 bytes of third bits; 64 of 2-bit codes (order as Q2_K); 12 of 6-bit scales; d. */
static void decode_q3_k(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 256, x += 110) {
        const uint8_t *packed = x + 96;
        const float d = half(x + 108);
        for (int g = 0; g < 16; g++, y += 16) {
            const uint8_t *codes = x + 32 + g / 8 * 32 + g % 2 * 16, *high = x + g % 2 * 16;
            const int shift = g % 8 / 2 * 2, bit = g / 2;
            const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
            const int scale = (low | (packed[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
            const float dl = d * (float)scale;
            for (int j = 0; j < 16; j++)
                y[j] = dl * (float)((codes[j] >> shift & 3) - (high[j] >> bit & 1 ? 0 : 4));
        }
    }
}

/* Scale and minimum j (0..7) of the 12 bytes that Q4_K and Q5_K share: 6 bits each. */
static void k_scale(const uint8_t *p, int j, float *scale, float *min)
{
    if (j < 4) {
        *scale = (float)(p[j] & 63);
        *min = (float)(p[j + 4] & 63);
    } else {
        *scale = (float)((p[j + 4] & 15) | p[j - 4] >> 6 << 4);
        *min = (float)(p[j + 4] >> 4 | p[j] >> 6 << 4);
    }
}

/* d, dmin; 12 bytes of scales; 128 of nibbles: 32 bytes hold two groups of 32. */
static void decode_q4_k(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 256, x += 144) {
        const float d = half(x), dmin = half(x + 2);
        for (int g = 0; g < 8; g++, y += 32) {
            const uint8_t *codes = x + 16 + g / 2 * 32;
            float scale, min;
            k_scale(x + 4, g, &scale, &min);
            scale *= d;
            min *= dmin;
            for (int j = 0; j < 32; j++)
                y[j] = scale * (float)(codes[j] >> (g % 2 * 4) & 15) - min;
        }
    }
}

/* d, dmin; 12 bytes of scales; 32 of fifth bits (bit g: group g); nibbles. */
static void decode_q5_k(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 256, x += 176) {
        const float d = half(x), dmin = half(x + 2);
        for (int g = 0; g < 8; g++, y += 32) {
            const uint8_t *high = x + 16, *codes = x + 48 + g / 2 * 32;
            float scale, min;
            k_scale(x + 4, g, &scale, &min);
            scale *= d;
            min *= dmin;
            for (int j = 0; j < 32; j++) {
                const int q = (codes[j] >> (g % 2 * 4) & 15) + (high[j] >> g & 1) * 16;
                y[j] = scale * (float)q - min;
            }
        }
    }
}

/* 128 bytes of low nibbles; 64 of upper bit pairs; 16 signed scales; d. Each half of 128 weights:
 * four groups of 32, whose nibbles lie in bytes 0..31 and 32..63, low then high. */
static void decode_q6_k(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 256, x += 210) {
        const float d = half(x + 208);
        for (int g = 0; g < 8; g++, y += 32) {
            const uint8_t *low = x + g / 4 * 64 + g % 2 * 32, *high = x + 128 + g / 4 * 32;
            const int shift = g % 4 / 2 * 4, pair = g % 4 * 2;
            for (int j = 0; j < 32; j++) {
                const int q = ((low[j] >> shift & 15) | (high[j] >> pair & 3) << 4) - 32;
                y[j] = d * (float)(int8_t)x[192 + g * 2 + j / 16] * (float)q;
            }
        }
    }
}

/* d; 2 bytes of upper and 4 of lower scale bits, 8 scales of 6 bits; nibbles as Q4_0's, per 32. */
static void decode_iq4_xs(float *y, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 256, x += 136) {
        const float d = half(x);
        for (int g = 0; g < 8; g++, y += 32) {
            const int low = x[4 + g / 2] >> (g % 2 * 4) & 15;
            const int upper = (x[2] | x[3] << 8) >> (2 * g) & 3;
            const float dl = d * (float)((low | upper << 4) - 32);
            for (int j = 0; j < 16; j++) {
                y[j] = dl * (float)iq4_values[x[8 + g * 16 + j] & 15];
                y[j + 16] = dl * (float)iq4_values[x[8 + g * 16 + j] >> 4];
            }
        }
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

const kwk_weight_type kwk_weight_types[] = {
    {"F32", 0, KWK_KIND_F32, 1, 4, decode_f32},
    {"F16", 1, KWK_KIND_F16, 1, 2, decode_f16},
    {"BF16", 30, KWK_KIND_BF16, 1, 2, decode_bf16},
    {"Q4_0", 2, KWK_KIND_BLOCKS, 32, 18, decode_q4_0},
    {"Q4_1", 3, KWK_KIND_BLOCKS, 32, 20, decode_q4_1},
    {"Q5_0", 6, KWK_KIND_BLOCKS, 32, 22, decode_q5_0},
    {"Q5_1", 7, KWK_KIND_BLOCKS, 32, 24, decode_q5_1},
    {"Q8_0", 8, KWK_KIND_BLOCKS, 32, 34, decode_q8_0},
    {"IQ4_NL", 20, KWK_KIND_BLOCKS, 32, 18, decode_iq4_nl},
    {"Q2_K", 10, KWK_KIND_BLOCKS, 256, 84, decode_q2_k},
    {"Q3_K", 11, KWK_KIND_BLOCKS, 256, 110, decode_q3_k},
    {"Q4_K", 12, KWK_KIND_BLOCKS, 256, 144, decode_q4_k},
    {"Q5_K", 13, KWK_KIND_BLOCKS, 256, 176, decode_q5_k},
    {"Q6_K", 14, KWK_KIND_BLOCKS, 256, 210, decode_q6_k},
    {"IQ4_XS", 23, KWK_KIND_BLOCKS, 256, 136, decode_iq4_xs},
};
const int kwk_n_weight_types = sizeof kwk_weight_types / sizeof *kwk_weight_types;

const kwk_weight_type *kwk_weight_type_by_gguf(uint32_t id)
{
    for (int i = 0; i < kwk_n_weight_types; i++)
        if ((uint32_t)kwk_weight_types[i].gguf_id == id)
            return &kwk_weight_types[i];
    return NULL;
}

const kwk_weight_type *kwk_weight_type_by_dtype(const char *dtype)
{
    for (int i = 0; i < kwk_n_weight_types; i++)
        if (kwk_weight_types[i].kind != KWK_KIND_BLOCKS && !strcmp(kwk_weight_types[i].name, dtype))
            return &kwk_weight_types[i];
    return NULL;
}

const char *kwk_gguf_type_name(uint32_t id)
{
    static const char *const names[] = {
        "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
        "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
        "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
        "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
        "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
        "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
    };

    return id < sizeof names / sizeof *names ? names[id] : NULL;
}
