/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission: configs as transformers and model authors write them are accepted and read right;
 * whatever would be computed differently is refused by name (recipe.c, families.inc).
 */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/recipe.h"

/* The required keys; tests append more. */
#define CORE(type)                                                                                 \
    "\"model_type\": \"" type "\", \"vocab_size\": 99, \"hidden_size\": 64, "                      \
    "\"intermediate_size\": 37, \"num_hidden_layers\": 3, \"num_attention_heads\": 4"

static int read(kwk_recipe *r, const char *config, const char *generation, kwk_error *err)
{
    char *copy = malloc(strlen(config) + 1); // exact size for the sanitizers
    int rc;

    assert_non_null(copy);
    memcpy(copy, config, strlen(config));
    memset(r, 0x5a, sizeof *r);
    rc = kwk_recipe_from_config(r, copy, strlen(config), generation,
                                generation ? strlen(generation) : 0, err);
    free(copy);
    if (rc == KWK_OK)
        assert_int_equal(kwk_recipe_check(r, NULL), KWK_OK);
    else
        assert_true(r->n_layers == 0x5a5a5a5a); // unchanged
    return rc;
}

static void accepts(kwk_recipe *r, const char *config)
{
    kwk_error err = {0};

    if (read(r, config, NULL, &err) != KWK_OK)
        fail_msg("%s: %s", config, err.msg);
}

static void refuses(const char *config, int code, const char *message)
{
    kwk_recipe r;
    kwk_error err = {0};
    const int rc = read(&r, config, NULL, &err);

    if (rc != code || strcmp(err.msg, message) != 0)
        fail_msg("%s\n gave %d \"%s\",\n not %d \"%s\"", config, rc, err.msg, code, message);
}

static void a_bare_llama_gets_hugging_faces_defaults(void **state)
{
    kwk_recipe r;

    accepts(&r, "{" CORE("llama") "}");
    assert_string_equal(r.model_type, "llama");
    assert_int_equal(r.n_layers, 3);
    assert_int_equal(r.hidden, 64);
    assert_int_equal(r.inter, 37);
    assert_int_equal(r.n_heads, 4);
    assert_int_equal(r.n_kv_heads, 4);
    assert_int_equal(r.head_dim, 16);
    assert_int_equal(r.vocab, 99);
    assert_int_equal(r.max_pos, 2048);
    assert_true(r.rms_eps == 1e-6f && r.attn_scale == 0.25f);
    assert_true(r.rope_theta == 10000 && r.rope_type == KWK_ROPE_DEFAULT && r.rope_dim == 16);
    assert_false(r.tied || r.q_bias || r.k_bias || r.v_bias || r.o_bias || r.mlp_bias || r.qk_norm);
    assert_int_equal(r.bos, 1);
    assert_int_equal(r.pad, -1);
    assert_int_equal(r.n_eos, 1);
    assert_int_equal(r.eos[0], 2);
}

static void qwen2_has_biases_on_q_k_v_only(void **state)
{
    kwk_recipe r;

    accepts(&r, "{" CORE(
                    "qwen2") ", \"num_key_value_heads\": 2, \"use_sliding_window\": false, "
                             "\"sliding_window\": 4096, \"max_window_layers\": 1, \"layer_types\": "
                             "[\"full_attention\", \"full_attention\", \"full_attention\"]}");
    assert_true(r.q_bias && r.k_bias && r.v_bias);
    assert_false(r.o_bias || r.mlp_bias || r.qk_norm);
    assert_int_equal(r.n_kv_heads, 2);
    assert_int_equal(r.max_pos, 32768);
    assert_int_equal(r.bos, -1);
    assert_int_equal(r.n_eos, 0);
}

static void qwen3_has_head_norms_and_its_own_head_dim(void **state)
{
    kwk_recipe r;

    accepts(&r, "{" CORE("qwen3") ", \"num_key_value_heads\": null}");
    assert_int_equal(r.head_dim, 128);
    assert_int_equal(r.n_kv_heads, 4);
    assert_true(r.qk_norm);
    assert_false(r.q_bias || r.o_bias);
    accepts(&r, "{" CORE("qwen3") ", \"num_key_value_heads\": 1, \"head_dim\": 10, "
                                  "\"attention_bias\": true}");
    assert_int_equal(r.head_dim, 10);
    assert_true(r.q_bias && r.o_bias);
}

