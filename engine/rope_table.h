/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding: the table of one position, as Hugging Face computes it. Pure.
 */
#ifndef KWK_ENGINE_ROPE_TABLE_H
#define KWK_ENGINE_ROPE_TABLE_H

#include <stdint.h>

/* cos, sin (n) of position * inv_freq[i]: the product in float32, the functions rounded from
 * double. */
void kwk_rope_table(float *cos, float *sin, const float *inv_freq, int n, int32_t position);

#endif
