/* SPDX-License-Identifier: Apache-2.0
 *
 * libkwk: a language model in memory, sequences over it, and one batched decode step.
 * The engine's only public header. The library knows no socket, prints nothing, never exits.
 *
 * Threads: a model may be used from any number of threads. A sequence may be used by one thread at
 * a time. Steps of all threads queue to one executor thread of the process, which runs the OpenMP
 * team; a step blocks its caller until done. After fork() the child starts its own executor on
 * first use; models and sequences made before stay usable.
 *
 * Every function that returns int gives KWK_OK (0), a count where it says so, or a negative KWK_E…
 * with the text in *err (which may be NULL). On error, outputs and objects are unchanged unless
 * said otherwise. All …_free functions accept NULL.
 */
#ifndef KWK_ENGINE_KWK_H
#define KWK_ENGINE_KWK_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kwk_model kwk_model; // packed weights + KV block pool; reference-counted
typedef struct kwk_seq kwk_seq;     // one line of decoding: its KV slots

/** Library version, for example "0.1.0". */
KWK_API const char *kwk_version(void);

/* ---- process-wide settings --------------------------------------------------------------------- */

/** Instruction set in use: "ref", "avx2", "avx512", "neon" (best of the CPU, lowered by KWKER_ISA). */
KWK_API const char *kwk_isa(void);

/**
 * Number of threads of the team, the executor included. The default is KWKER_THREADS, else the
 * physical cores that this process may use (CPU affinity and cgroup quota).
 *
 * @param n  1..256, or 0 for the default; takes effect at the next step
 *
 * @return KWK_OK; KWK_EINVAL out of range
 */
KWK_API int kwk_set_threads(int n, kwk_error *err);
KWK_API int kwk_threads(void);

/* ---- models ------------------------------------------------------------------------------------- */

/**
 * Called while a model loads, from the loading thread.
 *
 * @param done, total  bytes of packed weights written so far, and in all
 *
 * @return 0 to go on; anything else cancels the load, which then returns KWK_ECANCELED
 */
typedef int kwk_progress_fn(void *arg, uint64_t done, uint64_t total);

typedef struct kwk_model_options {
    size_t size;           // sizeof(kwk_model_options)
    const char *precision; // NULL: the source's own (quantised GGUF: int8); "float32", "f16",
                           //   "bf16", "int8", "balanced" (= int8), "int4"
    int mix_bits;          // int4: bits of its sensitive tensors, 6 or 8; 0: 6 from a billion
                           //   parameters on, 8 below; not used for other precisions and .kwk
    int max_ctx;           // longest sequence in slots; 0: the model's max_position_embeddings
    uint64_t kv_bytes;     // byte budget of the KV pool; 0: from RAM and the cgroup
    int kv_bits;           // 0: 32 for float formats, 16 for int8 and int4; or 16, 32
    int sealed;            // 1: packed weights in a sealed memfd (kwk_model_fd() works)
    kwk_progress_fn *progress; // may be NULL
    void *progress_arg;
    /* Importance of each input column of a matrix for the integer packers: returns cols
     * non-negative floats borrowed until the load ends, or NULL for equal weights. `name` is the
     * tensor's name in Hugging Face's spelling ("model.layers.0.self_attn.q_proj.weight"). */
    const float *(*importance)(void *arg, const char *name, int cols);
    void *importance_arg;
} kwk_model_options;
#define KWK_MODEL_OPTIONS_INIT {sizeof(kwk_model_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/**
 * Load a model: a Hugging Face directory (config.json + *.safetensors), a .gguf or a .kwk file.
 *
 * @param out   the new model, one reference; unchanged on error
 * @param path  directory or file
 * @param opts  may be NULL for defaults. A .kwk file keeps its own precision: a different
 *              `precision` is KWK_EINVAL.
 *
 * @return KWK_OK
 *         KWK_ENOENT       no such file
 *         KWK_EFORMAT      damaged file (the message says where)
 *         KWK_EUNSUPPORTED unknown model type, config key or tensor type, named in the message
 *         KWK_EINVAL       bad option, or a weight beyond f16's range
 *         KWK_ENOMEM  memory      KWK_EIO  read error      KWK_EPERM  no right to read it
 *         KWK_ECANCELED    the progress callback said so
 */
KWK_API int kwk_model_open(kwk_model **out, const char *path, const kwk_model_options *opts,
                           kwk_error *err);

/** As kwk_model_open, for a .kwk image by descriptor (borrowed). A memfd sealed against writing and
 *  shrinking is mapped; anything else is copied. */
