/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files for tests: a builder for any contents, good or bad, and tiny models written with it.
 * Failures go through cmocka. One thread.
 */
#ifndef KWK_TESTS_SUPPORT_TINY_GGUF_H
#define KWK_TESTS_SUPPORT_TINY_GGUF_H

#include "tests/support/tiny_model.h"

typedef struct tiny_bytes {
    uint8_t *p;
    size_t n, room;
} tiny_bytes;

typedef struct tiny_gguf {
    uint32_t version;           // 0: 3
    uint64_t n_keys, n_tensors; // as counted by the calls; may be changed before the end
    tiny_bytes keys, infos, data;
} tiny_gguf;

void tiny_gguf_u32(tiny_gguf *g, const char *key, uint32_t v);
void tiny_gguf_f32(tiny_gguf *g, const char *key, float v);
void tiny_gguf_bool(tiny_gguf *g, const char *key, int v);
void tiny_gguf_str(tiny_gguf *g, const char *key, const char *v);
void tiny_gguf_strs(tiny_gguf *g, const char *key, int n, const char *const *v);
void tiny_gguf_i32s(tiny_gguf *g, const char *key, int n, const int32_t *v);
void tiny_gguf_f32s(tiny_gguf *g, const char *key, int n, const float *v);

/* dims in GGUF's order: row length first. */
void tiny_gguf_tensor(tiny_gguf *g, const char *name, uint32_t type, int n_dims,
                      const int64_t *dims, const void *data, size_t bytes);

/* The file: free() it. The builder is empty afterwards. */
uint8_t *tiny_gguf_finish(tiny_gguf *g, size_t *n);

/* Keys and tensors of a tiny model as conversion tools write them (q and k of Llama interleaved).
 * The model's dtype decides the tensor type; matrices only: norms and biases are float32. */
void tiny_gguf_model(tiny_gguf *g, const tiny_model *m);

/* The tokenizer of tiny_model_write() as "gpt2" with this pre-tokenizer. */
void tiny_gguf_tokenizer(tiny_gguf *g, const tiny_model *m, const char *pre);

#endif
