/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_f32, attn_f16, attn_merge and attn_finish: the reference against a float64 softmax, every
 * variant against the reference bit for bit. Slots that are not valid hold NaNs.
 */
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/half.h"

enum { DIM_MAX = 512, SPLITS_MAX = 4, SLOTS_MAX = SPLITS_MAX * KWK_SPLIT };

static const int dims[] = {1, 3, 8, 13, 23, 37, 64, 96, 112, 128, 256};
static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 32};

/* One KV head of a sequence and the queries on it. */
typedef struct scene {
    int dim, half, n_blocks, n_queries;
    void *k[SLOTS_MAX / KWK_BLOCK], *v[SLOTS_MAX / KWK_BLOCK];
    uint32_t valid[SLOTS_MAX / KWK_BLOCK];
    float *q[KWK_ATTN_QUERIES], *part[KWK_ATTN_QUERIES];
    int first[KWK_ATTN_QUERIES], last[KWK_ATTN_QUERIES]; // slots of the sequence
    float scale, softcap;
    void *scratch;
    double v_max;
} scene;

static double element(const void *block, size_t i, int half)
{
    return half ? (double)kwk_f16_to_f32(((const uint16_t *)block)[i])
                : (double)((const float *)block)[i];
}

/* All slots valid and seen; every element of a block is NaN until it is stored. */
static void scene_init(scene *s, int dim, int half, int n_blocks, int n_queries)
{
    const size_t bytes = (size_t)(KWK_BLOCK * dim) * (half ? 2 : 4);

    memset(s, 0, sizeof *s);
    s->dim = dim;
    s->half = half;
    s->n_blocks = n_blocks;
    s->n_queries = n_queries;
    s->scale = 1 / sqrtf((float)dim);
    s->scratch = check_alloc(KWK_ATTN_SCRATCH);
    for (int b = 0; b < n_blocks; b++) {
        s->valid[b] = UINT32_MAX;
        s->k[b] = memset(check_alloc(bytes), 0xff, bytes);
        s->v[b] = memset(check_alloc(bytes), 0xff, bytes);
    }
    for (int i = 0; i < n_queries; i++) { // not aligned to more than a float
        s->q[i] = (float *)check_alloc(sizeof(float) * (size_t)(dim + 3)) + 3;
        s->part[i] = (float *)check_alloc(sizeof(float) * (size_t)(dim + 2 + 1)) + 1;
        s->last[i] = n_blocks * KWK_BLOCK - 1;
    }
}

static void scene_fini(scene *s)
{
    for (int b = 0; b < s->n_blocks; b++) {
        check_free(s->k[b]);
        check_free(s->v[b]);
    }
    for (int i = 0; i < s->n_queries; i++) {
        check_free(s->q[i] - 3);
        check_free(s->part[i] - 1);
    }
    check_free(s->scratch);
}

static void scene_store(scene *s, int slot, const float *k, const float *v)
{
    kwk_kernels kern;

    kwk_kernels_init(&kern, KWK_CPU_NONE);
    (s->half ? kern.kv_store_f16 : kern.kv_store_f32)(
        s->k[slot / KWK_BLOCK], s->v[slot / KWK_BLOCK], k, v, s->dim, slot % KWK_BLOCK);
}

/* Values for the queries and the valid slots; gain widens the range of the logits. */
static void scene_fill(scene *s, float gain, uint64_t *seed)
{
    float k[DIM_MAX], v[DIM_MAX];

    for (int i = 0; i < s->n_queries; i++)
        for (int d = 0; d < s->dim; d++)
            s->q[i][d] = gain * check_random_f32(seed);
    for (int slot = 0; slot < s->n_blocks * KWK_BLOCK; slot++) {
        if (!(s->valid[slot / KWK_BLOCK] >> (slot % KWK_BLOCK) & 1))
            continue;
        check_fill_f32(k, (size_t)s->dim, CHECK_UNIFORM, seed);
        check_fill_f32(v, (size_t)s->dim, CHECK_UNIFORM, seed);
        scene_store(s, slot, k, v);
        for (int d = 0; d < s->dim; d++)
            s->v_max = fmax(s->v_max, fabs((double)v[d]));
    }
}

