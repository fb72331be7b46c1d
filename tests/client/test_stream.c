/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c, pump.c: events and their order, text, alternatives, credit, cancelling, slots, threads,
 * and daemons that break the rules.
 */
#include "tests/support/check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kwkclient.h"
#include "proto/unix_socket.h"
#include "tests/support/fake_daemon.h"

typedef struct fixture {
    fake_daemon *d;
    kwk_client *c;
} fixture;

static int start(void **state)
{
    static fixture f;
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;

    f.d = fake_start();
    o.timeout_ms = 5000;
    assert_int_equal(kwk_client_open(&f.c, f.d->dir, &o, NULL), KWK_OK);
    *state = &f;
    return 0;
}

static int stop(void **state)
{
    fixture *f = *state;

    kwk_client_close(f->c);
    fake_stop(f->d);
    return 0;
}

static const int32_t ten[] = {10};

static kwk_generate request(const char *model, int n)
{
    kwk_generate g = KWK_GENERATE_INIT;

    g.model = model;
    g.prompt = ten;
    g.n_prompt = 1;
    g.max_new_tokens = n;
    return g;
}

static kwk_stream *generate(fixture *f, const kwk_generate *g)
{
    kwk_stream *s = NULL;
    kwk_error err;

    if (kwk_client_generate(&s, f->c, g, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static kwk_stream *manual(fixture *f)
{
    const kwk_generate g = request("manual", 100);

    return generate(f, &g);
}

static void record(fixture *f, int type, int32_t token, const char *payload)
{
    fake_record(f->d, (uint32_t)f->d->last_stream, type, token, payload, strlen(payload));
}

static void done(fixture *f, int finish)
{
    const kwk_done d = {3, 2, 1, 0, 10, 20, 30};

    fake_record(f->d, (uint32_t)f->d->last_stream, KWK_REC_DONE, finish, &d, sizeof d);
}

static kwk_event next(kwk_stream *s)
{
    kwk_event e;
    kwk_error err = {0};
    const int rc = kwk_stream_next(s, &e, 2000, &err);

    if (rc != 1)
        fail_msg("no event: %d %s", rc, err.msg);
    return e;
}

static void assert_text(const kwk_event *e, const char *text)
{
    assert_int_equal(e->n_text, strlen(text));
    assert_memory_equal(e->text, text, e->n_text);
}

/* ---- events ------------------------------------------------------------------------------------ */

static void tokens_arrive_in_order_and_then_the_end(void **state)
{
    fixture *f = *state;
    kwk_generate g = request("count", 300);
    kwk_stream *s;
    kwk_event e;
    char text[32];
    kwk_error err;

    g.text = 1;
    s = generate(f, &g);
    for (int i = 0; i < 300; i++) {
        e = next(s);
        assert_int_equal(e.type, KWK_EVENT_TOKEN);
        assert_int_equal(e.token, 10 + i);
        assert_true(e.logprob == -0.5f);
        snprintf(text, sizeof text, "%d ", 10 + i);
        assert_text(&e, text);
        assert_int_equal(e.n_top, 0);
    }
    e = next(s);
    assert_int_equal(e.type, KWK_EVENT_DONE);
    assert_string_equal(e.finish_reason, "length");
    assert_int_equal(e.prompt_tokens, 1);
    assert_int_equal(e.new_tokens, 300);
    assert_true(e.queue_us == 10 && e.prefill_us == 20 && e.decode_us == 30);
    assert_int_equal(kwk_stream_next(s, &e, 0, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "the stream has ended");
    kwk_stream_free(s);
    kwk_stream_free(NULL);
}

static void a_seed_is_reported_given_or_drawn(void **state)
{
    fixture *f = *state;
    kwk_generate g = request("count", 0);
    kwk_stream *s = generate(f, &g);

    assert_true(kwk_stream_seed(s) == 4711);
    kwk_stream_free(s);
    g.has_seed = 1;
    g.seed = UINT64_MAX;
    s = generate(f, &g);
    assert_true(kwk_stream_seed(s) == UINT64_MAX);
    kwk_stream_free(s);
    assert_true(kwk_stream_seed(NULL) == 0);
}

static void a_token_waits_for_its_alternatives(void **state)
{
    fixture *f = *state;
    kwk_generate g = request("manual", 10);
    const kwk_event_logprob top[2] = {{7, -0.25f}, {8, -2.0f}};
    kwk_stream *s;
    kwk_event e;

    g.n_logprobs = 2;
    s = generate(f, &g);
    record(f, KWK_REC_TOKEN, 7, "");
    assert_int_equal(kwk_stream_next(s, &e, 20, NULL), 0);
    fake_record(f->d, (uint32_t)f->d->last_stream, KWK_REC_LOGPROBS, 0, top, sizeof top);
    e = next(s);
    assert_int_equal(e.token, 7);
    assert_int_equal(e.n_top, 2);
    assert_memory_equal(e.top, top, sizeof top);

    record(f, KWK_REC_TOKEN, 8, ""); // none for this one
    record(f, KWK_REC_TOKEN, 9, "");
    e = next(s);
    assert_int_equal(e.token, 8);
    assert_int_equal(e.n_top, 0);
    done(f, KWK_FINISH_EOS);
    e = next(s);
    assert_int_equal(e.token, 9);
    assert_int_equal(next(s).type, KWK_EVENT_DONE);
    kwk_stream_free(s);
}

static void twelve_alternatives_fit(void **state)
{
    fixture *f = *state;
    kwk_generate g = request("count", 50);
    kwk_stream *s;

    g.n_logprobs = 12;
    s = generate(f, &g);
    for (int i = 0; i < 50; i++) {
        const kwk_event e = next(s);
        assert_int_equal(e.n_top, 12);
        for (int j = 0; j < 12; j++)
            assert_true(e.top[j].id == 10 + i + j && e.top[j].logprob == -0.5f - (float)j);
    }
    assert_int_equal(next(s).type, KWK_EVENT_DONE);
    kwk_stream_free(s);
}

static void characters_cut_between_records_come_out_whole(void **state)
{
    fixture *f = *state;
    kwk_stream *s = manual(f);
    kwk_event e;

    record(f, KWK_REC_TOKEN, 1, "a\xf0\x9f");
    record(f, KWK_REC_TEXT, 0, "\x98"); // nothing whole yet: no event
    record(f, KWK_REC_TEXT, 0, "\x80" "b");
    record(f, KWK_REC_TOKEN, 2, "\xe2");
    done(f, KWK_FINISH_EOS);
    e = next(s);
    assert_int_equal(e.type, KWK_EVENT_TOKEN);
    assert_text(&e, "a");
    e = next(s);
    assert_int_equal(e.type, KWK_EVENT_TEXT);
    assert_text(&e, "\xf0\x9f\x98\x80" "b");
    e = next(s);
    assert_int_equal(e.token, 2);
    assert_text(&e, "");
    e = next(s); // the end cannot complete it
    assert_int_equal(e.type, KWK_EVENT_TEXT);
    assert_text(&e, "\xef\xbf\xbd");
    assert_int_equal(next(s).type, KWK_EVENT_DONE);
    kwk_stream_free(s);
}

static void progress_and_unknown_records_are_skipped(void **state)
{
    fixture *f = *state;
    kwk_stream *s = manual(f);
    kwk_event e;

    record(f, KWK_REC_PROGRESS, 5, "");
    record(f, 999, 5, "from a later version");
    fake_record(f->d, 123456, KWK_REC_TOKEN, 1, "", 0); // of no stream
    fake_record(f->d, (uint32_t)f->d->last_stream + 256, KWK_REC_TOKEN, 1, "", 0); // same slot
    assert_int_equal(kwk_stream_next(s, &e, 20, NULL), 0);
    record(f, KWK_REC_TOKEN, 6, "");
    assert_int_equal(next(s).token, 6);
    kwk_stream_free(s);
}

static void every_end_has_its_name(void **state)
{
    static const char *const names[] = {"eos", "length", "cancel", "slow_client", "shutdown",
                                        "unknown"};
    fixture *f = *state;

    for (int i = 0; i < 6; i++) {
        kwk_stream *s = manual(f);
        kwk_event e;
        done(f, KWK_FINISH_EOS + i);
        e = next(s);
        assert_int_equal(e.type, KWK_EVENT_DONE);
        assert_string_equal(e.finish_reason, names[i]);
        assert_true(e.prompt_tokens == 3 && e.new_tokens == 2 && e.cached_tokens == 1);
        kwk_stream_free(s);
    }
}

static void an_error_record_ends_the_stream(void **state)
{
    fixture *f = *state;
    kwk_stream *s = manual(f);
    kwk_event e;
    kwk_error err;

    record(f, KWK_REC_ERROR, KWK_EFULL, "the context of 64 tokens is full");
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), KWK_EFULL);
    assert_string_equal(err.msg, "the context of 64 tokens is full");
    assert_int_equal(kwk_stream_next(s, &e, 0, &err), KWK_EINVAL);
    kwk_stream_free(s);
    s = manual(f);
    record(f, KWK_REC_ERROR, 3, "no error code");
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), KWK_EPROTO);
    kwk_stream_free(s);
    s = manual(f);
    record(f, KWK_REC_DONE, KWK_FINISH_EOS, "too short");
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), KWK_EPROTO);
    kwk_stream_free(s);
}

