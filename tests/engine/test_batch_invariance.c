/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariant I1: the logits of a token have the same bits whatever shares its step, however its
 * prompt was cut, whatever the thread count, after fork and truncate, with holes in the mask, in
 * every precision and at every instruction-set level. The same program built with one summation
 * reordered (ops.c, KWK_BREAK_ORDER) must fail with "logits differ".
 *
 * Every sequence has a script (tokens, positions, validity). Its logits, computed alone, one row a
 * step, on one thread, by the reference kernels, are what all other ways must reproduce.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kwk.h"
#include "tests/support/check.h"
#include "tests/support/hand_model.h"

enum { VOCAB = 67, LONG = 300, SCRIPTS = 17, DECODE = 4, MAX_BATCH = 16 };

typedef struct script {
    int n; // slots in all; the last DECODE of them are decoded in company
    int32_t token[LONG], position[LONG];
    uint8_t valid[LONG];
    int holes;     // slots 0 … holes-1 are appended without computing anything
    float *logits; // (n, VOCAB)
} script;

static script scripts[SCRIPTS];
static kwk_model *m;
static const char *where_; // precision and level, for messages
static int brief_;         // the reference kernels are slow: fewer ways for them
static kwk_counters seen;  // summed over all models

static void make_scripts(void)
{
    static const int lengths[SCRIPTS] = {LONG, 9,  40, 261, 33,  70,  128, 32, 257,
                                         20,   65, 31, 280, 100, 256, 12,  64};
    uint64_t seed = 1;

    for (int s = 0; s < SCRIPTS; s++) {
        script *c = &scripts[s];
        int position = 0;

        c->n = lengths[s];
        c->holes = s % 4 == 3 ? 5 : 0;
        for (int i = 0; i < c->n; i++) {
            c->token[i] = check_random_int(&seed, 0, VOCAB - 1);
            c->valid[i] = s % 3 != 2 || i % 11 != 4; // every third has holes inside
            c->position[i] = position;
            position += c->valid[i] && i >= c->holes;
        }
        c->logits = malloc((size_t)c->n * VOCAB * sizeof *c->logits);
        assert_non_null(c->logits);
    }
}

