/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensors that a recipe consists of: which, in what order, of what shape. The one place that
 * knows it; packing, validation and the model's pointers all walk this list. Pure; any thread.
 */
#include <stdio.h>

#include "engine/recipe.h"

static const struct {
    const char *name;
    int per_layer, matrix;
} roles[] = {
#define KWK_ROLE(role, per_layer, matrix, hf) {hf, per_layer, matrix},
    KWK_ROLES
#undef KWK_ROLE
};

/* Shape of a role; 0: the recipe has no such tensor. */
static int shape(const kwk_recipe *r, kwk_role role, int *rows, int *cols)
{
    const int q = r->n_heads * r->head_dim, kv = r->n_kv_heads * r->head_dim;

    *rows = 1;
    switch (role) {
    case KWK_ROLE_EMBED:
        *rows = r->vocab, *cols = r->hidden;
        return 1;
    case KWK_ROLE_HEAD:
        *rows = r->vocab, *cols = r->hidden;
        return !r->tied;
    case KWK_ROLE_ATTN_NORM:
    case KWK_ROLE_MLP_NORM:
    case KWK_ROLE_FINAL_NORM:
        *cols = r->hidden;
        return 1;
    case KWK_ROLE_Q:
        *rows = q, *cols = r->hidden;
        return 1;
    case KWK_ROLE_K:
    case KWK_ROLE_V:
        *rows = kv, *cols = r->hidden;
        return 1;
    case KWK_ROLE_O:
        *rows = r->hidden, *cols = q;
        return 1;
    case KWK_ROLE_Q_BIAS:
        *cols = q;
        return r->q_bias;
    case KWK_ROLE_K_BIAS:
        *cols = kv;
        return r->k_bias;
    case KWK_ROLE_V_BIAS:
        *cols = kv;
        return r->v_bias;
    case KWK_ROLE_O_BIAS:
        *cols = r->hidden;
        return r->o_bias;
    case KWK_ROLE_Q_NORM:
    case KWK_ROLE_K_NORM:
        *cols = r->head_dim;
        return r->qk_norm;
    case KWK_ROLE_GATE:
    case KWK_ROLE_UP:
        *rows = r->inter, *cols = r->hidden;
        return 1;
    case KWK_ROLE_DOWN:
        *rows = r->hidden, *cols = r->inter;
        return 1;
    case KWK_ROLE_GATE_BIAS:
    case KWK_ROLE_UP_BIAS:
        *cols = r->inter;
        return r->mlp_bias;
    case KWK_ROLE_DOWN_BIAS:
        *cols = r->hidden;
        return r->mlp_bias;
    case KWK_ROLE_END:
        break;
    }
    return 0;
}

/* With out == NULL only counts. Roles up to the first per-layer one, the layers, then the rest. */
static int walk(const kwk_recipe *r, kwk_tensor_spec *out)
{
    int n = 0, first = 0, last = KWK_ROLE_END;

    while (!roles[first].per_layer)
        first++;
    while (!roles[last - 1].per_layer)
        last--;
    for (int layer = -1; layer <= r->n_layers; layer++) {
        const int from = layer < 0 ? 0 : layer < r->n_layers ? first : last;
        const int to = layer < 0 ? first : layer < r->n_layers ? last : KWK_ROLE_END;
        for (int role = from; role < to; role++) {
            kwk_tensor_spec t = {.role = (kwk_role)role, .matrix = roles[role].matrix};
            if (!shape(r, t.role, &t.rows, &t.cols))
                continue;
            t.layer = roles[role].per_layer ? layer : 0;
            if (out)
                out[n] = t;
            n++;
        }
    }
    return n;
}

int kwk_recipe_n_tensors(const kwk_recipe *r)
{
    return walk(r, NULL);
}

void kwk_recipe_tensors(const kwk_recipe *r, kwk_tensor_spec *out)
{
    walk(r, out);
}

void kwk_tensor_name(const kwk_tensor_spec *t, char name[KWK_TENSOR_NAME_MAX])
{
    if (roles[t->role].per_layer)
        snprintf(name, KWK_TENSOR_NAME_MAX, "model.layers.%d.%s", t->layer, roles[t->role].name);
    else
        snprintf(name, KWK_TENSOR_NAME_MAX, "%s", roles[t->role].name);
}