static void waiting_ends_with_the_time(void **state)
{
    fixture *f = *state;
    kwk_stream *s = manual(f);
    kwk_event e;
    const int64_t began = kwk_now_ms();

    assert_int_equal(kwk_stream_next(s, &e, 0, NULL), 0);
    assert_true(kwk_now_ms() - began < 50);
    assert_int_equal(kwk_stream_next(s, &e, 150, NULL), 0);
    assert_true(kwk_now_ms() - began >= 150);
    assert_int_equal(kwk_stream_next(NULL, &e, 0, NULL), KWK_EINVAL);
    assert_int_equal(kwk_stream_next(s, NULL, 0, NULL), KWK_EINVAL);
    kwk_stream_free(s);
}

/* ---- requests ---------------------------------------------------------------------------------- */

static void prompts_travel_whole_inline_and_in_the_data_area(void **state)
{
    static const int sizes[] = {1, 2, 32768, 32769, KWK_PROMPT_MAX};
    fixture *f = *state;
    int32_t *ids = test_malloc((KWK_PROMPT_MAX + 1) * sizeof *ids);
    kwk_generate g = request("manual", 1);
    kwk_stream *s = NULL;
    kwk_error err;
    uint64_t seed = 1;

    for (int i = 0; i <= KWK_PROMPT_MAX; i++)
        ids[i] = (int32_t)check_random(&seed);
    g.prompt = ids;
    for (size_t i = 0; i < CHECK_COUNT(sizes); i++) {
        const int32_t *got;
        g.n_prompt = sizes[i];
        s = generate(f, &g);
        assert_int_equal(fake_last_prompt(f->d, &got), sizes[i]);
        assert_memory_equal(got, ids, (size_t)sizes[i] * 4);
        kwk_stream_free(s);
    }
    g.n_prompt = KWK_PROMPT_MAX + 1;
    assert_int_equal(kwk_client_generate(&s, f->c, &g, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "prompt: 262145 items, 262144 allowed");
    test_free(ids);
}

static void bad_requests_name_the_field_and_take_no_slot(void **state)
{
    fixture *f = *state;
    kwk_generate g;
    kwk_stream *s = NULL;
    kwk_error err;

#define REFUSED(field, value, says)                                              \
    do {                                                                         \
        g = request("count", 1);                                                 \
        g.field = value;                                                         \
        assert_int_equal(kwk_client_generate(&s, f->c, &g, &err), KWK_EINVAL);   \
        assert_non_null(strstr(err.msg, says));                                  \
    } while (0)
    for (int i = 0; i < 60; i++) { // 300 requests, more than there are slots
        REFUSED(n_prompt, 0, "prompt");
        REFUSED(temperature, NAN, "temperature");
        REFUSED(top_p, 2, "top_p");
        REFUSED(n_logprobs, 13, "n_logprobs");
        REFUSED(max_new_tokens, -2, "max_new_tokens");
    }
    REFUSED(prompt, NULL, "prompt");
    REFUSED(size, 0, "size");
    REFUSED(n_prompt, -1, "prompt");
    assert_int_equal(kwk_client_generate(NULL, f->c, &g, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_generate(&s, f->c, NULL, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_generate(&s, NULL, &g, &err), KWK_EINVAL);
    g = request("absent", 1);
    assert_int_equal(kwk_client_generate(&s, f->c, &g, &err), KWK_ENOENT);
    assert_string_equal(err.msg, "model 'absent' is not loaded");
    assert_null(s);
    assert_int_equal(f->d->n_generates, 1); // only the last one got there
}

static void a_busy_daemon_says_when_to_try_again(void **state)
{
    fixture *f = *state;
    const kwk_generate g = request("count", 1);
    kwk_stream *s = NULL;
    kwk_error err;

    f->d->error = KWK_EBUSY;
    assert_int_equal(kwk_client_generate(&s, f->c, &g, &err), KWK_EBUSY);
    assert_non_null(strstr(err.msg, "try again in 70 ms"));
}

static void a_request_without_answer_is_cancelled_when_it_runs_after_all(void **state)
{
    fixture *f = *state;
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    const kwk_generate g = request("count", -1);
    kwk_stream *s = NULL;
    kwk_client *c = NULL;
    char *json;
    kwk_error err;

    o.timeout_ms = 100;
    assert_int_equal(kwk_client_open(&c, f->d->dir, &o, &err), KWK_OK);
    f->d->silent = 1;
    assert_int_equal(kwk_client_generate(&s, c, &g, &err), KWK_ETIMEOUT);
    f->d->silent = 0;
    for (int i = 0; i < 500 && !f->d->n_cancels; i++)
        usleep(2000);
    assert_int_equal(f->d->n_cancels, 1);
    assert_int_equal(kwk_client_query(c, "status", &json, &err), KWK_OK);
    kwk_client_free(json);
    kwk_client_close(c);
}

/* ---- cancelling, credit, slots ----------------------------------------------------------------- */

static void a_cancelled_stream_ends_with_cancel(void **state)
{
    fixture *f = *state;
    const kwk_generate g = request("count", -1);
    kwk_stream *s = generate(f, &g);
    kwk_event e;

    assert_int_equal(next(s).token, 10);
    assert_int_equal(kwk_stream_cancel(s, NULL), KWK_OK);
    do
        e = next(s);
    while (e.type == KWK_EVENT_TOKEN);
    assert_string_equal(e.finish_reason, "cancel");
    assert_int_equal(kwk_stream_cancel(s, NULL), KWK_OK); // too late, no harm
    assert_int_equal(kwk_stream_cancel(NULL, NULL), KWK_EINVAL);
    kwk_stream_free(s);
}

static void freeing_a_running_stream_cancels_it_and_frees_its_slot(void **state)
{
    fixture *f = *state;
    const kwk_generate g = request("count", -1);

    for (int i = 0; i < 3 * KWK_STREAMS; i++) {
        kwk_stream *s = generate(f, &g);
        if (i % 3 == 0)
            next(s);
        kwk_stream_free(s);
        if (i % 50 == 0)
            usleep(5000);
    }
    for (int i = 0; i < 1000 && f->d->n_cancels < 3 * KWK_STREAMS; i++)
        usleep(2000);
    assert_int_equal(f->d->n_cancels, 3 * KWK_STREAMS);
}

static void a_reader_that_pauses_stops_only_its_own_stream(void **state)
{
    fixture *f = *state;
    const kwk_generate endless = request("count", -1), small = request("count", 500);
    kwk_stream *slow = generate(f, &endless), *fast;
    uint32_t n_slots;
    kwk_event e;

    for (int i = 0; i < 3; i++) {
        fast = generate(f, &small);
        for (int j = 0; j < 500; j++)
            assert_int_equal(next(fast).token, 10 + j);
        assert_int_equal(next(fast).type, KWK_EVENT_DONE);
        kwk_stream_free(fast);
    }
    // what waits for the slow reader is bounded by its credit, the ring's size
    n_slots = fake_out(f->d)->n_slots;
    f->d->stall = 1;
    usleep(5000);
    for (uint32_t i = 0; i < n_slots; i++)
        if (kwk_stream_next(slow, &e, 0, NULL) == 0) {
            assert_true(i >= n_slots - 2);
            break;
        }
    assert_int_equal(kwk_stream_next(slow, &e, 0, NULL), 0);
    f->d->stall = 0;
    assert_int_equal(next(slow).type, KWK_EVENT_TOKEN);
    kwk_stream_free(slow);
}

static void more_records_than_the_credit_end_the_session(void **state)
{
    fixture *f = *state;
    kwk_stream *a = manual(f), *b;
    const uint32_t id_a = (uint32_t)f->d->last_stream;
    kwk_event e;
    kwk_error err;
    int rc = 0;

    b = manual(f);
    // b's reader takes what is in the ring, a's never does
    for (int i = 0; i < 2000 && rc == 0; i++) {
        fake_record(f->d, id_a, KWK_REC_TOKEN, i, "", 0);
        rc = kwk_stream_next(b, &e, 0, &err);
    }
    assert_int_equal(rc, KWK_EPROTO);
    assert_non_null(strstr(err.msg, "credit"));
    kwk_stream_free(a);
    kwk_stream_free(b);
}

static void all_slots_busy_is_an_error_until_one_ends(void **state)
{
    fixture *f = *state;
    const kwk_generate g = request("manual", 5);
    kwk_stream *s[KWK_STREAMS], *extra = NULL;
    kwk_error err;

    for (int i = 0; i < KWK_STREAMS; i++)
        s[i] = manual(f);
    assert_int_equal(kwk_client_generate(&extra, f->c, &g, &err), KWK_EBUSY);
    assert_string_equal(err.msg, "256 streams of this session run already");
    done(f, KWK_FINISH_EOS); // of the last one
    extra = manual(f);
    record(f, KWK_REC_TOKEN, 77, "");
    assert_int_equal(next(extra).token, 77);
    assert_int_equal(next(s[KWK_STREAMS - 1]).type, KWK_EVENT_DONE);
    for (int i = 0; i < KWK_STREAMS; i++)
        kwk_stream_free(s[i]);
    kwk_stream_free(extra);
}

static void a_new_stream_in_an_old_slot_starts_clean(void **state)
{
    fixture *f = *state;
    const kwk_in_stream *in =
        (const kwk_in_stream *)((const uint8_t *)fake_in(f->d) + KWK_IN_STREAMS_AT);
    kwk_stream *s = manual(f), *later;
    int slot = f->d->last_stream % KWK_STREAMS;

    record(f, KWK_REC_TOKEN, 1, "");
    record(f, KWK_REC_TOKEN, 2, "");
    assert_int_equal(next(s).token, 1);
    assert_int_equal(in[slot].consumed, 1);
    kwk_stream_cancel(s, NULL);
    assert_int_equal(in[slot].cancel, 1);
    done(f, KWK_FINISH_CANCEL);
    assert_int_equal(next(s).token, 2); // its end has arrived too: the slot is free
    do
        later = manual(f);
    while (f->d->last_stream % KWK_STREAMS != slot);
    assert_int_equal(in[slot].cancel, 0);
    assert_int_equal(in[slot].consumed, 0);
    assert_int_equal(next(s).type, KWK_EVENT_DONE); // the old reader does not disturb it
    assert_int_equal(in[slot].consumed, 0);
    kwk_stream_free(s);
    (void)later; // freed with the client, as the ones in between
}

/* ---- threads ----------------------------------------------------------------------------------- */

typedef struct job {
    fixture *f;
    int32_t first;
    const char *wrong;
} job;

static void *read_streams(void *arg)
{
    job *j = arg;

    for (int round = 0; round < 5; round++) {
        kwk_generate g = request("count", 200);
        kwk_stream *s = NULL;
        kwk_event e;
        g.prompt = &j->first;
        if (kwk_client_generate(&s, j->f->c, &g, NULL) < 0) {
            j->wrong = "no stream";
            return NULL;
        }
        for (int i = 0; i <= 200; i++) {
            if (kwk_stream_next(s, &e, -1, NULL) != 1)
                j->wrong = "no event";
            else if (i < 200 && e.token != j->first + i)
                j->wrong = "another stream's token";
            else if (i == 200 && e.type != KWK_EVENT_DONE)
                j->wrong = "no end";
        }
        kwk_stream_free(s);
    }
    return NULL;
}

static void threads_read_their_own_streams(void **state)
{
    enum { N = 8 };
    pthread_t threads[N];
    job jobs[N];

    for (int i = 0; i < N; i++) {
        jobs[i] = (job){*state, 1000 * (i + 1), NULL};
        pthread_create(&threads[i], NULL, read_streams, &jobs[i]);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        if (jobs[i].wrong)
            fail_msg("thread %d: %s", i, jobs[i].wrong);
    }
}

static void *cancel_soon(void *arg)
{
    usleep(30000);
    kwk_stream_cancel(arg, NULL);
    return NULL;
}

static void another_thread_may_cancel(void **state)
{
    fixture *f = *state;
    const kwk_generate g = request("count", -1);
    kwk_stream *s = generate(f, &g);
    pthread_t thread;
    kwk_event e;

    pthread_create(&thread, NULL, cancel_soon, s);
    do
        e = next(s);
    while (e.type == KWK_EVENT_TOKEN);
    assert_string_equal(e.finish_reason, "cancel");
    pthread_join(thread, NULL);
    kwk_stream_free(s);
}

/* ---- all at once ------------------------------------------------------------------------------- */

static void generate_all_fills_the_callers_array(void **state)
{
    fixture *f = *state;
    kwk_generate g = request("count", 20);
    int32_t tokens[30];
    kwk_error err;

    assert_int_equal(kwk_client_generate_all(f->c, &g, tokens, 30, &err), 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(tokens[i], 10 + i);
    g.max_new_tokens = -1; // as many as there is room for
    assert_int_equal(kwk_client_generate_all(f->c, &g, tokens, 30, &err), 30);
    assert_int_equal(tokens[29], 39);
    g.max_new_tokens = 5000;
    assert_int_equal(kwk_client_generate_all(f->c, &g, tokens, 7, &err), 7);
    assert_int_equal(kwk_client_generate_all(f->c, &g, NULL, 0, &err), 0);
    assert_int_equal(kwk_client_generate_all(f->c, &g, NULL, 7, &err), KWK_EINVAL);
    assert_int_equal(kwk_client_generate_all(f->c, &g, tokens, -1, &err), KWK_EINVAL);
    g.model = "absent";
    assert_int_equal(kwk_client_generate_all(f->c, &g, tokens, 7, &err), KWK_ENOENT);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(tokens_arrive_in_order_and_then_the_end),
        TEST(a_seed_is_reported_given_or_drawn),
        TEST(a_token_waits_for_its_alternatives),
        TEST(twelve_alternatives_fit),
        TEST(characters_cut_between_records_come_out_whole),
        TEST(progress_and_unknown_records_are_skipped),
        TEST(every_end_has_its_name),
        TEST(an_error_record_ends_the_stream),
        TEST(waiting_ends_with_the_time),
        TEST(prompts_travel_whole_inline_and_in_the_data_area),
        TEST(bad_requests_name_the_field_and_take_no_slot),
        TEST(a_busy_daemon_says_when_to_try_again),
        TEST(a_request_without_answer_is_cancelled_when_it_runs_after_all),
        TEST(a_cancelled_stream_ends_with_cancel),
        TEST(freeing_a_running_stream_cancels_it_and_frees_its_slot),
        TEST(a_reader_that_pauses_stops_only_its_own_stream),
        TEST(more_records_than_the_credit_end_the_session),
        TEST(all_slots_busy_is_an_error_until_one_ends),
        TEST(a_new_stream_in_an_old_slot_starts_clean),
        TEST(threads_read_their_own_streams),
        TEST(another_thread_may_cancel),
        TEST(generate_all_fills_the_callers_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
