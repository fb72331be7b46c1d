/* SPDX-License-Identifier: Apache-2.0
 *
 * One generation by itself: what it checks, what records it makes. */
#include <math.h>
#include <string.h>

#include "daemon/job.h"
#include "tests/daemon/harness.h"

static harness h;
static client c;
static kwkd_model *model;
static kwk_error err;
static const int32_t prompt[] = {1, 5, 7};

static int setup(void **state)
{
    int retry_ms;

    fake_reset();
    harness_start(&h, 0, NULL);
    assert_int_equal(harness_load(&h, "m"), KWK_OK);
    assert_int_equal(kwkd_store_find(h.d.store, "m", &model, &retry_ms, &err), KWK_OK);
    client_open(&c, &h, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    kwkd_model_unref(model);
    client_close(&c, &h);
    harness_stop(&h);
    return 0;
}

static kwk_generate_req ask(void)
{
    return harness_generate(5, prompt, 3, 100).u.generate;
}

static kwkd_job *make(const kwk_generate_req *req)
{
    kwkd_job *j = NULL;

    if (kwkd_job_new(&j, model, c.session, 1000, req, 1000, &err) < 0)
        fail_msg("%s", err.msg);
    return j;
}

static void refused(const kwk_generate_req *req, int code, const char *field)
{
    kwkd_job *j = NULL;

    memset(&err, 0, sizeof err);
    assert_int_equal(kwkd_job_new(&j, model, c.session, 1000, req, 1000, &err), code);
    if (!strstr(err.msg, field))
        fail_msg("'%s' is not in '%s'", field, err.msg);
    // nothing stays behind: the stream can be used
    assert_int_equal(kwkd_session_take_stream(c.session, 5, &err), KWK_OK);
    kwkd_session_free_stream(c.session, 5);
}

static void bad_fields_are_refused_by_name(void **state)
{
    const int32_t outside[] = {1, 300}, negative[] = {-1};
    kwk_generate_req r = ask();

    r.n_prompt = 0;
    refused(&r, KWK_EINVAL, "prompt is empty");
    r = ask();
    r.prompt = outside;
    r.n_prompt = 2;
    refused(&r, KWK_EINVAL, "id 300 at place 1");
    r.prompt = negative;
    r.n_prompt = 1;
    refused(&r, KWK_EINVAL, "id -1");
    r = ask();
    r.max_new_tokens = -2;
    refused(&r, KWK_EINVAL, "max_new_tokens is -2");
    r = ask();
    r.n_logprobs = 13;
    refused(&r, KWK_EINVAL, "n_logprobs");
    r = ask();
    r.do_sample = 1;
    r.temperature = 0;
    refused(&r, KWK_EINVAL, "temperature");
    r = ask();
    r.credit = -1;
    refused(&r, KWK_EINVAL, "credit");
    r = ask();
    r.eos = outside;
    r.n_eos = 2;
    refused(&r, KWK_EINVAL, "eos");
    r = ask();
    const kwk_bias nan_bias = {5, NAN}, far = {300, 0};
    r.bias = &nan_bias;
    r.n_bias = 1;
    refused(&r, KWK_EINVAL, "logit_bias");
    r.bias = &far;
    refused(&r, KWK_EINVAL, "logit_bias");
    r = ask();
    r.inline_reply = 1;
    r.max_new_tokens = 1001;
    refused(&r, KWK_EINVAL, "inline");
}

static void without_a_session_only_inline_works(void **state)
{
    kwk_generate_req r = ask();
    kwkd_job *j = NULL;

    assert_int_equal(kwkd_job_new(&j, model, NULL, 1000, &r, 1000, &err), KWK_EINVAL);
    r.inline_reply = 1;
    assert_int_equal(kwkd_job_new(&j, model, NULL, 1000, &r, 1000, &err), KWK_OK);
    assert_int_equal(j->max_new, 100);
    kwkd_job_free(j);
    r.max_new_tokens = -1;
    assert_int_equal(kwkd_job_new(&j, model, NULL, 1000, &r, 1000, &err), KWK_OK);
    assert_int_equal(j->max_new, 1000); // as many as fit a reply
    kwkd_job_free(j);
}

static void greedy_ignores_the_fields_of_sampling(void **state)
{
    kwk_generate_req r = ask();

    r.temperature = 0;
    r.top_k = -5;
    r.top_p = NAN;
    kwkd_job_free(make(&r));
}

static void a_span_is_read_from_the_clients_memory(void **state)
{
    kwk_generate_req r = ask();
    kwkd_job *j;

    memcpy(client_data(&c) + 10, prompt, sizeof prompt);
    r.prompt = NULL;
    r.n_prompt = 0;
    r.has_span = 1;
    r.span_offset = 40;
    r.span_n = 3;
    j = make(&r);
    assert_memory_equal(j->ids, prompt, sizeof prompt);
    client_data(&c)[10] = 250; // too late
    assert_int_equal(j->ids[0], 1);
    kwkd_job_free(j);
    r.span_offset = 41;
    refused(&r, KWK_EINVAL, "span");
    r.span_offset = (1 << 20) - 8;
    refused(&r, KWK_EINVAL, "span");
    r.span_offset = UINT32_MAX - 3;
    refused(&r, KWK_EINVAL, "span");
    r.span_offset = 0;
    r.span_n = UINT32_MAX;
    refused(&r, KWK_EINVAL, "prompt");
    r.span_n = 0;
    refused(&r, KWK_EINVAL, "empty");
    r.span_n = 1;
    r.prompt = prompt;
    r.n_prompt = 3;
    refused(&r, KWK_EINVAL, "both");
}

static void a_seed_is_drawn_when_none_is_given(void **state)
{
    kwk_generate_req r = ask();
    kwkd_job *j = make(&r);
    const uint64_t first = j->sampling.seed;

    kwkd_job_free(j);
    j = make(&r);
    assert_true(j->sampling.seed != first);
    kwkd_job_free(j);
    r.has_seed = 1;
    r.seed = 42;
    j = make(&r);
    assert_int_equal(j->sampling.seed, 42);
    kwkd_job_free(j);
}

static void text_without_a_tokenizer_is_unsupported(void **state)
{
    kwk_generate_req r = ask();

    model->has_text = 0;
    r.text = 1;
    refused(&r, KWK_EUNSUPPORTED, "text");
    model->has_text = 1;
}

/* Put everything and read it. */
static int records(kwkd_job *j, kwk_record *out)
{
    int n = 0;

    assert_true(kwkd_job_flush(j, 1, &err) >= 0);
    (void)kwk_out_publish(&c.session->engine.ring);
    while (client_take(&c, &out[n]))
        n++;
    return n;
}

static void records_carry_tokens_text_and_logprobs(void **state)
{
    kwk_generate_req r = ask();
    kwk_record rec[16];
    kwk_logprob top[2];
    kwkd_job *j;

    r.text = 1;
    r.n_logprobs = 2;
    j = make(&r);
    j->top[0] = (kwk_logprob){'a', -0.25f};
    j->top[1] = (kwk_logprob){'b', -2};
    kwkd_job_token(j, 'a', -0.25f, 10);
    assert_int_equal(records(j, rec), 2);
    assert_int_equal(rec[0].type, KWK_REC_TOKEN);
    assert_int_equal(rec[0].stream, 5);
    assert_int_equal(rec[0].token, 'a');
    assert_true(rec[0].logprob == -0.25f);
    assert_int_equal(rec[0].n_bytes, 1);
    assert_int_equal(rec[0].payload[0], 'a');
    assert_int_equal(rec[1].type, KWK_REC_LOGPROBS);
    assert_int_equal(rec[1].n_bytes, sizeof top);
    memcpy(top, rec[1].payload, sizeof top);
    assert_int_equal(top[1].id, 'b');
    kwkd_job_free(j);
}

static void long_text_is_spread_over_records(void **state)
{
    kwk_generate_req r = ask();
    kwk_record rec[16];
    size_t bytes = 0;
    kwkd_job *j;
    int n;

    model->max_token_bytes = 200;
    fake.text_bytes = 200;
    r.text = 1;
    j = make(&r);
    kwkd_job_token(j, 'x', 0, 10);
    n = records(j, rec);
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++) {
        assert_int_equal(rec[i].type, i ? KWK_REC_TEXT : KWK_REC_TOKEN);
        bytes += rec[i].n_bytes;
    }
    assert_int_equal(bytes, 200);
    kwkd_job_free(j);
}

