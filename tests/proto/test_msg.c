/* SPDX-License-Identifier: Apache-2.0
 *
 * msg_request.c and msg_hello.c: every request comes back as it was sent, the rules between fields
 * hold, damage is refused. Single fields are in test_codec.c.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/buf.h"
#include "proto/ring.h"

static const uint8_t session[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255};

static void encode(kwk_buf *b, const kwk_request *r)
{
    kwk_error err;

    b->size = 0;
    if (kwk_request_encode(b, r, &err) < 0)
        fail_msg("encode: %s", err.msg);
}

static kwk_request sent(kwk_op op)
{
    kwk_request r = {.op = op, .has_session = 1};

    memcpy(r.session, session, sizeof session);
    return r;
}

static kwk_request pass(const kwk_request *r) // through the wire
{
    kwk_buf b = {0};
    kwk_request got = {0};
    kwk_error err;

    encode(&b, r);
    if (kwk_request_decode(&got, b.data, b.size, &err) < 0)
        fail_msg("decode: %s", err.msg);
    kwk_buf_fini(&b);
    assert_int_equal(got.op, r->op);
    assert_int_equal(got.has_session, r->has_session);
    assert_memory_equal(got.session, r->session, 16);
    return got;
}

/* ---- round trips ----------------------------------------------------------------------------- */

static const int32_t prompt[] = {0, 1, -1, INT32_MAX, INT32_MIN};
static const int32_t eos[] = {2, 128009};
static const kwk_bias bias[] = {{5, -1.5f}, {7, -INFINITY}};

static kwk_request full_generate(void)
{
    kwk_request r = sent(KWK_OP_generate);

    r.u.generate = (kwk_generate_req){
        .model = "smol", .request_id = "id-1", .tenant = "t\xc3\xa4", .stream = 0xffffffff,
        .inline_reply = 1, .prompt = prompt, .n_prompt = 5, .max_new_tokens = 7, .text = 1,
        .do_sample = 1, .temperature = 0.7f, .top_p = 0.9f, .min_p = 0.05f,
        .repetition_penalty = 1.1f, .top_k = 40, .min_new_tokens = 3, .seed = UINT64_MAX,
        .has_seed = 1, .n_logprobs = 12, .logprobs = 1, .ignore_eos = 1, .eos = eos, .n_eos = 2,
        .bias = bias, .n_bias = 2, .credit = 64};
    return r;
}

static void generate_comes_back_as_it_was_sent(void **state)
{
    const kwk_request r = full_generate();
    kwk_request got = pass(&r);
    const kwk_generate_req *a = &r.u.generate, *g = &got.u.generate;

    assert_string_equal(g->model, "smol");
    assert_string_equal(g->request_id, "id-1");
    assert_string_equal(g->tenant, "t\xc3\xa4");
    assert_int_equal(g->stream, 0xffffffff);
    assert_int_equal(g->inline_reply, 1);
    assert_int_equal(g->n_prompt, 5);
    assert_memory_equal(g->prompt, prompt, sizeof prompt);
    assert_false(g->has_span);
    assert_int_equal(g->max_new_tokens, 7);
    assert_int_equal(g->text, 1);
    assert_int_equal(g->do_sample, 1);
    assert_true(g->temperature == a->temperature && g->top_p == a->top_p);
    assert_true(g->min_p == a->min_p && g->repetition_penalty == a->repetition_penalty);
    assert_int_equal(g->top_k, 40);
    assert_int_equal(g->min_new_tokens, 3);
    assert_true(g->seed == UINT64_MAX && g->has_seed);
    assert_int_equal(g->n_logprobs, 12);
    assert_int_equal(g->logprobs, 1);
    assert_int_equal(g->ignore_eos, 1);
    assert_int_equal(g->n_eos, 2);
    assert_memory_equal(g->eos, eos, sizeof eos);
    assert_int_equal(g->n_bias, 2);
    assert_memory_equal(g->bias, bias, sizeof bias);
    assert_int_equal(g->credit, 64);
    kwk_request_fini(&got);
    assert_null(got.arena);
}

