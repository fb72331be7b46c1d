/* SPDX-License-Identifier: Apache-2.0
 *
 * From logits to a token, inside the engine: kwk_sample() without allocation, and with the mask of
 * allowed tokens. Pure; any thread.
 */
#ifndef KWK_ENGINE_SAMPLER_H
#define KWK_ENGINE_SAMPLER_H

#include "engine/kwk.h"
#include "kernels/kernels.h"

/* Bytes of memory that a choice from this vocabulary needs. */
size_t kwk_sampler_work_bytes(int vocab);

typedef struct kwk_choice {
    const kwk_sampling *sampling; // checked by kwk_sampling_check()
    const kwk_history *history;   // may be NULL
    const uint32_t *allowed;      // may be NULL
    int want_logprob;
    kwk_logprob *top; // NULL, or (sampling->n_logprobs); filled up with id -1
    /* results */
    int32_t token; // -1: every score is NaN or -inf
    float logprob; // with want_logprob
} kwk_choice;

/* memory: kwk_sampler_work_bytes(), aligned to 64. logits are overwritten with the scores up to
 * temperature; keep_filters: also with what top_k, top_p and min_p leave (others -inf). */
void kwk_sampler_choose(kwk_choice *c, float *logits, int vocab, void *memory, int keep_filters,
                        const kwk_kernels *k);

#endif
