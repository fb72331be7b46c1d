/* SPDX-License-Identifier: Apache-2.0
 *
 * From a config.json to a recipe (model.h), under strict admission: what this engine would compute
 * differently from Hugging Face is refused by name, and so is any key nobody here has heard of.
 * Pure functions; any thread.
 */
#ifndef KWK_ENGINE_RECIPE_H
#define KWK_ENGINE_RECIPE_H

#include "engine/model.h"

/* Largest sizes accepted, so that products of two and byte counts never overflow, and one tile of
 * any matrix stays within the packer's memory. */
enum {
    KWK_MAX_HIDDEN = 1 << 16,
    KWK_MAX_INTER = 1 << 18,
    KWK_MAX_HEADS = 1 << 12,
    KWK_MAX_VOCAB = 1 << 22,
    KWK_MAX_POSITIONS = 1 << 30,
    KWK_CONFIG_MAX = 1 << 20, // bytes of config.json
};

/**
 * @param config      text of config.json
 * @param generation  text of generation_config.json, or NULL: its bos, eos and pad win over
 * config's
 *
 * @return KWK_OK; KWK_EUNSUPPORTED with the key and its value; KWK_EFORMAT no JSON, or a required
 *         key is missing; KWK_ENOMEM. *r is unchanged on error.
 */
int kwk_recipe_from_config(kwk_recipe *r, const char *config, size_t n, const char *generation,
                           size_t generation_len, kwk_error *err);

/* Whether every field of a recipe is one that from_config() could have produced: recipes in packs
 * are untrusted. KWK_EUNSUPPORTED names the field. */
int kwk_recipe_check(const kwk_recipe *r, kwk_error *err);

/* RoPE's inverse frequencies (rope_dim / 2), in float32 step by step as Hugging Face does it. */
void kwk_recipe_inv_freq(const kwk_recipe *r, float *inv_freq);

/* ---- the tensors of a recipe ----------------------------------------------------------------- */

/* KWK_ROLE(name, per layer, matrix, Hugging Face's name or suffix), in the order in which a step
 * reads them, which is the order of the file. */
#define KWK_ROLES                                                                                  \
    KWK_ROLE(EMBED, 0, 1, "model.embed_tokens.weight")                                             \
    KWK_ROLE(ATTN_NORM, 1, 0, "input_layernorm.weight")                                            \
    KWK_ROLE(Q, 1, 1, "self_attn.q_proj.weight")                                                   \
    KWK_ROLE(K, 1, 1, "self_attn.k_proj.weight")                                                   \
    KWK_ROLE(V, 1, 1, "self_attn.v_proj.weight")                                                   \
    KWK_ROLE(Q_BIAS, 1, 0, "self_attn.q_proj.bias")                                                \
    KWK_ROLE(K_BIAS, 1, 0, "self_attn.k_proj.bias")                                                \
    KWK_ROLE(V_BIAS, 1, 0, "self_attn.v_proj.bias")                                                \
    KWK_ROLE(Q_NORM, 1, 0, "self_attn.q_norm.weight")                                              \
    KWK_ROLE(K_NORM, 1, 0, "self_attn.k_norm.weight")                                              \
    KWK_ROLE(O, 1, 1, "self_attn.o_proj.weight")                                                   \
    KWK_ROLE(O_BIAS, 1, 0, "self_attn.o_proj.bias")                                                \
    KWK_ROLE(MLP_NORM, 1, 0, "post_attention_layernorm.weight")                                    \
    KWK_ROLE(GATE, 1, 1, "mlp.gate_proj.weight")                                                   \
    KWK_ROLE(UP, 1, 1, "mlp.up_proj.weight")                                                       \
    KWK_ROLE(GATE_BIAS, 1, 0, "mlp.gate_proj.bias")                                                \
    KWK_ROLE(UP_BIAS, 1, 0, "mlp.up_proj.bias")                                                    \
    KWK_ROLE(DOWN, 1, 1, "mlp.down_proj.weight")                                                   \
    KWK_ROLE(DOWN_BIAS, 1, 0, "mlp.down_proj.bias")                                                \
    KWK_ROLE(FINAL_NORM, 0, 0, "model.norm.weight")                                                \
    KWK_ROLE(HEAD, 0, 1, "lm_head.weight")

typedef enum kwk_role {
#define KWK_ROLE(name, per_layer, matrix, hf) KWK_ROLE_##name,
    KWK_ROLES
#undef KWK_ROLE
        KWK_ROLE_END
} kwk_role;

typedef struct kwk_tensor_spec {
    kwk_role role;
    int layer;  // 0 for tensors outside layers
    int matrix; // 0: a float32 vector of `cols` values, rows = 1
    int rows, cols;
} kwk_tensor_spec;

enum { KWK_TENSOR_NAME_MAX = 64 };

/* Number of tensors of a checked recipe. A tied head is not a tensor of its own. */
int kwk_recipe_n_tensors(const kwk_recipe *r);

/* All of them: out (kwk_recipe_n_tensors()). */
void kwk_recipe_tensors(const kwk_recipe *r, kwk_tensor_spec *out);

/* Hugging Face's name of a tensor. */
void kwk_tensor_name(const kwk_tensor_spec *t, char name[KWK_TENSOR_NAME_MAX]);

#endif
