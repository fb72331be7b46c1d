/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel contract, the packed layouts they read, and the table they are called through.
 * Kernels are leaf arithmetic: libc only, no allocation, no threads, no logging, no errors.
 *
 * The common rule (invariant I1): a contract fixes the order of every floating-point operation of
 * an output element, so that all variants of a slot, on every instruction set and in every form
 * (gemv, small batch, gemm), give the same bits as its `__ref`. Nothing is compiled with
 * fast-math, contraction is off; where a contract says fmaf, variants use a fused multiply-add.
 *
 * "Lane sum" below means: 16 partial sums, element i goes to partial i % 16 in ascending i, each
 * an fmaf or add chain from +0; then p[i] += p[i+8] (i < 8), p[i] += p[i+4] (i < 4),
 * p[i] += p[i+2] (i < 2), p[0] + p[1].
 */
#ifndef KWK_KERNELS_KERNELS_H
#define KWK_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#define KWK_ARCH_X86_64 1
#elif defined(__aarch64__)
#define KWK_ARCH_AARCH64 1
#endif

enum {
    KWK_PANEL = 16,  // rows that integer formats store together
    KWK_TILE = 32,   // rows of the unit that work is split by; rows are padded to it
    KWK_GROUP = 32,  // columns that share one activation scale; columns are padded to it
    KWK_SUPER = 256, // columns that share one fp16 weight scale
    KWK_BLOCK = 32,  // slots of a KV block
    KWK_SPLIT = 256, // slots summed before a merge in attention
    KWK_LANES = 16,  // partial sums of a lane sum
    KWK_SMALL = 8,   // most tokens of the small-batch form
    KWK_MATMUL_SCRATCH = 256 * 1024, // bytes of kwk_matmul.scratch
    KWK_ATTN_SCRATCH = 64 * 1024,    // bytes of kwk_attn.scratch
    KWK_ATTN_QUERIES = 32, // most queries of one attention call
    KWK_HEAD_DIM_MAX = 512,
};

/* ---- weight formats -------------------------------------------------------------------------
 * Numbers are file format: append, never renumber.
 *
 * A matrix of `rows` outputs × `cols` inputs is padded to rows_pad (multiple of 32) × cols_pad
 * (multiple of 32) with zero weights, and stored as rows_pad / 32 tiles, each contiguous and of
 * kwk_mat_tile_bytes() bytes. Little-endian.
 *
 * F32, F16: tile = for each column k ascending, 32 values, row r of the tile at index r.
 * BF16:     tile = for each pair of columns (k, k+1) ascending, 64 values: row r's two values
 *           side by side (w[r][k], w[r][k+1]); rows 0..15 fill the first 64 bytes, 16..31 the next.
 * I8, I6, I4: tile = two panels of 16 rows, one after the other; panel = superblocks of 256 columns
 *           (the last may hold fewer groups of 32 columns), one after the other.
 *   I8 superblock of n groups, 32 + 512 n bytes:
 *           fp16 S[16 rows]; then for each 4 columns ascending: [16 rows][4] bytes q + 128,
 *           -127 <= q <= 127.                weight = S * q * 2^exponent
 *   I6 superblock of n groups, 32 + 16 n + 384 n bytes:
 *           fp16 S[16 rows]; u8 sc[n groups][16 rows]: bits 7..2 the signed group scale
 *           s + 32 (-31 <= s <= 31), bits 1..0 the group offset o; then for each 16 columns
 *           ascending, k the first of them, 192 bytes: the low nibbles of the codes as in I4,
 *           [2 j][16 rows][4], and their two high bits, [16 rows][4]: byte c of row r holds those
 *           of column k + 4i + c in its bits 2i and 2i + 1.
 *                           weight = S * s * (code + 4 o - KWK_I6_CENTER) * 2^exponent
 *   I4 superblock of n groups, 32 + 16 n + 256 n bytes:
 *           fp16 S[16 rows]; u8 sc[n groups][16 rows]: bits 7..3 the signed group scale
 *           s + 16 (-15 <= s <= 15), bits 2..0 the group offset o; then nibbles
 *           [n groups][4 j][16 rows][4]: byte c of row r of piece j holds column 32g + 8j + c in
 *           its low nibble and 32g + 8j + 4 + c in its high one.
 *                           weight = S * s * (KWK_I4_GRID[code] + 2 o - KWK_I4_CENTER) * 2^exponent
 * The pieces of a superblock lie in the order that a product takes them, so that a panel is one
 * stream: the high bits of I6 follow the nibbles they belong to. They are where a shift by 0, 2 or
 * 4 bits brings them above a nibble; in AVX-512, where one instruction chooses bits by a mask, 64
 * codes cost under 3 instructions, in AVX2 32 codes cost just over 4.
 * Padding rows: S = 0, s = 0 (I6, I4), bytes 128 (I8), codes 0. Padding columns: bytes 128 (I8), any
 * codes (I6, I4; a group of I4 need not have a code for 0, and the activations there are 0).
 */
