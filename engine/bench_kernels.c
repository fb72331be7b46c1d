/* SPDX-License-Identifier: Apache-2.0
 *
 * kwk-bench --kernels: every row of kernels.inc that this CPU runs, on one thread, beside the read
 * bandwidth and the register-loop peak of the same thread. gemv reads a matrix larger than the
 * caches; the other forms compute on one that stays in them. Part of the program: prints.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/bench.h"
#include "engine/executor.h"
#include "engine/kwk.h"
#include "engine/ops.h"
#include "kernels/peak.h"

enum {
    STREAM_BYTES = 128 << 20, // more than the caches hold
    COLS = 2048,
    MAX_M = 128,
    MIN_NS = 15000000, // a measurement lasts at least this long
};

double kwk_bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the roofs ------------------------------------------------------------------------------ */

typedef struct reading {
    const uint64_t *words;
    size_t n;     // words
    size_t ahead; // words that a prefetch runs ahead; 0: none
    atomic_ullong sum;
} reading;

static void read_share(void *arg, const kwk_worker *w)
{
    reading *r = arg;
    const size_t lo = r->n / 64 * (size_t)w->id / (size_t)w->n * 64;
    const size_t hi = r->n / 64 * (size_t)(w->id + 1) / (size_t)w->n * 64;
    uint64_t s[8] = {0}, sum = 0;

    for (size_t i = lo; i < hi; i += 8) {
        if (r->ahead) // past the end it does nothing
            __builtin_prefetch(&r->words[i + r->ahead]);
        for (int k = 0; k < 8; k++)
            s[k] += r->words[i + (size_t)k];
    }
    for (int k = 0; k < 8; k++)
        sum += s[k];
    atomic_fetch_add(&r->sum, sum);
}

double kwk_bench_read_bandwidth(int n_threads)
{
    reading r = {.n = STREAM_BYTES / sizeof(uint64_t)};
    const kwk_job job = {.work = read_share, .arg = &r};
    const int before = kwk_threads();
    uint64_t *words = aligned_alloc(64, STREAM_BYTES);
    double best = 0;

    if (!words)
        return 0;
    memset(words, 1, STREAM_BYTES);
    r.words = words;
    kwk_set_threads(n_threads, NULL);
    for (int i = 0; i < 9; i++) {
        r.ahead = i % 2 ? 1024 : 0; // the hardware's own prefetching may be as good or better
        const double start = kwk_bench_now();
        if (kwk_executor_run(&job, NULL) != KWK_OK)
            break;
        const double rate = STREAM_BYTES / (kwk_bench_now() - start);
        if (rate > best && i > 0) // the first one starts the team
            best = rate;
    }
    kwk_set_threads(before, NULL);
    free(words);
    return best;
}

