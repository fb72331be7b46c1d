/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/forward.c, engine/attention.c: logits of small Llama-, Qwen2- and Qwen3-like models
 * against a float64 forward pass, at every instruction-set level; taps see what they should.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kwk.h"
#include "tests/support/check.h"
#include "tests/support/hand_model.h"

enum { LENGTH = 70 };

static const hand_config llama = {.n_layers = 3,
                                  .hidden = 64,
                                  .inter = 172,
                                  .n_heads = 8,
                                  .n_kv_heads = 4,
                                  .head_dim = 8,
                                  .vocab = 99,
                                  .tied = 1,
                                  .format = KWK_F32};
static const hand_config qwen2 = {.n_layers = 2,
                                  .hidden = 37,
                                  .inter = 45,
                                  .n_heads = 6,
                                  .n_kv_heads = 2,
                                  .head_dim = 10,
                                  .vocab = 65,
                                  .bias = 1,
                                  .format = KWK_F32};
static const hand_config qwen3 = {.n_layers = 2,
                                  .hidden = 48,
                                  .inter = 96,
                                  .n_heads = 5,
                                  .n_kv_heads = 1,
                                  .head_dim = 32,
                                  .vocab = 130,
                                  .qk_norm = 1,
                                  .tied = 1,
                                  .format = KWK_F32};
static const hand_config wide_group = {.n_layers = 2, // more query heads than one call takes
                                       .hidden = 40,
                                       .inter = 33,
                                       .n_heads = 35,
                                       .n_kv_heads = 1,
                                       .head_dim = 4,
                                       .rope_dim = 2,
                                       .vocab = 40,
                                       .bias = 2,
                                       .format = KWK_F32};

static void make_input(int32_t *token, int32_t *position, int n, int vocab)
{
    uint64_t seed = 5;

    for (int i = 0; i < n; i++) {
        token[i] = check_random_int(&seed, 0, vocab - 1);
        position[i] = i;
    }
}

/* Logits of all rows, fed `chunk` rows a step. */
static void run_engine(kwk_model *m, int n, int chunk, const int32_t *token,
                       const int32_t *position, const uint8_t *valid, float *logits)
{
    kwk_row rows[LENGTH];
    kwk_seq *s = NULL;
    kwk_error err = {0};

    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    for (int i = 0; i < n; i += chunk) {
        const int now = n - i < chunk ? n - i : chunk;
        kwk_step_args a = {.size = sizeof a,
                           .rows = rows,
                           .n_rows = now,
                           .logits = logits + (size_t)i * (size_t)m->recipe.vocab};
        for (int k = 0; k < now; k++)
            rows[k] = (kwk_row){.seq = s,
                                .token = token[i + k],
                                .position = position[i + k],
                                .invalid = valid ? !valid[i + k] : 0,
                                .want_logits = 1};
        if (kwk_step(m, &a, &err) != KWK_OK)
            fail_msg("kwk_step: %s", err.msg);
    }
    assert_int_equal(kwk_seq_length(s), n);
    kwk_seq_free(s);
}

static double worst_of(const float *got, const double *want, size_t n, double *scale)
{
    double worst = 0;

    *scale = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst)) // NaN too
            worst = d;
        if (fabs(want[i]) > *scale)
            *scale = fabs(want[i]);
    }
    return worst;
}

static void check_config(const hand_config *c, const uint8_t *valid, double tolerance)
{
    for (const check_level *l = check_levels(); l->name; l++) {
        int32_t token[LENGTH], position[LENGTH];
        const size_t n = (size_t)LENGTH * (size_t)c->vocab;
        float *got = malloc(n * sizeof *got);
        double *want = malloc(n * sizeof *want), scale;

        assert_int_equal(setenv("KWKER_ISA", l->name, 1), 0);
        kwk_model *m = hand_model_new(c);
        make_input(token, position, LENGTH, c->vocab);
        hand_model_forward(m, LENGTH, token, position, valid, want);
        const int chunks[] = {1, 7, LENGTH};
        for (size_t i = 0; i < CHECK_COUNT(chunks); i++) {
            run_engine(m, LENGTH, chunks[i], token, position, valid, got);
            const double worst = worst_of(got, want, n, &scale);
            if (!(worst <= tolerance * scale))
                fail_msg("%s, %s, chunks of %d: off by %g, logits up to %g", l->name,
                         kwk_format_name(c->format), chunks[i], worst, scale);
        }
        hand_model_free(m);
        unsetenv("KWKER_ISA");
        free(want);
        free(got);
    }
}