typedef enum kwk_format {
    KWK_F32 = 1,
    KWK_F16 = 2,
    KWK_BF16 = 3,
    KWK_I8 = 4,
    KWK_I4 = 5,
    KWK_I6 = 6,
    KWK_FORMAT_END // one past the last
} kwk_format;

/* The 16 code points of I4: unsigned 7-bit, so that a sum of two products with activations fits
 * int16, and denser near the middle, as weights are. Points and center are those of the least
 * squared error on normal and on model weights, with the search of pack_i4.c. */
enum { KWK_I4_CENTER = 76 };
extern const uint8_t kwk_i4_grid[16];

/* I6 is linear: the grid's gain is small at 6 bits, and it would need wider lookups. The offset
 * takes two of the scale's bits, which are worth less: normal weights lose 3.5e-4 of their square
 * and model weights 3.9e-4, without it and with an exact scale 3.9e-4 and 4.6e-4 at best. */
enum { KWK_I6_CENTER = 32 };

typedef struct kwk_mat {
    kwk_format format;
    int rows, cols;         // logical
    int rows_pad, cols_pad; // kwk_pad32() of them
    int exponent;           // integer formats: power of two that keeps S normal, -126..127;
                            //   float ones: 0
    uint8_t *data;          // rows_pad / 32 tiles, 64-byte aligned; kernels only read it
} kwk_mat;

static inline int kwk_pad32(int n)
{
    return (int)(((unsigned)n + 31u) & ~31u);
}

static inline int kwk_format_is_int(kwk_format f)
{
    return f == KWK_I8 || f == KWK_I6 || f == KWK_I4;
}

/* Bytes of one tile of 32 rows; 0 for an unknown format. cols_pad is a multiple of 32. */
size_t kwk_mat_tile_bytes(kwk_format format, int cols_pad);

/* "float32", "f16", "bf16", "int8", "int6", "int4"; NULL for an unknown format. */
const char *kwk_format_name(kwk_format format);

/* ---- packing (pack_<format>.c: plain C, any CPU, deterministic) -------------------------------
 * Each call fills one tile of w->data from float32 rows.
 *   src         (n_rows, ld_src) float32, 1 <= n_rows <= 32; the other rows of the tile are padding
 *   importance  (cols) non-negative weights of the squared error per column, or NULL for equal
 * F32, F16, BF16 round to nearest even (exact when the source was of that type).
 * I8, I6, I4 search scales that minimise sum_k importance[k] * (w[k] - stored[k])^2 per row.
 * w->exponent must have been set by kwk_pack_exponent() from the largest |w| of the whole tensor.
 */
void kwk_pack_tile(const kwk_mat *w, int tile, const float *src, size_t ld_src, int n_rows,
                   const float *importance);
int kwk_pack_exponent(kwk_format format, float amax); // 0 for float formats and amax == 0

/* ---- matrix × activations --------------------------------------------------------------------- */

/* Activations as the integer formats take them: groups of 32 columns share a scale.
 *   q      (m, ldq) int8, -127..127; ldq >= cols_pad; padding columns 0
 *   scale  (m, lds) float32, scale >= 0; x ~ q * scale; lds >= cols_pad / 32
 *   sum    (m, lds) int32, sum of the q of the group                                            */
