/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/step.c, engine/scratch.c: what a step refuses and that it then changes nothing, sampling
 * inside a step, counters, and callers in many threads and processes.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/kv.h"
#include "engine/scratch.h"
#include "engine/seq.h"
#include "tests/support/check.h"
#include "tests/support/hand_model.h"

enum { VOCAB = 99, CTX = 100, BLOCKS = 6, HIDDEN = 32 };

static kwk_model *m;

static int start(void **state)
{
    const hand_config c = {.n_layers = 2,
                           .hidden = HIDDEN,
                           .inter = 37,
                           .n_heads = 4,
                           .n_kv_heads = 2,
                           .head_dim = 8,
                           .vocab = VOCAB,
                           .tied = 1,
                           .format = KWK_F32,
                           .max_ctx = CTX,
                           .kv_bytes = BLOCKS * 2 * 2 * 2 * 8 * 32 * 4};

    m = hand_model_new(&c);
    assert_int_equal(kwk_set_threads(2, NULL), KWK_OK);
    return 0;
}

static int stop(void **state)
{
    assert_int_equal(kwk_kv_free_blocks(m->kv), BLOCKS);
    hand_model_free(m);
    return 0;
}

static kwk_seq *new_seq(void)
{
    kwk_seq *s = NULL;

    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    return s;
}

static int step(kwk_row *rows, int n, float *logits, kwk_error *err)
{
    kwk_step_args a = {.size = sizeof a, .rows = rows, .n_rows = n, .logits = logits};

    return kwk_step(m, &a, err);
}

static void feed(kwk_seq *s, int n)
{
    kwk_row rows[CTX];

    for (int i = 0; i < n; i++)
        rows[i] = (kwk_row){.seq = s, .token = (s->length + i) % VOCAB, .position = s->length + i};
    assert_int_equal(step(rows, n, NULL, NULL), KWK_OK);
}

/* ---- refusals ------------------------------------------------------------------------------- */

typedef struct state_of_all {
    int length[2], free_blocks, valid; // four: no padding, so that memory can be compared
    kwk_counters counters;
} state_of_all;

static state_of_all look(kwk_seq *a, kwk_seq *b)
{
    state_of_all s;

    memset(&s, 0, sizeof s);
    s.length[0] = a->length;
    s.length[1] = b->length;
    s.free_blocks = kwk_kv_free_blocks(m->kv);
    s.valid = (int)a->valid[0];
    kwk_model_counters(m, &s.counters);
    return s;
}

