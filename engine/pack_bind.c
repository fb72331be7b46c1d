/* SPDX-License-Identifier: Apache-2.0
 *
 * What builders and checkers of packs share (place of a tensor, identity), and the step from a
 * trusted image to a model's pointers. Loading thread.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/hash.h"
#include "engine/pack.h"
#include "engine/pack_id.h" // made by the build

const uint8_t *kwk_pack_build_id(void)
{
    static const uint8_t id[16] = {KWK_PACK_BUILD_ID};

    return id;
}

kwk_pack_tensor kwk_pack_place(const kwk_tensor_spec *spec, kwk_format format)
{
    kwk_pack_tensor t = {.role = spec->role,
                         .layer = (uint32_t)spec->layer,
                         .format = format,
                         .rows = spec->rows,
                         .cols = spec->cols,
                         .rows_pad = spec->rows,
                         .cols_pad = spec->cols};

    if (!spec->matrix) {
        t.size = (uint64_t)spec->cols * sizeof(float);
        return t;
    }
    t.rows_pad = kwk_pad32(spec->rows);
    t.cols_pad = kwk_pad32(spec->cols);
    t.size = (uint64_t)(t.rows_pad / KWK_TILE) * kwk_mat_tile_bytes(format, t.cols_pad);
    return t;
}

void kwk_pack_id(uint8_t id[16], const kwk_recipe *r, const kwk_pack_tensor *tensors, int n)
{
    uint8_t chain[16 + sizeof *r];

    memset(chain, 0, 16);
    memcpy(chain + 16, r, sizeof *r);
    kwk_hash128(id, chain, sizeof chain);
    for (int i = 0; i < n; i++) {
        kwk_pack_tensor t = tensors[i];
        uint8_t link[16 + sizeof t];
        t.offset = 0; // depends on the tokenizer's size
        memcpy(link, id, 16);
        memcpy(link + 16, &t, sizeof t);
        kwk_hash128(id, link, sizeof link);
    }
}

/* The header is hashed as a copy with the field that holds the sum as 0. */
uint64_t kwk_pack_front_sum(const uint8_t *base, uint64_t data_start)
{
    kwk_pack_header h;

    memcpy(&h, base, sizeof h);
    h.front_sum = 0;
    const uint64_t seed = kwk_hash64(&h, sizeof h, 0);
    return kwk_hash64(base + sizeof h, (size_t)data_start - sizeof h, seed);
}

/* ---- binding --------------------------------------------------------------------------------- */

static kwk_mat matrix(uint8_t *base, const kwk_pack_tensor *t)
{
    return (kwk_mat){.format = (kwk_format)t->format,
                     .rows = t->rows,
                     .cols = t->cols,
                     .rows_pad = t->rows_pad,
                     .cols_pad = t->cols_pad,
                     .exponent = t->exponent,
                     .data = base + t->offset};
}

static void bind_tensor(kwk_model *m, const kwk_pack_tensor *t)
{
    kwk_layer *l = &m->layers[t->layer];
    uint8_t *base = m->image.base;
    const float *vector = (const float *)(base + t->offset);

    switch ((kwk_role)t->role) {
    case KWK_ROLE_EMBED:
        m->embed = matrix(base, t);
        break;
    case KWK_ROLE_HEAD:
        m->head = matrix(base, t);
        break;
    case KWK_ROLE_FINAL_NORM:
        m->final_norm = vector;
        break;
    case KWK_ROLE_ATTN_NORM:
        l->attn_norm = vector;
        break;
    case KWK_ROLE_MLP_NORM:
        l->mlp_norm = vector;
        break;
    case KWK_ROLE_Q:
        l->q = matrix(base, t);
        break;
    case KWK_ROLE_K:
        l->k = matrix(base, t);
        break;
    case KWK_ROLE_V:
        l->v = matrix(base, t);
        break;
    case KWK_ROLE_O:
        l->o = matrix(base, t);
        break;
    case KWK_ROLE_GATE:
        l->gate = matrix(base, t);
        break;
    case KWK_ROLE_UP:
        l->up = matrix(base, t);
        break;
    case KWK_ROLE_DOWN:
        l->down = matrix(base, t);
        break;
    case KWK_ROLE_Q_BIAS:
        l->q_bias = vector;
        break;
    case KWK_ROLE_K_BIAS:
        l->k_bias = vector;
        break;
    case KWK_ROLE_V_BIAS:
        l->v_bias = vector;
        break;
    case KWK_ROLE_O_BIAS:
        l->o_bias = vector;
        break;
    case KWK_ROLE_GATE_BIAS:
        l->gate_bias = vector;
        break;
    case KWK_ROLE_UP_BIAS:
        l->up_bias = vector;
        break;
    case KWK_ROLE_DOWN_BIAS:
        l->down_bias = vector;
        break;
    case KWK_ROLE_Q_NORM:
        l->q_norm = vector;
        break;
    case KWK_ROLE_K_NORM:
        l->k_norm = vector;
        break;
    case KWK_ROLE_END:
        break;
    }
}

int kwk_pack_bind(kwk_model *m, kwk_error *err)
{
    const uint8_t *base = m->image.base;
    const kwk_pack_header *h = (const kwk_pack_header *)base;
    const kwk_pack_tensor *table = (const kwk_pack_tensor *)(base + h->tensors.offset);

    m->recipe = h->recipe;
    memcpy(m->precision, h->precision, sizeof m->precision);
    memcpy(m->rounded, h->rounded, sizeof m->rounded);
    memcpy(m->id, h->id, sizeof m->id);
    m->layers = calloc((size_t)m->recipe.n_layers, sizeof *m->layers);
    m->inv_freq = malloc((size_t)(m->recipe.rope_dim / 2) * sizeof *m->inv_freq);
    if (!m->layers || !m->inv_freq)
        return kwk_fail(err, KWK_ENOMEM, "model: out of memory");
    kwk_recipe_inv_freq(&m->recipe, m->inv_freq);

    for (uint32_t i = 0; i < h->n_tensors; i++) {
        const kwk_pack_tensor *t = &table[i];
        bind_tensor(m, t);
        m->n_params += (uint64_t)t->rows * (uint64_t)t->cols;
        /* A token reads every weight once, but one row only of an untied embedding. */
        if (t->role != KWK_ROLE_EMBED || m->recipe.tied)
            m->weight_bytes += t->size;
    }
    if (m->recipe.tied)
        m->head = m->embed;

    if (h->token_offset.size) {
        m->token_offset = (const uint32_t *)(base + h->token_offset.offset);
        m->token_bytes = base + h->token_bytes.offset;
    }
    if (h->tokenizer_json.size) {
        m->tokenizer_json = (const char *)base + h->tokenizer_json.offset;
        m->tokenizer_json_len = (size_t)h->tokenizer_json.size - 1;
    }
    if (h->chat_template.size)
        m->chat_template = (const char *)base + h->chat_template.offset;
    return KWK_OK;
}