static void float_models_agree_with_float64(void **state)
{
    const hand_config *const configs[] = {&llama, &qwen2, &qwen3, &wide_group};
    const kwk_format formats[] = {KWK_F32, KWK_F16, KWK_BF16};

    for (size_t i = 0; i < CHECK_COUNT(configs); i++)
        for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
            hand_config c = *configs[i];
            c.format = formats[f];
            check_config(&c, NULL, 1e-5);
        }
}

static void integer_models_agree_with_float64_up_to_a_rounding(void **state)
{
    const kwk_format formats[] = {KWK_I8, KWK_I6, KWK_I4};

    for (size_t f = 0; f < CHECK_COUNT(formats); f++) {
        hand_config c = llama;
        c.format = formats[f];
        check_config(&c, NULL, 0.03); // an activation may fall to the other side of a half
        c = qwen2;
        c.format = formats[f];
        check_config(&c, NULL, 0.03);
    }
}

static void half_precision_keys_and_values_agree_with_float64(void **state)
{
    hand_config c = llama;

    c.kv_bits = 16;
    check_config(&c, NULL, 3e-3); // a key may be rounded to the other side
}

static void invalid_rows_are_not_seen(void **state)
{
    uint8_t valid[LENGTH];

    for (int i = 0; i < LENGTH; i++)
        valid[i] = i != 0 && i % 7 != 3 && (i < 33 || i > 40); // holes, also at the start
    valid[1] = valid[2] = 0;                                   // rows that see nothing at all
    check_config(&llama, valid, 1e-5);
    check_config(&qwen2, valid, 1e-5);
}

static void positions_need_not_be_slot_numbers(void **state)
{
    int32_t token[LENGTH], position[LENGTH];
    float got[LENGTH * 99];
    double want[LENGTH * 99], scale;
    kwk_model *m = hand_model_new(&llama);

    make_input(token, position, LENGTH, 99);
    for (int i = 0; i < LENGTH; i++)
        position[i] = (i * 37) % 1000;
    hand_model_forward(m, LENGTH, token, position, NULL, want);
    run_engine(m, LENGTH, 9, token, position, NULL, got);
    assert_true(worst_of(got, want, LENGTH * 99, &scale) <= 1e-5 * scale);
    hand_model_free(m);
}

static void an_embedding_takes_the_place_of_a_token(void **state)
{
    float row[64], got[99], want[99];
    _Alignas(64) float padded[64];
    kwk_seq *s = NULL;
    kwk_model *m = hand_model_new(&llama);

    kwk_kernels_gather(&m->kernels, KWK_F32)(padded, &m->embed, 17);
    memcpy(row, padded, sizeof row);
    for (int i = 0; i < 2; i++) {
        kwk_row r = {.token = i ? -5 : 17, .embedding = i ? row : NULL, .want_logits = 1};
        kwk_step_args a = {.size = sizeof a, .rows = &r, .n_rows = 1, .logits = i ? got : want};
        assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
        r.seq = s;
        assert_int_equal(kwk_step(m, &a, NULL), KWK_OK);
        kwk_seq_free(s);
    }
    check_same_f32(got, want, 99, "embedding");
    hand_model_free(m);
}

/* ---- taps ----------------------------------------------------------------------------------- */

