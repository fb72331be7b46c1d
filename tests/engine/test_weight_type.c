/* SPDX-License-Identifier: Apache-2.0
 *
 * Every decoder against bits from another implementation: the Python package gguf 0.19 decoded the
 * same pseudo-random blocks; the table has the FNV-1a hashes of its results.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "engine/weight_type.h"

enum { BLOCKS = 64 };

static const struct {
    const char *name;
    int halves[2]; // where the scales lie in a block; their exponents are made harmless
    uint64_t hash;
} golden[] = {
    {"Q4_0", {0, -1}, UINT64_C(0x3c00876277449138)},
    {"Q4_1", {0, 2}, UINT64_C(0x66eabfa7f251f16f)},
    {"Q5_0", {0, -1}, UINT64_C(0xf510e9a738bdc740)},
    {"Q5_1", {0, 2}, UINT64_C(0x1c8d12b9c10ce37c)},
    {"Q8_0", {0, -1}, UINT64_C(0x5138d499692debb3)},
    {"IQ4_NL", {0, -1}, UINT64_C(0x4fd1d654c30eeb55)},
    {"Q2_K", {80, 82}, UINT64_C(0x6b14f62bb9aebdc5)},
    {"Q3_K", {108, -1}, UINT64_C(0x618082f1dacafc1e)},
    {"Q4_K", {0, 2}, UINT64_C(0x05b3d5f8f8db1446)},
    {"Q5_K", {0, 2}, UINT64_C(0xcbc55bc62811cdfb)},
    {"Q6_K", {208, -1}, UINT64_C(0xf89661a9576e5419)},
    {"IQ4_XS", {0, -1}, UINT64_C(0xdf471776fee347c5)},
    {"F16", {0, -1}, UINT64_C(0x80fe5bc702de0e9b)},
    {"BF16", {0, -1}, UINT64_C(0x3ed8d8c3d6f75547)},
    {"F32", {2, -1}, UINT64_C(0x67e51dcbdb8536f5)},
};

static uint64_t fnv1a(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    while (n--)
        h = (h ^ *p++) * UINT64_C(0x100000001b3);
    return h;
}

static void every_type_decodes_to_the_bits_of_the_python_package(void **state)
{
    assert_int_equal(CHECK_COUNT(golden), kwk_n_weight_types);
    for (size_t i = 0; i < CHECK_COUNT(golden); i++) {
        const kwk_weight_type *t = NULL;
        for (int k = 0; k < kwk_n_weight_types; k++)
            if (!strcmp(kwk_weight_types[k].name, golden[i].name))
                t = &kwk_weight_types[k];
        assert_non_null(t);
        const size_t n = (size_t)(BLOCKS * t->block), bytes = (size_t)(BLOCKS * t->bytes);
        uint8_t *raw = malloc(bytes + 1);
        float *y = check_alloc(n * sizeof *y);
        uint64_t x = 1;
        assert_non_null(raw);
        for (size_t b = 0; b < bytes; b++) {
            x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            raw[1 + b] = (uint8_t)(x >> 56); // at an odd address
        }
        for (int b = 0; b < BLOCKS; b++) {
            for (int h = 0; h < 2 && golden[i].halves[h] >= 0; h++) {
                uint8_t *top = raw + 1 + b * t->bytes + golden[i].halves[h] + 1;
                *top = (*top & 0x83) | 0x28;
            }
        }
        t->decode(y, raw + 1, n);
        if (fnv1a(y, n * sizeof *y) != golden[i].hash)
            fail_msg("%s decodes to other bits", t->name);
        check_free(y);
        free(raw);
    }
}

static void types_are_found_by_number_and_float_types_by_name(void **state)
{
    assert_string_equal(kwk_weight_type_by_gguf(3)->name, "Q4_1");
    assert_string_equal(kwk_weight_type_by_gguf(30)->name, "BF16");
    assert_null(kwk_weight_type_by_gguf(4)); // was removed from the format
    assert_null(kwk_weight_type_by_gguf(UINT32_MAX));
    assert_int_equal(kwk_weight_type_by_dtype("BF16")->kind, KWK_KIND_BF16);
    assert_null(kwk_weight_type_by_dtype("Q4_0"));
    assert_null(kwk_weight_type_by_dtype("f32"));
    for (int i = 0; i < kwk_n_weight_types; i++)
        assert_string_equal(kwk_gguf_type_name((uint32_t)kwk_weight_types[i].gguf_id),
                            kwk_weight_types[i].name);
    assert_string_equal(kwk_gguf_type_name(16), "IQ2_XXS");
    assert_null(kwk_gguf_type_name(40));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes_to_the_bits_of_the_python_package),
        cmocka_unit_test(types_are_found_by_number_and_float_types_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
