/* SPDX-License-Identifier: Apache-2.0
 *
 * A gemm that sums in descending order: right up to rounding, and wrong by invariant I1. Linked
 * only into the build that the invariance suite must fail.
 */
#ifndef KWK_TESTS_SUPPORT_BROKEN_GEMM_H
#define KWK_TESTS_SUPPORT_BROKEN_GEMM_H

#include "kernels/kernels.h"

void broken_gemm(const kwk_kernels *k, const kwk_matmul *a);

#endif
