/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of I8, I6 and I4 matrices with activations: the reference against the contract in
 * float64, every variant and form against the reference bit for bit, for any number of tokens, and
 * nothing written but the rows of the tiles asked for.
 */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/half.h"

enum { TOKENS = 67 };

static const kwk_format formats[] = {KWK_I8, KWK_I6, KWK_I4};
static const int all_rows[] = {1, 37, 99, 172, 576};
static const int all_cols[] = {1, 37, 64, 99, 172, 320, 576, 896, 2048};
static const int all_tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 67};

/* What the bytes of the weights and the activations are. */
typedef enum filling {
    ANY,          // every byte pattern a file could hold
    WEIGHTS_HIGH, // the largest products, all of one sign, in int16 and int32
    WEIGHTS_LOW,
    FILLINGS
} filling;

typedef struct problem {
    kwk_mat w;
    kwk_qact q;
    float *y, *want; // (TOKENS, ldy), (TOKENS, rows_pad)
    size_t ldy;
    void *scratch;
} problem;

/* Bytes of a panel; scales of either sign, 0 and subnormal ones among them. */
static void fill_weights(kwk_mat *w, filling f, uint64_t *seed)
{
    const size_t bytes = kwk_mat_tile_bytes(w->format, w->cols_pad) / 2;
    const int groups = w->cols_pad / KWK_GROUP;

    for (int panel = 0; panel < w->rows_pad / KWK_PANEL; panel++) {
        uint8_t *p = w->data + (size_t)panel * bytes;

        for (int g = 0; g < groups; g += 8) {
            const int n = groups - g < 8 ? groups - g : 8;
            const size_t rest = (size_t)n * (w->format == KWK_I8   ? 512
                                             : w->format == KWK_I6 ? 400
                                                                   : 272);

            for (int r = 0; r < KWK_PANEL; r++) {
                const float s = check_random_int(seed, 0, 9) ? check_random_f32(seed) * 0.01f
                                                             : check_random_f32(seed) * 0x1p-20f;
                const uint16_t h = kwk_f32_to_f16(s);
                memcpy(p + 2 * r, &h, sizeof h);
            }
            p += 32;
            for (size_t i = 0; i < rest; i++)
                p[i] = (uint8_t)check_random(seed);
            if (f != ANY && w->format == KWK_I8)
                memset(p, f == WEIGHTS_HIGH ? 255 : 1, rest);
            if (f != ANY && w->format != KWK_I8) { // s, o and codes greatest or least
                memset(p, f == WEIGHTS_HIGH ? 255 : 0, rest);
                for (int i = 0; i < n * KWK_PANEL; i += 3)
                    p[i] = f == WEIGHTS_HIGH ? 0 : 255;
            }
            p += rest;
        }
    }
}

static void fill_activations(kwk_qact *q, int cols_pad, filling f, uint64_t *seed)
{
    for (int t = 0; t < TOKENS; t++) {
        int8_t *row = q->q + (size_t)t * q->ldq;

        for (int k = 0; k < cols_pad; k++) {
            row[k] = (int8_t)check_random_int(seed, -127, 127);
            if (f != ANY || t % 5 == 1)
                row[k] = t % 3 == 0 ? 127 : t % 3 == 1 ? -127 : k % 2 ? 127 : -127;
        }
        for (int g = 0; g < cols_pad / KWK_GROUP; g++) {
            int32_t sum = 0;
            for (int k = g * KWK_GROUP; k < (g + 1) * KWK_GROUP; k++)
                sum += row[k];
            q->sum[(size_t)t * q->lds + (size_t)g] = sum;
            q->scale[(size_t)t * q->lds + (size_t)g] =
                check_random_int(seed, 0, 9) ? fabsf(check_random_f32(seed)) : 0;
        }
    }
}

static problem problem_new(kwk_format format, int rows, int cols, filling f, uint64_t *seed)
{
    const int rows_pad = kwk_pad32(rows), cols_pad = kwk_pad32(cols);
    const size_t tiles = (size_t)rows_pad / KWK_TILE;
    problem p;

    p.w = (kwk_mat){format, rows, cols, rows_pad, cols_pad, check_random_int(seed, -20, 20), NULL};
    p.w.data = check_alloc(tiles * kwk_mat_tile_bytes(format, cols_pad));
    p.q.ldq = (size_t)cols_pad + 64;
    p.q.lds = (size_t)cols_pad / KWK_GROUP + 3;
    p.q.q = check_alloc(TOKENS * p.q.ldq);
    p.q.scale = check_alloc(TOKENS * p.q.lds * sizeof *p.q.scale);
    p.q.sum = check_alloc(TOKENS * p.q.lds * sizeof *p.q.sum);
    p.ldy = (size_t)rows_pad + 16;
    p.y = check_alloc(TOKENS * p.ldy * sizeof *p.y);
    p.want = check_alloc(TOKENS * (size_t)rows_pad * sizeof *p.want);
    p.scratch = check_alloc(KWK_MATMUL_SCRATCH);
    fill_weights(&p.w, f, seed);
    fill_activations(&p.q, cols_pad, f, seed);
    return p;
}

