/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of packed weights (image.c, image_read.c): sizes, seals, copies by both ways of reading,
 * and files that are whole or absent.
 */
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/image.h"
#include "tests/support/tiny_model.h"

static void fill(uint8_t *p, size_t n)
{
    uint64_t seed = 9;

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)check_random(&seed);
}

static void an_image_starts_as_zeros_and_may_shrink(void **state)
{
    for (int sealed = 0; sealed < 2; sealed++) {
        kwk_image img;
        assert_int_equal(kwk_image_new(&img, 3 << 20, sealed, NULL), KWK_OK);
        assert_int_equal((uintptr_t)img.base % 4096, 0);
        assert_int_equal(kwk_image_commit(&img, 0, 10000, NULL), KWK_OK);
        for (size_t i = 0; i < 10000; i++)
            assert_int_equal(img.base[i], 0);
        fill(img.base, 10000);
        assert_int_equal(kwk_image_finish(&img, 10000, NULL), KWK_OK);
        assert_int_equal(img.size, 10000);
        uint8_t *want = malloc(10000);
        fill(want, 10000);
        check_same(img.base, want, 10000, "sealed %d", sealed);
        free(want);
        assert_true((img.fd >= 0) == sealed);
        kwk_image_free(&img);
        kwk_image_free(&img); // a freed one is fine
    }
}

static void a_finished_image_cannot_be_written(void **state)
{
    for (int sealed = 0; sealed < 2; sealed++) {
        kwk_image img;
        int status;
        assert_int_equal(kwk_image_new(&img, 8192, sealed, NULL), KWK_OK);
        img.base[0] = 1;
        assert_int_equal(kwk_image_finish(&img, 4096, NULL), KWK_OK);
        const pid_t pid = fork();
        if (pid == 0) {
            signal(SIGSEGV, SIG_DFL); // without a sanitizer's report
            *(volatile uint8_t *)img.base = 2;
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        if (sealed) {
            assert_true(kwk_image_is_sealed(img.fd));
            assert_int_equal(ftruncate(img.fd, 0), -1);
            assert_int_equal(errno, EPERM);
            assert_int_equal(write(img.fd, "x", 1), -1);
            assert_int_equal(fcntl(img.fd, F_ADD_SEALS, F_SEAL_SEAL), -1);
        }
        kwk_image_free(&img);
    }
}

static void absurd_sizes_are_out_of_memory(void **state)
{
    kwk_image img;
    kwk_error err;

    for (int sealed = 0; sealed < 2; sealed++) {
        assert_int_equal(kwk_image_new(&img, 0, sealed, &err), KWK_ENOMEM);
        assert_int_equal(kwk_image_new(&img, UINT64_MAX, sealed, &err), KWK_ENOMEM);
        assert_int_equal(img.fd, -1);
    }
}

static void only_memfds_sealed_against_writing_and_shrinking_are_mapped(void **state)
{
    const int plain = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char *dir = tiny_dir_new();
    kwk_image img, again;

    assert_false(kwk_image_is_sealed(plain));
    assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_false(kwk_image_is_sealed(plain));
    assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_WRITE), 0);
    assert_true(kwk_image_is_sealed(plain));
    close(plain);
    tiny_write(dir, "f", "x", 1);
    char *path = tiny_path(dir, "f");
    const int file = open(path, O_RDONLY);
    assert_false(kwk_image_is_sealed(file));
    assert_false(kwk_image_is_sealed(-1));
    close(file);
    free(path);
    tiny_dir_free(dir);

    assert_int_equal(kwk_image_new(&img, 5000, 1, NULL), KWK_OK);
    fill(img.base, 5000);
    assert_int_equal(kwk_image_finish(&img, 5000, NULL), KWK_OK);
    assert_int_equal(kwk_image_map(&again, img.fd, 5000, NULL), KWK_OK);
    check_same(again.base, img.base, 5000, "the second mapping");
    kwk_image_free(&img); // the mapping has its own descriptor
    assert_true(kwk_image_is_sealed(again.fd));
    kwk_image_free(&again);
}

typedef int copy_fn(const kwk_copy *c, kwk_error *err);

