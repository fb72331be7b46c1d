/* SPDX-License-Identifier: Apache-2.0
 *
 * Where weights come from: one view over a Hugging Face directory, a GGUF file and tensors in the
 * caller's memory. A source lists tensors under Hugging Face's names, gives rows as float32, and
 * carries the model's config.json (GGUF: rebuilt from its metadata) and tokenizer. It knows no
 * recipe and no packed format. Opening and closing: one thread; reading rows: any number.
 */
#ifndef KWK_ENGINE_SOURCE_H
#define KWK_ENGINE_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/kwk.h"
#include "engine/recipe.h"
#include "engine/tokenizer.h"
#include "engine/weight_type.h"

enum {
    KWK_SRC_DIMS = 4,
    KWK_SRC_MAX_TENSORS = 1 << 17,
};

typedef struct kwk_src_tensor {
    char *name;                  // Hugging Face's
    const kwk_weight_type *type; // NULL: cannot be read; type_name says what it is
    const char *type_name;       // static
    int n_dims;                  // 1..KWK_SRC_DIMS
    int64_t shape[KWK_SRC_DIMS]; // >= 0; product checked to fit
    /* where its bytes lie, checked against the file's size */
    const uint8_t *data; // in memory, or NULL: in the file
    int fd;
    uint64_t offset;
    /* GGUF's Llama files store the rows of q and k with the two halves of each head interleaved,
     * for another RoPE layout. Rows per head (undone while reading), or 0. */
    int interleaved;
} kwk_src_tensor;

typedef struct kwk_source kwk_source;
struct kwk_source {
    const char *what; // the path, for messages; borrowed
    char *config;     // config.json's text
    size_t config_len;
    char *generation; // generation_config.json's text, or NULL
    size_t generation_len;
    kwk_src_tensor *tensors; // sorted by name once opened
    size_t n_tensors, room;
    int (*tokenizer)(const kwk_source *, kwk_tokenizer *out, kwk_error *err); // or NULL: has none
    void (*close)(kwk_source *); // releases what the reader keeps in `reader`
    void *reader;
};

/* Open: path is kept (borrowed). The memory source borrows text and data too. */
int kwk_source_open_dir(kwk_source *s, const char *path, kwk_error *err);
int kwk_source_open_gguf(kwk_source *s, const char *path, int fd, uint64_t size,
                         kwk_error *err); // takes fd, on failure too
int kwk_source_open_memory(kwk_source *s, const char *config, size_t n,
                           const kwk_tensor_view *tensors, int n_tensors, kwk_error *err);
void kwk_source_close(kwk_source *s); // a zeroed source is closed

/* Tokenizer and chat template alone, whatever the model; what there is none of stays NULL. */
int kwk_source_dir_tokenizer(const char *path, kwk_tokenizer *out, kwk_error *err);
int kwk_source_gguf_tokenizer(const char *path, int fd, uint64_t size, kwk_tokenizer *out,
                              kwk_error *err); // takes fd

/* Tensor by name, or NULL. */
const kwk_src_tensor *kwk_source_find(const kwk_source *s, const char *name);

/* A tensor's last dimension is its row length; the others together count rows. */
int64_t kwk_src_cols(const kwk_src_tensor *t);
int64_t kwk_src_rows(const kwk_src_tensor *t);

/* Bytes of scratch that reading n_rows (<= 32 and <= its rows) of t needs. */
size_t kwk_source_scratch(const kwk_src_tensor *t, int n_rows);

/**
 * Rows row0 … row0 + n_rows - 1 as float32 at dst, ld floats apart.
 *
 * @param scratch  kwk_source_scratch() bytes
 *
 * @return KWK_OK; KWK_EIO; KWK_EFORMAT the file became shorter; KWK_EUNSUPPORTED its type
 */
int kwk_source_read(const kwk_source *s, const kwk_src_tensor *t, int64_t row0, int n_rows,
                    float *dst, size_t ld, void *scratch, kwk_error *err);

/* ---- for the readers ------------------------------------------------------------------------- */

/* Append a tensor; t->name (n bytes) is copied, the shape's product checked. Returns KWK_OK,
 * KWK_EFORMAT (shape), KWK_ENOMEM, or KWK_EFORMAT for too many. */
int kwk_source_add(kwk_source *s, const kwk_src_tensor *t, const char *name, size_t name_len,
                   kwk_error *err);

/* Sort by name; KWK_EFORMAT: a name appears twice. */
int kwk_source_sort(kwk_source *s, kwk_error *err);

/* Bytes of a tensor of a readable type, or 0: cols is no multiple of the type's block. */
uint64_t kwk_src_bytes(const kwk_src_tensor *t);

/* Append the tensors of one safetensors file of `size` bytes (safetensors.c). */
int kwk_safetensors_read(kwk_source *s, int fd, uint64_t size, const char *what, kwk_error *err);

#endif
