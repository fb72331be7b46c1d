/* SPDX-License-Identifier: Apache-2.0
 *
 * walker.c: claims without bytes behind them, depth, repeated keys, and agreement with msgpack-c.
 */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

#include <msgpack.h>

#include "proto/walker.h"

#define WALK(bytes) kwk_walk(bytes, sizeof bytes - 1, &err)

static void claims_larger_than_the_message_are_refused(void **state)
{
    kwk_error err = {0};

    assert_int_equal(WALK("\x81\xa1k\xdd\xff\x00\x00\x00"), KWK_EPROTO); // array of 4 billion
    assert_string_equal(err.msg, "message announces 4278190080 items in 0 bytes");
    assert_int_equal(WALK("\x81\xa1k\xdd\x00\x00\x00\x02\xc0"), KWK_EPROTO);
    assert_int_equal(WALK("\x81\xa1k\xdc\xff\xff"), KWK_EPROTO);
    assert_int_equal(WALK("\xdf\xff\xff\xff\xff"), KWK_EPROTO);
    assert_int_equal(WALK("\xdf\x80\x00\x00\x00"), KWK_EPROTO); // doubled it is 0
    assert_int_equal(WALK("\xde\xff\xff"), KWK_EPROTO);
    assert_int_equal(WALK("\x82\xa1k\xc0"), KWK_EPROTO);
    assert_int_equal(WALK("\x81\xa1k\xc6\xff\xff\xff\xff"), KWK_EPROTO); // bin
    assert_int_equal(WALK("\x81\xa1k\xdb\x00\x00\x00\x02x"), KWK_EPROTO); // str
    assert_int_equal(WALK("\x81\xa1k\xc9\xff\xff\xff\xff\x01"), KWK_EPROTO); // ext
    assert_int_equal(WALK("\x81\xa1k\xd8\x01\x00\x00"), KWK_EPROTO); // fixext 16
}

static void every_truncation_is_refused(void **state)
{
    // one of each type
    static const char m[] =
        "\x8d\xa1" "a\xc0\xa1" "b\xc3\xa1" "c\x07\xa1" "d\xff\xa1" "e\xca\x3f\x80\x00\x00\xa1"
        "f\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xa1" "g\xcd\x01\x00\xa1"
        "h\xd3\xff\xff\xff\xff\xff\xff\xff\x00\xa1" "i\xd9\x02hi\xa1" "j\xc4\x02\x00\x01\xa1"
        "k\x92\x01\x81\xa1x\x02\xa1" "l\xd5\x01\x00\x00\xa1" "m\xc7\x01\x05\x00";
    kwk_error err;

    assert_int_equal(WALK(m), KWK_OK);
    for (size_t n = 0; n < sizeof m - 1; n++)
        assert_int_equal(kwk_walk(m, n, &err), KWK_EPROTO);
    assert_int_equal(kwk_walk(m, sizeof m, &err), KWK_EPROTO); // a byte after the end
    assert_string_equal(err.msg, "message has 1 bytes after its end");
}

static void only_maps_with_string_keys_are_messages(void **state)
{
    kwk_error err;

    assert_int_equal(WALK("\x80"), KWK_OK);
    assert_int_equal(WALK("\xc0"), KWK_EPROTO);
    assert_int_equal(WALK("\x90"), KWK_EPROTO);
    assert_int_equal(WALK("\xa1x"), KWK_EPROTO);
    assert_int_equal(WALK("\x81\x01\x02"), KWK_EPROTO);
    assert_int_equal(WALK("\x81\xc4\x01k\x02"), KWK_EPROTO);
    assert_int_equal(WALK("\x81\xa1k\xc1"), KWK_EPROTO); // a byte of no type
    assert_int_equal(WALK("\x81\xa1k\x81\x90\x01"), KWK_EPROTO); // nested maps too
}

static void repeated_keys_are_refused_at_every_level(void **state)
{
    kwk_error err = {0};

    assert_int_equal(WALK("\x82\xa1k\x01\xa1k\x02"), KWK_EPROTO);
    assert_string_equal(err.msg, "message key 'k' twice");
    assert_int_equal(WALK("\x82\xa1k\x01\xd9\x01k\x02"), KWK_EPROTO); // written differently
    assert_int_equal(WALK("\x81\xa1k\x92\x80\x82\xa1x\x01\xa1x\x02"), KWK_EPROTO);
    assert_int_equal(WALK("\x82\xa1k\x81\xa1k\x01\xa1j\x81\xa1k\x02"), KWK_OK); // other maps
    assert_int_equal(WALK("\x82\xa1k\x01\xa2kk\x02"), KWK_OK);
    assert_int_equal(WALK("\x82\xa0\x01\xa0\x02"), KWK_EPROTO);
}

