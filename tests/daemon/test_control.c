/* SPDX-License-Identifier: Apache-2.0
 *
 * Control through its socket: our own client of the wire, and a stock NNG client. */
#include <errno.h>
#include <fcntl.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/sp.h"
#include "tests/daemon/sockets.h"

static dut t;
static kwk_error err;

static int setup(void **state)
{
    char conf[256];

    fake_reset();
    dut_init(&t);
    snprintf(conf, sizeof conf,
             "{\"models\": {\"m\": {\"path\": \"%s\"}}, \"contexts\": 8, "
             "\"inline_requests\": 4}",
             t.model);
    dut_start(&t, conf);
    dut_wait_ready(&t);
    return 0;
}

static int teardown(void **state)
{
    dut_stop(&t);
    dut_fini(&t);
    return 0;
}

static kwk_buf encode(kwk_request *req)
{
    kwk_buf b = {0};

    if (kwk_request_encode(&b, req, &err) < 0)
        fail_msg("%s", err.msg);
    return b;
}

/* Ask over one connection; the code of the reply or of the connection. */
static int ask(kwk_sp *s, kwk_request *req, kwk_tree **tree)
{
    kwk_buf b = encode(req), reply = {0};
    kwk_tree *got = NULL;
    int retry_ms, rc = kwk_sp_call(s, b.data, b.size, &reply, 5000, &err);

    kwk_buf_fini(&b);
    if (rc == KWK_OK) {
        assert_int_equal(kwk_tree_parse(&got, reply.data, reply.size, &err), KWK_OK);
        rc = kwk_tree_status(got, &retry_ms, &err);
    }
    kwk_buf_fini(&reply);
    if (tree && rc == KWK_OK)
        *tree = got;
    else
        kwk_tree_free(got);
    return rc;
}

static kwk_request status_request(void)
{
    return (kwk_request){.op = KWK_OP_status};
}

static void our_client_is_answered(void **state)
{
    kwk_request req = status_request();
    kwk_sp s;

    assert_int_equal(kwk_sp_open(&s, t.control, 1000, &err), KWK_OK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(ask(&s, &req, NULL), KWK_OK);
    kwk_sp_close(&s);
    assert_true(kwkd_counted(&t.d->metrics.control_rx) > 100);
    assert_true(kwkd_counted(&t.d->metrics.control_tx) > 1000);
}

static void a_stock_nng_client_generates_inline(void **state)
{
    const int32_t prompt[] = {1, 5};
    kwk_request req = harness_generate(0, prompt, 2, 10);
    char url[128];
    int32_t tokens[16];
    nng_socket s;
    kwk_tree *tree;
    kwk_buf b;
    size_t n;
    void *reply;

    req.u.generate.inline_reply = 1;
    b = encode(&req);
    snprintf(url, sizeof url, "ipc://%s", t.control);
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, 5000), 0);
    assert_int_equal(nng_dial(s, url, NULL, 0), 0);
    assert_int_equal(nng_send(s, b.data, b.size, 0), 0);
    assert_int_equal(nng_recv(s, &reply, &n, NNG_FLAG_ALLOC), 0);
    assert_int_equal(kwk_tree_parse(&tree, reply, n, &err), KWK_OK);
    assert_int_equal(kwk_tree_ints(tree, "tokens", tokens, 16), 10);
    expect_greedy(prompt, 2, tokens, 10);
    kwk_tree_free(tree);
    nng_free(reply, n);
    kwk_buf_fini(&b);
    nng_close(s);
}

static void a_peer_that_hangs_up_ends_its_inline_request(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request req = harness_generate(0, prompt, 1, 4000);
    kwk_buf b;
    kwk_sp s;

    atomic_store(&fake.step_ms, 2);
    req.u.generate.inline_reply = 1;
    b = encode(&req);
    assert_int_equal(kwk_sp_open(&s, t.control, 1000, &err), KWK_OK);
    kwk_buf reply = {0};
    assert_int_equal(kwk_sp_call(&s, b.data, b.size, &reply, 100, &err), KWK_ETIMEOUT); // closes
    kwk_buf_fini(&reply);
    kwk_buf_fini(&b);
    for (int i = 0; !kwkd_scheduler_idle(t.d->scheduler) && i < 1000; i++)
        usleep(1000);
    assert_true(kwkd_scheduler_idle(t.d->scheduler));
    assert_int_equal(kwkd_counted(&t.d->metrics.finished[KWK_FINISH_CANCEL]), 1);
    assert_true(atomic_load(&fake_count.steps) < 500);
}

