/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors headers: what is well formed is read, everything else is a typed error before any
 * memory is taken for it.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/source.h"
#include "tests/support/tiny_model.h"

static int read_file(kwk_source *s, const void *file, size_t n, kwk_error *err)
{
    const int fd = memfd_create("t", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, file, n), n);
    memset(s, 0, sizeof *s);
    s->what = "x";
    const int rc = kwk_safetensors_read(s, fd, n, "x", err);
    close(fd);
    return rc;
}

/* A file of this header and n zero bytes of data. */
static int read_header(kwk_source *s, const char *header, size_t data, kwk_error *err)
{
    const size_t n = strlen(header);
    uint8_t *file = calloc(1, 8 + n + data);

    assert_non_null(file);
    file[0] = (uint8_t)n;
    file[1] = (uint8_t)(n >> 8);
    memcpy(file + 8, header, n);
    const int rc = read_file(s, file, 8 + n + data, err);
    free(file);
    return rc;
}

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" #begin    \
    ", " #end "]}"

static void tensors_of_every_dtype_are_listed(void **state)
{
    kwk_source s;

    assert_int_equal(
        read_header(
            &s,
            "{\"__metadata__\": {\"format\": \"pt\"}, " TENSOR(
                "b", "F16", "[2, 3]", 4,
                16) ", " TENSOR("a", "F32", "[1]", 0,
                                4) ", " TENSOR("c", "I64", "[]", 16,
                                               24) ", " TENSOR("d", "BF16", "[0, 5]", 24, 24) "}  ",
            24, NULL),
        KWK_OK);
    assert_int_equal(kwk_source_sort(&s, NULL), KWK_OK);
    assert_int_equal(s.n_tensors, 4);
    const kwk_src_tensor *b = kwk_source_find(&s, "b"), *c = kwk_source_find(&s, "c");
    assert_non_null(b);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_string_equal(b->type->name, "F16");
    assert_int_equal(kwk_src_bytes(b), 12);
    assert_null(c->type);
    assert_string_equal(c->type_name, "I64");
    assert_int_equal(c->shape[0], 1);
    assert_null(kwk_source_find(&s, "e"));
    kwk_source_close(&s);
}

static void holes_overlaps_and_wrong_sizes_are_refused(void **state)
{
    static const struct {
        const char *header;
        int data;
        const char *message;
    } bad[] = {
        {"{" TENSOR("a", "F32", "[1]", 0, 4) "}", 8, "x: its tensors end at 4 of 8 data bytes"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) "}", 3, "x: tensor 'a' lies outside the file"},
        {"{" TENSOR("a", "F32", "[1]", 4, 8) "}", 8,
         "x: tensor 'a' begins at 4, the one before it ends at 0"},
        {"{" TENSOR("a", "F32", "[2]", 0, 8) ", " TENSOR("b", "F32", "[1]", 4, 8) "}", 8,
         "x: tensor 'b' begins at 4, the one before it ends at 8"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) ", " TENSOR("b", "F32", "[1]", 0, 4) "}", 4,
         "x: tensor 'b' begins at 0, the one before it ends at 4"},
        {"{" TENSOR("a", "F32", "[3]", 0, 8) "}", 8,
         "x: tensor 'a' has 8 bytes, its shape needs 12"},
        {"{" TENSOR("a", "F32", "[1]", 4, 0) "}", 4, "x: tensor 'a' lies outside the file"},
        {"{" TENSOR("a", "F32", "[1]", -4, 0) "}", 4, "x: tensor 'a' lies outside the file"},
        {"{" TENSOR("a", "F32", "[1]", 0.5, 4) "}", 4, "x: tensor 'a' lies outside the file"},
        {"{" TENSOR("a", "F32", "[-1]", 0, 4) "}", 4,
         "x: tensor 'a' has a shape that is not accepted"},
        {"{" TENSOR("a", "F32", "[1, 1, 1, 1, 1]", 0, 4) "}", 4,
         "x: tensor 'a' has a shape that is not accepted"},
        {"{" TENSOR("a", "F32", "[1e12, 1e12, 1e12]", 0, 4) "}", 4,
         "x: tensor 'a' is impossibly large"},
        {"{" TENSOR("", "F32", "[1]", 0, 4) "}", 4, "x: a tensor name of 0 bytes"},
        {"{\"a\": {\"dtype\": \"F32\"}}", 4, "x: the entry of tensor 'a' is incomplete"},
        {"{\"a\": 5}", 4, "x: the entry of tensor 'a' is incomplete"},
        {"[]", 0, "x: the header is not an object"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) ", " TENSOR("a", "F32", "[1]", 4, 8) "}", 8,
         "x: key 'a' appears twice"},
    };
    kwk_error err;
    kwk_source s;

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        assert_int_equal(read_header(&s, bad[i].header, (size_t)bad[i].data, &err), KWK_EFORMAT);
        assert_string_equal(err.msg, bad[i].message);
        kwk_source_close(&s);
    }
    assert_int_equal(read_header(&s, "{" TENSOR("a", "F4", "[1]", 0, 4) "}", 4, &err),
                     KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "x: tensor 'a' has the unknown type 'F4'");
    kwk_source_close(&s);
}

static void header_lengths_beyond_the_file_are_refused(void **state)
{
    static const uint64_t lengths[] = {3, 100, 1 << 20, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    kwk_source s;

    for (size_t i = 0; i < CHECK_COUNT(lengths); i++) {
        uint8_t file[10] = "........{}";
        memcpy(file, &lengths[i], 8);
        assert_int_equal(read_file(&s, file, 10, NULL), KWK_EFORMAT);
        kwk_source_close(&s);
    }
    for (size_t n = 0; n < 8; n++) {
        assert_int_equal(read_file(&s, "\0\0\0\0\0\0\0", n, NULL), KWK_EFORMAT);
        kwk_source_close(&s);
    }
}

static void every_damaged_byte_and_truncation_is_survived(void **state)
{
    char *dir;
    tiny_options o = TINY_OPTIONS;
    size_t n, refused = 0, header;

    o.layers = 1;
    dir = tiny_model_dir(&o);
    uint8_t *file = tiny_read(dir, "model.safetensors", &n);
    header = 8 + (size_t)(file[0] | file[1] << 8);
    kwk_source s;
    for (size_t cut = 0; cut < n; cut += cut < header ? 7 : n / 50) {
        assert_int_equal(read_file(&s, file, cut, NULL), KWK_EFORMAT);
        kwk_source_close(&s);
    }
    for (size_t i = 0; i < header; i++) {
        const uint8_t saved = file[i];
        file[i] ^= (uint8_t)(1 << i % 8);
        const int rc = read_file(&s, file, n, NULL);
        assert_true(rc == KWK_OK || rc == KWK_EFORMAT || rc == KWK_EUNSUPPORTED);
        refused += rc < 0;
        kwk_source_close(&s);
        file[i] = saved;
    }
    assert_true(refused > header / 2); // the rest only changes names
    free(file);
    tiny_dir_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_every_dtype_are_listed),
        cmocka_unit_test(holes_overlaps_and_wrong_sizes_are_refused),
        cmocka_unit_test(header_lengths_beyond_the_file_are_refused),
        cmocka_unit_test(every_damaged_byte_and_truncation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