KWK_API int kwk_model_open_fd(kwk_model **out, int fd, const kwk_model_options *opts,
                              kwk_error *err);

/** A tensor in the caller's memory: row-major, C order. */
typedef struct kwk_tensor_view {
    const char *name;  // Hugging Face's name
    const char *dtype; // "F32", "F16", "BF16"
    int n_dims;        // 1..3
    int64_t shape[3];
    const void *data;
} kwk_tensor_view;

/**
 * As kwk_model_open, from memory.
 *
 * @param config_json  the model's config.json text, n bytes
 * @param tensors      borrowed during the call only. A tied head may be left out.
 */
KWK_API int kwk_model_open_memory(kwk_model **out, const char *config_json, size_t n,
                                  const kwk_tensor_view *tensors, int n_tensors,
                                  const kwk_model_options *opts, kwk_error *err);

/** KWK_OK when a model of this config can run; KWK_EUNSUPPORTED with the reason in err; KWK_EFORMAT
 *  no JSON, or a required key is missing. Reads no weights. */
KWK_API int kwk_config_check(const char *config_json, size_t n, kwk_error *err);

KWK_API kwk_model *kwk_model_retain(kwk_model *m); // returns m; NULL stays NULL
KWK_API void kwk_model_free(kwk_model *m);         // drops one reference

/** Write the packed model to `path`: temporary file, fsync, rename; the old file or the new one. */
KWK_API int kwk_model_save(const kwk_model *m, const char *path, kwk_error *err);

/** Descriptor of the sealed memfd that holds the packed image (borrowed), or KWK_EUNSUPPORTED. */
KWK_API int kwk_model_fd(const kwk_model *m, kwk_error *err);

typedef struct kwk_model_info {
    const char *model_type;  // "llama", …
    const char *precision;   // "float32", "f16", "bf16", "int8", "int4"
    const char *rounded;     // NULL: weights are the source's bits; else what was rounded, one line
    int n_layers, hidden, n_heads, n_kv_heads, head_dim, vocab;
    int max_ctx;             // slots of the longest sequence
    int bos, pad;            // token ids, -1: none
    int n_eos;
    const int32_t *eos;      // (n_eos)
    uint64_t n_params;       // logical weights
    uint64_t weight_bytes;   // packed bytes read per token (tied head once, embedding table left out)
    uint64_t packed_bytes;   // packed image in memory
    int kv_bits;
    uint64_t kv_bytes_per_slot;
    uint64_t kv_blocks, kv_blocks_free; // blocks of 32 slots; free: at this moment
    const char *chat_template; // NULL: none; Jinja2 text from the source
    uint8_t id[16];          // identity: hash of recipe and tensor checksums
} kwk_model_info;

/** Facts of a model; pointers are borrowed and live as long as the model. Any thread. */
KWK_API void kwk_model_describe(const kwk_model *m, kwk_model_info *info);

/** UTF-8 bytes that a token stands for (borrowed, not terminated), from the source's tokenizer.
 *  @return KWK_OK; KWK_EINVAL id out of range; KWK_ENOENT the source has no tokenizer */
KWK_API int kwk_model_token_bytes(const kwk_model *m, int32_t id, const uint8_t **bytes,
                                  size_t *n, kwk_error *err);

/** The source's tokenizer as the JSON text of Hugging Face's tokenizer.json, where it has or
 *  implies one (GGUF: rebuilt), borrowed; KWK_ENOENT otherwise. */
KWK_API int kwk_model_tokenizer_json(const kwk_model *m, const char **json, size_t *n,
                                     kwk_error *err);

/**
 * Tokenizer and chat template of a directory, .gguf or .kwk file, without reading its weights.
 *
 * @param json           out, the caller's (kwk_free): tokenizer.json text, NUL-terminated
 * @param chat_template  out, the caller's (kwk_free): NULL when the source has none
 *
 * @return KWK_OK; KWK_ENOENT no file or no tokenizer in it; KWK_EFORMAT; KWK_EUNSUPPORTED a
 *         tokenizer kind that cannot be expressed (named); KWK_ENOMEM; KWK_EIO
 */
KWK_API int kwk_source_tokenizer(const char *path, char **json, char **chat_template,
                                 kwk_error *err);
KWK_API void kwk_free(void *p); // releases what a call handed to its caller

/* ---- sequences ----------------------------------------------------------------------------------
 * A sequence owns KV slots 0 … length-1. Each slot has a validity bit; attention sees valid slots
 * only. Positions (for RoPE) are given per row and never derived from the slot.                    */