static void problem_free(problem *p)
{
    check_free(p->scratch);
    check_free(p->want);
    check_free(p->y);
    check_free(p->q.sum);
    check_free(p->q.scale);
    check_free(p->q.q);
    check_free(p->w.data);
}

static void reference(problem *p)
{
    const int tiles = p->w.rows_pad / KWK_TILE;
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    kwk_kernels_matmul(&k, p->w.format, KWK_GEMM)(&(kwk_matmul){
        &p->w, 0, tiles, TOKENS, NULL, 0, &p->q, p->want, (size_t)p->w.rows_pad, p->scratch});
}

static void check_form(const check_level *l, problem *p, kwk_form form, int m, int tile0, int tile1)
{
    static const char *const names[] = {"gemv", "small", "gemm"};
    const size_t row0 = (size_t)tile0 * KWK_TILE, n = (size_t)(tile1 - tile0) * KWK_TILE;
    const kwk_matmul a = {&p->w, tile0, tile1, m, NULL, 0, &p->q, p->y, p->ldy, p->scratch};
    char where[160];
    kwk_kernels k;

    kwk_kernels_init(&k, l->flags);
    snprintf(where, sizeof where, "%s %s %s, %d x %d, %d tokens, tiles %d to %d", l->name,
             kwk_format_name(p->w.format), names[form], p->w.rows, p->w.cols, m, tile0, tile1);
    check_poison(p->y, TOKENS * p->ldy * sizeof *p->y);
    kwk_kernels_matmul(&k, p->w.format, form)(&a);
    for (int t = 0; t < m; t++) {
        const float *y = p->y + (size_t)t * p->ldy;
        check_same_f32(y + row0, p->want + (size_t)t * (size_t)p->w.rows_pad + row0, n,
                       "%s: token %d", where, t);
        check_poisoned(y, row0 * sizeof *y, "%s: before, token %d", where, t);
        check_poisoned(y + row0 + n, (p->ldy - row0 - n) * sizeof *y, "%s: after, token %d", where,
                       t);
    }
    check_poisoned(p->y + (size_t)m * p->ldy, (size_t)(TOKENS - m) * p->ldy * sizeof *p->y,
                   "%s: other tokens", where);
}

static void check_forms(const check_level *l, problem *p, int m)
{
    const int tiles = p->w.rows_pad / KWK_TILE;
    const int part[][2] = {{0, tiles}, {tiles / 3, tiles - tiles / 4}, {tiles, tiles}};

    for (size_t i = 0; i < CHECK_COUNT(part); i++) {
        if (m == 1)
            check_form(l, p, KWK_GEMV, m, part[i][0], part[i][1]);
        if (m <= KWK_SMALL)
            check_form(l, p, KWK_SMALL_BATCH, m, part[i][0], part[i][1]);
        check_form(l, p, KWK_GEMM, m, part[i][0], part[i][1]);
    }
}

/* The reference itself runs in all three forms only on the smaller shapes; it is slow. */
static void variants_and_forms_equal_the_reference(void **state)
{
    uint64_t seed = 1;

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        for (size_t r = 0; r < CHECK_COUNT(all_rows); r++) {
            for (size_t c = 0; c < CHECK_COUNT(all_cols); c++) {
                problem p = problem_new(formats[f], all_rows[r], all_cols[c], ANY, &seed);
                const int small = all_rows[r] < 100 && all_cols[c] < 400;
                reference(&p);
                for (const check_level *l = check_levels(); l->name; l++)
                    for (size_t t = 0; t < CHECK_COUNT(all_tokens); t++)
                        if (l->flags || small)
                            check_forms(l, &p, all_tokens[t]);
                problem_free(&p);
            }
        }
    }
}

/* So many columns that gemm takes the tokens in several runs, to keep them in the cache. */
static void wide_matrices_equal_the_reference(void **state)
{
    uint64_t seed = 5;

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        problem p = problem_new(formats[f], 64, 16400, ANY, &seed);
        reference(&p);
        for (const check_level *l = check_levels(); l->name; l++)
            for (int m = 47; m <= TOKENS; m += 10)
                check_forms(l, &p, m);
        problem_free(&p);
    }
}

