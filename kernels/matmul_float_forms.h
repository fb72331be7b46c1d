/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to kernels/: the forms of matrix × activations of the float formats, once for all
 * instruction sets. A matmul_float_<isa>.c defines the sizes GROUP, PASS and DEPTH and the loops
 * strip() and expand(), then includes this file.
 *
 * strip() computes 32 rows × a group of tokens over some columns. The forms decide where it reads:
 *   gemv             weights decoded in registers, one sequential stream
 *   one group        the same on copied activations
 *   several groups   a block of columns expanded to float32 once, then used by every group while
 *                    the next block is prefetched
 * The first two prefetch far ahead of the stream as soon as arithmetic fills the core's window of
 * outstanding loads: not in the gemv of float32, which is two loads and two fmas a column.
 * Activations are copied, so that a group is one dense stream (rows a power of two apart would
 * share cache sets). Splitting columns goes through y, which holds the accumulators exactly: the
 * order of sums is the contract's in every form.
 */
#ifndef KWK_KERNELS_MATMUL_FLOAT_FORMS_H
#define KWK_KERNELS_MATMUL_FLOAT_FORMS_H

#include <string.h>

enum {
    BATCH = 192, // most tokens whose activations are copied at a time
    /* Bytes from a weight to the prefetch made beside it. Measured on Zen 5: 1 and 2 KiB are no
     * better than none or worse, two pages are the best, four pages about equal. */
    AHEAD = 8192,
    ROOM = KWK_MATMUL_SCRATCH / 4, // floats
};

static inline int least(int a, int b)
{
    return a < b ? a : b;
}

/* First token of part i when m tokens are split into n parts as evenly as possible. */
static inline int part_start(int m, int n, int i)
{
    return (int)((int64_t)m * i / n);
}

/* Copy some columns of n tokens: 16 columns of each token side by side. */
static inline void copy_group(float *dst, const float *x, size_t ldx, int n, int cols)
{
    for (int k = 0; k < cols; k += LINE)
        for (int t = 0; t < n; t++, dst += LINE)
            memcpy(dst, x + (size_t)t * ldx + k, LINE * sizeof *dst);
}

/* strip() on the copied activations of n tokens, each number with its own registers. */
INLINE void strip_group(kwk_format format, int n, const uint8_t *w, const float *x, int cols,
                        float *y, size_t ldy, int first, const uint8_t *ahead, const int n_ahead)
{
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        strip(format, n, w, x, cols, y, ldy, first, ahead, n_ahead);                               \
        return;
    switch (n) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#if GROUP > 6
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
#endif
    }
#undef CASE
}

INLINE void gemv(kwk_format format, const kwk_matmul *a)
{
    for (int tile = a->tile0; tile < a->tile1; tile++) {
        const uint8_t *w = kwk_tile_data(a->w, tile);
        strip(format, 1, w, a->x, a->w->cols_pad, a->y + (size_t)tile * KWK_TILE, 0, 1, w + AHEAD,
              format == KWK_F32 ? 0 : 2);
    }
}

INLINE void one_group(kwk_format format, const kwk_matmul *a)
{
    const int m = a->m, cols = a->w->cols_pad, room = ROOM / m / LINE * LINE;
    float *const x = a->scratch;

    for (int k0 = 0; k0 < cols; k0 += room) {
        const int n_copied = least(room, cols - k0);
        copy_group(x, a->x + k0, a->ldx, m, n_copied);
        for (int tile = a->tile0; tile < a->tile1; tile++) {
            const uint8_t *w = kwk_tile_data(a->w, tile) + column_bytes(format, k0);
            for (int k = 0; k < n_copied; k += PASS) {
                const uint8_t *p = w + column_bytes(format, k);
                strip_group(format, m, p, x + (size_t)k * (size_t)m, least(PASS, n_copied - k),
                            a->y + (size_t)tile * KWK_TILE, a->ldy, k0 + k == 0, p + AHEAD,
                            format == KWK_F32 ? 4 : 2);
            }
        }
    }
}

/* The columns of one tile that several groups use while they are near the core. */
typedef struct block {
    const float *w;        // expanded
    const float *x;        // copied activations: m * n_copied, token t's group from t * n_copied on
    int k, n_copied, cols; // columns k .. k+cols of n_copied
    float *y;
    size_t ldy;
    int first;
    const uint8_t *next; // the block after this one, as stored
    int n_next;          // groups that prefetch it, DEPTH * 64 bytes each
} block;

/* The same code for every format. The groups that need not prefetch ask for what they read. */
static void block_groups(const block *b, int m)
{
    const int groups = (m + GROUP - 1) / GROUP;

    for (int g = 0; g < groups; g++) {
        const int t = part_start(m, groups, g), n = part_start(m, groups, g + 1) - t;
        const uint8_t *w = (const uint8_t *)b->w;
        strip_group(KWK_F32, n, w,
                    b->x + (size_t)t * (size_t)b->n_copied + (size_t)b->k * (size_t)n, b->cols,
                    b->y + (size_t)t * b->ldy, b->ldy, b->first,
                    g < b->n_next ? b->next + (size_t)g * DEPTH * 64 : w, 2);
    }
}

/* Tokens t0 .. t0+m, GROUP < m <= BATCH. */
INLINE void several_groups(kwk_format format, const kwk_matmul *a, int t0, int m)
{
    float *const wbuf = a->scratch, *const xbuf = wbuf + DEPTH * KWK_TILE;
    const int cols = a->w->cols_pad;
    const int groups = (m + GROUP - 1) / GROUP;
    const int room = (ROOM - DEPTH * KWK_TILE) / m / DEPTH * DEPTH;

    for (int k0 = 0; k0 < cols; k0 += room) {
        block b = {.x = xbuf, .n_copied = least(room, cols - k0), .ldy = a->ldy};
        b.n_next = format == KWK_F32 ? 2 : 1;
        for (int g = 0; g < groups; g++) {
            const int t = part_start(m, groups, g), n = part_start(m, groups, g + 1) - t;
            copy_group(xbuf + (size_t)t * (size_t)b.n_copied, a->x + (size_t)(t0 + t) * a->ldx + k0,
                       a->ldx, n, b.n_copied);
        }
        for (int tile = a->tile0; tile < a->tile1; tile++) {
            const uint8_t *w = kwk_tile_data(a->w, tile) + column_bytes(format, k0);
            b.y = a->y + (size_t)t0 * a->ldy + (size_t)tile * KWK_TILE;
            for (b.k = 0; b.k < b.n_copied; b.k += DEPTH) {
                const uint8_t *p = w + column_bytes(format, b.k);
                b.cols = least(DEPTH, b.n_copied - b.k);
                b.first = k0 + b.k == 0;
                b.next = b.k + DEPTH < b.n_copied ? p + column_bytes(format, DEPTH)
                                                  : w + column_bytes(format, cols);
                if (format == KWK_F32) {
                    b.w = (const float *)p;
                } else {
                    expand(format, wbuf, p, b.cols);
                    b.w = wbuf;
                }
                block_groups(&b, m);
            }
        }
    }
}

/* small and gemm. */
INLINE void matmul(kwk_format format, const kwk_matmul *a)
{
    const int batches = (a->m + BATCH - 1) / BATCH;

    if (a->m <= GROUP) {
        one_group(format, a);
        return;
    }
    for (int i = 0; i < batches; i++) {
        const int t = part_start(a->m, batches, i);
        several_groups(format, a, t, part_start(a->m, batches, i + 1) - t);
    }
}

#endif
