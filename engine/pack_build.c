/* SPDX-License-Identifier: Apache-2.0
 *
 * From a source to a packed image: formats are chosen, the front is laid out, then the tensors are
 * converted one after the other, each by tiles on all cores. Only a few tiles per thread are in
 * memory beside the image. Loading thread; tiles run on the executor's team.
 */
#include <float.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/hash.h"
#include "engine/image.h"
#include "engine/pack.h"
#include "kernels/half.h"

enum {
    WORK_BYTES = 48 << 20,   // temporary memory of all threads together
    SLICE_WEIGHTS = 1 << 19, // per thread between two looks at progress and waiting steps
    WORKERS_MAX = 256,
    BILLION = 1000000000,
};

typedef enum precision { OWN, FLOAT32, F16, BF16, INT8, INT4, PRECISION_END } precision;

static const char *const precision_names[] = {NULL, "float32", "f16", "bf16", "int8", "int4"};

typedef struct builder {
    const kwk_source *source;
    const kwk_model_options *opts;
    kwk_recipe recipe;
    precision precision; // OWN only while every matrix keeps its type
    kwk_format finer;    // of int4's sensitive tensors
    int n;
    kwk_tensor_spec *specs;        // (n)
    const kwk_src_tensor **tensor; // (n) of the source
    kwk_pack_tensor *table;        // (n)
    kwk_image image;
    uint64_t done, total; // for progress, in bytes of the formats planned first
    int rounded;          // some weight is not the source's
    int n_workers;
    uint8_t *work; // (n_workers, work_stride)
    size_t work_stride;
} builder;

/* ---- what is packed as what ------------------------------------------------------------------ */

static int find_tensors(builder *b, kwk_error *err)
{
    for (int i = 0; i < b->n; i++) {
        const kwk_tensor_spec *spec = &b->specs[i];
        char name[KWK_TENSOR_NAME_MAX];
        kwk_tensor_name(spec, name);
        const kwk_src_tensor *t = kwk_source_find(b->source, name);
        if (!t)
            return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' is missing", b->source->what, name);
        if (!t->type)
            return kwk_fail(err, KWK_EUNSUPPORTED,
                            "%s: tensor '%s' has the type %s, which is not "
                            "read",
                            b->source->what, name, t->type_name);
        if (t->n_dims != 1 + spec->matrix || kwk_src_rows(t) != spec->rows ||
            kwk_src_cols(t) != spec->cols)
            return kwk_fail(err, KWK_EFORMAT,
                            "%s: tensor '%s' has the shape (%lld, %lld), the "
                            "config says (%d, %d)",
                            b->source->what, name, (long long)kwk_src_rows(t),
                            (long long)kwk_src_cols(t), spec->rows, spec->cols);
        b->tensor[i] = t;
    }
    return KWK_OK;
}

/* Tensors whose rounding hurts most, kept at 6 or 8 bits beside 4-bit ones. */
static int sensitive(const builder *b, const kwk_tensor_spec *spec)
{
    return spec->role == KWK_ROLE_EMBED || spec->role == KWK_ROLE_HEAD ||
           spec->role == KWK_ROLE_DOWN || spec->role == KWK_ROLE_V || spec->layer == 0 ||
           spec->layer == b->recipe.n_layers - 1;
}

/* Formats that keep every bit: the smallest that is sure to. */
static kwk_format lossless(kwk_weight_kind kind)
{
    return kind == KWK_KIND_F16 ? KWK_F16 : kind == KWK_KIND_BF16 ? KWK_BF16 : KWK_F32;
}

static kwk_format choose_format(const builder *b, int i)
{
    if (!b->specs[i].matrix)
        return KWK_F32;
    switch (b->precision) {
    case F16:
        return KWK_F16;
    case BF16:
        return KWK_BF16;
    case INT8:
        return KWK_I8;
    case INT4:
        return sensitive(b, &b->specs[i]) ? b->finer : KWK_I4;
    case OWN:
    case FLOAT32:
    case PRECISION_END:
        break;
    }
    return lossless(b->tensor[i]->type->kind);
}