typedef struct kwk_qact {
    int8_t *q;
    float *scale;
    int32_t *sum;
    size_t ldq, lds; // in elements
} kwk_qact;

typedef struct kwk_matmul {
    const kwk_mat *w;
    int tile0, tile1;  // tiles of 32 rows to compute: tile0 <= t < tile1
    int m;             // tokens: gemv 1; small 1..KWK_SMALL; gemm any >= 1
    const float *x;    // float formats: (m, ldx) float32, padding columns 0; else NULL
    size_t ldx;        // >= cols_pad, multiple of 16
    const kwk_qact *q; // integer formats: (m) rows; else NULL
    float *y;          // (m, ldy) float32: y[t * ldy + row]; every row of the tiles is written,
    size_t ldy;        //   padding rows too; nothing else. ldy >= rows_pad, multiple of 16
    void *scratch;     // KWK_MATMUL_SCRATCH bytes, 64-byte aligned, private to the thread
} kwk_matmul;

/* y[t][r] for the rows of the tiles. x, y, w->data are 64-byte aligned; y overlaps nothing.
 *
 * Float formats: acc = +0; for k = 0 … cols_pad-1: acc = fmaf(w[r][k], x[t][k], acc); y = acc.
 *     One chain per output. |y - exact| <= cols * 2^-24 * sum_k |w x| * 1.01.
 * Integer formats, per superblock of 256 columns, groups g ascending inside it:
 *     B_g = sum over the group of q_w * q_x           (I8; exact int32, |B_g| < 2^24)
 *     B_g = s * sum over the group of (code + 4 o - center) * q_x          (I6; the same)
 *     B_g = s * sum over the group of (grid + 2 o - center) * q_x          (I4; the same)
 *     a = +0; a = fmaf((float)B_g, scale[t][g], a) over the groups
 *     y = fmaf(a, S, y), y from +0, superblocks ascending; at the end y *= 2^exponent
 *     (exact unless it leaves float32's normal range).                                          */
typedef void kwk_matmul_fn(const kwk_matmul *a);
typedef kwk_matmul_fn kwk_gemv_f32_fn, kwk_small_f32_fn, kwk_gemm_f32_fn;
typedef kwk_matmul_fn kwk_gemv_f16_fn, kwk_small_f16_fn, kwk_gemm_f16_fn;
typedef kwk_matmul_fn kwk_gemv_bf16_fn, kwk_small_bf16_fn, kwk_gemm_bf16_fn;
typedef kwk_matmul_fn kwk_gemv_i8_fn, kwk_small_i8_fn, kwk_gemm_i8_fn;
typedef kwk_matmul_fn kwk_gemv_i6_fn, kwk_small_i6_fn, kwk_gemm_i6_fn;
typedef kwk_matmul_fn kwk_gemv_i4_fn, kwk_small_i4_fn, kwk_gemm_i4_fn;

/* One row of a matrix as float32, for embeddings: y[k] = weight(row, k), 0 <= k < cols; +0 in the
 * padding up to cols_pad.
 * Integer formats: y = ((float)(int code part, s included) * S) * 2^exponent, in that order.
 *   y  (cols_pad) float32, 64-byte aligned        row  0 <= row < rows                          */
typedef void kwk_gather_fn(float *y, const kwk_mat *w, int row);
typedef kwk_gather_fn kwk_gather_f32_fn, kwk_gather_f16_fn, kwk_gather_bf16_fn;
typedef kwk_gather_fn kwk_gather_i8_fn, kwk_gather_i6_fn, kwk_gather_i4_fn;

/* Activation quantisation of one row. Per group of 32 columns:
 *   amax = max |x|; amax == 0: q = 0, scale = 0; else inv = 127 / amax, q = x * inv rounded to
 *   nearest even (it fits), scale = amax / 127, sum = sum of q. A tiny amax whose inv overflows
 *   counts as 0. A group that holds a NaN or an infinity: q = 0, sum = 0, scale = NAN, so that the
 *   products are NaN too and nobody takes them for numbers.
 *   x  (n) float32, n a multiple of 32      q (n)      scale, sum (n / 32)                      */
