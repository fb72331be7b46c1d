/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine without arithmetic, for the daemon's tests: the functions of engine/kwk.h that the
 * daemon uses, linked instead of libkwk. Sequences hold ids; the next token depends on all ids
 * before it, so a mistake in what a step is given shows in what comes out. Counts KV blocks like
 * the real one and checks every row that it gets.
 */
#ifndef KWK_TESTS_SUPPORT_FAKE_ENGINE_H
#define KWK_TESTS_SUPPORT_FAKE_ENGINE_H

#include <stdatomic.h>
#include <stdint.h>

#include "engine/kwk.h"

enum { FAKE_EOS = 2, FAKE_BOS = 1 };

/* What the next models and steps do. Set before threads start, or where atomic at any time. */
typedef struct fake_options {
    int vocab, max_ctx, kv_blocks;
    int has_text;          // token id → the byte id % 256
    int text_bytes;        // how often, 1: once
    int load_parts;        // calls of the progress function
    atomic_int load_ms;    // before each of them
    atomic_int step_ms;    // time of a step
    const int32_t *script; // (n_script) tokens to choose, or NULL: a hash of the ids
    int n_script;
    int32_t poison;    // a step with this token fails with KWK_EINVAL; -1: none
    int32_t unsampled; // after this token none can be chosen; -1: none
    void (*hook)(void *arg, const kwk_step_args *args); // before each step
    void *hook_arg;
} fake_options;
extern fake_options fake;

/* What happened. */
typedef struct fake_counts {
    atomic_int steps, max_rows, models, seqs, loads; // models, seqs: alive now
    atomic_int last_rows;
    _Atomic uint64_t rows;
} fake_counts;
extern fake_counts fake_count;

void fake_reset(void); // options and counts as at the start: vocab 300, 4096 slots, 256 blocks

/* The token that greedy decoding chooses after these ids. */
int32_t fake_next(const int32_t *ids, int n);

#endif