/* One call on blocks b0 … of one split; the parts go to part[]. */
static void scene_run(const scene *s, unsigned flags, int b0, int n_blocks, float *const *part)
{
    kwk_attn_query query[KWK_ATTN_QUERIES];
    kwk_attn a = {.query = query, .n_queries = s->n_queries, .n_blocks = n_blocks, .dim = s->dim};
    kwk_kernels kern;

    kwk_kernels_init(&kern, flags);
    for (int b = 0; b < n_blocks; b++) {
        a.k[b] = s->k[b0 + b];
        a.v[b] = s->v[b0 + b];
        a.valid[b] = s->valid[b0 + b];
    }
    for (int i = 0; i < s->n_queries; i++)
        query[i] = (kwk_attn_query){s->q[i], s->first[i] - b0 * KWK_BLOCK,
                                    s->last[i] - b0 * KWK_BLOCK, part[i]};
    a.scale = s->scale;
    a.softcap = s->softcap;
    a.scratch = s->scratch;
    a.next = b0 ? s->k[0] : NULL;
    check_poison(a.scratch, KWK_ATTN_SCRATCH);
    (s->half ? kern.attn_f16 : kern.attn_f32)(&a);
}

/* Every level gives the parts of the reference. */
static void check_levels_agree(const scene *s, const char *what)
{
    float *want[KWK_ATTN_QUERIES];

    for (int i = 0; i < s->n_queries; i++)
        want[i] = check_alloc(sizeof(float) * (size_t)(s->dim + 2));
    scene_run(s, KWK_CPU_NONE, 0, s->n_blocks, want);
    for (const check_level *l = check_levels(); l->name; l++) {
        for (int i = 0; i < s->n_queries; i++)
            check_poison(s->part[i], sizeof(float) * (size_t)(s->dim + 2));
        scene_run(s, l->flags, 0, s->n_blocks, s->part);
        for (int i = 0; i < s->n_queries; i++)
            check_same_f32(s->part[i], want[i], (size_t)s->dim + 2,
                           "%s, %s, dim %d, half %d, %d blocks, query %d of %d", what, l->name,
                           s->dim, s->half, s->n_blocks, i, s->n_queries);
    }
    for (int i = 0; i < s->n_queries; i++)
        check_free(want[i]);
}

static int seen(const scene *s, int i, int slot)
{
    return slot >= s->first[i] && slot <= s->last[i] &&
           (s->valid[slot / KWK_BLOCK] >> (slot % KWK_BLOCK) & 1);
}

/* Softmax of query i over the whole scene in float64; returns the bound of the float result. A
 * logit is off by at most (dim + 4) u of its sum of magnitudes, p by that and twice for the
 * maximum, its sums by 256 u; softcap adds 4 u of the cap. */
static double exact(const scene *s, int i, double *y)
{
    const double u = FLT_EPSILON / 2.0;
    static double t[SLOTS_MAX];
    double max = -INFINITY, sum = 0, error = 0;

    for (int d = 0; d < s->dim; d++)
        y[d] = 0;
    for (int j = 0; j < s->n_blocks * KWK_BLOCK; j++) {
        double size = 0;
        if (!seen(s, i, j))
            continue;
        t[j] = 0;
        for (int d = 0; d < s->dim; d++) {
            const double x = s->q[i][d] * element(s->k[j / KWK_BLOCK],
                                                  (size_t)(d * KWK_BLOCK + j % KWK_BLOCK), s->half);
            t[j] += x;
            size += fabs(x);
        }
        t[j] *= (double)s->scale;
        if (s->softcap > 0)
            t[j] = s->softcap * tanh(t[j] / s->softcap);
        max = fmax(max, t[j]);
        error = fmax(error, (s->dim + 4) * u * size * s->scale + 4 * u * s->softcap);
    }
    for (int j = 0; j < s->n_blocks * KWK_BLOCK; j++) {
        if (!seen(s, i, j))
            continue;
        t[j] = exp(t[j] - max);
        sum += t[j];
        for (int d = 0; d < s->dim; d++)
            y[d] +=
                t[j] * element(s->v[j / KWK_BLOCK], (size_t)(j % KWK_BLOCK * s->dim + d), s->half);
    }
    for (int d = 0; d < s->dim; d++)
        y[d] = sum > 0 ? y[d] / sum : 0;
    return (4 * error + (KWK_SPLIT + 32) * u) * s->v_max;
}

