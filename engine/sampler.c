/* SPDX-License-Identifier: Apache-2.0
 *
 * From logits to a token: Hugging Face's processors in their order, then argmax or one draw.
 *
 * The filters work on a list of candidates (ascending id) instead of sorting the vocabulary: top_k
 * finds its threshold with a heap, top_p walks towards its boundary by partitioning. Same result
 * as sorting, in linear time. Pure; any thread.
 */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LOGPROBS = 20,
    SUM_BLOCK = 256, // terms that are summed together
};

/* Candidates in ascending id: score, e = exp(score - greatest score), id. */
typedef struct list {
    int n;
    float *score, *e;
    int32_t *id;
} list;

typedef struct cand {
    float score, e;
    int32_t id;
} cand;

typedef struct work {
    list list;
    cand *copy;     // (vocab) for top_p
    float *raw;     // (vocab) logits before the processors
    uint32_t *bits; // (vocab) bitmap
    const kwk_kernels *k;
} work;

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t bitmap_bytes(int vocab)
{
    return round64(((size_t)vocab + 31) / 32 * 4);
}

size_t kwk_sampler_work_bytes(int vocab)
{
    const size_t n = (size_t)vocab;

    return 4 * round64(n * 4) + round64(n * sizeof(cand)) + bitmap_bytes(vocab);
}

static work carve(void *memory, int vocab, const kwk_kernels *k)
{
    const size_t column = round64((size_t)vocab * 4);
    char *p = memory;
    work w = {.k = k};

    w.list.score = (float *)p;
    w.list.e = (float *)(p + column);
    w.list.id = (int32_t *)(p + 2 * column);
    w.raw = (float *)(p + 3 * column);
    w.copy = (cand *)(p + 4 * column);
    w.bits = (uint32_t *)(p + 4 * column + round64((size_t)vocab * sizeof(cand)));
    return w;
}

/* ---- checks --------------------------------------------------------------------------------- */

static int check_bias(const kwk_sampling *s, int vocab, kwk_error *err)
{
    uint32_t *seen;
    int rc = KWK_OK;

    if (s->n_bias < 0 || s->n_bias > vocab)
        return kwk_fail(err, KWK_EINVAL, "n_bias %d is not in 0..%d", s->n_bias, vocab);
    if (s->n_bias == 0)
        return KWK_OK;
    if (!s->bias)
        return kwk_fail(err, KWK_EINVAL, "bias is NULL and n_bias is %d", s->n_bias);
    seen = calloc(((size_t)vocab + 31) / 32, sizeof *seen);
    if (!seen)
        return kwk_fail(err, KWK_ENOMEM, "no memory to check logit_bias");
    for (int i = 0; i < s->n_bias && rc == KWK_OK; i++) {
        const int32_t id = s->bias[i].id;
        const float b = s->bias[i].bias;
        if (id < 0 || id >= vocab)
            rc = kwk_fail(err, KWK_EINVAL, "logit_bias id %d is not in 0..%d", id, vocab - 1);
        else if (!isfinite(b) && !(b < 0 && isinf(b)))
            rc = kwk_fail(err, KWK_EINVAL, "logit_bias %g of id %d is neither finite nor -inf",
                          (double)b, id);
        else if (seen[id / 32] >> id % 32 & 1)
            rc = kwk_fail(err, KWK_EINVAL, "logit_bias id %d is given twice", id);
        else
            seen[id / 32] |= (uint32_t)1 << id % 32;
    }
    free(seen);
    return rc;
}