typedef struct listener {
    const kwk_model *m;
    int calls[KWK_TAP_HEAD + 1];
    int n_rows;    // of the step
    float *hidden; // (n_rows, hidden) last KWK_TAP_HIDDEN
    float *normed; // KWK_TAP_HEAD
    int layers_in_order, last_layer;
} listener;

static void listen(void *arg, int layer, kwk_tap_site site, const float *x, size_t ld, int n_rows,
                   int cols)
{
    listener *l = arg;
    const kwk_recipe *r = &l->m->recipe;
    const int want_cols = site == KWK_TAP_O      ? r->n_heads * r->head_dim
                          : site == KWK_TAP_DOWN ? r->inter
                                                 : r->hidden;

    l->calls[site]++;
    if (layer < l->last_layer)
        l->layers_in_order = 0;
    l->last_layer = layer;
    assert_int_equal(n_rows, l->n_rows);
    assert_int_equal(cols, want_cols);
    for (int i = 0; i < n_rows; i++)
        for (int c = 0; c < cols; c++)
            assert_true(isfinite(x[(size_t)i * ld + (size_t)c]));
    float *keep = site == KWK_TAP_HIDDEN ? l->hidden : site == KWK_TAP_HEAD ? l->normed : NULL;
    for (int i = 0; keep && i < n_rows; i++)
        memcpy(keep + (size_t)i * (size_t)cols, x + (size_t)i * ld, (size_t)cols * sizeof *x);
}

static void check_taps(int n)
{
    float plain[LENGTH * 99], tapped[LENGTH * 99], hidden[LENGTH * 64], normed[LENGTH * 64];
    kwk_model *m = hand_model_new(&llama);
    listener l = {.m = m,
                  .n_rows = n,
                  .hidden = hidden,
                  .normed = normed,
                  .layers_in_order = 1,
                  .last_layer = -1};
    kwk_row rows[LENGTH];
    kwk_seq *s[2] = {NULL, NULL};

    for (int pass = 0; pass < 2; pass++) {
        kwk_step_args a = {.size = sizeof a,
                           .rows = rows,
                           .n_rows = n,
                           .logits = pass ? tapped : plain,
                           .tap = pass ? listen : NULL,
                           .tap_arg = &l};
        assert_int_equal(kwk_seq_new(&s[pass], m, NULL), KWK_OK);
        for (int i = 0; i < n; i++)
            rows[i] = (kwk_row){.seq = s[pass], .token = i, .position = i, .want_logits = 1};
        assert_int_equal(kwk_step(m, &a, NULL), KWK_OK);
        kwk_seq_free(s[pass]);
    }
    check_same_f32(tapped, plain, (size_t)n * 99, "a tap must not change a bit");
    assert_int_equal(l.calls[KWK_TAP_HIDDEN], 3 + 1);
    for (int site = KWK_TAP_QKV; site <= KWK_TAP_DOWN; site++)
        assert_int_equal(l.calls[site], 3);
    assert_int_equal(l.calls[KWK_TAP_HEAD], 1);
    assert_true(l.layers_in_order);
    for (int i = 0; i < n; i++) { // the head's input is the norm of the last hidden state
        float want[64];
        m->kernels.rmsnorm(want, hidden + i * 64, m->final_norm, 64, m->recipe.rms_eps);
        check_same_f32(normed + i * 64, want, 64, "row %d", i);
    }
    hand_model_free(m);
}

static void taps_see_every_site_and_change_nothing(void **state)
{
    check_taps(1);
    check_taps(5);
    check_taps(40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_models_agree_with_float64),
        cmocka_unit_test(integer_models_agree_with_float64_up_to_a_rounding),
        cmocka_unit_test(half_precision_keys_and_values_agree_with_float64),
        cmocka_unit_test(invalid_rows_are_not_seen),
        cmocka_unit_test(positions_need_not_be_slot_numbers),
        cmocka_unit_test(an_embedding_takes_the_place_of_a_token),
        cmocka_unit_test(taps_see_every_site_and_change_nothing),
    };

    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
