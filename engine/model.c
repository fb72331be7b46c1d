/* SPDX-License-Identifier: Apache-2.0
 *
 * Models as callers see them: opened from whatever kind of source, described, saved, counted by
 * reference. Each opening is source → recipe → packed image → pointers → run time. Any thread.
 */
#include "engine/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/file.h"
#include "engine/image.h"
#include "engine/kv.h"
#include "engine/pack.h"
#include "engine/recipe.h"
#include "engine/source.h"

/* ---- options --------------------------------------------------------------------------------- */

/* A copy with every field that this build knows; fields that the caller's build lacks are 0. */
static int read_options(kwk_model_options *o, const kwk_model_options *opts, kwk_error *err)
{
    memset(o, 0, sizeof *o);
    if (opts) {
        if (opts->size < offsetof(kwk_model_options, precision) + sizeof o->precision ||
            opts->size > sizeof *o)
            return kwk_fail(err, KWK_EINVAL, "options of %zu bytes, this library knows %zu",
                            opts->size, sizeof *o);
        memcpy(o, opts, opts->size);
    }
    o->size = sizeof *o;
    return KWK_OK;
}

/* ---- from an image to a model ---------------------------------------------------------------- */

static kwk_model *new_model(void)
{
    kwk_model *m = calloc(1, sizeof *m);

    if (m) {
        atomic_init(&m->refs, 1);
        m->image.fd = -1;
    }
    return m;
}

/* Takes the image, on failure too. */
static int from_image(kwk_model **out, kwk_image *img, const kwk_model_options *o, kwk_error *err)
{
    kwk_model *m = new_model();

    if (!m) {
        kwk_image_free(img);
        return kwk_fail(err, KWK_ENOMEM, "model: out of memory");
    }
    m->image = *img;
    int rc = kwk_pack_bind(m, err);
    if (!rc)
        rc = kwk_model_start(m, o, err);
    if (rc < 0) {
        kwk_model_free(m);
        return rc;
    }
    *out = m;
    return KWK_OK;
}

/* Closes the source, on failure too. */
static int from_source(kwk_model **out, kwk_source *s, const kwk_model_options *o, kwk_error *err)
{
    kwk_tokenizer t = {0};
    kwk_image img;
    kwk_recipe r;
    int rc =
        kwk_recipe_from_config(&r, s->config, s->config_len, s->generation, s->generation_len, err);

    if (!rc && s->tokenizer) {
        /* A tokenizer that cannot be expressed is not needed for computing: the model has none. */
        rc = s->tokenizer(s, &t, err);
        if (rc == KWK_EUNSUPPORTED)
            rc = KWK_OK;
    }
    if (!rc)
        rc = kwk_pack_build(&img, s, &r, &t, o, err);
    kwk_tokenizer_free(&t);
    kwk_source_close(s);
    return rc ? rc : from_image(out, &img, o, err);
}

/* ---- packed files ---------------------------------------------------------------------------- */

/* Everything before the data, checked: a calloc'ed copy. */
static int read_front(uint8_t **front, int fd, uint64_t size, kwk_error *err)
{
    kwk_pack_header h;
    int rc;

    if (size < sizeof h)
        return kwk_fail(err, KWK_EFORMAT, "packed model: only %llu bytes",
                        (unsigned long long)size);
    rc = kwk_file_read(fd, &h, sizeof h, 0, "packed model", err);
    if (!rc)
        rc = kwk_pack_check_header(&h, size, err);
    if (rc < 0)
        return rc;
    uint8_t *copy = malloc((size_t)h.data_start);
    if (!copy)
        return kwk_fail(err, KWK_ENOMEM, "packed model: out of memory");
    rc = kwk_file_read(fd, copy, (size_t)h.data_start, 0, "packed model", err);
    /* The header may have changed since: the check must not read beyond the copy. */
    if (!rc && ((const kwk_pack_header *)copy)->data_start != h.data_start)
        rc = kwk_fail(err, KWK_EFORMAT, "packed model: it changed while it was read");
    if (!rc)
        rc = kwk_pack_check_front(copy, size, err);
    if (rc < 0)
        free(copy);
    else
        *front = copy;
    return rc;
}

static int check_precision(const kwk_pack_header *h, const char *wanted, kwk_error *err)
{
    if (wanted && !strcmp(wanted, "balanced"))
        wanted = "int8";
    if (wanted && strcmp(wanted, h->precision) != 0)
        return kwk_fail(err, KWK_EINVAL, "precision '%.40s' of a model packed as %s", wanted,
                        h->precision);
    return KWK_OK;
}

