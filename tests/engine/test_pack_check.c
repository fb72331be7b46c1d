/* SPDX-License-Identifier: Apache-2.0
 *
 * Images from outside are refused unless every byte is as it should be, and survived whatever they
 * hold, also when somebody has put the sums right.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/pack.h"
#include "tests/support/tiny_model.h"

static int open_bytes(const uint8_t *data, size_t n, kwk_error *err)
{
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;
    kwk_model *m = NULL;
    const int fd = memfd_create("t", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    o.kv_bytes = 1 << 20;
    const int rc = kwk_model_open_fd(&m, fd, &o, err);
    close(fd);
    assert_true((rc == KWK_OK) == (m != NULL));
    kwk_model_free(m);
    return rc;
}

/* A small pack with all parts in it; free() it. */
static uint8_t *small_pack(size_t *n)
{
    tiny_options o = TINY_OPTIONS;
    kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
    kwk_model *m;

    o.tokenizer = 1;
    o.layers = 1;
    char *dir = tiny_model_dir(&o);
    opts.precision = "int8";
    opts.kv_bytes = 1 << 20;
    assert_int_equal(kwk_model_open(&m, dir, &opts, NULL), KWK_OK);
    assert_non_null(m->tokenizer_json);
    assert_non_null(m->chat_template);
    assert_non_null(m->token_offset);
    uint8_t *copy = malloc(m->image.size);
    assert_non_null(copy);
    *n = m->image.size;
    memcpy(copy, m->image.base, *n);
    kwk_model_free(m);
    tiny_dir_free(dir);
    return copy;
}

static void every_flipped_bit_of_a_pack_is_noticed(void **state)
{
    size_t n;
    uint8_t *pack = small_pack(&n);
    const uint64_t data_start = ((kwk_pack_header *)pack)->data_start;

    assert_int_equal(open_bytes(pack, n, NULL), KWK_OK);
    for (size_t i = 0; i < n; i += i < 1200 ? 1 : i < data_start ? 37 : 101) {
        pack[i] ^= (uint8_t)(1 << i % 8);
        const int rc = open_bytes(pack, n, NULL);
        if (rc != KWK_EFORMAT && rc != KWK_EUNSUPPORTED)
            fail_msg("byte %zu: %d", i, rc);
        pack[i] ^= (uint8_t)(1 << i % 8);
    }
    assert_int_equal(open_bytes(pack, n, NULL), KWK_OK);
    free(pack);
}

static void every_truncation_and_extension_is_noticed(void **state)
{
    size_t n;
    uint8_t *pack = small_pack(&n);

    for (size_t cut = 0; cut < n; cut += cut < 600 ? 1 : 997)
        assert_int_equal(open_bytes(pack, cut, NULL), KWK_EFORMAT);
    uint8_t *longer = calloc(1, n + 1);
    memcpy(longer, pack, n);
    assert_int_equal(open_bytes(longer, n + 1, NULL), KWK_EFORMAT);
    free(longer);
    free(pack);
}

/* Write the sums that a forger would write. */
static void reseal(uint8_t *pack, size_t n)
{
    kwk_pack_header *h = (kwk_pack_header *)pack;

    if (h->tensors.offset <= n && (uint64_t)h->n_tensors * 56 <= n - h->tensors.offset &&
        h->tensors.offset % 8 == 0)
        kwk_pack_id(h->id, &h->recipe, (kwk_pack_tensor *)(pack + h->tensors.offset),
                    (int)h->n_tensors);
    if (h->data_start >= sizeof *h && h->data_start <= n)
        h->front_sum = kwk_pack_front_sum(pack, h->data_start);
}

