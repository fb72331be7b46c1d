/* SPDX-License-Identifier: Apache-2.0
 *
 * kwk-bench: tokens per second of a model, prompt and generation apart, through the public API.
 * pp: one prompt in one step. tg: greedy generation, one sequence or several at once. Token ids are
 * random with a fixed seed; every test has a warm-up run before the runs that count.
 */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bench.h"
#include "engine/kwk.h"

enum { MAX_ROWS = 4096, MAX_SEQS = 256, MAX_REPS = 1000, MAX_TOKENS = 1 << 20 };

typedef struct options {
    const char *model, *weights;
    int mix_bits, n_prompt, n_gen, n_seqs, depth, threads, reps, json, kernels;
} options;

typedef struct result {
    char test[48];
    int n_seqs, n_prompt, n_gen;
    double mean, deviation; // tokens per second
    double steps_per_s;
    uint64_t kv_bytes;
} result;

static void usage(FILE *f)
{
    fprintf(f,
            "usage: kwk-bench -m MODEL [-w float32|f16|bf16|int8|int4] [--mix-bits 6|8]\n"
            "                 [-p 512] [-n 128] [-b 8] [-d 0] [-t THREADS] [-r 5] [-o md|json]\n"
            "       kwk-bench --kernels [-o md|json]\n"
            "\n"
            "  -m MODEL    Hugging Face directory, .gguf or .kwk\n"
            "  -w FORMAT   weight format; default: the model's own\n"
            "  --mix-bits  bits of the tensors that int4 keeps finer; default: 6 from a billion\n"
            "              parameters on, 8 below\n"
            "  -p N        prompt tokens of the test ppN; 0: no such test\n"
            "  -n N        generated tokens of the tests tgN and tgN@bSEQS; 0: no such tests\n"
            "  -b SEQS     sequences that generate at once in tgN@bSEQS; 1: no such test\n"
            "  -d DEPTH    tokens already in every sequence when the clock starts\n"
            "  -t THREADS  default: the physical cores that this process may use\n"
            "  -r REPS     runs that count; mean and standard deviation are printed (kernels: the "
            "best)\n"
            "  -o FORMAT   md: a table; json: a list of objects\n"
            "  --kernels   time every kernel beside read bandwidth and arithmetic peak\n"
            "  --help, --version\n");
}

static int number(const char *text, const char *name, int least, int most, int *out)
{
    char *end;
    const long v = strtol(text, &end, 10);

    if (!*text || *end || v < least || v > most) {
        fprintf(stderr, "kwk-bench: %s '%s' is not a number in %d..%d\n", name, text, least, most);
        return -1;
    }
    *out = (int)v;
    return 0;
}

/* 0: go on; 1: done (help, version); -1: bad usage. */
static int parse(int argc, char **argv, options *o)
{
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'},
                                          {"kernels", no_argument, NULL, 'k'},
                                          {"mix-bits", required_argument, NULL, 'x'},
                                          {"version", no_argument, NULL, 'V'},
                                          {0}};
    int c, rc = 0;

    while (rc == 0 && (c = getopt_long(argc, argv, "m:w:p:n:b:d:t:r:o:h", longs, NULL)) != -1)
        switch (c) {
        case 'm':
            o->model = optarg;
            break;
        case 'w':
            o->weights = optarg;
            break;
        case 'p':
            rc = number(optarg, "-p", 0, MAX_ROWS, &o->n_prompt);
            break;
        case 'n':
            rc = number(optarg, "-n", 0, MAX_TOKENS, &o->n_gen);
            break;
        case 'b':
            rc = number(optarg, "-b", 1, MAX_SEQS, &o->n_seqs);
            break;
        case 'd':
            rc = number(optarg, "-d", 0, MAX_TOKENS, &o->depth);
            break;
        case 't':
            rc = number(optarg, "-t", 1, 256, &o->threads);
            break;
        case 'r':
            rc = number(optarg, "-r", 1, MAX_REPS, &o->reps);
            break;
        case 'o':
            o->json = !strcmp(optarg, "json");
            if (!o->json && strcmp(optarg, "md")) {
                fprintf(stderr, "kwk-bench: -o '%s' is not md or json\n", optarg);
                rc = -1;
            }
            break;
        case 'x':
            rc = number(optarg, "--mix-bits", 6, 8, &o->mix_bits);
            break;
        case 'k':
            o->kernels = 1;
            break;
        case 'h':
            usage(stdout);
            return 1;
        case 'V':
            printf("kwk-bench %s\n", KWK_VERSION);
            return 1;
        default:
            rc = -1;
        }
    if (rc == 0 && optind < argc) {
        fprintf(stderr, "kwk-bench: '%s' is not an option\n", argv[optind]);
        rc = -1;
    }
    if (rc == 0 && !o->model && !o->kernels) {
        fprintf(stderr, "kwk-bench: -m MODEL is missing\n");
        rc = -1;
    }
    return rc;
}