/* The most common type among the matrices, by weights; *mixed: there are others. */
static const kwk_weight_type *main_type(const builder *b, int quantised_only, int *mixed)
{
    const kwk_weight_type *best = NULL;
    uint64_t most = 0;

    *mixed = 0;
    for (int k = 0; k < kwk_n_weight_types; k++) {
        const kwk_weight_type *type = &kwk_weight_types[k];
        uint64_t weights = 0;
        if (quantised_only && type->kind != KWK_KIND_BLOCKS)
            continue;
        for (int i = 0; i < b->n; i++)
            if (b->specs[i].matrix && b->tensor[i]->type == type)
                weights += (uint64_t)b->specs[i].rows * (uint64_t)b->specs[i].cols;
        *mixed += weights && best;
        if (weights > most) {
            most = weights;
            best = type;
        }
    }
    return best;
}

static const char *own_name(const builder *b)
{
    int mixed;
    const kwk_weight_type *type = main_type(b, 0, &mixed);

    return mixed || type->kind == KWK_KIND_F32 ? "float32"
           : type->kind == KWK_KIND_F16        ? "f16"
                                               : "bf16";
}

/* Names in the header: precision, and what was rounded. */
static void describe(const builder *b, kwk_pack_header *h)
{
    int mixed;
    const kwk_weight_type *quantised = main_type(b, 1, &mixed);
    const char *stored = b->precision == OWN ? own_name(b) : precision_names[b->precision];

    snprintf(h->precision, sizeof h->precision, "%s", stored);
    if (!b->rounded)
        return;
    if (quantised)
        snprintf(h->rounded, sizeof h->rounded, "source is quantised GGUF %s; stored as %s",
                 quantised->name, stored);
    else
        snprintf(h->rounded, sizeof h->rounded, "source is %s; stored as %s", own_name(b), stored);
}

/* Rounding costs large models less, and their bytes more time. */
static kwk_format finer_format(const builder *b)
{
    uint64_t params = 0; // a tied head is not a tensor of its own

    for (int i = 0; i < b->n; i++)
        params += (uint64_t)b->specs[i].rows * (uint64_t)b->specs[i].cols;
    const int bits = b->opts->mix_bits ? b->opts->mix_bits : params >= BILLION ? 6 : 8;
    return bits == 6 ? KWK_I6 : KWK_I8;
}

static int plan(builder *b, kwk_error *err)
{
    const char *name = b->opts->precision;
    int mixed;

    b->precision = OWN;
    if (name && !strcmp(name, "balanced"))
        name = "int8";
    for (int p = FLOAT32; name && p < PRECISION_END; p++)
        if (!strcmp(name, precision_names[p]))
            b->precision = (precision)p;
    if (name && b->precision == OWN)
        return kwk_fail(err, KWK_EINVAL,
                        "precision '%.40s' is not float32, f16, bf16, int8, "
                        "balanced or int4",
                        name);
    if (b->opts->mix_bits != 0 && b->opts->mix_bits != 6 && b->opts->mix_bits != 8)
        return kwk_fail(err, KWK_EINVAL, "mix_bits %d is not 0, 6 or 8", b->opts->mix_bits);

    b->n = kwk_recipe_n_tensors(&b->recipe);
    b->specs = calloc((size_t)b->n, sizeof *b->specs);
    b->tensor = calloc((size_t)b->n, sizeof *b->tensor);
    b->table = calloc((size_t)b->n, sizeof *b->table);
    if (!b->specs || !b->tensor || !b->table)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", b->source->what);
    kwk_recipe_tensors(&b->recipe, b->specs);
    b->finer = finer_format(b);
    const int rc = find_tensors(b, err);
    if (rc < 0)
        return rc;
    if (b->precision == OWN && main_type(b, 1, &mixed))
        b->precision = INT8;
    return KWK_OK;
}

