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

enum { MAX_LOGPROBS = 20 };

typedef struct cand {
    float score;
    float e; // exp(score - greatest score)
    int32_t id;
} cand;

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* work = candidates | copy of them | raw logits | bitmap */
static size_t work_cands(int vocab)
{
    return round64((size_t)vocab * sizeof(cand));
}

static size_t work_bits(int vocab)
{
    return round64(((size_t)vocab + 31) / 32 * 4);
}

size_t kwk_sampler_work_bytes(int vocab)
{
    return 2 * work_cands(vocab) + round64((size_t)vocab * sizeof(float)) + work_bits(vocab);
}

/* ---- checks -------------------------------------------------------------------------------------
 */

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

/* ---- processors ---------------------------------------------------------------------------------
 */

static void penalise_repetition(float *x, int vocab, const kwk_history *h, float penalty,
                                uint32_t *seen)
{
    memset(seen, 0, work_bits(vocab));
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

static int greatest(const float *x, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (x[i] > (best < 0 ? -INFINITY : x[best]))
            best = i;
    return best;
}

/* ---- filters on the list of candidates ----------------------------------------------------------
 */

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
 * `limit`; everything before it is removed. w (n) is reordered. */
static cand boundary(cand *w, int n, float sum, float limit)
{
    double base = 0; // probability of everything known to be removed

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

static float sum_of(const cand *c, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)c[i].e;
    return (float)sum;
}

/* 1 - top_p as Python computes it from the decimal that the user wrote. */
static float top_p_limit(float top_p)
{
    const double decimal = nearbyint((double)top_p * 1e6) / 1e6;

    return (float)(1.0 - ((float)decimal == top_p ? decimal : (double)top_p));
}

static int filter_top_p(cand *c, int n, float top_p, cand *copy)
{
    int kept = 0;

    memcpy(copy, c, (size_t)n * sizeof *c);
    const cand first = boundary(copy, n, sum_of(c, n), top_p_limit(top_p));
    for (int i = 0; i < n; i++)
        if (!before(&c[i], &first))
            c[kept++] = c[i];
    return kept;
}

static int filter_min_p(cand *c, int n, float min_p)
{
    const float sum = sum_of(c, n);
    const float least = min_p * (1.0f / sum); // the greatest score has e = 1
    int kept = 0;

    for (int i = 0; i < n; i++)
        if (!(c[i].e / sum < least) || c[i].e == 1)
            c[kept++] = c[i];
    return kept;
}

/* ---- the draw -----------------------------------------------------------------------------------
 */

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

static int32_t draw_by_noise(const cand *c, int n, const float *noise)
{
    const float sum = sum_of(c, n);
    float best = -1;
    int32_t token = c[0].id;

    for (int i = 0; i < n; i++) {
        const float v = c[i].e / sum / noise[c[i].id];
        if (v > best) {
            best = v;
            token = c[i].id;
        }
    }
    return token;
}

static int32_t draw_by_seed(const cand *c, int n, double u)
{
    double sum = 0, target, at = 0;
    int last = 0;

    for (int i = 0; i < n; i++)
        sum += (double)c[i].e;
    target = u * sum;
    for (int i = 0; i < n; i++) {
        if (c[i].e == 0)
            continue;
        at += (double)c[i].e;
        last = i;
        if (at > target)
            break;
    }
    return c[last].id;
}

static int list_candidates(cand *c, const float *x, int vocab, float least, float most)
{
    int n = 0;

    for (int i = 0; i < vocab; i++) {
        const float d = x[i] - most;
        if (x[i] >= least && x[i] > -INFINITY)
            c[n++] = (cand){x[i], x[i] == most ? 1 : d < -104 ? 0 : expf(d), i};
    }
    return n;
}

static int32_t sample(const kwk_choice *ch, float *x, int vocab, cand *c, cand *copy, int keep)
{
    const kwk_sampling *s = ch->sampling;
    const kwk_history *h = ch->history;
    float least = -INFINITY;

    for (int i = 0; i < vocab; i++)
        x[i] = isnan(x[i]) ? -INFINITY : x[i] / s->temperature;
    const int top = greatest(x, vocab);
    if (top < 0)
        return -1;
    if (s->top_k > 0 && s->top_k < vocab)
        least = kth_greatest(x, vocab, s->top_k, (float *)copy);
    int n = list_candidates(c, x, vocab, least, x[top]);
    if (s->top_p < 1)
        n = filter_top_p(c, n, s->top_p, copy);
    if (s->min_p > 0)
        n = filter_min_p(c, n, s->min_p);
    if (keep) {
        for (int i = 0; i < vocab; i++)
            x[i] = -INFINITY;
        for (int i = 0; i < n; i++)
            x[c[i].id] = c[i].score;
    }
    if (h && h->noise)
        return draw_by_noise(c, n, h->noise);
    return draw_by_seed(c, n, uniform(s->seed, s->choice, h ? h->n_new : 0));
}

/* ---- log probabilities --------------------------------------------------------------------------
 */

/* log of the sum of exp over raw logits; the most likely tokens, equals by ascending id. */
static double log_sum(const float *x, int n, kwk_logprob *top, int want)
{
    const int best = greatest(x, n);
    double sum = 0;
    int have = 0;

    for (int i = 0; i < want; i++) // there may be fewer tokens than asked for
        top[i] = (kwk_logprob){-1, -INFINITY};
    if (best < 0)
        return -INFINITY;
    for (int i = 0; i < n; i++) {
        const float d = x[i] - x[best];
        if (x[i] == x[best])
            sum += 1;
        else if (d >= -104)
            sum += (double)expf(d);
        if (want && x[i] > -INFINITY && (have < want || x[i] > top[have - 1].logprob)) {
            int at = have < want ? have++ : want - 1;
            for (; at > 0 && top[at - 1].logprob < x[i]; at--)
                top[at] = top[at - 1];
            top[at] = (kwk_logprob){i, x[i]};
        }
    }
    const double lse = (double)x[best] + log(sum);
    for (int i = 0; i < have; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
    return lse;
}

void kwk_sampler_choose(kwk_choice *ch, float *x, int vocab, void *work, int keep_filters,
                        kwk_argmax_fn *argmax)
{
    cand *c = work, *copy = (cand *)((char *)work + work_cands(vocab));
    float *raw = (float *)((char *)copy + work_cands(vocab));
    uint32_t *bits = (uint32_t *)((char *)raw + round64((size_t)vocab * sizeof *raw));
    const int n_top = ch->top ? ch->sampling->n_logprobs : 0;
    double lse = 0;

    ch->logprob = NAN;
    if (ch->want_logprob || n_top) {
        lse = log_sum(x, vocab, ch->top, n_top);
        memcpy(raw, x, (size_t)vocab * sizeof *raw);
    }
    process(ch, x, vocab, bits);
    if (ch->sampling->do_sample) {
        ch->token = sample(ch, x, vocab, c, copy, keep_filters);
    } else {
        ch->token = argmax ? argmax(x, vocab) : greatest(x, vocab);
        if (ch->token >= 0 && x[ch->token] == -INFINITY)
            ch->token = -1;
    }
    if (ch->want_logprob && ch->token >= 0)
        ch->logprob = (float)((double)raw[ch->token] - lse);
}

int kwk_sample(const kwk_sampling *s, const kwk_history *h, float *logits, int vocab,
               int32_t *token, float *logprob, kwk_logprob *top, kwk_error *err)
{
    kwk_choice c = {.sampling = s, .history = h, .want_logprob = logprob != NULL, .top = top};
    void *work;
    int rc;

    if (!logits || !token || vocab < 1)
        return kwk_fail(err, KWK_EINVAL, "logits or token is NULL, or vocab %d is below 1", vocab);
    rc = kwk_sampling_check(s, vocab, err);
    if (rc != KWK_OK)
        return rc;
    if (h && (h->n_ids < 0 || (h->n_ids > 0 && !h->ids)))
        return kwk_fail(err, KWK_EINVAL, "history of %d ids without a list", h->n_ids);
    work = aligned_alloc(64, kwk_sampler_work_bytes(vocab));
    if (!work)
        return kwk_fail(err, KWK_ENOMEM, "no memory to sample from %d logits", vocab);
    kwk_sampler_choose(&c, logits, vocab, work, 1, NULL);
    free(work);
    if (c.token < 0)
        return kwk_fail(err, KWK_EINVAL, "every score is NaN or -inf");
    *token = c.token;
    if (logprob)
        *logprob = c.logprob;
    return KWK_OK;
}