/* ---- running -------------------------------------------------------------------------------- */

typedef struct runner {
    kwk_model *model;
    kwk_model_info info;
    uint64_t random;
    kwk_error err;
    kwk_row rows[MAX_ROWS];
    kwk_seq *seqs[MAX_SEQS];
} runner;

static int32_t random_token(runner *r)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((r->random >> 33) % (uint64_t)r->info.vocab);
}

static int step(runner *r, int n)
{
    kwk_step_args a = {.size = sizeof a, .rows = r->rows, .n_rows = n};

    return kwk_step(r->model, &a, &r->err);
}

/* n random tokens onto a sequence; the last one chooses a token. */
static int prompt(runner *r, kwk_seq *s, int n, const kwk_sampling *greedy, int32_t *token)
{
    for (int done = 0; done < n;) {
        const int now = n - done < MAX_ROWS ? n - done : MAX_ROWS;

        for (int i = 0; i < now; i++)
            r->rows[i] = (kwk_row){.seq = s,
                                   .token = random_token(r),
                                   .position = kwk_seq_length(s) + i,
                                   .sampling = done + i == n - 1 ? greedy : NULL};
        const int rc = step(r, now);
        if (rc != KWK_OK)
            return rc;
        done += now;
        *token = r->rows[now - 1].out_token;
    }
    return KWK_OK;
}

static void close_seqs(runner *r)
{
    for (int i = 0; i < MAX_SEQS; i++) {
        kwk_seq_free(r->seqs[i]);
        r->seqs[i] = NULL;
    }
}

/* One run; *seconds is the time of what the test is about. */
static int run_once(runner *r, const result *t, int depth, double *seconds)
{
    const kwk_sampling greedy = KWK_SAMPLING_INIT;
    int32_t token[MAX_SEQS] = {0};
    double start;
    int rc;

    r->random = 42;
    rc = kwk_seq_new(&r->seqs[0], r->model, &r->err);
    if (rc == KWK_OK && depth)
        rc = prompt(r, r->seqs[0], depth, &greedy, &token[0]);
    for (int i = 1; i < t->n_seqs && rc == KWK_OK; i++) {
        token[i] = random_token(r); // so that the sequences are not all the same
        rc = kwk_seq_fork(&r->seqs[i], r->seqs[0], &r->err);
    }
    start = kwk_bench_now();
    if (rc == KWK_OK && t->n_prompt)
        rc = prompt(r, r->seqs[0], t->n_prompt, &greedy, &token[0]);
    for (int k = 0; k < t->n_gen && rc == KWK_OK; k++) {
        for (int i = 0; i < t->n_seqs; i++)
            r->rows[i] = (kwk_row){
                .seq = r->seqs[i], .token = token[i], .position = depth + k, .sampling = &greedy};
        rc = step(r, t->n_seqs);
        for (int i = 0; i < t->n_seqs; i++)
            token[i] = r->rows[i].out_token < 0 ? 0 : r->rows[i].out_token;
    }
    *seconds = kwk_bench_now() - start;
    close_seqs(r);
    return rc;
}

static int run_test(runner *r, const options *o, result *t)
{
    const int tokens = t->n_prompt + t->n_gen * t->n_seqs;
    double sum = 0, squares = 0, time = 0, seconds;
    int rc = run_once(r, t, o->depth, &seconds);

    for (int i = 0; i < o->reps && rc == KWK_OK; i++) {
        rc = run_once(r, t, o->depth, &seconds);
        const double rate = tokens / seconds;
        sum += rate;
        squares += rate * rate;
        time += seconds;
    }
    t->mean = sum / o->reps;
    t->deviation = o->reps > 1 ? sqrt(fmax(0, (squares - sum * sum / o->reps) / (o->reps - 1))) : 0;
    t->steps_per_s = (t->n_prompt ? 1 : t->n_gen) * o->reps / time;
    t->kv_bytes = r->info.kv_bytes_per_slot * (uint64_t)t->n_seqs *
                  (uint64_t)(o->depth + t->n_prompt + t->n_gen);
    return rc;
}