static void generate_has_the_documented_defaults(void **state)
{
    kwk_request r = sent(KWK_OP_generate), got;
    kwk_generate_req *g = &got.u.generate;

    r.u.generate = (kwk_generate_req)KWK_GENERATE_REQ_INIT;
    r.u.generate.span_offset = 8;
    r.u.generate.span_n = 3;
    r.u.generate.has_span = 1;
    got = pass(&r);
    assert_null(g->model);
    assert_null(g->request_id);
    assert_null(g->tenant);
    assert_int_equal(g->stream, 0);
    assert_null(g->prompt);
    assert_true(g->has_span && g->span_offset == 8 && g->span_n == 3);
    assert_int_equal(g->max_new_tokens, -1);
    assert_true(g->temperature == 1 && g->top_p == 1 && g->repetition_penalty == 1);
    assert_true(g->min_p == 0 && g->top_k == 0 && !g->do_sample && !g->has_seed);
    assert_null(g->eos);
    assert_null(g->bias);
    assert_int_equal(g->credit, 0);
    kwk_request_fini(&got);
}

static void an_empty_eos_list_is_not_the_models_list(void **state)
{
    kwk_request r = full_generate(), got;

    r.u.generate.n_eos = 0;
    got = pass(&r);
    assert_non_null(got.u.generate.eos);
    assert_int_equal(got.u.generate.n_eos, 0);
    kwk_request_fini(&got);
}

static void the_other_requests_come_back_as_they_were_sent(void **state)
{
    const int32_t positions[] = {4, 5, 6, 7, 8};
    kwk_request r, got;

    for (int op = KWK_OP_NONE + 1; op < KWK_OP_END; op++)
        assert_non_null(kwk_op_name(op));
    assert_null(kwk_op_name(KWK_OP_NONE));
    assert_null(kwk_op_name(KWK_OP_END));
    assert_string_equal(kwk_op_name(KWK_OP_seq_fork), "seq_fork");

    for (int i = 0; i < 3; i++) {
        const kwk_op ops[] = {KWK_OP_status, KWK_OP_models, KWK_OP_metrics};
        r = (kwk_request){.op = ops[i]};
        got = pass(&r);
        kwk_request_fini(&got);
    }

    r = sent(KWK_OP_load);
    r.u.load = (kwk_load_req){"m", "/models/m", 0, "int4", 6, 4096, 1, 1};
    got = pass(&r);
    assert_string_equal(got.u.load.name, "m");
    assert_string_equal(got.u.load.path, "/models/m");
    assert_string_equal(got.u.load.precision, "int4");
    assert_int_equal(got.u.load.mix_bits, 6);
    assert_int_equal(got.u.load.max_ctx, 4096);
    assert_true(got.u.load.pin && got.u.load.wait);
    kwk_request_fini(&got);

    r.u.load = (kwk_load_req){.name = "m", .pack = UINT64_MAX};
    got = pass(&r);
    assert_null(got.u.load.path);
    assert_true(got.u.load.pack == UINT64_MAX && !got.u.load.pin && !got.u.load.wait);
    kwk_request_fini(&got);

    r = sent(KWK_OP_unload);
    r.u.unload.name = "m";
    got = pass(&r);
    assert_string_equal(got.u.unload.name, "m");
    kwk_request_fini(&got);

    for (int pin = 0; pin <= 1; pin++) {
        r = sent(KWK_OP_pin);
        r.u.pin = (kwk_name_req){"m", pin};
        got = pass(&r);
        assert_int_equal(got.u.pin.pin, pin);
        kwk_request_fini(&got);
    }

    r = sent(KWK_OP_seq_open);
    r.u.seq_open.model = "m";
    got = pass(&r);
    assert_string_equal(got.u.seq_open.model, "m");
    kwk_request_fini(&got);

    for (int op = KWK_OP_seq_fork; op <= KWK_OP_seq_close; op++) {
        r = sent(op);
        r.u.seq_fork = (kwk_seq_req){NULL, UINT64_MAX, 77, 3, 9};
        got = pass(&r);
        assert_true(got.u.seq_fork.seq == UINT64_MAX);
        assert_int_equal(got.u.seq_truncate.length, op == KWK_OP_seq_truncate ? 77 : 0);
        assert_int_equal(got.u.seq_export.layer, op == KWK_OP_seq_export ? 3 : 0);
        assert_int_equal(got.u.seq_export.row, op == KWK_OP_seq_export ? 9 : 0);
        kwk_request_fini(&got);
    }
    r.op = KWK_OP_seq_fork; // 0 is an id like any other
    r.u.seq_fork = (kwk_seq_req){0};
    got = pass(&r);
    kwk_request_fini(&got);

    r = sent(KWK_OP_forward);
    r.u.forward = (kwk_forward_req){5, prompt, 5, positions, 5};
    got = pass(&r);
    assert_true(got.u.forward.seq == 5);
    assert_memory_equal(got.u.forward.tokens, prompt, sizeof prompt);
    assert_memory_equal(got.u.forward.positions, positions, sizeof positions);
    kwk_request_fini(&got);

    r = sent(KWK_OP_cancel);
    r.u.cancel = (kwk_cancel_req){.stream = 0, .has_stream = 1};
    got = pass(&r);
    assert_true(got.u.cancel.has_stream && got.u.cancel.stream == 0 && !got.u.cancel.request_id);
    kwk_request_fini(&got);
    r = (kwk_request){.op = KWK_OP_cancel};
    r.u.cancel.request_id = "id-1";
    got = pass(&r);
    assert_string_equal(got.u.cancel.request_id, "id-1");
    assert_false(got.u.cancel.has_stream);
    kwk_request_fini(&got);
    kwk_request_fini(NULL);
}

