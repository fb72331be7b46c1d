/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix × activations of the float formats: the reference against the contract computed from the
 * rows themselves and in float64, then every variant and form against the reference, bit for bit.
 */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/half.h"

static const kwk_format formats[] = {KWK_F32, KWK_F16, KWK_BF16};

/* A matrix packed from `src`, activations with their padding, and places for results. */
typedef struct problem {
    kwk_mat w;
    int m;
    float *src; // (rows, cols), rounded to the format
    float *x;   // (m, ldx)
    size_t ldx, ldy;
    float *want, *y; // (m, ldy)
    void *scratch;
    char name[96];
} problem;

/* As stored. What f16 cannot hold is brought to [0.5, 1) first: infinities have their own test. */
static float rounded(kwk_format format, float v)
{
    int exponent;

    switch (format) {
    case KWK_F16:
        return kwk_f16_to_f32(kwk_f32_to_f16(fabsf(v) > 65504 ? frexpf(v, &exponent) : v));
    case KWK_BF16:
        return kwk_bf16_to_f32(kwk_f32_to_bf16(fabsf(v) > 0x1.fep127f ? frexpf(v, &exponent) : v));
    default:
        return v;
    }
}

static void pack(problem *p)
{
    const int rows = p->w.rows, cols = p->w.cols;

    for (int r = 0; r < rows; r += KWK_TILE) {
        const int n_rows = rows - r < KWK_TILE ? rows - r : KWK_TILE;
        kwk_pack_tile(&p->w, r / KWK_TILE, p->src + (size_t)r * (size_t)cols, (size_t)cols, n_rows,
                      NULL);
    }
}

static void init(problem *p, kwk_format format, int rows, int cols, int m, check_fill fill_w,
                 check_fill fill_x)
{
    const int rows_pad = kwk_pad32(rows), cols_pad = kwk_pad32(cols);
    const size_t n = (size_t)rows * (size_t)cols;
    uint64_t seed = (uint64_t)rows * 7919 + (uint64_t)cols * 31 + (uint64_t)format;

    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s %dx%d, m %d", kwk_format_name(format), rows, cols, m);
    p->m = m;
    p->ldx = (size_t)cols_pad + 16;
    p->ldy = (size_t)rows_pad + 16;
    p->w = (kwk_mat){format, rows, cols, rows_pad, cols_pad, 0, NULL};
    p->w.data = check_alloc(kwk_mat_tile_bytes(format, cols_pad) * (size_t)(rows_pad / KWK_TILE));
    p->src = check_alloc(n * sizeof *p->src);
    p->x = check_alloc((size_t)m * p->ldx * sizeof *p->x);
    p->want = check_alloc((size_t)m * p->ldy * sizeof *p->want);
    p->y = check_alloc((size_t)m * p->ldy * sizeof *p->y);
    p->scratch = check_alloc(KWK_MATMUL_SCRATCH);

    check_fill_f32(p->src, n, fill_w, &seed);
    for (size_t i = 0; i < n; i++)
        p->src[i] = rounded(format, p->src[i]);
    pack(p);
    for (int t = 0; t < m; t++) {
        float *x = p->x + (size_t)t * p->ldx;
        check_fill_f32(x, (size_t)cols, fill_x, &seed);
        memset(x + cols, 0, (size_t)(cols_pad - cols) * sizeof *x);
    }
}

static void fini(problem *p)
{
    check_free(p->w.data);
    check_free(p->src);
    check_free(p->x);
    check_free(p->want);
    check_free(p->y);
    check_free(p->scratch);
}

static void run(const problem *p, kwk_matmul_fn *fn, float *y, int m, int tile0, int tile1)
{
    kwk_matmul a = {.w = &p->w, .tile0 = tile0, .tile1 = tile1, .m = m, .x = p->x, .ldx = p->ldx};

    a.y = y;
    a.ldy = p->ldy;
    a.scratch = p->scratch;
    fn(&a);
}