typedef void kwk_quant_act_fn(int8_t *q, float *scale, int32_t *sum, const float *x, int n);

/* ---- the rest of a layer ------------------------------------------------------------------------ */

/* RMSNorm (Zhang & Sennrich 2019), Llama's order: ss = lane sum of fmaf(x, x, ·);
 * r = 1 / sqrtf(ss / n + eps); y[i] = w[i] * (x[i] * r).
 *   x, y (n) may be the same array; w (n). No alignment needed. Any n >= 1.
 *   |y - exact| <= (n / 32 + 9) * 2^-24 * |exact|, barring underflow.                           */
typedef void kwk_rmsnorm_fn(float *y, const float *x, const float *w, int n, float eps);

/* Rotary position embedding (Su et al. 2021), half-split layout, in place, on n_heads heads that
 * start every ld floats. For i < rot / 2, a = x[i], b = x[i + rot/2]:
 *   x[i] = fmaf(-b, sin[i], a * cos[i]);  x[i + rot/2] = fmaf(a, sin[i], b * cos[i]).
 * Elements from rot on stay. cos, sin (rot / 2). No alignment needed.
 * |x - exact| <= 2^-23 * (|a| + |b|) for |cos|, |sin| <= 1, barring underflow.                  */
typedef void kwk_rope_fn(float *x, const float *cos, const float *sin, int n_heads, int rot,
                         size_t ld);

/* y[i] = silu(g[i]) * u[i], silu(v) = v / (1 + kwk_expf(-v)). y may be g or u. Any n.
 * |y - exact| <= 3 * 2^-23 * |exact| + 2^-120 * |u|.                                            */
typedef void kwk_silu_mul_fn(float *y, const float *g, const float *u, int n);

/* e[i] = kwk_expf(x[i] - most): the terms of a softmax whose greatest score is most (finite). e may
 * be x. Any n. No alignment needed.                                                             */
typedef void kwk_exp_diff_fn(float *e, const float *x, int n, float most);

/* Index of the greatest value, the lowest index of equals; NaNs are passed over. -1 when all are
 * NaN or n == 0. -0 and +0 are equal.                                                           */
typedef int kwk_argmax_fn(const float *x, int n);

/* Store one token's key and value of one KV head at slot 0 <= slot < 32 of a block.
 *   kb  K block of the head, [dim][32];  vb  V block, [32][dim];  k, v (dim) float32.
 * _f16: elements are IEEE half, rounded to nearest even, saturated to ±65504.                    */
typedef void kwk_kv_store_fn(void *kb, void *vb, const float *k, const float *v, int dim, int slot);
typedef kwk_kv_store_fn kwk_kv_store_f32_fn, kwk_kv_store_f16_fn;

/* Attention of up to 32 queries over one split of up to 256 slots (8 blocks) of one KV head.
 * Slot j of the split (0 <= j < 32 n_blocks) is seen by a query when first <= j <= last and bit
 * j % 32 of valid[j / 32] is set. For each query, in this order:
 *   dot_j = fmaf chain over ascending d of q[d] * K[d][j], from +0;   t_j = dot_j * scale
 *   if softcap > 0: t_j = softcap * kwk_tanhf(t_j / softcap)
 *   max = greatest t_j seen, + 0;  p_j = kwk_expf(t_j - max) for seen slots, +0 for others
 *   sum = lane sum of p_j over j of the whole split (32 n_blocks slots)
 *   o[d] = fmaf chain over ascending j of p_j * V[j][d], from +0; at the end + 0. Slots not seen
 *     may be left out: fmaf(0, v, o) == o for finite v, and adding +0 makes -0 and +0 one. A
 *     block's unwritten slots (bit of valid clear) may hold anything: they must be left out.
 * A query that sees no slot gets max = -INFINITY, sum = 0, o = 0.
 * |o / sum - exact| <= (4 * e + 288 * 2^-24) * max |V|, e the greatest error of a t_j:
 *   (dim + 4) * 2^-24 * scale * sum_d |q K|, and 2^-22 * softcap.                               */
