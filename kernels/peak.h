/* SPDX-License-Identifier: Apache-2.0
 *
 * Register loops: what a core computes per second when nothing waits for memory. Not kernels of
 * the table; kwk-bench sets the matmul kernels beside them. Pure.
 */
#ifndef KWK_KERNELS_PEAK_H
#define KWK_KERNELS_PEAK_H

/* Operations done (a multiplication with its addition counts as two). */
typedef double kwk_peak_fn(long rounds);

#define KWK_PEAK_FNS(isa) kwk_peak_fn kwk_peak_f32__##isa, kwk_peak_i8__##isa;
KWK_PEAK_FNS(avx2)
KWK_PEAK_FNS(avx512)
#undef KWK_PEAK_FNS

#endif