static void reference(problem *p)
{
    kwk_kernels ref;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    run(p, kwk_kernels_matmul(&ref, p->w.format, KWK_GEMM), p->want, p->m, 0,
        p->w.rows_pad / KWK_TILE);
}

/* One call of one variant: the tiles' rows as in p->want, everything else untouched. */
static void check_call(problem *p, kwk_matmul_fn *fn, const char *level, kwk_form form, int m,
                       int tile0, int tile1)
{
    const size_t r0 = (size_t)tile0 * KWK_TILE, r1 = (size_t)tile1 * KWK_TILE;

    check_poison(p->y, (size_t)p->m * p->ldy * sizeof *p->y);
    run(p, fn, p->y, m, tile0, tile1);
    for (int t = 0; t < p->m; t++) {
        const float *y = p->y + (size_t)t * p->ldy, *want = p->want + (size_t)t * p->ldy;
        const size_t r = t < m ? r0 : p->ldy, end = t < m ? r1 : p->ldy;
        check_poisoned(y, r * sizeof *y, "%s %s form %d, m %d, token %d before", level, p->name,
                       form, m, t);
        check_same_f32(y + r, want + r, end - r, "%s %s form %d, m %d, token %d", level, p->name,
                       form, m, t);
        check_poisoned(y + end, (p->ldy - end) * sizeof *y, "%s %s form %d, m %d, token %d after",
                       level, p->name, form, m, t);
    }
}

/* All levels and all forms that take m tokens, on all tiles and on a part of them. */
static void check_forms(problem *p, int m)
{
    const int tiles = p->w.rows_pad / KWK_TILE;

    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels k;
        kwk_kernels_init(&k, l->flags);
        for (kwk_form form = KWK_GEMV; form < KWK_FORM_END; form++) {
            kwk_matmul_fn *fn = kwk_kernels_matmul(&k, p->w.format, form);
            const int most = form == KWK_GEMV ? 1 : form == KWK_SMALL_BATCH ? KWK_SMALL : m;
            if (l->flags == KWK_CPU_NONE || m > most)
                continue;
            check_call(p, fn, l->name, form, m, 0, tiles);
            if (tiles > 1)
                check_call(p, fn, l->name, form, m, tiles / 2, tiles - tiles / 4);
        }
    }
}

static void check_problem(kwk_format format, int rows, int cols, const int *m, size_t n,
                          check_fill fill_w, check_fill fill_x)
{
    problem p;

    init(&p, format, rows, cols, m[n - 1], fill_w, fill_x);
    reference(&p);
    for (size_t i = 0; i < n; i++)
        check_forms(&p, m[i]);
    fini(&p);
}

static void reference_is_the_chain_of_the_contract(void **state)
{
    static const int rows[] = {1, 37, 99}, cols[] = {1, 37, 172};

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        for (size_t i = 0; i < CHECK_COUNT(rows) * CHECK_COUNT(cols); i++) {
            problem p;
            const check_fill fill = i % 2 ? CHECK_WIDE : CHECK_EXTREME;
            init(&p, formats[f], rows[i % 3], cols[i / 3], 3, fill, CHECK_UNIFORM);
            reference(&p);
            for (int t = 0; t < p.m; t++) {
                for (int r = 0; r < p.w.rows_pad; r++) {
                    float acc = 0;
                    for (int k = 0; k < p.w.cols_pad; k++) {
                        const float w = r < p.w.rows && k < p.w.cols
                                            ? p.src[(size_t)r * (size_t)p.w.cols + (size_t)k]
                                            : 0;
                        acc = fmaf(w, p.x[(size_t)t * p.ldx + (size_t)k], acc);
                    }
                    check_same_f32(&p.want[(size_t)t * p.ldy + (size_t)r], &acc, 1,
                                   "%s, token %d, row %d", p.name, t, r);
                }
            }
            fini(&p);
        }
    }
}

