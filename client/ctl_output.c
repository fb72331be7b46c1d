/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl: errors, answers, tables. Names and texts come from other users' processes: nothing of them
 * reaches a terminal unfiltered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl.h"
#include "client/internal.h"
#include "proto/tree.h"
#include "proto/utf8.h"

volatile sig_atomic_t ctl_interrupted;

static void on_signal(int sig)
{
    ctl_interrupted = 1;
}

void ctl_catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal}; // no SA_RESTART: waits end

    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

int ctl_error(ctl *x, const kwk_error *err)
{
    if (x->json) {
        kwk_buf b = {0};
        if (kwk_json_str(&b, err->msg, strlen(err->msg)) == 0)
            printf("{\"error\":\"%s\",\"code\":%d,\"message\":%.*s}\n", kwk_error_name(err->code),
                   err->code, (int)b.size, (const char *)b.data);
        kwk_buf_fini(&b);
    } else {
        fflush(stdout);
        fprintf(stderr, "kwkctl: %s\n", err->msg);
    }
    if (err->code == KWK_ECLOSED || (err->code == KWK_ENOENT && !x->client))
        return CTL_NO_DAEMON;
    return CTL_FAILED;
}

int ctl_connect(ctl *x, int logits_bytes)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_error err;

    o.name = "kwkctl/" KWK_VERSION;
    o.logits_bytes = (size_t)logits_bytes;
    if (kwk_client_open(&x->client, x->address, &o, &err) < 0)
        return ctl_error(x, &err);
    return CTL_OK;
}

int ctl_ask(ctl *x, kwk_op op, kwk_tree **t)
{
    const kwk_request r = kwk_client_request(x->client, op);
    kwk_error err;

    if (kwk_client_call(x->client, &r, x->client->timeout_ms, t, NULL, &err) < 0)
        return ctl_error(x, &err);
    kwk_tree_drop(*t, "v");
    kwk_tree_drop(*t, "ok");
    return CTL_OK;
}

int ctl_print_json(ctl *x, kwk_tree *t)
{
    char *json = kwk_tree_json(t);
    kwk_error err;

    if (!json) {
        kwk_fail(&err, KWK_ENOMEM, "out of memory for an answer");
        return ctl_error(x, &err);
    }
    puts(json);
    free(json);
    return CTL_OK;
}

void ctl_print_text(const char *s, size_t n, int keep_lines)
{
    static int is_terminal = -1;

    if (is_terminal < 0)
        is_terminal = isatty(STDOUT_FILENO);
    if (!is_terminal && keep_lines) {
        fwrite(s, 1, n, stdout);
        return;
    }
    while (n > 0) {
        const int len = kwk_utf8_next((const uint8_t *)s, n);
        const unsigned char c = (unsigned char)*s;
        const int control = len <= 0 || c < ' ' || c == 127 ||
                            (len == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0);

        if (control && !(keep_lines && (c == '\n' || c == '\t')))
            putchar('?');
        else
            fwrite(s, 1, (size_t)len, stdout);
        s += len > 0 ? len : 1;
        n -= len > 0 ? (size_t)len : 1;
    }
}

/* ---- tables ------------------------------------------------------------------------------------ */

void ctl_table_add(ctl_table *t, const char *const *cells)
{
    if (t->n_rows == t->capacity) {
        const int capacity = t->capacity ? 2 * t->capacity : 16;
        void *more = realloc(t->cells, (size_t)capacity * sizeof *t->cells);
        if (!more)
            return; // a row less
        t->cells = more;
        t->capacity = capacity;
    }
    for (int i = 0; i < t->n_columns; i++)
        snprintf(t->cells[t->n_rows][i], sizeof t->cells[0][0], "%s", cells[i] ? cells[i] : "-");
    t->n_rows++;
}

/* Characters of a cell; a cut or bad one counts as its bytes. */
static int width(const char *s)
{
    size_t n = strlen(s);
    int w = 0;

    for (; n > 0; w++) {
        const int len = kwk_utf8_next((const uint8_t *)s, n);
        s += len > 0 ? len : 1;
        n -= len > 0 ? (size_t)len : 1;
    }
    return w;
}

void ctl_table_print(const ctl_table *t)
{
    int widths[10] = {0};

    for (int r = 0; r < t->n_rows; r++)
        for (int i = 0; i < t->n_columns; i++)
            if (width(t->cells[r][i]) > widths[i])
                widths[i] = width(t->cells[r][i]);
    for (int r = 0; r < t->n_rows; r++) {
        for (int i = 0; i < t->n_columns; i++) {
            const char *s = t->cells[r][i];
            const int last = i == t->n_columns - 1;
            ctl_print_text(s, strlen(s), 0);
            if (!last)
                printf("%*s", widths[i] - width(s) + 2, "");
        }
        putchar('\n');
    }
}

void ctl_table_fini(ctl_table *t)
{
    free(t->cells);
    t->cells = NULL;
}

const char *ctl_bytes(double bytes, char buf[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;

    while (bytes >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, 32, u && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

const char *ctl_duration(double ms, char buf[32])
{
    const long long s = ms > 0 && ms < 1e15 ? (long long)(ms / 1000) : 0;

    if (s >= 86400)
        snprintf(buf, 32, "%lldd %lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(buf, 32, "%lldh %lldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(buf, 32, "%lldm %llds", s / 60, s % 60);
    else
        snprintf(buf, 32, "%llds", s);
    return buf;
}