static void rules_between_fields_hold(void **state)
{
    kwk_request r = sent(KWK_OP_load), got;
    kwk_buf b = {0};
    kwk_error err;

    r.u.load = (kwk_load_req){.name = "m", .path = "/p", .pack = 3};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = full_generate();
    r.u.generate.has_span = 1;
    r.u.generate.span_n = 1;
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = sent(KWK_OP_forward);
    r.u.forward = (kwk_forward_req){1, prompt, 5, prompt, 4};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "positions: 4 items for 5 tokens");
    r = sent(KWK_OP_cancel);
    r.u.cancel = (kwk_cancel_req){1, 1, "id"};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    kwk_buf_fini(&b);
}

static void requests_of_a_session_need_one(void **state)
{
    kwk_request r, got;
    kwk_buf b = {0};
    kwk_error err;

    for (int op = KWK_OP_seq_open; op <= KWK_OP_forward; op++) {
        r = (kwk_request){.op = op};
        if (op == KWK_OP_forward)
            r.u.forward = (kwk_forward_req){1, prompt, 5, NULL, 0};
        encode(&b, &r);
        assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
        assert_string_equal(err.msg, "session: missing");
    }
    r = full_generate();
    r.has_session = 0;
    encode(&b, &r); // inline
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_OK);
    kwk_request_fini(&got);
    r.u.generate.inline_reply = 0;
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = (kwk_request){.op = KWK_OP_load};
    r.u.load = (kwk_load_req){.name = "m", .pack = 3};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    r = (kwk_request){.op = KWK_OP_cancel};
    r.u.cancel = (kwk_cancel_req){1, 1, NULL};
    encode(&b, &r);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EINVAL);
    kwk_buf_fini(&b);
}