static void old_and_new_spellings_of_rope_mean_the_same(void **state)
{
    kwk_recipe a, b;

    accepts(&a,
            "{" CORE(
                "llama") ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 8.0, "
                         "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                         "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}}");
    accepts(&b,
            "{" CORE(
                "llama") ", \"rope_parameters\": {\"rope_theta\": 500000, \"factor\": 8, "
                         "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"type\": \"llama3\", "
                         "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}}");
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.rope_type, KWK_ROPE_LLAMA3);
    assert_true(a.rope_factor == 8 && a.rope_low_freq == 1 && a.rope_high_freq == 4);
    assert_int_equal(a.rope_original_max_pos, 8192);

    accepts(&a, "{" CORE("llama") ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}}");
    assert_int_equal(a.rope_type, KWK_ROPE_LINEAR);
    assert_true(a.rope_factor == 2.5f && a.rope_theta == 10000);
    accepts(&a, "{" CORE("llama") ", \"rope_scaling\": null, \"rope_theta\": 100000}");
    assert_true(a.rope_theta == 100000 && a.rope_type == KWK_ROPE_DEFAULT);
}

static void ends_come_from_the_generation_config_first(void **state)
{
    static const char config[] = "{" CORE("llama") ", \"eos_token_id\": 3, \"bos_token_id\": null, "
                                                   "\"pad_token_id\": -1}";
    kwk_recipe r;

    assert_int_equal(read(&r, config, NULL, NULL), KWK_OK);
    assert_int_equal(r.n_eos, 1);
    assert_int_equal(r.eos[0], 3);
    assert_int_equal(r.bos, -1);
    assert_int_equal(r.pad, -1);
    assert_int_equal(read(&r, config,
                          "{\"eos_token_id\": [7, 500, 8, -1], \"bos_token_id\": 5, "
                          "\"pad_token_id\": 98, \"temperature\": 0.6}",
                          NULL),
                     KWK_OK);
    assert_int_equal(r.n_eos, 2); // ids outside the vocabulary can never come
    assert_int_equal(r.eos[0], 7);
    assert_int_equal(r.eos[1], 8);
    assert_int_equal(r.bos, 5);
    assert_int_equal(r.pad, 98);
    assert_int_equal(read(&r, config, "{\"do_sample\": true}", NULL), KWK_OK);
    assert_int_equal(r.eos[0], 3);
    assert_int_equal(read(&r, config, "{\"eos_token_id\": \"x\"}", NULL), KWK_EUNSUPPORTED);
    assert_int_equal(read(&r, config, "{", NULL), KWK_EFORMAT);
}

