/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/kv.c: blocks are handed out once, come back by count, and never exceed the budget.
 */
#include <string.h>

#include "engine/kv.h"
#include "tests/support/check.h"

static const kwk_recipe recipe = {.n_layers = 3, .n_kv_heads = 2, .head_dim = 5};
enum { BLOCK_BYTES = 3 * 2 * 2 * 5 * 32 * 4 };

static kwk_kv_pool *pool_of(int n)
{
    kwk_kv_pool *p = NULL;
    kwk_error err = {0};

    assert_int_equal(kwk_kv_pool_new(&p, &recipe, 32, (uint64_t)n * BLOCK_BYTES + 7, &err), KWK_OK);
    assert_int_equal(p->block_bytes, BLOCK_BYTES);
    assert_int_equal(kwk_kv_free_blocks(p), n);
    return p;
}

static void alloc_is_all_or_nothing(void **state)
{
    kwk_kv_pool *p = pool_of(5);
    int32_t b[6] = {-1, -1, -1, -1, -1, -1};

    assert_int_equal(kwk_kv_alloc(p, b, 6), KWK_EFULL);
    assert_int_equal(b[0], -1);
    assert_int_equal(kwk_kv_free_blocks(p), 5);
    assert_int_equal(kwk_kv_alloc(p, b, 5), KWK_OK);
    for (int i = 0; i < 5; i++) {
        assert_in_range(b[i], 1, 5);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(b[i], b[j]);
    }
    assert_int_equal(kwk_kv_alloc(p, b + 5, 1), KWK_EFULL);
    assert_int_equal(kwk_kv_alloc(p, b + 5, 0), KWK_OK);
    kwk_kv_pool_free(p);
}

static void a_block_comes_back_with_its_last_reference(void **state)
{
    kwk_kv_pool *p = pool_of(2);
    int32_t b[3];

    assert_int_equal(kwk_kv_alloc(p, b, 2), KWK_OK);
    assert_false(kwk_kv_is_shared(p, b[0]));
    b[2] = KWK_KV_NULL; // never counted
    kwk_kv_retain(p, b, 3);
    assert_true(kwk_kv_is_shared(p, b[0]));
    kwk_kv_release(p, b, 3);
    assert_int_equal(kwk_kv_free_blocks(p), 0);
    kwk_kv_release(p, b, 1);
    assert_int_equal(kwk_kv_free_blocks(p), 1);
    const int32_t freed = b[0];
    assert_int_equal(kwk_kv_alloc(p, b, 1), KWK_OK);
    assert_int_equal(b[0], freed); // the block freed last comes first
    kwk_kv_pool_free(p);
}

static void heads_do_not_overlap_and_are_aligned(void **state)
{
    kwk_kv_pool *p = pool_of(2);
    int32_t b[2];
    int n = 0;

    assert_int_equal(kwk_kv_alloc(p, b, 2), KWK_OK);
    for (int i = 0; i < 2; i++)
        for (int l = 0; l < 3; l++)
            for (int h = 0; h < 2; h++) {
                memset(kwk_kv_k(p, b[i], l, h), ++n, p->head_bytes);
                memset(kwk_kv_v(p, b[i], l, h), ++n, p->head_bytes);
                assert_int_equal((uintptr_t)kwk_kv_k(p, b[i], l, h) % 64, 0);
                assert_int_equal((uintptr_t)kwk_kv_v(p, b[i], l, h) % 64, 0);
            }
    n = 0;
    for (int i = 0; i < 2; i++)
        for (int l = 0; l < 3; l++)
            for (int h = 0; h < 2; h++)
                for (int v = 0; v < 2; v++) {
                    const uint8_t *at = v ? kwk_kv_v(p, b[i], l, h) : kwk_kv_k(p, b[i], l, h);
                    n++;
                    assert_int_equal(at[0], n);
                    assert_int_equal(at[p->head_bytes - 1], n);
                }
    for (size_t i = 0; i < p->block_bytes; i++) // nobody touched the null block
        assert_int_equal(p->base[i], 0);
    kwk_kv_pool_free(p);
}

static void a_budget_below_one_block_is_refused_with_its_number(void **state)
{
    kwk_kv_pool *p = NULL;
    kwk_error err = {0};

    assert_int_equal(kwk_kv_pool_new(&p, &recipe, 16, BLOCK_BYTES / 2 - 1, &err), KWK_EINVAL);
    assert_null(p);
    assert_string_equal(err.msg, "kv_bytes 3839 is less than one block of 3840 bytes");
    assert_int_equal(kwk_kv_pool_new(&p, &recipe, 16, BLOCK_BYTES / 2, &err), KWK_OK);
    kwk_kv_pool_free(p);
}

static void an_impossible_budget_is_out_of_memory(void **state)
{
    kwk_kv_pool *p = NULL;
    kwk_error err = {0};
    const kwk_recipe huge = {.n_layers = 512, .n_kv_heads = 1024, .head_dim = 512};

    assert_int_equal(kwk_kv_pool_new(&p, &huge, 32, UINT64_MAX, &err), KWK_ENOMEM);
    assert_null(p);
}

static void the_default_budget_is_a_share_of_memory(void **state)
{
    kwk_kv_pool *p = NULL;

    assert_int_equal(kwk_kv_pool_new(&p, &recipe, 32, 0, NULL), KWK_OK);
    assert_true((uint64_t)p->n_blocks * BLOCK_BYTES > (uint64_t)16 << 20);
    kwk_kv_pool_free(p);
    kwk_kv_pool_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alloc_is_all_or_nothing),
        cmocka_unit_test(a_block_comes_back_with_its_last_reference),
        cmocka_unit_test(heads_do_not_overlap_and_are_aligned),
        cmocka_unit_test(a_budget_below_one_block_is_refused_with_its_number),
        cmocka_unit_test(an_impossible_budget_is_out_of_memory),
        cmocka_unit_test(the_default_budget_is_a_share_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
