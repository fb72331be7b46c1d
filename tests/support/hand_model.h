/* SPDX-License-Identifier: Apache-2.0
 *
 * A random model built directly in memory, without any loader, and a plain float64 forward pass of
 * it to compare with. One thread.
 */
#ifndef KWK_TESTS_SUPPORT_HAND_MODEL_H
#define KWK_TESTS_SUPPORT_HAND_MODEL_H

#include "engine/model.h"

typedef struct hand_config {
    int n_layers, hidden, inter, n_heads, n_kv_heads, head_dim, vocab;
    int rope_dim; // 0: head_dim
    int bias;     // 0 none, 1 q, k, v (Qwen2), 2 everywhere
    int qk_norm, tied;
    kwk_format format; // of every matrix
    kwk_format finer;  // of embedding, head, v and down; 0: format
    kwk_format embed;  // of an untied embedding; 0: finer
    int kv_bits;       // 0: by the format
    int max_ctx;       // 0: 4096
    uint64_t kv_bytes; // 0: 64 MiB
    uint64_t seed;
} hand_config;

/* Never NULL: fails the test. The caller's; sequences of it must be gone before it is freed. */
kwk_model *hand_model_new(const hand_config *c);
void hand_model_free(kwk_model *m);

/* Logits (n, vocab) of a sequence of n tokens, every sum in float64. Integer formats: activations
 * are quantised as the contract says, f16 KV is rounded.
 *   token, position, valid  (n)   valid may be NULL: all are                                    */
void hand_model_forward(const kwk_model *m, int n, const int32_t *token, const int32_t *position,
                        const uint8_t *valid, double *logits);

#endif
