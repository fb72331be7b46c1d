/* SPDX-License-Identifier: Apache-2.0
 *
 * sp.c and unix_socket.c against a stock NNG REP socket, and against peers that misbehave: pieces,
 * silence, garbage, wrong lengths and ids, closed connections.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#include "proto/buf.h"
#include "proto/sp.h"
#include "proto/unix_socket.h"

static char dir[64], path[100];

static int make_dir(void **state)
{
    strcpy(dir, "/tmp/kwk-sp-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    return 0;
}

static int remove_dir(void **state)
{
    unlink(path);
    rmdir(dir);
    return 0;
}

/* ---- against NNG ----------------------------------------------------------------------------- */

static void *echo_thread(void *arg) // answers each request with itself reversed
{
    nng_socket s = *(nng_socket *)arg;
    nng_msg *msg;

    while (nng_recvmsg(s, &msg, 0) == 0) {
        uint8_t *p = nng_msg_body(msg);
        const size_t n = nng_msg_len(msg);
        for (size_t i = 0; i < n / 2; i++) {
            const uint8_t c = p[i];
            p[i] = p[n - 1 - i];
            p[n - 1 - i] = c;
        }
        if (nng_sendmsg(s, msg, 0))
            nng_msg_free(msg);
    }
    return NULL;
}

static void a_stock_nng_rep_socket_answers(void **state)
{
    static const size_t sizes[] = {0, 1, 2, 100, 65536, KWK_MSG_MAX - 1, KWK_MSG_MAX};
    uint8_t *req = test_malloc(KWK_MSG_MAX + 1);
    kwk_buf reply = {0};
    kwk_error err = {0};
    nng_socket rep;
    pthread_t thread;
    char url[128];
    uint64_t seed = 1;
    kwk_sp s;

    snprintf(url, sizeof url, "ipc://%s", path);
    assert_int_equal(nng_rep0_open(&rep), 0);
    assert_int_equal(nng_listen(rep, url, NULL, 0), 0);
    assert_int_equal(pthread_create(&thread, NULL, echo_thread, &rep), 0);
    if (kwk_sp_open(&s, path, 5000, &err) < 0)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < KWK_MSG_MAX; i++)
        req[i] = (uint8_t)check_random(&seed);
    for (int round = 0; round < 20; round++) {
        const size_t n = sizes[(size_t)round % CHECK_COUNT(sizes)];
        reply.size = 0;
        assert_int_equal(kwk_buf_write(&reply, "head", 4), 0);
        assert_int_equal(kwk_sp_call(&s, req, n, &reply, 5000, &err), KWK_OK);
        assert_int_equal(reply.size, n + 4);
        assert_memory_equal(reply.data, "head", 4);
        for (size_t i = 0; i < n; i += 997)
            assert_int_equal(reply.data[4 + i], req[n - 1 - i]);
    }
    assert_int_equal(kwk_sp_call(&s, req, KWK_MSG_MAX + 1, &reply, 5000, &err), KWK_EFULL);
    assert_int_equal(kwk_sp_call(&s, req, 5, &reply, 5000, &err), KWK_OK); // still good

    nng_close(rep);
    assert_int_equal(kwk_sp_call(&s, req, 5, &reply, 5000, &err), KWK_ECLOSED);
    assert_int_equal(kwk_sp_call(&s, req, 5, &reply, 5000, &err), KWK_ECLOSED);
    pthread_join(thread, NULL);
    kwk_sp_close(&s);
    kwk_sp_close(&s);
    kwk_sp_close(NULL);
    kwk_buf_fini(&reply);
    test_free(req);
}

/* ---- against peers that misbehave ------------------------------------------------------------ */

/* What a peer sends, in pieces, after it has read the 8 bytes of the handshake, and a request. */
typedef struct peer {
    int listener;
    const char *hello;
    size_t n_hello;
    int read_request; // wait for one, then send `reply` with its id at id_at
    const char *reply;
    size_t n_reply;
    int id_at;     // -1: as it is
    int piece;     // bytes per write
    int stay_open; // until the client closes
} peer;

static void write_pieces(int fd, const uint8_t *p, size_t n, int piece)
{
    while (n) {
        const size_t k = n < (size_t)piece ? n : (size_t)piece;
        if (send(fd, p, k, MSG_NOSIGNAL) != (ssize_t)k)
            return;
        p += k;
        n -= k;
        if (piece < 64)
            usleep(200);
    }
}

