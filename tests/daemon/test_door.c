/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/sockets.h"

static dut t;
static const kwk_hello_req hello = {.version = KWK_PROTO_VERSION, .client = "test/1"};

static int setup(void **state)
{
    fake_reset();
    dut_init(&t);
    dut_start(&t, NULL);
    return 0;
}

static int teardown(void **state)
{
    dut_stop(&t);
    dut_fini(&t);
    return 0;
}

static int knock(void)
{
    const int fd = connect_to(t.door, SOCK_SEQPACKET);

    if (fd < 0)
        fail_msg("%s", strerror(errno));
    return fd;
}

static void sessions(int n) // come to be
{
    for (int i = 0; kwkd_sessions_count(&t.d->sessions) != n && i < 5000; i++)
        usleep(1000);
    assert_int_equal(kwkd_sessions_count(&t.d->sessions), n);
}

static void expect_hang_up(int fd)
{
    char buf[4096];
    ssize_t n;

    while ((n = read_packet(fd, buf, sizeof buf)) > 0)
        ;
    assert_true(n == 0 || errno == ECONNRESET);
    close(fd);
}

static void hello_opens_a_session_with_its_memories(void **state)
{
    kwk_hello_req with_logits = hello;
    int fd = knock(), fds[3], n;
    kwk_tree *tree;
    size_t size;

    with_logits.logits_bytes = 8192;
    assert_int_equal(say_hello(fd, &with_logits, &tree, fds, &n), KWK_OK);
    assert_int_equal(n, 3);
    assert_string_equal(kwk_tree_str(tree, "ctl"), t.control);
    assert_string_equal(kwk_tree_str(tree, "server"), KWKD_SERVER);
    assert_int_equal(kwk_tree_int(tree, "out_slots", 0), KWK_OUT_SLOTS_DEFAULT);
    assert_int_equal(kwk_tree_int(tree, "logits_bytes", 0), 8192);
    assert_non_null(kwk_tree_bin(tree, "session", &size));
    assert_int_equal(size, 16);
    kwk_tree_free(tree);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    sessions(1);
    close(fd);
    sessions(0);
}

static void another_version_is_refused_with_both_numbers(void **state)
{
    kwk_hello_req old = hello;
    const int fd = knock();

    old.version = 7;
    assert_int_equal(say_hello(fd, &old, NULL, NULL, NULL), KWK_EPROTO);
    expect_hang_up(fd);
}

static void garbage_is_hung_up_on(void **state)
{
    static uint8_t big[KWK_DOOR_MAX + 100];
    const char *bad[] = {"x", "\x80", "hello there", "\xdd\xff\xff\xff\xff"};
    int fd;

    for (size_t i = 0; i < COUNT(bad); i++) {
        fd = knock();
        assert_true(send(fd, bad[i], strlen(bad[i]), MSG_NOSIGNAL) > 0);
        expect_hang_up(fd);
    }
    fd = knock();
    assert_true(send(fd, big, sizeof big, MSG_NOSIGNAL) > 0);
    expect_hang_up(fd);
    fd = knock(); // garbage after a good hello
    assert_int_equal(say_hello(fd, &hello, NULL, NULL, NULL), KWK_OK);
    assert_true(send(fd, "xx", 2, MSG_NOSIGNAL) > 0);
    expect_hang_up(fd);
    sessions(0);
}

static void rings_have_no_meaning_but_to_wake(void **state)
{
    const int fd = knock();

    assert_int_equal(say_hello(fd, &hello, NULL, NULL, NULL), KWK_OK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(send(fd, "z", 1, MSG_NOSIGNAL), 1);
    sessions(1);
    close(fd);
}

/* A session within a second, whoever was there before. */
static int get_in(void)
{
    for (int i = 0; i < 100; i++) {
        const int fd = connect_to(t.door, SOCK_SEQPACKET);
        if (fd >= 0 && say_hello(fd, &hello, NULL, NULL, NULL) == KWK_OK)
            return fd;
        if (fd >= 0)
            close(fd);
        usleep(10000);
    }
    fail_msg("no session within a second");
    return -1;
}

static void ten_thousand_connections_come_and_go(void **state)
{
    int fd;

    for (int i = 0; i < 10000; i++) {
        fd = connect_to(t.door, SOCK_SEQPACKET);
        if (fd < 0) // the backlog is full
            usleep(1000);
        else
            close(fd);
    }
    close(get_in());
    sessions(0);
}

static void strangers_are_bounded(void **state)
{
    int fds[64], refused = 0;
    char buf[1024];

    for (int i = 0; i < 64; i++)
        fds[i] = knock();
    for (int i = 0; i < 64; i++) {
        const struct timeval short_time = {.tv_usec = 20000};
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time);
        refused += read_packet(fds[i], buf, sizeof buf) > 0;
    }
    assert_int_equal(refused, 32);
    for (int i = 0; i < 64; i++)
        close(fds[i]);
    close(get_in());
}

