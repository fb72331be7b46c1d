/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of tensors is exactly that of the Hugging Face model of the same config.
 */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "engine/recipe.h"
#include "tests/support/tiny_model.h"

static void check_list(const tiny_options *o)
{
    tiny_model *m = tiny_model_new(o);
    kwk_recipe r;
    kwk_error err;

    if (kwk_recipe_from_config(&r, m->config, strlen(m->config), NULL, 0, &err) < 0)
        fail_msg("%s", err.msg);
    const int n = kwk_recipe_n_tensors(&r);
    kwk_tensor_spec *specs = calloc((size_t)n, sizeof *specs);
    assert_non_null(specs);
    kwk_recipe_tensors(&r, specs);
    assert_int_equal(n, m->n_tensors);
    for (int i = 0; i < n; i++) {
        char name[KWK_TENSOR_NAME_MAX];
        int found = 0;
        kwk_tensor_name(&specs[i], name);
        for (int j = 0; j < m->n_tensors; j++) {
            const tiny_tensor *t = &m->tensors[j];
            if (strcmp(t->name, name) != 0)
                continue;
            found = 1;
            assert_int_equal(specs[i].matrix, t->n_dims == 2);
            assert_int_equal(specs[i].rows, t->n_dims == 2 ? t->shape[0] : 1);
            assert_int_equal(specs[i].cols, t->shape[t->n_dims - 1]);
        }
        if (!found)
            fail_msg("the model has no %s", name);
        for (int j = 0; j < i; j++)
            assert_true(specs[j].role != specs[i].role || specs[j].layer != specs[i].layer);
    }
    free(specs);
    tiny_model_free(m);
}

static void every_family_has_its_own_tensors(void **state)
{
    static const char *const types[] = {"llama", "qwen2", "qwen3"};

    for (size_t i = 0; i < CHECK_COUNT(types); i++) {
        for (int tied = 0; tied < 2; tied++) {
            tiny_options o = TINY_OPTIONS;
            o.model_type = types[i];
            o.tied = tied;
            check_list(&o);
        }
    }
}

static void llamas_biases_follow_their_keys(void **state)
{
    for (int bits = 0; bits < 4; bits++) {
        tiny_options o = TINY_OPTIONS;
        o.attention_bias = bits & 1;
        o.mlp_bias = bits >> 1;
        check_list(&o);
    }
}

static void the_order_is_that_of_a_step(void **state)
{
    kwk_recipe r = {.n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .head_dim = 4};
    kwk_tensor_spec t[32];
    char name[KWK_TENSOR_NAME_MAX];

    assert_int_equal(kwk_recipe_n_tensors(&r), 1 + 2 * 9 + 2);
    kwk_recipe_tensors(&r, t);
    assert_int_equal(t[0].role, KWK_ROLE_EMBED);
    assert_int_equal(t[1].role, KWK_ROLE_ATTN_NORM);
    assert_int_equal(t[9].role, KWK_ROLE_DOWN);
    assert_int_equal(t[10].layer, 1);
    assert_int_equal(t[20].role, KWK_ROLE_HEAD);
    kwk_tensor_name(&t[18], name);
    assert_string_equal(name, "model.layers.1.mlp.down_proj.weight");
    kwk_tensor_name(&t[20], name);
    assert_string_equal(name, "lm_head.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_has_its_own_tensors),
        cmocka_unit_test(llamas_biases_follow_their_keys),
        cmocka_unit_test(the_order_is_that_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