static void name_test(result *t, const options *o)
{
    char batch[16] = "", depth[16] = "";

    if (t->n_seqs > 1)
        snprintf(batch, sizeof batch, "@b%d", t->n_seqs);
    if (o->depth)
        snprintf(depth, sizeof depth, "@d%d", o->depth);
    snprintf(t->test, sizeof t->test, "%s%d%s%s", t->n_prompt ? "pp" : "tg",
             t->n_prompt ? t->n_prompt : t->n_gen, batch, depth);
}

/* ---- printing ------------------------------------------------------------------------------- */

/* Bytes of weights that go past a second. */
static double weight_rate(const runner *r, const result *t)
{
    return (double)r->info.weight_bytes * t->steps_per_s * 1e-9;
}

static int print_json(const runner *r, const options *o, const result *results, int n)
{
    cJSON *list = cJSON_CreateArray();
    char *text;

    for (int i = 0; i < n; i++) {
        const result *t = &results[i];
        cJSON *x = cJSON_CreateObject();

        cJSON_AddStringToObject(x, "model", o->model);
        cJSON_AddStringToObject(x, "precision", r->info.precision);
        cJSON_AddStringToObject(x, "test", t->test);
        cJSON_AddNumberToObject(x, "n_prompt", t->n_prompt);
        cJSON_AddNumberToObject(x, "n_gen", t->n_gen);
        cJSON_AddNumberToObject(x, "n_seqs", t->n_seqs);
        cJSON_AddNumberToObject(x, "n_depth", o->depth);
        cJSON_AddNumberToObject(x, "avg_ts", t->mean);
        cJSON_AddNumberToObject(x, "stddev_ts", t->deviation);
        cJSON_AddNumberToObject(x, "n_threads", kwk_threads());
        cJSON_AddNumberToObject(x, "weight_bytes", (double)r->info.weight_bytes);
        cJSON_AddNumberToObject(x, "kv_bytes", (double)t->kv_bytes);
        cJSON_AddStringToObject(x, "isa", kwk_isa());
        cJSON_AddNumberToObject(x, "gb_s", weight_rate(r, t));
        cJSON_AddItemToArray(list, x);
    }
    text = cJSON_Print(list);
    cJSON_Delete(list);
    if (!text)
        return -1;
    puts(text);
    cJSON_free(text);
    return 0;
}

static void print_table(const runner *r, const result *results, int n)
{
    printf("| precision | weights MB | threads | isa | test | tokens/s | weights GB/s |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n; i++)
        printf("| %s | %.1f | %d | %s | %s | %.2f ± %.2f | %.1f |\n", r->info.precision,
               (double)r->info.weight_bytes * 1e-6, kwk_threads(), kwk_isa(), results[i].test,
               results[i].mean, results[i].deviation, weight_rate(r, &results[i]));
}

static int bench_model(const options *o)
{
    kwk_model_options mo = KWK_MODEL_OPTIONS_INIT;
    runner *r = calloc(1, sizeof *r);
    result results[3] = {0};
    int n = 0, rc;

    if (!r) {
        fprintf(stderr, "kwk-bench: no memory\n");
        return 1;
    }
    if (o->n_prompt)
        results[n++] = (result){.n_seqs = 1, .n_prompt = o->n_prompt};
    if (o->n_gen)
        results[n++] = (result){.n_seqs = 1, .n_gen = o->n_gen};
    if (o->n_gen && o->n_seqs > 1)
        results[n++] = (result){.n_seqs = o->n_seqs, .n_gen = o->n_gen};
    mo.precision = o->weights;
    mo.mix_bits = o->mix_bits;
    rc = kwk_model_open(&r->model, o->model, &mo, &r->err);
    if (rc == KWK_OK && o->threads)
        rc = kwk_set_threads(o->threads, &r->err);
    if (rc == KWK_OK)
        kwk_model_describe(r->model, &r->info);
    for (int i = 0; i < n && rc == KWK_OK; i++) {
        name_test(&results[i], o);
        rc = run_test(r, o, &results[i]);
    }
    if (rc != KWK_OK)
        fprintf(stderr, "kwk-bench: %s: %s\n", kwk_error_name(rc), r->err.msg);
    else if (o->json)
        rc = print_json(r, o, results, n);
    else
        print_table(r, results, n);
    kwk_model_free(r->model);
    free(r);
    return rc != KWK_OK;
}

int main(int argc, char **argv)
{
    options o = {.n_prompt = 512, .n_gen = 128, .n_seqs = 8, .reps = 5};
    const int rc = parse(argc, argv, &o);

    if (rc) {
        if (rc < 0)
            fputs("kwk-bench: see kwk-bench --help\n", stderr);
        return rc < 0 ? 2 : 0;
    }
    return o.kernels ? kwk_bench_kernels(o.json, o.reps) : bench_model(&o);
}