static double peak(kwk_peak_fn *fn, int repeats) // operations a second
{
    double best = 0;

    for (int i = 0; i < repeats; i++) {
        const double start = kwk_bench_now();
        const double ops = fn(400000);
        const double rate = ops / (kwk_bench_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- one kernel ----------------------------------------------------------------------------- */

typedef struct bench {
    int json, repeats, n_printed;
    double bandwidth;               // roofs of one thread; 0: unknown
    double peak_f32[2], peak_i8[2]; // AVX2, AVX-512
    float *x, *y, *z, *cosines, *sines;
    int8_t *q;
    float *scale;
    int32_t *sum;
    void *scratch, *kv;
    kwk_mat stream, cached; // of the format at hand
} bench;

typedef struct call { // one kernel call, for the clock
    void (*run)(struct call *c);
    bench *b;
    void *fn;
    int m, n;
} call;

static double seconds_per_call(call *c)
{
    double best = 1e9;

    c->run(c);
    for (int i = 0; i < c->b->repeats; i++) {
        const double start = kwk_bench_now();
        double spent;
        long calls = 0;

        do {
            c->run(c);
            calls++;
            spent = kwk_bench_now() - start;
        } while (spent < MIN_NS * 1e-9);
        if (spent / (double)calls < best)
            best = spent / (double)calls;
    }
    return best;
}

/* ops_roof: 'f' float32 arithmetic, 'i' int8, 0 neither. */
static void print_row(bench *b, const char *slot, const char *isa, const char *what, double bytes,
                      double ops, char ops_roof, double seconds)
{
    const double *roofs = ops_roof == 'f' ? b->peak_f32 : b->peak_i8;
    const double roof_ops = !ops_roof                ? 0
                            : !strcmp(isa, "avx2")   ? roofs[0]
                            : !strcmp(isa, "avx512") ? roofs[1]
                                                     : 0;
    const double gb = bytes / seconds * 1e-9, go = ops / seconds * 1e-9;

    if (b->json) {
        printf("%s\n  {\"kernel\": \"%s\", \"isa\": \"%s\", \"size\": \"%s\", \"gb_s\": %.2f, "
               "\"gop_s\": %.2f, \"us\": %.3f}",
               b->n_printed ? "," : "[", slot, isa, what, gb, go, seconds * 1e6);
    } else {
        printf("| %-12s | %-6s | %-18s | %8.1f | %5.0f %% | %8.1f |", slot, isa, what, gb,
               b->bandwidth > 0 ? 100 * gb * 1e9 / b->bandwidth : 0, go);
        if (roof_ops > 0)
            printf(" %5.0f %% |", 100 * go * 1e9 / roof_ops);
        else
            printf("         |");
        printf(" %9.2f |\n", seconds * 1e6);
    }
    b->n_printed++;
    fflush(stdout);
}

static void run_matmul(call *c)
{
    bench *b = c->b;
    const kwk_mat *w = c->m == 1 ? &b->stream : &b->cached;
    const kwk_qact q = {b->q, b->scale, b->sum, COLS, COLS / 32};
    const kwk_matmul a = {.w = w,
                          .tile0 = 0,
                          .tile1 = w->rows_pad / KWK_TILE,
                          .m = c->m,
                          .x = b->x,
                          .ldx = COLS + 16,
                          .q = &q,
                          .y = b->y,
                          .ldy = (size_t)w->rows_pad + 16,
                          .scratch = b->scratch};

    ((kwk_matmul_fn *)c->fn)(&a);
}

static void bench_matmul(bench *b, const char *slot, const char *isa, kwk_matmul_fn *fn, int m)
{
    call c = {run_matmul, b, (void *)fn, m, 0};
    const kwk_mat *w = m == 1 ? &b->stream : &b->cached;
    const double weights = (double)w->rows * COLS;
    const double bytes = (double)kwk_mat_tile_bytes(w->format, COLS) * (w->rows / KWK_TILE);
    char what[64];

    snprintf(what, sizeof what, "%dx%d, m %d", w->rows, COLS, m);
    print_row(b, slot, isa, what, bytes, 2 * weights * m, kwk_format_is_int(w->format) ? 'i' : 'f',
              seconds_per_call(&c));
}

/* A matrix of `tiles` copies of one packed tile. */
static kwk_mat make_mat(kwk_format format, int tiles)
{
    kwk_mat w = {.format = format,
                 .rows = tiles * KWK_TILE,
                 .cols = COLS,
                 .rows_pad = tiles * KWK_TILE,
                 .cols_pad = COLS,
                 .exponent = kwk_pack_exponent(format, 1)};
    const size_t bytes = kwk_mat_tile_bytes(format, COLS);
    float *src = malloc(sizeof(float) * KWK_TILE * COLS);

    w.data = aligned_alloc(64, bytes * (size_t)tiles);
    if (w.data && src) {
        for (int i = 0; i < KWK_TILE * COLS; i++)
            src[i] = sinf((float)i * 0.7f);
        kwk_pack_tile(&w, 0, src, COLS, KWK_TILE, NULL);
        for (int t = 1; t < tiles; t++)
            memcpy(w.data + (size_t)t * bytes, w.data, bytes);
    } else {
        free(w.data);
        w.data = NULL;
    }
    free(src);
    return w;
}

/* ---- the other slots ------------------------------------------------------------------------ */

enum { DIM = 64, LONG_ROW = 2048 };

static void run_quant_act(call *c)
{
    ((kwk_quant_act_fn *)c->fn)(c->b->q, c->b->scale, c->b->sum, c->b->x, c->n);
}
static void run_rmsnorm(call *c)
{
    ((kwk_rmsnorm_fn *)c->fn)(c->b->y, c->b->x, c->b->z, c->n, 1e-5f);
}
static void run_rope(call *c)
{
    ((kwk_rope_fn *)c->fn)(c->b->y, c->b->cosines, c->b->sines, c->n / DIM, DIM, DIM);
}
static void run_silu_mul(call *c)
{
    ((kwk_silu_mul_fn *)c->fn)(c->b->y, c->b->x, c->b->z, c->n);
}
static void run_exp_diff(call *c)
{
    ((kwk_exp_diff_fn *)c->fn)(c->b->y, c->b->x, c->n, 1.0f);
}
static void run_argmax(call *c)
{
    volatile int at = ((kwk_argmax_fn *)c->fn)(c->b->x, c->n);
    (void)at;
}
static void run_gather(call *c)
{
    ((kwk_gather_fn *)c->fn)(c->b->y, &c->b->cached, 5);
}
static void run_kv_store(call *c)
{
    ((kwk_kv_store_f32_fn *)c->fn)(c->b->kv, (char *)c->b->kv + 65536, c->b->x, c->b->z, DIM, 7);
}
static void run_merge(call *c)
{
    c->b->y[0] = c->b->z[0] = 0;
    c->b->y[1] = c->b->z[1] = 1;
    ((kwk_attn_merge_fn *)c->fn)(c->b->y, c->b->z, DIM);
}
static void run_finish(call *c)
{
    c->b->z[1] = 2;
    ((kwk_attn_finish_fn *)c->fn)(c->b->y, c->b->z, DIM);
}
static void run_attn(call *c) // n: bytes of an element; m: queries
{
    bench *b = c->b;
    const size_t head = (size_t)DIM * KWK_BLOCK * (size_t)c->n;
    kwk_attn_query queries[KWK_ATTN_QUERIES];
    kwk_attn a = {.query = queries,
                  .n_queries = c->m,
                  .n_blocks = 8,
                  .dim = DIM,
                  .scale = 0.125f,
                  .scratch = b->scratch};

    for (int i = 0; i < c->m; i++)
        queries[i] = (kwk_attn_query){b->x + i * DIM, 0, KWK_SPLIT - 1, b->y + i * (DIM + 2)};
    for (size_t i = 0; i < 8; i++) {
        a.k[i] = (char *)b->kv + 2 * i * head;
        a.v[i] = (char *)b->kv + (2 * i + 1) * head;
        a.valid[i] = UINT32_MAX;
    }
    ((kwk_attn_fn *)c->fn)(&a);
}

/* Bytes and operations of a call by the slot's formula in kernels.h. */
static void bench_other(bench *b, const char *slot, const char *isa, void *fn)
{
    static const struct {
        const char *slot, *what;
        void (*run)(call *c);
        int m, n;
        double bytes, ops;
    } slots[] = {
        {"quant_act", "n 2048", run_quant_act, 0, LONG_ROW, LONG_ROW * 5, LONG_ROW * 3},
        {"rmsnorm", "n 2048", run_rmsnorm, 0, LONG_ROW, LONG_ROW * 12, LONG_ROW * 4},
        {"rope", "32 heads of 64", run_rope, 0, LONG_ROW, LONG_ROW * 8, LONG_ROW * 3},
        {"silu_mul", "n 2048", run_silu_mul, 0, LONG_ROW, LONG_ROW * 12, LONG_ROW * 12},
        {"exp_diff", "n 131072", run_exp_diff, 0, 131072, 131072 * 8, 131072 * 10},
        {"argmax", "n 131072", run_argmax, 0, 131072, 131072 * 4, 131072},
        {"kv_store_f32", "dim 64", run_kv_store, 0, 0, DIM * 16, 0},
        {"kv_store_f16", "dim 64", run_kv_store, 0, 0, DIM * 12, 0},
        {"attn_merge", "dim 64", run_merge, 0, 0, DIM * 12, DIM * 3},
        {"attn_finish", "dim 64", run_finish, 0, 0, DIM * 8, DIM},
    };

    if (!strncmp(slot, "attn_f32", 8) || !strncmp(slot, "attn_f16", 8)) {
        const int elem = slot[6] == '3' ? 4 : 2;
        for (int m = 4; m <= 32; m += 28) {
            call c = {run_attn, b, fn, m, elem};
            char what[32];
            snprintf(what, sizeof what, "256 x 64, m %d", m);
            print_row(b, slot, isa, what, 2.0 * KWK_SPLIT * DIM * elem, 4.0 * KWK_SPLIT * DIM * m,
                      'f', seconds_per_call(&c));
        }
        return;
    }
    if (!strncmp(slot, "gather", 6)) {
        call c = {run_gather, b, fn, 0, 0};
        print_row(b, slot, isa, "2048 columns", COLS * 4.0, COLS, 0, seconds_per_call(&c));
        return;
    }
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!strcmp(slots[i].slot, slot)) {
            call c = {slots[i].run, b, fn, slots[i].m, slots[i].n};
            print_row(b, slot, isa, slots[i].what, slots[i].bytes, slots[i].ops, 0,
                      seconds_per_call(&c));
        }
}

/* ---- all of them ---------------------------------------------------------------------------- */

static kwk_format format_of(const char *slot)
{
    static const struct {
        const char *end;
        kwk_format format;
    } ends[] = {{"_f32", KWK_F32}, {"_bf16", KWK_BF16}, {"_f16", KWK_F16},
                {"_i8", KWK_I8},   {"_i6", KWK_I6},     {"_i4", KWK_I4}};
    const size_t n = strlen(slot);

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t k = strlen(ends[i].end);
        if (n > k && !strcmp(slot + n - k, ends[i].end))
            return ends[i].format;
    }
    return KWK_FORMAT_END;
}

/* Matrices of the slot's format; the last ones are kept for the next slot of the same format. */
static int use_format(bench *b, kwk_format format)
{
    if (b->stream.format == format)
        return 0;
    free(b->stream.data);
    free(b->cached.data);
    const int tiles = (int)(STREAM_BYTES / kwk_mat_tile_bytes(format, COLS));
    b->stream = make_mat(format, tiles);
    b->cached = make_mat(format, 8);
    return b->stream.data && b->cached.data ? 0 : -1;
}

static int bench_slot(bench *b, const char *slot, const char *isa, void *fn)
{
    static const struct {
        const char *form;
        int m[2];
    } forms[] = {{"gemv", {1, 0}}, {"small", {2, 8}}, {"gemm", {16, MAX_M}}};
    const kwk_format format = format_of(slot);

    if ((!strncmp(slot, "ge", 2) || !strncmp(slot, "small", 5)) && use_format(b, format) < 0)
        return -1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strncmp(slot, forms[i].form, strlen(forms[i].form))) {
            for (int k = 0; k < 2; k++)
                if (forms[i].m[k] && strcmp(isa, "ref")) // references take seconds
                    bench_matmul(b, slot, isa, (kwk_matmul_fn *)fn, forms[i].m[k]);
            return 0;
        }
    bench_other(b, slot, isa, fn);
    return 0;
}