/* ---- the front ------------------------------------------------------------------------------- */

static uint64_t align(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static kwk_pack_part place(uint64_t *at, uint64_t size)
{
    const kwk_pack_part part = {size ? align(*at, KWK_PACK_ALIGN) : 0, size};

    if (size)
        *at = part.offset + size;
    return part;
}

/* Offsets for exactly vocab tokens: ids beyond the tokenizer's stand for nothing, ids beyond the
 * vocabulary cannot come. */
static void put_token_offsets(uint32_t *out, int vocab, const kwk_tokenizer *t)
{
    for (int i = 0; i <= vocab; i++)
        out[i] = t->offset[i < t->n_tokens ? i : t->n_tokens];
}

static int make_image(builder *b, const kwk_tokenizer *t, kwk_pack_header *h, kwk_error *err)
{
    uint64_t at = sizeof *h, data_start;
    const int vocab = b->recipe.vocab;

    *h = (kwk_pack_header){.version = KWK_PACK_VERSION,
                           .header_bytes = sizeof *h,
                           .n_tensors = (uint32_t)b->n,
                           .recipe = b->recipe};
    memcpy(h->magic, KWK_PACK_MAGIC, sizeof h->magic);
    memcpy(h->build, kwk_pack_build_id(), sizeof h->build);
    h->tensors = place(&at, (uint64_t)b->n * sizeof *b->table);
    if (t->offset) {
        const int last = vocab < t->n_tokens ? vocab : t->n_tokens;
        h->token_offset = place(&at, ((uint64_t)vocab + 1) * sizeof(uint32_t));
        h->token_bytes = place(&at, t->offset[last]);
    }
    h->tokenizer_json = place(&at, t->json ? t->json_len + 1 : 0);
    h->chat_template = place(&at, t->chat_template ? strlen(t->chat_template) + 1 : 0);
    h->data_start = data_start = align(at, KWK_PACK_DATA_ALIGN);
    if (data_start > KWK_PACK_FRONT_MAX)
        return kwk_fail(err, KWK_EFORMAT, "%s: a tokenizer of %llu bytes", b->source->what,
                        (unsigned long long)data_start);

    at = data_start;
    for (int i = 0; i < b->n; i++) {
        b->table[i] = kwk_pack_place(&b->specs[i], choose_format(b, i));
        at = align(at, KWK_PACK_ALIGN) + b->table[i].size;
        b->total += b->table[i].size;
    }
    int rc = kwk_image_new(&b->image, at, b->opts->sealed, err);
    if (!rc)
        rc = kwk_image_commit(&b->image, 0, data_start, err);
    if (rc < 0)
        return rc;
    uint8_t *base = b->image.base;
    if (t->offset) {
        put_token_offsets((uint32_t *)(base + h->token_offset.offset), vocab, t);
        memcpy(base + h->token_bytes.offset, t->bytes, (size_t)h->token_bytes.size);
    }
    if (t->json)
        memcpy(base + h->tokenizer_json.offset, t->json, t->json_len + 1);
    if (t->chat_template)
        memcpy(base + h->chat_template.offset, t->chat_template, (size_t)h->chat_template.size);
    return KWK_OK;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef enum pass {
    FIND_AMAX, // greatest magnitude, for the exponent of integer formats
    TRY_BF16,  // are all values exact in bf16?
    WRITE_TILES,
} pass;

/* One pass over the tiles of a tensor. Worker i uses the i-th piece of the builder's memory. */
typedef struct sweep {
    const builder *b;
    const kwk_src_tensor *tensor;
    const kwk_mat *mat;
    const float *importance;
    pass pass;
    atomic_int next; // tile
    int end;
    atomic_int stop;              // the rest is not needed
    uint32_t amax[WORKERS_MAX];   // bits of the greatest magnitude
    uint8_t inexact[WORKERS_MAX]; // a value that the format does not hold
    int rc[WORKERS_MAX];
    kwk_error err[WORKERS_MAX];
} sweep;

static size_t floats_bytes(const kwk_src_tensor *t, int n_rows)
{
    return align((uint64_t)n_rows * (uint64_t)kwk_src_cols(t) * sizeof(float), KWK_PACK_ALIGN);
}

/* Bits of the greatest magnitude; infinities and NaNs are greater than all numbers. */
static uint32_t greatest(const float *x, size_t n)
{
    int32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(kwk_f32_bits(x[i]) & 0x7fffffff);
        most = bits > most ? bits : most;
    }
    return (uint32_t)most;
}

static int all_bf16(const float *x, size_t n)
{
    uint32_t low = 0;

    for (size_t i = 0; i < n; i++)
        low |= kwk_f32_bits(x[i]);
    return (low & 0xffff) == 0;
}

static int all_f16(const float *x, size_t n)
{
    uint32_t diff = 0;

    for (size_t i = 0; i < n; i++)
        diff |= kwk_f32_bits(kwk_f16_to_f32(kwk_f32_to_f16(x[i]))) ^ kwk_f32_bits(x[i]);
    return diff == 0;
}

/* Whether rounding to the matrix's format changes a value. */
static int loses(const kwk_mat *mat, const kwk_src_tensor *t, const float *x, size_t n)
{
    switch (mat->format) {
    case KWK_F16:
        return t->type->kind != KWK_KIND_F16 && !all_f16(x, n);
    case KWK_BF16:
        return t->type->kind != KWK_KIND_BF16 && !all_bf16(x, n);
    case KWK_I8:
    case KWK_I6:
    case KWK_I4:
        return 1;
    case KWK_F32:
    case KWK_FORMAT_END:
        break;
    }
    return 0;
}

static int check_range(const sweep *s, uint32_t amax, kwk_error *err)
{
    if (amax >= 0x7f800000)
        return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' holds a value that is not finite",
                        s->b->source->what, s->tensor->name);
    if (s->mat->format == KWK_F16 && amax >= 0x477ff000) // 65520 would round to infinity
        return kwk_fail(err, KWK_EINVAL, "%s: tensor '%s' holds %.9g, beyond f16's range",
                        s->b->source->what, s->tensor->name, (double)kwk_bits_f32(amax));
    return KWK_OK;
}

