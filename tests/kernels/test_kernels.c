/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel table: each slot has a reference, each level fills every slot, and lookups by format
 * lead to the right slots. Sizes and names of the formats.
 */
#include "tests/support/check.h"

#include <string.h>

typedef struct row {
    const char *slot, *isa;
    unsigned need;
} row;

static const row rows[] = {
#define KWK_KERNEL(slot, isa, need) {#slot, #isa, need},
#include "kernels/kernels.inc"
#undef KWK_KERNEL
};

static const char *const slots[] = {
#define KWK_SLOT(slot) #slot,
#include "kernels/slots.inc"
#undef KWK_SLOT
};

static void every_slot_begins_with_its_reference(void **state)
{
    for (size_t i = 0; i < CHECK_COUNT(slots); i++) {
        const row *first = NULL;
        for (size_t j = 0; j < CHECK_COUNT(rows) && !first; j++)
            if (!strcmp(rows[j].slot, slots[i]))
                first = &rows[j];
        if (!first || strcmp(first->isa, "ref") || first->need != KWK_CPU_NONE)
            fail_msg("%s does not begin with __ref", slots[i]);
    }
}

/* Within a slot: no row twice, and flags that only grow, so that the last usable one is the best.
 */
static void rows_of_a_slot_go_from_slow_to_fast(void **state)
{
    for (size_t i = 0; i < CHECK_COUNT(rows); i++) {
        assert_true(kwk_cpu_level(rows[i].isa) >= 0);
        for (size_t j = i + 1; j < CHECK_COUNT(rows); j++)
            if (!strcmp(rows[i].slot, rows[j].slot) && rows[j].need <= rows[i].need)
                fail_msg("%s: %s after %s", rows[i].slot, rows[j].isa, rows[i].isa);
    }
}

