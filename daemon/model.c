/* SPDX-License-Identifier: Apache-2.0
 *
 * A loaded model: its facts for the daemon, and who holds it. The last one to let go leaves it to a
 * loader thread to free, which can take long. Any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/store_state.h"
#include "daemon/work.h"

kwkd_model *kwkd_model_ref(kwkd_model *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void kwkd_model_destroy(kwkd_model *m)
{
    kwk_model_free(m->engine);
    free(m->name);
    free(m);
}

void kwkd_model_unref(kwkd_model *m)
{
    kwkd_store *s;
    int left_to_us;

    if (!m)
        return;
    atomic_store(&m->used_us, kwkd_now_us());
    s = m->store;
    if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&s->lock);
    left_to_us = s->stopping;
    if (!left_to_us) {
        m->next = s->released;
        s->released = m;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    if (left_to_us)
        kwkd_model_destroy(m);
}

int kwkd_model_is_idle(const kwkd_model *m)
{
    return atomic_load(&m->refs) == 1;
}

int kwkd_model_new(kwkd_model **out, const kwkd_entry *e, kwk_model *engine, kwk_error *err)
{
    kwkd_model *m = calloc(1, sizeof *m);
    uint64_t slots;

    if (m)
        m->name = strdup(e->name);
    if (!m || !m->name) {
        free(m);
        return kwk_fail(err, KWK_ENOMEM, "a model's entry");
    }
    atomic_init(&m->refs, 1);
    m->store = e->store;
    m->engine = engine;
    kwk_model_describe(engine, &m->info);
    slots = m->info.kv_blocks * 32;
    m->max_tokens = slots < (uint64_t)m->info.max_ctx ? (int)slots : m->info.max_ctx;
    atomic_init(&m->used_us, kwkd_now_us());
    for (int32_t id = 0; id < m->info.vocab; id++) {
        const uint8_t *bytes;
        size_t n = 0;
        if (kwk_model_token_bytes(engine, id, &bytes, &n, NULL) == KWK_OK) {
            m->has_text = 1;
            if (n > m->max_token_bytes)
                m->max_token_bytes = n;
        } else if (id == 0) {
            break; // the source has no tokenizer
        }
    }
    *out = m;
    return KWK_OK;
}
