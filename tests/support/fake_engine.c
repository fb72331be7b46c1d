/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake engine; see fake_engine.h. A mistake of the caller ends the test program.
 */
#include "tests/support/fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: fake engine: %s\n", __FILE__, __LINE__, #x);                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { BLOCK = 32 };

struct kwk_model {
    atomic_int refs;
    int kv_blocks;
    int used; // under the lock
    int max_ctx;
    char precision[16];
    kwk_counters counters;
};

struct kwk_seq {
    kwk_model *model;
    int32_t *ids, *positions;
    uint8_t *valid;
    int n, blocks;
};

fake_options fake;
fake_counts fake_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const int32_t eos[] = {FAKE_EOS};

void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.vocab = 300;
    fake.max_ctx = 4096;
    fake.kv_blocks = 256;
    fake.has_text = fake.text_bytes = fake.load_parts = 1;
    fake.poison = fake.unsampled = -1;
    memset(&fake_count, 0, sizeof fake_count);
}

static void sleep_ms(int ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static uint64_t hash(const int32_t *ids, int n)
{
    uint64_t h = 14695981039346656037ull;

    for (int i = 0; i < n; i++)
        h = (h ^ (uint32_t)ids[i]) * 1099511628211ull;
    return h;
}

int32_t fake_next(const int32_t *ids, int n)
{
    return 3 + (int32_t)(hash(ids, n) % (uint64_t)(fake.vocab - 3)); // never the end
}

/* ---- models
 * ---------------------------------------------------------------------------------------- */

const char *kwk_isa(void)
{
    return "fake";
}

static int threads = 2;

int kwk_set_threads(int n, kwk_error *err)
{
    threads = n;
    return KWK_OK;
}

int kwk_threads(void)
{
    return threads;
}

static int load(kwk_model **out, const kwk_model_options *o, kwk_error *err)
{
    kwk_model *m;

    atomic_fetch_add(&fake_count.loads, 1);
    for (int i = 0; i < fake.load_parts; i++) {
        sleep_ms(atomic_load(&fake.load_ms));
        if (o && o->progress &&
            o->progress(o->progress_arg, (uint64_t)i * 1000, (uint64_t)fake.load_parts * 1000))
            return kwk_fail(err, KWK_ECANCELED, "the load was cancelled");
    }
    if (o && o->precision && !strcmp(o->precision, "nonsense"))
        return kwk_fail(err, KWK_EINVAL, "precision 'nonsense' is unknown");
    m = calloc(1, sizeof *m);
    if (!m)
        return kwk_fail(err, KWK_ENOMEM, "a model");
    atomic_init(&m->refs, 1);
    m->kv_blocks = fake.kv_blocks;
    m->max_ctx = o && o->max_ctx && o->max_ctx < fake.max_ctx ? o->max_ctx : fake.max_ctx;
    snprintf(m->precision, sizeof m->precision, "%s", o && o->precision ? o->precision : "float32");
    atomic_fetch_add(&fake_count.models, 1);
    *out = m;
    return KWK_OK;
}

int kwk_model_open(kwk_model **out, const char *path, const kwk_model_options *o, kwk_error *err)
{
    if (access(path, R_OK))
        return kwk_fail(err, KWK_ENOENT, "'%s' is not there", path);
    if (strstr(path, "damaged"))
        return kwk_fail(err, KWK_EFORMAT, "'%s' is damaged", path);
    return load(out, o, err);
}

int kwk_model_open_fd(kwk_model **out, int fd, const kwk_model_options *o, kwk_error *err)
{
    char byte;

    if (pread(fd, &byte, 1, 0) < 0)
        return kwk_fail(err, KWK_EIO, "descriptor %d cannot be read", fd);
    return load(out, o, err);
}

kwk_model *kwk_model_retain(kwk_model *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

void kwk_model_free(kwk_model *m)
{
    if (m && atomic_fetch_sub(&m->refs, 1) == 1) {
        CHECK(m->used == 0);
        atomic_fetch_sub(&fake_count.models, 1);
        free(m);
    }
}

void kwk_model_describe(const kwk_model *m, kwk_model_info *info)
{
    memset(info, 0, sizeof *info);
    info->model_type = "fake";
    info->precision = m->precision;
    info->n_layers = 2;
    info->hidden = 8;
    info->n_heads = info->n_kv_heads = 2;
    info->head_dim = 4;
    info->vocab = fake.vocab;
    info->max_ctx = m->max_ctx;
    info->bos = FAKE_BOS;
    info->pad = -1;
    info->n_eos = 1;
    info->eos = eos;
    info->n_params = 10;
    info->weight_bytes = info->packed_bytes = (uint64_t)fake.load_parts * 1000;
    pthread_mutex_lock(&lock);
    info->kv_blocks = (uint64_t)m->kv_blocks;
    info->kv_blocks_free = (uint64_t)(m->kv_blocks - m->used);
    pthread_mutex_unlock(&lock);
}

int kwk_model_token_bytes(const kwk_model *m, int32_t id, const uint8_t **bytes, size_t *n,
                          kwk_error *err)
{
    static uint8_t all[256][256];

    if (!fake.has_text)
        return kwk_fail(err, KWK_ENOENT, "no tokenizer");
    if (id < 0 || id >= fake.vocab)
        return kwk_fail(err, KWK_EINVAL, "id %d", id);
    pthread_mutex_lock(&lock);
    memset(all[id % 256], id % 256, sizeof all[0]);
    pthread_mutex_unlock(&lock);
    *bytes = all[id % 256];
    *n = (size_t)fake.text_bytes;
    return KWK_OK;
}

void kwk_model_counters(const kwk_model *m, kwk_counters *c)
{
    *c = m->counters;
}

/* ---- sequences
 * ---------------------------------------------------------------------------------------- */

static void set_blocks(kwk_seq *s, int n_slots)
{
    const int blocks = (n_slots + BLOCK - 1) / BLOCK;

    pthread_mutex_lock(&lock);
    s->model->used += blocks - s->blocks;
    CHECK(s->model->used >= 0 && s->model->used <= s->model->kv_blocks);
    pthread_mutex_unlock(&lock);
    s->blocks = blocks;
}

int kwk_seq_new(kwk_seq **out, kwk_model *m, kwk_error *err)
{
    kwk_seq *s = calloc(1, sizeof *s);

    if (!s)
        return kwk_fail(err, KWK_ENOMEM, "a sequence");
    s->model = kwk_model_retain(m);
    atomic_fetch_add(&fake_count.seqs, 1);
    s->ids = calloc((size_t)m->max_ctx, sizeof *s->ids);
    s->positions = calloc((size_t)m->max_ctx, sizeof *s->positions);
    s->valid = calloc((size_t)m->max_ctx, 1);
    if (!s->ids || !s->positions || !s->valid) {
        kwk_seq_free(s);
        return kwk_fail(err, KWK_ENOMEM, "a sequence");
    }
    *out = s;
    return KWK_OK;
}

void kwk_seq_free(kwk_seq *s)
{
    if (!s)
        return;
    set_blocks(s, 0);
    kwk_model_free(s->model);
    free(s->ids);
    free(s->positions);
    free(s->valid);
    free(s);
    atomic_fetch_sub(&fake_count.seqs, 1);
}

int kwk_seq_fork(kwk_seq **out, const kwk_seq *s, kwk_error *err)
{
    int rc = kwk_seq_new(out, s->model, err);

    if (rc < 0)
        return rc;
    memcpy((*out)->ids, s->ids, (size_t)s->n * sizeof *s->ids);
    memcpy((*out)->positions, s->positions, (size_t)s->n * sizeof *s->positions);
    memcpy((*out)->valid, s->valid, (size_t)s->n);
    (*out)->n = s->n;
    set_blocks(*out, s->n);
    return rc;
}

int kwk_seq_length(const kwk_seq *s)
{
    return s->n;
}

int kwk_seq_truncate(kwk_seq *s, int n_slots, kwk_error *err)
{
    if (n_slots < 0 || n_slots > s->n)
        return kwk_fail(err, KWK_EINVAL, "length is %d, not from 0 to %d", n_slots, s->n);
    s->n = n_slots;
    set_blocks(s, n_slots);
    return KWK_OK;
}

/* K and V of a slot are its id and its position, everywhere. */
int kwk_seq_export_kv(const kwk_seq *s, int layer, float *k, float *v, kwk_error *err)
{
    for (int h = 0, i = 0; h < 2; h++)
        for (int slot = 0; slot < s->n; slot++)
            for (int d = 0; d < 4; d++, i++) {
                k[i] = (float)s->ids[slot];
                v[i] = (float)s->positions[slot];
            }
    return KWK_OK;
}

/* ---- sampling
 * ----------------------------------------------------------------------------------------- */

int kwk_sampling_check(const kwk_sampling *s, int vocab, kwk_error *err)
{
    CHECK(s->size == sizeof *s);
    if (!(s->temperature > 0))
        return kwk_fail(err, KWK_EINVAL, "temperature is %g", (double)s->temperature);
    if (s->top_k < 0)
        return kwk_fail(err, KWK_EINVAL, "top_k is %d", s->top_k);
    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab || isnan(s->bias[i].bias))
            return kwk_fail(err, KWK_EINVAL, "logit_bias of token %d", s->bias[i].id);
    return KWK_OK;
}

static void choose(kwk_row *row, const kwk_seq *s)
{
    const kwk_history *h = row->history;

    CHECK(h && h->n_ids == s->n && !memcmp(h->ids, s->ids, (size_t)s->n * sizeof *s->ids));
    row->out_token = fake.script ? fake.script[h->n_new % fake.n_script] : fake_next(s->ids, s->n);
    if (row->token == fake.unsampled)
        row->out_token = -1;
    row->out_logprob = -0.5f;
    for (int i = 0; row->out_top && i < row->sampling->n_logprobs; i++)
        row->out_top[i] = (kwk_logprob){row->out_token + i, -0.5f - (float)i};
}

/* ---- the step
 * ------------------------------------------------------------------------------------------- */

int kwk_step_blocks(const kwk_model *m, const kwk_row *rows, int n_rows)
{
    int blocks = 0;

    for (int i = 0, n; i < n_rows; i += n) {
        const kwk_seq *s = rows[i].seq;
        for (n = 1; i + n < n_rows && rows[i + n].seq == s; n++)
            ;
        blocks += (s->n + n + BLOCK - 1) / BLOCK - s->blocks;
    }
    return blocks;
}

static void count(kwk_model *m, int n_rows)
{
    m->counters.steps++;
    m->counters.rows += (uint64_t)n_rows;
    if ((uint64_t)n_rows > m->counters.max_rows)
        m->counters.max_rows = (uint64_t)n_rows;
    atomic_fetch_add(&fake_count.steps, 1);
    atomic_fetch_add(&fake_count.rows, (uint64_t)n_rows);
    atomic_store(&fake_count.last_rows, n_rows);
    if (n_rows > atomic_load(&fake_count.max_rows))
        atomic_store(&fake_count.max_rows, n_rows);
}

static int check_rows(const kwk_model *m, const kwk_step_args *args, kwk_error *err)
{
    for (int i = 0; i < args->n_rows; i++) {
        const kwk_row *r = &args->rows[i];
        CHECK(r->seq && r->seq->model == m);
        CHECK(r->token >= 0 && r->token < fake.vocab && r->position >= 0 && r->invalid <= 1);
        for (int k = 0; k + 1 < i; k++) // rows of a sequence follow each other
            CHECK(args->rows[k].seq != r->seq || args->rows[i - 1].seq == r->seq);
        if (r->token == fake.poison)
            return kwk_fail(err, KWK_EINVAL, "row %d: poison", i);
        if (r->seq->n >= m->max_ctx)
            return kwk_fail(err, KWK_EFULL, "row %d: past the context", i);
    }
    return KWK_OK;
}

int kwk_step(kwk_model *m, kwk_step_args *args, kwk_error *err)
{
    int n_logits = 0, rc;

    CHECK(args->size == sizeof *args && args->n_rows >= 1 && args->n_rows <= 4096);
    if (fake.hook)
        fake.hook(fake.hook_arg, args);
    rc = check_rows(m, args, err);
    if (rc < 0)
        return rc;
    CHECK(kwk_step_blocks(m, args->rows, args->n_rows) <= m->kv_blocks - m->used);
    sleep_ms(atomic_load(&fake.step_ms));
    for (int i = 0; i < args->n_rows; i++) {
        kwk_row *r = &args->rows[i];
        kwk_seq *s = r->seq;
        s->ids[s->n] = r->token;
        s->positions[s->n] = r->position;
        s->valid[s->n] = !r->invalid;
        s->n++;
        set_blocks(s, s->n);
        if (r->sampling)
            choose(r, s);
        if (r->want_logits) { // slots, position, holes, last token, then the hash
            float *out = args->logits + (size_t)n_logits++ * (size_t)fake.vocab;
            int holes = 0;
            for (int k = 0; k < s->n; k++)
                holes += !s->valid[k];
            for (int k = 0; k < fake.vocab; k++)
                out[k] = (float)(hash(s->ids, s->n) % 1000);
            out[0] = (float)s->n;
            out[1] = (float)r->position;
            out[2] = (float)holes;
            out[3] = (float)r->token;
        }
    }
    count(m, args->n_rows);
    return KWK_OK;
}
