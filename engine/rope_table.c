/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding: cos and sin of one position. inv_freq already holds the kind of
 * scaling (default, linear, llama3); none of these kinds scales attention.
 */
#include "engine/rope_table.h"

#include <math.h>

void kwk_rope_table(float *cosines, float *sines, const float *inv_freq, int n, int32_t position)
{
    const float p = (float)position;

    for (int i = 0; i < n; i++) {
        const float angle = p * inv_freq[i];
        cosines[i] = (float)cos((double)angle);
        sines[i] = (float)sin((double)angle);
    }
}
