/* SPDX-License-Identifier: Apache-2.0
 *
 * map.c and buf.c: what is written reads back; misuse and size limits stick until the end.
 */
#include "tests/support/check.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "proto/buf.h"
#include "proto/walker.h"

static kwk_tree *parse(const kwk_buf *b)
{
    kwk_tree *t = NULL;
    kwk_error err = {0};

    if (kwk_tree_parse(&t, b->data, b->size, &err) < 0)
        fail_msg("%s", err.msg);
    return t;
}

static void every_type_reads_back(void **state)
{
    kwk_buf b = {0};
    kwk_map m;
    kwk_tree *t;
    kwk_error err;
    size_t n;
    int32_t ids[2];

    kwk_map_begin(&m, &b);
    kwk_map_int(&m, "v", 1);
    kwk_map_int(&m, "least", INT64_MIN);
    kwk_map_uint(&m, "most", UINT64_MAX);
    kwk_map_bool(&m, "yes", 7);
    kwk_map_bool(&m, "no", 0);
    kwk_map_double(&m, "pi", 3.25);
    kwk_map_str(&m, "text", "h\xc3\xa4 \"quoted\"");
    kwk_map_str(&m, "empty", "");
    kwk_map_str(&m, "nil", NULL);
    kwk_map_bin(&m, "bin", "a\0b", 3);
    kwk_map_bin(&m, "no_bin", NULL, 0);
    kwk_map_open(&m, "list", 0);
    kwk_map_int(&m, NULL, -5);
    kwk_map_int(&m, NULL, 6);
    kwk_map_close(&m);
    kwk_map_open(&m, "nested", 1);
    kwk_map_open(&m, "deeper", 1);
    kwk_map_int(&m, "x", 9);
    kwk_map_close(&m);
    kwk_map_open(&m, "nothing", 0);
    kwk_map_close(&m);
    kwk_map_close(&m);
    assert_int_equal(kwk_map_end(&m, &err), KWK_OK);

    t = parse(&b);
    assert_int_equal(kwk_tree_int(t, "least", 0), INT64_MIN);
    assert_true((uint64_t)kwk_tree_int(t, "most", 0) == UINT64_MAX);
    assert_int_equal(kwk_tree_int(t, "yes", 0), 1);
    assert_int_equal(kwk_tree_int(t, "no", 1), 0);
    assert_true(kwk_tree_double(t, "pi", 0) == 3.25);
    assert_string_equal(kwk_tree_str(t, "text"), "h\xc3\xa4 \"quoted\"");
    assert_string_equal(kwk_tree_str(t, "empty"), "");
    assert_null(kwk_tree_str(t, "nil"));
    assert_memory_equal(kwk_tree_bin(t, "bin", &n), "a\0b", 3);
    assert_int_equal(n, 3);
    assert_non_null(kwk_tree_bin(t, "no_bin", &n));
    assert_int_equal(n, 0);
    assert_int_equal(kwk_tree_ints(t, "list", ids, 2), 2);
    assert_int_equal(ids[0], -5);
    assert_int_equal(ids[1], 6);
    assert_int_equal(kwk_tree_int(t, "nested.deeper.x", 0), 9);
    assert_int_equal(kwk_tree_count(t, "nested.nothing"), 0);
    kwk_tree_free(t);
    kwk_buf_fini(&b);
}

static void maps_append_to_what_the_buffer_holds(void **state)
{
    kwk_buf b = {0};
    kwk_map m;

    assert_int_equal(kwk_buf_write(&b, "head", 4), 0);
    kwk_reply_begin(&m, &b);
    assert_int_equal(kwk_map_end(&m, NULL), KWK_OK);
    assert_memory_equal(b.data, "head", 4);
    assert_int_equal(kwk_walk(b.data + 4, b.size - 4, NULL), KWK_OK);
    kwk_buf_fini(&b);
    kwk_buf_fini(NULL);
}