static void check_logits(const script *c, int slot, const float *got, const char *how, int number)
{
    const float *want = c->logits + (size_t)slot * VOCAB;

    for (int i = 0; i < VOCAB; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("logits differ: %s, script %d, slot %d, %s %d: logit %d is %a, alone %a",
                     where_, (int)(c - scripts), slot, how, number, i, (double)got[i],
                     (double)want[i]);
}

static kwk_row row_of(const script *c, int slot, kwk_seq *s)
{
    return (kwk_row){.seq = s,
                     .token = c->token[slot],
                     .position = c->position[slot],
                     .invalid = !c->valid[slot],
                     .want_logits = 1};
}

static void step(kwk_row *rows, int n, float *logits)
{
    kwk_step_args a = {.size = sizeof a, .rows = rows, .n_rows = n, .logits = logits};
    kwk_error err = {0};

    if (kwk_step(m, &a, &err) != KWK_OK)
        fail_msg("%s: kwk_step: %s", where_, err.msg);
}

static kwk_seq *new_seq(const script *c)
{
    kwk_seq *s = NULL;

    assert_int_equal(kwk_seq_new(&s, m, NULL), KWK_OK);
    assert_int_equal(kwk_seq_append_holes(s, c->holes, NULL), KWK_OK);
    return s;
}

/* Slots up to `end`, `chunk` rows a step; out NULL: compare. */
static void feed(const script *c, kwk_seq *s, int end, int chunk, float *out, const char *how,
                 int number)
{
    static kwk_row rows[LONG];
    static float logits[LONG * VOCAB];

    for (int at = kwk_seq_length(s); at < end;) {
        const int n = end - at < chunk ? end - at : chunk;

        for (int i = 0; i < n; i++)
            rows[i] = row_of(c, at + i, s);
        step(rows, n, out ? out + (size_t)at * VOCAB : logits);
        for (int i = 0; i < n && !out; i++)
            check_logits(c, at + i, logits + (size_t)i * VOCAB, how, number);
        at += n;
    }
}

static void compute_alone(void)
{
    assert_int_equal(kwk_set_threads(1, NULL), KWK_OK);
    for (int i = 0; i < SCRIPTS; i++) {
        kwk_seq *s = new_seq(&scripts[i]);

        feed(&scripts[i], s, scripts[i].n, 1, scripts[i].logits, "", 0);
        kwk_seq_free(s);
    }
}

/* ---- the other ways ------------------------------------------------------------------------- */

static void check_chunks(void)
{
    static const int chunks[] = {1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64, 100, 128, 256, 300};

    for (size_t k = 0; k < CHECK_COUNT(chunks); k += brief_ ? 4 : 1)
        for (int i = 0; i < 4; i++) { // long, short, holes inside, holes before
            kwk_seq *s = new_seq(&scripts[i]);

            feed(&scripts[i], s, scripts[i].n, chunks[k], NULL, "chunks of", chunks[k]);
            kwk_seq_free(s);
        }
}

/* Sequences that stand before their last DECODE slots. */
static void open_all(kwk_seq **s)
{
    for (int i = 0; i < SCRIPTS; i++) {
        s[i] = new_seq(&scripts[i]);
        feed(&scripts[i], s[i], scripts[i].n - DECODE, 50, NULL, "chunks of", 50);
    }
}

/* Decode forks of `batch` sequences together, in another order every step. */
static void check_batches(kwk_seq *const *open)
{
    uint64_t seed = 77;

    for (int batch = 1; batch <= MAX_BATCH; batch += brief_ ? 4 : 1) {
        kwk_seq *s[MAX_BATCH];
        kwk_row rows[MAX_BATCH];
        float logits[MAX_BATCH * VOCAB];
        int who[MAX_BATCH];
        const int first = check_random_int(&seed, 0, SCRIPTS - 1);

        for (int i = 0; i < batch; i++) {
            who[i] = (first + i * 5) % SCRIPTS; // 5 and 17 have no common factor: all different
            assert_int_equal(kwk_seq_fork(&s[i], open[who[i]], NULL), KWK_OK);
        }
        for (int d = DECODE; d > 0; d--) {
            for (int i = batch - 1; i > 0; i--) { // shuffle
                const int k = check_random_int(&seed, 0, i), w = who[i];
                kwk_seq *t = s[i];
                who[i] = who[k];
                s[i] = s[k];
                who[k] = w;
                s[k] = t;
            }
            for (int i = 0; i < batch; i++)
                rows[i] = row_of(&scripts[who[i]], scripts[who[i]].n - d, s[i]);
            step(rows, batch, logits);
            for (int i = 0; i < batch; i++)
                check_logits(&scripts[who[i]], scripts[who[i]].n - d, logits + i * VOCAB,
                             "batch of", batch);
        }
        for (int i = 0; i < batch; i++)
            kwk_seq_free(s[i]);
    }
}

/* Steps of decoding rows and slices of prompts, as a scheduler makes them. */
static void check_mixed(kwk_seq *const *open)
{
    static kwk_row rows[LONG];
    static float logits[LONG * VOCAB];
    static const int prompts[2] = {8, 12}, slices[DECODE] = {37, 1, 128, 9};
    kwk_seq *s[SCRIPTS], *p[2];

    for (int i = 0; i < SCRIPTS; i++)
        assert_int_equal(kwk_seq_fork(&s[i], open[i], NULL), KWK_OK);
    for (int i = 0; i < 2; i++)
        p[i] = new_seq(&scripts[prompts[i]]);
    for (int d = DECODE; d > 0; d--) {
        const int slice = slices[DECODE - d];
        int n = 0, at = 0;

        for (int i = 0; i < SCRIPTS; i += d % 2 ? 1 : 6) {
            rows[n++] = row_of(&scripts[i], kwk_seq_length(s[i]), s[i]);
            if (i == 6)
                for (int k = 0; k < slice; k++)
                    rows[n++] = row_of(&scripts[8], kwk_seq_length(p[0]) + k, p[0]);
        }
        for (int k = 0; k < slice / 2 + 1; k++)
            rows[n++] = row_of(&scripts[12], kwk_seq_length(p[1]) + k, p[1]);
        for (int i = 0; i < n; i++)
            rows[i].want_logits = i % 3 != 1; // so the head sees another batch than the layers
        int slot[LONG];
        for (int i = 0; i < n; i++)
            slot[i] = i > 0 && rows[i].seq == rows[i - 1].seq ? slot[i - 1] + 1
                                                              : kwk_seq_length(rows[i].seq);
        step(rows, n, logits);
        for (int i = 0; i < n; i++) {
            int script = -1;
            for (int k = 0; k < SCRIPTS; k++)
                if (rows[i].seq == s[k])
                    script = k;
            if (script < 0)
                script = rows[i].seq == p[0] ? 8 : 12;
            if (rows[i].want_logits)
                check_logits(&scripts[script], slot[i], logits + (size_t)at++ * VOCAB,
                             "mixed step of", n);
        }
    }
    for (int i = 0; i < SCRIPTS; i++)
        kwk_seq_free(s[i]);
    for (int i = 0; i < 2; i++)
        kwk_seq_free(p[i]);
}

/* Wrong turns: other tokens, then back to a common prefix of any length. */
static void check_truncated(void)
{
    static const int lengths[] = {0, 1, 31, 32, 33, 100, 255, 256, 257, 299};
    kwk_seq *s = new_seq(&scripts[0]);
    kwk_row rows[20];

    for (size_t i = 0; i < CHECK_COUNT(lengths); i++) {
        if (kwk_seq_length(s) > lengths[i])
            assert_int_equal(kwk_seq_truncate(s, lengths[i], NULL), KWK_OK);
        feed(&scripts[0], s, lengths[i], 64, NULL, "after truncate to", lengths[i]);
        for (int k = 0; k < 20; k++)
            rows[k] = (kwk_row){.seq = s, .token = k, .position = lengths[i] + k};
        step(rows, 20, NULL);
        assert_int_equal(kwk_seq_truncate(s, lengths[i], NULL), KWK_OK);
        feed(&scripts[0], s, lengths[i] + 1, 1, NULL, "after truncate to", lengths[i]);
    }
    kwk_seq_free(s);
}

/* A draft is verified in one step, and the copy goes on where the original stood. */
static void check_forked(kwk_seq *const *open)
{
    for (int i = 0; i < SCRIPTS; i += 4) {
        kwk_seq *f = NULL, *g = NULL;

        assert_int_equal(kwk_seq_fork(&f, open[i], NULL), KWK_OK);
        feed(&scripts[i], f, scripts[i].n, DECODE, NULL, "verified draft of", DECODE);
        assert_int_equal(kwk_seq_fork(&g, f, NULL), KWK_OK);
        assert_int_equal(kwk_seq_truncate(g, scripts[i].n - 2, NULL), KWK_OK);
        feed(&scripts[i], g, scripts[i].n, 1, NULL, "fork of a fork of", i);
        kwk_seq_free(f);
        kwk_seq_free(g);
    }
}

static void add_counters(void)
{
    kwk_counters c;

    kwk_model_counters(m, &c);
    seen.gemv += c.gemv;
    seen.small += c.small;
    seen.gemm += c.gemm;
    seen.attn_decode += c.attn_decode;
    seen.attn_prefill += c.attn_prefill;
    seen.attn_merges += c.attn_merges;
    seen.blocks_copied += c.blocks_copied;
    if (c.max_rows > seen.max_rows)
        seen.max_rows = c.max_rows;
    assert_true(c.gemv > 0 && c.small > 0 && c.gemm > 0);
    assert_true(c.attn_decode > 0 && c.attn_prefill > 0 && c.attn_merges > 0);
    assert_true(c.blocks_copied > 0);
}

/* finer: of embedding, head, v and down; 0: as the others */
static void check_mixed_precision(kwk_format format, kwk_format finer, int kv_bits,
                                  const char *name)
{
    const hand_config config = {.n_layers = 2,
                                .hidden = 40,
                                .inter = 72,
                                .n_heads = 6,
                                .n_kv_heads = 2,
                                .head_dim = 10,
                                .vocab = VOCAB,
                                .bias = 1,
                                .qk_norm = 1,
                                .format = format,
                                .finer = finer,
                                .kv_bits = kv_bits,
                                .kv_bytes = (uint64_t)256 << 20};

    for (const check_level *l = check_levels(); l->name; l++) {
        static char where[64];
        kwk_seq *open[SCRIPTS];

        snprintf(where, sizeof where, "%s, %s", name, l->name);
        where_ = where;
        assert_int_equal(setenv("KWKER_ISA", l->name, 1), 0);
        m = hand_model_new(&config);
        if (l == check_levels()) // the first, the reference: the others must equal it too
            compute_alone();
        brief_ = !strcmp(l->name, "ref");
        for (int threads = brief_ ? 2 : 1; threads <= 2; threads++) {
            assert_int_equal(kwk_set_threads(threads, NULL), KWK_OK);
            check_chunks();
            open_all(open);
            check_batches(open);
            check_mixed(open);
            check_forked(open);
            check_truncated();
            for (int i = 0; i < SCRIPTS; i++)
                kwk_seq_free(open[i]);
        }
        add_counters();
        hand_model_free(m);
        unsetenv("KWKER_ISA");
    }
}

static void check_precision(kwk_format format, int kv_bits, const char *name)
{
    check_mixed_precision(format, 0, kv_bits, name);
}

static void float32_logits_do_not_depend_on_the_company(void **state)
{
    check_precision(KWK_F32, 32, "float32");
}

static void f16_logits_do_not_depend_on_the_company(void **state)
{
    check_precision(KWK_F16, 32, "f16");
}

static void bf16_logits_do_not_depend_on_the_company(void **state)
{
    check_precision(KWK_BF16, 16, "bf16 with half KV");
}

static void int8_logits_do_not_depend_on_the_company(void **state)
{
    check_precision(KWK_I8, 16, "int8");
}

static void int6_logits_do_not_depend_on_the_company(void **state)
{
    check_precision(KWK_I6, 16, "int6");
}

static void int4_logits_do_not_depend_on_the_company(void **state)
{
    check_precision(KWK_I4, 16, "int4");
}

static void int4_mixed_with_int6_logits_do_not_depend_on_the_company(void **state)
{
    check_mixed_precision(KWK_I4, KWK_I6, 16, "int4, finer int6");
}

static void every_form_took_part(void **state)
{
    print_message("gemv %llu, small %llu, gemm %llu, decode %llu, prefill %llu, merges %llu, "
                  "copied %llu, most rows %llu\n",
                  (unsigned long long)seen.gemv, (unsigned long long)seen.small,
                  (unsigned long long)seen.gemm, (unsigned long long)seen.attn_decode,
                  (unsigned long long)seen.attn_prefill, (unsigned long long)seen.attn_merges,
                  (unsigned long long)seen.blocks_copied, (unsigned long long)seen.max_rows);
    assert_true(seen.gemv > 0 && seen.small > 0 && seen.gemm > 0);
    assert_true(seen.attn_decode > 0 && seen.attn_prefill > 0 && seen.attn_merges > 0);
    assert_true(seen.max_rows >= LONG - 5); // more than one chunk
}

static int setup(void **state)
{
    make_scripts();
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < SCRIPTS; i++)
        free(scripts[i].logits);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_logits_do_not_depend_on_the_company),
        cmocka_unit_test(f16_logits_do_not_depend_on_the_company),
        cmocka_unit_test(bf16_logits_do_not_depend_on_the_company),
        cmocka_unit_test(int8_logits_do_not_depend_on_the_company),
        cmocka_unit_test(int6_logits_do_not_depend_on_the_company),
        cmocka_unit_test(int4_logits_do_not_depend_on_the_company),
        cmocka_unit_test(int4_mixed_with_int6_logits_do_not_depend_on_the_company),
        cmocka_unit_test(every_form_took_part),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
