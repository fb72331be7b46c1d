/* SPDX-License-Identifier: Apache-2.0
 *
 * Eight independent 64-bit lanes, each word: lane = rotl(lane ^ word, 29) * odd. Both steps are
 * bijections of the lane, so a change of one word always changes its lane, and the eight
 * multiplications of a 64-byte stripe overlap: the bound is one multiplication per 8 bytes.
 * The last stripe is filled with zeros and the length goes into the final mix. Pure.
 */
#include "engine/hash.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs are little-endian");

enum { LANES = 8, STRIPE = LANES * 8 };

#define MULTIPLIER UINT64_C(0x9fb21c651e98df25) // odd, bits evenly spread

static inline uint64_t rotl(uint64_t v, int n)
{
    return v << n | v >> (64 - n);
}

static inline uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 32) * UINT64_C(0xd6e8feb86659fd93);
    v = (v ^ v >> 29) * MULTIPLIER;
    return v ^ v >> 32;
}

static inline uint64_t load(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Lanes in eight variables, not in an array: compilers would otherwise "vectorise" the 64-bit
 * multiplications into three 32-bit ones each. */
uint64_t kwk_hash64(const void *data, size_t n, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t a = mix(seed + 1), b = mix(seed + 2), c = mix(seed + 3), d = mix(seed + 4);
    uint64_t e = mix(seed + 5), f = mix(seed + 6), g = mix(seed + 7), h = mix(seed + 8);
    uint8_t tail[STRIPE] = {0};
    size_t left = n;

    for (;;) {
        if (left < STRIPE) {
            if (!left)
                break;
            memcpy(tail, p, left);
            p = tail;
            left = STRIPE;
        }
        a = rotl(a ^ load(p), 29) * MULTIPLIER;
        b = rotl(b ^ load(p + 8), 29) * MULTIPLIER;
        c = rotl(c ^ load(p + 16), 29) * MULTIPLIER;
        d = rotl(d ^ load(p + 24), 29) * MULTIPLIER;
        e = rotl(e ^ load(p + 32), 29) * MULTIPLIER;
        f = rotl(f ^ load(p + 40), 29) * MULTIPLIER;
        g = rotl(g ^ load(p + 48), 29) * MULTIPLIER;
        h = rotl(h ^ load(p + 56), 29) * MULTIPLIER;
        p += STRIPE;
        left -= STRIPE;
    }

    const uint64_t lane[LANES] = {a, b, c, d, e, f, g, h};
    uint64_t sum = mix((uint64_t)n ^ seed);
    for (int i = 0; i < LANES; i++)
        sum = rotl(sum ^ mix(lane[i]), 29) * MULTIPLIER;
    return mix(sum);
}

void kwk_hash128(uint8_t out[16], const void *data, size_t n)
{
    const uint64_t half[2] = {kwk_hash64(data, n, 0x6b776b31), kwk_hash64(data, n, 0x6b776b32)};

    memcpy(out, half, sizeof half);
}
