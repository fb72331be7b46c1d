/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.c: both sides of both rings, in one process for the rules, in two for the wake-ups.
 */
#include "tests/support/check.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/ring.h"
#include "proto/unix_socket.h"

enum { SLOTS = 64, DATA = 4096 };

/* A session's memory as the daemon makes it, with the client's read-only view of out. */
typedef struct rings {
    int out_fd, in_fd;
    kwk_out_header *out;
    const kwk_out_header *out_ro;
    kwk_in_header *in;
    kwk_out_producer producer;
    kwk_out_consumer consumer;
} rings;

static int setup(void **state)
{
    static rings r;
    kwk_error err;

    r.out_fd = kwk_memfd_create("out", kwk_out_size(SLOTS), &err);
    r.in_fd = kwk_memfd_create("in", kwk_in_size(DATA), &err);
    r.out = kwk_memfd_map(r.out_fd, kwk_out_size(SLOTS), 1, &err);
    r.in = kwk_memfd_map(r.in_fd, kwk_in_size(DATA), 1, &err);
    kwk_memfd_seal(r.out_fd, 1, &err);
    kwk_memfd_seal(r.in_fd, 0, &err);
    r.out_ro = kwk_memfd_map(r.out_fd, kwk_out_size(SLOTS), 0, &err);
    kwk_out_producer_init(&r.producer, r.out, r.in, SLOTS, DATA);
    assert_int_equal(kwk_out_consumer_init(&r.consumer, r.out_ro, kwk_out_size(SLOTS), r.in,
                                           kwk_in_size(DATA), &err),
                     KWK_OK);
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    rings *r = *state;

    munmap(r->out, kwk_out_size(SLOTS));
    munmap((void *)r->out_ro, kwk_out_size(SLOTS));
    munmap(r->in, kwk_in_size(DATA));
    close(r->out_fd);
    close(r->in_fd);
    return 0;
}

static kwk_record token(uint32_t i)
{
    kwk_record rec = {.stream = i * 3, .token = (int32_t)i, .type = KWK_REC_TOKEN, .n_bytes = 4};

    memcpy(rec.payload, &i, 4);
    return rec;
}

static void records_arrive_in_order_over_many_wrap_arounds(void **state)
{
    rings *r = *state;
    kwk_record rec;
    kwk_error err;
    uint32_t sent = 0, got = 0;

    while (got < 10 * SLOTS) {
        const int burst = 1 + (int)(sent % 7);
        for (int i = 0; i < burst && kwk_out_free(&r->producer, &err) > 0; i++) {
            rec = token(sent++);
            kwk_out_put(&r->producer, &rec);
        }
        assert_int_equal(kwk_out_publish(&r->producer), 0);
        while (kwk_out_take(&r->consumer, &rec, &err) == 1) {
            assert_int_equal(rec.seq, got);
            assert_int_equal(rec.stream, got * 3);
            assert_int_equal(rec.token, got);
            assert_memory_equal(rec.payload, &got, 4);
            got++;
        }
    }
    assert_int_equal(got, sent);
}

static void a_full_ring_has_no_room_until_records_are_taken(void **state)
{
    rings *r = *state;
    kwk_record rec = token(1);
    kwk_error err;

    assert_int_equal(kwk_out_free(&r->producer, &err), SLOTS);
    for (int i = 0; i < SLOTS; i++)
        kwk_out_put(&r->producer, &rec);
    assert_int_equal(kwk_out_free(&r->producer, &err), 0);
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), 0); // not published yet
    kwk_out_publish(&r->producer);
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), 1);
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), 1);
    assert_int_equal(kwk_out_free(&r->producer, &err), 2);
}

static void a_head_that_moves_backwards_or_past_the_tail_is_a_violation(void **state)
{
    rings *r = *state;
    kwk_record rec = token(1);
    kwk_error err = {0};

    for (int i = 0; i < 10; i++)
        kwk_out_put(&r->producer, &rec);
    r->in->head = 5;
    assert_int_equal(kwk_out_free(&r->producer, &err), SLOTS - 5);
    r->in->head = 4;
    assert_int_equal(kwk_out_free(&r->producer, &err), KWK_EPROTO);
    assert_string_equal(err.msg, "ring head 4 is outside 5 to 10");
    r->in->head = 11;
    assert_int_equal(kwk_out_free(&r->producer, &err), KWK_EPROTO);
    r->in->head = UINT64_MAX;
    assert_int_equal(kwk_out_free(&r->producer, &err), KWK_EPROTO);
    r->in->head = 10;
    assert_int_equal(kwk_out_free(&r->producer, &err), SLOTS);
}

