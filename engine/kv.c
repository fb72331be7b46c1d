/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of KV blocks: one reservation of address space as large as the budget, a stack of free
 * blocks, a count of references each. Memory is used block by block as sequences grow, and the
 * block freed last is handed out first, so that a quiet model stays small.
 */
#include "engine/kv.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/executor.h"
#include "engine/limits.h"

enum { DEFAULT_SHARE = 4 }; // one part in this many of the memory that may be used

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void kwk_kv_lock(void)
{
    pthread_mutex_lock(&lock);
}

void kwk_kv_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void kwk_kv_unlock_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* Reserve room for n blocks and the null block. */
static int reserve(kwk_kv_pool *p, uint64_t n)
{
    const size_t bytes = (size_t)(n + 1) * p->block_bytes;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base == MAP_FAILED)
        return -1;
    p->base = base;
    p->reserved = bytes;
    p->n_blocks = (int32_t)n;
    return 0;
}

int kwk_kv_pool_new(kwk_kv_pool **out, const kwk_recipe *r, int kv_bits, uint64_t budget,
                    kwk_error *err)
{
    const int by_default = budget == 0;
    kwk_kv_pool *p = calloc(1, sizeof *p);
    int rc;

    if (!p)
        return kwk_fail(err, KWK_ENOMEM, "no memory for the KV pool");
    kwk_executor_guard_fork();
    p->n_layers = r->n_layers;
    p->n_heads = r->n_kv_heads;
    p->dim = r->head_dim;
    p->elem = kv_bits / 8;
    p->head_bytes = (size_t)KWK_BLOCK * (size_t)p->dim * (size_t)p->elem;
    p->layer_bytes = 2 * (size_t)p->n_heads * p->head_bytes;
    p->block_bytes = (size_t)p->n_layers * p->layer_bytes;

    if (by_default)
        budget = kwk_limits_memory("") / DEFAULT_SHARE;
    uint64_t n = budget / p->block_bytes;
    if (n == 0) {
        rc = kwk_fail(err, KWK_EINVAL, "kv_bytes %" PRIu64 " is less than one block of %zu bytes",
                      budget, p->block_bytes);
        goto out;
    }
    if (n > INT32_MAX / 2)
        n = INT32_MAX / 2;
    if (n > SIZE_MAX / 2 / p->block_bytes)
        n = SIZE_MAX / 2 / p->block_bytes;
    while (reserve(p, n) < 0) { // strict overcommit or an address space limit
        if (!by_default || n == 1) {
            rc =
                kwk_fail(err, KWK_ENOMEM, "no address space for %" PRIu64 " KV blocks of %zu bytes",
                         n, p->block_bytes);
            goto out;
        }
        n = (n + 1) / 2;
    }
    p->idle = malloc((size_t)p->n_blocks * sizeof *p->idle);
    p->refs = calloc((size_t)p->n_blocks + 1, sizeof *p->refs);
    if (!p->idle || !p->refs) {
        rc = kwk_fail(err, KWK_ENOMEM, "no memory for a table of %d KV blocks", p->n_blocks);
        goto out;
    }
    *out = p;
    return KWK_OK;
out:
    kwk_kv_pool_free(p);
    return rc;
}

void kwk_kv_pool_free(kwk_kv_pool *p)
{
    if (!p)
        return;
    if (p->base)
        munmap(p->base, p->reserved);
    free(p->refs);
    free(p->idle);
    free(p);
}

static int free_blocks(const kwk_kv_pool *p)
{
    return p->n_idle + (p->n_blocks - p->n_touched);
}

int kwk_kv_free_blocks(kwk_kv_pool *p)
{
    kwk_kv_lock();
    const int n = free_blocks(p);
    kwk_kv_unlock();
    return n;
}

int kwk_kv_alloc(kwk_kv_pool *p, int32_t *blocks, int n)
{
    int rc = KWK_EFULL;

    kwk_kv_lock();
    if (n <= free_blocks(p)) {
        for (int i = 0; i < n; i++) {
            blocks[i] = p->n_idle ? p->idle[--p->n_idle] : ++p->n_touched;
            p->refs[blocks[i]] = 1;
        }
        rc = KWK_OK;
    }
    kwk_kv_unlock();
    return rc;
}

void kwk_kv_retain(kwk_kv_pool *p, const int32_t *blocks, int n)
{
    kwk_kv_lock();
    for (int i = 0; i < n; i++)
        if (blocks[i] != KWK_KV_NULL)
            p->refs[blocks[i]]++;
    kwk_kv_unlock();
}

void kwk_kv_release(kwk_kv_pool *p, const int32_t *blocks, int n)
{
    kwk_kv_lock();
    for (int i = 0; i < n; i++)
        if (blocks[i] != KWK_KV_NULL && --p->refs[blocks[i]] == 0)
            p->idle[p->n_idle++] = blocks[i];
    kwk_kv_unlock();
}

int kwk_kv_is_shared(kwk_kv_pool *p, int32_t block)
{
    kwk_kv_lock();
    const int shared = block == KWK_KV_NULL || p->refs[block] > 1;
    kwk_kv_unlock();
    return shared;
}