static void a_refused_step_names_the_row_and_changes_nothing(void **state)
{
    static const kwk_sampling unset;
    float bad_embedding[HIDDEN] = {[7] = INFINITY}, logits[3 * VOCAB];
    kwk_seq *a = new_seq(), *b = new_seq(), *other = NULL;
    kwk_error err = {0};
    kwk_history history = {.n_ids = 3};
    kwk_sampling greedy = KWK_SAMPLING_INIT;

    feed(a, 5);
    feed(b, 2);
    kwk_model *mine = m; // a second model, for a sequence that is not of this one
    start(NULL);
    kwk_model *second = m;
    m = mine;
    assert_int_equal(kwk_seq_new(&other, second, NULL), KWK_OK);

    const struct {
        kwk_row row;
        const char *message;
        int no_logits;
    } cases[] = {
        {{.token = 1}, "row 1: its sequence is NULL", 0},
        {{.seq = other, .token = 1}, "row 1: its sequence is of another model", 0},
        {{.seq = b, .token = VOCAB}, "row 1: token 99 is not in 0..98", 0},
        {{.seq = b, .token = -1}, "row 1: token -1 is not in 0..98", 0},
        {{.seq = b, .position = -2}, "row 1: position -2 is below 0", 0},
        {{.seq = b, .embedding = bad_embedding}, "row 1: embedding[7] is not finite", 0},
        {{.seq = b, .want_logits = 1}, "row 1 wants logits and there is no place for them", 1},
        {{.seq = b, .sampling = &unset}, "row 1: sampling was not checked", 0},
        {{.seq = b, .sampling = &greedy, .history = &history},
         "row 1: history of 3 ids without a list",
         0},
    };
    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        kwk_row rows[2] = {{.seq = a, .token = 3, .position = 5}, cases[i].row};
        const state_of_all before = look(a, b);

        assert_int_equal(step(rows, 2, cases[i].no_logits ? NULL : logits, &err), KWK_EINVAL);
        assert_string_equal(err.msg, cases[i].message);
        const state_of_all after = look(a, b);
        assert_memory_equal(&before, &after, sizeof before);
    }

    kwk_row apart[3] = {{.seq = a}, {.seq = b}, {.seq = a}};
    assert_int_equal(step(apart, 3, NULL, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "row 2: rows of one sequence must lie together");
    assert_int_equal(step(apart, 0, NULL, &err), KWK_EINVAL);
    assert_int_equal(step(apart, 4097, NULL, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "n_rows 4097 is not in 1..4096");
    assert_int_equal(kwk_step(m, NULL, &err), KWK_EINVAL);
    assert_int_equal(a->length, 5);

    kwk_seq_free(other);
    hand_model_free(second);
    kwk_seq_free(a);
    kwk_seq_free(b);
}

static void a_full_context_or_pool_is_refused_with_its_numbers(void **state)
{
    kwk_seq *a = new_seq(), *b = new_seq();
    kwk_error err = {0};
    kwk_row rows[CTX + 1];

    feed(a, CTX - 1); // 4 of 6 blocks
    feed(b, 3);
    for (int i = 0; i < CTX; i++)
        rows[i] = (kwk_row){.seq = i < 98 ? b : a, .position = i};
    state_of_all before = look(a, b), after;
    assert_int_equal(step(rows + 96, 4, NULL, &err), KWK_EFULL); // 2 of b, 2 of a
    assert_string_equal(err.msg, "row 2: 99 slots and 2 more pass the context of 100");
    after = look(a, b);
    assert_memory_equal(&before, &after, sizeof before);

    assert_int_equal(kwk_step_blocks(m, rows, 62), 2);
    assert_int_equal(step(rows, 62, NULL, &err), KWK_EFULL);
    assert_string_equal(err.msg, "2 KV blocks are needed and 1 are free");
    after = look(a, b);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(step(rows, 61, NULL, &err), KWK_OK); // to slot 63
    assert_int_equal(kwk_kv_free_blocks(m->kv), 0);
    kwk_seq_free(a);
    kwk_seq_free(b);
}

static void blocks_to_allocate_are_foretold(void **state)
{
    kwk_seq *a = new_seq(), *b = NULL;
    kwk_row rows[40];

    for (int i = 0; i < 40; i++)
        rows[i] = (kwk_row){.seq = a, .position = i};
    assert_int_equal(kwk_step_blocks(m, rows, 0), 0);
    assert_int_equal(kwk_step_blocks(m, rows, 1), 1);
    assert_int_equal(kwk_step_blocks(m, rows, 33), 2);
    feed(a, 30);
    assert_int_equal(kwk_step_blocks(m, rows, 2), 0);
    assert_int_equal(kwk_step_blocks(m, rows, 3), 1);
    assert_int_equal(kwk_seq_fork(&b, a, NULL), KWK_OK);
    rows[1].seq = b;
    assert_int_equal(kwk_step_blocks(m, rows, 2), 2); // copy on write on both sides
    kwk_seq_free(a);
    kwk_seq_free(b);
}

/* ---- sampling in a step --------------------------------------------------------------------- */

static void sampling_in_a_step_equals_sampling_its_logits(void **state)
{
    enum { N = 5 };
    const kwk_logit_bias bias[2] = {{3, 2.5f}, {7, -INFINITY}};
    const int32_t eos[2] = {5, -1}, ids[4] = {1, 2, 2, 90};
    kwk_sampling s[N] = {KWK_SAMPLING_INIT, KWK_SAMPLING_INIT, KWK_SAMPLING_INIT, KWK_SAMPLING_INIT,
                         KWK_SAMPLING_INIT};
    const kwk_history h = {.ids = ids, .n_ids = 4, .n_new = 1};
    kwk_logprob top[N][3], want_top[3];
    float logits[N * VOCAB];
    kwk_seq *seq[N];
    kwk_row rows[N];

    s[1].n_bias = 2;
    s[1].bias = bias;
    s[1].repetition_penalty = 1.3f;
    s[1].min_new_tokens = 4;
    s[1].n_eos = 2;
    s[1].eos = eos;
    s[2].do_sample = 1;
    s[2].seed = 5;
    s[3].do_sample = 1;
    s[3].temperature = 1.7f;
    s[3].top_k = 20;
    s[3].top_p = 0.8f;
    s[3].min_p = 0.02f;
    s[3].choice = 3;
    s[4].n_logprobs = 0;
    for (int i = 0; i < 4; i++)
        s[i].n_logprobs = i == 0 ? 0 : 3;
    for (int i = 0; i < N; i++) {
        seq[i] = new_seq();
        rows[i] = (kwk_row){.seq = seq[i],
                            .token = i * 7,
                            .want_logits = 1,
                            .sampling = &s[i],
                            .history = i == 0 ? NULL : &h,
                            .out_top = i == 0 ? NULL : top[i]};
    }
    assert_int_equal(step(rows, N, logits, NULL), KWK_OK);
    for (int i = 0; i < N; i++) {
        int32_t token;
        float logprob;
        float *x = logits + i * VOCAB;
        assert_int_equal(
            kwk_sample(&s[i], rows[i].history, x, VOCAB, &token, &logprob, want_top, NULL), KWK_OK);
        assert_int_equal(rows[i].out_token, token);
        if (i == 0) {
            assert_true(isnan(rows[i].out_logprob));
        } else {
            check_same_f32(&rows[i].out_logprob, &logprob, 1, "row %d", i);
        }
        for (int k = 0; k < (i ? s[i].n_logprobs : 0); k++) {
            assert_int_equal(top[i][k].id, want_top[k].id);
            check_same_f32(&top[i][k].logprob, &want_top[k].logprob, 1, "row %d", i);
        }
        kwk_seq_free(seq[i]);
    }
}

static void only_allowed_tokens_are_chosen(void **state)
{
    uint32_t mask[4] = {0};
    kwk_sampling greedy = KWK_SAMPLING_INIT, sampled = KWK_SAMPLING_INIT;
    kwk_seq *s = new_seq();
    kwk_row rows[3];

    sampled.do_sample = 1;
    for (int i = 0; i < 3; i++)
        rows[i] = (kwk_row){.seq = s,
                            .token = i,
                            .position = i,
                            .sampling = i == 1 ? &sampled : &greedy,
                            .allowed = mask};
    mask[1] = 1u << 9 | 1u << 30;
    for (int k = 0; k < 20; k++) {
        sampled.seed = (uint64_t)k;
        assert_int_equal(step(rows, 3, NULL, NULL), KWK_OK);
        for (int i = 0; i < 3; i++)
            assert_true(rows[i].out_token == 41 || rows[i].out_token == 62);
        assert_int_equal(kwk_seq_truncate(s, 0, NULL), KWK_OK);
    }
    mask[1] = 0; // nothing: the step still succeeds, for the sake of the other rows
    rows[2].allowed = NULL;
    assert_int_equal(step(rows, 3, NULL, NULL), KWK_OK);
    assert_int_equal(rows[0].out_token, -1);
    assert_int_equal(rows[1].out_token, -1);
    assert_in_range(rows[2].out_token, 0, VOCAB - 1);
    kwk_seq_free(s);
}

static void seeded_tokens_do_not_depend_on_the_batch(void **state)
{
    kwk_sampling s[6];
    kwk_seq *seq[6];
    kwk_row rows[6];
    int32_t alone[6];
    int different = 0;

    for (int i = 0; i < 6; i++) {
        s[i] = (kwk_sampling)KWK_SAMPLING_INIT;
        s[i].do_sample = 1;
        s[i].temperature = 1.5f;
        s[i].seed = 100 + (uint64_t)i / 2;
        s[i].choice = (uint32_t)i;
        seq[i] = new_seq();
        rows[i] = (kwk_row){.seq = seq[i], .token = 11, .sampling = &s[i]};
        assert_int_equal(step(&rows[i], 1, NULL, NULL), KWK_OK);
        alone[i] = rows[i].out_token;
        different += alone[i] != alone[0];
        assert_int_equal(kwk_seq_truncate(seq[i], 0, NULL), KWK_OK);
    }
    assert_true(different > 0);
    assert_int_equal(step(rows, 6, NULL, NULL), KWK_OK);
    for (int i = 0; i < 6; i++)
        assert_int_equal(rows[i].out_token, alone[i]);
    for (int i = 0; i < 6; i++)
        kwk_seq_free(seq[i]);
}

/* ---- counters, scratch ---------------------------------------------------------------------- */

static void counters_tell_what_ran(void **state)
{
    kwk_seq *s = new_seq(), *t = new_seq();
    kwk_row rows[2] = {{.seq = s, .position = 12, .want_logits = 1}, {.seq = t, .want_logits = 1}};
    float logits[2 * VOCAB];
    kwk_counters c;

    feed(s, 12);
    kwk_model_counters(m, &c);
    assert_int_equal(c.steps, 1);
    assert_int_equal(c.rows, 12);
    assert_int_equal(c.max_rows, 12);
    assert_int_equal(c.gemm, 2 * 7); // no logits were wanted: no head
    assert_int_equal(c.gemv + c.small, 0);
    assert_int_equal(c.attn_decode, 0);
    assert_true(c.attn_prefill > 0);
    assert_int_equal(step(rows, 2, logits, NULL), KWK_OK);
    kwk_model_counters(m, &c);
    assert_int_equal(c.steps, 2);
    assert_int_equal(c.rows, 14);
    assert_int_equal(c.max_rows, 12);
    assert_int_equal(c.small, 2 * 7 + 1);
    assert_int_equal(c.attn_decode, 2 * 2 * 2); // layers, sequences, KV heads
    kwk_seq_free(s);
    kwk_seq_free(t);
}

static void scratch_grows_by_doubling_and_is_kept(void **state)
{
    kwk_seq *s = new_seq();

    feed(s, 3);
    assert_int_equal(m->scratch->rows, 4);
    const kwk_scratch *before = m->scratch;
    feed(s, 4);
    assert_ptr_equal(m->scratch, before);
    feed(s, 5);
    assert_int_equal(m->scratch->rows, 8);
    assert_int_equal(kwk_scratch_reserve(m, 8, 0, 1, 0, 0, NULL), KWK_OK);
    assert_int_equal(m->scratch->threads, 2); // never smaller
    assert_int_equal((uintptr_t)m->scratch->x % 64, 0);
    assert_int_equal((uintptr_t)m->scratch->own[1].matmul % 64, 0);
    kwk_seq_free(s);
}

/* ---- callers -------------------------------------------------------------------------------- */

static void generate(int first, int n, int32_t *out) // greedy
{
    kwk_sampling greedy = KWK_SAMPLING_INIT;
    kwk_seq *s = NULL;
    int32_t token = first;

    if (kwk_seq_new(&s, m, NULL) != KWK_OK)
        abort();
    for (int i = 0; i < n; i++) {
        kwk_row row = {.seq = s, .token = token, .position = i, .sampling = &greedy};
        kwk_step_args a = {.size = sizeof a, .rows = &row, .n_rows = 1};
        if (kwk_step(m, &a, NULL) != KWK_OK)
            abort();
        out[i] = token = row.out_token;
    }
    kwk_seq_free(s);
}

enum { GENERATE = 25 };

typedef struct caller {
    int first;
    int32_t out[GENERATE];
} caller;

static void *call(void *arg)
{
    caller *c = arg;

    for (int i = 0; i < 5; i++)
        generate(c->first, GENERATE, c->out);
    return NULL;
}

static void four_threads_get_what_each_gets_alone(void **state)
{
    pthread_t t[4];
    caller c[4];
    int32_t want[GENERATE];

    for (int i = 0; i < 4; i++) {
        c[i].first = 10 * i;
        assert_int_equal(pthread_create(&t[i], NULL, call, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++) {
        generate(10 * i, GENERATE, want);
        assert_memory_equal(c[i].out, want, sizeof want);
    }
}

static atomic_int stop_calling;

static void *call_until_stopped(void *arg)
{
    int32_t out[4];

    while (!atomic_load(&stop_calling))
        generate(1, 4, out);
    return NULL;
}

static void a_model_and_its_sequences_work_in_a_forked_child(void **state)
{
    pthread_t t;
    int32_t want[GENERATE];
    kwk_seq *s = new_seq();
    float want_logits[VOCAB];
    kwk_row row = {.seq = s, .token = 8, .position = 40, .want_logits = 1};

    feed(s, 40);
    assert_int_equal(step(&row, 1, want_logits, NULL), KWK_OK);
    assert_int_equal(kwk_seq_truncate(s, 40, NULL), KWK_OK);
    generate(33, GENERATE, want);
    atomic_store(&stop_calling, 0);
    assert_int_equal(pthread_create(&t, NULL, call_until_stopped, NULL), 0);
    for (int i = 0; i < 10; i++) {
        const pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            int32_t got[GENERATE];
            float logits[VOCAB];

            alarm(20); // a hang is a failure
            generate(33, GENERATE, got);
            const int rc = step(&row, 1, logits, NULL);
            _exit(rc != KWK_OK || memcmp(got, want, sizeof got) ||
                  memcmp(logits, want_logits, sizeof logits));
        }
        int status = -1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    atomic_store(&stop_calling, 1);
    pthread_join(t, NULL);
    assert_int_equal(kwk_seq_length(s), 40); // the children's steps were theirs
    kwk_seq_free(s);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(a_refused_step_names_the_row_and_changes_nothing),
        TEST(a_full_context_or_pool_is_refused_with_its_numbers),
        TEST(blocks_to_allocate_are_foretold),
        TEST(sampling_in_a_step_equals_sampling_its_logits),
        TEST(only_allowed_tokens_are_chosen),
        TEST(seeded_tokens_do_not_depend_on_the_batch),
        TEST(counters_tell_what_ran),
        TEST(scratch_grows_by_doubling_and_is_kept),
        TEST(four_threads_get_what_each_gets_alone),
        TEST(a_model_and_its_sequences_work_in_a_forked_child),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
