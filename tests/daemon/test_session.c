/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/session.h"
#include "tests/daemon/harness.h"

static kwkd_sessions table;
static kwkd_conf conf;
static kwk_error err;

static int setup(void **state)
{
    const kwkd_conf_input nothing = {0};

    assert_int_equal(kwkd_conf_load(&conf, &nothing, &err), KWK_OK);
    kwkd_sessions_init(&table);
    kwkd_sessions_configure(&table, &conf);
    return 0;
}

static int teardown(void **state)
{
    kwkd_sessions_fini(&table);
    kwkd_conf_fini(&conf);
    return 0;
}

static int open_as(kwkd_session **s, uint32_t uid, const kwk_hello_req *hello, int fds[3], int *n)
{
    static const kwk_hello_req plain = {.version = 1, .client = "test/1"};
    int pair[2], rc;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    close(pair[0]);
    rc = kwkd_session_open(s, &table, pair[1], uid, 5, hello ? hello : &plain, fds, n, &err);
    if (rc < 0)
        close(pair[1]);
    return rc;
}

static kwkd_session *open_plain(uint32_t uid)
{
    kwkd_session *s = NULL;
    int fds[3], n;

    assert_int_equal(open_as(&s, uid, NULL, fds, &n), KWK_OK);
    assert_int_equal(n, 2);
    close(fds[0]);
    close(fds[1]);
    return s;
}

static void close_session(kwkd_session *s)
{
    kwkd_session_close(&table, s);
    kwkd_session_unref(s);
}

static void the_memories_are_sealed_and_out_is_read_only(void **state)
{
    const kwk_hello_req hello = {
        .version = 1, .out_slots = 128, .in_bytes = 4096, .logits_bytes = 5000};
    kwkd_session *s = NULL;
    int fds[3], n;

    assert_int_equal(open_as(&s, 1, &hello, fds, &n), KWK_OK);
    assert_int_equal(n, 3);
    assert_int_equal(s->logits_bytes, 8192);
    assert_int_equal(s->bytes, kwk_out_size(128) + kwk_in_size(4096) + 8192);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ftruncate(fds[i], 0), -1);
        assert_int_equal(ftruncate(fds[i], 1 << 30), -1);
        void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
        assert_true(i == 1 ? p != MAP_FAILED : p == MAP_FAILED);
        if (p != MAP_FAILED)
            munmap(p, 4096);
        close(fds[i]);
    }
    close_session(s);
}

static void sizes_out_of_range_are_refused(void **state)
{
    const kwk_hello_req bad[] = {
        {.out_slots = 1},       {.out_slots = 1u << 31},      {.in_bytes = 5},
        {.in_bytes = 1u << 31}, {.logits_bytes = UINT64_MAX}, {.logits_bytes = 1ull << 40}};
    kwkd_session *s;
    int fds[3], n;

    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(open_as(&s, 1, &bad[i], fds, &n), KWK_EINVAL);
    assert_int_equal(kwkd_sessions_count(&table), 0);
    assert_int_equal(table.bytes, 0);
}

static void quotas_hold_per_user_and_in_all(void **state)
{
    kwkd_session *s[4], *none;
    int fds[3], n;

    conf.sessions = 3;
    conf.sessions_per_user = 2;
    kwkd_sessions_configure(&table, &conf);
    s[0] = open_plain(1);
    s[1] = open_plain(1);
    assert_int_equal(open_as(&none, 1, NULL, fds, &n), KWK_EBUSY);
    s[2] = open_plain(2);
    assert_int_equal(open_as(&none, 3, NULL, fds, &n), KWK_EBUSY);
    close_session(s[0]);
    s[0] = open_plain(3);
    for (int i = 0; i < 3; i++)
        close_session(s[i]);
    conf.user_bytes = 2 << 20; // one session and a half
    kwkd_sessions_configure(&table, &conf);
    s[0] = open_plain(1);
    assert_int_equal(open_as(&none, 1, NULL, fds, &n), KWK_EBUSY);
    s[1] = open_plain(2);
    close_session(s[0]);
    close_session(s[1]);
    assert_int_equal(table.bytes, 0);
}