KWK_API int kwk_seq_new(kwk_seq **out, kwk_model *m, kwk_error *err); // holds a model reference
KWK_API void kwk_seq_free(kwk_seq *s);

/** A copy that shares all blocks until one of the two writes into them (copy on write). */
KWK_API int kwk_seq_fork(kwk_seq **out, const kwk_seq *s, kwk_error *err);

KWK_API int kwk_seq_length(const kwk_seq *s); // slots in use

/** Drop slots from n_slots on. KWK_EINVAL: n_slots < 0 or > length. */
KWK_API int kwk_seq_truncate(kwk_seq *s, int n_slots, kwk_error *err);

/** Append n invalid slots without computing anything (left padding). KWK_EFULL: past max_ctx. */
KWK_API int kwk_seq_append_holes(kwk_seq *s, int n, kwk_error *err);

/** Set the validity of slots first … first+n-1 from n bytes (0 or 1). KWK_EINVAL: out of range, or
 *  1 for a slot that was never computed or imported. */
KWK_API int kwk_seq_set_valid(kwk_seq *s, int first, int n, const uint8_t *valid, kwk_error *err);

/** Copy one layer's K and V of slots 0 … length-1 out, both float32 (n_kv_heads, length, head_dim),
 *  K after RoPE. Invalid slots that were never computed read as 0. */
KWK_API int kwk_seq_export_kv(const kwk_seq *s, int layer, float *k, float *v, kwk_error *err);

/** Overwrite one layer's K and V of slots first … first+n-1; arrays (n_kv_heads, n, head_dim). The
 *  slots must exist (kwk_seq_append_holes makes them); their validity stays. A slot that holds
 *  nothing yet is 0 in the other layers. KWK_EFULL: too few free blocks; nothing has changed. */
KWK_API int kwk_seq_import_kv(kwk_seq *s, int layer, int first, int n, const float *k,
                              const float *v, kwk_error *err);

/* ---- sampling -----------------------------------------------------------------------------------
 * Semantics and order of Hugging Face's processors: logit_bias, repetition_penalty, min_new_tokens
 * (eos masked), then, if do_sample: temperature, top_k, top_p, min_p, one draw.                     */

typedef struct kwk_logit_bias {
    int32_t id;
    float bias; // finite, or -INFINITY to forbid the token
} kwk_logit_bias;

typedef struct kwk_sampling {
    size_t size;              // sizeof(kwk_sampling)
    int do_sample;            // 0: greedy: the fields of sampling must be in range but do nothing
    float temperature;        // > 0; default 1
    int top_k;                // >= 0, 0: off; keeps ties as HF does
    float top_p;              // 0 < top_p <= 1; 1: off
    float min_p;              // 0 <= min_p <= 1; 0: off
    float repetition_penalty; // > 0; 1: off
    int min_new_tokens;       // >= 0: eos forbidden for the first that many new tokens
    uint64_t seed;            // stream of random numbers: (seed, choice, position of the token)
    uint32_t choice;
    int n_eos;                // ids that min_new_tokens forbids
    const int32_t *eos;
    int n_bias;
    const kwk_logit_bias *bias; // ids in range; no id twice
    int n_logprobs;           // 0..20: most likely tokens to report per choice
} kwk_sampling;
#define KWK_SAMPLING_INIT \
    {sizeof(kwk_sampling), 0, 1.0f, 0, 1.0f, 0.0f, 1.0f, 0, 0, 0, 0, 0, 0, 0, 0}

/** Check every field against its range and the model. KWK_EINVAL names field and value. */
KWK_API int kwk_sampling_check(const kwk_sampling *s, int vocab, kwk_error *err);

typedef struct kwk_logprob {
    int32_t id;
    float logprob; // natural logarithm, of softmax over the raw logits (temperature 1, no filters)
} kwk_logprob;

/** What a choice depends on besides the logits. */
typedef struct kwk_history {
    const int32_t *ids; // prompt + generated so far, for repetition_penalty; ids in range
    int n_ids;
    int n_new;          // generated so far (for min_new_tokens and the random stream)
    const float *noise; // NULL: the seed's stream; else (vocab) float32 exponential draws: the
                        //   token is argmax(p / noise), which equals torch.multinomial
} kwk_history;

/**
 * Choose a token from logits. Pure; any thread.
 *
 * @param logits   (vocab) float32; overwritten with the processed scores
 * @param token    out
 * @param logprob  out, may be NULL: that of the token
 * @param top      out, may be NULL: (n_logprobs), most likely first, filled up with id -1
 *
 * @return KWK_OK; KWK_EINVAL all scores are NaN or -inf
 */
