/* SPDX-License-Identifier: Apache-2.0
 *
 * The vector twins of kernels/math.h as functions, for test_math.c: math_<isa>.c has them, n is a
 * multiple of 16. Call one only on a CPU that runs it.
 */
#ifndef KWK_TESTS_KERNELS_MATH_ISA_H
#define KWK_TESTS_KERNELS_MATH_ISA_H

typedef void math_fn(float *y, const float *x, int n);
math_fn math_exp_avx2, math_tanh_avx2, math_exp_avx512, math_tanh_avx512;

#endif
