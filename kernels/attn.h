/* SPDX-License-Identifier: Apache-2.0
 *
 * What the attention kernels share: which slots a query sees, and the queries that go through the
 * registers together. Knows no instruction set.
 */
#ifndef KWK_KERNELS_ATTN_H
#define KWK_KERNELS_ATTN_H

#include <stdint.h>

#include "kernels/kernels.h"

enum {
    KWK_ATTN_BLOCKS = KWK_SPLIT / KWK_BLOCK,
    KWK_ATTN_GROUP = 8, // most queries of a group
};

/* The slots of block b that a query sees, as a bit set. */
static inline uint32_t kwk_attn_seen(const kwk_attn *a, const kwk_attn_query *q, int b)
{
    const int64_t start = b * KWK_BLOCK;
    const int64_t lo = q->first - start, hi = (int64_t)q->last - start + 1; // lo <= slot < hi
    uint64_t in = hi <= 0 ? 0 : hi >= KWK_BLOCK ? UINT32_MAX : (UINT64_C(1) << hi) - 1;

    if (lo >= KWK_BLOCK)
        in = 0;
    else if (lo > 0)
        in &= UINT64_MAX << lo;
    return (uint32_t)in & a->valid[b];
}

/* Queries that share every load of K and V. */
typedef struct kwk_attn_group {
    const kwk_attn *a;
    const kwk_attn_query *query;
    int n; // queries
    uint32_t seen[KWK_ATTN_GROUP][KWK_ATTN_BLOCKS];
    uint32_t any[KWK_ATTN_BLOCKS]; // slots that at least one query of the group sees
    float *t;         // (n, KWK_SPLIT): t_j, then p_j; only blocks with any are written
    const void *next; // what follows the last block of V
} kwk_attn_group;

static inline void kwk_attn_group_init(kwk_attn_group *g, const kwk_attn *a, int first, int n)
{
    g->a = a;
    g->query = a->query + first;
    g->n = n;
    g->t = a->scratch;
    g->next = first + n < a->n_queries ? a->k[0] : a->next ? a->next : a->v[a->n_blocks - 1];
    for (int b = 0; b < a->n_blocks; b++) {
        g->any[b] = 0;
        for (int i = 0; i < n; i++)
            g->any[b] |= g->seen[i][b] = kwk_attn_seen(a, &g->query[i], b);
    }
}

/* The block to prefetch while a block is read. Blocks are scattered and small, so that hardware
 * prefetchers, which stop at page borders, find each too late: with this, reading them from memory
 * is up to twice as fast. */
static inline const char *kwk_attn_after_k(const kwk_attn_group *g, int b)
{
    return b + 1 < g->a->n_blocks ? g->a->k[b + 1] : g->a->v[0];
}

static inline const char *kwk_attn_after_v(const kwk_attn_group *g, int b)
{
    return b + 1 < g->a->n_blocks ? g->a->v[b + 1] : g->next;
}

/* Take the lowest run of set bits off *set: bits *lo <= j < *hi. 0 when none is left. */
static inline int kwk_attn_run(uint32_t *set, int *lo, int *hi)
{
    uint64_t rest;

    if (!*set)
        return 0;
    *lo = __builtin_ctz(*set);
    *hi = *lo + __builtin_ctzll(~((uint64_t)*set >> *lo));
    rest = (uint64_t)*set >> *hi; // *hi may be 32
    *set = (uint32_t)(rest << *hi);
    return 1;
}

#endif
