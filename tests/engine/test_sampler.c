/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/sampler.c against Hugging Face's processors written out plainly (sort, cumulate, mask):
 * which tokens are left and with what scores; then the draw, its streams, and logprobs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kwk.h"
#include "engine/sampler.h"
#include "tests/support/check.h"

enum { MAX_VOCAB = 5000 };

/* ---- the plain way -------------------------------------------------------------------------- */

static const float *sort_by;

static int ascending(const void *a, const void *b) // a stable sort of scores
{
    const int i = *(const int *)a, k = *(const int *)b;

    if (sort_by[i] != sort_by[k])
        return sort_by[i] < sort_by[k] ? -1 : 1;
    return i < k ? -1 : 1;
}

static void softmax(const float *x, int n, float *p)
{
    float most = -INFINITY;
    double sum = 0;

    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += (double)(p[i] = expf(x[i] - most));
    for (int i = 0; i < n; i++)
        p[i] /= (float)sum;
}

/* Scores after every processor; removed ones -inf. top_p as the decimal the user wrote. */
static void plain(const kwk_sampling *s, const kwk_history *h, double top_p, float *x, int n)
{
    static float p[MAX_VOCAB];
    static int order[MAX_VOCAB];

    for (int i = 0; i < s->n_bias; i++)
        x[s->bias[i].id] += s->bias[i].bias;
    for (int i = 0; i < n && s->repetition_penalty != 1; i++)
        for (int k = 0; k < h->n_ids; k++)
            if (h->ids[k] == i) {
                x[i] = x[i] < 0 ? x[i] * s->repetition_penalty : x[i] / s->repetition_penalty;
                break;
            }
    if ((h ? h->n_new : 0) < s->min_new_tokens)
        for (int i = 0; i < s->n_eos; i++)
            if (s->eos[i] >= 0 && s->eos[i] < n)
                x[s->eos[i]] = -INFINITY;
    if (!s->do_sample)
        return;
    for (int i = 0; i < n; i++) {
        x[i] /= s->temperature;
        order[i] = i;
    }
    sort_by = x;
    qsort(order, (size_t)n, sizeof *order, ascending);
    if (s->top_k > 0) {
        const float least = x[order[s->top_k < n ? n - s->top_k : 0]];
        for (int i = 0; i < n; i++)
            if (x[i] < least)
                x[i] = -INFINITY;
    }
    if (top_p < 1) {
        double sum = 0;

        qsort(order, (size_t)n, sizeof *order, ascending);
        softmax(x, n, p);
        for (int i = 0; i < n - 1; i++) {
            sum += (double)p[order[i]];
            if ((float)sum <= (float)(1 - top_p))
                x[order[i]] = -INFINITY;
        }
    }
    if (s->min_p > 0) {
        float most = 0;

        softmax(x, n, p);
        for (int i = 0; i < n; i++)
            most = p[i] > most ? p[i] : most;
        for (int i = 0; i < n; i++)
            if (p[i] < s->min_p * most)
                x[i] = -INFINITY;
    }
}

/* kwk_sample must leave the plain way's scores and choose one of the tokens that are left. */
static void check_against_plain(const kwk_sampling *s, const kwk_history *h, double top_p,
                                const float *logits, int n, const char *what)
{
    static float got[MAX_VOCAB], want[MAX_VOCAB];
    int32_t token = -1;
    kwk_error err = {0};

    memcpy(got, logits, (size_t)n * sizeof *got);
    memcpy(want, logits, (size_t)n * sizeof *want);
    plain(s, h, top_p, want, n);
    if (kwk_sample(s, h, got, n, &token, NULL, NULL, &err) != KWK_OK)
        fail_msg("%s: %s", what, err.msg);
    check_same_f32(got, want, (size_t)n, "%s", what);
    assert_in_range(token, 0, n - 1);
    assert_true(want[token] > -INFINITY);
}

static void random_logits(float *x, int n, uint64_t *seed, float wide, int ties)
{
    for (int i = 0; i < n; i++) {
        x[i] = wide * check_random_f32(seed) * check_random_f32(seed);
        if (ties)
            x[i] = nearbyintf(x[i]); // many equal scores
    }
}

/* ---- filters -------------------------------------------------------------------------------- */

static void filters_leave_what_hugging_face_leaves(void **state)
{
    static const double top_ps[] = {1, 0.9, 0.95, 0.5, 0.1, 0.001, 0.999999};
    static const int top_ks[] = {0, 1, 2, 50, 4999, 5000, 100000};
    static const float min_ps[] = {0, 0.05f, 0.3f, 1};
    static float x[MAX_VOCAB];
    uint64_t seed = 1;

    for (int round = 0; round < 400; round++) {
        const int n = round % 3 ? check_random_int(&seed, 1, 300) : 5000;
        kwk_sampling s = KWK_SAMPLING_INIT;
        const double top_p = top_ps[round % 7];

        s.do_sample = 1;
        s.seed = (uint64_t)round;
        s.temperature = round % 2 ? 1 : 0.7f;
        s.top_p = (float)top_p;
        s.top_k = top_ks[round / 7 % 7];
        s.min_p = min_ps[round / 49 % 4];
        random_logits(x, n, &seed, round % 5 ? 20 : 3, round % 4 == 0);
        check_against_plain(&s, NULL, top_p, x, n, "filters");
    }
}

