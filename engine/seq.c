/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences: block tables, validity bits, fork with copy on write, truncate, holes, import and
 * export. Knows nothing of steps. Runs on the caller's thread, or on the executor during a step.
 *
 * Blocks are not cleared when they are handed out, so a slot counts only once it has been written:
 * nothing of an earlier owner can be seen, exported or attended to.
 */
#include "engine/seq.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv.h"
#include "kernels/half.h"

static int blocks_of(int n_slots)
{
    return (n_slots + KWK_BLOCK - 1) / KWK_BLOCK;
}

int kwk_seq_new(kwk_seq **out, kwk_model *m, kwk_error *err)
{
    kwk_seq *s;

    if (!m)
        return kwk_fail(err, KWK_EINVAL, "model is NULL");
    s = calloc(1, sizeof *s);
    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "no memory for a sequence");
    s->model = kwk_model_retain(m);
    *out = s;
    return KWK_OK;
}

void kwk_seq_free(kwk_seq *s)
{
    if (!s)
        return;
    kwk_kv_release(s->model->kv, s->blocks, s->n_blocks);
    free(s->blocks);
    free(s->valid);
    free(s->written);
    kwk_model_free(s->model);
    free(s);
}

int kwk_seq_reserve(kwk_seq *s, int n_slots, kwk_error *err)
{
    const int need = blocks_of(n_slots);
    int cap = s->cap ? s->cap : 8;

    if (need <= s->cap)
        return KWK_OK;
    while (cap < need)
        cap *= 2;
    int32_t *blocks = realloc(s->blocks, (size_t)cap * sizeof *blocks);
    if (blocks)
        s->blocks = blocks;
    uint32_t *valid = realloc(s->valid, (size_t)cap * sizeof *valid);
    if (valid)
        s->valid = valid;
    uint32_t *written = realloc(s->written, (size_t)cap * sizeof *written);
    if (written)
        s->written = written;
    if (!blocks || !valid || !written)
        return kwk_fail(err, KWK_ENOMEM, "no memory for a table of %d blocks", cap);
    s->cap = cap;
    return KWK_OK;
}

/* Grow to n_slots; new blocks are null, new slots neither written nor valid. */
static void grow(kwk_seq *s, int n_slots)
{
    for (const int n = blocks_of(n_slots); s->n_blocks < n; s->n_blocks++) {
        s->blocks[s->n_blocks] = KWK_KV_NULL;
        s->valid[s->n_blocks] = s->written[s->n_blocks] = 0;
    }
    s->length = n_slots;
}

int kwk_seq_fork(kwk_seq **out, const kwk_seq *s, kwk_error *err)
{
    kwk_seq *f = NULL;
    int rc;

    if (!s)
        return kwk_fail(err, KWK_EINVAL, "sequence is NULL");
    rc = kwk_seq_new(&f, s->model, err);
    if (rc == KWK_OK)
        rc = kwk_seq_reserve(f, s->length, err);
    if (rc != KWK_OK) {
        kwk_seq_free(f);
        return rc;
    }
    grow(f, s->length);
    if (s->n_blocks) {
        memcpy(f->blocks, s->blocks, (size_t)s->n_blocks * sizeof *f->blocks);
        memcpy(f->valid, s->valid, (size_t)s->n_blocks * sizeof *f->valid);
        memcpy(f->written, s->written, (size_t)s->n_blocks * sizeof *f->written);
    }
    kwk_kv_retain(f->model->kv, f->blocks, f->n_blocks);
    *out = f;
    return KWK_OK;
}

int kwk_seq_length(const kwk_seq *s)
{
    return s ? s->length : 0;
}

int kwk_seq_truncate(kwk_seq *s, int n_slots, kwk_error *err)
{
    if (!s)
        return kwk_fail(err, KWK_EINVAL, "sequence is NULL");
    if (n_slots < 0 || n_slots > s->length)
        return kwk_fail(err, KWK_EINVAL, "n_slots %d is not in 0..%d", n_slots, s->length);
    const int keep = blocks_of(n_slots);
    if (s->n_blocks > keep)
        kwk_kv_release(s->model->kv, s->blocks + keep, s->n_blocks - keep);
    s->n_blocks = keep;
    s->length = n_slots;
    if (keep) { // the dropped slots of the last block
        const uint32_t bits = kwk_seq_bits(keep - 1, 0, n_slots);
        s->valid[keep - 1] &= bits;
        s->written[keep - 1] &= bits;
    }
    return KWK_OK;
}

