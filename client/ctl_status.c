/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl status, models, metrics.
 */
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"

static int no_arguments(ctl *x, int argc, char **argv)
{
    static const struct option longs[] = {CTL_COMMON_OPTIONS};
    const int c = ctl_option(x, argc, argv, "", longs);

    if (c == 0)
        return x->exit_code;
    if (optind < argc) {
        x->exit_code = ctl_usage(x, "argument '%s' is not expected", argv[optind]);
        return x->exit_code;
    }
    return -1;
}

/* A command that asks one question and takes no arguments: the reply as JSON or by `show`. */
static int ask_and_show(ctl *x, int argc, char **argv, kwk_op op, void (*show)(const kwk_tree *t))
{
    kwk_tree *t = NULL;
    int code = no_arguments(x, argc, argv);

    if (code >= 0)
        return code;
    code = ctl_connect(x, 0);
    if (code == CTL_OK)
        code = ctl_ask(x, op, &t);
    if (code == CTL_OK) {
        if (x->json)
            code = ctl_print_json(x, t);
        else
            show(t);
    }
    kwk_tree_free(t);
    return code;
}

void ctl_print_status(const kwk_tree *t)
{
    const char *server = kwk_tree_str(t, "server"), *isa = kwk_tree_str(t, "isa");
    char up[32];

    ctl_print_text(server ? server : "?", strlen(server ? server : "?"), 0);
    printf(", pid %lld, up %s, %s, ", (long long)kwk_tree_int(t, "pid", 0),
           ctl_duration(kwk_tree_double(t, "uptime_ms", 0), up),
           kwk_tree_int(t, "ready", 0) ? "ready" : "loading");
    ctl_print_text(isa ? isa : "?", strlen(isa ? isa : "?"), 0);
    printf(" on %lld threads\n", (long long)kwk_tree_int(t, "threads", 0));
    printf("%lld sessions, %lld running, %lld queued, %lld models\n",
           (long long)kwk_tree_int(t, "sessions", 0), (long long)kwk_tree_int(t, "running", 0),
           (long long)kwk_tree_int(t, "queued", 0), (long long)kwk_tree_int(t, "models", 0));
}

int ctl_status(ctl *x, int argc, char **argv)
{
    return ask_and_show(x, argc, argv, KWK_OP_status, ctl_print_status);
}

/* A field of a model; the path is models.<i>.<key>. */
static const char *field(const kwk_tree *t, int i, const char *key)
{
    char path[64];

    snprintf(path, sizeof path, "models.%d.%s", i, key);
    return kwk_tree_str(t, path);
}

static double number(const kwk_tree *t, int i, const char *key)
{
    char path[64];

    snprintf(path, sizeof path, "models.%d.%s", i, key);
    return kwk_tree_double(t, path, kwk_tree_int(t, path, -1) == 1 ? 1 : -1);
}

static const char *or_dash(double v, const char *text)
{
    return v < 0 ? NULL : text;
}

void ctl_print_models(const kwk_tree *t)
{
    static const char *const heading[] = {"NAME", "STATE", "TYPE", "PRECISION", "SIZE", "CTX",
                                          "KV FREE", "PIN"};
    const int n = kwk_tree_count(t, "models");
    ctl_table table = {.n_columns = 8};

    if (n <= 0) {
        printf("no models\n");
        return;
    }
    ctl_table_add(&table, heading);
    for (int i = 0; i < n; i++) {
        const char *state = field(t, i, "state");
        const double bytes = number(t, i, "packed_bytes"), ctx = number(t, i, "max_ctx");
        const double blocks = number(t, i, "kv_blocks"), free_blocks = number(t, i, "kv_blocks_free");
        char progress[32], size[32], context[32], kv[32];
        const char *cells[8];

        snprintf(progress, sizeof progress, "%.0f %%", number(t, i, "progress") * 100);
        snprintf(context, sizeof context, "%.0f", ctx);
        snprintf(kv, sizeof kv, "%.0f %%", blocks > 0 ? 100 * free_blocks / blocks : 0);
        cells[0] = field(t, i, "name");
        cells[1] = state && strcmp(state, "loading") == 0 ? progress : state;
        cells[2] = field(t, i, "model_type");
        cells[3] = field(t, i, "precision");
        cells[4] = or_dash(bytes, ctl_bytes(bytes, size));
        cells[5] = or_dash(ctx, context);
        cells[6] = or_dash(blocks, kv);
        cells[7] = number(t, i, "pin") == 1 ? "yes" : "no";
        ctl_table_add(&table, cells);
    }
    ctl_table_print(&table);
    ctl_table_fini(&table);
    for (int i = 0; i < n; i++) {
        const char *error = field(t, i, "error"), *name = field(t, i, "name");
        if (!error || !name)
            continue;
        ctl_print_text(name, strlen(name), 0);
        printf(": ");
        ctl_print_text(error, strlen(error), 0);
        putchar('\n');
    }
}

int ctl_models(ctl *x, int argc, char **argv)
{
    return ask_and_show(x, argc, argv, KWK_OP_models, ctl_print_models);
}

static void print_metrics(const kwk_tree *t)
{
    const char *text = kwk_tree_str(t, "text");

    if (text)
        ctl_print_text(text, strlen(text), 1);
}

int ctl_metrics(ctl *x, int argc, char **argv)
{
    return ask_and_show(x, argc, argv, KWK_OP_metrics, print_metrics);
}