static void text_is_held_back_until_a_character_is_whole(void **state)
{
    const int32_t snowman[] = {0xe2, 0x98, 0x83, 0xe2}; // ☃, then the start of another
    kwk_generate_req r = ask();
    kwk_record rec[16];
    kwkd_job *j;

    r.text = 1;
    j = make(&r);
    for (int i = 0; i < 4; i++)
        kwkd_job_token(j, snowman[i], 0, 10);
    kwkd_job_finish(j, KWK_FINISH_CANCEL, 20);
    assert_int_equal(records(j, rec), 6);
    assert_int_equal(rec[0].n_bytes, 0);
    assert_int_equal(rec[1].n_bytes, 0);
    assert_int_equal(rec[2].n_bytes, 3);
    assert_memory_equal(rec[2].payload, "\xe2\x98\x83", 3);
    assert_int_equal(rec[3].n_bytes, 0);
    assert_int_equal(rec[4].type, KWK_REC_TEXT); // what never came
    assert_memory_equal(rec[4].payload, "\xef\xbf\xbd", 3);
    assert_int_equal(rec[5].type, KWK_REC_DONE);
    kwkd_job_free(j);
}

static void the_end_tokens_text_is_not_the_answers(void **state)
{
    kwk_generate_req r = ask();
    kwk_record rec[4];
    kwkd_job *j;

    r.text = 1;
    j = make(&r);
    kwkd_job_token(j, FAKE_EOS, 0, 10);
    assert_int_equal(records(j, rec), 2);
    assert_int_equal(rec[0].token, FAKE_EOS);
    assert_int_equal(rec[0].n_bytes, 0);
    assert_int_equal(rec[1].token, KWK_FINISH_EOS);
    kwkd_job_free(j);
}

