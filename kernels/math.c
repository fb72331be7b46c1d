/* SPDX-License-Identifier: Apache-2.0
 *
 * kwk_expf and kwk_tanhf as functions. The formulas are in math.h.
 */
#include "kernels/math.h"

#include "kernels/kernels.h"

float kwk_expf(float x)
{
    return kwk_exp1(x);
}

float kwk_tanhf(float x)
{
    return kwk_tanh1(x);
}