/* Word for word the keys of published files and of transformers 4.57 (full) and 5.24. */
static void configs_as_they_are_published_are_accepted(void **state)
{
    kwk_recipe r;

    accepts(&r, // SmolLM2-135M
            "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, "
            "\"attention_dropout\": 0.0, \"bos_token_id\": 0, \"eos_token_id\": 0, \"hidden_act\": "
            "\"silu\", \"hidden_size\": 576, \"initializer_range\": 0.041666666666666664, "
            "\"intermediate_size\": 1536, \"is_llama_config\": true, \"max_position_embeddings\": "
            "8192, \"mlp_bias\": false, \"model_type\": \"llama\", \"num_attention_heads\": 9, "
            "\"num_hidden_layers\": 30, \"num_key_value_heads\": 3, \"pretraining_tp\": 1, "
            "\"rms_norm_eps\": 1e-05, \"rope_interleaved\": false, \"rope_scaling\": null, "
            "\"rope_theta\": 100000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
            "\"transformers_version\": \"4.40.1\", \"use_cache\": true, \"vocab_size\": 49152, "
            "\"transformers.js_config\": {\"dtype\": \"q4\"}}");
    assert_int_equal(r.head_dim, 64);
    assert_true(r.tied && r.rms_eps == 1e-5f);
    accepts(&r, // Qwen2.5-0.5B
            "{\"architectures\": [\"Qwen2ForCausalLM\"], \"attention_dropout\": 0.0, "
            "\"bos_token_id\": 151643, \"eos_token_id\": 151643, \"hidden_act\": \"silu\", "
            "\"hidden_size\": 896, \"initializer_range\": 0.02, \"intermediate_size\": 4864, "
            "\"max_position_embeddings\": 32768, \"max_window_layers\": 24, \"model_type\": "
            "\"qwen2\", \"num_attention_heads\": 14, \"num_hidden_layers\": 24, "
            "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, "
            "\"sliding_window\": 32768, \"tie_word_embeddings\": true, \"torch_dtype\": "
            "\"bfloat16\", \"transformers_version\": \"4.40.1\", \"use_cache\": true, "
            "\"use_mrope\": false, \"use_sliding_window\": false, \"vocab_size\": 151936}");
    assert_int_equal(r.eos[0], 151643);
    accepts(
        &r, // the housekeeping of transformers 4.57's and 5.24's full dictionaries
        "{" CORE(
            "llama") ", \"_name_or_path\": \"x\", \"add_cross_attention\": false, "
                     "\"bad_words_ids\": null, \"begin_suppress_tokens\": null, "
                     "\"chunk_size_feed_forward\":"
                     " 0, \"cross_attention_hidden_size\": null, \"decoder_start_token_id\": null, "
                     "\"diversity_penalty\": 0.0, \"do_sample\": false, \"dtype\": \"float32\", "
                     "\"early_stopping\": false, \"encoder_no_repeat_ngram_size\": 0, "
                     "\"exponential_decay_length_penalty\": null, \"finetuning_task\": null, "
                     "\"forced_bos_token_id\": null, \"forced_eos_token_id\": null, \"id2label\": "
                     "{\"0\": "
                     "\"LABEL_0\"}, \"is_decoder\": false, \"is_encoder_decoder\": false, "
                     "\"label2id\": "
                     "{\"LABEL_0\": 0}, \"length_penalty\": 1.0, \"max_length\": 20, "
                     "\"min_length\": 0, "
                     "\"no_repeat_ngram_size\": 0, \"num_beam_groups\": 1, \"num_beams\": 1, "
                     "\"num_return_sequences\": 1, \"output_attentions\": false, "
                     "\"output_hidden_states\": "
                     "false, \"output_scores\": false, \"prefix\": null, \"problem_type\": null, "
                     "\"pruned_heads\": {}, \"remove_invalid_values\": false, "
                     "\"repetition_penalty\": 1.0, "
                     "\"return_dict\": true, \"return_dict_in_generate\": false, \"sep_token_id\": "
                     "null, "
                     "\"suppress_tokens\": null, \"task_specific_params\": null, \"temperature\": "
                     "1.0, "
                     "\"tf_legacy_loss\": false, \"tie_encoder_decoder\": false, "
                     "\"tokenizer_class\": null, "
                     "\"top_k\": 50, \"top_p\": 1.0, \"torchscript\": false, \"typical_p\": 1.0, "
                     "\"use_bfloat16\": false, \"layer_types\": null, \"auto_map\": {}}");
}

static void the_config_of_a_model_that_transformers_read_from_gguf_is_accepted(void **state)
{
    kwk_recipe r;

    accepts(
        &r,
        "{" CORE(
            "llama") ", \"_model_name_or_path\": \"x\", \"unk_token_id\": 0, "
                     "\"quantization_config\": {\"dequantize\": false, \"gguf_file\": \"x.gguf\", "
                     "\"quant_method\": \"gguf\"}}");
}