/* A client that has forked: the child holds the connection, the parent is killed. */
static void a_dead_process_ends_its_session_although_a_child_lives(void **state)
{
    int sync[2];
    pid_t pid, child = 0;

    assert_int_equal(pipe(sync), 0);
    pid = fork();
    if (pid == 0) {
        const int fd = connect_to(t.door, SOCK_SEQPACKET);
        kwk_buf b = {0};
        char reply[1024];
        kwk_hello_req_encode(&b, &hello, NULL);
        if (send(fd, b.data, b.size, 0) < 0 || recv(fd, reply, sizeof reply, 0) <= 0)
            _exit(1);
        child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        if (write(sync[1], &child, sizeof child) < 0)
            _exit(1);
        pause();
    }
    assert_int_equal(read(sync[0], &child, sizeof child), sizeof child);
    sessions(1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    sessions(0);
    kill(child, SIGKILL);
    close(sync[0]);
    close(sync[1]);
}

static void send_with_fd(int fd, const kwk_buf *b, int passed)
{
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {b->data, b->size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (passed >= 0) {
        struct cmsghdr *c;
        msg.msg_control = space;
        msg.msg_controllen = sizeof space;
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &passed, sizeof passed);
    }
    assert_true(sendmsg(fd, &msg, MSG_NOSIGNAL) > 0);
}

static int pack_reply(int fd, uint64_t *id)
{
    uint8_t packet[1024];
    const ssize_t n = read_packet(fd, packet, sizeof packet);
    kwk_tree *tree;
    kwk_error err;
    int retry_ms, rc;

    assert_true(n > 0);
    assert_int_equal(kwk_tree_parse(&tree, packet, (size_t)n, &err), KWK_OK);
    rc = kwk_tree_status(tree, &retry_ms, &err);
    *id = (uint64_t)kwk_tree_int(tree, "pack", 0);
    kwk_tree_free(tree);
    return rc;
}

static void packs_are_handed_over_with_a_descriptor(void **state)
{
    const int fd = knock(), pack = memfd_create("pack", MFD_CLOEXEC);
    kwk_buf b = {0};
    uint64_t id;
    kwk_map m;

    assert_int_equal(say_hello(fd, &hello, NULL, NULL, NULL), KWK_OK);
    kwk_map_begin(&m, &b);
    kwk_map_int(&m, "v", KWK_PROTO_VERSION);
    kwk_map_str(&m, "op", "pack");
    assert_int_equal(kwk_map_end(&m, NULL), KWK_OK);
    send_with_fd(fd, &b, -1);
    assert_int_equal(pack_reply(fd, &id), KWK_EINVAL); // the session goes on
    for (int i = 0; i < KWKD_PACKS; i++) {
        send_with_fd(fd, &b, pack);
        assert_int_equal(pack_reply(fd, &id), KWK_OK);
        assert_true(id > 0);
    }
    send_with_fd(fd, &b, pack);
    assert_int_equal(pack_reply(fd, &id), KWK_EFULL);
    kwk_buf_fini(&b);
    close(pack);
    close(fd);
    sessions(0);
}

static void without_descriptors_it_refuses_and_recovers(void **state)
{
    struct rlimit old, few;
    int fds[100], n = 0;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 60; // of this process: the daemon and its clients alike
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (n < 100) {
        const int fd = connect_to(t.door, SOCK_SEQPACKET);
        if (fd < 0)
            break;
        fds[n++] = fd;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    close(get_in());
}

static void the_daemons_end_is_the_doors_end(void **state)
{
    const int fd = knock();

    assert_int_equal(say_hello(fd, &hello, NULL, NULL, NULL), KWK_OK);
    dut_stop(&t);
    expect_hang_up(fd);
    assert_int_equal(access(t.door, F_OK), -1);
    assert_int_equal(access(t.control, F_OK), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(hello_opens_a_session_with_its_memories),
        TEST(another_version_is_refused_with_both_numbers),
        TEST(garbage_is_hung_up_on),
        TEST(rings_have_no_meaning_but_to_wake),
        TEST(ten_thousand_connections_come_and_go),
        TEST(strangers_are_bounded),
        TEST(a_dead_process_ends_its_session_although_a_child_lives),
        TEST(packs_are_handed_over_with_a_descriptor),
        TEST(without_descriptors_it_refuses_and_recovers),
        TEST(the_daemons_end_is_the_doors_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
