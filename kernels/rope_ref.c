/* SPDX-License-Identifier: Apache-2.0
 *
 * rope: the contract in kernels.h, word for word.
 */
#include <math.h>

#include "kernels/kernels.h"

void kwk_rope__ref(float *x, const float *cos, const float *sin, int n_heads, int rot, size_t ld)
{
    const int half = rot / 2;

    for (int h = 0; h < n_heads; h++, x += ld) {
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = fmaf(-b, sin[i], a * cos[i]);
            x[i + half] = fmaf(a, sin[i], b * cos[i]);
        }
    }
}