int kwk_seq_append_holes(kwk_seq *s, int n, kwk_error *err)
{
    int rc;

    if (!s)
        return kwk_fail(err, KWK_EINVAL, "sequence is NULL");
    if (n < 0)
        return kwk_fail(err, KWK_EINVAL, "%d holes", n);
    if (n > s->model->max_ctx - s->length)
        return kwk_fail(err, KWK_EFULL, "%d slots and %d holes pass the context of %d", s->length,
                        n, s->model->max_ctx);
    rc = kwk_seq_reserve(s, s->length + n, err);
    if (rc == KWK_OK)
        grow(s, s->length + n);
    return rc;
}

static int check_range(const kwk_seq *s, int first, int n, kwk_error *err)
{
    if (!s)
        return kwk_fail(err, KWK_EINVAL, "sequence is NULL");
    if (first < 0 || n < 0 || first > s->length || n > s->length - first)
        return kwk_fail(err, KWK_EINVAL, "slots %d and the next %d are not in 0..%d", first, n,
                        s->length);
    return KWK_OK;
}

int kwk_seq_set_valid(kwk_seq *s, int first, int n, const uint8_t *valid, kwk_error *err)
{
    const int rc = check_range(s, first, n, err);

    if (rc != KWK_OK)
        return rc;
    for (int i = 0; i < n; i++) {
        const int slot = first + i;
        if (valid[i] > 1)
            return kwk_fail(err, KWK_EINVAL, "validity %d of slot %d is not 0 or 1", valid[i],
                            slot);
        if (valid[i] && !(s->written[slot / KWK_BLOCK] >> slot % KWK_BLOCK & 1))
            return kwk_fail(err, KWK_EINVAL, "slot %d was never computed or imported", slot);
    }
    for (int i = 0; i < n; i++) {
        const int slot = first + i;
        const uint32_t bit = (uint32_t)1 << slot % KWK_BLOCK;
        if (valid[i])
            s->valid[slot / KWK_BLOCK] |= bit;
        else
            s->valid[slot / KWK_BLOCK] &= ~bit;
    }
    return KWK_OK;
}

int kwk_seq_blocks_needed(const kwk_seq *s, int first, int n)
{
    int need = 0;

    if (n <= 0)
        return 0;
    for (int b = first / KWK_BLOCK; b < blocks_of(first + n); b++)
        need += b >= s->n_blocks || kwk_kv_is_shared(s->model->kv, s->blocks[b]);
    return need;
}

int kwk_seq_place_blocks(kwk_seq *s, int first, int n, const int32_t **fresh)
{
    kwk_kv_pool *pool = s->model->kv;
    int copied = 0;

    if (n <= 0)
        return 0;
    for (int b = first / KWK_BLOCK; b < blocks_of(first + n); b++) {
        if (b >= s->n_blocks) {
            assert(b == s->n_blocks);
            s->n_blocks++;
            s->valid[b] = s->written[b] = 0;
        } else if (!kwk_kv_is_shared(pool, s->blocks[b])) {
            continue;
        } else if (s->blocks[b] != KWK_KV_NULL) {
            if (s->written[b]) {
                memcpy(kwk_kv_k(pool, **fresh, 0, 0), kwk_kv_k(pool, s->blocks[b], 0, 0),
                       pool->block_bytes);
                copied++;
            }
            kwk_kv_release(pool, &s->blocks[b], 1);
        }
        s->blocks[b] = *(*fresh)++;
    }
    return copied;
}

void kwk_seq_append(kwk_seq *s, int n)
{
    s->length += n;
    assert(s->n_blocks == blocks_of(s->length));
}

void kwk_seq_mark_written(kwk_seq *s, int slot, int valid)
{
    const uint32_t bit = (uint32_t)1 << slot % KWK_BLOCK;

    s->written[slot / KWK_BLOCK] |= bit;
    if (valid)
        s->valid[slot / KWK_BLOCK] |= bit;
}

/* ---- import, export ------------------------------------------------------------------------- */

static float element(const kwk_kv_pool *p, const uint8_t *at, size_t i)
{
    uint16_t half;
    float f;

    if (p->elem == 2) {
        memcpy(&half, at + 2 * i, sizeof half);
        return kwk_f16_to_f32(half);
    }
    memcpy(&f, at + 4 * i, sizeof f);
    return f;
}

