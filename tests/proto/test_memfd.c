/* SPDX-License-Identifier: Apache-2.0
 *
 * memfd.c: seals hold against the one who got the descriptor, checks refuse what is not sealed.
 */
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/ring.h"

enum { SIZE = 3 * 4096 };

static void a_memfd_is_zeroed_committed_and_closed_on_exec(void **state)
{
    struct stat st;
    kwk_error err;
    const int fd = kwk_memfd_create("kwk-test", SIZE, &err);
    const uint8_t *p;

    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, SIZE);
    assert_true(st.st_blocks * 512 >= SIZE); // pages are there before the first touch
    p = kwk_memfd_map(fd, SIZE, 0, &err);
    assert_non_null(p);
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(p[i], 0);
    munmap((void *)p, SIZE);
    close(fd);
}

static void future_write_seal_leaves_old_mappings_and_refuses_new_ones(void **state)
{
    kwk_error err = {0};
    const int fd = kwk_memfd_create("kwk-test", SIZE, &err);
    uint8_t *w = kwk_memfd_map(fd, SIZE, 1, &err);
    uint8_t *r;

    assert_int_equal(kwk_memfd_seal(fd, 1, &err), KWK_OK);
    assert_null(kwk_memfd_map(fd, SIZE, 1, &err));
    assert_int_equal(err.code, KWK_EPERM);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_int_equal(errno, EPERM);

    r = kwk_memfd_map(fd, SIZE, 0, &err);
    assert_non_null(r);
    assert_int_equal(mprotect(r, SIZE, PROT_READ | PROT_WRITE), -1);
    w[77] = 42; // the maker still writes, and the reader sees it
    assert_int_equal(r[77], 42);
    munmap(r, SIZE);
    munmap(w, SIZE);
    close(fd);
}

static void sealed_memfds_keep_their_size_and_their_seals(void **state)
{
    for (int future_write = 0; future_write <= 1; future_write++) {
        kwk_error err;
        const int fd = kwk_memfd_create("kwk-test", SIZE, &err);
        assert_int_equal(kwk_memfd_seal(fd, future_write, &err), KWK_OK);
        assert_int_equal(ftruncate(fd, 0), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(ftruncate(fd, 2 * SIZE), -1);
        assert_int_equal(kwk_memfd_seal(fd, 1, &err), KWK_EPERM); // no further seals
        assert_int_equal(err.code, KWK_EPERM);
        close(fd);
    }
}

static void without_future_write_the_peer_may_map_for_writing(void **state)
{
    kwk_error err;
    const int fd = kwk_memfd_create("kwk-test", SIZE, &err);
    uint8_t *w;

    assert_int_equal(kwk_memfd_seal(fd, 0, &err), KWK_OK);
    w = kwk_memfd_map(fd, SIZE, 1, &err);
    assert_non_null(w);
    w[0] = 1;
    munmap(w, SIZE);
    close(fd);
}

static void check_accepts_only_large_enough_sealed_memfds(void **state)
{
    kwk_error err = {0};
    int fd = kwk_memfd_create("kwk-test", SIZE, &err), pipes[2];

    assert_int_equal(kwk_memfd_check(fd, SIZE, &err), KWK_EPROTO);
    assert_non_null(strstr(err.msg, "not sealed"));
    assert_int_equal(kwk_memfd_seal(fd, 1, &err), KWK_OK);
    assert_int_equal(kwk_memfd_check(fd, SIZE, &err), KWK_OK);
    assert_int_equal(kwk_memfd_check(fd, 1, &err), KWK_OK);
    assert_int_equal(kwk_memfd_check(fd, SIZE + 1, &err), KWK_EPROTO);
    close(fd);

    fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(kwk_memfd_check(fd, 1, &err), KWK_EPROTO);
    assert_string_equal(err.msg, "descriptor is not a memfd");
    close(fd);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(kwk_memfd_check(pipes[0], 1, &err), KWK_EPROTO);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(kwk_memfd_check(-1, 1, &err), KWK_EPROTO);
}

static void what_cannot_be_made_is_an_error(void **state)
{
    kwk_error err = {0};

    assert_int_equal(kwk_memfd_create("kwk-test", (size_t)1 << 62, &err), KWK_ENOMEM);
    assert_int_equal(err.code, KWK_ENOMEM);
    assert_int_equal(kwk_memfd_create("kwk-test", SIZE_MAX, &err), KWK_ENOMEM);
    assert_true(kwk_memfd_create("kwk-test", 0, &err) < 0);
    assert_null(kwk_memfd_map(-1, SIZE, 0, &err));
    assert_int_equal(kwk_memfd_seal(-1, 0, &err), KWK_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_memfd_is_zeroed_committed_and_closed_on_exec),
        cmocka_unit_test(future_write_seal_leaves_old_mappings_and_refuses_new_ones),
        cmocka_unit_test(sealed_memfds_keep_their_size_and_their_seals),
        cmocka_unit_test(without_future_write_the_peer_may_map_for_writing),
        cmocka_unit_test(check_accepts_only_large_enough_sealed_memfds),
        cmocka_unit_test(what_cannot_be_made_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