static int from_pack(kwk_model **out, int fd, uint64_t size, const kwk_model_options *o,
                     kwk_error *err)
{
    kwk_image img = {.fd = -1};
    uint8_t *front = NULL;
    int rc = read_front(&front, fd, size, err); // before memory for the rest is taken

    if (!rc)
        rc = check_precision((const kwk_pack_header *)front, o->precision, err);
    free(front);
    if (rc < 0)
        return rc;
    if (kwk_image_is_sealed(fd))
        rc = kwk_image_map(&img, fd, size, err);
    else
        rc = kwk_image_copy(&img, fd, size, o->sealed, o->progress, o->progress_arg, err);
    if (rc < 0)
        return rc;
    rc = kwk_pack_check_front(img.base, img.size, err); // what is used is what was checked
    if (!rc)
        rc = kwk_pack_check_data(&img, err);
    if (rc < 0) {
        kwk_image_free(&img);
        return rc;
    }
    return from_image(out, &img, o, err);
}

/* ---- opening --------------------------------------------------------------------------------- */

typedef enum file_kind { A_DIRECTORY, A_GGUF, A_PACK } file_kind;

/* What a path is; files are left open in *fd. */
static int identify(const char *path, file_kind *kind, int *fd, uint64_t *size, kwk_error *err)
{
    char magic[8] = {0};
    struct stat st;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        *kind = A_DIRECTORY;
        return KWK_OK;
    }
    *fd = kwk_file_open(AT_FDCWD, path, size, err);
    if (*fd < 0)
        return *fd;
    if (*size >= sizeof magic) {
        const int rc = kwk_file_read(*fd, magic, sizeof magic, 0, path, err);
        if (rc < 0) {
            close(*fd);
            return rc;
        }
    }
    if (!memcmp(magic, KWK_PACK_MAGIC, sizeof magic)) {
        *kind = A_PACK;
    } else if (!memcmp(magic, "GGUF", 4)) {
        *kind = A_GGUF;
    } else {
        close(*fd);
        return kwk_fail(err, KWK_EFORMAT, "%s: neither a GGUF file nor a packed model", path);
    }
    return KWK_OK;
}

int kwk_model_open(kwk_model **out, const char *path, const kwk_model_options *opts, kwk_error *err)
{
    kwk_model_options o;
    kwk_source s;
    file_kind kind;
    uint64_t size;
    int fd, rc;

    if (!out || !path)
        return kwk_fail(err, KWK_EINVAL, "out or path is missing");
    if ((rc = read_options(&o, opts, err)) < 0 || (rc = identify(path, &kind, &fd, &size, err)) < 0)
        return rc;
    if (kind == A_PACK) {
        rc = from_pack(out, fd, size, &o, err);
        close(fd);
        return rc;
    }
    rc = kind == A_DIRECTORY ? kwk_source_open_dir(&s, path, err)
                             : kwk_source_open_gguf(&s, path, fd, size, err);
    return rc ? rc : from_source(out, &s, &o, err);
}

int kwk_model_open_fd(kwk_model **out, int fd, const kwk_model_options *opts, kwk_error *err)
{
    kwk_model_options o;
    struct stat st;
    int rc;

    if (!out)
        return kwk_fail(err, KWK_EINVAL, "out is missing");
    if ((rc = read_options(&o, opts, err)) < 0)
        return rc;
    if (fstat(fd, &st) < 0)
        return kwk_fail(err, KWK_EINVAL, "descriptor %d: %s", fd, strerror(errno));
    if (!S_ISREG(st.st_mode)) // a memfd is one, too
        return kwk_fail(err, KWK_EFORMAT, "descriptor %d is no regular file", fd);
    return from_pack(out, fd, (uint64_t)st.st_size, &o, err);
}

int kwk_model_open_memory(kwk_model **out, const char *config_json, size_t n,
                          const kwk_tensor_view *tensors, int n_tensors,
                          const kwk_model_options *opts, kwk_error *err)
{
    kwk_model_options o;
    kwk_source s;
    int rc;

    if (!out)
        return kwk_fail(err, KWK_EINVAL, "out is missing");
    if ((rc = read_options(&o, opts, err)) < 0 ||
        (rc = kwk_source_open_memory(&s, config_json, n, tensors, n_tensors, err)) < 0)
        return rc;
    return from_source(out, &s, &o, err);
}