static void *peer_thread(void *arg)
{
    const peer *p = arg;
    const int fd = accept(p->listener, NULL, NULL);
    uint8_t in[64], out[64];

    if (recv(fd, in, 8, MSG_WAITALL) == 8)
        write_pieces(fd, (const uint8_t *)p->hello, p->n_hello, p->piece);
    if (p->read_request && recv(fd, in, 13, MSG_WAITALL) == 13) {
        memcpy(out, p->reply, p->n_reply);
        if (p->id_at >= 0)
            memcpy(out + p->id_at, in + 9, 4);
        write_pieces(fd, out, p->n_reply, p->piece);
    }
    if (p->stay_open)
        while (recv(fd, in, sizeof in, 0) > 0)
            ;
    close(fd);
    return NULL;
}

static int listener(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(sa.sun_path, path);
    unlink(path);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

#define REP "\0SP\0\0\x31\0\0"

/* Result of opening and calling with an empty request. */
static int call_peer(peer p, int timeout_ms, kwk_buf *reply, kwk_error *err)
{
    pthread_t thread;
    kwk_sp s;
    int rc;

    if (!p.piece)
        p.piece = 4096;
    p.listener = listener();
    assert_int_equal(pthread_create(&thread, NULL, peer_thread, &p), 0);
    rc = kwk_sp_open(&s, path, timeout_ms, err);
    if (rc == KWK_OK) {
        rc = kwk_sp_call(&s, "", 0, reply, timeout_ms, err);
        if (rc < 0)
            assert_int_equal(s.fd, -1); // what would still come belongs to nobody
    }
    kwk_sp_close(&s);
    pthread_join(thread, NULL);
    close(p.listener);
    return rc;
}

static void a_reply_in_single_bytes_is_put_together(void **state)
{
    kwk_buf reply = {0};
    kwk_error err = {0};
    static const char bytes[] = "\1\0\0\0\0\0\0\0\7????abc";
    const peer p = {.hello = REP, .n_hello = 8, .read_request = 1, .reply = bytes, .n_reply = 16,
                    .id_at = 9, .piece = 1, .stay_open = 1};

    assert_int_equal(call_peer(p, 5000, &reply, &err), KWK_OK);
    assert_int_equal(reply.size, 3);
    assert_memory_equal(reply.data, "abc", 3);
    kwk_buf_fini(&reply);
}

static void a_peer_that_is_no_rep_socket_is_refused(void **state)
{
    static const char *const hellos[] = {
        "\0SP\0\0\x30\0\0", // REQ, as we are
        "\0SP\1\0\x31\0\0", // another version
        "HTTP/1.1", "\0\0\0\0\0\0\0\0",
    };
    kwk_buf reply = {0};
    kwk_error err;

    for (size_t i = 0; i < CHECK_COUNT(hellos); i++) {
        const peer p = {.hello = hellos[i], .n_hello = 8, .stay_open = 1};
        assert_int_equal(call_peer(p, 5000, &reply, &err), KWK_EPROTO);
    }
    kwk_buf_fini(&reply);
}

static void a_reply_of_impossible_size_type_or_id_is_refused(void **state)
{
    static const struct {
        const char *bytes;
        int id_at;
    } replies[] = {
        {"\1\0\0\0\0\0\x10\0\5????", 9},                   // a byte more than a message may have
        {"\1\xff\xff\xff\xff\xff\xff\xff\xff????", 9},     //
        {"\1\x80\0\0\0\0\0\0\4????", 9},                   //
        {"\1\0\0\0\0\0\0\0\3????", 9},                     // no room for the id
        {"\1\0\0\0\0\0\0\0\0????", 9},                     //
        {"\2\0\0\0\0\0\0\0\4????", 9},                     // another type
        {"\1\0\0\0\0\0\0\0\4\x80\0\0\x77", -1},            // another id
    };
    kwk_buf reply = {0};
    kwk_error err;

    for (size_t i = 0; i < CHECK_COUNT(replies); i++) {
        const peer p = {.hello = REP, .n_hello = 8, .read_request = 1, .reply = replies[i].bytes,
                        .n_reply = 13, .id_at = replies[i].id_at, .stay_open = 1};
        assert_int_equal(call_peer(p, 5000, &reply, &err), KWK_EPROTO);
        assert_int_equal(reply.size, 0);
        assert_true(reply.capacity <= 4096); // nothing was allocated on its word
    }
    kwk_buf_fini(&reply);
}

static void silence_ends_with_the_time(void **state)
{
    kwk_buf reply = {0};
    kwk_error err;
    const peer peers[] = {
        {.hello = "", .n_hello = 0, .stay_open = 1},
        {.hello = REP, .n_hello = 5, .stay_open = 1},
        {.hello = REP, .n_hello = 8, .read_request = 1, .reply = "", .n_reply = 0, .id_at = -1,
         .stay_open = 1},
        {.hello = REP, .n_hello = 8, .read_request = 1, .reply = "\1\0\0\0\0\0\0\0\7????a",
         .n_reply = 14, .id_at = 9, .stay_open = 1},
    };

    for (size_t i = 0; i < CHECK_COUNT(peers); i++) {
        const int64_t start = kwk_now_ms();
        assert_int_equal(call_peer(peers[i], 40, &reply, &err), KWK_ETIMEOUT);
        assert_true(kwk_now_ms() - start >= 39);
        assert_int_equal(reply.size, 0);
    }
    kwk_buf_fini(&reply);
}

static void a_closed_connection_is_an_error_and_no_signal(void **state)
{
    kwk_buf reply = {0};
    kwk_error err;
    const peer peers[] = {
        {.hello = "", .n_hello = 0},
        {.hello = REP, .n_hello = 4},
        {.hello = REP, .n_hello = 8},
        {.hello = REP, .n_hello = 8, .read_request = 1, .reply = "\1\0\0\0", .n_reply = 4,
         .id_at = -1},
    };

    for (size_t i = 0; i < CHECK_COUNT(peers); i++)
        assert_int_equal(call_peer(peers[i], 5000, &reply, &err), KWK_ECLOSED);
    kwk_buf_fini(&reply);
}

static void a_peer_that_reads_nothing_stops_a_large_request(void **state)
{
    uint8_t *req = test_calloc(1, KWK_MSG_MAX);
    peer p = {.listener = listener(), .hello = REP, .n_hello = 8, .piece = 64, .read_request = 0};
    kwk_buf reply = {0};
    kwk_error err;
    int fd;
    kwk_sp s;
    pthread_t thread;

    // the thread says hello and ends; a copy of its end stays open here
    assert_int_equal(pthread_create(&thread, NULL, peer_thread, &p), 0);
    fd = kwk_unix_connect(path, SOCK_STREAM, 1000, &err);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, REP, 8, MSG_NOSIGNAL), 8);
    pthread_join(thread, NULL);
    close(fd);

    s = (kwk_sp){.fd = kwk_unix_connect(path, SOCK_STREAM, 1000, &err)};
    fd = accept(p.listener, NULL, NULL);
    assert_int_equal(kwk_sp_call(&s, req, KWK_MSG_MAX, &reply, 50, &err), KWK_ETIMEOUT);
    assert_string_equal(err.msg, "control socket takes no data");
    assert_int_equal(s.fd, -1);
    close(fd);
    close(p.listener);
    test_free(req);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void connecting_says_what_is_wrong(void **state)
{
    char longest[200];
    kwk_error err = {0};
    int fd;
    kwk_sp s;

    unlink(path);
    assert_int_equal(kwk_sp_open(&s, path, 100, &err), KWK_ENOENT);
    assert_int_equal(s.fd, -1);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(kwk_sp_open(&s, "/dev/null/x", 100, &err), KWK_ENOENT);
    assert_int_equal(kwk_sp_open(&s, "", 100, &err), KWK_EINVAL);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(kwk_sp_open(&s, longest, 100, &err), KWK_EINVAL);

    fd = listener();
    assert_int_equal(kwk_unix_connect(path, SOCK_SEQPACKET, 100, &err), KWK_EPROTO);
    close(fd); // the file stays, as after kill -9
    assert_int_equal(kwk_sp_open(&s, path, 100, &err), KWK_ENOENT);
    assert_non_null(strstr(err.msg, "listens"));
}

