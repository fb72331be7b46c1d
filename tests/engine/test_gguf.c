/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF headers: values of every kind are read, and every count, length and offset that could be
 * wrong is a typed error before memory is taken for it.
 */
#include "tests/support/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "tests/support/tiny_gguf.h"

static int read_bytes(kwk_gguf *g, const uint8_t *data, size_t n, kwk_error *err)
{
    const int fd = memfd_create("t", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    const int rc = kwk_gguf_read(g, fd, n, "f", err);
    close(fd);
    return rc;
}

/* Finish the builder and read the result; the file's size in *n when it is not NULL. */
static int read_built(kwk_gguf *g, tiny_gguf *b, kwk_error *err)
{
    size_t n;
    uint8_t *file = tiny_gguf_finish(b, &n);
    const int rc = read_bytes(g, file, n, err);

    free(file);
    return rc;
}

static void add_everything(tiny_gguf *b)
{
    static const char *const strings[] = {"one", "", "three"};
    static const int32_t ints[] = {-1, 2, 3};
    static const float floats[] = {0.5f, -2};
    static const uint8_t data[36];

    tiny_gguf_u32(b, "z.u32", 4000000000u);
    tiny_gguf_f32(b, "a.f32", 1.5f);
    tiny_gguf_bool(b, "m.bool", 1);
    tiny_gguf_str(b, "m.str", "caf\xc3\xa9");
    tiny_gguf_strs(b, "m.strs", 3, strings);
    tiny_gguf_i32s(b, "m.i32s", 3, ints);
    tiny_gguf_f32s(b, "m.f32s", 2, floats);
    tiny_gguf_tensor(b, "first", 2, 2, (int64_t[]){32, 2}, data, 36);
    tiny_gguf_tensor(b, "second", 0, 1, (int64_t[]){5}, data, 20);
    tiny_gguf_tensor(b, "third", 16, 1, (int64_t[]){256}, data, 10); // a type we do not read
}

static void values_of_every_kind_are_found(void **state)
{
    tiny_gguf b = {0};
    kwk_gguf g;
    const char *s;
    size_t len;
    int64_t i;
    float f;

    add_everything(&b);
    assert_int_equal(read_built(&g, &b, NULL), KWK_OK);
    assert_int_equal(g.n_keys, 7);
    assert_true(kwk_gguf_int(kwk_gguf_find(&g, "z.u32"), 0, UINT32_MAX, &i));
    assert_true(i == 4000000000);
    assert_false(kwk_gguf_int(kwk_gguf_find(&g, "z.u32"), 0, 3999999999, &i));
    assert_true(kwk_gguf_int(kwk_gguf_find(&g, "m.bool"), 0, 1, &i));
    assert_int_equal(i, 1);
    assert_false(kwk_gguf_int(kwk_gguf_find(&g, "m.str"), 0, 1, &i));
    assert_false(kwk_gguf_int(kwk_gguf_find(&g, "a.f32"), 0, 10, &i));
    assert_true(kwk_gguf_float(kwk_gguf_find(&g, "a.f32"), &f));
    assert_true(f == 1.5f);
    assert_false(kwk_gguf_float(kwk_gguf_find(&g, "z.u32"), &f));
    assert_true(kwk_gguf_string(kwk_gguf_find(&g, "m.str"), &s, &len));
    assert_int_equal(len, 5);
    assert_true(kwk_gguf_string_is(kwk_gguf_find(&g, "m.str"), "caf\xc3\xa9"));
    assert_false(kwk_gguf_string_is(kwk_gguf_find(&g, "m.str"), "caf"));
    assert_null(kwk_gguf_find(&g, "m.none"));
    assert_false(kwk_gguf_int(NULL, 0, 1, &i));
    assert_false(kwk_gguf_string(NULL, &s, &len));

    const kwk_gguf_key *k = kwk_gguf_find(&g, "m.strs");
    const uint8_t *at = k->value;
    assert_int_equal(k->count, 3);
    s = kwk_gguf_next_string(&at, &len);
    assert_true(len == 3 && !memcmp(s, "one", 3));
    kwk_gguf_next_string(&at, &len);
    assert_int_equal(len, 0);
    s = kwk_gguf_next_string(&at, &len);
    assert_true(len == 5 && !memcmp(s, "three", 5));
    assert_int_equal(kwk_gguf_i32(kwk_gguf_find(&g, "m.i32s"), 0), -1);
    assert_true(kwk_gguf_f32(kwk_gguf_find(&g, "m.f32s"), 1) == -2);

    assert_int_equal(g.n_tensors, 3);
    assert_true(g.tensors[0].dim[0] == 32 && g.tensors[0].dim[1] == 2);
    assert_string_equal(g.tensors[0].type->name, "Q4_0");
    assert_int_equal(g.tensors[0].offset % 32, 0);
    assert_int_equal(g.tensors[1].offset - g.tensors[0].offset, 64);
    assert_null(g.tensors[2].type);
    kwk_gguf_free(&g);
}

static void every_truncation_is_an_error(void **state)
{
    tiny_gguf b = {0};
    kwk_gguf g;
    size_t n;

    add_everything(&b);
    uint8_t *file = tiny_gguf_finish(&b, &n);
    /* The last 32 bytes are of a type whose size is not known, and padding. */
    for (size_t cut = 0; cut < n - 32 - 12; cut++)
        assert_int_equal(read_bytes(&g, file, cut, NULL), KWK_EFORMAT);
    free(file);
}

static void every_byte_may_be_anything(void **state)
{
    tiny_gguf b = {0};
    kwk_gguf g;
    size_t n;

    add_everything(&b);
    uint8_t *file = tiny_gguf_finish(&b, &n);
    for (size_t i = 0; i < n; i++) {
        static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
        const uint8_t saved = file[i];
        for (size_t v = 0; v < CHECK_COUNT(values); v++) {
            file[i] = values[v];
            const int rc = read_bytes(&g, file, n, NULL);
            assert_true(rc == KWK_OK || rc == KWK_EFORMAT || rc == KWK_EUNSUPPORTED);
            kwk_gguf_free(&g);
        }
        file[i] = saved;
    }
    free(file);
}

static void counts_beyond_the_file_are_refused(void **state)
{
    static const uint64_t counts[] = {4, 1000, 1 << 20, UINT32_MAX, INT64_MAX, UINT64_MAX};
    kwk_error err;
    kwk_gguf g;

    for (size_t i = 0; i < CHECK_COUNT(counts); i++) {
        tiny_gguf b = {0};
        add_everything(&b);
        b.n_tensors = counts[i];
        assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
        add_everything(&b);
        b.n_keys = counts[i] + 4;
        assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
    }
    /* 24 bytes that claim everything. */
    uint8_t file[24] = "GGUF\3\0\0\0";
    memset(file + 8, 0xff, 16);
    assert_int_equal(read_bytes(&g, file, 24, &err), KWK_EFORMAT);

    /* An array of 2^61 strings, a string of 2^63 bytes. */
    for (uint32_t element = 0; element < 13; element++) {
        for (uint64_t shift = 30; shift < 64; shift++) {
            tiny_gguf b = {0};
            tiny_gguf_i32s(&b, "a", 0, NULL);
            const uint64_t count = UINT64_C(1) << shift;
            memcpy(b.keys.p + b.keys.n - 8, &count, 8);
            memcpy(b.keys.p + b.keys.n - 12, &element, 4);
            assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
        }
    }
}

static void odd_tensors_are_refused(void **state)
{
    static const struct {
        int n_dims;
        int64_t dims[4];
        uint32_t type;
    } bad[] = {
        {0, {0}, 0},
        {5, {1, 1, 1, 1}, 0},
        {1, {0}, 0},
        {1, {-1}, 0},
        {1, {6}, 0}, // 24 bytes of 20
        {2, {INT64_MAX, 2}, 0},
        {4, {1 << 20, 1 << 20, 1 << 20, 1 << 20}, 0},
        {1, {33}, 2},
        {1, {16}, 2},
        {1, {64}, 2}, // 36 bytes of 20
    };
    static const uint8_t data[20];
    kwk_error err;
    kwk_gguf g;

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        tiny_gguf b = {0};
        int64_t dims[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        memcpy(dims, bad[i].dims, sizeof bad[i].dims);
        tiny_gguf_tensor(&b, "t", bad[i].type, bad[i].n_dims, dims, data, 20);
        b.data.n = 20; // no padding
        if (read_built(&g, &b, &err) != KWK_EFORMAT)
            fail_msg("tensor %zu was accepted", i);
    }
}

static void overlaps_and_duplicates_are_refused(void **state)
{
    static const uint8_t data[64];
    tiny_gguf b = {0};
    kwk_error err;
    kwk_gguf g;

    tiny_gguf_tensor(&b, "a", 0, 1, (int64_t[]){16}, data, 64);
    tiny_gguf_tensor(&b, "b", 0, 1, (int64_t[]){16}, data, 64);
    b.infos.p[b.infos.n - 8] = 32; // b's offset
    assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "f: tensors 'a' and 'b' overlap");

    tiny_gguf_tensor(&b, "a", 0, 1, (int64_t[]){16}, data, 64);
    b.infos.p[b.infos.n - 8] = 1; // not aligned
    assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);

    tiny_gguf_u32(&b, "k", 1);
    tiny_gguf_u32(&b, "j", 1);
    tiny_gguf_u32(&b, "k", 2);
    assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "f: key 'k' appears twice");

    static const uint32_t alignments[] = {0, 1, 4, 33, 1 << 30};
    for (size_t i = 0; i < CHECK_COUNT(alignments); i++) {
        tiny_gguf_u32(&b, "general.alignment", alignments[i]);
        assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
    }
    tiny_gguf_u32(&b, "general.alignment", 8);
    tiny_gguf_tensor(&b, "a", 0, 1, (int64_t[]){16}, data, 64);
    assert_int_equal(read_built(&g, &b, &err), KWK_OK);
    kwk_gguf_free(&g);
}

