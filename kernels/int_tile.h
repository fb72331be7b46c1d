/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kernels/: where things lie inside a tile of an integer format (layout in kernels.h),
 * the codes of one row (for packing, gather and references), and the way panels are streamed.
 */
#ifndef KWK_KERNELS_INT_TILE_H
#define KWK_KERNELS_INT_TILE_H

#include <string.h>

#include "kernels/half.h"
#include "kernels/kernels.h"

enum {
    KWK_SUPER_GROUPS = KWK_SUPER / KWK_GROUP,                // 8
    KWK_I8_SUPER_BYTES = 32 + KWK_SUPER_GROUPS * 512,        // of a full superblock
    KWK_I4_SUPER_BYTES = 32 + KWK_SUPER_GROUPS * (16 + 256), // of a full superblock
};

/* Bytes of the codes of a group. */
static inline int kwk_group_bytes(kwk_format format)
{
    return format == KWK_I8 ? 512 : format == KWK_I6 ? 384 : 256;
}

/* Bytes of a superblock of n groups. */
static inline size_t kwk_super_bytes(kwk_format format, int n)
{
    return 32 + (size_t)n * (size_t)((format == KWK_I8 ? 0 : 16) + kwk_group_bytes(format));
}

/* Panel 0 or 1 of a tile. */
static inline uint8_t *kwk_int_panel(const kwk_mat *w, int tile, int panel)
{
    const size_t bytes = kwk_mat_tile_bytes(w->format, w->cols_pad);

    return w->data + (size_t)tile * bytes + (size_t)panel * (bytes / 2);
}

/* Groups of the superblock that starts at group g. */
static inline int kwk_super_groups(int n_groups, int g)
{
    return n_groups - g < KWK_SUPER_GROUPS ? n_groups - g : KWK_SUPER_GROUPS;
}

/* 2^e, -126 <= e <= 127. */
static inline float kwk_exp2i(int e)
{
    return kwk_bits_f32((uint32_t)(e + 127) << 23);
}

/* fp16 scale of row r of a panel's superblock. */
static inline float kwk_super_scale(const uint8_t *super, int r)
{
    uint16_t h;

    memcpy(&h, super + 2 * r, sizeof h);
    return kwk_f16_to_f32(h);
}

/* Byte of an I8 superblock that holds column k of row r. */
static inline size_t kwk_i8_index(int r, int k)
{
    return 32 + (size_t)(k / 4) * 64 + (size_t)r * 4 + (size_t)(k % 4);
}

/* Byte of an I6 superblock of n groups that holds the low nibble of column k of row r, as in I4. */
static inline size_t kwk_i6_index(int n, int r, int k)
{
    return 32 + 16 * (size_t)n + (size_t)(k / 16) * 192 + (size_t)(k % 16 / 8) * 64 +
           (size_t)r * 4 + (size_t)(k % 4);
}

/* Byte that holds its two high bits, and how far up they lie. */
static inline size_t kwk_i6_high_index(int n, int r, int k)
{
    return 32 + 16 * (size_t)n + (size_t)(k / 16) * 192 + 128 + (size_t)r * 4 + (size_t)(k % 4);
}

static inline int kwk_i6_high_shift(int k)
{
    return k % 16 / 4 * 2;
}

/* Byte of an I4 superblock of n groups that holds column k of row r: its low nibble when
 * k % 8 < 4, else its high one. */
static inline size_t kwk_i4_index(int n, int r, int k)
{
    return 32 + 16 * (size_t)n + (size_t)(k / 8) * 64 + (size_t)r * 4 + (size_t)(k % 4);
}

static inline int kwk_nibble(uint8_t byte, int k)
{
    return k % 8 < 4 ? byte & 15 : byte >> 4;
}

/* The integers of row r of a superblock of n groups: code (32 n), and the group scale s (n), which
 * is 1 for I8. weight = S * s * code * 2^exponent. */
static inline void kwk_int_codes(kwk_format format, int16_t *code, int16_t *s, const uint8_t *super,
                                 int n, int r)
{
    for (int g = 0; g < n; g++) {
        const int sc = format == KWK_I8 ? 0 : super[32 + 16 * g + r];
        const int k0 = g * KWK_GROUP, k1 = k0 + KWK_GROUP;

        switch (format) {
        case KWK_I6:
            s[g] = (int16_t)((sc >> 2) - 32);
            for (int k = k0; k < k1; k++) {
                const int low = kwk_nibble(super[kwk_i6_index(n, r, k)], k);
                const int high = super[kwk_i6_high_index(n, r, k)] >> kwk_i6_high_shift(k) & 3;
                code[k] = (int16_t)((low | high << 4) + 4 * (sc & 3) - KWK_I6_CENTER);
            }
            break;
        case KWK_I4:
            s[g] = (int16_t)((sc >> 3) - 16);
            for (int k = k0; k < k1; k++)
                code[k] = (int16_t)(kwk_i4_grid[kwk_nibble(super[kwk_i4_index(n, r, k)], k)] +
                                    2 * (sc & 7) - KWK_I4_CENTER);
            break;
        default:
            s[g] = 1;
            for (int k = k0; k < k1; k++)
                code[k] = (int16_t)(super[kwk_i8_index(r, k)] - 128);
        }
    }
}

/* Asks for the n bytes that a stream of weights reaches KWK_AHEAD bytes after w; the stream ends at
 * end. The hardware prefetcher alone leaves a fifth of the bandwidth unused, because the arithmetic
 * of a line waits in the schedulers; distances below 4 KiB only disturb it. Measured on Zen 5. */
enum { KWK_AHEAD = 8192 };
static inline __attribute__((always_inline)) void kwk_ask_ahead(const uint8_t *w, int n,
                                                                const uint8_t *end)
{
    const uint8_t *at = w + KWK_AHEAD < end ? w + KWK_AHEAD : end - n;

#pragma GCC unroll 16
    for (int i = 0; i < n; i += 64)
        __builtin_prefetch(at + i);
}

/* Calls gemm for runs of tokens whose activations stay in the second cache while all rows pass. */
static inline void kwk_in_runs(const kwk_matmul *a, void (*gemm)(const kwk_matmul *a))
{
    enum { BYTES = 384 * 1024, STEP = 24 }; // a multiple of what any kernel takes at once
    const int fit = BYTES / a->w->cols_pad / STEP * STEP, run = fit > 2 * STEP ? fit : 2 * STEP;

    for (int t = 0; t < a->m; t += run) {
        kwk_qact q = *a->q;
        kwk_matmul part = *a;

        q.q += (size_t)t * q.ldq;
        q.scale += (size_t)t * q.lds;
        q.sum += (size_t)t * q.lds;
        part.q = &q;
        part.y += (size_t)t * a->ldy;
        part.m = a->m - t < run ? a->m - t : run;
        gemm(&part);
    }
}

#endif
