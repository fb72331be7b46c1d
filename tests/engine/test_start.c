/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/start.c: options of the run-time part and their refusals; the level chosen by KWKER_ISA.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/kv.h"
#include "tests/support/check.h"
#include "tests/support/hand_model.h"

static const hand_config tiny = {.n_layers = 1,
                                 .hidden = 8,
                                 .inter = 8,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .vocab = 8,
                                 .tied = 1,
                                 .format = KWK_F32};

/* Start a model again with other options. */
static int restart(kwk_model *m, const kwk_model_options *o, kwk_error *err)
{
    kwk_model_stop(m);
    return kwk_model_start(m, o, err);
}

static void options_out_of_range_are_refused_by_name(void **state)
{
    kwk_model *m = hand_model_new(&tiny);
    kwk_error err = {0};
    kwk_model_options o = KWK_MODEL_OPTIONS_INIT;

    o.kv_bits = 8;
    assert_int_equal(restart(m, &o, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "kv_bits 8 is not 0, 16 or 32");
    o.kv_bits = 0;
    o.max_ctx = -1;
    assert_int_equal(restart(m, &o, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "max_ctx -1 is not in 0..16777216");
    o.max_ctx = 0;
    o.kv_bytes = 1;
    assert_int_equal(restart(m, &o, &err), KWK_EINVAL);
    assert_non_null(strstr(err.msg, "kv_bytes 1 "));
    hand_model_free(m); // a model whose start failed can be freed
}

static void defaults_follow_the_model(void **state)
{
    hand_config c = tiny;
    kwk_model *m = hand_model_new(&c);

    assert_int_equal(m->kv_bits, 32);
    assert_int_equal(m->max_ctx, 4096); // max_position_embeddings
    assert_int_equal(restart(m, NULL, NULL), KWK_OK);
    assert_true(m->kv->n_blocks > 0);
    hand_model_free(m);
    c.format = KWK_I8;
    m = hand_model_new(&c);
    assert_int_equal(m->kv_bits, 16);
    hand_model_free(m);
}

static void what_has_no_kernel_is_refused(void **state)
{
    kwk_model *m = hand_model_new(&tiny);
    kwk_error err = {0};

    m->recipe.act = KWK_ACT_GELU;
    assert_int_equal(restart(m, NULL, &err), KWK_EUNSUPPORTED);
    m->recipe.act = KWK_ACT_SILU;
    m->recipe.head_dim = 513;
    assert_int_equal(restart(m, NULL, &err), KWK_EUNSUPPORTED);
    assert_string_equal(err.msg, "head_dim 513 is not in 1..512");
    m->recipe.head_dim = 8;
    assert_int_equal(restart(m, NULL, &err), KWK_OK);
    hand_model_free(m);
}

static void the_environment_forces_a_lower_level(void **state)
{
    kwk_model *m = hand_model_new(&tiny);
    kwk_error err = {0};

    unsetenv("KWKER_ISA");
    assert_string_equal(kwk_isa(), kwk_cpu_name(kwk_cpu_flags()));
    for (const check_level *l = check_levels(); l->name; l++) {
        kwk_kernels want;

        setenv("KWKER_ISA", l->name, 1);
        assert_string_equal(kwk_isa(), l->name);
        kwk_kernels_init(&want, l->flags);
        assert_int_equal(restart(m, NULL, NULL), KWK_OK);
        assert_ptr_equal(m->kernels.gemv_f32, want.gemv_f32);
    }
    setenv("KWKER_ISA", "mmx", 1);
    assert_int_equal(restart(m, NULL, &err), KWK_EINVAL);
    assert_string_equal(err.msg, "KWKER_ISA 'mmx' is not ref, avx2, avx512 or neon");
    unsetenv("KWKER_ISA");
    assert_string_equal(kwk_version(), KWK_VERSION);
    hand_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
        cmocka_unit_test(defaults_follow_the_model),
        cmocka_unit_test(what_has_no_kernel_is_refused),
        cmocka_unit_test(the_environment_forces_a_lower_level),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