static void forged_headers_and_tables_with_right_sums_are_survived(void **state)
{
    static const uint64_t odd[] = {0,          1,
                                   2,          0x7f,
                                   0x80,       0xff,
                                   0x7fff,     0xffff,
                                   0x7fffffff, 0x80000000,
                                   0xffffffff, UINT64_C(1) << 40,
                                   INT64_MAX,  UINT64_C(1) << 63,
                                   UINT64_MAX};
    size_t n, refused = 0, tried = 0;
    uint8_t *pack = small_pack(&n), *copy = malloc(n);
    const kwk_pack_header *h = (const kwk_pack_header *)pack;
    const size_t table_end = (size_t)(h->tensors.offset + h->tensors.size);
    uint64_t seed = 11;

    /* Every 4- and 8-byte field of header, recipe and table, set to odd values. */
    for (size_t at = 0; at + 8 <= table_end; at += 4) {
        for (size_t v = at % 3; v < CHECK_COUNT(odd); v += 3) {
            memcpy(copy, pack, n);
            memcpy(copy + at, &odd[v], at % 8 == 0 ? 8 : 4);
            reseal(copy, n);
            const int rc = open_bytes(copy, n, NULL);
            assert_true(rc == KWK_OK || rc == KWK_EFORMAT || rc == KWK_EUNSUPPORTED ||
                        rc == KWK_EINVAL);
            refused += rc < 0;
            tried++;
        }
    }
    /* The rest: free text, unused entries, numbers as good as the original's, and the sums that
     * were just put right. */
    assert_true(refused > tried * 6 / 10);
    /* Random bytes in front of the data, several at once. */
    for (int round = 0; round < 1500; round++) {
        memcpy(copy, pack, n);
        for (int k = check_random_int(&seed, 1, 3); k; k--)
            copy[check_random(&seed) % h->data_start] = (uint8_t)check_random(&seed);
        reseal(copy, n);
        const int rc = open_bytes(copy, n, NULL);
        assert_true(rc <= KWK_OK);
    }
    free(copy);
    free(pack);
}

static void another_builds_pack_is_refused_with_the_reason(void **state)
{
    size_t n;
    uint8_t *pack = small_pack(&n);
    kwk_pack_header *h = (kwk_pack_header *)pack;
    kwk_error err;

    h->build[3] ^= 1;
    reseal(pack, n);
    assert_int_equal(open_bytes(pack, n, &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "packed model: written by another build of Kwker; the format is "
                                 "experimental, pack the model again");
    h->build[3] ^= 1;
    h->version++;
    reseal(pack, n);
    assert_int_equal(open_bytes(pack, n, &err), KWK_EUNSUPPORTED);
    free(pack);
}

static void a_damaged_tensor_is_named(void **state)
{
    size_t n;
    uint8_t *pack = small_pack(&n);
    kwk_error err;

    pack[n - 1] ^= 1;
    assert_int_equal(open_bytes(pack, n, &err), KWK_EFORMAT);
    assert_string_equal(err.msg, "packed model: the checksum of model.norm.weight does not match");
    free(pack);
}

static void the_identity_depends_on_weights_and_recipe_but_not_on_the_tokenizer(void **state)
{
    tiny_options o = TINY_OPTIONS;
    uint8_t id[5][16];

    for (int i = 0; i < 5; i++) {
        kwk_model *m;
        kwk_model_options opts = KWK_MODEL_OPTIONS_INIT;
        opts.kv_bytes = 1 << 20;
        opts.precision = i == 4 ? "int8" : NULL;
        o.seed = i == 2 ? 2 : 1;
        o.tokenizer = i == 1;
        o.max_pos = i == 3 ? 511 : 512;
        char *dir = tiny_model_dir(&o);
        assert_int_equal(kwk_model_open(&m, dir, &opts, NULL), KWK_OK);
        memcpy(id[i], m->id, 16);
        kwk_model_free(m);
        tiny_dir_free(dir);
    }
    assert_memory_equal(id[0], id[1], 16);
    for (int i = 2; i < 5; i++)
        assert_memory_not_equal(id[0], id[i], 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit_of_a_pack_is_noticed),
        cmocka_unit_test(every_truncation_and_extension_is_noticed),
        cmocka_unit_test(forged_headers_and_tables_with_right_sums_are_survived),
        cmocka_unit_test(another_builds_pack_is_refused_with_the_reason),
        cmocka_unit_test(a_damaged_tensor_is_named),
        cmocka_unit_test(the_identity_depends_on_weights_and_recipe_but_not_on_the_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