static void a_message_that_is_too_long_ends_only_its_connection(void **state)
{
    static uint8_t body[100];
    kwk_request req = status_request();
    uint8_t head[9] = {1, 0, 0, 0, 1}; // 4 GiB to come
    kwk_sp s;
    char byte;
    int fd;

    fd = connect_to(t.control, SOCK_STREAM);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, "\0SP\0\0\x30\0\0", 8, MSG_NOSIGNAL), 8);
    assert_int_equal(recv(fd, body, 8, MSG_WAITALL), 8);
    assert_int_equal(send(fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
    assert_int_equal(kwk_sp_open(&s, t.control, 1000, &err), KWK_OK);
    assert_int_equal(ask(&s, &req, NULL), KWK_OK);
    kwk_sp_close(&s);
}

static void connect_and_close(int n)
{
    for (int i = 0; i < n; i++) {
        struct timespec wait = {0, 1000000};
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strcpy(to.sun_path, t.control);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
            nanosleep(&wait, NULL); // the backlog is full
        close(fd);
    }
}

/* How long until a new connection is served, in milliseconds; connections that are dropped while
 * the listener is made anew are tried again, as clients do. */
static int served_after(void)
{
    const uint64_t start = kwkd_now_us();
    kwk_request req = status_request();

    for (;;) {
        kwk_sp s;
        const uint64_t ms = (kwkd_now_us() - start) / 1000;
        if (ms > 20000)
            return (int)ms;
        if (kwk_sp_open(&s, t.control, 2000, &err) == KWK_OK) {
            const int rc = ask(&s, &req, NULL);
            kwk_sp_close(&s);
            if (rc == KWK_OK)
                return (int)ms;
        }
        usleep(1000);
    }
}

static void ten_thousand_connections_come_and_go_and_the_listener_lives(void **state)
{
    connect_and_close(10000);
    assert_true(served_after() < 2000);
    connect_and_close(500);
    assert_true(served_after() < 2000);
}

static void a_request_under_way_survives_the_new_listener(void **state)
{
    const int32_t prompt[] = {1};
    kwk_request req = harness_generate(0, prompt, 1, 600);
    uint64_t repairs;
    kwk_tree *tree;
    nng_socket s;
    char url[128];
    kwk_buf b;
    size_t n;
    void *reply;

    atomic_store(&fake.step_ms, 5); // three seconds
    req.u.generate.inline_reply = 1;
    b = encode(&req);
    snprintf(url, sizeof url, "ipc://%s", t.control);
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, 20000), 0);
    assert_int_equal(nng_dial(s, url, NULL, 0), 0);
    assert_int_equal(nng_send(s, b.data, b.size, 0), 0);
    usleep(50000);
    repairs = kwkd_counted(&t.d->metrics.listener_repairs);
    for (int i = 0; i < 100 && kwkd_counted(&t.d->metrics.listener_repairs) == repairs; i++) {
        connect_and_close(200);
        usleep(20000);
    }
    if (kwkd_counted(&t.d->metrics.listener_repairs) == repairs)
        print_message("this NNG's listener was not to be broken\n");
    assert_int_equal(nng_recv(s, &reply, &n, NNG_FLAG_ALLOC), 0);
    assert_int_equal(kwk_tree_parse(&tree, reply, n, &err), KWK_OK);
    assert_int_equal(kwk_tree_int(tree, "new_tokens", 0), 600);
    kwk_tree_free(tree);
    nng_free(reply, n);
    kwk_buf_fini(&b);
    nng_close(s);
    assert_int_equal(kwkd_counted(&t.d->metrics.requests[KWK_OP_generate]), 1); // once
    assert_true(served_after() < 2000);
}

static void probing_finds_a_live_listener_alive(void **state)
{
    usleep(2500000); // two probes at least
    assert_int_equal(kwkd_counted(&t.d->metrics.listener_repairs), 0);
    assert_true(served_after() < 100);
}

static void a_missing_path_is_made_again(void **state)
{
    assert_int_equal(unlink(t.control), 0);
    for (int i = 0; access(t.control, F_OK) && i < 300; i++)
        usleep(10000);
    assert_true(served_after() < 1000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(our_client_is_answered),
        TEST(a_stock_nng_client_generates_inline),
        TEST(a_peer_that_hangs_up_ends_its_inline_request),
        TEST(a_message_that_is_too_long_ends_only_its_connection),
        TEST(ten_thousand_connections_come_and_go_and_the_listener_lives),
        TEST(a_request_under_way_survives_the_new_listener),
        TEST(probing_finds_a_live_listener_alive),
        TEST(a_missing_path_is_made_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
