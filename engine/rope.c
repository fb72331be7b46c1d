/* SPDX-License-Identifier: Apache-2.0
 *
 * RoPE's inverse frequencies. The steps and their float32 roundings are those of Hugging Face's
 * initialisers: a last bit of a frequency is a visible angle at position 100000. Powers are taken
 * in double and rounded once, which is what a correctly rounded powf would give. Pure.
 */
#include <math.h>

#include "engine/recipe.h"

void kwk_recipe_inv_freq(const kwk_recipe *r, float *inv_freq)
{
    const float factor = r->rope_factor, low = r->rope_low_freq, high = r->rope_high_freq;
    const float context = (float)r->rope_original_max_pos;

    for (int i = 0; i < r->rope_dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)r->rope_dim;
        const float power = (float)pow((double)r->rope_theta, (double)exponent);
        float f = 1.0f / power;
        if (r->rope_type == KWK_ROPE_LINEAR) {
            f /= factor;
        } else if (r->rope_type == KWK_ROPE_LLAMA3) {
            /* Long waves are slowed down, short ones kept, and those between interpolated. */
            const double longest = (double)context / low, shortest = (double)context / high;
            const float wave = 1.0f / f * (float)(2 * M_PI); // number / tensor, as torch does it
            const float scaled = wave > (float)longest ? f / factor : f;
            const float smooth = (1.0f / wave * context - low) / (high - low);
            if (wave < (float)shortest || wave > (float)longest)
                f = scaled;
            else
                f = (1 - smooth) * scaled / factor + smooth * scaled;
        }
        inv_freq[i] = f;
    }
}