/* Sizes around the chunks of both readers. */
static void check_copy(copy_fn *copy)
{
    static const size_t sizes[] = {1, 4095, (1 << 20) - 1, 1 << 20, (8 << 20) + 1, 19 << 20};
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "f");

    for (size_t i = 0; i < CHECK_COUNT(sizes); i++) {
        uint8_t *want = malloc(sizes[i]), *got = calloc(1, sizes[i]);
        kwk_error err;
        assert_true(want && got);
        fill(want, sizes[i]);
        tiny_write(dir, "f", want, sizes[i]);
        const int fd = open(path, O_RDONLY);
        assert_true(fd >= 0);
        const kwk_copy c = {fd, got, sizes[i], NULL, NULL};
        const int rc = copy(&c, &err);
        if (rc == KWK_EUNSUPPORTED) { // a sandbox without io_uring
            assert_memory_equal(err.msg, "io_uring", 8);
        } else {
            assert_int_equal(rc, KWK_OK);
            check_same(got, want, sizes[i], "%zu bytes", sizes[i]);
            const kwk_copy longer = {fd, got, sizes[i] - 1, NULL, NULL};
            assert_int_equal(ftruncate(fd, 0), -1); // read-only
            assert_int_equal(truncate(path, (off_t)sizes[i] / 2), 0);
            assert_int_equal(copy(&longer, &err), sizes[i] > 1 ? KWK_EFORMAT : KWK_OK);
        }
        close(fd);
        free(want);
        free(got);
    }
    free(path);
    tiny_dir_free(dir);
}

static void pread_copies_whole_files_and_notices_short_ones(void **state)
{
    check_copy(kwk_copy_pread);
}

static void io_uring_copies_whole_files_and_notices_short_ones(void **state)
{
    check_copy(kwk_copy_uring);
}

static int stop_at_half(void *arg, uint64_t done, uint64_t total)
{
    *(int *)arg += 1;
    return done > total / 2;
}

static void copying_can_be_canceled(void **state)
{
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "f");
    kwk_image img;
    kwk_error err;
    int calls = 0;

    tiny_write(dir, "f", "x", 1);
    assert_int_equal(truncate(path, 64 << 20), 0);
    const int fd = open(path, O_RDONLY);
    assert_int_equal(kwk_image_copy(&img, fd, 64 << 20, 0, stop_at_half, &calls, &err),
                     KWK_ECANCELED);
    assert_true(calls > 0);
    assert_int_equal(kwk_image_copy(&img, fd, 64 << 20, 1, NULL, NULL, &err), KWK_OK);
    assert_int_equal(img.base[0], 'x');
    assert_int_equal(img.base[(64 << 20) - 1], 0);
    kwk_image_free(&img);
    close(fd);
    free(path);
    tiny_dir_free(dir);
}

static void saving_replaces_whole_files_and_leaves_nothing_behind(void **state)
{
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "m.kwk"), *none = tiny_path(dir, "no/m.kwk");
    kwk_image img;
    kwk_error err;
    size_t n;

    assert_int_equal(kwk_image_new(&img, 70000, 0, NULL), KWK_OK);
    fill(img.base, 70000);
    assert_int_equal(kwk_image_finish(&img, 70000, NULL), KWK_OK);
    for (int round = 0; round < 2; round++) { // the second time over an existing file
        assert_int_equal(kwk_image_save(&img, path, &err), KWK_OK);
        uint8_t *got = tiny_read(dir, "m.kwk", &n);
        assert_int_equal(n, 70000);
        check_same(got, img.base, n, "saved");
        free(got);
    }
    assert_int_equal(kwk_image_save(&img, none, &err), KWK_ENOENT);
    assert_int_equal(kwk_image_save(&img, dir, &err), KWK_EIO); // rename onto a directory
    kwk_image_free(&img);

    /* The file is alone in its directory, and of the failed one nothing is left beside it. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    free(none);
    free(path);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_starts_as_zeros_and_may_shrink),
        cmocka_unit_test(a_finished_image_cannot_be_written),
        cmocka_unit_test(absurd_sizes_are_out_of_memory),
        cmocka_unit_test(only_memfds_sealed_against_writing_and_shrinking_are_mapped),
        cmocka_unit_test(pread_copies_whole_files_and_notices_short_ones),
        cmocka_unit_test(io_uring_copies_whole_files_and_notices_short_ones),
        cmocka_unit_test(copying_can_be_canceled),
        cmocka_unit_test(saving_replaces_whole_files_and_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
