/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl generate: a stream of tokens on standard output, figures on standard error.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"
#include "proto/buf.h"
#include "proto/tree.h"

enum { FILE_MAX = 4 << 20, SLICE_MS = 100 };

typedef struct options {
    kwk_generate g;
    int32_t *ids, *eos;
    int n_ids, n_eos, has_ids;
    int quiet;
} options;

/* All of a file, NUL-terminated; "-" is standard input. */
static int read_file(ctl *x, const char *name, kwk_buf *b)
{
    FILE *f = strcmp(name, "-") ? fopen(name, "re") : stdin;
    char chunk[4096];
    kwk_error err;
    size_t n;
    int rc = 0;

    if (!f) {
        kwk_fail(&err, KWK_EIO, "'%s': %s", name, strerror(errno));
        return ctl_error(x, &err);
    }
    while (rc == 0 && (n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        if (memchr(chunk, 0, n))
            rc = ctl_usage(x, "--ids-file '%s' is no text", name);
        else if (b->size + n > FILE_MAX)
            rc = ctl_usage(x, "--ids-file '%s' has more than %d bytes", name, FILE_MAX);
        else if (kwk_buf_write(b, chunk, n))
            rc = ctl_usage(x, "--ids-file '%s': out of memory", name);
    }
    if (rc == 0 && ferror(f)) {
        kwk_fail(&err, KWK_EIO, "'%s': %s", name, strerror(errno));
        rc = ctl_error(x, &err);
    }
    if (f != stdin)
        fclose(f);
    if (rc == 0 && kwk_buf_write(b, "", 1))
        rc = ctl_usage(x, "--ids-file '%s': out of memory", name);
    return rc;
}

static int parse(ctl *x, int argc, char **argv, options *o)
{
    enum {
        IDS = 1000, IDS_FILE, MIN_NEW, TEXT, SAMPLE, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEED, PENALTY,
        EOS, IGNORE_EOS, LOGPROBS, TENANT
    };
    static const struct option longs[] = {
        {"model", required_argument, 0, 'm'}, {"ids", required_argument, 0, IDS},
        {"ids-file", required_argument, 0, IDS_FILE},
        {"max-new-tokens", required_argument, 0, 'n'},
        {"min-new-tokens", required_argument, 0, MIN_NEW}, {"text", no_argument, 0, TEXT},
        {"sample", no_argument, 0, SAMPLE}, {"temperature", required_argument, 0, TEMPERATURE},
        {"top-k", required_argument, 0, TOP_K}, {"top-p", required_argument, 0, TOP_P},
        {"min-p", required_argument, 0, MIN_P}, {"seed", required_argument, 0, SEED},
        {"repetition-penalty", required_argument, 0, PENALTY},
        {"eos", required_argument, 0, EOS}, {"ignore-eos", no_argument, 0, IGNORE_EOS},
        {"logprobs", required_argument, 0, LOGPROBS}, {"tenant", required_argument, 0, TENANT},
        {"quiet", no_argument, 0, 'q'}, CTL_COMMON_OPTIONS};
    kwk_generate *g = &o->g;
    long long v = 0;
    int c, code = 0;

    while (code == 0 && (c = ctl_option(x, argc, argv, "m:n:q", longs)) != -1) {
        kwk_buf file = {0};

        switch (c) {
        case 0:
            return -1; // exit_code is set
        case 'm':
            g->model = optarg;
            break;
        case IDS:
            code = ctl_ids(x, "--ids", optarg, &o->ids, &o->n_ids);
            o->has_ids = 1;
            break;
        case IDS_FILE:
            code = read_file(x, optarg, &file);
            if (!code)
                code = ctl_ids(x, "--ids-file", (const char *)file.data, &o->ids, &o->n_ids);
            kwk_buf_fini(&file);
            o->has_ids = 1;
            break;
        case 'n':
            code = ctl_int(x, "--max-new-tokens", optarg, -1, KWK_NEW_TOKENS_MAX, &v);
            g->max_new_tokens = (int)v;
            break;
        case MIN_NEW:
            code = ctl_int(x, "--min-new-tokens", optarg, 0, KWK_NEW_TOKENS_MAX, &v);
            g->min_new_tokens = (int)v;
            break;
        case TEXT:
            g->text = 1;
            break;
        case SAMPLE:
            g->do_sample = 1;
            break;
        case TEMPERATURE:
            code = ctl_float(x, "--temperature", optarg, &g->temperature);
            g->do_sample = 1;
            break;
        case TOP_K:
            code = ctl_int(x, "--top-k", optarg, 0, INT32_MAX, &v);
            g->top_k = (int)v;
            g->do_sample = 1;
            break;
        case TOP_P:
            code = ctl_float(x, "--top-p", optarg, &g->top_p);
            g->do_sample = 1;
            break;
        case MIN_P:
            code = ctl_float(x, "--min-p", optarg, &g->min_p);
            g->do_sample = 1;
            break;
        case SEED:
            code = ctl_uint64(x, "--seed", optarg, &g->seed);
            g->has_seed = 1;
            g->do_sample = 1;
            break;
        case PENALTY:
            code = ctl_float(x, "--repetition-penalty", optarg, &g->repetition_penalty);
            break;
        case EOS:
            code = ctl_ids(x, "--eos", optarg, &o->eos, &o->n_eos);
            break;
        case IGNORE_EOS:
            g->ignore_eos = 1;
            break;
        case LOGPROBS:
            code = ctl_int(x, "--logprobs", optarg, 0, KWK_LOGPROBS_MAX, &v);
            g->n_logprobs = (int)v;
            break;
        case TENANT:
            g->tenant = optarg;
            break;
        case 'q':
            o->quiet = 1;
            break;
        }
    }
    if (code)
        return code;
    if (optind < argc)
        return ctl_usage(x, "argument '%s' is not expected", argv[optind]);
    if (!o->has_ids)
        return ctl_usage(x, "--ids or --ids-file is needed");
    if (!o->n_ids)
        return ctl_usage(x, "the prompt has no ids");
    g->prompt = o->ids;
    g->n_prompt = o->n_ids;
    g->eos = o->eos;
    g->n_eos = o->n_eos;
    return 0;
}

/* One line of JSON for an event. */
static void print_json(const kwk_event *e, const kwk_generate *g, uint64_t seed)
{
    kwk_buf b = {0};

    if (e->type == KWK_EVENT_DONE) {
        printf("{\"finish_reason\":\"%s\",\"prompt_tokens\":%u,\"new_tokens\":%u,"
               "\"cached_tokens\":%u,\"queue_us\":%llu,\"prefill_us\":%llu,\"decode_us\":%llu,"
               "\"seed\":%llu}\n",
               e->finish_reason, e->prompt_tokens, e->new_tokens, e->cached_tokens,
               (unsigned long long)e->queue_us, (unsigned long long)e->prefill_us,
               (unsigned long long)e->decode_us, (unsigned long long)seed);
        return;
    }
    putchar('{');
    if (e->type == KWK_EVENT_TOKEN)
        printf("\"token\":%d%s", e->token, g->text || g->n_logprobs ? "," : "");
    if (g->text && kwk_json_str(&b, e->text, e->n_text) == 0)
        printf("\"text\":%.*s%s", (int)b.size, (const char *)b.data,
               e->type == KWK_EVENT_TOKEN && g->n_logprobs ? "," : "");
    if (e->type == KWK_EVENT_TOKEN && g->n_logprobs) {
        b.size = 0;
        kwk_json_number(&b, (double)e->logprob, 1);
        printf("\"logprob\":%.*s,\"top\":[", (int)b.size, (const char *)b.data);
        for (int i = 0; i < e->n_top; i++) {
            b.size = 0;
            kwk_json_number(&b, (double)e->top[i].logprob, 1);
            printf("%s[%d,%.*s]", i ? "," : "", e->top[i].id, (int)b.size, (const char *)b.data);
        }
        putchar(']');
    }
    puts("}");
    kwk_buf_fini(&b);
}

static void print_figures(const kwk_event *e)
{
    const double decode_s = (double)e->decode_us / 1e6, prefill_s = (double)e->prefill_us / 1e6;
    const uint32_t computed = e->prompt_tokens - e->cached_tokens;

    fprintf(stderr, "%u tokens (%s)", e->new_tokens, e->finish_reason);
    if (e->new_tokens > 1 && decode_s > 0)
        fprintf(stderr, ", %.1f tokens/s", (e->new_tokens - 1) / decode_s);
    fprintf(stderr, "; prompt %u (%u cached)", e->prompt_tokens, e->cached_tokens);
    if (prefill_s > 0)
        fprintf(stderr, ", %.1f tokens/s", computed / prefill_s);
    fprintf(stderr, "; %.0f ms queued, %.0f ms to the first token\n", (double)e->queue_us / 1e3,
            (double)(e->queue_us + e->prefill_us) / 1e3);
}

static int read_stream(ctl *x, kwk_stream *s, const options *o)
{
    const uint64_t seed = kwk_stream_seed(s);
    int n = 0, cancelled = 0;
    kwk_event e;
    kwk_error err;

    for (;;) {
        const int rc = kwk_stream_next(s, &e, SLICE_MS, &err);

        if (ctl_interrupted && !cancelled) {
            cancelled = 1;
            (void)kwk_stream_cancel(s, NULL);
        }
        if (rc == 0)
            continue;
        if (rc < 0) {
            if (!x->json && n)
                putchar('\n');
            return ctl_error(x, &err);
        }
        if (x->json)
            print_json(&e, &o->g, seed);
        else if (e.type != KWK_EVENT_DONE && o->g.text)
            ctl_print_text(e.text, e.n_text, 1);
        else if (e.type == KWK_EVENT_TOKEN)
            printf("%s%d", n ? " " : "", e.token);
        n += e.type == KWK_EVENT_TOKEN;
        if (e.type == KWK_EVENT_DONE)
            break;
        fflush(stdout);
    }
    if (!x->json)
        putchar('\n');
    fflush(stdout);
    if (!x->json && !o->quiet)
        print_figures(&e);
    if (cancelled)
        return CTL_INTERRUPTED;
    return strcmp(e.finish_reason, "eos") && strcmp(e.finish_reason, "length") ? CTL_FAILED : CTL_OK;
}

int ctl_generate(ctl *x, int argc, char **argv)
{
    options o = {.g = KWK_GENERATE_INIT};
    kwk_stream *s = NULL;
    kwk_error err;
    int code = parse(x, argc, argv, &o);

    if (code) {
        code = code < 0 ? x->exit_code : code;
        goto out;
    }
    ctl_catch_signals();
    code = ctl_connect(x, 0);
    if (code)
        goto out;
    if (kwk_client_generate(&s, x->client, &o.g, &err) < 0) {
        code = ctl_error(x, &err);
        goto out;
    }
    code = read_stream(x, s, &o);
out:
    kwk_stream_free(s);
    free(o.ids);
    free(o.eos);
    return code;
}
