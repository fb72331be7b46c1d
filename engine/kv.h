/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of KV blocks of one model. A block holds the keys and values of 32 slots for all layers:
 * per layer K [kv head][dim][32], then V [kv head][32][dim], float32 or IEEE half. Blocks are
 * reference-counted and shared between sequences. Knows nothing of sequences, tokens or validity.
 *
 * Threads: any; counts are guarded by one lock of the process, which fork() respects. The contents
 * of a block belong to whoever holds its only reference, and are read-only while it is shared.
 */
#ifndef KWK_ENGINE_KV_H
#define KWK_ENGINE_KV_H

#include "engine/model.h"

/* A block of zeros that is never written or freed: it stands for slots that store nothing. */
enum { KWK_KV_NULL = 0 };

typedef struct kwk_kv_pool {
    int n_layers, n_heads, dim, elem; // elem: bytes of an element, 2 or 4
    size_t head_bytes, layer_bytes, block_bytes;
    uint8_t *base;    // reserved address space; pages appear when they are first written
    size_t reserved;  // bytes of it
    int32_t n_blocks; // usable ones: 1 … n_blocks
    /* under the lock */
    int32_t n_touched; // blocks 1 … n_touched have been used before
    int32_t n_idle;    // of those, how many are free
    int32_t *idle;     // (n_idle) stack of them
    int32_t *refs;     // (n_blocks + 1)
} kwk_kv_pool;

/**
 * @param kv_bits  16 or 32
 * @param budget   bytes; 0: a quarter of the memory that this process may use
 *
 * @return KWK_OK; KWK_EINVAL the budget holds no block; KWK_ENOMEM
 */
int kwk_kv_pool_new(kwk_kv_pool **out, const kwk_recipe *recipe, int kv_bits, uint64_t budget,
                    kwk_error *err);
void kwk_kv_pool_free(kwk_kv_pool *p);

int kwk_kv_free_blocks(kwk_kv_pool *p); // how many could be allocated at this moment

/* n blocks with one reference each and undefined contents, all or none: KWK_OK or KWK_EFULL. */
int kwk_kv_alloc(kwk_kv_pool *p, int32_t *blocks, int n);
void kwk_kv_retain(kwk_kv_pool *p, const int32_t *blocks, int n);  // KWK_KV_NULL is passed over
void kwk_kv_release(kwk_kv_pool *p, const int32_t *blocks, int n); // likewise
int kwk_kv_is_shared(kwk_kv_pool *p, int32_t block); // more than one reference; the null block is

/* Where one head's keys [dim][32] and values [32][dim] lie; 64-byte aligned. */
static inline uint8_t *kwk_kv_k(const kwk_kv_pool *p, int32_t block, int layer, int head)
{
    return p->base + (size_t)block * p->block_bytes + (size_t)layer * p->layer_bytes +
           (size_t)head * p->head_bytes;
}

static inline uint8_t *kwk_kv_v(const kwk_kv_pool *p, int32_t block, int layer, int head)
{
    return kwk_kv_k(p, block, layer, p->n_heads + head);
}

/* For the fork handlers. */
void kwk_kv_lock(void);
void kwk_kv_unlock(void);
void kwk_kv_unlock_child(void);

#endif