static void sweep_tiles(void *arg, int worker)
{
    sweep *s = arg;
    const size_t cols = (size_t)s->mat->cols;
    float *x = (float *)(s->b->work + (size_t)worker * s->b->work_stride);
    void *scratch = (uint8_t *)x + floats_bytes(s->tensor, KWK_TILE);
    int tile;

    while (!atomic_load(&s->stop) && (tile = atomic_fetch_add(&s->next, 1)) < s->end) {
        const int row = tile * KWK_TILE;
        const int n = s->mat->rows - row < KWK_TILE ? s->mat->rows - row : KWK_TILE;
        int rc =
            kwk_source_read(s->b->source, s->tensor, row, n, x, cols, scratch, &s->err[worker]);
        if (!rc && s->pass == TRY_BF16) {
            if (!all_bf16(x, (size_t)n * cols)) {
                s->inexact[worker] = 1;
                atomic_store(&s->stop, 1);
            }
            continue;
        }
        if (!rc) {
            const uint32_t amax = greatest(x, (size_t)n * cols);
            rc = check_range(s, amax, &s->err[worker]);
            if (amax > s->amax[worker])
                s->amax[worker] = amax;
        }
        if (!rc && s->pass == WRITE_TILES) {
            kwk_pack_tile(s->mat, tile, x, cols, n, s->importance);
            if (!s->inexact[worker])
                s->inexact[worker] = (uint8_t)loses(s->mat, s->tensor, x, (size_t)n * cols);
        }
        if (rc < 0) {
            s->rc[worker] = rc;
            atomic_store(&s->stop, 1);
        }
    }
}