int kwk_sampling_check(const kwk_sampling *s, int vocab, kwk_error *err)
{
    if (!s || s->size < sizeof *s)
        return kwk_fail(err, KWK_EINVAL, "sampling is NULL or its size is %zu, not %zu",
                        s ? s->size : 0, sizeof *s);
    if (s->do_sample != 0 && s->do_sample != 1)
        return kwk_fail(err, KWK_EINVAL, "do_sample %d is not 0 or 1", s->do_sample);
    if (!(s->temperature > 0) || isinf(s->temperature))
        return kwk_fail(err, KWK_EINVAL, "temperature %g is not above 0", (double)s->temperature);
    if (s->top_k < 0)
        return kwk_fail(err, KWK_EINVAL, "top_k %d is below 0", s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return kwk_fail(err, KWK_EINVAL, "top_p %g is not in (0, 1]", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return kwk_fail(err, KWK_EINVAL, "min_p %g is not in [0, 1]", (double)s->min_p);
    if (!(s->repetition_penalty > 0) || isinf(s->repetition_penalty))
        return kwk_fail(err, KWK_EINVAL, "repetition_penalty %g is not above 0",
                        (double)s->repetition_penalty);
    if (s->min_new_tokens < 0)
        return kwk_fail(err, KWK_EINVAL, "min_new_tokens %d is below 0", s->min_new_tokens);
    if (s->n_eos < 0 || (s->n_eos > 0 && !s->eos))
        return kwk_fail(err, KWK_EINVAL, "n_eos %d without a list", s->n_eos);
    if (s->n_logprobs < 0 || s->n_logprobs > MAX_LOGPROBS)
        return kwk_fail(err, KWK_EINVAL, "n_logprobs %d is not in 0..%d", s->n_logprobs,
                        MAX_LOGPROBS);
    return check_bias(s, vocab, err);
}

/* ---- processors ----------------------------------------------------------------------------- */

static void penalise_repetition(float *x, int vocab, const kwk_history *h, float penalty,
                                uint32_t *seen)
{
    memset(seen, 0, bitmap_bytes(vocab));
    for (int i = 0; i < h->n_ids; i++) {
        const int32_t id = h->ids[i];
        if (id < 0 || id >= vocab || (seen[id / 32] >> id % 32 & 1)) // once per distinct id
            continue;
        seen[id / 32] |= (uint32_t)1 << id % 32;
        x[id] = x[id] < 0 ? x[id] * penalty : x[id] / penalty;
    }
}

static void process(const kwk_choice *c, float *x, int vocab, uint32_t *bits)
{
    const kwk_sampling *s = c->sampling;
    const kwk_history *h = c->history;

    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].id >= 0 && s->bias[i].id < vocab)
            x[s->bias[i].id] += s->bias[i].bias;
    if (s->repetition_penalty != 1 && h)
        penalise_repetition(x, vocab, h, s->repetition_penalty, bits);
    if ((h ? h->n_new : 0) < s->min_new_tokens)
        for (int i = 0; i < s->n_eos; i++)
            if (s->eos[i] >= 0 && s->eos[i] < vocab) // -1: no such token
                x[s->eos[i]] = -INFINITY;
    if (c->allowed)
        for (int i = 0; i < vocab; i++)
            if (!(c->allowed[i / 32] >> i % 32 & 1))
                x[i] = -INFINITY;
}

/* Sum of n terms in a fixed order: blocks of 256, four chains in each. */
static double block_sum(const float *e, int n)
{
    double s[4] = {0};
    int i = 0;

    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++)
            s[k] += (double)e[i + k];
    for (; i < n; i++)
        s[0] += (double)e[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static double sum_of(const float *e, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i += SUM_BLOCK)
        sum += block_sum(e + i, n - i < SUM_BLOCK ? n - i : SUM_BLOCK);
    return sum;
}

/* exp(x - most), also where most is +inf. */
static void exp_diff(const kwk_kernels *k, float *e, const float *x, int n, float most)
{
    if (most < INFINITY) {
        k->exp_diff(e, x, n, most);
        return;
    }
    for (int i = 0; i < n; i++)
        e[i] = x[i] == most;
}

/* ---- filters on the list of candidates ------------------------------------------------------ */

/* k-th greatest of x, 1 <= k <= n, no NaNs. heap (k): the k greatest so far, the least on top. */
static float kth_greatest(const float *x, int n, int k, float *heap)
{
    int size = 0;

    for (int i = 0; i < n; i++) {
        int at;
        if (size < k) { // sift up
            for (at = size++; at > 0 && heap[(at - 1) / 2] > x[i]; at = (at - 1) / 2)
                heap[at] = heap[(at - 1) / 2];
            heap[at] = x[i];
        } else if (x[i] > heap[0]) { // replace the least, sift down
            for (at = 0;;) {
                int child = 2 * at + 1;
                if (child >= k)
                    break;
                if (child + 1 < k && heap[child + 1] < heap[child])
                    child++;
                if (heap[child] >= x[i])
                    break;
                heap[at] = heap[child];
                at = child;
            }
            heap[at] = x[i];
        }
    }
    return heap[0];
}

static int before(const cand *a, const cand *b) // ascending score, then ascending id
{
    return a->score < b->score || (a->score == b->score && a->id < b->id);
}

/* The candidate at which, in ascending order, the running sum of probabilities first passes
 * `limit`; base is that of candidates known to be removed. w (n) is reordered. */
static cand boundary(cand *w, int n, float sum, float limit, double base)
{
    for (;;) {
        /* Median of three as the pivot, then: below it | the pivot | above it. */
        cand *a = &w[0], *b = &w[n / 2], *z = &w[n - 1], *mid = b;
        if (before(a, b) != before(a, z))
            mid = a;
        else if (before(z, a) != before(z, b))
            mid = z;
        const cand pivot = *mid;
        double below = 0;
        int n_below = 0;

        *mid = w[n - 1];
        for (int i = 0; i < n - 1; i++)
            if (before(&w[i], &pivot)) {
                const cand t = w[i];
                below += (double)(t.e / sum);
                w[i] = w[n_below];
                w[n_below++] = t;
            }
        const int n_above = n - 1 - n_below;
        if (n_below && (float)(base + below) > limit) {
            n = n_below;
            continue;
        }
        base += below + (double)(pivot.e / sum);
        if ((float)base > limit || n_above == 0) // the greatest of all always stays
            return pivot;
        w += n_below;
        n = n_above;
    }
}

