/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference of gather_i8, gather_i6 and gather_i4: one row as float32 (contract in kernels.h).
 */
#include "kernels/int_tile.h"
#include "kernels/kernels.h"

static void gather(float *y, const kwk_mat *w, int row)
{
    const int n_groups = w->cols_pad / KWK_GROUP, r = row % KWK_PANEL;
    const uint8_t *panel = kwk_int_panel(w, row / KWK_TILE, row % KWK_TILE / KWK_PANEL);
    const float unit = kwk_exp2i(w->exponent);

    for (int g0 = 0; g0 < n_groups; g0 += KWK_SUPER_GROUPS) {
        const int n = kwk_super_groups(n_groups, g0);
        const float super = kwk_super_scale(panel, r);
        int16_t code[KWK_SUPER], s[KWK_SUPER_GROUPS];

        kwk_int_codes(w->format, code, s, panel, n, r);
        for (int k = 0; k < n * KWK_GROUP; k++)
            y[k] = ((float)(s[k / KWK_GROUP] * code[k]) * super) * unit;
        y += n * KWK_GROUP;
        panel += kwk_super_bytes(w->format, n);
    }
    for (int k = w->cols - w->cols_pad; k < 0; k++)
        y[k] = 0;
}

void kwk_gather_i8__ref(float *y, const kwk_mat *w, int row)
{
    gather(y, w, row);
}

void kwk_gather_i6__ref(float *y, const kwk_mat *w, int row)
{
    gather(y, w, row);
}

void kwk_gather_i4__ref(float *y, const kwk_mat *w, int row)
{
    gather(y, w, row);
}
