/* SPDX-License-Identifier: Apache-2.0
 *
 * A sequence: which pool blocks its slots lie in, which slots were computed, which are seen by
 * attention. Used by one thread at a time, the step included.
 */
#ifndef KWK_ENGINE_SEQ_H
#define KWK_ENGINE_SEQ_H

#include "engine/model.h"

struct kwk_seq {
    kwk_model *model;  // one reference
    int length;        // slots in use
    int n_blocks;      // ceil(length / 32)
    int cap;           // of the arrays
    int32_t *blocks;   // (n_blocks) KWK_KV_NULL: none of its slots was ever computed
    uint32_t *valid;   // (n_blocks) bit i: attention sees slot 32 b + i; a subset of `written`
    uint32_t *written; // (n_blocks) bit i: the slot holds keys and values. Others hold leftovers
                       //   of other sequences and are never read.
    uint64_t mark;     // last step that these rows were part of
};

/* Bits of slots lo … hi-1 that fall into block b. */
static inline uint32_t kwk_seq_bits(int b, int lo, int hi)
{
    const int first = b * KWK_BLOCK;
    const int from = lo > first ? lo - first : 0;
    const int to = hi < first + KWK_BLOCK ? hi - first : KWK_BLOCK;

    if (from >= to)
        return 0;
    return (uint32_t)((((uint64_t)1 << (to - from)) - 1) << from);
}

/* Make the tables hold n_slots without changing anything else. KWK_OK, KWK_ENOMEM. */
int kwk_seq_reserve(kwk_seq *s, int n_slots, kwk_error *err);

/* Blocks that must be allocated before slots first … first+n-1 can be written. */
int kwk_seq_blocks_needed(const kwk_seq *s, int first, int n);

/* Put freshly allocated blocks into place and advance *fresh past them; shared ones are copied
 * first. Fewer than kwk_seq_blocks_needed() said are taken when another sequence has let go of a
 * shared block meanwhile: the caller releases the rest. Tables must be reserved.
 * Returns how many blocks were copied. */
int kwk_seq_place_blocks(kwk_seq *s, int first, int n, const int32_t **fresh);

/* Append n slots, not yet written; their blocks must be in place. */
void kwk_seq_append(kwk_seq *s, int n);
void kwk_seq_mark_written(kwk_seq *s, int slot, int valid);

#endif