/* 1 - top_p as Python computes it from the decimal that the user wrote. */
static float top_p_limit(float top_p)
{
    const double decimal = nearbyint((double)top_p * 1e6) / 1e6;

    return (float)(1.0 - ((float)decimal == top_p ? decimal : (double)top_p));
}

static void keep(list *l, int from, int to)
{
    l->score[to] = l->score[from];
    l->e[to] = l->e[from];
    l->id[to] = l->id[from];
}

static void filter_top_p(list *l, float top_p, cand *copy)
{
    const float sum = (float)sum_of(l->e, l->n), limit = top_p_limit(top_p);
    const float tiny = limit / (float)l->n * 0.999f * sum; // all of these together stay below it
    double base = 0;
    int n = 0, kept = 0;

    for (int i = 0; i < l->n; i++) {
        if (l->e[i] < tiny)
            base += (double)(l->e[i] / sum);
        else
            copy[n++] = (cand){l->score[i], l->e[i], l->id[i]};
    }
    const cand first = boundary(copy, n, sum, limit, base);
    for (int i = 0; i < l->n; i++) {
        const cand c = {l->score[i], l->e[i], l->id[i]};
        if (!before(&c, &first))
            keep(l, i, kept++);
    }
    l->n = kept;
}

static void filter_min_p(list *l, float min_p)
{
    const float sum = (float)sum_of(l->e, l->n);
    const float least = min_p * (1.0f / sum); // the greatest score has e = 1
    int kept = 0;

    for (int i = 0; i < l->n; i++)
        if (!(l->e[i] / sum < least) || l->e[i] == 1)
            keep(l, i, kept++);
    l->n = kept;
}

/* ---- the draw ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z) // splitmix64's finaliser
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A number in [0, 1) that depends on nothing but these three. */
static double uniform(uint64_t seed, uint32_t choice, int position)
{
    uint64_t z = mix(seed + 0x9e3779b97f4a7c15u);

    z = mix(z ^ ((uint64_t)choice + 0x6a09e667f3bcc909u));
    z = mix(z ^ ((uint64_t)(uint32_t)position + 0x3c6ef372fe94f82bu));
    return (double)(z >> 11) * 0x1p-53;
}

static int draw_by_noise(const list *l, const float *noise)
{
    const float sum = (float)sum_of(l->e, l->n);
    float best = -1;
    int at = 0;

    for (int i = 0; i < l->n; i++) {
        const float v = l->e[i] / sum / noise[l->id[i]];
        if (v > best) {
            best = v;
            at = i;
        }
    }
    return at;
}

/* Inverse of the cumulative distribution, in order of ids. */
static int draw_by_seed(const list *l, double u)
{
    const double target = u * sum_of(l->e, l->n);
    double sum = 0;
    int last = l->n - 1;

    for (int i = 0; i < l->n; i += SUM_BLOCK) {
        const int end = l->n - i < SUM_BLOCK ? l->n : i + SUM_BLOCK;
        const double next = sum + block_sum(l->e + i, end - i);

        if (next > target) { // within this block
            last = end - 1;
            for (int k = i; k < end; k++) {
                sum += (double)l->e[k];
                if (sum > target)
                    return k;
            }
            break;
        }
        sum = next;
    }
    while (l->e[last] == 0) // only rounding leads here
        last--;
    return last;
}

static void list_all(work *w, const float *x, int vocab, float most)
{
    list *l = &w->list;

    memcpy(l->score, x, (size_t)vocab * sizeof *x);
    exp_diff(w->k, l->e, x, vocab, most);
    for (int i = 0; i < vocab; i++)
        l->id[i] = i;
    l->n = vocab;
}

static void list_from(work *w, const float *x, int vocab, float least, float most)
{
    list *l = &w->list;

    l->n = 0;
    for (int i = 0; i < vocab; i++)
        if (x[i] >= least) {
            l->score[l->n] = x[i];
            l->id[l->n++] = i;
        }
    exp_diff(w->k, l->e, l->score, l->n, most);
}