static void check_near_float64(const scene *s, int i, const float *y, const char *what)
{
    double want[DIM_MAX];
    const double bound = exact(s, i, want);

    for (int d = 0; d < s->dim; d++)
        if (!(fabs(y[d] - want[d]) <= bound))
            fail_msg("%s, dim %d, half %d, query %d: y[%d] = %g, not %g; off by %g, bound %g", what,
                     s->dim, s->half, i, d, (double)y[d], want[d], fabs(y[d] - want[d]), bound);
}

static void reference_is_near_a_float64_softmax(void **state)
{
    uint64_t seed = 5;
    kwk_kernels ref;

    kwk_kernels_init(&ref, KWK_CPU_NONE);
    for (size_t c = 0; c < CHECK_COUNT(dims) * 4; c++) {
        scene s;
        scene_init(&s, dims[c / 4], c & 1, 1 + (int)c % 8, 2);
        s.softcap = c & 2 ? 5.0f : 0.0f;
        s.first[1] = s.n_blocks * KWK_BLOCK / 2;
        scene_fill(&s, c % 3 ? 1 : 8, &seed);
        scene_run(&s, KWK_CPU_NONE, 0, s.n_blocks, s.part);
        for (int i = 0; i < s.n_queries; i++) {
            float y[DIM_MAX];
            ref.attn_finish(y, s.part[i], s.dim);
            check_near_float64(&s, i, y, "one split");
        }
        scene_fini(&s);
    }
}

/* Which slots are valid and seen. */
typedef enum mask { ALL, CAUSAL, HOLES, WINDOWS, ODD_ENDS, N_MASKS } mask;

static void scene_mask(scene *s, mask m, uint64_t *seed)
{
    const int n = s->n_blocks * KWK_BLOCK;
    const int written = m == ALL ? n : check_random_int(seed, 1, n);

    for (int b = 0; b < s->n_blocks; b++) {
        const int left = written - b * KWK_BLOCK;
        s->valid[b] = left <= 0 ? 0 : left >= KWK_BLOCK ? UINT32_MAX : (1u << left) - 1;
        if (m == HOLES)
            s->valid[b] &= b % 3 == 1 ? 0 : (uint32_t)check_random(seed);
    }
    for (int i = 0; i < s->n_queries; i++) {
        if (m == CAUSAL)
            s->last[i] = written - s->n_queries + i;
        if (m == WINDOWS || m == HOLES) {
            s->first[i] = check_random_int(seed, -n / 2, n);
            s->last[i] = s->first[i] + check_random_int(seed, -3, n);
        }
        if (m == ODD_ENDS) {
            static const int first[] = {INT32_MIN, 31, 32, 0, INT32_MAX, 1};
            static const int last[] = {INT32_MAX, 31, 32, -1, 5, 255, INT32_MIN};
            s->first[i] = first[i % (int)CHECK_COUNT(first)];
            s->last[i] = last[i % (int)CHECK_COUNT(last)];
        }
    }
}

static void check_variants(int half)
{
    uint64_t seed = 6;

    for (size_t d = 0; d < CHECK_COUNT(dims); d++) {
        for (size_t c = 0; c < CHECK_COUNT(counts); c++) {
            for (int m = 0; m < N_MASKS; m++) {
                static const char *const names[] = {"all", "causal", "holes", "windows", "ends"};
                scene s;
                scene_init(&s, dims[d], half, check_random_int(&seed, 1, 8), counts[c]);
                s.softcap = check_random(&seed) & 1 ? 3.0f : 0.0f;
                scene_mask(&s, (mask)m, &seed);
                scene_fill(&s, m & 1 ? 1 : 60, &seed);
                check_levels_agree(&s, names[m]);
                scene_fini(&s);
            }
        }
    }
}

