/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_store: every element lands where the layout says, rounded once, and nothing else is written.
 */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"

static const int dims[] = {1, 2, 7, 8, 9, 16, 37, 64, 96, 128, 256};
enum { DIM_MAX = 256 };

static uint16_t half_of(float x) // nearest, saturated
{
    const uint16_t h = kwk_f32_to_f16(x);

    return (h & 0x7fff) == 0x7c00 ? (uint16_t)(h - 1) : h;
}

static void put(void *block, size_t i, float x, int half)
{
    if (half)
        ((uint16_t *)block)[i] = half_of(x);
    else
        ((float *)block)[i] = x;
}

static void check_store(const check_level *l, int dim, int slot, check_fill fill, int half)
{
    const size_t d1 = (size_t)dim, bytes = KWK_BLOCK * d1 * (half ? 2 : 4);
    uint8_t *kb = check_alloc(bytes), *vb = check_alloc(bytes);
    uint8_t *k_want = check_alloc(bytes), *v_want = check_alloc(bytes);
    float k[DIM_MAX + 1], v[DIM_MAX + 1];
    uint64_t seed = (uint64_t)dim;
    kwk_kernels kern;

    kwk_kernels_init(&kern, l->flags);
    check_fill_f32(k, d1 + 1, fill, &seed);
    check_fill_f32(v, d1 + 1, fill, &seed);
    k[dim / 2] = INFINITY;
    v[dim / 2] = -INFINITY;
    v[dim] = 65519.0f; // rounds to the greatest half
    for (size_t d = 0; d < d1; d++) {
        put(k_want, d * KWK_BLOCK + (size_t)slot, k[d], half);
        put(v_want, (size_t)slot * d1 + d, v[d + 1], half);
    }
    (half ? kern.kv_store_f16 : kern.kv_store_f32)(kb, vb, k, v + 1, dim, slot);
    check_same(kb, k_want, bytes, "K, %s, dim %d, slot %d, half %d", l->name, dim, slot, half);
    check_same(vb, v_want, bytes, "V, %s, dim %d, slot %d, half %d", l->name, dim, slot, half);
    check_free(v_want);
    check_free(k_want);
    check_free(vb);
    check_free(kb);
}

static void elements_land_in_their_slot_rounded_once(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++)
        for (size_t i = 0; i < CHECK_COUNT(dims); i++)
            for (int slot = 0; slot < KWK_BLOCK; slot += slot == 1 ? 29 : 1)
                for (int fill = 0; fill < CHECK_FILLS; fill++) {
                    check_store(l, dims[i], slot, (check_fill)fill, 0);
                    check_store(l, dims[i], slot, (check_fill)fill, 1);
                }
}

static void halves_round_to_even_saturate_and_keep_nan(void **state)
{
    const float x[] = {65504.0f,       65519.996f,     65520.0f, 3e38f,      -65520.0f, -INFINITY,
                       1.00048828125f, 1.00146484375f, 0x1p-25f, 0x1.8p-25f, -0x1p-24f, NAN};
    const uint16_t want[] = {0x7bff, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 0xfbff,
                             0x3c00, 0x3c02, 0x0000, 0x0001, 0x8001, 0x7e00};
    enum { N = CHECK_COUNT(x) };

    for (const check_level *l = check_levels(); l->name; l++) {
        uint16_t kb[N * KWK_BLOCK], vb[KWK_BLOCK * N];
        kwk_kernels k;
        kwk_kernels_init(&k, l->flags);
        k.kv_store_f16(kb, vb, x, x, N, 31);
        for (int d = 0; d < N; d++) {
            assert_int_equal(kb[d * KWK_BLOCK + 31] & (d == N - 1 ? 0x7fff : 0xffff), want[d]);
            assert_int_equal(vb[31 * N + d] & (d == N - 1 ? 0x7fff : 0xffff), want[d]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_land_in_their_slot_rounded_once),
        cmocka_unit_test(halves_round_to_even_saturate_and_keep_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