static int32_t sample(const kwk_choice *ch, float *x, int vocab, work *w, int keep_filters)
{
    const kwk_sampling *s = ch->sampling;
    const kwk_history *h = ch->history;
    list *l = &w->list;

    for (int i = 0; i < vocab; i++)
        x[i] = x[i] == x[i] ? x[i] : -INFINITY; // NaN
    if (s->temperature != 1)
        for (int i = 0; i < vocab; i++)
            x[i] /= s->temperature;
    const int top = w->k->argmax(x, vocab);
    if (top < 0 || x[top] == -INFINITY)
        return -1;
    if (s->top_k > 0 && s->top_k < vocab)
        list_from(w, x, vocab, kth_greatest(x, vocab, s->top_k, (float *)w->copy), x[top]);
    else
        list_all(w, x, vocab, x[top]);
    if (s->top_p < 1)
        filter_top_p(l, s->top_p, w->copy);
    if (s->min_p > 0)
        filter_min_p(l, s->min_p);
    if (keep_filters) {
        for (int i = 0; i < vocab; i++)
            x[i] = -INFINITY;
        for (int i = 0; i < l->n; i++)
            x[l->id[i]] = l->score[i];
    }
    if (h && h->noise)
        return l->id[draw_by_noise(l, h->noise)];
    return l->id[draw_by_seed(l, uniform(s->seed, s->choice, h ? h->n_new : 0))];
}

/* ---- log probabilities ---------------------------------------------------------------------- */

/* log of the sum of exp over raw logits; the most likely tokens, equals by ascending id. x has no
 * NaNs; e (n) is overwritten. */
static double log_sum(const kwk_kernels *k, const float *x, int n, float *e, kwk_logprob *top,
                      int want)
{
    const int best = k->argmax(x, n);
    int have = 0;

    for (int i = 0; i < want; i++) // there may be fewer tokens than asked for
        top[i] = (kwk_logprob){-1, -INFINITY};
    if (best < 0 || x[best] == -INFINITY)
        return -INFINITY;
    exp_diff(k, e, x, n, x[best]);
    const double lse = (double)x[best] + log(sum_of(e, n));
    for (int i = 0; i < n && want; i++)
        if (x[i] > -INFINITY && (have < want || x[i] > top[have - 1].logprob)) {
            int at = have < want ? have++ : want - 1;
            for (; at > 0 && top[at - 1].logprob < x[i]; at--)
                top[at] = top[at - 1];
            top[at] = (kwk_logprob){i, x[i]};
        }
    for (int i = 0; i < have; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
    return lse;
}

void kwk_sampler_choose(kwk_choice *ch, float *x, int vocab, void *memory, int keep_filters,
                        const kwk_kernels *k)
{
    work w = carve(memory, vocab, k);
    const int n_top = ch->top ? ch->sampling->n_logprobs : 0;
    double lse = 0;

    ch->logprob = NAN;
    if (ch->want_logprob || n_top) {
        for (int i = 0; i < vocab; i++)
            w.raw[i] = x[i] == x[i] ? x[i] : -INFINITY;
        lse = log_sum(k, w.raw, vocab, w.list.e, ch->top, n_top);
    }
    process(ch, x, vocab, w.bits);
    if (ch->sampling->do_sample) {
        ch->token = sample(ch, x, vocab, &w, keep_filters);
    } else {
        ch->token = k->argmax(x, vocab);
        if (ch->token >= 0 && x[ch->token] == -INFINITY)
            ch->token = -1;
    }
    if (ch->want_logprob && ch->token >= 0)
        ch->logprob = (float)((double)w.raw[ch->token] - lse);
}

int kwk_sample(const kwk_sampling *s, const kwk_history *h, float *logits, int vocab,
               int32_t *token, float *logprob, kwk_logprob *top, kwk_error *err)
{
    kwk_choice c = {.sampling = s, .history = h, .want_logprob = logprob != NULL, .top = top};
    kwk_kernels k;
    void *memory;
    int rc;

    if (!logits || !token || vocab < 1)
        return kwk_fail(err, KWK_EINVAL, "logits or token is NULL, or vocab %d is below 1", vocab);
    rc = kwk_sampling_check(s, vocab, err);
    if (rc != KWK_OK)
        return rc;
    if (h && (h->n_ids < 0 || (h->n_ids > 0 && !h->ids)))
        return kwk_fail(err, KWK_EINVAL, "history of %d ids without a list", h->n_ids);
    memory = aligned_alloc(64, kwk_sampler_work_bytes(vocab));
    if (!memory)
        return kwk_fail(err, KWK_ENOMEM, "no memory to sample from %d logits", vocab);
    kwk_kernels_init(&k, kwk_cpu_flags());
    kwk_sampler_choose(&c, logits, vocab, memory, 1, &k);
    free(memory);
    if (c.token < 0)
        return kwk_fail(err, KWK_EINVAL, "every score is NaN or -inf");
    *token = c.token;
    if (logprob)
        *logprob = c.logprob;
    return KWK_OK;
}