KWK_API int kwk_sample(const kwk_sampling *s, const kwk_history *h, float *logits, int vocab,
                       int32_t *token, float *logprob, kwk_logprob *top, kwk_error *err);

/* ---- the step -----------------------------------------------------------------------------------
 * One call takes a ragged batch of rows; rows of one sequence follow each other in the order of
 * their slots (row i takes slot length + i of its sequence). Logits of a row have the same bits
 * whatever else is in the batch, however the prompt was cut into steps, whatever the threads.      */

typedef struct kwk_row {
    kwk_seq *seq;
    int32_t token;          // 0 <= token < vocab; ignored when embedding is given
    const float *embedding; // NULL, or (hidden) float32 used instead of the token's embedding
    int32_t position;       // RoPE position, >= 0
    uint8_t invalid;        // 1: the slot's validity bit is 0 (a padding row)
    uint8_t want_logits;    // 1: this row's logits go to the next row of kwk_step_args.logits
    const kwk_sampling *sampling; // NULL, or choose a token for this row (checked before)
    const kwk_history *history;   // with sampling: may be NULL for an empty history
    const uint32_t *allowed;      // NULL, or (ceil(vocab / 32)) bit mask of tokens that may be chosen
    /* results of sampling */
    int32_t out_token;    // -1: every score is NaN or -inf, so no token can be chosen
    float out_logprob;    // NaN unless out_top is given or sampling->n_logprobs > 0
    kwk_logprob *out_top; // NULL, or (sampling->n_logprobs); filled up with id -1
} kwk_row;

/** Where a tap listens. */
typedef enum kwk_tap_site {
    KWK_TAP_QKV,    // input of q_proj, k_proj, v_proj  (hidden)
    KWK_TAP_O,      // input of o_proj                  (n_heads * head_dim)
    KWK_TAP_MLP,    // input of gate_proj, up_proj      (hidden)
    KWK_TAP_DOWN,   // input of down_proj               (intermediate)
    KWK_TAP_HIDDEN, // residual stream after the layer  (hidden); layer -1: embeddings
    KWK_TAP_HEAD,   // input of the head: after the final norm, every row (layer = n_layers)
} kwk_tap_site;

/** Called on the executor thread, in the order of computation; must not call the engine. A step of
 *  many rows is computed in pieces, in order; each piece of n_rows rows makes its own calls.
 *  @param x  (n_rows, ld) float32, borrowed for the call; the first `cols` of each row count */
typedef void kwk_tap_fn(void *arg, int layer, kwk_tap_site site, const float *x, size_t ld,
                        int n_rows, int cols);

typedef struct kwk_step_args {
    size_t size;    // sizeof(kwk_step_args)
    kwk_row *rows;  // n_rows of one model
    int n_rows;     // 1..4096
    float *logits;  // (number of rows with want_logits, vocab) float32; may be NULL if there are none
    kwk_tap_fn *tap; // NULL: none
    void *tap_arg;
} kwk_step_args;

/**
 * Run the rows: append their slots, compute, sample.
 *
 * @return KWK_OK
 *         KWK_EINVAL  bad row (index and value in the message); nothing has changed
 *         KWK_EFULL   a sequence would pass max_ctx, or the KV pool has too few free blocks;
 *                     nothing has changed
 *         KWK_ENOMEM  nothing has changed
 */
KWK_API int kwk_step(kwk_model *m, kwk_step_args *args, kwk_error *err);

/** KV blocks that these rows would have to allocate (to plan a batch): a count >= 0. */
KWK_API int kwk_step_blocks(const kwk_model *m, const kwk_row *rows, int n_rows);

/* ---- counters -----------------------------------------------------------------------------------
 * For tests and metrics: what ran since the model was opened. Any thread; monotonic.              */
typedef struct kwk_counters {
    uint64_t steps, rows, max_rows; // max_rows: most rows of one step
    uint64_t gemv, small, gemm;     // calls of each matmul form, per matrix (not per thread)
    uint64_t attn_decode, attn_prefill; // attention work items with 1 row of a sequence, with more
    uint64_t attn_merges;           // merges of splits
    uint64_t blocks_copied;         // copy on write
} kwk_counters;
KWK_API void kwk_model_counters(const kwk_model *m, kwk_counters *c);

#ifdef __cplusplus
}
#endif

#endif
