/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing and gather of the float formats: rows come back rounded once, padding is zero, and only
 * the tile is written. The layout itself is checked element by element against kernels.h.
 */
#include "tests/support/check.h"

#include <stdio.h>

#include "kernels/half.h"

static const kwk_format formats[] = {KWK_F32, KWK_F16, KWK_BF16};
static const int sizes[] = {1, 31, 32, 37, 64, 99};

static float rounded(kwk_format format, float v)
{
    switch (format) {
    case KWK_F16:
        return kwk_f16_to_f32(kwk_f32_to_f16(v));
    case KWK_BF16:
        return kwk_bf16_to_f32(kwk_f32_to_bf16(v));
    default:
        return v;
    }
}

/* Three tiles of a matrix; the middle one gets n_rows rows. */
static void check_tile(kwk_format format, int n_rows, int cols)
{
    const int cols_pad = kwk_pad32(cols);
    const size_t bytes = kwk_mat_tile_bytes(format, cols_pad), ld = (size_t)cols + 3;
    uint64_t seed = (uint64_t)(n_rows * 1000 + cols);
    float *src = check_alloc(32 * ld * sizeof *src);
    float *y = check_alloc((size_t)cols_pad * sizeof *y);
    kwk_mat w = {format, 96, cols, 96, cols_pad, 0, check_alloc(3 * bytes)};
    kwk_kernels k;
    char name[64];

    snprintf(name, sizeof name, "%s, %d rows, %d columns", kwk_format_name(format), n_rows, cols);
    check_fill_f32(src, (size_t)(n_rows - 1) * ld + (size_t)cols, CHECK_EXTREME, &seed);
    kwk_kernels_init(&k, KWK_CPU_NONE);
    assert_int_equal(kwk_pack_exponent(format, 3.0f), 0);
    kwk_pack_tile(&w, 1, src, ld, n_rows, NULL);

    check_poisoned(w.data, bytes, "%s, tile before", name);
    check_poisoned(w.data + 2 * bytes, bytes, "%s, tile after", name);
    for (int r = 0; r < 32; r++) {
        kwk_kernels_gather(&k, format)(y, &w, 32 + r);
        for (int c = 0; c < cols_pad; c++) {
            const float v = r < n_rows && c < cols ? src[(size_t)r * ld + (size_t)c] : 0;
            const float want = rounded(format, v);
            check_same_f32(&y[c], &want, 1, "%s, row %d, column %d", name, r, c);
        }
    }
    check_free(w.data);
    check_free(y);
    check_free(src);
}

static void packed_rows_come_back_rounded_once(void **state)
{
    for (size_t f = 0; f < CHECK_COUNT(formats); f++)
        for (size_t i = 0; i < CHECK_COUNT(sizes); i++)
            for (int n_rows = 1; n_rows <= 32; n_rows += n_rows < 30 ? 5 : 1)
                check_tile(formats[f], n_rows, sizes[i]);
}

static void elements_lie_where_the_layout_says(void **state)
{
    enum { COLS = 64 };
    static float src[32 * COLS];
    static _Alignas(64) uint8_t data[32 * COLS * 4];
    kwk_mat w = {KWK_F32, 32, COLS, 32, COLS, 0, data};

    for (int i = 0; i < 32 * COLS; i++)
        src[i] = (float)i; // row * 64 + column, exact in f16
    kwk_pack_tile(&w, 0, src, COLS, 32, NULL);
    for (int k = 0; k < COLS; k++)
        for (int r = 0; r < 32; r++)
            assert_true(((float *)data)[k * 32 + r] == (float)(r * COLS + k));

    w.format = KWK_F16;
    kwk_pack_tile(&w, 0, src, COLS, 32, NULL);
    for (int k = 0; k < COLS; k++)
        for (int r = 0; r < 32; r++)
            assert_true(kwk_f16_to_f32(((uint16_t *)data)[k * 32 + r]) == (float)(r * COLS + k));

    w.format = KWK_BF16;
    for (int i = 0; i < 32 * COLS; i++)
        src[i] = (float)(i / COLS * 8 + i % 8); // < 256
    kwk_pack_tile(&w, 0, src, COLS, 32, NULL);
    for (int k = 0; k < COLS; k++)
        for (int r = 0; r < 32; r++)
            assert_true(kwk_bf16_to_f32(((uint16_t *)data)[k / 2 * 64 + r * 2 + k % 2]) ==
                        (float)(r * 8 + k % 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_rows_come_back_rounded_once),
        cmocka_unit_test(elements_lie_where_the_layout_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
