/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix × activations of the float formats for AVX-512: the 32 rows of a tile are two vectors and
 * each token of a group has two accumulators. The forms are in matmul_float_forms.h.
 */
#include <immintrin.h>

#include "kernels/float_tile.h"

#define INLINE static inline __attribute__((always_inline))
#define GROUP 12 // 24 accumulators of 32 registers

enum {
    LINE = 16,      // columns of a line of activations
    STEP = 4,       // columns written out in the loop
    PASS = 1 << 30, // a group reads all columns in one pass
    DEPTH = 256,    // columns expanded to float32 at a time: 32 KiB
};

INLINE size_t column_bytes(kwk_format format, int n)
{
    return (size_t)n * KWK_TILE * (format == KWK_F32 ? 4 : 2);
}

/* Column k as float32: v[0] rows 0..15, v[1] rows 16..31. */
INLINE void load_column(kwk_format format, const uint8_t *w, int k, __m512 v[2])
{
#pragma GCC unroll 16
    for (int i = 0; i < 2; i++) {
        switch (format) {
        case KWK_F16: {
            const uint8_t *p = w + (size_t)k * 64 + 32 * (size_t)i;
            v[i] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
            break;
        }
        case KWK_BF16: { // column pairs: the even one in the low halves
            const __m512i u = _mm512_load_si512(w + (size_t)(k / 2) * 128 + 64 * (size_t)i);
            v[i] = _mm512_castsi512_ps(k % 2 ? _mm512_and_si512(u, _mm512_set1_epi32(-65536))
                                             : _mm512_slli_epi32(u, 16));
            break;
        }
        default:
            v[i] = _mm512_load_ps((const float *)w + (size_t)k * 32 + 16 * (size_t)i);
        }
    }
}

INLINE void prefetch(const uint8_t *p, const int n_lines)
{
#pragma GCC unroll 16
    for (int i = 0; i < n_lines; i++)
        _mm_prefetch((const char *)p + 64 * i, _MM_HINT_T0);
}

/* 32 rows × n tokens over some columns, a multiple of 16, of a tile whose first one is at w.
 *   x         column 16 l + i of token t is x[(l * n + t) * 16 + i]
 *   y         y[t * ldy + row]: the accumulators come from here unless `first`, and end here
 *   ahead     prefetched, n_ahead lines of 64 bytes per 2 columns; may lie outside any object */
INLINE void strip(kwk_format format, const int n, const uint8_t *w, const float *x, int cols,
                  float *y, size_t ldy, int first, const uint8_t *ahead, const int n_ahead)
{
    __m512 acc[GROUP][2];

#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
#pragma GCC unroll 16
        for (int i = 0; i < 2; i++)
            acc[t][i] = first ? _mm512_setzero_ps() : _mm512_load_ps(y + (size_t)t * ldy + 16 * i);
    }
    for (int line = 0; line < cols / LINE; line++, x += n * LINE) {
        for (int k = 0; k < LINE; k += STEP, w += column_bytes(format, STEP)) {
            prefetch(ahead, STEP / 2 * n_ahead);
            ahead += STEP / 2 * n_ahead * 64;
#pragma GCC unroll 16
            for (int j = 0; j < STEP; j++) {
                __m512 v[2];
                load_column(format, w, j, v);
#pragma GCC unroll 16
                for (int t = 0; t < n; t++) {
                    const __m512 xt = _mm512_set1_ps(x[t * LINE + k + j]);
                    acc[t][0] = _mm512_fmadd_ps(v[0], xt, acc[t][0]);
                    acc[t][1] = _mm512_fmadd_ps(v[1], xt, acc[t][1]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
#pragma GCC unroll 16
        for (int i = 0; i < 2; i++)
            _mm512_store_ps(y + (size_t)t * ldy + 16 * i, acc[t][i]);
    }
}

/* Columns of a tile as float32, dst[k][32]. */
INLINE void expand(kwk_format format, float *dst, const uint8_t *w, int cols)
{
    for (int k = 0; k < cols; k += 2, dst += 2 * KWK_TILE, w += column_bytes(format, 2)) {
#pragma GCC unroll 16
        for (int j = 0; j < 2; j++) {
            __m512 v[2];
            load_column(format, w, j, v);
            _mm512_store_ps(dst + 32 * j, v[0]);
            _mm512_store_ps(dst + 32 * j + 16, v[1]);
        }
    }
}

#include "kernels/matmul_float_forms.h"

void kwk_gemv_f32__avx512(const kwk_matmul *a)
{
    gemv(KWK_F32, a);
}

void kwk_small_f32__avx512(const kwk_matmul *a)
{
    kwk_gemm_f32__avx512(a);
}

void kwk_gemm_f32__avx512(const kwk_matmul *a)
{
    matmul(KWK_F32, a);
}

void kwk_gemv_f16__avx512(const kwk_matmul *a)
{
    gemv(KWK_F16, a);
}

void kwk_small_f16__avx512(const kwk_matmul *a)
{
    kwk_gemm_f16__avx512(a);
}

void kwk_gemm_f16__avx512(const kwk_matmul *a)
{
    matmul(KWK_F16, a);
}

void kwk_gemv_bf16__avx512(const kwk_matmul *a)
{
    gemv(KWK_BF16, a);
}

void kwk_small_bf16__avx512(const kwk_matmul *a)
{
    kwk_gemm_bf16__avx512(a);
}

void kwk_gemm_bf16__avx512(const kwk_matmul *a)
{
    matmul(KWK_BF16, a);
}