static void other_versions_and_files_are_told_apart(void **state)
{
    static const uint32_t versions[] = {1, 4, 0x03000000, 0x02000000};
    kwk_error err;
    kwk_gguf g;

    for (size_t i = 0; i < CHECK_COUNT(versions); i++) {
        tiny_gguf b = {.version = versions[i]};
        assert_int_equal(read_built(&g, &b, &err), KWK_EUNSUPPORTED);
    }
    assert_non_null(strstr(err.msg, "big-endian"));
    tiny_gguf two = {.version = 2};
    assert_int_equal(read_built(&g, &two, &err), KWK_OK);
    kwk_gguf_free(&g);
    assert_int_equal(read_bytes(&g, (const uint8_t *)"GGML\3\0\0\0................", 24, &err),
                     KWK_EFORMAT);
}

static void names_must_be_text(void **state)
{
    static const char *const bad[] = {"", "a\x01", "a\xff", "\xc0\x80", "\xed\xa0\x80"};
    kwk_error err;
    kwk_gguf g;

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        tiny_gguf b = {0};
        tiny_gguf_u32(&b, bad[i], 1);
        assert_int_equal(read_built(&g, &b, &err), KWK_EFORMAT);
    }
}

static void a_header_larger_than_a_piece_is_read_whole(void **state)
{
    enum { N = 300000 };
    const char **strings = malloc(N * sizeof *strings);
    tiny_gguf b = {0};
    kwk_gguf g;
    size_t len, total = 0;

    for (int i = 0; i < N; i++)
        strings[i] = i % 2 ? "odd" : "even";
    tiny_gguf_strs(&b, "list", N, strings);
    tiny_gguf_u32(&b, "after", 7);
    assert_int_equal(read_built(&g, &b, NULL), KWK_OK);
    const kwk_gguf_key *k = kwk_gguf_find(&g, "list");
    const uint8_t *at = k->value;
    for (int i = 0; i < N; i++, total += len)
        kwk_gguf_next_string(&at, &len);
    assert_int_equal(total, N / 2 * 7);
    int64_t v;
    assert_true(kwk_gguf_int(kwk_gguf_find(&g, "after"), 0, 9, &v));
    assert_int_equal(v, 7);
    kwk_gguf_free(&g);
    free(strings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_kind_are_found),
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(every_byte_may_be_anything),
        cmocka_unit_test(counts_beyond_the_file_are_refused),
        cmocka_unit_test(odd_tensors_are_refused),
        cmocka_unit_test(overlaps_and_duplicates_are_refused),
        cmocka_unit_test(other_versions_and_files_are_told_apart),
        cmocka_unit_test(names_must_be_text),
        cmocka_unit_test(a_header_larger_than_a_piece_is_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
