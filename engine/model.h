/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the engine: a model in memory. The recipe (what the family computes), the packed matrices,
 * and the image they lie in. Written once by the loaders (source_*.c, recipe.c, pack.c), read-only
 * afterwards, so every thread may read it. Knows nothing of sequences or steps.
 */
#ifndef KWK_ENGINE_MODEL_H
#define KWK_ENGINE_MODEL_H

#include <stdatomic.h>

#include "engine/kwk.h"
#include "kernels/kernels.h"

enum { KWK_MAX_EOS = 16, KWK_MAX_LAYERS = 512 };

typedef enum kwk_act { KWK_ACT_SILU = 0, KWK_ACT_GELU, KWK_ACT_GELU_TANH } kwk_act;
typedef enum kwk_rope_type { KWK_ROPE_DEFAULT = 0, KWK_ROPE_LINEAR, KWK_ROPE_LLAMA3 } kwk_rope_type;

/* What a family computes: a row of data. Plain numbers only, it is written into the pack as is. */
typedef struct kwk_recipe {
    char model_type[32];
    int32_t n_layers, hidden, inter, n_heads, n_kv_heads, head_dim, vocab, max_pos;
    float rms_eps;
    uint8_t q_bias, k_bias, v_bias, o_bias, mlp_bias; // has a bias
    uint8_t qk_norm;                                  // RMSNorm per head on q and k, before RoPE
    uint8_t tied;                                     // head = embedding
    uint8_t act;                                      // kwk_act
    float attn_scale;                                 // multiplies q·k
    /* RoPE: half-split over the first rope_dim of each head */
    int32_t rope_type, rope_dim;
    float rope_theta, rope_factor, rope_low_freq, rope_high_freq;
    int32_t rope_original_max_pos;
    int32_t bos, pad, n_eos, eos[KWK_MAX_EOS]; // -1: none
} kwk_recipe;

typedef struct kwk_layer {
    const float *attn_norm, *mlp_norm; // (hidden)
    const float *q_norm, *k_norm;      // (head_dim) or NULL
    const float *q_bias, *k_bias, *v_bias, *o_bias;  // (rows) or NULL
    const float *gate_bias, *up_bias, *down_bias;    // (rows) or NULL
    kwk_mat q, k, v, o, gate, up, down;
} kwk_layer;

/* The packed bytes: exactly the contents of a .kwk file. */
typedef struct kwk_image {
    uint8_t *base; // mapped; read-only after loading
    size_t size;
    int fd;        // sealed memfd, or -1
} kwk_image;

struct kwk_kv_pool; // engine/kv.h
struct kwk_scratch; // engine/scratch.h

/* kwk_model.counters[…], in the order of kwk_counters. */
enum kwk_count {
    KWK_COUNT_STEPS,
    KWK_COUNT_ROWS,
    KWK_COUNT_MAX_ROWS,
    KWK_COUNT_GEMV,
    KWK_COUNT_SMALL,
    KWK_COUNT_GEMM,
    KWK_COUNT_ATTN_DECODE,
    KWK_COUNT_ATTN_PREFILL,
    KWK_COUNT_ATTN_MERGES,
    KWK_COUNT_BLOCKS_COPIED,
    KWK_COUNT_END
};

struct kwk_model {
    atomic_int refs;
    kwk_recipe recipe;
    kwk_image image;
    kwk_mat embed; // (vocab, hidden); head when tied
    kwk_mat head;  // (vocab, hidden); same data as embed when tied
    const float *final_norm; // (hidden)
    kwk_layer *layers;       // (n_layers)
    float *inv_freq;         // (rope_dim / 2), float32 as Hugging Face computes it
    char precision[16];
    char rounded[128]; // "" : nothing
    uint64_t n_params, weight_bytes;
    uint8_t id[16];
    /* tokenizer, all inside the image or NULL */
    const uint32_t *token_offset; // (vocab + 1) into token_bytes, or NULL
    const uint8_t *token_bytes;
    const char *tokenizer_json;
    size_t tokenizer_json_len;
    const char *chat_template; // NUL-terminated
    /* run time */
    kwk_kernels kernels; // this model's copy of the table
    int max_ctx;
    int kv_bits;
    struct kwk_kv_pool *kv;
    struct kwk_scratch *scratch;   // the executor's
    _Atomic uint64_t counters[16]; // by kwk_count
};

/* ---- between the loaders and the run time -------------------------------------------------------- */

/* Run-time part of a model whose weights are in place: kernel table (KWKER_ISA), KV pool sized from
 * opts, max_ctx, kv_bits. start.c. On error the model is left for kwk_model_free(). */
int kwk_model_start(kwk_model *m, const kwk_model_options *opts, kwk_error *err);
void kwk_model_stop(kwk_model *m); // frees what kwk_model_start made

/* Run fn(arg, i) for i in 0 … n-1 on the executor's team, blocking; items are taken in ascending
 * order by whichever thread is free. For packing. executor.c */
int kwk_parallel_for(int n, void (*fn)(void *arg, int i), void *arg, kwk_error *err);

#endif
