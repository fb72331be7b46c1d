/* SPDX-License-Identifier: Apache-2.0
 *
 * seq.c and forward.c: sequences, where logits lie, pieces and waves, errors that roll back.
 */
#include "tests/support/check.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "client/kwkclient.h"
#include "tests/support/fake_daemon.h"

typedef struct fixture {
    fake_daemon *d;
    kwk_client *c;
} fixture;

enum { ROW = FAKE_VOCAB * 4, ROWS = 3000 };

static int start_with(void **state, size_t logits_bytes, int timeout_ms)
{
    static fixture f;
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;

    f.d = fake_start();
    o.timeout_ms = timeout_ms;
    o.logits_bytes = logits_bytes;
    assert_int_equal(kwk_client_open(&f.c, f.d->dir, &o, NULL), KWK_OK);
    *state = &f;
    return 0;
}

static int start(void **state)
{
    return start_with(state, ROWS * ROW, 5000);
}

static int start_impatient(void **state)
{
    return start_with(state, ROWS * ROW, 150);
}

static int start_without_logits(void **state)
{
    return start_with(state, 0, 5000);
}

static int stop(void **state)
{
    fixture *f = *state;

    kwk_client_close(f->c);
    fake_stop(f->d);
    return 0;
}

static kwk_client_seq *open_seq(fixture *f)
{
    kwk_client_seq *s = NULL;
    kwk_error err;

    if (kwk_client_seq_open(&s, f->c, "count", &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static void forward(fixture *f, kwk_forward *items, int n)
{
    kwk_error err;

    if (kwk_client_forward(f->c, items, n, &err) < 0)
        fail_msg("%s", err.msg);
}

static void assert_row(const float *logits, int32_t token, int position)
{
    for (int v = 0; v < FAKE_VOCAB; v++)
        assert_true(logits[v] == (float)(token * 1000 + position + v));
}

static void sequences_open_fork_truncate_and_close(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {1, 2, 3, 4, 5};
    kwk_client_seq *s = open_seq(f), *copy = NULL;
    kwk_forward item = {.seq = s, .tokens = tokens, .n_tokens = 5};
    kwk_error err;

    assert_int_equal(kwk_client_seq_length(s), 0);
    assert_int_equal(kwk_client_seq_vocab(s), FAKE_VOCAB);
    forward(f, &item, 1);
    assert_int_equal(kwk_client_seq_length(s), 5);
    assert_int_equal(kwk_client_seq_fork(&copy, s, &err), KWK_OK);
    assert_int_equal(kwk_client_seq_length(copy), 5);
    assert_int_equal(kwk_client_seq_truncate(s, 2, &err), KWK_OK);
    assert_int_equal(kwk_client_seq_length(s), 2);
    assert_int_equal(kwk_client_seq_length(copy), 5);
    assert_int_equal(kwk_client_seq_truncate(s, 3, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_seq_truncate(s, -1, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_seq_truncate(NULL, 0, &err), KWK_EINVAL);
    assert_int_equal(fake_n_seqs(f->d), 2);
    kwk_client_seq_free(s);
    kwk_client_seq_free(copy);
    kwk_client_seq_free(NULL);
    assert_int_equal(fake_n_seqs(f->d), 0);
    s = NULL;
    assert_int_equal(kwk_client_seq_open(&s, f->c, "absent", &err), KWK_ENOENT);
    assert_int_equal(kwk_client_seq_open(NULL, f->c, NULL, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_seq_fork(&s, NULL, &err), KWK_EINVAL);
    assert_null(s);
    assert_int_equal(kwk_client_seq_length(NULL), 0);
    assert_int_equal(kwk_client_seq_vocab(NULL), 0);
}

static void logits_of_the_last_token_or_of_all(void **state)
{
    fixture *f = *state;
    const int32_t a[] = {1, 2, 3}, b[] = {9, 8};
    kwk_forward items[3] = {
        {.seq = open_seq(f), .tokens = a, .n_tokens = 3},
        {.seq = open_seq(f), .tokens = b, .n_tokens = 2, .all_logits = 1},
        {.seq = open_seq(f), .tokens = a, .n_tokens = 1},
    };

    forward(f, items, 3);
    assert_row(items[0].logits, 3, 2);
    assert_row(items[1].logits, 9, 0);
    assert_row(items[1].logits + FAKE_VOCAB, 8, 1);
    assert_row(items[2].logits, 1, 0);
    forward(f, items, 3); // goes on after the last
    assert_row(items[0].logits, 3, 5);
    assert_row(items[1].logits + FAKE_VOCAB, 8, 3);
    assert_row(items[2].logits, 1, 1);
    assert_int_equal(kwk_client_seq_length(items[0].seq), 6);
}

static void positions_and_validity_go_along(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {5, 6, 7}, positions[] = {40, 30, 20};
    const uint8_t valid[] = {0, 1, 1};
    kwk_forward item = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 3,
                        .positions = positions, .valid = valid, .all_logits = 1};

    forward(f, &item, 1);
    assert_true(item.logits[7] == -1); // the hole
    assert_row(item.logits + FAKE_VOCAB, 6, 30);
    assert_row(item.logits + 2 * FAKE_VOCAB, 7, 20);
    item.positions = NULL;
    item.n_tokens = 1;
    item.all_logits = 0;
    forward(f, &item, 1);
    assert_true(item.logits[0] == -1);
}

/* Longer than a submission takes: cut, yet every row is where one submission would have put it. */
static void long_items_are_cut_into_pieces(void **state)
{
    fixture *f = *state;
    static int32_t tokens[1300], positions[1300];
    static uint8_t valid[1300];
    kwk_forward items[3];

    for (int i = 0; i < 1300; i++) {
        tokens[i] = i % 500;
        positions[i] = 3 * i;
        valid[i] = 1;
    }
    items[0] = (kwk_forward){.seq = open_seq(f), .tokens = tokens, .n_tokens = 1300};
    items[1] = (kwk_forward){.seq = open_seq(f), .tokens = tokens, .n_tokens = 1300,
                             .positions = positions, .valid = valid, .all_logits = 1};
    items[2] = (kwk_forward){.seq = open_seq(f), .tokens = tokens, .n_tokens = 7};
    forward(f, items, 3);
    assert_int_equal(f->d->n_subs, 3 + 3 + 1);
    assert_row(items[0].logits, 1299 % 500, 1299);
    for (int i = 0; i < 1300; i++)
        assert_row(items[1].logits + i * FAKE_VOCAB, i % 500, 3 * i);
    assert_row(items[2].logits, 6, 6);
    assert_int_equal(kwk_client_seq_length(items[1].seq), 1300);
    assert_int_equal(fake_seq_length(f->d, 1), 1300);
}

/* More items than submissions fit, and more bytes than the data area holds. */
static void many_items_run_in_waves(void **state)
{
    enum { N = 250 };
    fixture *f = *state;
    static kwk_forward items[N];
    static int32_t tokens[2000];
    static uint8_t valid[2000];

    for (int i = 0; i < 2000; i++)
        tokens[i] = i % 300;
    memset(valid, 1, sizeof valid);
    for (int i = 0; i < N; i++)
        items[i] = (kwk_forward){.seq = open_seq(f), .tokens = tokens + i, .n_tokens = 600,
                                 .positions = tokens, .valid = valid};
    forward(f, items, N); // 250 × 512 × 9 bytes are more than 1 MiB
    for (int i = 0; i < N; i++) {
        assert_row(items[i].logits, (i + 599) % 300, tokens[599]);
        assert_int_equal(kwk_client_seq_length(items[i].seq), 600);
    }
}

static void an_error_leaves_every_sequence_as_it_was(void **state)
{
    fixture *f = *state;
    static int32_t tokens[1300];
    kwk_forward items[3];
    kwk_error err;

    for (int i = 0; i < 3; i++)
        items[i] = (kwk_forward){.seq = open_seq(f), .tokens = tokens, .n_tokens = i ? 1300 : 1};
    forward(f, items, 3);
    f->d->sub_error_seq = 3; // the third sequence
    assert_int_equal(kwk_client_forward(f->c, items, 3, &err), KWK_EFULL);
    assert_string_equal(err.msg, "no room here");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kwk_client_seq_length(items[i].seq), i ? 1300 : 1);
        assert_int_equal(fake_seq_length(f->d, (uint64_t)i + 1), i ? 1300 : 1);
    }
    f->d->sub_error_seq = -1;
    forward(f, items, 3); // and goes on
    assert_int_equal(fake_seq_length(f->d, 3), 2600);
}

static void bad_items_are_refused_before_anything_runs(void **state)
{
    fixture *f = *state;
    static int32_t tokens[FAKE_MAX_CTX + 1];
    kwk_client_seq *s = open_seq(f);
    kwk_forward items[2] = {{.seq = s, .tokens = tokens, .n_tokens = 1},
                            {.seq = open_seq(f), .tokens = tokens, .n_tokens = 1}};
    kwk_forward bad[2];
    kwk_error err;

#define REFUSED(code, says)                                                       \
    do {                                                                          \
        assert_int_equal(kwk_client_forward(f->c, bad, 2, &err), code);           \
        assert_non_null(strstr(err.msg, says));                                   \
        memcpy(bad, items, sizeof bad);                                           \
    } while (0)
    memcpy(bad, items, sizeof bad);
    bad[1].seq = s;
    REFUSED(KWK_EINVAL, "item 1: its sequence is in an item before");
    bad[1].n_tokens = 0;
    REFUSED(KWK_EINVAL, "item 1: no tokens");
    bad[1].tokens = NULL;
    REFUSED(KWK_EINVAL, "item 1: no tokens");
    bad[0].seq = NULL;
    REFUSED(KWK_EINVAL, "item 0: sequence of another client");
    bad[1].n_tokens = FAKE_MAX_CTX + 1;
    REFUSED(KWK_EFULL, "4097 tokens after 0 in a context of 4096");
    bad[1].n_tokens = ROWS;
    bad[1].all_logits = 1;
    REFUSED(KWK_EFULL, "logits of 2 items");
    assert_int_equal(kwk_client_forward(f->c, items, 0, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_forward(f->c, NULL, 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_forward(f->c, items, 1 << 20, &err), KWK_EINVAL);
    assert_int_equal(f->d->n_subs, 0);
    bad[1].n_tokens = ROWS - 1; // exactly full
    bad[1].all_logits = 1;
    forward(f, bad, 2);
    assert_row(bad[1].logits + (ROWS - 2) * FAKE_VOCAB, 0, ROWS - 2);
}

static void without_a_logits_area_there_is_no_forward(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {1};
    kwk_forward item = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 1};
    kwk_error err;

    assert_int_equal(kwk_client_forward(f->c, &item, 1, &err), KWK_EFULL);
    assert_non_null(strstr(err.msg, "session's 0 bytes"));
}

static void answers_in_the_wrong_place_are_violations(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {1};
    kwk_forward item = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 1};
    kwk_error err;

    f->d->sub_bad_row = 5;
    assert_int_equal(kwk_client_forward(f->c, &item, 1, &err), KWK_EPROTO);
    assert_int_equal(kwk_client_forward(f->c, &item, 1, &err), KWK_EINVAL); // its state is unknown
    assert_non_null(strstr(err.msg, "free it"));
    assert_int_equal(kwk_client_seq_truncate(item.seq, 0, &err), KWK_EINVAL);
    kwk_client_seq_free(item.seq);
    assert_int_equal(fake_n_seqs(f->d), 0);
}

static void a_forward_that_times_out_blocks_only_until_its_answers_come(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {1, 2};
    kwk_forward first = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 2};
    kwk_forward second = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 1};
    kwk_error err;

    f->d->stall = 1;
    usleep(5000);
    assert_int_equal(kwk_client_forward(f->c, &first, 1, &err), KWK_ETIMEOUT);
    assert_int_equal(kwk_client_forward(f->c, &second, 1, &err), KWK_ETIMEOUT); // areas in use
    f->d->stall = 0;
    forward(f, &second, 1); // nothing was submitted for it before
    assert_row(second.logits, 1, 0);
    assert_int_equal(kwk_client_forward(f->c, &first, 1, &err), KWK_EINVAL);
    kwk_client_seq_free(first.seq);
}

static void *kill_soon(void *arg)
{
    usleep(30000);
    fake_kill(arg);
    return NULL;
}

static void a_waiting_forward_notices_death(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {1};
    kwk_forward item = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 1};
    pthread_t thread;
    kwk_error err;

    f->d->stall = 1;
    usleep(5000);
    pthread_create(&thread, NULL, kill_soon, f->d);
    assert_int_equal(kwk_client_forward(f->c, &item, 1, &err), KWK_ECLOSED);
    pthread_join(thread, NULL);
    kwk_client_seq_free(item.seq);
}