static void the_producer_reports_who_wants_a_byte_on_the_door(void **state)
{
    rings *r = *state;

    assert_int_equal(kwk_out_publish(&r->producer), 0);
    r->in->want_door = 7;
    assert_int_equal(kwk_out_publish(&r->producer), 1);
}

static void the_consumer_refuses_damaged_rings(void **state)
{
    rings *r = *state;
    const size_t out_size = kwk_out_size(SLOTS), in_size = kwk_in_size(DATA);
    kwk_out_consumer c;
    kwk_error err;
    const struct {
        void *word;
        uint32_t value;
    } damage[] = {
        {&r->out->magic, 0},           {&r->out->version, 2},
        {&r->out->n_slots, 0},         {&r->out->n_slots, SLOTS - 1},
        {&r->out->n_slots, SLOTS + 1}, {&r->out->n_slots, UINT32_MAX},
        {&r->in->magic, 1},            {&r->in->version, 0},
        {&r->in->data_bytes, DATA + 1}, {&r->in->data_bytes, UINT32_MAX},
    };

    for (size_t i = 0; i < CHECK_COUNT(damage); i++) {
        uint32_t saved;
        memcpy(&saved, damage[i].word, 4);
        memcpy(damage[i].word, &damage[i].value, 4);
        assert_int_equal(kwk_out_consumer_init(&c, r->out_ro, out_size, r->in, in_size, &err),
                         KWK_EPROTO);
        memcpy(damage[i].word, &saved, 4);
    }
    assert_int_equal(kwk_out_consumer_init(&c, r->out_ro, out_size - 1, r->in, in_size, &err),
                     KWK_EPROTO);
    assert_int_equal(kwk_out_consumer_init(&c, r->out_ro, out_size, r->in, in_size - 1, &err),
                     KWK_EPROTO);
    assert_int_equal(kwk_out_consumer_init(&c, r->out_ro, 100, r->in, in_size, &err), KWK_EPROTO);
    assert_int_equal(kwk_out_consumer_init(&c, r->out_ro, out_size, r->in, 100, &err), KWK_EPROTO);
    assert_int_equal(kwk_out_consumer_init(&c, r->out_ro, out_size, r->in, in_size, &err), KWK_OK);
}

static void the_consumer_refuses_damaged_records(void **state)
{
    rings *r = *state;
    kwk_record *slots = (kwk_record *)((uint8_t *)r->out + KWK_RING_PAGE);
    kwk_record rec = token(1);
    kwk_error err = {0};

    r->out->tail = SLOTS + 1; // more than there can be
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), KWK_EPROTO);
    r->out->tail = 0;
    kwk_out_put(&r->producer, &rec);
    kwk_out_publish(&r->producer);
    slots[0].n_bytes = KWK_RECORD_PAYLOAD + 1;
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), KWK_EPROTO);
    slots[0].n_bytes = KWK_RECORD_PAYLOAD;
    slots[0].seq = 64;
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), KWK_EPROTO);
    slots[0].seq = 0;
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), 1);
    r->out->tail = 0; // backwards
    assert_int_equal(kwk_out_take(&r->consumer, &rec, &err), KWK_EPROTO);
}

static void waiting_times_out_and_leaves_no_flag(void **state)
{
    rings *r = *state;
    const int64_t start = kwk_now_ms();

    assert_int_equal(kwk_out_wait(&r->consumer, 0, 0), 0);
    assert_int_equal(kwk_out_wait(&r->consumer, 30, 0), 0);
    assert_true(kwk_now_ms() - start >= 29);
    assert_int_equal(r->in->waiting, 0);
    assert_int_equal(kwk_out_wait(&r->consumer, 0, 200), 0); // spins only
}

static void submissions_arrive_in_order_until_too_many_are_in_flight(void **state)
{
    rings *r = *state;
    kwk_submission sub = {0};
    uint64_t tail = 0, head = 0;
    kwk_error err;

    for (uint32_t i = 0; i < KWK_SUB_SLOTS; i++) {
        sub.tag = i;
        assert_int_equal(kwk_sub_put(&tail, r->out_ro, r->in, &sub, &err), 0);
    }
    assert_int_equal(kwk_sub_put(&tail, r->out_ro, r->in, &sub, &err), KWK_EFULL);
    for (uint32_t i = 0; i < 3 * KWK_SUB_SLOTS; i++) {
        assert_int_equal(kwk_sub_take(&head, r->out, r->in, &sub, &err), 1);
        assert_int_equal(sub.tag, i);
        sub.tag = i + KWK_SUB_SLOTS;
        assert_int_equal(kwk_sub_put(&tail, r->out_ro, r->in, &sub, &err), 0);
    }
    for (uint32_t i = 0; i < KWK_SUB_SLOTS; i++)
        assert_int_equal(kwk_sub_take(&head, r->out, r->in, &sub, &err), 1);
    assert_int_equal(kwk_sub_take(&head, r->out, r->in, &sub, &err), 0);
}

