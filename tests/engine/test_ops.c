/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/ops.c: every tile is computed once whatever the team and the form, in one run per thread
 * where memory is the limit; forms by the number of tokens.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/ops.h"
#include "tests/support/check.h"

enum { MAX_THREADS = 7, MAX_TILES = 200 };

typedef struct tally {
    int times[4][MAX_TILES];
    int calls[4]; // of one thread
    uint64_t bytes;
    const kwk_mat *const *mats;
} tally;

static void count(void *arg, int i, int tile0, int tile1)
{
    tally *t = arg;

    assert_true(tile0 < tile1);
    t->calls[i]++;
    for (int k = tile0; k < tile1; k++)
        t->times[i][k]++;
    t->bytes +=
        (uint64_t)(tile1 - tile0) * kwk_mat_tile_bytes(t->mats[i]->format, t->mats[i]->cols_pad);
}

static kwk_mat mat_of(int rows, int cols, kwk_format format)
{
    return (kwk_mat){.format = format,
                     .rows = rows,
                     .cols = cols,
                     .rows_pad = kwk_pad32(rows),
                     .cols_pad = kwk_pad32(cols)};
}

static void check_split(const kwk_mat *const *mats, int n, int m)
{
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        atomic_int next = 0;
        tally t = {.mats = mats};
        uint64_t total = 0, largest_tile = 0, most = 0;

        for (int id = 0; id < threads; id++) { // one after the other: what is taken stays taken
            const kwk_worker w = {id, threads, NULL};

            memset(t.calls, 0, sizeof t.calls);
            t.bytes = 0;
            kwk_ops_each_tile(mats, n, m, &w, &next, count, &t);
            if (kwk_ops_form(m) != KWK_GEMM)
                for (int i = 0; i < n; i++)
                    assert_true(t.calls[i] <= 1); // one contiguous run of each matrix
            if (t.bytes > most)
                most = t.bytes;
        }
        for (int i = 0; i < n; i++) {
            const uint64_t tile = kwk_mat_tile_bytes(mats[i]->format, mats[i]->cols_pad);
            const int tiles = mats[i]->rows_pad / KWK_TILE;

            for (int k = 0; k < MAX_TILES; k++)
                assert_int_equal(t.times[i][k], k < tiles);
            total += tile * (uint64_t)tiles;
            if (tile > largest_tile)
                largest_tile = tile;
        }
        if (kwk_ops_form(m) != KWK_GEMM) // nobody has more than its share and a tile's rounding
            assert_true(most <= total / (uint64_t)threads + largest_tile);
    }
}

static void every_tile_is_computed_once(void **state)
{
    const kwk_mat q = mat_of(576, 576, KWK_I4), k = mat_of(192, 576, KWK_I8),
                  v = mat_of(192, 576, KWK_I8), one = mat_of(5, 64, KWK_F32),
                  big = mat_of(6000, 32, KWK_BF16);
    const kwk_mat *const qkv[] = {&q, &k, &v}, *const single[] = {&one}, *const large[] = {&big},
                         *const mixed[] = {&one, &big, &one, &q};
    const int tokens[] = {1, 2, 8, 9, 300};

    for (size_t i = 0; i < CHECK_COUNT(tokens); i++) {
        check_split(qkv, 3, tokens[i]);
        check_split(single, 1, tokens[i]);
        check_split(large, 1, tokens[i]);
        check_split(mixed, 4, tokens[i]);
    }
}

static void the_form_follows_the_number_of_tokens(void **state)
{
    assert_int_equal(kwk_ops_form(1), KWK_GEMV);
    assert_int_equal(kwk_ops_form(2), KWK_SMALL_BATCH);
    assert_int_equal(kwk_ops_form(8), KWK_SMALL_BATCH);
    assert_int_equal(kwk_ops_form(9), KWK_GEMM);
    assert_int_equal(kwk_ops_form(4096), KWK_GEMM);
}

static void shares_cover_everything_without_overlap(void **state)
{
    for (int n = 0; n < 40; n++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            int at = 0;
            for (int id = 0; id < threads; id++) {
                const kwk_worker w = {id, threads, NULL};
                int lo, hi;
                kwk_ops_share(&w, n, &lo, &hi);
                assert_int_equal(lo, at);
                assert_true(hi >= lo && hi - lo <= n / threads + 1);
                at = hi;
            }
            assert_int_equal(at, n);
        }
}

static void every_form_gives_the_same_bits(void **state)
{
    enum { ROWS = 70, COLS = 96, M = 12 };
    static const kwk_format formats[] = {KWK_F32, KWK_F16, KWK_BF16, KWK_I8, KWK_I4};
    uint64_t seed = 9;
    float *x = check_alloc(M * 112 * sizeof *x), *y = check_alloc(M * 112 * sizeof *y);
    float *want = check_alloc(112 * sizeof *want), *src = check_alloc(ROWS * COLS * sizeof *src);
    int8_t *q = check_alloc(M * 128);
    float *scale = check_alloc(M * 3 * sizeof *scale);
    int32_t *sum = check_alloc(M * 3 * sizeof *sum);
    void *scratch = check_alloc(KWK_MATMUL_SCRATCH);
    kwk_kernels k;

    kwk_kernels_init(&k, kwk_cpu_flags());
    check_fill_f32(x, M * 112, CHECK_UNIFORM, &seed);
    check_fill_f32(src, ROWS * COLS, CHECK_UNIFORM, &seed);
    const kwk_input in = {x, 112, {q, scale, sum, 128, 3}};
    for (int i = 0; i < M; i++) {
        kwk_ops_quantise(&k, &in, i, 0, 64); // in two pieces, as the MLP does it
        kwk_ops_quantise(&k, &in, i, 64, 32);
    }
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        kwk_mat w = mat_of(ROWS, COLS, formats[f]);

        w.exponent = kwk_pack_exponent(formats[f], 1);
        w.data = check_alloc(3 * kwk_mat_tile_bytes(formats[f], w.cols_pad));
        for (int t = 0; t < 3; t++)
            kwk_pack_tile(&w, t, src + t * 32 * COLS, COLS, t < 2 ? 32 : ROWS - 64, NULL);
        for (int m = 1; m <= M; m++) {
            kwk_ops_matmul(&k, &w, 0, 3, m, &in, y, 112, scratch);
            for (int t = 0; t < m; t++) { // token t alone
                kwk_input only = in;
                only.x += t * 112;
                only.q.q += t * 128;
                only.q.scale += t * 3;
                only.q.sum += t * 3;
                for (int tile = 0; tile < 3; tile++)
                    kwk_ops_matmul(&k, &w, tile, tile + 1, 1, &only, want, 112, scratch);
                check_same_f32(y + t * 112, want, ROWS, "%s, token %d of %d",
                               kwk_format_name(formats[f]), t, m);
            }
        }
        check_free(w.data);
    }
    check_free(scratch);
    check_free(sum);
    check_free(scale);
    check_free(q);
    check_free(src);
    check_free(want);
    check_free(y);
    check_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_is_computed_once),
        cmocka_unit_test(the_form_follows_the_number_of_tokens),
        cmocka_unit_test(shares_cover_everything_without_overlap),
        cmocka_unit_test(every_form_gives_the_same_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
