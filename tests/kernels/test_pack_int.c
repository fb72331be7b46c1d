/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing and gather of I8, I6 and I4 (pack.c, pack_i8.c, pack_i6.c, pack_i4.c): the layout, byte
 * by byte as kernels.h describes it, the error of the search against figures and bounds, hostile
 * values, and that nothing but the tile is written.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/half.h"

static const kwk_format formats[] = {KWK_I8, KWK_I6, KWK_I4};
static const int sizes[] = {1, 31, 32, 37, 64, 99, 172, 256, 257, 576};

/* A matrix of one tile. */
typedef struct tile {
    kwk_mat w;
    size_t bytes;
    float *row; // (cols_pad) where gather writes
} tile;

static tile tile_new(kwk_format format, int rows, int cols)
{
    const int cols_pad = kwk_pad32(cols);
    const size_t bytes = kwk_mat_tile_bytes(format, cols_pad);

    return (tile){{format, rows, cols, 32, cols_pad, 0, check_alloc(bytes)},
                  bytes,
                  check_alloc((size_t)cols_pad * sizeof(float))};
}

static void tile_free(tile *t)
{
    check_free(t->row);
    check_free(t->w.data);
}

static void pack(tile *t, const float *src, size_t ld, const float *importance)
{
    float amax = 0;

    for (int r = 0; r < t->w.rows; r++)
        for (int k = 0; k < t->w.cols; k++)
            amax = fmaxf(amax, fabsf(src[(size_t)r * ld + (size_t)k]));
    t->w.exponent = kwk_pack_exponent(t->w.format, amax);
    assert_in_range(t->w.exponent + 126, 0, 253);
    kwk_pack_tile(&t->w, 0, src, ld, t->w.rows, importance);
}

static const float *gather(tile *t, int row)
{
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    kwk_kernels_gather(&k, t->w.format)(t->row, &t->w, row);
    return t->row;
}

static float normal(uint64_t *seed) // sum of 12 uniforms
{
    float v = 0;

    for (int i = 0; i < 12; i++)
        v += check_random_f32(seed) / 2;
    return v;
}

/* sum p e e of a row; adds sum p w w to *norm. */
static double row_error(tile *t, const float *src, size_t ld, int row, const float *importance,
                        double *norm)
{
    const float *y = gather(t, row);
    double err = 0;

    for (int k = 0; k < t->w.cols; k++) {
        const double v = src[(size_t)row * ld + (size_t)k], p = importance ? importance[k] : 1;
        err += p * (y[k] - v) * (y[k] - v);
        *norm += p * v * v;
    }
    return err;
}

/* Reads the bytes of the layout in kernels.h again, with no help of the kernels. */
static float element(const kwk_mat *w, int row, int k)
{
    const int g = k / 32, super = g / 8, n_groups = w->cols_pad / 32;
    const int n = n_groups - 8 * super < 8 ? n_groups - 8 * super : 8, r = row % 16, c = k % 32;
    const size_t panel = kwk_mat_tile_bytes(w->format, w->cols_pad) / 2;
    const uint8_t *p = w->data + (row >= 16 ? panel : 0);
    uint16_t h;
    int code;

    p += (size_t)super * (w->format == KWK_I8   ? 32 + 512 * 8
                          : w->format == KWK_I6 ? 32 + (16 + 384) * 8
                                                : 32 + (16 + 256) * 8);
    memcpy(&h, p + 2 * r, 2);
    if (w->format == KWK_I8) {
        code = p[32 + (k % 256 / 4) * 64 + r * 4 + k % 4] - 128;
        assert_in_range(code + 127, 0, 254);
    } else if (w->format == KWK_I6) {
        const int sc = p[32 + (g % 8) * 16 + r], s = sc / 4 - 32, o = sc % 4;
        const uint8_t *at = p + 32 + 16 * n + (g % 8 * 2 + c / 16) * 192 + r * 4 + c % 4;
        const int low = at[c % 16 / 8 * 64] >> (c % 8 < 4 ? 0 : 4) & 15;
        assert_in_range(s + 31, 0, 62);
        code = s * (low + 16 * (at[128] >> c % 16 / 4 * 2 & 3) + 4 * o - KWK_I6_CENTER);
    } else {
        const int sc = p[32 + (g % 8) * 16 + r], s = sc / 8 - 16, o = sc % 8;
        const int byte = p[32 + 16 * n + (g % 8) * 256 + c / 8 * 64 + r * 4 + c % 4];
        assert_in_range(s + 15, 0, 30);
        code = s * (kwk_i4_grid[c % 8 < 4 ? byte % 16 : byte / 16] + 2 * o - KWK_I4_CENTER);
    }
    return ldexpf((float)code * kwk_f16_to_f32(h), w->exponent);
}