static int bench_all(bench *b)
{
    const unsigned cpu = kwk_cpu_flags();
    int rc = 0;

#define KWK_KERNEL(slot, isa, need)                                                                \
    if (rc == 0 && (cpu & (unsigned)(need)) == (need))                                             \
        rc = bench_slot(b, #slot, #isa, (void *)kwk_##slot##__##isa);
#include "kernels/kernels.inc"
#undef KWK_KERNEL
    return rc;
}

static void *zeros(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

    if (p)
        memset(p, 0, bytes);
    return p;
}

int kwk_bench_kernels(int json, int repeats)
{
    bench b = {.json = json, .repeats = repeats};
    const size_t row = COLS + 16, rows = MAX_M;
    int rc;

    b.x = zeros((rows * row + 131072) * sizeof(float));
    b.z = zeros(rows * row * sizeof(float));
    b.y = zeros((size_t)4 << 20);
    b.cosines = zeros(DIM * sizeof(float));
    b.sines = zeros(DIM * sizeof(float));
    b.q = zeros(rows * COLS);
    b.scale = zeros(rows * COLS / 32 * sizeof(float));
    b.sum = zeros(rows * COLS / 32 * sizeof(int32_t));
    b.scratch = zeros(KWK_MATMUL_SCRATCH);
    b.kv = zeros(1 << 20);
    rc = b.x && b.z && b.y && b.cosines && b.sines && b.q && b.scale && b.sum && b.scratch && b.kv
             ? 0
             : -1;
    if (rc == 0) {
        for (size_t i = 0; i < rows * row; i++)
            b.x[i] = b.z[i] = cosf((float)i);
        memset(b.q, 3, rows * COLS);
        b.bandwidth = kwk_bench_read_bandwidth(1);
#if KWK_ARCH_X86_64
        if (kwk_cpu_flags() & KWK_CPU_AVX2) {
            b.peak_f32[0] = peak(kwk_peak_f32__avx2, repeats);
            b.peak_i8[0] = peak(kwk_peak_i8__avx2, repeats);
        }
        if (kwk_cpu_flags() & KWK_CPU_AVX512) {
            b.peak_f32[1] = peak(kwk_peak_f32__avx512, repeats);
            b.peak_i8[1] = peak(kwk_peak_i8__avx512, repeats);
        }
#endif
        if (!json) {
            printf("one thread: read %.1f GB/s; peak GOP/s: AVX2 float32 %.0f, int8 %.0f, "
                   "AVX-512 float32 %.0f, int8 %.0f\n\n",
                   b.bandwidth * 1e-9, b.peak_f32[0] * 1e-9, b.peak_i8[0] * 1e-9,
                   b.peak_f32[1] * 1e-9, b.peak_i8[1] * 1e-9);
            printf("| kernel       | isa    | size               |     GB/s | of read |    GOP/s | "
                   "of peak |        us |\n|---|---|---|---|---|---|---|---|\n");
        }
        rc = bench_all(&b);
    }
    if (json && b.n_printed)
        printf("\n]\n");
    if (rc < 0)
        fprintf(stderr, "kwk-bench: no memory\n");
    free(b.stream.data);
    free(b.cached.data);
    free(b.kv);
    free(b.scratch);
    free(b.sum);
    free(b.scale);
    free(b.q);
    free(b.sines);
    free(b.cosines);
    free(b.y);
    free(b.z);
    free(b.x);
    return rc < 0;
}