typedef struct kwk_attn_query {
    const float *q;      // (dim)
    int32_t first, last; // slots of this split, first may be < 0, last may be >= 32 n_blocks
    float *part;         // out: (dim + 2): max, sum, o[dim]; 4-byte aligned
} kwk_attn_query;

typedef struct kwk_attn {
    const kwk_attn_query *query;
    int n_queries; // 1..KWK_ATTN_QUERIES
    int n_blocks;  // 1..8
    int dim;       // 1..KWK_HEAD_DIM_MAX
    const void *k[8], *v[8]; // blocks of this head: [dim][32] and [32][dim]; 64-byte aligned
    uint32_t valid[8];
    float scale;
    float softcap; // 0: none
    void *scratch; // KWK_ATTN_SCRATCH bytes, 64-byte aligned
    const void *next; // a hint: the K block that the thread's next call begins with, or NULL
} kwk_attn;
typedef void kwk_attn_fn(const kwk_attn *a);
typedef kwk_attn_fn kwk_attn_f32_fn, kwk_attn_f16_fn;

/* Merge the partial result of the next split into the running one (both: max, sum, o[dim]):
 *   b.sum == 0: nothing changes.  a.sum == 0: a = b.
 *   else m = max(a.max, b.max), ea = kwk_expf(a.max - m), eb = kwk_expf(b.max - m):
 *        sum = fmaf(a.sum, ea, b.sum * eb), o = fmaf(a.o, ea, b.o * eb), max = m.
 * The first split's part is the start of a; splits come in ascending order.                      */
typedef void kwk_attn_merge_fn(float *a, const float *b, int dim);

/* y[d] = a.o[d] / a.sum; 0 when a.sum == 0.                                                      */
typedef void kwk_attn_finish_fn(float *y, const float *a, int dim);

/* exp and tanh, the same bits on every instruction set (math.h of this folder has the formulas).
 * Errors below 1 and 2 ulp; exp: exactly 1 at 0, +0 below 2^-126, a NaN comes back as it is.      */
float kwk_expf(float x);
float kwk_tanhf(float x);

/* ---- the table -------------------------------------------------------------------------------- */

enum {
    KWK_CPU_NONE = 0,
    KWK_CPU_AVX2 = 1 << 0,   // AVX2 + FMA + F16C + BMI
    KWK_CPU_AVX512 = 1 << 1, // AVX-512 F, BW, DQ, VL, VNNI (implies KWK_CPU_AVX2)
    KWK_CPU_NEON = 1 << 2,
};

typedef enum kwk_form { KWK_GEMV, KWK_SMALL_BATCH, KWK_GEMM, KWK_FORM_END } kwk_form;

typedef struct kwk_kernels {
#define KWK_SLOT(slot) kwk_##slot##_fn *slot;
#include "kernels/slots.inc"
#undef KWK_SLOT
} kwk_kernels;

#define KWK_KERNEL(slot, isa, need) kwk_##slot##_fn kwk_##slot##__##isa;
#include "kernels/kernels.inc"
#undef KWK_KERNEL

/* Fill every slot with the best variant that runs with these CPU flags (a set of KWK_CPU_…). */
void kwk_kernels_init(kwk_kernels *k, unsigned cpu);

/* Kernel of a format and form; NULL for an unknown format. */
kwk_matmul_fn *kwk_kernels_matmul(const kwk_kernels *k, kwk_format format, kwk_form form);
kwk_gather_fn *kwk_kernels_gather(const kwk_kernels *k, kwk_format format);

/* What this CPU and OS can run (cpu.c). */
unsigned kwk_cpu_flags(void);

/* Flags of a level by name ("ref", "avx2", "avx512", "neon"), or -1: unknown name. */
int kwk_cpu_level(const char *name);

/* "ref", "avx2", "avx512" or "neon": the level that these flags select. */
const char *kwk_cpu_name(unsigned flags);

#endif