static void elements_lie_where_the_layout_says(void **state)
{
    static float src[32 * 600];
    uint64_t seed = 3;

    check_fill_f32(src, CHECK_COUNT(src), CHECK_UNIFORM, &seed);
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        for (size_t s = 0; s < CHECK_COUNT(sizes); s++) {
            const int rows = 1 + (int)(s * 7 % 32);
            tile t = tile_new(formats[f], rows, sizes[s]);
            pack(&t, src, 600, NULL);
            for (int r = 0; r < 32; r++) {
                const float *y = gather(&t, r);
                for (int k = 0; k < t.w.cols_pad; k++) {
                    const float v = element(&t.w, r, k), want = k < t.w.cols ? v : 0;
                    assert_true(y[k] == want);
                    assert_true(r < rows || v == 0);
                }
            }
            tile_free(&t);
        }
    }
}

static void a_row_does_not_depend_on_its_neighbours(void **state)
{
    static float src[32 * 600];
    uint64_t seed = 4;

    check_fill_f32(src, CHECK_COUNT(src), CHECK_UNIFORM, &seed);
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        tile all = tile_new(formats[f], 32, 576), one = tile_new(formats[f], 1, 576);
        pack(&all, src, 600, NULL);
        for (int r = 0; r < 32; r++) {
            one.w.exponent = all.w.exponent;
            kwk_pack_tile(&one.w, 0, src + r * 600, 600, 1, NULL);
            check_same_f32(gather(&one, 0), gather(&all, r), 576, "%s, row %d",
                           kwk_format_name(formats[f]), r);
        }
        tile_free(&one);
        tile_free(&all);
    }
}

static void a_power_of_two_moves_only_the_exponent(void **state)
{
    static float src[32 * 300], moved[32 * 300];
    uint64_t seed = 5;

    check_fill_f32(src, CHECK_COUNT(src), CHECK_UNIFORM, &seed);
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        for (int e = -75; e <= 100; e += 25) {
            tile a = tile_new(formats[f], 32, 300), b = tile_new(formats[f], 32, 300);
            for (size_t i = 0; i < CHECK_COUNT(src); i++)
                moved[i] = ldexpf(src[i], e);
            pack(&a, src, 300, NULL);
            pack(&b, moved, 300, NULL);
            assert_int_equal(b.w.exponent, a.w.exponent + e);
            check_same(b.w.data, a.w.data, a.bytes, "%s, 2^%d", kwk_format_name(formats[f]), e);
            tile_free(&b);
            tile_free(&a);
        }
    }
}

static void normal_rows_lose_less_than_the_stated_part(void **state)
{
    static float src[32 * 1024];
    const double most[] = {0.55e-4, 3.6e-4, 46.5e-4}; // measured: 0.47e-4, 3.45e-4, 45.5e-4
    uint64_t seed = 6;

    for (size_t i = 0; i < CHECK_COUNT(src); i++)
        src[i] = normal(&seed) * 0.02f;
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        tile t = tile_new(formats[f], 32, 1024);
        double err = 0, norm = 0;
        pack(&t, src, 1024, NULL);
        for (int r = 0; r < 32; r++)
            err += row_error(&t, src, 1024, r, NULL, &norm);
        if (!(err < most[f] * norm))
            fail_msg("%s: %g of the square", kwk_format_name(formats[f]), err / norm);
        tile_free(&t);
    }
}

/* Plain rounding with the scale that reaches the largest |w| of a superblock is off by half a step
 * at most; a search must not be worse in the square. Half the widest step of I4 is 8.5 of 61; I6
 * without offset reaches 31 steps. */
