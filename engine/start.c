/* SPDX-License-Identifier: Apache-2.0
 *
 * The run-time part of a model whose weights are in place: which kernels, how long sequences may
 * get, the KV pool; and the library's own facts. Called by the loaders; the executor is not
 * involved.
 */
#include <stdlib.h>

#include "engine/kv.h"
#include "engine/kwk.h"
#include "engine/model.h"
#include "engine/scratch.h"

enum { MAX_CTX_LIMIT = 1 << 24 }; // slots of one sequence: what int arithmetic below is safe for

const char *kwk_version(void)
{
    return KWK_VERSION;
}

/* CPU flags to use; *unknown: KWKER_ISA when it is no level's name, else NULL. */
static unsigned cpu_flags(const char **unknown)
{
    const char *name = getenv("KWKER_ISA");
    const unsigned cpu = kwk_cpu_flags();

    *unknown = NULL;
    if (!name || !*name)
        return cpu;
    const int level = kwk_cpu_level(name);
    if (level < 0) {
        *unknown = name;
        return cpu;
    }
    return cpu & (unsigned)level;
}

const char *kwk_isa(void)
{
    const char *unknown;

    return kwk_cpu_name(cpu_flags(&unknown));
}

int kwk_model_start(kwk_model *m, const kwk_model_options *opts, kwk_error *err)
{
    const kwk_model_options none = KWK_MODEL_OPTIONS_INIT;
    const kwk_recipe *r = &m->recipe;
    const char *unknown;

    if (!opts)
        opts = &none;
    const unsigned flags = cpu_flags(&unknown);
    if (unknown)
        return kwk_fail(err, KWK_EINVAL, "KWKER_ISA '%s' is not ref, avx2, avx512 or neon",
                        unknown);
    if (r->act != KWK_ACT_SILU)
        return kwk_fail(err, KWK_EUNSUPPORTED, "hidden_act %d has no kernel", r->act);
    if (r->head_dim < 1 || r->head_dim > KWK_HEAD_DIM_MAX)
        return kwk_fail(err, KWK_EUNSUPPORTED, "head_dim %d is not in 1..%d", r->head_dim,
                        KWK_HEAD_DIM_MAX);
    if (opts->max_ctx < 0 || opts->max_ctx > MAX_CTX_LIMIT)
        return kwk_fail(err, KWK_EINVAL, "max_ctx %d is not in 0..%d", opts->max_ctx,
                        MAX_CTX_LIMIT);
    if (opts->kv_bits != 0 && opts->kv_bits != 16 && opts->kv_bits != 32)
        return kwk_fail(err, KWK_EINVAL, "kv_bits %d is not 0, 16 or 32", opts->kv_bits);

    kwk_kernels_init(&m->kernels, flags);
    m->max_ctx = opts->max_ctx ? opts->max_ctx : r->max_pos;
    if (m->max_ctx > MAX_CTX_LIMIT)
        m->max_ctx = MAX_CTX_LIMIT;
    m->kv_bits = opts->kv_bits;
    if (!m->kv_bits) // a model of integer weights is rounded anyway
        m->kv_bits = r->n_layers > 0 && kwk_format_is_int(m->layers[0].down.format) ? 16 : 32;
    return kwk_kv_pool_new(&m->kv, r, m->kv_bits, opts->kv_bytes, err);
}

void kwk_model_stop(kwk_model *m)
{
    kwk_scratch_free(m->scratch);
    m->scratch = NULL;
    kwk_kv_pool_free(m->kv);
    m->kv = NULL;
}