static void variants_of_f32_equal_the_reference(void **state)
{
    check_variants(0);
}

static void variants_of_f16_equal_the_reference(void **state)
{
    check_variants(1);
}

static void greatest_size_fits_the_scratch(void **state)
{
    for (int half = 0; half < 2; half++) {
        uint64_t seed = 7;
        scene s;
        scene_init(&s, KWK_HEAD_DIM_MAX, half, 8, KWK_ATTN_QUERIES);
        scene_fill(&s, 1, &seed);
        check_levels_agree(&s, "greatest");
        scene_fini(&s);
    }
}

/* Query 0 sees slots whose products are -0, query 1 in its group one slot more, later not. */
static void zeros_of_either_sign_come_out_as_plus_zero(void **state)
{
    scene s;

    scene_init(&s, 1, 0, 1, 2);
    s.scale = 1;
    s.valid[0] = 7;
    s.last[0] = 1;
    s.q[0][0] = s.q[1][0] = 1;
    scene_store(&s, 0, &(float){-80}, &(float){-0x1p-100f});
    scene_store(&s, 1, &(float){-0.0f}, &(float){-0.0f});
    scene_store(&s, 2, &(float){-1}, &(float){1});
    check_levels_agree(&s, "zeros and a slot of another query");
    s.last[1] = 1;
    check_levels_agree(&s, "zeros");
    assert_int_equal(kwk_f32_bits(s.part[0][0]), 0); // the maximum
    assert_int_equal(kwk_f32_bits(s.part[0][2]), 0);
    s.q[0][0] = 0x1p-100f; // the dot product of slot 0 underflows to -0
    scene_store(&s, 0, &(float){-0x1p-100f}, &(float){1});
    s.last[0] = 0;
    check_levels_agree(&s, "a zero maximum");
    assert_int_equal(kwk_f32_bits(s.part[0][0]), 0);
    scene_fini(&s);
}

static void a_query_that_sees_nothing_gets_the_identity(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++) {
        for (int half = 0; half < 2; half++) {
            uint64_t seed = 8;
            scene s;
            scene_init(&s, 37, half, 2, 3);
            s.valid[1] = 0;
            s.first[1] = KWK_BLOCK; // only slots that are not valid
            scene_fill(&s, 1, &seed);
            scene_run(&s, l->flags, 0, 2, s.part);
            assert_true(s.part[0][1] >= 1 && s.part[2][1] >= 1);
            assert_true(s.part[1][0] == -INFINITY);
            for (int d = 1; d < s.dim + 2; d++)
                assert_int_equal(kwk_f32_bits(s.part[1][d]), 0);
            scene_fini(&s);
        }
    }
}

/* Attention over the splits of a long scene, merged in order; masked ones put before and after. */
static void merged_splits_are_near_a_float64_softmax(void **state)
{
    uint64_t seed = 9;

    for (size_t c = 0; c < CHECK_COUNT(dims) * 2; c++) {
        const int dim = dims[c / 2], n_blocks = 8 + 8 + 3;
        float *total[3], *part[3], y[DIM_MAX], want[3][DIM_MAX];
        scene s;
        scene_init(&s, dim, c & 1, n_blocks, 3);
        s.softcap = c & 2 ? 5.0f : 0.0f;
        s.first[1] = KWK_SPLIT + 7; // a window: the first split is masked
        s.last[2] = KWK_SPLIT - 1;  // the other two are
        scene_fill(&s, 4, &seed);
        for (int i = 0; i < 3; i++) {
            total[i] = check_alloc(sizeof(float) * (size_t)(dim + 2));
            part[i] = check_alloc(sizeof(float) * (size_t)(dim + 2));
        }
        for (const check_level *l = check_levels(); l->name; l++) {
            kwk_kernels k;
            kwk_kernels_init(&k, l->flags);
            scene_run(&s, l->flags, 0, 8, total);
            for (int b0 = 8; b0 < n_blocks; b0 += 8) {
                scene_run(&s, l->flags, b0, n_blocks - b0 < 8 ? n_blocks - b0 : 8, part);
                for (int i = 0; i < 3; i++)
                    k.attn_merge(total[i], part[i], dim);
            }
            for (int i = 0; i < 3; i++) {
                k.attn_finish(y, total[i], dim);
                check_near_float64(&s, i, y, l->name);
                if (l->flags == KWK_CPU_NONE)
                    memcpy(want[i], y, sizeof y);
                check_same_f32(y, want[i], (size_t)dim, "%s, dim %d, query %d", l->name, dim, i);
            }
        }
        for (int i = 0; i < 3; i++) {
            check_free(total[i]);
            check_free(part[i]);
        }
        scene_fini(&s);
    }
}