static int report(const builder *b, uint64_t done, kwk_error *err)
{
    if (b->opts->progress && b->opts->progress(b->opts->progress_arg, done, b->total) != 0)
        return kwk_fail(err, KWK_ECANCELED, "loading was canceled");
    return KWK_OK;
}

/* All tiles in slices; *amax, *inexact: over all workers. */
static int run_sweep(builder *b, sweep *s, pass pass, uint64_t weight, uint32_t *amax, int *inexact,
                     kwk_error *err)
{
    const int tiles = s->mat->rows_pad / KWK_TILE;
    const int per_thread = SLICE_WEIGHTS / (KWK_TILE * s->mat->cols) + 1;
    const int slice = per_thread * b->n_workers;
    int rc = KWK_OK;

    s->pass = pass;
    atomic_store(&s->stop, 0);
    memset(s->amax, 0, sizeof s->amax);
    memset(s->inexact, 0, sizeof s->inexact);
    memset(s->rc, 0, sizeof s->rc);
    for (int first = 0; first < tiles && !rc && !atomic_load(&s->stop); first += slice) {
        atomic_store(&s->next, first);
        s->end = tiles - first < slice ? tiles : first + slice;
        rc = kwk_parallel_for(b->n_workers, sweep_tiles, s, err);
        for (int i = 0; i < b->n_workers && !rc; i++) {
            rc = s->rc[i];
            if (rc < 0 && err)
                *err = s->err[i];
        }
        if (!rc)
            rc = report(b, b->done + weight * (uint64_t)s->end / (uint64_t)tiles, err);
    }
    *amax = 0;
    *inexact = 0;
    for (int i = 0; i < b->n_workers; i++) {
        *amax = s->amax[i] > *amax ? s->amax[i] : *amax;
        *inexact |= s->inexact[i];
    }
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int pack_vector(builder *b, int i, kwk_error *err)
{
    const kwk_src_tensor *t = b->tensor[i];
    float *dst = (float *)(b->image.base + b->table[i].offset);
    const size_t n = (size_t)b->table[i].cols;
    const int rc = kwk_source_read(b->source, t, 0, 1, dst, n, b->work, err);

    if (!rc && greatest(dst, n) >= 0x7f800000)
        return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' holds a value that is not finite",
                        b->source->what, t->name);
    return rc;
}

/* What the caller says about the columns of a matrix: NULL, or cols numbers that a packer can use.
 */
static int ask_importance(const builder *b, sweep *s, kwk_error *err)
{
    if (!b->opts->importance)
        return KWK_OK;
    s->importance = b->opts->importance(b->opts->importance_arg, s->tensor->name, s->mat->cols);
    for (int i = 0; s->importance && i < s->mat->cols; i++)
        if (!(s->importance[i] >= 0 && s->importance[i] <= FLT_MAX))
            return kwk_fail(err, KWK_EINVAL, "importance of column %d of '%s' is %g", i,
                            s->tensor->name, (double)s->importance[i]);
    return KWK_OK;
}

static int pack_matrix(builder *b, int i, sweep *s, kwk_error *err)
{
    kwk_pack_tensor *t = &b->table[i];
    const uint64_t planned = t->size, at = t->offset;
    kwk_mat mat = {.rows = t->rows,
                   .cols = t->cols,
                   .rows_pad = t->rows_pad,
                   .cols_pad = t->cols_pad,
                   .data = b->image.base + at};
    uint32_t amax;
    int inexact, rc = KWK_OK;

    mat.format = (kwk_format)t->format;
    s->b = b;
    s->tensor = b->tensor[i];
    s->mat = &mat;
    s->importance = NULL;
    if (mat.format == KWK_F32) { // the same bits in half the bytes, where they fit
        rc = run_sweep(b, s, TRY_BF16, 0, &amax, &inexact, err);
        if (!inexact)
            mat.format = KWK_BF16;
    } else if (kwk_format_is_int(mat.format)) {
        rc = run_sweep(b, s, FIND_AMAX, 0, &amax, &inexact, err);
        mat.exponent = kwk_pack_exponent(mat.format, kwk_bits_f32(amax));
        if (!rc)
            rc = ask_importance(b, s, err);
    }
    if (rc < 0)
        return rc;
    *t = kwk_pack_place(&b->specs[i], mat.format);
    t->offset = at;
    t->exponent = mat.exponent;
    rc = kwk_image_commit(&b->image, at, at + t->size, err);
    if (!rc)
        rc = run_sweep(b, s, WRITE_TILES, planned, &amax, &inexact, err);
    if (inexact)
        b->rounded = 1;
    return rc;
}

