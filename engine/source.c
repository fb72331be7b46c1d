/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts all sources share: the list of tensors and reading rows out of it. After opening,
 * everything here only reads, so any number of threads may.
 */
#include "engine/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/file.h"

void kwk_source_close(kwk_source *s)
{
    if (s->close)
        s->close(s);
    for (size_t i = 0; i < s->n_tensors; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    free(s->config);
    free(s->generation);
    memset(s, 0, sizeof *s);
}

/* ---- the list -------------------------------------------------------------------------------- */

int kwk_source_add(kwk_source *s, const kwk_src_tensor *t, const char *name, size_t name_len,
                   kwk_error *err)
{
    int64_t n = 4; // so that four bytes per weight also fit

    if (name_len == 0 || name_len > 512)
        return kwk_fail(err, KWK_EFORMAT, "%s: a tensor name of %zu bytes", s->what, name_len);
    for (int i = 0; i < t->n_dims; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(n, t->shape[i], &n) || n > INT64_MAX / 64)
            return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%.*s' is impossibly large", s->what,
                            (int)name_len, name);
    if (s->n_tensors == KWK_SRC_MAX_TENSORS)
        return kwk_fail(err, KWK_EFORMAT, "%s: more than %d tensors", s->what, KWK_SRC_MAX_TENSORS);
    if (s->n_tensors == s->room) {
        const size_t room = s->room ? 2 * s->room : 64;
        kwk_src_tensor *more = realloc(s->tensors, room * sizeof *more);
        if (!more)
            return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", s->what);
        s->tensors = more;
        s->room = room;
    }
    kwk_src_tensor *new = &s->tensors[s->n_tensors];
    *new = *t;
    new->name = strndup(name, name_len);
    if (!new->name)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", s->what);
    s->n_tensors++;
    return KWK_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kwk_src_tensor *)a)->name, ((const kwk_src_tensor *)b)->name);
}

int kwk_source_sort(kwk_source *s, kwk_error *err)
{
    if (s->n_tensors)
        qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' appears twice", s->what,
                            s->tensors[i].name);
    return KWK_OK;
}

const kwk_src_tensor *kwk_source_find(const kwk_source *s, const char *name)
{
    size_t lo = 0, hi = s->n_tensors;

    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        const int order = strcmp(name, s->tensors[mid].name);
        if (order == 0)
            return &s->tensors[mid];
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* ---- rows ------------------------------------------------------------------------------------ */

int64_t kwk_src_cols(const kwk_src_tensor *t)
{
    return t->shape[t->n_dims - 1];
}

int64_t kwk_src_rows(const kwk_src_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->n_dims - 1; i++)
        n *= t->shape[i];
    return n;
}

static uint64_t row_bytes(const kwk_src_tensor *t)
{
    return (uint64_t)(kwk_src_cols(t) / t->type->block) * (uint64_t)t->type->bytes;
}

uint64_t kwk_src_bytes(const kwk_src_tensor *t)
{
    return kwk_src_cols(t) % t->type->block ? 0 : row_bytes(t) * (uint64_t)kwk_src_rows(t);
}

/* First and last + 1 of the stored rows that hold rows row0 … row0 + n - 1. */
static void stored_range(const kwk_src_tensor *t, int64_t row0, int n, int64_t *first, int64_t *end)
{
    *first = row0;
    *end = row0 + n;
    if (t->interleaved) { // whole heads
        *first -= *first % t->interleaved;
        *end += (t->interleaved - *end % t->interleaved) % t->interleaved;
    }
}

size_t kwk_source_scratch(const kwk_src_tensor *t, int n_rows)
{
    if (!t->type || t->data)
        return 0;
    if (t->n_dims == 1 && t->interleaved)
        return (size_t)row_bytes(t) + (size_t)kwk_src_cols(t) * sizeof(float);
    /* n rows touch at most n + 2 (heads - 1) stored ones. */
    const int64_t rows = n_rows + (t->interleaved ? 2 * (int64_t)(t->interleaved - 1) : 0);
    return (size_t)(row_bytes(t) * (uint64_t)rows);
}

/* Row p * half + j of a head is stored as 2 j + p. */
static int64_t stored_row(const kwk_src_tensor *t, int64_t row)
{
    if (!t->interleaved)
        return row;
    const int64_t in_head = row % t->interleaved, half = t->interleaved / 2;
    return row - in_head + 2 * (in_head % half) + in_head / half;
}

/* A bias of interleaved heads: its elements are the rows. */
static int read_interleaved_vector(const kwk_source *s, const kwk_src_tensor *t, float *dst,
                                   uint8_t *scratch, kwk_error *err)
{
    const size_t bytes = (size_t)row_bytes(t), n = (size_t)kwk_src_cols(t);
    uint8_t *stored = scratch + bytes; // unaligned floats
    const int rc = kwk_file_read(t->fd, scratch, bytes, t->offset, s->what, err);

    if (rc < 0)
        return rc;
    t->type->decode(dst, scratch, n);
    memcpy(stored, dst, n * sizeof *dst);
    for (size_t i = 0; i < n; i++)
        memcpy(&dst[i], stored + (size_t)stored_row(t, (int64_t)i) * sizeof *dst, sizeof *dst);
    return KWK_OK;
}

int kwk_source_read(const kwk_source *s, const kwk_src_tensor *t, int64_t row0, int n_rows,
                    float *dst, size_t ld, void *scratch, kwk_error *err)
{
    int64_t first, end;
    const uint8_t *raw;

    if (!t->type)
        return kwk_fail(err, KWK_EUNSUPPORTED, "%s: tensor '%s' has the type %s, which is not read",
                        s->what, t->name, t->type_name);
    assert(row0 >= 0 && n_rows >= 0 && row0 + n_rows <= kwk_src_rows(t));
    if (t->n_dims == 1 && t->interleaved)
        return read_interleaved_vector(s, t, dst, scratch, err);
    const uint64_t stride = row_bytes(t);
    stored_range(t, row0, n_rows, &first, &end);
    if (t->data) {
        raw = t->data + stride * (uint64_t)first;
    } else {
        const int rc = kwk_file_read(t->fd, scratch, (size_t)(stride * (uint64_t)(end - first)),
                                     t->offset + stride * (uint64_t)first, s->what, err);
        if (rc < 0)
            return rc;
        raw = scratch;
    }
    for (int i = 0; i < n_rows; i++) {
        const int64_t row = stored_row(t, row0 + i);
        t->type->decode(dst + (size_t)i * ld, raw + stride * (uint64_t)(row - first),
                        (size_t)kwk_src_cols(t));
    }
    return KWK_OK;
}