static void error_stays_within_the_bound(void **state)
{
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        problem p;
        init(&p, formats[f], 99, 2048, 2, CHECK_UNIFORM, CHECK_UNIFORM);
        reference(&p);
        for (int t = 0; t < p.m; t++) {
            for (int r = 0; r < p.w.rows; r++) {
                double sum = 0, size = 0;
                for (int k = 0; k < p.w.cols; k++) {
                    const double v = (double)p.src[(size_t)r * (size_t)p.w.cols + (size_t)k] *
                                     (double)p.x[(size_t)t * p.ldx + (size_t)k];
                    sum += v;
                    size += fabs(v);
                }
                assert_true(fabs((double)p.want[(size_t)t * p.ldy + (size_t)r] - sum) <=
                            p.w.cols * 0x1p-24 * size * 1.01);
            }
        }
        fini(&p);
    }
}

static void every_variant_and_form_has_the_bits_of_the_reference(void **state)
{
    static const int rows[] = {1, 37, 99, 172, 576}, cols[] = {1, 37, 64, 99, 172, 576, 2048};
    static const int m[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 67};

    for (size_t f = 0; f < CHECK_COUNT(formats); f++)
        for (size_t r = 0; r < CHECK_COUNT(rows); r++)
            for (size_t c = 0; c < CHECK_COUNT(cols); c++)
                check_problem(formats[f], rows[r], cols[c], m, CHECK_COUNT(m), CHECK_WIDE,
                              CHECK_WIDE);
}

static void extreme_values_have_the_bits_of_the_reference(void **state)
{
    static const check_fill fills[][2] = {{CHECK_EXTREME, CHECK_UNIFORM},
                                          {CHECK_UNIFORM, CHECK_EXTREME},
                                          {CHECK_EXTREME, CHECK_EXTREME},
                                          {CHECK_EXTREME, CHECK_ZERO}};
    static const int cols[] = {1, 5, 37, 576};
    static const int m[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 31};

    for (size_t f = 0; f < CHECK_COUNT(formats); f++)
        for (size_t c = 0; c < CHECK_COUNT(cols); c++)
            for (size_t i = 0; i < CHECK_COUNT(fills); i++)
                check_problem(formats[f], 99, cols[c], m, CHECK_COUNT(m), fills[i][0], fills[i][1]);
}

/* More tokens and more columns than a form takes at a time. */
static void blocks_of_tokens_and_columns_do_not_change_bits(void **state)
{
    static const int many[] = {191, 192, 193, 400}, few[] = {2, 8, 12, 25};

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        check_problem(formats[f], 64, 300, many, CHECK_COUNT(many), CHECK_WIDE, CHECK_WIDE);
        check_problem(formats[f], 64, 33000, few, CHECK_COUNT(few), CHECK_UNIFORM, CHECK_UNIFORM);
    }
}

static void infinities_and_nans_go_where_they_belong(void **state)
{
    static const int m[] = {1, 3, 8, 9, 13};

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        problem p;
        init(&p, formats[f], 64, 99, 13, CHECK_UNIFORM, CHECK_UNIFORM);
        p.src[3 * 99 + 7] = INFINITY;
        p.src[5 * 99 + 98] = NAN;
        p.src[40 * 99] = -INFINITY;
        p.src[40 * 99 + 50] = INFINITY;
        pack(&p);
        reference(&p);
        for (int t = 0; t < p.m; t++) {
            const float *y = p.want + (size_t)t * p.ldy;
            assert_true(isinf(y[3]) && isnan(y[5]) && !isfinite(y[40]) && isfinite(y[6]));
        }
        for (size_t i = 0; i < CHECK_COUNT(m); i++)
            check_forms(&p, m[i]);
        fini(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_chain_of_the_contract),
        cmocka_unit_test(error_stays_within_the_bound),
        cmocka_unit_test(every_variant_and_form_has_the_bits_of_the_reference),
        cmocka_unit_test(extreme_values_have_the_bits_of_the_reference),
        cmocka_unit_test(blocks_of_tokens_and_columns_do_not_change_bits),
        cmocka_unit_test(infinities_and_nans_go_where_they_belong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