static int pack_tensors(builder *b, uint64_t *end, kwk_error *err)
{
    sweep *s = calloc(1, sizeof *s);
    uint64_t at = *end;
    int rc = KWK_OK;

    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", b->source->what);
    for (int i = 0; i < b->n && !rc; i++) {
        kwk_pack_tensor *t = &b->table[i];
        const uint64_t planned = t->size;
        t->offset = at = align(at, KWK_PACK_ALIGN);
        if (b->specs[i].matrix)
            rc = pack_matrix(b, i, s, err);
        else if (!(rc = kwk_image_commit(&b->image, at, at + t->size, err)))
            rc = pack_vector(b, i, err);
        t->sum = rc ? 0 : kwk_hash64(b->image.base + t->offset, (size_t)t->size, 0);
        at += t->size;
        b->done += planned;
    }
    *end = at;
    free(s);
    return rc;
}

/* Memory for the tiles in work: as many threads as fit the budget. */
static int make_work(builder *b, kwk_error *err)
{
    size_t most = 0;

    for (int i = 0; i < b->n; i++) {
        const int rows = b->specs[i].matrix ? KWK_TILE : 1;
        const size_t bytes =
            floats_bytes(b->tensor[i], rows) + kwk_source_scratch(b->tensor[i], rows);
        most = bytes > most ? bytes : most;
    }
    b->work_stride = align(most, 4096);
    b->n_workers = kwk_threads();
    if (b->n_workers > WORKERS_MAX)
        b->n_workers = WORKERS_MAX;
    while (b->n_workers > 1 && (size_t)b->n_workers * b->work_stride > WORK_BYTES)
        b->n_workers--;
    b->work = aligned_alloc(4096, (size_t)b->n_workers * b->work_stride);
    return b->work ? KWK_OK : kwk_fail(err, KWK_ENOMEM, "%s: out of memory", b->source->what);
}

int kwk_pack_build(kwk_image *img, const kwk_source *source, const kwk_recipe *r,
                   const kwk_tokenizer *t, const kwk_model_options *o, kwk_error *err)
{
    builder b = {.source = source, .opts = o, .recipe = *r, .image = {.fd = -1}};
    kwk_pack_header h;
    int rc = plan(&b, err);

    if (!rc)
        rc = make_image(&b, t, &h, err);
    if (!rc)
        rc = make_work(&b, err);
    if (!rc)
        rc = report(&b, 0, err);
    uint64_t end = rc ? 0 : h.data_start;
    if (!rc)
        rc = pack_tensors(&b, &end, err);
    if (!rc)
        rc = report(&b, b.total, err);
    if (!rc) {
        describe(&b, &h);
        h.size = end;
        kwk_pack_id(h.id, r, b.table, b.n);
        memcpy(b.image.base + h.tensors.offset, b.table, (size_t)h.tensors.size);
        memcpy(b.image.base, &h, sizeof h);
        h.front_sum = kwk_pack_front_sum(b.image.base, h.data_start);
        memcpy(b.image.base, &h, sizeof h);
        rc = kwk_image_finish(&b.image, end, err);
    }
    if (rc < 0)
        kwk_image_free(&b.image);
    else
        *img = b.image;
    free(b.work);
    free(b.table);
    free(b.tensor);
    free(b.specs);
    return rc;
}