static void every_level_fills_every_slot(void **state)
{
    static const char *const levels[] = {"ref", "avx2", "avx512", "neon"};

    for (size_t l = 0; l < CHECK_COUNT(levels); l++) {
        kwk_kernels k;
        memset(&k, 0, sizeof k);
        kwk_kernels_init(&k, (unsigned)kwk_cpu_level(levels[l]));
#define KWK_SLOT(slot)                                                                             \
    if (!k.slot)                                                                                   \
        fail_msg("%s has no kernel at level %s", #slot, levels[l]);
#include "kernels/slots.inc"
#undef KWK_SLOT
    }
}

/* The last row whose needs are met wins, so a lower level never gets a faster kernel. */
static void a_level_takes_its_best_row(void **state)
{
    kwk_kernels k;

    kwk_kernels_init(&k, KWK_CPU_NONE);
    assert_true(k.gemv_f32 == kwk_gemv_f32__ref && k.rope == kwk_rope__ref);
#if KWK_ARCH_X86_64
    kwk_kernels_init(&k, (unsigned)kwk_cpu_level("avx2"));
    assert_true(k.gemv_f32 == kwk_gemv_f32__avx2 && k.gather_f32 == kwk_gather_f32__ref);
    kwk_kernels_init(&k, (unsigned)kwk_cpu_level("avx512"));
    assert_true(k.gemv_f32 == kwk_gemv_f32__avx512 && k.gather_f32 == kwk_gather_f32__ref);
#endif
}

static void lookups_by_format_lead_to_its_slots(void **state)
{
    kwk_kernels k;

    kwk_kernels_init(&k, kwk_cpu_flags());
#define CHECK_FORMAT(format, name)                                                                 \
    assert_true(kwk_kernels_matmul(&k, format, KWK_GEMV) == k.gemv_##name);                        \
    assert_true(kwk_kernels_matmul(&k, format, KWK_SMALL_BATCH) == k.small_##name);                \
    assert_true(kwk_kernels_matmul(&k, format, KWK_GEMM) == k.gemm_##name);                        \
    assert_true(kwk_kernels_gather(&k, format) == k.gather_##name)
    CHECK_FORMAT(KWK_F32, f32);
    CHECK_FORMAT(KWK_F16, f16);
    CHECK_FORMAT(KWK_BF16, bf16);
    CHECK_FORMAT(KWK_I8, i8);
    CHECK_FORMAT(KWK_I6, i6);
    CHECK_FORMAT(KWK_I4, i4);
#undef CHECK_FORMAT
    assert_null(kwk_kernels_matmul(&k, (kwk_format)0, KWK_GEMV));
    assert_null(kwk_kernels_matmul(&k, KWK_FORMAT_END, KWK_GEMV));
    assert_null(kwk_kernels_matmul(&k, (kwk_format)-1, KWK_GEMM));
    assert_null(kwk_kernels_matmul(&k, KWK_F32, KWK_FORM_END));
    assert_null(kwk_kernels_gather(&k, (kwk_format)0));
    assert_null(kwk_kernels_gather(&k, KWK_FORMAT_END));
}

static void tile_bytes_are_those_of_the_layout(void **state)
{
    for (int cols = 32; cols <= 4096; cols += 32) {
        const size_t n = (size_t)cols, supers = (n + 255) / 256, groups = n / 32;
        assert_int_equal(kwk_mat_tile_bytes(KWK_F32, cols), 32 * n * 4);
        assert_int_equal(kwk_mat_tile_bytes(KWK_F16, cols), 32 * n * 2);
        assert_int_equal(kwk_mat_tile_bytes(KWK_BF16, cols), 32 * n * 2);
        assert_int_equal(kwk_mat_tile_bytes(KWK_I8, cols), 2 * (supers * 32 + groups * 512));
        assert_int_equal(kwk_mat_tile_bytes(KWK_I6, cols), 2 * (supers * 32 + groups * 400));
        assert_int_equal(kwk_mat_tile_bytes(KWK_I4, cols), 2 * (supers * 32 + groups * 272));
        /* Tiles follow one another, and each must be aligned. */
        for (kwk_format f = KWK_F32; f < KWK_FORMAT_END; f++)
            assert_int_equal(kwk_mat_tile_bytes(f, cols) % (kwk_format_is_int(f) ? 32 : 64), 0);
    }
    assert_int_equal(kwk_mat_tile_bytes(KWK_I4, 576), 2 * (2 * 2208 + 32 + 2 * 272));
    assert_int_equal(kwk_mat_tile_bytes((kwk_format)0, 32), 0);
    assert_int_equal(kwk_mat_tile_bytes(KWK_FORMAT_END, 32), 0);
    /* 64 bits: more than 2^31 bytes in a tile. */
    assert_true(kwk_mat_tile_bytes(KWK_F32, 1 << 30) == (size_t)1 << 37);
}

static void formats_keep_their_numbers_and_names(void **state)
{
    static const struct {
        kwk_format format;
        int number;
        const char *name;
    } want[] = {{KWK_F32, 1, "float32"}, {KWK_F16, 2, "f16"}, {KWK_BF16, 3, "bf16"},
                {KWK_I8, 4, "int8"},     {KWK_I4, 5, "int4"}, {KWK_I6, 6, "int6"}};

    assert_int_equal(KWK_FORMAT_END, CHECK_COUNT(want) + 1);
    for (size_t i = 0; i < CHECK_COUNT(want); i++) {
        assert_int_equal(want[i].format, want[i].number);
        assert_string_equal(kwk_format_name(want[i].format), want[i].name);
    }
    assert_null(kwk_format_name((kwk_format)0));
    assert_null(kwk_format_name(KWK_FORMAT_END));
    assert_true(kwk_format_is_int(KWK_I8) && kwk_format_is_int(KWK_I6) &&
                kwk_format_is_int(KWK_I4));
    assert_false(kwk_format_is_int(KWK_F32) || kwk_format_is_int(KWK_BF16));
}

static void sizes_pad_to_32(void **state)
{
    static const int want[][2] = {{0, 0}, {1, 32}, {31, 32}, {32, 32}, {33, 64}, {576, 576}};

    for (size_t i = 0; i < CHECK_COUNT(want); i++)
        assert_int_equal(kwk_pad32(want[i][0]), want[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slot_begins_with_its_reference),
        cmocka_unit_test(rows_of_a_slot_go_from_slow_to_fast),
        cmocka_unit_test(every_level_fills_every_slot),
        cmocka_unit_test(a_level_takes_its_best_row),
        cmocka_unit_test(lookups_by_format_lead_to_its_slots),
        cmocka_unit_test(tile_bytes_are_those_of_the_layout),
        cmocka_unit_test(formats_keep_their_numbers_and_names),
        cmocka_unit_test(sizes_pad_to_32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