static void misuse_sticks_and_leaves_the_buffer_as_it_was(void **state)
{
    kwk_buf b = {0};
    kwk_map m;
    kwk_error err;

    assert_int_equal(kwk_buf_write(&b, "keep", 4), 0);
    for (int kind = 0; kind < 6; kind++) {
        kwk_map_begin(&m, &b);
        if (kind == 0)
            kwk_map_int(&m, NULL, 1); // no key in a map
        if (kind == 1) {
            kwk_map_open(&m, "list", 0);
            kwk_map_int(&m, "key", 1); // a key in an array
            kwk_map_close(&m);
        }
        if (kind == 2)
            kwk_map_open(&m, "open", 1); // never closed
        if (kind == 3)
            kwk_map_close(&m); // never opened
        if (kind == 4)
            for (int i = 0; i < KWK_DEPTH_MAX; i++)
                kwk_map_open(&m, "deep", 1);
        if (kind == 5) { // closed too often, then written to
            kwk_map_close(&m);
            kwk_map_close(&m);
            kwk_map_int(&m, "late", 1);
        }
        assert_int_equal(kwk_map_end(&m, &err), KWK_EINVAL);
        assert_int_equal(b.size, 4);
    }
    kwk_buf_fini(&b);
}

static void messages_over_the_limit_are_refused(void **state)
{
    const size_t most = KWK_MSG_MAX - 5 - 2 - 5; // map header, key, bin header
    uint8_t *bytes = test_calloc(1, most + 1);
    kwk_buf b = {0};
    kwk_map m;
    kwk_error err;

    for (size_t over = 0; over <= 1; over++) {
        kwk_map_begin(&m, &b);
        kwk_map_bin(&m, "k", bytes, most + over);
        assert_int_equal(kwk_map_end(&m, &err), over ? KWK_EFULL : KWK_OK);
        assert_int_equal(b.size, over ? 0 : KWK_MSG_MAX);
        b.size = 0;
    }
    kwk_map_begin(&m, &b);
    kwk_map_bin(&m, "k", bytes, SIZE_MAX);
    assert_int_equal(kwk_map_end(&m, &err), KWK_EFULL);
    kwk_buf_fini(&b);
    test_free(bytes);
}

static void error_replies_come_back_as_the_error(void **state)
{
    kwk_error e = {0}, back = {0};
    kwk_buf b = {0};
    kwk_tree *t;
    int retry = -1;

    kwk_fail(&e, KWK_EBUSY, "queue of %d is full", 64);
    assert_int_equal(kwk_reply_error(&b, &e, 250), KWK_OK);
    t = parse(&b);
    assert_int_equal(kwk_tree_status(t, &retry, &back), KWK_EBUSY);
    assert_int_equal(retry, 250);
    assert_int_equal(back.code, KWK_EBUSY);
    assert_string_equal(back.msg, "queue of 64 is full");
    assert_string_equal(kwk_tree_str(t, "error"), "EBUSY");
    kwk_tree_free(t);
    b.size = 0;

    kwk_fail(&e, KWK_EINVAL, "x");
    assert_int_equal(kwk_reply_error(&b, &e, 0), KWK_OK);
    t = parse(&b);
    assert_int_equal(kwk_tree_status(t, &retry, NULL), KWK_EINVAL);
    assert_int_equal(retry, 0);
    assert_int_equal(kwk_tree_count(t, "retry_ms"), -1);
    kwk_tree_free(t);
    kwk_buf_fini(&b);
}

static void good_replies_have_a_version_and_say_so(void **state)
{
    kwk_buf b = {0};
    kwk_map m;
    kwk_tree *t;
    int retry = -1;

    kwk_reply_begin(&m, &b);
    kwk_map_int(&m, "length", 3);
    assert_int_equal(kwk_map_end(&m, NULL), KWK_OK);
    t = parse(&b);
    assert_int_equal(kwk_tree_status(t, &retry, NULL), KWK_OK);
    assert_int_equal(retry, 0);
    assert_int_equal(kwk_tree_int(t, "v", 0), KWK_PROTO_VERSION);
    assert_int_equal(kwk_tree_int(t, "length", 0), 3);
    kwk_tree_free(t);
    kwk_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_reads_back),
        cmocka_unit_test(maps_append_to_what_the_buffer_holds),
        cmocka_unit_test(misuse_sticks_and_leaves_the_buffer_as_it_was),
        cmocka_unit_test(messages_over_the_limit_are_refused),
        cmocka_unit_test(error_replies_come_back_as_the_error),
        cmocka_unit_test(good_replies_have_a_version_and_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
