/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny random language models for tests: as tensors in memory, and as a Hugging Face directory
 * (config.json, generation_config.json, *.safetensors, optionally a tokenizer). Same options, same
 * bits. Failures go through cmocka. One thread.
 */
#ifndef KWK_TESTS_SUPPORT_TINY_MODEL_H
#define KWK_TESTS_SUPPORT_TINY_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "engine/kwk.h"

typedef struct tiny_options {
    const char *model_type; // "llama", "qwen2", "qwen3"
    int hidden, inter, layers, heads, kv_heads, head_dim, vocab, max_pos;
    int tied, attention_bias, mlp_bias; // the biases: llama only (qwen2 has its own q, k, v)
    const char *dtype;                  // of every tensor: "F32", "F16", "BF16"
    const char *rope; // JSON of "rope_parameters", or NULL: {"rope_theta": 10000.0, …default}
    float scale;      // weights are uniform in +-scale; wide, so that the top two logits differ
    uint64_t seed;
    int shards;         // 1: model.safetensors; more: sharded, with its index
    int tokenizer;      // 1: byte-level tokenizer.json, see below
    const char *config; // more config.json members, '"key": value, ' each, or ""
} tiny_options;
/* No size is a multiple of anything. */
#define TINY_OPTIONS                                                                               \
    {                                                                                              \
        "llama", 40, 37, 2, 4, 2, 10, 99, 512, 1, 0, 0, "F32", NULL, 0.6f, 1, 1, 0, ""             \
    }

typedef struct tiny_tensor {
    char name[96];
    int n_dims;
    int64_t shape[2];
    size_t n;
    float *w;  // (n) values, exact in dtype
    void *raw; // the same in dtype
} tiny_tensor;

typedef struct tiny_model {
    tiny_options o;
    char *config; // text of config.json
    int n_tensors;
    tiny_tensor *tensors;
    kwk_tensor_view *views; // (n_tensors), for kwk_model_open_memory()
} tiny_model;

tiny_model *tiny_model_new(const tiny_options *o);
void tiny_model_free(tiny_model *m);

/* Values of a tensor by its Hugging Face name; fails the test when there is none. */
const float *tiny_model_weights(const tiny_model *m, const char *name);

/* Write all files into the existing directory. bos 1, eos 2, pad 0. With a tokenizer: ids 0..2 are
 * <unk>, <s>, </s>, id 3+i is the ASCII character 32+i (i < 95), id 98 the byte 0xC3; ids beyond
 * that stand for nothing. Its chat template is "{{ messages[0].content }}". */
void tiny_model_write(const tiny_model *m, const char *dir);

/* All three steps: the path of a new temporary directory with the model in it. */
char *tiny_model_dir(const tiny_options *o);

/* A new empty temporary directory; tiny_dir_free() removes it with its files (not recursive). */
char *tiny_dir_new(void);
void tiny_dir_free(char *dir);

/* Whole files. tiny_read adds a NUL that *n does not count. path = dir "/" name. */
void tiny_write(const char *dir, const char *name, const void *data, size_t n);
uint8_t *tiny_read(const char *dir, const char *name, size_t *n);
char *tiny_path(const char *dir, const char *name); // free() it

/* Path of something in the project's data folder (KWK_SHARED, or ../shared beside the source),
 * free() it. Where the folder is absent: NULL, or with CI=true a failed test. */
char *tiny_shared(const char *name);

#endif