static void an_error_is_the_last_record(void **state)
{
    kwk_generate_req r = ask();
    kwk_record rec[4];
    kwkd_job *j = make(&r);
    kwk_error why = {0};

    kwk_fail(&why, KWK_EFULL, "%s",
             "a long story that goes on and on, well beyond the ninety-six "
             "bytes that a record of the ring can carry with it");
    kwkd_job_fail(j, &why, 10);
    kwkd_job_finish(j, KWK_FINISH_CANCEL, 11); // too late
    assert_int_equal(records(j, rec), 1);
    assert_int_equal(rec[0].type, KWK_REC_ERROR);
    assert_int_equal(rec[0].token, KWK_EFULL);
    assert_int_equal(rec[0].n_bytes, KWK_RECORD_PAYLOAD);
    kwkd_job_free(j);
}

static void times_add_up(void **state)
{
    kwk_generate_req r = ask();
    kwk_record rec[8];
    kwk_done done;
    kwkd_job *j = make(&r);

    j->submitted_us = 100;
    j->admitted_us = 150;
    kwkd_job_token(j, 10, 0, 350);
    kwkd_job_token(j, 11, 0, 400);
    kwkd_job_finish(j, KWK_FINISH_CANCEL, 1350);
    assert_int_equal(records(j, rec), 3);
    memcpy(&done, rec[2].payload, sizeof done);
    assert_int_equal(done.queue_us, 50);
    assert_int_equal(done.prefill_us, 200);
    assert_int_equal(done.decode_us, 1000);
    assert_int_equal(done.prompt_tokens, 3);
    assert_int_equal(done.new_tokens, 2);
    kwkd_job_free(j);
}

static void finishes_have_names(void **state)
{
    assert_string_equal(kwkd_finish_name(KWK_FINISH_EOS), "eos");
    assert_string_equal(kwkd_finish_name(KWK_FINISH_SLOW), "slow_client");
    assert_string_equal(kwkd_finish_name((kwk_finish)0), "error");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bad_fields_are_refused_by_name),
        TEST(without_a_session_only_inline_works),
        TEST(greedy_ignores_the_fields_of_sampling),
        TEST(a_span_is_read_from_the_clients_memory),
        TEST(a_seed_is_drawn_when_none_is_given),
        TEST(text_without_a_tokenizer_is_unsupported),
        TEST(records_carry_tokens_text_and_logprobs),
        TEST(long_text_is_spread_over_records),
        TEST(text_is_held_back_until_a_character_is_whole),
        TEST(the_end_tokens_text_is_not_the_answers),
        TEST(an_error_is_the_last_record),
        TEST(times_add_up),
        TEST(finishes_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