static void top_k_keeps_ties(void **state)
{
    const float x[6] = {1, 3, 2, 3, 3, 0};
    kwk_sampling s = KWK_SAMPLING_INIT;
    float got[6];
    int32_t token;

    s.do_sample = 1;
    s.top_k = 2;
    memcpy(got, x, sizeof x);
    assert_int_equal(kwk_sample(&s, NULL, got, 6, &token, NULL, NULL, NULL), KWK_OK);
    const float want[6] = {-INFINITY, 3, -INFINITY, 3, 3, -INFINITY};
    check_same_f32(got, want, 6, "top_k 2");
}

static void top_p_keeps_the_token_at_the_boundary(void **state)
{
    const struct {
        float top_p;
        int first_kept; // of four equal tokens; equals go by ascending id
    } cases[] = {{0.25f, 3}, {0.26f, 2}, {0.5f, 2}, {0.51f, 1}, {0.75f, 1}, {0.76f, 0}, {1, 0}};

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        kwk_sampling s = KWK_SAMPLING_INIT;
        float x[4] = {2, 2, 2, 2};
        int32_t token;

        s.do_sample = 1;
        s.top_p = cases[i].top_p;
        assert_int_equal(kwk_sample(&s, NULL, x, 4, &token, NULL, NULL, NULL), KWK_OK);
        for (int k = 0; k < 4; k++)
            assert_true(x[k] == (k < cases[i].first_kept ? -INFINITY : 2));
    }
}

static void a_tiny_top_p_still_leaves_one_token(void **state)
{
    kwk_sampling s = KWK_SAMPLING_INIT;
    float x[3] = {1, 5, 4};
    int32_t token = -1;

    s.do_sample = 1;
    s.top_p = 1e-7f;
    s.min_p = 1;
    assert_int_equal(kwk_sample(&s, NULL, x, 3, &token, NULL, NULL, NULL), KWK_OK);
    assert_int_equal(token, 1);
}

/* ---- processors ----------------------------------------------------------------------------- */

static void processors_apply_in_hugging_faces_order(void **state)
{
    const kwk_logit_bias bias[3] = {{2, 1.5f}, {3, -4}, {4, -INFINITY}};
    const int32_t eos[4] = {1, 6, -1, 1000}, ids[7] = {2, 3, 3, 5, 2, -7, 999};
    uint64_t seed = 8;
    float x[8];

    for (int round = 0; round < 200; round++) {
        kwk_sampling s = KWK_SAMPLING_INIT;
        const kwk_history h = {.ids = ids, .n_ids = round % 8, .n_new = round % 5};

        random_logits(x, 8, &seed, 10, 0);
        s.n_bias = round % 4;
        s.bias = bias;
        s.repetition_penalty = round % 3 == 0 ? 1 : round % 3 == 1 ? 1.4f : 0.8f;
        s.min_new_tokens = 3;
        s.n_eos = 4;
        s.eos = eos;
        s.do_sample = round % 2;
        s.temperature = 0.6f; // ignored by a greedy call
        check_against_plain(&s, &h, 1, x, 8, "processors");
    }
}

static void greedy_takes_the_first_of_equals_and_passes_over_nan(void **state)
{
    kwk_sampling s = KWK_SAMPLING_INIT;
    float x[5] = {NAN, 1, 7, 7, -INFINITY}, nothing[3] = {NAN, -INFINITY, NAN};
    int32_t token = -1;
    kwk_error err = {0};

    s.temperature = 5;
    s.top_k = 1;
    assert_int_equal(kwk_sample(&s, NULL, x, 5, &token, NULL, NULL, NULL), KWK_OK);
    assert_int_equal(token, 2);
    for (int sampled = 0; sampled < 2; sampled++) {
        s.do_sample = sampled;
        token = 77;
        assert_int_equal(kwk_sample(&s, NULL, nothing, 3, &token, NULL, NULL, &err), KWK_EINVAL);
        assert_string_equal(err.msg, "every score is NaN or -inf");
        assert_int_equal(token, 77);
    }
    float with_nan[3] = {NAN, -INFINITY, 4}; // sampling passes over them too
    assert_int_equal(kwk_sample(&s, NULL, with_nan, 3, &token, NULL, NULL, NULL), KWK_OK);
    assert_int_equal(token, 2);
    float infinite[3] = {1, INFINITY, 3};
    assert_int_equal(kwk_sample(&s, NULL, infinite, 3, &token, NULL, NULL, NULL), KWK_OK);
    assert_int_equal(token, 1);
}