static void a_sleeping_daemon_is_to_be_rung(void **state)
{
    rings *r = *state;
    kwk_submission sub = {0};
    uint64_t tail = 0;

    r->out->sub_sleeping = 1;
    assert_int_equal(kwk_sub_put(&tail, r->out_ro, r->in, &sub, NULL), 1);
    r->out->sub_sleeping = 0;
    assert_int_equal(kwk_sub_put(&tail, r->out_ro, r->in, &sub, NULL), 0);
}

static void submission_indices_that_cannot_be_are_violations(void **state)
{
    rings *r = *state;
    kwk_submission sub = {0};
    uint64_t head = 10, tail = 10;
    kwk_error err;

    r->in->sub_tail = 9; // behind the daemon's head
    assert_int_equal(kwk_sub_take(&head, r->out, r->in, &sub, &err), KWK_EPROTO);
    r->in->sub_tail = 10 + KWK_SUB_SLOTS + 1;
    assert_int_equal(kwk_sub_take(&head, r->out, r->in, &sub, &err), KWK_EPROTO);
    r->in->sub_tail = UINT64_MAX;
    assert_int_equal(kwk_sub_take(&head, r->out, r->in, &sub, &err), KWK_EPROTO);
    assert_int_equal(head, 10);
    r->out->sub_head = 11; // ahead of the client's tail
    assert_int_equal(kwk_sub_put(&tail, r->out_ro, r->in, &sub, &err), KWK_EPROTO);
    assert_int_equal(tail, 10);
}

/* The consumer as a process of its own: sleeps on the futex for every record, answers each with a
 * submission. Exit 0: all was as expected. */
static int echo_child(rings *r, uint32_t n)
{
    uint64_t sub_tail = 0;
    kwk_record rec;
    kwk_error err;

    for (uint32_t i = 0; i < n;) {
        const int rc = kwk_out_take(&r->consumer, &rec, &err);
        if (rc < 0 || (rc == 1 && rec.token != (int32_t)i))
            return 1;
        if (rc == 0) {
            if (!kwk_out_wait(&r->consumer, 10000, 0))
                return 2; // a wake-up was lost
            continue;
        }
        const kwk_submission sub = {.tag = i++, .n = 1};
        if (kwk_sub_put(&sub_tail, r->out_ro, r->in, &sub, &err) < 0)
            return 3;
    }
    return 0;
}

static void two_processes_lose_no_wake_up(void **state)
{
    rings *r = *state;
    enum { N = 3000 };
    const pid_t pid = fork();
    uint64_t sub_head = 0;
    kwk_submission sub;
    kwk_error err;
    int status;

    if (pid == 0)
        _exit(echo_child(r, N));
    for (uint32_t i = 0; i < N; i++) {
        const kwk_record rec = token(i);
        int rc;
        assert_true(kwk_out_free(&r->producer, &err) > 0);
        kwk_out_put(&r->producer, &rec);
        kwk_out_publish(&r->producer);
        if (i % 4 == 3) // let it fall behind, then drain
            while ((rc = kwk_sub_take(&sub_head, r->out, r->in, &sub, &err)) == 0 || sub.tag < i)
                assert_true(rc >= 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(records_arrive_in_order_over_many_wrap_arounds),
        TEST(a_full_ring_has_no_room_until_records_are_taken),
        TEST(a_head_that_moves_backwards_or_past_the_tail_is_a_violation),
        TEST(the_producer_reports_who_wants_a_byte_on_the_door),
        TEST(the_consumer_refuses_damaged_rings),
        TEST(the_consumer_refuses_damaged_records),
        TEST(waiting_times_out_and_leaves_no_flag),
        TEST(submissions_arrive_in_order_until_too_many_are_in_flight),
        TEST(a_sleeping_daemon_is_to_be_rung),
        TEST(submission_indices_that_cannot_be_are_violations),
        TEST(two_processes_lose_no_wake_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