static void a_superblock_loses_no_more_than_plain_rounding(void **state)
{
    static float src[32 * 600];
    const double half_step[] = {0.502 / 127, 0.52 / 31, 8.5 / 61};
    uint64_t seed = 7;

    for (int fill = CHECK_UNIFORM; fill <= CHECK_WIDE; fill++) {
        check_fill_f32(src, CHECK_COUNT(src), (check_fill)fill, &seed);
        for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
            tile t = tile_new(formats[f], 32, 576);
            pack(&t, src, 600, NULL);
            for (int r = 0; r < 32; r++) {
                const float *y = gather(&t, r), *w = src + r * 600;
                for (int k0 = 0; k0 < 576; k0 += 256) {
                    const int k1 = k0 + 256 < 576 ? k0 + 256 : 576;
                    double err = 0, amax = 0;
                    for (int k = k0; k < k1; k++) {
                        err += ((double)y[k] - w[k]) * ((double)y[k] - w[k]);
                        amax = fmax(amax, fabs((double)w[k]));
                    }
                    assert_true(sqrt(err / (k1 - k0)) <= half_step[f] * amax);
                }
            }
            tile_free(&t);
        }
    }
}

static void importance_lowers_the_error_it_weighs(void **state)
{
    static float src[32 * 576], importance[576];
    const double at_most[] = {0.97, 0.85, 0.85}; // of the error without it
    uint64_t seed = 8;

    for (size_t i = 0; i < CHECK_COUNT(src); i++)
        src[i] = normal(&seed);
    for (size_t k = 0; k < CHECK_COUNT(importance); k++)
        importance[k] = k % 17 ? exp2f(2 * normal(&seed)) : 0;
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        tile plain = tile_new(formats[f], 32, 576), weighed = tile_new(formats[f], 32, 576);
        double before = 0, after = 0, norm = 0;
        pack(&plain, src, 576, NULL);
        pack(&weighed, src, 576, importance);
        for (int r = 0; r < 32; r++) {
            before += row_error(&plain, src, 576, r, importance, &norm);
            after += row_error(&weighed, src, 576, r, importance, &norm);
        }
        if (!(after < at_most[f] * before))
            fail_msg("%s: %g of before", kwk_format_name(formats[f]), after / before);
        tile_free(&weighed);
        tile_free(&plain);
    }
}

static void equal_importance_of_any_size_changes_nothing(void **state)
{
    static float src[32 * 99], importance[99];
    static const float sizes_of_it[] = {0, 1e-30f, 1, 1e30f, FLT_MAX};
    uint64_t seed = 9;

    check_fill_f32(src, CHECK_COUNT(src), CHECK_UNIFORM, &seed);
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        tile plain = tile_new(formats[f], 32, 99), t = tile_new(formats[f], 32, 99);
        pack(&plain, src, 99, NULL);
        for (size_t i = 0; i < CHECK_COUNT(sizes_of_it); i++) {
            for (int k = 0; k < 99; k++)
                importance[k] = sizes_of_it[i];
            pack(&t, src, 99, importance);
            check_same(t.w.data, plain.w.data, plain.bytes, "%s, importance %g",
                       kwk_format_name(formats[f]), (double)sizes_of_it[i]);
        }
        tile_free(&t);
        tile_free(&plain);
    }
}

/* Rows of zeros, one weight among zeros, one far above the rest, subnormal and huge ones. */
static void odd_rows_come_back_close(void **state)
{
    enum { COLS = 320 };
    static float src[32 * COLS];
    const double most[3][4] = {
        {1e-4, 1e-6, 2e-3, 1e-4}, {1e-3, 1e-5, 1e-2, 1e-3}, {0.01, 1e-4, 0.1, 0.01}};
    uint64_t seed = 10;

    for (int e = -112; e <= 119; e += 21) {
        for (int r = 0; r < 32; r++) {
            float *row = src + r * COLS;
            for (int k = 0; k < COLS; k++)
                row[k] = r % 4 == 1 ? 0 : ldexpf(check_random_f32(&seed), e);
            if (r % 4 == 1 && r > 8)
                row[r * 7] = ldexpf(r % 8 == 1 ? 1 : -1, e);
            if (r % 4 == 2)
                row[r * 5] = ldexpf(r % 8 == 2 ? 1 : -1, e + 7);
            if (r % 4 == 3) // small beside the tensor's largest
                for (int k = 0; k < COLS; k++)
                    row[k] = ldexpf(row[k], -10);
        }
        for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
            tile t = tile_new(formats[f], 32, COLS);
            pack(&t, src, COLS, NULL);
            for (int r = 0; r < 32; r++) {
                double norm = 0;
                const double err = row_error(&t, src, COLS, r, NULL, &norm);
                if (!(err <= most[f][r % 4] * norm))
                    fail_msg("%s, 2^%d, row %d: %g of the square", kwk_format_name(formats[f]), e,
                             r, err / norm);
            }
            tile_free(&t);
        }
    }
}