/* ---- the draw ------------------------------------------------------------------------------- */

static int32_t draw(kwk_sampling *s, const kwk_history *h, const float *logits, int n)
{
    float x[16];
    int32_t token = -1;

    memcpy(x, logits, (size_t)n * sizeof *x);
    assert_int_equal(kwk_sample(s, h, x, n, &token, NULL, NULL, NULL), KWK_OK);
    return token;
}

static void draws_follow_the_probabilities(void **state)
{
    enum { DRAWS = 40000 };
    const float x[5] = {0, 1, -1, 2, -INFINITY};
    float p[5];
    int count[5] = {0};
    kwk_sampling s = KWK_SAMPLING_INIT;

    s.do_sample = 1;
    for (int i = 0; i < DRAWS; i++) {
        const kwk_history h = {.n_new = i % 200};
        s.seed = (uint64_t)(i / 2000);
        s.choice = (uint32_t)(i % 2000 / 200);
        count[draw(&s, &h, x, 5)]++;
    }
    softmax(x, 5, p);
    for (int i = 0; i < 5; i++) // four standard deviations
        assert_true(fabs((double)count[i] - DRAWS * (double)p[i]) <=
                    4 * sqrt(DRAWS * (double)p[i] * (1 - (double)p[i])));
}

static void the_stream_depends_on_seed_choice_and_position_alone(void **state)
{
    float x[16] = {0};
    kwk_sampling s = KWK_SAMPLING_INIT;
    const int32_t ids[3] = {1, 2, 3};
    int by_seed = 0, by_choice = 0, by_position = 0;

    s.do_sample = 1;
    for (int i = 0; i < 50; i++) {
        kwk_history h = {.n_new = i};
        s.seed = 7;
        s.choice = 2;
        const int32_t want = draw(&s, &h, x, 16);
        h.ids = ids; // an equal call in other company
        h.n_ids = 3;
        assert_int_equal(draw(&s, &h, x, 16), want);
        s.seed = 8;
        by_seed += draw(&s, &h, x, 16) != want;
        s.seed = 7;
        s.choice = 3;
        by_choice += draw(&s, &h, x, 16) != want;
        s.choice = 2;
        h.n_new = i + 1;
        by_position += draw(&s, &h, x, 16) != want;
    }
    assert_true(by_seed > 30 && by_choice > 30 && by_position > 30);
}

static void noise_gives_argmax_of_p_over_noise(void **state)
{
    static float x[300], p[300], noise[300], scores[300];
    uint64_t seed = 4;

    for (int round = 0; round < 200; round++) {
        kwk_sampling s = KWK_SAMPLING_INIT;
        const kwk_history h = {.noise = noise};
        int32_t token = -1;
        int best = 0;

        random_logits(x, 300, &seed, 8, round % 2);
        for (int i = 0; i < 300; i++)
            noise[i] = -logf(0.5f * (check_random_f32(&seed) + 1) + 1e-9f);
        s.do_sample = 1;
        s.temperature = 0.9f;
        s.top_k = 50;
        memcpy(scores, x, sizeof x);
        plain(&s, &h, 1, scores, 300);
        softmax(scores, 300, p);
        for (int i = 0; i < 300; i++)
            if (p[i] / noise[i] > p[best] / noise[best])
                best = i;
        assert_int_equal(kwk_sample(&s, &h, x, 300, &token, NULL, NULL, NULL), KWK_OK);
        assert_int_equal(token, best);
    }
}

/* ---- logprobs ------------------------------------------------------------------------------- */

static void logprobs_are_of_the_raw_logits(void **state)
{
    static float x[1000], raw[1000];
    uint64_t seed = 6;
    kwk_sampling s = KWK_SAMPLING_INIT;
    kwk_logprob top[20];

    random_logits(x, 1000, &seed, 15, 0);
    x[10] = x[20] = 14; // equals: by ascending id
    memcpy(raw, x, sizeof x);
    double sum = 0;
    for (int i = 0; i < 1000; i++)
        sum += exp((double)raw[i]);
    s.do_sample = 1;
    s.temperature = 3;
    s.top_k = 5;
    s.repetition_penalty = 2;
    s.n_logprobs = 20;
    int32_t token;
    float logprob;
    assert_int_equal(kwk_sample(&s, NULL, x, 1000, &token, &logprob, top, NULL), KWK_OK);
    assert_true(fabs((double)logprob - ((double)raw[token] - log(sum))) < 1e-5);
    for (int i = 0; i < 20; i++) {
        int greater = 0; // that come before it
        for (int k = 0; k < 1000; k++)
            greater += raw[k] > raw[top[i].id] || (raw[k] == raw[top[i].id] && k < top[i].id);
        assert_int_equal(greater, i);
        assert_true(fabs((double)top[i].logprob - ((double)raw[top[i].id] - log(sum))) < 1e-5);
    }
}