kwk_model *kwk_model_retain(kwk_model *m)
{
    if (m)
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void kwk_model_free(kwk_model *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    kwk_model_stop(m);
    free(m->layers);
    free(m->inv_freq);
    kwk_image_free(&m->image);
    free(m);
}

/* ---- what a model is ------------------------------------------------------------------------- */

int kwk_model_save(const kwk_model *m, const char *path, kwk_error *err)
{
    if (!m || !path)
        return kwk_fail(err, KWK_EINVAL, "model or path is missing");
    return kwk_image_save(&m->image, path, err);
}

int kwk_model_fd(const kwk_model *m, kwk_error *err)
{
    if (!m)
        return kwk_fail(err, KWK_EINVAL, "model is missing");
    if (m->image.fd < 0)
        return kwk_fail(err, KWK_EUNSUPPORTED, "the model was not loaded into a sealed memfd");
    return m->image.fd;
}

void kwk_model_describe(const kwk_model *m, kwk_model_info *info)
{
    const kwk_recipe *r = &m->recipe;

    *info = (kwk_model_info){
        .model_type = r->model_type,
        .precision = m->precision,
        .rounded = m->rounded[0] ? m->rounded : NULL,
        .n_layers = r->n_layers,
        .hidden = r->hidden,
        .n_heads = r->n_heads,
        .n_kv_heads = r->n_kv_heads,
        .head_dim = r->head_dim,
        .vocab = r->vocab,
        .max_ctx = m->max_ctx,
        .bos = r->bos,
        .pad = r->pad,
        .n_eos = r->n_eos,
        .eos = r->eos,
        .n_params = m->n_params,
        .weight_bytes = m->weight_bytes,
        .packed_bytes = m->image.size,
        .kv_bits = m->kv_bits,
        .kv_bytes_per_slot = (uint64_t)r->n_layers * 2 * (uint64_t)r->n_kv_heads *
                             (uint64_t)r->head_dim * (uint64_t)(m->kv_bits / 8),
        .chat_template = m->chat_template,
        .kv_blocks = (uint64_t)m->kv->n_blocks,
        .kv_blocks_free = (uint64_t)kwk_kv_free_blocks(m->kv),
    };
    memcpy(info->id, m->id, sizeof info->id);
}

int kwk_model_token_bytes(const kwk_model *m, int32_t id, const uint8_t **bytes, size_t *n,
                          kwk_error *err)
{
    if (!m->token_offset)
        return kwk_fail(err, KWK_ENOENT, "the model has no tokenizer");
    if (id < 0 || id >= m->recipe.vocab)
        return kwk_fail(err, KWK_EINVAL, "token %d is not in 0..%d", id, m->recipe.vocab - 1);
    *bytes = m->token_bytes + m->token_offset[id];
    *n = m->token_offset[id + 1] - m->token_offset[id];
    return KWK_OK;
}

int kwk_model_tokenizer_json(const kwk_model *m, const char **json, size_t *n, kwk_error *err)
{
    if (!m->tokenizer_json)
        return kwk_fail(err, KWK_ENOENT, "the model has no tokenizer.json");
    *json = m->tokenizer_json;
    *n = m->tokenizer_json_len;
    return KWK_OK;
}

/* ---- tokenizer of a source ------------------------------------------------------------------- */

static int pack_tokenizer(kwk_tokenizer *t, int fd, uint64_t size, kwk_error *err)
{
    uint8_t *front;
    int rc = read_front(&front, fd, size, err);

    if (rc < 0)
        return rc;
    const kwk_pack_header *h = (const kwk_pack_header *)front;
    if (h->tokenizer_json.size)
        t->json = strdup((const char *)front + h->tokenizer_json.offset);
    if (h->chat_template.size)
        t->chat_template = strdup((const char *)front + h->chat_template.offset);
    if ((h->tokenizer_json.size && !t->json) || (h->chat_template.size && !t->chat_template))
        rc = kwk_fail(err, KWK_ENOMEM, "packed model: out of memory");
    free(front);
    return rc;
}

int kwk_source_tokenizer(const char *path, char **json, char **chat_template, kwk_error *err)
{
    kwk_tokenizer t = {0};
    file_kind kind;
    uint64_t size;
    int fd, rc;

    if (!path || !json || !chat_template)
        return kwk_fail(err, KWK_EINVAL, "an argument is missing");
    rc = identify(path, &kind, &fd, &size, err);
    if (rc < 0)
        return rc;
    if (kind == A_DIRECTORY) {
        rc = kwk_source_dir_tokenizer(path, &t, err);
    } else if (kind == A_PACK) {
        rc = pack_tokenizer(&t, fd, size, err);
        close(fd);
    } else {
        rc = kwk_source_gguf_tokenizer(path, fd, size, &t, err);
    }
    if (!rc && !t.json)
        rc = kwk_fail(err, KWK_ENOENT, "%s: no tokenizer", path);
    if (!rc) {
        *json = t.json;
        *chat_template = t.chat_template;
        t.json = t.chat_template = NULL;
    }
    kwk_tokenizer_free(&t);
    return rc;
}

void kwk_free(void *p)
{
    free(p);
}