static void a_full_backlog_ends_with_the_time(void **state)
{
    const int lfd = listener();
    int fds[64], n = 0, rc;
    kwk_error err = {0};

    do {
        rc = kwk_unix_connect(path, SOCK_STREAM, 30, &err);
        if (rc >= 0)
            fds[n++] = rc;
    } while (rc >= 0 && n < 64);
    assert_int_equal(rc, KWK_ETIMEOUT);
    assert_true(n > 0);
    while (n)
        close(fds[--n]);
    close(lfd);
}

static void sockets_are_closed_on_exec(void **state)
{
    const int lfd = listener();
    kwk_error err;
    const int fd = kwk_unix_connect(path, SOCK_STREAM, 100, &err);

    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(kwk_wait_fd(fd, 1, kwk_now_ms() + 20), 0);
    close(fd);
    close(lfd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stock_nng_rep_socket_answers),
        cmocka_unit_test(a_reply_in_single_bytes_is_put_together),
        cmocka_unit_test(a_peer_that_is_no_rep_socket_is_refused),
        cmocka_unit_test(a_reply_of_impossible_size_type_or_id_is_refused),
        cmocka_unit_test(silence_ends_with_the_time),
        cmocka_unit_test(a_closed_connection_is_an_error_and_no_signal),
        cmocka_unit_test(a_peer_that_reads_nothing_stops_a_large_request),
        cmocka_unit_test(connecting_says_what_is_wrong),
        cmocka_unit_test(a_full_backlog_ends_with_the_time),
        cmocka_unit_test(sockets_are_closed_on_exec),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