/* A weight that counts for nothing must not coarsen the others. */
static void an_outlier_without_importance_is_cut_off(void **state)
{
    enum { COLS = 256 };
    static float src[32 * COLS], importance[COLS];
    const double most[] = {2e-4, 6e-4, 60e-4};
    uint64_t seed = 11;

    for (int k = 0; k < COLS; k++)
        importance[k] = k % 32 != 5;
    for (int i = 0; i < 32 * COLS; i++)
        src[i] = i % 32 == 5 ? 30 * check_random_f32(&seed) : normal(&seed);
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        tile t = tile_new(formats[f], 32, COLS);
        double err = 0, norm = 0;
        pack(&t, src, COLS, importance);
        for (int r = 0; r < 32; r++)
            err += row_error(&t, src, COLS, r, importance, &norm);
        if (!(err <= most[f] * norm))
            fail_msg("%s: %g of the square", kwk_format_name(formats[f]), err / norm);
        tile_free(&t);
    }
}

/* Whatever a file holds: codes stay in range (element() checks) and only the tile is written. */
static void hostile_values_are_stored_as_something(void **state)
{
    static float src[32 * 99], importance[99];
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0, 0x1p-149f};
    uint64_t seed = 12;

    for (int round = 0; round < 20; round++) {
        check_fill_f32(src, CHECK_COUNT(src), CHECK_EXTREME, &seed);
        check_fill_f32(importance, CHECK_COUNT(importance), CHECK_EXTREME, &seed);
        for (int i = 0; i < 200; i++)
            src[check_random_int(&seed, 0, 32 * 99 - 1)] = odd[i % 8];
        for (int i = 0; i < 10; i++)
            importance[check_random_int(&seed, 0, 98)] = odd[i % 8];
        for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
            tile t = tile_new(formats[f], 32, 99);
            for (int e = -126; e <= 127; e += 23) {
                t.w.exponent = e;
                kwk_pack_tile(&t.w, 0, src, 99, 32, importance);
                for (int r = 0; r < 32; r++)
                    for (int k = 0; k < 99; k++)
                        assert_false(isnan(element(&t.w, r, k)));
            }
            tile_free(&t);
        }
    }
}

static void the_exponent_puts_the_largest_weight_high(void **state)
{
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        assert_int_equal(kwk_pack_exponent(formats[f], 0), 0);
        for (int e = -149; e <= 127; e++) {
            const float amax = ldexpf(1, e);
            const int got = kwk_pack_exponent(formats[f], amax);
            assert_in_range(got + 126, 0, 253);
            assert_true(e < -106 ? got == -126 : ldexpf(amax, -got) == 0x1p20f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_lie_where_the_layout_says),
        cmocka_unit_test(a_row_does_not_depend_on_its_neighbours),
        cmocka_unit_test(a_power_of_two_moves_only_the_exponent),
        cmocka_unit_test(normal_rows_lose_less_than_the_stated_part),
        cmocka_unit_test(a_superblock_loses_no_more_than_plain_rounding),
        cmocka_unit_test(importance_lowers_the_error_it_weighs),
        cmocka_unit_test(equal_importance_of_any_size_changes_nothing),
        cmocka_unit_test(odd_rows_come_back_close),
        cmocka_unit_test(an_outlier_without_importance_is_cut_off),
        cmocka_unit_test(hostile_values_are_stored_as_something),
        cmocka_unit_test(the_exponent_puts_the_largest_weight_high),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