static void extreme_codes_do_not_saturate(void **state)
{
    uint64_t seed = 2;

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        for (int i = ANY; i < FILLINGS; i++) {
            for (int cols = 64; cols <= 576; cols += 256) {
                problem p = problem_new(formats[f], 64, cols, (filling)i, &seed);
                reference(&p);
                for (const check_level *l = check_levels(); l->name; l++)
                    for (size_t t = 0; t < CHECK_COUNT(all_tokens); t++)
                        check_forms(l, &p, all_tokens[t]);
                problem_free(&p);
            }
        }
    }
}

/* Sum of the quantised product in float64, and in *size the sum of the magnitudes. */
static double exact(const problem *p, const float *row, int t, double *size)
{
    double sum = 0;

    *size = 0;
    for (int k = 0; k < p->w.cols; k++) {
        const float scale = p->q.scale[(size_t)t * p->q.lds + (size_t)(k / KWK_GROUP)];
        const double v = (double)row[k] * scale * p->q.q[(size_t)t * p->q.ldq + (size_t)k];
        sum += v;
        *size += fabs(v);
    }
    return sum;
}

/* Two roundings a group, two a superblock, and one of the weight that gather hands out. */
static void the_reference_is_near_float64(void **state)
{
    enum { COLS = 896 };
    float *row = check_alloc(COLS * sizeof *row);
    uint64_t seed = 3;
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        problem p = problem_new(formats[f], 99, COLS, ANY, &seed);
        reference(&p);
        for (int r = 0; r < p.w.rows; r++) {
            kwk_kernels_gather(&k, formats[f])(row, &p.w, r);
            for (int t = 0; t < TOKENS; t++) {
                double size, want = exact(&p, row, t, &size);
                const double got = p.want[(size_t)t * (size_t)p.w.rows_pad + (size_t)r];
                const double roundings = 8 + COLS / KWK_SUPER + 4;
                assert_true(fabs(got - want) <= roundings * 0x1p-24 * size);
            }
        }
        problem_free(&p);
    }
    check_free(row);
}

static float normal(uint64_t *seed) // sum of 12 uniforms
{
    float v = 0;

    for (int i = 0; i < 12; i++)
        v += check_random_f32(seed) / 2;
    return v;
}

/* From float32 to float32: what is lost is the quantisation, 0.7 %,
 * 2 % and 7 % of the output's size. */
static void packed_weights_and_quantised_activations_give_the_product(void **state)
{
    enum { ROWS = 96, COLS = 576 };
    static float w[ROWS * COLS], x[TOKENS * COLS];
    const double most[] = {0.012, 0.024, 0.08};
    uint64_t seed = 4;
    kwk_kernels k;

    for (size_t i = 0; i < CHECK_COUNT(w); i++)
        w[i] = normal(&seed) * 0.05f;
    for (size_t i = 0; i < CHECK_COUNT(x); i++)
        x[i] = normal(&seed);
    kwk_kernels_init(&k, kwk_cpu_flags());
    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        problem p = problem_new(formats[f], ROWS, COLS, ANY, &seed);
        double err = 0, size = 0;

        p.w.exponent = kwk_pack_exponent(formats[f], 0.3f);
        for (int tile = 0; tile < ROWS / KWK_TILE; tile++)
            kwk_pack_tile(&p.w, tile, w + tile * KWK_TILE * COLS, COLS, KWK_TILE, NULL);
        for (int t = 0; t < TOKENS; t++)
            k.quant_act(p.q.q + (size_t)t * p.q.ldq, p.q.scale + (size_t)t * p.q.lds,
                        p.q.sum + (size_t)t * p.q.lds, x + t * COLS, COLS);
        kwk_kernels_matmul(&k, formats[f], KWK_GEMM)(
            &(kwk_matmul){&p.w, 0, ROWS / KWK_TILE, TOKENS, NULL, 0, &p.q, p.y, p.ldy, p.scratch});
        for (int t = 0; t < TOKENS; t++) {
            for (int r = 0; r < ROWS; r++) {
                double want = 0;
                for (int i = 0; i < COLS; i++)
                    want += (double)w[r * COLS + i] * x[t * COLS + i];
                err += pow(p.y[(size_t)t * p.ldy + (size_t)r] - want, 2);
                size += want * want;
            }
        }
        if (!(sqrt(err / size) < most[f]))
            fail_msg("%s: off by %g of the size", kwk_format_name(formats[f]), sqrt(err / size));
        problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_and_forms_equal_the_reference),
        cmocka_unit_test(wide_matrices_equal_the_reference),
        cmocka_unit_test(extreme_codes_do_not_saturate),
        cmocka_unit_test(the_reference_is_near_float64),
        cmocka_unit_test(packed_weights_and_quantised_activations_give_the_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