static void the_encoder_refuses_what_the_decoder_would(void **state)
{
    kwk_request r = full_generate();
    kwk_buf b = {0};
    kwk_error err = {0};
    char name[KWK_NAME_MAX + 2];

    assert_int_equal(kwk_buf_write(&b, "keep", 4), 0);
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
#define REFUSED(field, value)                                            \
    do {                                                                 \
        r = full_generate();                                             \
        r.u.generate.field = value;                                      \
        assert_int_equal(kwk_request_encode(&b, &r, &err), KWK_EINVAL);  \
        assert_int_equal(b.size, 4);                                     \
    } while (0)
    REFUSED(model, name);
    REFUSED(n_prompt, 0);
    REFUSED(n_prompt, -1);
    REFUSED(n_eos, KWK_EOS_MAX + 1);
    REFUSED(n_bias, -1);
    REFUSED(temperature, NAN);
    REFUSED(top_p, 1.5f);
    REFUSED(top_k, -1);
    REFUSED(max_new_tokens, -2);
    REFUSED(n_logprobs, 13);
#undef REFUSED
    r = (kwk_request){.op = KWK_OP_unload};
    assert_int_equal(kwk_request_encode(&b, &r, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "name: missing");
    kwk_buf_fini(&b);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void every_truncation_of_a_request_is_refused(void **state)
{
    kwk_request r = full_generate(), got;
    kwk_buf b = {0};
    kwk_error err;

    encode(&b, &r);
    for (size_t n = 0; n < b.size; n++)
        assert_int_equal(kwk_request_decode(&got, b.data, n, &err), KWK_EPROTO);
    assert_int_equal(kwk_buf_write(&b, "\xc0", 1), 0);
    assert_int_equal(kwk_request_decode(&got, b.data, b.size, &err), KWK_EPROTO);
    kwk_buf_fini(&b);
}

/* Exact sizes, so that the sanitizers see a read past the end. */
static void try_damaged(const uint8_t *data, size_t n, int *accepted)
{
    uint8_t *copy = test_malloc(n);
    kwk_request got;
    kwk_error err = {0};
    int rc;

    memcpy(copy, data, n);
    rc = kwk_request_decode(&got, copy, n, &err);
    if (rc == KWK_OK) {
        kwk_buf b = {0};
        kwk_request again;
        assert_int_equal(kwk_request_encode(&b, &got, &err), KWK_OK);
        assert_int_equal(kwk_request_decode(&again, b.data, b.size, &err), KWK_OK);
        kwk_request_fini(&again);
        kwk_buf_fini(&b);
        kwk_request_fini(&got);
        ++*accepted;
    } else {
        assert_true(rc == KWK_EPROTO || rc == KWK_EINVAL || rc == KWK_EUNSUPPORTED);
        assert_int_equal(err.code, rc);
        assert_true(err.msg[0]);
    }
    test_free(copy);
}

static void every_flipped_bit_is_survived(void **state)
{
    kwk_request r = full_generate();
    kwk_buf b = {0};
    int accepted = 0;

    encode(&b, &r);
    for (size_t i = 0; i < b.size * 8; i++) {
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
        try_damaged(b.data, b.size, &accepted);
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_true(accepted > 100);
    kwk_buf_fini(&b);
}

static void mutated_requests_are_decoded_or_refused(void **state)
{
    kwk_request valid[4] = {full_generate(), sent(KWK_OP_load), sent(KWK_OP_forward),
                            sent(KWK_OP_seq_truncate)};
    kwk_buf b = {0};
    uint64_t seed = 5;
    int accepted = 0;

    valid[1].u.load = (kwk_load_req){"m", "/models/m", 0, "int4", 6, 4096, 1, 1};
    valid[2].u.forward = (kwk_forward_req){5, prompt, 5, prompt, 5};
    for (int i = 0; i < 20000; i++) {
        encode(&b, &valid[i % 4]);
        for (int k = check_random_int(&seed, 1, 4); k > 0; k--) {
            const size_t at = check_random(&seed) % b.size;
            const size_t n = (size_t)check_random_int(&seed, 1, 8);
            switch (check_random_int(&seed, 0, 4)) {
            case 0: // another byte
            case 1:
                b.data[at] = (uint8_t)check_random(&seed);
                break;
            case 2: // a piece gone
                if (at + n < b.size) {
                    memmove(b.data + at, b.data + at + n, b.size - at - n);
                    b.size -= n;
                }
                break;
            case 3: // a piece twice
                if (at + n < b.size && kwk_buf_grow(&b, n))
                    memmove(b.data + at + n, b.data + at, b.size - at - n);
                break;
            case 4: // a header that claims much
                if (at + 5 < b.size)
                    memcpy(b.data + at, check_random(&seed) % 2 ? "\xdd\xff\0\0\0" : "\xdf\0\0\1\0", 5);
                break;
            }
        }
        try_damaged(b.data, b.size, &accepted);
    }
    assert_true(accepted > 200);
    kwk_buf_fini(&b);
}

/* ---- hello ----------------------------------------------------------------------------------- */

static void a_hello_comes_back_as_it_was_sent(void **state)
{
    const kwk_hello_req full = {0, "test/1", KWK_OUT_SLOTS_MAX, KWK_IN_DATA_MAX, UINT64_MAX, NULL};
    const kwk_hello_req bare = {0};
    kwk_hello_req h;
    kwk_buf b = {0};
    kwk_error err;

    assert_int_equal(kwk_hello_req_encode(&b, &full, &err), KWK_OK);
    assert_int_equal(kwk_hello_req_decode(&h, b.data, b.size, &err), KWK_OK);
    assert_int_equal(h.version, KWK_PROTO_VERSION);
    assert_string_equal(h.client, "test/1");
    assert_int_equal(h.out_slots, KWK_OUT_SLOTS_MAX);
    assert_int_equal(h.in_bytes, KWK_IN_DATA_MAX);
    assert_true(h.logits_bytes == UINT64_MAX);
    kwk_hello_req_fini(&h);
    for (size_t n = 0; n < b.size; n++)
        assert_int_equal(kwk_hello_req_decode(&h, b.data, n, &err), KWK_EPROTO);
    b.size = 0;

    assert_int_equal(kwk_hello_req_encode(&b, &bare, &err), KWK_OK);
    assert_int_equal(kwk_hello_req_decode(&h, b.data, b.size, &err), KWK_OK);
    assert_null(h.client);
    assert_true(h.out_slots == 0 && h.in_bytes == 0 && h.logits_bytes == 0);
    kwk_hello_req_fini(&h);
    kwk_hello_req_fini(NULL);
    kwk_buf_fini(&b);
}

static void hellos_outside_the_limits_are_refused(void **state)
{
    kwk_hello_req h = {.out_slots = KWK_OUT_SLOTS_MAX + 1};
    kwk_buf b = {0};
    kwk_error err;
    static const char version2[] = "\x82\xa1v\x02\xa2op\xa5hello";
    static const char other[] = "\x82\xa1v\x01\xa2op\xa6status";
    static const char slots[] = "\x83\xa1v\x01\xa2op\xa5hello\xa9out_slots\xce\x00\x01\x00\x01";
    static const char bytes[] = "\x83\xa1v\x01\xa2op\xa5hello\xa8in_bytes\xce\x01\x00\x00\x01";
    static const char logits[] = "\x83\xa1v\x01\xa2op\xa5hello\xaclogits_bytes\xff";
    static uint8_t large[KWK_DOOR_MAX + 1];

    assert_int_equal(kwk_hello_req_encode(&b, &h, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, version2, sizeof version2 - 1, &err), KWK_EPROTO);
    assert_string_equal(err.msg, "message of protocol version 2; this side speaks 1");
    assert_int_equal(kwk_hello_req_decode(&h, other, sizeof other - 1, &err), KWK_EPROTO);
    assert_int_equal(kwk_hello_req_decode(&h, slots, sizeof slots - 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, bytes, sizeof bytes - 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, logits, sizeof logits - 1, &err), KWK_EINVAL);
    assert_int_equal(kwk_hello_req_decode(&h, large, sizeof large, &err), KWK_EPROTO);
    kwk_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_comes_back_as_it_was_sent),
        cmocka_unit_test(generate_has_the_documented_defaults),
        cmocka_unit_test(an_empty_eos_list_is_not_the_models_list),
        cmocka_unit_test(the_other_requests_come_back_as_they_were_sent),
        cmocka_unit_test(rules_between_fields_hold),
        cmocka_unit_test(requests_of_a_session_need_one),
        cmocka_unit_test(the_encoder_refuses_what_the_decoder_would),
        cmocka_unit_test(every_truncation_of_a_request_is_refused),
        cmocka_unit_test(every_flipped_bit_is_survived),
        cmocka_unit_test(mutated_requests_are_decoded_or_refused),
        cmocka_unit_test(a_hello_comes_back_as_it_was_sent),
        cmocka_unit_test(hellos_outside_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