static void merging_a_masked_split_changes_no_bit(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++) {
        for (int dim = 1; dim < 70; dim++) {
            const size_t bytes = sizeof(float) * (size_t)(dim + 2);
            float *a = check_alloc(bytes), *masked = check_alloc(bytes), *kept = check_alloc(bytes);
            uint64_t seed = (uint64_t)dim;
            kwk_kernels k;

            kwk_kernels_init(&k, l->flags);
            check_fill_f32(a, (size_t)dim + 2, CHECK_EXTREME, &seed);
            a[1] = 1.5f;
            memcpy(kept, a, bytes);
            memset(masked, 0, bytes);
            masked[0] = -INFINITY;
            k.attn_merge(a, masked, dim);
            check_same(a, kept, bytes, "%s, dim %d, masked after", l->name, dim);
            k.attn_merge(masked, a, dim);
            check_same(masked, kept, bytes, "%s, dim %d, masked before", l->name, dim);
            check_free(kept);
            check_free(masked);
            check_free(a);
        }
    }
}

static void variants_of_merge_and_finish_equal_the_reference(void **state)
{
    for (const check_level *l = check_levels(); l->name; l++) {
        for (int dim = 1; dim < 140; dim++) {
            const size_t n = (size_t)dim + 2, bytes = sizeof(float) * (n + 1);
            float *a = check_alloc(bytes), *b = check_alloc(bytes), *want = check_alloc(bytes);
            float *y = check_alloc(bytes), *y_want = check_alloc(bytes);
            uint64_t seed = (uint64_t)dim;
            kwk_kernels ref, k;

            kwk_kernels_init(&ref, KWK_CPU_NONE);
            kwk_kernels_init(&k, l->flags);
            check_fill_f32(a + 1, n, CHECK_EXTREME, &seed);
            check_fill_f32(b + 1, n, CHECK_EXTREME, &seed);
            a[1] = 90 * check_random_f32(&seed);
            b[1] = 90 * check_random_f32(&seed);
            a[2] = 1 + fabsf(a[2]);
            b[2] = 1 + fabsf(b[2]);
            memcpy(want, a, bytes);
            ref.attn_merge(want + 1, b + 1, dim);
            k.attn_merge(a + 1, b + 1, dim);
            check_same_f32(a + 1, want + 1, n, "merge, %s, dim %d", l->name, dim);
            for (int masked = 0; masked < 2; masked++) {
                ref.attn_finish(y_want + 3, want + 1, dim);
                k.attn_finish(y + 3, want + 1, dim);
                check_same_f32(y + 3, y_want + 3, (size_t)dim, "finish, %s, dim %d, masked %d",
                               l->name, dim, masked);
                want[2] = 0;
            }
            assert_true(y[3] == 0 && y[2 + dim] == 0);
            check_free(y_want);
            check_free(y);
            check_free(want);
            check_free(b);
            check_free(a);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_near_a_float64_softmax),
        cmocka_unit_test(variants_of_f32_equal_the_reference),
        cmocka_unit_test(variants_of_f16_equal_the_reference),
        cmocka_unit_test(greatest_size_fits_the_scratch),
        cmocka_unit_test(zeros_of_either_sign_come_out_as_plus_zero),
        cmocka_unit_test(a_query_that_sees_nothing_gets_the_identity),
        cmocka_unit_test(merged_splits_are_near_a_float64_softmax),
        cmocka_unit_test(merging_a_masked_split_changes_no_bit),
        cmocka_unit_test(variants_of_merge_and_finish_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
