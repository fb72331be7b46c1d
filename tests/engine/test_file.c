/* SPDX-License-Identifier: Apache-2.0
 *
 * Files from outside: what is not a readable regular file of the promised size is a typed error.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/file.h"
#include "tests/support/tiny_model.h"

static void text_files_come_whole_and_terminated(void **state)
{
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "a"), *text = NULL;
    size_t n = 0;

    tiny_write(dir, "a", "hello", 5);
    assert_int_equal(kwk_file_text(AT_FDCWD, path, 5, &text, &n, NULL), KWK_OK);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    tiny_write(dir, "a", "", 0);
    assert_int_equal(kwk_file_text(AT_FDCWD, path, 5, &text, &n, NULL), KWK_OK);
    assert_int_equal(n, 0);
    free(text);
    free(path);
    tiny_dir_free(dir);
}

static void a_file_over_the_limit_is_refused_before_memory_is_taken(void **state)
{
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "a"), *text = NULL;
    kwk_error err;
    size_t n;

    tiny_write(dir, "a", "hello!", 6);
    assert_int_equal(kwk_file_text(AT_FDCWD, path, 5, &text, &n, &err), KWK_EFORMAT);
    assert_null(text);
    assert_int_equal(truncate(path, INT64_C(1) << 40), 0); // sparse
    assert_int_equal(kwk_file_text(AT_FDCWD, path, 1 << 20, &text, &n, &err), KWK_EFORMAT);
    assert_non_null(strstr(err.msg, "1099511627776 bytes"));
    free(path);
    tiny_dir_free(dir);
}

static void only_regular_files_are_opened_and_nothing_blocks(void **state)
{
    char *dir = tiny_dir_new(), *fifo = tiny_path(dir, "fifo"), *none = tiny_path(dir, "none");
    uint64_t size;
    kwk_error err;

    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(kwk_file_open(AT_FDCWD, fifo, &size, &err), KWK_EFORMAT);
    assert_int_equal(kwk_file_open(AT_FDCWD, dir, &size, &err), KWK_EFORMAT);
    assert_int_equal(kwk_file_open(AT_FDCWD, none, &size, &err), KWK_ENOENT);
    assert_int_equal(kwk_file_open(AT_FDCWD, "/dev/null", &size, &err), KWK_EFORMAT);
    free(fifo);
    free(none);
    tiny_dir_free(dir);
}

static void a_read_behind_the_end_names_the_byte(void **state)
{
    char *dir = tiny_dir_new(), *path = tiny_path(dir, "a"), buf[8];
    uint64_t size;
    kwk_error err;

    tiny_write(dir, "a", "hello", 5);
    const int fd = kwk_file_open(AT_FDCWD, path, &size, &err);
    assert_true(fd >= 0);
    assert_int_equal(size, 5);
    assert_int_equal(kwk_file_read(fd, buf, 4, 1, "a", &err), KWK_OK);
    assert_memory_equal(buf, "ello", 4);
    assert_int_equal(kwk_file_read(fd, buf, 4, 2, "a", &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "a: the file ends at byte 5, more were expected");
    assert_int_equal(kwk_file_read(fd, buf, 1, UINT64_MAX, "a", &err), KWK_EIO);
    close(fd);
    free(path);
    tiny_dir_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_files_come_whole_and_terminated),
        cmocka_unit_test(a_file_over_the_limit_is_refused_before_memory_is_taken),
        cmocka_unit_test(only_regular_files_are_opened_and_nothing_blocks),
        cmocka_unit_test(a_read_behind_the_end_names_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