static void unknown_keys_and_values_are_refused_by_name(void **state)
{
    static const struct {
        const char *more, *message;
    } bad[] = {
        {"\"attn_logit_softcapping\": 50.0",
         "config key 'attn_logit_softcapping' has the value 50, which is not supported"},
        {"\"no_rope_layers\": [1, 0]", "config key 'no_rope_layers' is not supported"},
        {"\"quantization_config\": {\"bits\": 4}",
         "config key 'quantization_config' is not supported"},
        {"\"sliding_window\": 4096",
         "config key 'sliding_window' has the value 4096, which is not supported"},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         "config key 'layer_types' has the value 'sliding_attention', which is not supported"},
        {"\"hidden_act\": \"gelu\"",
         "config key 'hidden_act' has the value 'gelu', which is not supported"},
        {"\"rope_interleaved\": true", "config key 'rope_interleaved' is true, which is not "
                                       "supported"},
        {"\"partial_rotary_factor\": 0.5",
         "config key 'partial_rotary_factor' has the value 0.5, which is not supported"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}",
         "config key 'type' has the value 'dynamic', which is not supported"},
        {"\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2.0}",
         "config key 'rope_type' has the value 'yarn', which is not supported"},
        {"\"rope_parameters\": {\"rope_type\": \"longrope\", \"long_factor\": [1.0]}",
         "config key 'rope_type' has the value 'longrope', which is not supported"},
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"mrope_section\": [1]}",
         "config key 'mrope_section' is not supported"},
        {"\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1.0}}",
         "config key 'full_attention' is not supported"},
        {"\"rope_parameters\": {\"rope_type\": \"linear\", \"type\": \"llama3\", \"factor\": 2}",
         "config key 'type' has the value 'llama3', which is not supported"},
        {"\"rope_parameters\": {}, \"rope_scaling\": {}",
         "config keys 'rope_parameters' and 'rope_scaling' exclude each other"},
        {"\"head_dim\": 9", "recipe: head_dim is 9"},
        {"\"num_key_value_heads\": 3", "recipe: n_kv_heads is 3"},
        {"\"num_key_value_heads\": 8", "recipe: n_kv_heads is 8"},
        {"\"max_position_embeddings\": 0",
         "config key 'max_position_embeddings' has the value 0, which is not supported"},
        {"\"rms_norm_eps\": -1e-5",
         "config key 'rms_norm_eps' has the value -1e-05, which is not supported"},
        {"\"attention_bias\": 1",
         "config key 'attention_bias' has the value 1, which is not supported"},
        {"\"head_dim\": \"8\"", "config key 'head_dim' has the value '8', which is not supported"},
        {"\"head_dim\": 8.5", "config key 'head_dim' has the value 8.5, which is not supported"},
    };
    char text[1024];

    for (size_t i = 0; i < CHECK_COUNT(bad); i++) {
        snprintf(text, sizeof text, "{" CORE("llama") ", %s}", bad[i].more);
        refuses(text, KWK_EUNSUPPORTED, bad[i].message);
    }
    refuses("{" CORE("mamba") "}", KWK_EUNSUPPORTED,
            "config key 'model_type' has the value 'mamba', which is not supported");
    refuses("{" CORE("qwen2") ", \"use_sliding_window\": true}", KWK_EUNSUPPORTED,
            "config key 'use_sliding_window' is true, which is not supported");
    refuses("{" CORE("qwen2") ", \"attention_bias\": true, \"num_key_value_heads\": 2}",
            KWK_EUNSUPPORTED, "config key 'attention_bias' is true, which is not supported");
}

static void missing_keys_and_damaged_texts_are_told_apart(void **state)
{
    refuses("{}", KWK_EFORMAT, "config key 'model_type' is missing");
    refuses("{\"model_type\": \"llama\"}", KWK_EFORMAT,
            "config key 'num_hidden_layers' is missing");
    refuses("{" CORE("llama") ", \"rope_scaling\": {\"type\": \"linear\"}}", KWK_EFORMAT,
            "config key 'factor' is missing");
    refuses("[]", KWK_EFORMAT, "config.json: not an object");
    refuses("{" CORE("llama") ", \"vocab_size\": 5}", KWK_EFORMAT,
            "config.json: key 'vocab_size' appears twice");
    refuses("{" CORE("llama") ", \"rms_norm_eps\": 1e999}", KWK_EFORMAT,
            "config.json: 'rms_norm_eps' is not a finite number");
}