static void fewer_tokens_than_logprobs_are_filled_up(void **state)
{
    float x[3] = {1, -INFINITY, 2};
    kwk_sampling s = KWK_SAMPLING_INIT;
    kwk_logprob top[4];
    int32_t token;

    s.n_logprobs = 4;
    assert_int_equal(kwk_sample(&s, NULL, x, 3, &token, NULL, top, NULL), KWK_OK);
    assert_int_equal(top[0].id, 2);
    assert_int_equal(top[1].id, 0);
    assert_int_equal(top[2].id, -1);
    assert_int_equal(top[3].id, -1);
    assert_true(isinf(top[3].logprob));
}

/* ---- checks --------------------------------------------------------------------------------- */

static void fields_out_of_range_are_refused_by_name(void **state)
{
    const kwk_logit_bias twice[2] = {{4, 1}, {4, 2}}, nan_bias[1] = {{1, NAN}}, far[1] = {{10, 0}},
                         plus_inf[1] = {{1, INFINITY}}, good[2] = {{0, -INFINITY}, {9, 1}};
    kwk_error err = {0};
#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        kwk_sampling s = KWK_SAMPLING_INIT;                                                        \
        s.field = value;                                                                           \
        assert_int_equal(kwk_sampling_check(&s, 10, &err), KWK_EINVAL);                            \
        assert_string_equal(err.msg, text);                                                        \
    } while (0)
    REFUSED(do_sample, 2, "do_sample 2 is not 0 or 1");
    REFUSED(temperature, 0, "temperature 0 is not above 0");
    REFUSED(temperature, NAN, "temperature nan is not above 0");
    REFUSED(temperature, INFINITY, "temperature inf is not above 0");
    REFUSED(top_k, -1, "top_k -1 is below 0");
    REFUSED(top_p, 0, "top_p 0 is not in (0, 1]");
    REFUSED(top_p, 1.5f, "top_p 1.5 is not in (0, 1]");
    REFUSED(min_p, -0.5f, "min_p -0.5 is not in [0, 1]");
    REFUSED(min_p, NAN, "min_p nan is not in [0, 1]");
    REFUSED(repetition_penalty, 0, "repetition_penalty 0 is not above 0");
    REFUSED(min_new_tokens, -1, "min_new_tokens -1 is below 0");
    REFUSED(n_eos, 1, "n_eos 1 without a list");
    REFUSED(n_logprobs, 21, "n_logprobs 21 is not in 0..20");
    REFUSED(n_bias, 11, "n_bias 11 is not in 0..10");
    REFUSED(n_bias, 1, "bias is NULL and n_bias is 1");
    const struct {
        const kwk_logit_bias *bias;
        int n;
        const char *text;
    } cases[] = {
        {twice, 2, "logit_bias id 4 is given twice"},
        {nan_bias, 1, "logit_bias nan of id 1 is neither finite nor -inf"},
        {plus_inf, 1, "logit_bias inf of id 1 is neither finite nor -inf"},
        {far, 1, "logit_bias id 10 is not in 0..9"},
    };
    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        kwk_sampling s = KWK_SAMPLING_INIT;
        s.bias = cases[i].bias;
        s.n_bias = cases[i].n;
        assert_int_equal(kwk_sampling_check(&s, 10, &err), KWK_EINVAL);
        assert_string_equal(err.msg, cases[i].text);
    }
    kwk_sampling s = KWK_SAMPLING_INIT;
    s.bias = good;
    s.n_bias = 2;
    assert_int_equal(kwk_sampling_check(&s, 10, NULL), KWK_OK);
    assert_int_equal(kwk_sampling_check(NULL, 10, NULL), KWK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_leave_what_hugging_face_leaves),
        cmocka_unit_test(top_k_keeps_ties),
        cmocka_unit_test(top_p_keeps_the_token_at_the_boundary),
        cmocka_unit_test(a_tiny_top_p_still_leaves_one_token),
        cmocka_unit_test(processors_apply_in_hugging_faces_order),
        cmocka_unit_test(greedy_takes_the_first_of_equals_and_passes_over_nan),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(the_stream_depends_on_seed_choice_and_position_alone),
        cmocka_unit_test(noise_gives_argmax_of_p_over_noise),
        cmocka_unit_test(logprobs_are_of_the_raw_logits),
        cmocka_unit_test(fewer_tokens_than_logprobs_are_filled_up),
        cmocka_unit_test(fields_out_of_range_are_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