int kwk_seq_export_kv(const kwk_seq *s, int layer, float *k, float *v, kwk_error *err)
{
    if (!s)
        return kwk_fail(err, KWK_EINVAL, "sequence is NULL");
    const kwk_kv_pool *p = s->model->kv;
    if (layer < 0 || layer >= p->n_layers)
        return kwk_fail(err, KWK_EINVAL, "layer %d is not in 0..%d", layer, p->n_layers - 1);
    const size_t dim = (size_t)p->dim;
    for (int h = 0; h < p->n_heads; h++)
        for (int slot = 0; slot < s->length; slot++, k += dim, v += dim) {
            const int b = slot / KWK_BLOCK;
            const size_t j = (size_t)(slot % KWK_BLOCK);
            const uint8_t *kb = kwk_kv_k(p, s->blocks[b], layer, h);
            const uint8_t *vb = kwk_kv_v(p, s->blocks[b], layer, h);

            if (!(s->written[b] >> j & 1)) {
                memset(k, 0, dim * sizeof *k);
                memset(v, 0, dim * sizeof *v);
                continue;
            }
            for (size_t d = 0; d < dim; d++) {
                k[d] = element(p, kb, d * KWK_BLOCK + j);
                v[d] = element(p, vb, j * dim + d);
            }
        }
    return KWK_OK;
}

/* A slot that is imported for one layer must not show leftovers in the others. */
static void clear_slot(const kwk_seq *s, int slot, const float *zeros)
{
    const kwk_kv_pool *p = s->model->kv;
    const kwk_kernels *kn = &s->model->kernels;
    kwk_kv_store_f32_fn *store = p->elem == 2 ? kn->kv_store_f16 : kn->kv_store_f32;
    const int32_t block = s->blocks[slot / KWK_BLOCK];

    for (int l = 0; l < p->n_layers; l++)
        for (int h = 0; h < p->n_heads; h++)
            store(kwk_kv_k(p, block, l, h), kwk_kv_v(p, block, l, h), zeros, zeros, p->dim,
                  slot % KWK_BLOCK);
}

int kwk_seq_import_kv(kwk_seq *s, int layer, int first, int n, const float *k, const float *v,
                      kwk_error *err)
{
    static const float zeros[KWK_HEAD_DIM_MAX];
    int32_t *fresh = NULL;
    int rc = check_range(s, first, n, err);

    if (rc != KWK_OK)
        return rc;
    kwk_model *m = s->model;
    kwk_kv_pool *p = m->kv;
    kwk_kv_store_f32_fn *store = p->elem == 2 ? m->kernels.kv_store_f16 : m->kernels.kv_store_f32;
    if (layer < 0 || layer >= p->n_layers)
        return kwk_fail(err, KWK_EINVAL, "layer %d is not in 0..%d", layer, p->n_layers - 1);

    const int need = kwk_seq_blocks_needed(s, first, n);
    if (need) {
        fresh = malloc((size_t)need * sizeof *fresh);
        if (!fresh)
            return kwk_fail(err, KWK_ENOMEM, "no memory for a list of %d blocks", need);
        if (kwk_kv_alloc(p, fresh, need) != KWK_OK) {
            rc = kwk_fail(err, KWK_EFULL, "%d KV blocks are needed and %d are free", need,
                          kwk_kv_free_blocks(p));
            goto out;
        }
        const int32_t *next = fresh;
        const int copied = kwk_seq_place_blocks(s, first, n, &next);
        kwk_kv_release(p, next, (int)(fresh + need - next));
        atomic_fetch_add(&m->counters[KWK_COUNT_BLOCKS_COPIED], (uint64_t)copied);
    }
    const size_t dim = (size_t)p->dim;
    for (int slot = first; slot < first + n; slot++) {
        const int b = slot / KWK_BLOCK, j = slot % KWK_BLOCK;
        if (!(s->written[b] >> j & 1)) {
            clear_slot(s, slot, zeros);
            kwk_seq_mark_written(s, slot, 0);
        }
        for (int h = 0; h < p->n_heads; h++) {
            const size_t at = ((size_t)h * (size_t)n + (size_t)(slot - first)) * dim;
            store(kwk_kv_k(p, s->blocks[b], layer, h), kwk_kv_v(p, s->blocks[b], layer, h), k + at,
                  v + at, p->dim, j);
        }
    }
out:
    free(fresh);
    return rc;
}
