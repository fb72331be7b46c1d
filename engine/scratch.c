/* SPDX-License-Identifier: Apache-2.0
 *
 * The working memory of a model's steps: one mapping, carved into arrays. Fresh mappings are zero,
 * and nothing ever writes into the padding columns of an input, so they stay zero for ever.
 * Executor thread only.
 */
#include "engine/scratch.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "engine/sampler.h"

/* Hands out pieces of the arena; with base NULL it only counts. */
typedef struct carver {
    uint8_t *base;
    size_t used;
} carver;

static void *carve(carver *c, size_t bytes)
{
    uint8_t *p = c->base ? c->base + c->used : NULL;

    c->used += (bytes + 127) & ~(size_t)127;
    return p;
}

static float *carve_f32(carver *c, size_t n, size_t ld)
{
    return carve(c, n * ld * sizeof(float));
}

/* Row stride of an array of n columns: padded, and never a power of two, so that one column of
 * many rows does not fall into a few cache sets. */
static size_t stride(int n)
{
    return (size_t)kwk_pad32(n) + 16;
}

static void carve_input(carver *c, kwk_input *in, size_t rows, int cols, int quantised)
{
    in->ldx = stride(cols);
    in->x = carve_f32(c, rows, in->ldx);
    in->q = (kwk_qact){0};
    if (quantised) {
        in->q.ldq = ((size_t)kwk_pad32(cols) + 127) & ~(size_t)63;
        in->q.lds = (size_t)kwk_pad32(cols) / KWK_GROUP;
        in->q.q = carve(c, rows * in->q.ldq);
        in->q.scale = carve(c, rows * in->q.lds * sizeof *in->q.scale);
        in->q.sum = carve(c, rows * in->q.lds * sizeof *in->q.sum);
    }
}

static int has_int(const kwk_model *m)
{
    int any = kwk_format_is_int(m->head.format);

    for (int l = 0; l < m->recipe.n_layers; l++) {
        const kwk_layer *w = &m->layers[l];
        const kwk_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
            any |= kwk_format_is_int(mats[i]->format);
    }
    return any;
}

static void lay_out(kwk_scratch *s, carver *c, const kwk_model *m, int quantised)
{
    const kwk_recipe *r = &m->recipe;
    const size_t rows = (size_t)s->rows, dim = (size_t)r->head_dim;
    const int heads = r->n_heads * r->head_dim;

    s->ld_hidden = stride(r->hidden);
    s->ld_q = stride(heads);
    s->ld_kv = stride(r->n_kv_heads * r->head_dim);
    s->ld_inter = stride(r->inter);
    s->ld_vocab = stride(r->vocab);
    s->x = carve_f32(c, rows, s->ld_hidden);
    s->y = carve_f32(c, rows, s->ld_hidden);
    s->q = carve_f32(c, rows, s->ld_q);
    s->k = carve_f32(c, rows, s->ld_kv);
    s->v = carve_f32(c, rows, s->ld_kv);
    s->up = carve_f32(c, rows, s->ld_inter);
    s->cos = carve_f32(c, rows, (size_t)r->rope_dim / 2);
    s->sin = carve_f32(c, rows, (size_t)r->rope_dim / 2);
    carve_input(c, &s->norm, rows, r->hidden, quantised);
    carve_input(c, &s->heads, rows, heads, quantised);
    carve_input(c, &s->mid, rows, r->inter, quantised);
    s->logits = carve_f32(c, (size_t)s->out_rows, s->ld_vocab);
    s->parts = carve_f32(c, s->n_parts, 1);
    s->done = carve(c, s->n_done * sizeof *s->done);
    for (int t = 0; t < s->threads; t++) {
        kwk_private own;

        own.matmul = carve(c, KWK_MATMUL_SCRATCH);
        own.attn = carve(c, KWK_ATTN_SCRATCH);
        own.q = carve_f32(c, KWK_ATTN_QUERIES, dim);
        own.parts = carve_f32(c, 2 * (size_t)KWK_ATTN_QUERIES, dim + 2);
        carve_input(c, &own.in, KWK_SMALL, heads > r->hidden ? heads : r->hidden, quantised);
        own.sampler = carve(c, kwk_sampler_work_bytes(r->vocab)); // pages appear when used
        if (c->base)
            s->own[t] = own;
    }
}

static int at_least(int want, int have)
{
    return want > have ? want : have;
}

int kwk_scratch_reserve(kwk_model *m, int rows, int out_rows, int threads, size_t n_parts,
                        size_t n_done, kwk_error *err)
{
    const kwk_scratch *old = m->scratch;
    const int quantised = has_int(m);
    kwk_scratch *s;
    carver c = {0};

    if (old && old->rows >= rows && old->out_rows >= out_rows && old->threads >= threads &&
        old->n_parts >= n_parts && old->n_done >= n_done)
        return KWK_OK;
    s = calloc(1, sizeof *s);
    if (!s)
        goto no_memory;
    s->rows = old ? old->rows : 1;
    while (s->rows < rows) // by doubling: a growing batch must not remap at every step
        s->rows *= 2;
    s->out_rows = at_least(out_rows, old ? old->out_rows : 0);
    s->threads = at_least(threads, old ? old->threads : 0);
    s->n_parts = old && old->n_parts >= n_parts ? old->n_parts : n_parts + n_parts / 2;
    s->n_done = old && old->n_done >= n_done ? old->n_done : n_done;
    s->own = calloc((size_t)s->threads, sizeof *s->own);
    if (!s->own)
        goto no_memory;
    lay_out(s, &c, m, quantised);
    s->bytes = c.used;
    c.base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c.base == MAP_FAILED)
        goto no_memory;
    s->arena = c.base;
    c.used = 0;
    lay_out(s, &c, m, quantised);
    kwk_scratch_free(m->scratch);
    m->scratch = s;
    return KWK_OK;
no_memory:
    kwk_scratch_free(s);
    return kwk_fail(err, KWK_ENOMEM, "no memory for a step of %d rows and %d threads", rows,
                    threads);
}

void kwk_scratch_free(kwk_scratch *s)
{
    if (!s)
        return;
    if (s->arena)
        munmap(s->arena, s->bytes);
    free(s->own);
    free(s);
}