static void only_its_own_process_finds_a_session(void **state)
{
    kwkd_session *s = open_plain(1), *found = NULL;
    uint8_t id[16];

    memcpy(id, s->id, 16);
    assert_int_equal(kwkd_session_find(&found, &table, id, 1, 5, &err), KWK_OK);
    assert_ptr_equal(found, s);
    kwkd_session_unref(found);
    assert_int_equal(kwkd_session_find(&found, &table, id, 2, 5, &err), KWK_EPERM);
    assert_int_equal(kwkd_session_find(&found, &table, id, 1, 6, &err), KWK_EPERM);
    id[15] ^= 1;
    assert_int_equal(kwkd_session_find(&found, &table, id, 1, 5, &err), KWK_EPERM);
    id[15] ^= 1;
    kwkd_session_kill(s);
    assert_int_equal(kwkd_session_find(&found, &table, id, 1, 5, &err), KWK_EPERM);
    close_session(s);
}

static void a_kill_hangs_up_at_once(void **state)
{
    const kwk_hello_req hello = {.version = 1};
    kwkd_session *s = NULL;
    int pair[2], fds[3], n;
    char byte;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(kwkd_session_open(&s, &table, pair[1], 1, 5, &hello, fds, &n, &err), KWK_OK);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(recv(pair[0], &byte, 1, 0), -1);
    kwkd_session_kill(s);
    assert_int_equal(recv(pair[0], &byte, 1, 0), 0);
    close(pair[0]);
    close_session(s);
}

static void a_stream_id_is_used_once_at_a_time(void **state)
{
    kwkd_session *s = open_plain(1);

    assert_int_equal(kwkd_session_take_stream(s, 5, &err), KWK_OK);
    assert_int_equal(kwkd_session_take_stream(s, 5, &err), KWK_EINVAL);
    assert_int_equal(kwkd_session_take_stream(s, 5 + KWK_STREAMS, &err), KWK_EINVAL); // same slot
    assert_int_equal(kwkd_session_take_stream(s, UINT32_MAX, &err), KWK_OK);
    kwkd_session_free_stream(s, 5);
    assert_int_equal(kwkd_session_take_stream(s, 5 + KWK_STREAMS, &err), KWK_OK);
    close_session(s);
}

static void packs_are_kept_until_taken_or_closed(void **state)
{
    kwkd_session *s = open_plain(1);
    uint64_t id[KWKD_PACKS], more;
    int fd = -1, first = open("/dev/null", O_RDONLY);

    for (int i = 0; i < KWKD_PACKS; i++)
        assert_int_equal(
            kwkd_session_add_pack(s, i ? open("/dev/null", O_RDONLY) : first, &id[i], &err),
            KWK_OK);
    assert_int_equal(kwkd_session_add_pack(s, 0, &more, &err), KWK_EFULL);
    assert_int_equal(kwkd_session_take_pack(s, id[0], &fd, &err), KWK_OK);
    assert_int_equal(fd, first);
    assert_int_equal(kwkd_session_take_pack(s, id[0], &fd, &err), KWK_ENOENT);
    assert_int_equal(kwkd_session_take_pack(s, 0, &fd, &err), KWK_ENOENT);
    close_session(s);
    assert_int_equal(fcntl(first, F_GETFD), 0); // was ours again
    close(first);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_memories_are_sealed_and_out_is_read_only),
        TEST(sizes_out_of_range_are_refused),
        TEST(quotas_hold_per_user_and_in_all),
        TEST(only_its_own_process_finds_a_session),
        TEST(a_kill_hangs_up_at_once),
        TEST(a_stream_id_is_used_once_at_a_time),
        TEST(packs_are_kept_until_taken_or_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