static void nesting_ends_at_the_limit(void **state)
{
    uint8_t m[3 * KWK_DEPTH_MAX + 8];
    kwk_error err;

    for (int depth = 1; depth <= KWK_DEPTH_MAX + 1; depth++) {
        size_t n = 0;
        for (int i = 1; i < depth; i++) {
            memcpy(m + n, "\x81\xa1k", 3);
            n += 3;
        }
        m[n++] = 0x80;
        assert_int_equal(kwk_walk(m, n, &err), depth <= KWK_DEPTH_MAX ? KWK_OK : KWK_EPROTO);
    }
    uint8_t deep[100000];
    memset(deep, 0x91, sizeof deep);
    memcpy(deep, "\x81\xa1k", 3);
    assert_int_equal(kwk_walk(deep, sizeof deep, &err), KWK_EPROTO);
}

/* {"k": array of n zeros}, or with is_map n keys of four hex digits. */
static size_t large(uint8_t *m, uint32_t n, int is_map)
{
    size_t at = 0;

    memcpy(m, "\x81\xa1k", 3);
    at = 3;
    m[at++] = is_map ? 0xdf : 0xdd;
    for (int i = 0; i < 4; i++)
        m[at++] = (uint8_t)(n >> (24 - 8 * i));
    for (uint32_t i = 0; i < n; i++) {
        if (is_map)
            at += (size_t)sprintf((char *)m + at, "\xa4%04x", i);
        m[at++] = 0;
    }
    return at;
}

static void counts_end_at_the_limits(void **state)
{
    uint8_t *m = test_malloc(KWK_MSG_MAX + 1);
    kwk_error err;

    assert_int_equal(kwk_walk(m, large(m, KWK_OBJECTS_MAX - 3, 0), &err), KWK_OK);
    assert_int_equal(kwk_walk(m, large(m, KWK_OBJECTS_MAX - 2, 0), &err), KWK_EPROTO);
    assert_int_equal(kwk_walk(m, large(m, KWK_KEYS_MAX, 1), &err), KWK_OK);
    assert_int_equal(kwk_walk(m, large(m, KWK_KEYS_MAX + 1, 1), &err), KWK_EPROTO);

    memset(m, 0, KWK_MSG_MAX + 1);
    memcpy(m, "\x81\xa1k\xc6", 4);
    for (int over = 0; over <= 1; over++) {
        const uint32_t n = KWK_MSG_MAX - 8 + (uint32_t)over;
        for (int i = 0; i < 4; i++)
            m[4 + i] = (uint8_t)(n >> (24 - 8 * i));
        assert_int_equal(kwk_walk(m, n + 8, &err), over ? KWK_EPROTO : KWK_OK);
    }

    // a key of 255 bytes, of 256
    memset(m, 'x', 300);
    memcpy(m, "\x81\xda\x00\xff", 4);
    m[4 + 255] = 1;
    assert_int_equal(kwk_walk(m, 4 + 255 + 1, &err), KWK_OK);
    memcpy(m, "\x81\xda\x01\x00", 4);
    m[4 + 255] = 'x';
    m[4 + 256] = 1;
    assert_int_equal(kwk_walk(m, 4 + 256 + 1, &err), KWK_EPROTO);
    test_free(m);
}

/* Whatever passes, msgpack-c reads too, and to the same end: no byte is understood in two ways. */
static void what_passes_is_what_msgpack_reads(void **state)
{
    static const uint8_t types[] = {0x00, 0x80, 0x81, 0x82, 0x90, 0x91, 0x93, 0xa0, 0xa1, 0xa3,
                                    0xc0, 0xc1, 0xc2, 0xc4, 0xc5, 0xc7, 0xc8, 0xca, 0xcb, 0xcc,
                                    0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd3, 0xd4, 0xd6, 0xd8, 0xd9,
                                    0xda, 0xdc, 0xde, 0xff};
    uint64_t seed = 7;
    int passed = 0;

    for (int i = 0; i < 200000; i++) {
        uint8_t m[24];
        const size_t n = (size_t)check_random_int(&seed, 1, sizeof m);
        kwk_error err;
        msgpack_unpacked u;
        size_t at = 0;

        m[0] = (uint8_t)check_random_int(&seed, 0x80, 0x83);
        for (size_t j = 1; j < n; j++)
            m[j] = check_random_int(&seed, 0, 2) ? types[check_random(&seed) % sizeof types]
                                                 : (uint8_t)check_random_int(&seed, 0, 4);
        if (kwk_walk(m, n, &err) != KWK_OK)
            continue;
        passed++;
        msgpack_unpacked_init(&u);
        assert_int_equal(msgpack_unpack_next(&u, (char *)m, n, &at), MSGPACK_UNPACK_SUCCESS);
        assert_int_equal(at, n);
        assert_int_equal(u.data.type, MSGPACK_OBJECT_MAP);
        msgpack_unpacked_destroy(&u);
    }
    assert_true(passed > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claims_larger_than_the_message_are_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(only_maps_with_string_keys_are_messages),
        cmocka_unit_test(repeated_keys_are_refused_at_every_level),
        cmocka_unit_test(nesting_ends_at_the_limit),
        cmocka_unit_test(counts_end_at_the_limits),
        cmocka_unit_test(what_passes_is_what_msgpack_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