static void absurd_sizes_are_refused(void **state)
{
    static const char *const key[] = {"vocab_size", "hidden_size", "intermediate_size",
                                      "num_hidden_layers", "num_attention_heads"};
    static const char *const value[] = {"0",    "-1",   "1e18", "2147483648", "1.5",
                                        "null", "true", "[]",   "\"99\""};
    char text[1024];

    for (size_t k = 0; k < CHECK_COUNT(key); k++) {
        for (size_t v = 0; v < CHECK_COUNT(value); v++) {
            kwk_recipe r;
            size_t n = (size_t)snprintf(text, sizeof text, "{\"model_type\": \"llama\"");
            for (size_t i = 0; i < CHECK_COUNT(key); i++)
                n += (size_t)snprintf(text + n, sizeof text - n, ", \"%s\": %s", key[i],
                                      i == k ? value[v] : "4");
            snprintf(text + n, sizeof text - n, "}");
            const int rc = read(&r, text, NULL, NULL);
            assert_true(rc == KWK_EUNSUPPORTED || rc == KWK_EFORMAT);
        }
    }
}

static void the_public_check_reads_no_weights_and_gives_the_reason(void **state)
{
    static const char good[] = "{" CORE("llama") "}", bad[] = "{" CORE("gpt2") "}";
    kwk_error err = {0};

    assert_int_equal(kwk_config_check(good, strlen(good), &err), KWK_OK);
    assert_int_equal(kwk_config_check(bad, strlen(bad), &err), KWK_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "gpt2"));
    assert_int_equal(kwk_config_check(NULL, 0, &err), KWK_EINVAL);
    assert_int_equal(kwk_config_check(good, SIZE_MAX, &err), KWK_EFORMAT);
}

/* Recipes in packs are bytes from outside. */
static void a_recipe_with_any_field_out_of_range_is_refused(void **state)
{
    kwk_recipe good, r;
    uint64_t seed = 5;
    int refused = 0;

    accepts(&good, "{" CORE("llama") ", \"rope_scaling\": {\"factor\": 8.0, \"low_freq_factor\": "
                                     "1.0, \"high_freq_factor\": 4.0, \"type\": \"llama3\"}}");
    for (size_t i = 0; i < sizeof r / 4; i++) {
        static const int32_t values[] = {-2, INT32_MIN, INT32_MAX, 0x7fc00000, (int32_t)0xff800000};
        for (size_t v = 0; v < CHECK_COUNT(values); v++) {
            r = good;
            memcpy((char *)&r + 4 * i, &values[v], 4);
            refused += kwk_recipe_check(&r, NULL) == KWK_EUNSUPPORTED;
        }
    }
    /* Not refused: bytes behind model_type's end and the unused entries of eos. */
    assert_true(refused >= (int)(sizeof r / 4 - 8 - KWK_MAX_EOS) * 4);
    for (int i = 0; i < 20000; i++) { // whatever passes can be walked
        r = good;
        for (int k = check_random_int(&seed, 1, 4); k; k--)
            ((uint8_t *)&r)[check_random(&seed) % sizeof r] = (uint8_t)check_random(&seed);
        if (kwk_recipe_check(&r, NULL) == KWK_OK)
            assert_in_range(kwk_recipe_n_tensors(&r), 3 + 9, 3 + 512 * 19);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bare_llama_gets_hugging_faces_defaults),
        cmocka_unit_test(qwen2_has_biases_on_q_k_v_only),
        cmocka_unit_test(qwen3_has_head_norms_and_its_own_head_dim),
        cmocka_unit_test(old_and_new_spellings_of_rope_mean_the_same),
        cmocka_unit_test(ends_come_from_the_generation_config_first),
        cmocka_unit_test(configs_as_they_are_published_are_accepted),
        cmocka_unit_test(the_config_of_a_model_that_transformers_read_from_gguf_is_accepted),
        cmocka_unit_test(unknown_keys_and_values_are_refused_by_name),
        cmocka_unit_test(missing_keys_and_damaged_texts_are_told_apart),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(the_public_check_reads_no_weights_and_gives_the_reason),
        cmocka_unit_test(a_recipe_with_any_field_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
