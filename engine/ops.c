/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels × rows × threads. Every output element is one fixed chain of operations inside one kernel
 * call, so any split by tiles and any form give the same bits (invariant I1).
 *
 * A test build defines KWK_BREAK_ORDER: gemm then sums in another order, and the invariance suite
 * must notice.
 */
#include "engine/ops.h"

#ifdef KWK_BREAK_ORDER
#include "tests/support/broken_gemm.h"
#endif

kwk_form kwk_ops_form(int m)
{
    return m == 1 ? KWK_GEMV : m <= KWK_SMALL ? KWK_SMALL_BATCH : KWK_GEMM;
}

void kwk_ops_matmul(const kwk_kernels *k, const kwk_mat *w, int tile0, int tile1, int m,
                    const kwk_input *in, float *y, size_t ldy, void *scratch)
{
    const int is_int = kwk_format_is_int(w->format);
    const kwk_form form = kwk_ops_form(m);
    const kwk_matmul a = {
        .w = w,
        .tile0 = tile0,
        .tile1 = tile1,
        .m = m,
        .x = is_int ? NULL : in->x,
        .ldx = in->ldx,
        .q = is_int ? &in->q : NULL,
        .y = y,
        .ldy = ldy,
        .scratch = scratch,
    };

#ifdef KWK_BREAK_ORDER
    if (form == KWK_GEMM) {
        broken_gemm(k, &a);
        return;
    }
#endif
    kwk_kernels_matmul(k, w->format, form)(&a);
}

void kwk_ops_quantise(const kwk_kernels *k, const kwk_input *in, int i, int col0, int n)
{
    const kwk_qact *q = &in->q;
    const size_t row = (size_t)i, col = (size_t)col0, group = col / KWK_GROUP;

    k->quant_act(q->q + row * q->ldq + col, q->scale + row * q->lds + group,
                 q->sum + row * q->lds + group, in->x + row * in->ldx + col, n);
}

void kwk_ops_share(const kwk_worker *w, int n, int *lo, int *hi)
{
    *lo = (int)((int64_t)n * w->id / w->n);
    *hi = (int)((int64_t)n * (w->id + 1) / w->n);
}

static int tiles_of(const kwk_mat *m)
{
    return m->rows_pad / KWK_TILE;
}

/* Tiles first … last-1 of the matrices laid end to end. */
static void run(const kwk_mat *const *mats, int n_mats, int first, int last, kwk_tiles_fn *fn,
                void *arg)
{
    int base = 0;

    for (int i = 0; i < n_mats && base < last; i++) {
        const int n = tiles_of(mats[i]);
        const int lo = first > base ? first - base : 0;
        const int hi = last - base < n ? last - base : n;

        if (lo < hi)
            fn(arg, i, lo, hi);
        base += n;
    }
}

/* The tile at which part/parts of the bytes lie behind. */
static int tile_at(const kwk_mat *const *mats, int n_mats, int part, int parts)
{
    uint64_t total = 0, behind = 0;
    int base = 0;

    for (int i = 0; i < n_mats; i++)
        total +=
            (uint64_t)tiles_of(mats[i]) * kwk_mat_tile_bytes(mats[i]->format, mats[i]->cols_pad);
    const uint64_t want = total * (uint64_t)part / (uint64_t)parts;
    for (int i = 0; i < n_mats; i++) {
        const uint64_t tile = kwk_mat_tile_bytes(mats[i]->format, mats[i]->cols_pad);
        const uint64_t bytes = (uint64_t)tiles_of(mats[i]) * tile;

        if (want < behind + bytes)
            return base + (int)((want - behind + tile / 2) / tile);
        behind += bytes;
        base += tiles_of(mats[i]);
    }
    return base;
}

enum { PIECES_PER_THREAD = 8, MOST_TILES = 8 };

void kwk_ops_each_tile(const kwk_mat *const *mats, int n_mats, int m, const kwk_worker *w,
                       atomic_int *next, kwk_tiles_fn *fn, void *arg)
{
    int total = 0, piece, at;

    if (kwk_ops_form(m) != KWK_GEMM) {
        run(mats, n_mats, tile_at(mats, n_mats, w->id, w->n),
            tile_at(mats, n_mats, w->id + 1, w->n), fn, arg);
        return;
    }
    for (int i = 0; i < n_mats; i++)
        total += tiles_of(mats[i]);
    piece = total / (PIECES_PER_THREAD * w->n);
    piece = piece < 1 ? 1 : piece > MOST_TILES ? MOST_TILES : piece;
    while ((at = atomic_fetch_add_explicit(next, piece, memory_order_relaxed)) < total)
        run(mats, n_mats, at, at + piece < total ? at + piece : total, fn, arg);
}
