/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix × activations of the float formats for AVX2 + FMA + F16C: up to 3 tokens have four
 * accumulators for the 32 rows of a tile, up to 6 have two and take the halves of a tile in turn.
 * The forms are in matmul_float_forms.h.
 */
#include <immintrin.h>

#include "kernels/float_tile.h"

#define INLINE static inline __attribute__((always_inline))
#define GROUP 6 // 12 accumulators of 16 registers

enum {
    LINE = 16,   // columns of a line of activations
    STEP = 4,    // columns written out in the loop
    PASS = 128,  // columns that a group takes of both halves in turn: in L1 for the second one
    DEPTH = 128, // columns expanded to float32 at a time: 16 KiB
};

INLINE size_t column_bytes(kwk_format format, int n)
{
    return (size_t)n * KWK_TILE * (format == KWK_F32 ? 4 : 2);
}

/* Column k as float32: v[i] is rows row + 8 i .. row + 8 i + 7, row a multiple of 8. */
INLINE void load_column(kwk_format format, const uint8_t *w, int k, int row, const int n_vec,
                        __m256 *v)
{
#pragma GCC unroll 16
    for (int i = 0; i < n_vec; i++, row += 8) {
        switch (format) {
        case KWK_F16:
            v[i] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(w + k * 64 + row * 2)));
            break;
        case KWK_BF16: { // column pairs: the even one in the low halves
            const __m256i u = _mm256_load_si256((const __m256i *)(w + k / 2 * 128 + row * 4));
            v[i] = _mm256_castsi256_ps(k % 2 ? _mm256_and_si256(u, _mm256_set1_epi32(-65536))
                                             : _mm256_slli_epi32(u, 16));
            break;
        }
        default:
            v[i] = _mm256_load_ps((const float *)w + k * 32 + row);
        }
    }
}

INLINE void prefetch(const uint8_t *p, const int n_lines)
{
#pragma GCC unroll 16
    for (int i = 0; i < n_lines; i++)
        _mm_prefetch((const char *)p + 64 * i, _MM_HINT_T0);
}

/* strip() for the 8 * n_vec rows from row on. */
INLINE void rows_strip(kwk_format format, const int n, int row, const int n_vec, const uint8_t *w,
                       const float *x, int cols, float *y, size_t ldy, int first,
                       const uint8_t *ahead, const int n_ahead)
{
    __m256 acc[GROUP][4];

    y += row;
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
#pragma GCC unroll 16
        for (int i = 0; i < n_vec; i++)
            acc[t][i] = first ? _mm256_setzero_ps() : _mm256_load_ps(y + (size_t)t * ldy + 8 * i);
    }
    for (int line = 0; line < cols / LINE; line++, x += n * LINE) {
        for (int k = 0; k < LINE; k += STEP, w += column_bytes(format, STEP)) {
            prefetch(ahead, STEP / 2 * n_ahead);
            ahead += STEP / 2 * n_ahead * 64;
#pragma GCC unroll 16
            for (int j = 0; j < STEP; j++) {
                __m256 v[4];
                load_column(format, w, j, row, n_vec, v);
#pragma GCC unroll 16
                for (int t = 0; t < n; t++) {
                    const __m256 xt = _mm256_set1_ps(x[t * LINE + k + j]);
#pragma GCC unroll 16
                    for (int i = 0; i < n_vec; i++)
                        acc[t][i] = _mm256_fmadd_ps(v[i], xt, acc[t][i]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
#pragma GCC unroll 16
        for (int i = 0; i < n_vec; i++)
            _mm256_store_ps(y + (size_t)t * ldy + 8 * i, acc[t][i]);
    }
}

/* 32 rows × n tokens over some columns, a multiple of 16, of a tile whose first one is at w.
 *   x         column 16 l + i of token t is x[(l * n + t) * 16 + i]
 *   y         y[t * ldy + row]: the accumulators come from here unless `first`, and end here
 *   ahead     prefetched, n_ahead lines of 64 bytes per 2 columns; may lie outside any object */
INLINE void strip(kwk_format format, const int n, const uint8_t *w, const float *x, int cols,
                  float *y, size_t ldy, int first, const uint8_t *ahead, const int n_ahead)
{
    if (n <= 2) {
        rows_strip(format, n, 0, 4, w, x, cols, y, ldy, first, ahead, n_ahead);
        return;
    }
    for (int half = 0; half < 2; half++)
        rows_strip(format, n, 16 * half, 2, w, x, cols, y, ldy, first,
                   ahead + (size_t)half * (size_t)cols * 16 * n_ahead, n_ahead / 2);
}

/* Columns of a tile as float32, dst[k][32]. */
INLINE void expand(kwk_format format, float *dst, const uint8_t *w, int cols)
{
    for (int k = 0; k < cols; k += 2, w += column_bytes(format, 2)) {
#pragma GCC unroll 16
        for (int j = 0; j < 2; j++, dst += KWK_TILE) {
            __m256 v[4];
            load_column(format, w, j, 0, 4, v);
#pragma GCC unroll 16
            for (int i = 0; i < 4; i++)
                _mm256_store_ps(dst + 8 * i, v[i]);
        }
    }
}

#include "kernels/matmul_float_forms.h"

void kwk_gemv_f32__avx2(const kwk_matmul *a)
{
    gemv(KWK_F32, a);
}

void kwk_small_f32__avx2(const kwk_matmul *a)
{
    kwk_gemm_f32__avx2(a);
}

void kwk_gemm_f32__avx2(const kwk_matmul *a)
{
    matmul(KWK_F32, a);
}

void kwk_gemv_f16__avx2(const kwk_matmul *a)
{
    gemv(KWK_F16, a);
}

void kwk_small_f16__avx2(const kwk_matmul *a)
{
    kwk_gemm_f16__avx2(a);
}

void kwk_gemm_f16__avx2(const kwk_matmul *a)
{
    matmul(KWK_F16, a);
}

void kwk_gemv_bf16__avx2(const kwk_matmul *a)
{
    gemv(KWK_BF16, a);
}

void kwk_small_bf16__avx2(const kwk_matmul *a)
{
    kwk_gemm_bf16__avx2(a);
}

void kwk_gemm_bf16__avx2(const kwk_matmul *a)
{
    matmul(KWK_BF16, a);
}