static void a_sleeping_daemon_is_rung_and_a_busy_one_is_not(void **state)
{
    fixture *f = *state;
    const int32_t tokens[] = {1};
    kwk_forward item = {.seq = open_seq(f), .tokens = tokens, .n_tokens = 1};
    pthread_t thread;
    int before;

    usleep(10000); // the stand-in has nothing to do and says so
    before = f->d->n_rings;
    forward(f, &item, 1);
    for (int i = 0; i < 200 && f->d->n_rings == before; i++)
        usleep(1000);
    assert_int_equal(f->d->n_rings, before + 1);

    f->d->stall = 1;
    usleep(5000);
    atomic_store(&fake_out(f->d)->sub_sleeping, 0);
    pthread_create(&thread, NULL, kill_soon, f->d);
    assert_int_equal(kwk_client_forward(f->c, &item, 1, NULL), KWK_ECLOSED);
    pthread_join(thread, NULL);
    assert_int_equal(f->d->n_rings, before + 1);
}

typedef struct job {
    fixture *f;
    int32_t token;
    int wrong;
} job;

static void *forward_many(void *arg)
{
    job *j = arg;
    kwk_client_seq *s = open_seq(j->f);

    for (int i = 0; i < 50; i++) {
        kwk_forward item = {.seq = s, .tokens = &j->token, .n_tokens = 1};
        if (kwk_client_forward(j->f->c, &item, 1, NULL) < 0)
            j->wrong = 1;
        // Another thread's forward may already write there: only this one's own mirror is checked.
        if (kwk_client_seq_length(s) != i + 1)
            j->wrong = 2;
    }
    kwk_client_seq_free(s);
    return NULL;
}

static void forwards_of_several_threads_run_one_after_the_other(void **state)
{
    pthread_t threads[4];
    job jobs[4];

    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){*state, i + 1, 0};
        pthread_create(&threads[i], NULL, forward_many, &jobs[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].wrong, 0);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(sequences_open_fork_truncate_and_close),
        TEST(logits_of_the_last_token_or_of_all),
        TEST(positions_and_validity_go_along),
        TEST(long_items_are_cut_into_pieces),
        TEST(many_items_run_in_waves),
        TEST(an_error_leaves_every_sequence_as_it_was),
        TEST(bad_items_are_refused_before_anything_runs),
        cmocka_unit_test_setup_teardown(without_a_logits_area_there_is_no_forward,
                                        start_without_logits, stop),
        TEST(answers_in_the_wrong_place_are_violations),
        cmocka_unit_test_setup_teardown(
            a_forward_that_times_out_blocks_only_until_its_answers_come, start_impatient, stop),
        TEST(a_waiting_forward_notices_death),
        TEST(a_sleeping_daemon_is_rung_and_a_busy_one_is_not),
        TEST(forwards_of_several_threads_run_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
