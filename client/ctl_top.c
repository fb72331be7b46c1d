/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl top: status, models and the rates of the daemon's counters, again and again. On a terminal it
 * redraws the screen and ends with q; elsewhere it prints one view after the other.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "client/ctl.h"
#include "proto/unix_socket.h"

enum { COUNTERS_MAX = 128 };

typedef struct counter {
    char name[64];
    double value;
} counter;

typedef struct look {
    int64_t at_ms;
    int n;
    counter counters[COUNTERS_MAX];
} look;

/* Counters without labels: lines "name value" whose name ends in _total. */
static void read_counters(const char *text, look *l)
{
    l->n = 0;
    l->at_ms = kwk_now_ms();
    while (*text && l->n < COUNTERS_MAX) {
        const size_t n = strcspn(text, "\n"), n_name = strcspn(text, " {\n");
        counter *c = &l->counters[l->n];

        if (text[0] != '#' && n_name > 6 && n_name < sizeof c->name && text[n_name] == ' ' &&
            memcmp(text + n_name - 6, "_total", 6) == 0) {
            memcpy(c->name, text, n_name);
            c->name[n_name] = 0;
            c->value = strtod(text + n_name, NULL);
            l->n++;
        }
        text += n + (text[n] == '\n');
    }
}

static double value_of(const look *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->counters[i].name, name) == 0)
            return l->counters[i].value;
    return 0;
}

static void print_counters(const look *now, const look *before)
{
    static const char *const heading[] = {"COUNTER", "VALUE", "PER SECOND"};
    const double s = (double)(now->at_ms - before->at_ms) / 1000;
    ctl_table t = {.n_columns = 3};

    ctl_table_add(&t, heading);
    for (int i = 0; i < now->n; i++) {
        const counter *c = &now->counters[i];
        const char *name = strncmp(c->name, "kwker_", 6) == 0 ? c->name + 6 : c->name;
        char value[32], rate[32];
        const char *cells[] = {name, value, before->at_ms && s > 0 ? rate : NULL};
        if (c->value == 0)
            continue;
        snprintf(value, sizeof value, "%.0f", c->value);
        snprintf(rate, sizeof rate, "%.1f", (c->value - value_of(before, c->name)) / s);
        ctl_table_add(&t, cells);
    }
    if (t.n_rows > 1)
        ctl_table_print(&t);
    ctl_table_fini(&t);
}

static int show(ctl *x, look *now, const look *before, int redraw)
{
    kwk_tree *status = NULL, *models = NULL, *metrics = NULL;
    int code = ctl_ask(x, KWK_OP_status, &status);

    if (code == CTL_OK)
        code = ctl_ask(x, KWK_OP_models, &models);
    if (code == CTL_OK)
        code = ctl_ask(x, KWK_OP_metrics, &metrics);
    if (code == CTL_OK && x->json) {
        char *s = kwk_tree_json(status), *m = kwk_tree_json(models);
        if (s && m)
            printf("{\"status\":%s,\"models\":%s}\n", s, m);
        free(s);
        free(m);
    } else if (code == CTL_OK) {
        const char *text = kwk_tree_str(metrics, "text");
        read_counters(text ? text : "", now);
        if (redraw)
            printf("\033[H\033[J"); // to the corner, clear below
        ctl_print_status(status);
        putchar('\n');
        ctl_print_models(models);
        putchar('\n');
        print_counters(now, before);
        putchar('\n');
    }
    fflush(stdout);
    kwk_tree_free(status);
    kwk_tree_free(models);
    kwk_tree_free(metrics);
    return code;
}

/* Wait; 1: q was pressed or a signal came. */
static int pause_or_quit(int64_t ms, int keyboard)
{
    const int64_t end = kwk_now_ms() + ms;
    int64_t left;

    while (!ctl_interrupted && (left = end - kwk_now_ms()) > 0) {
        struct pollfd p = {.fd = keyboard ? STDIN_FILENO : -1, .events = POLLIN};
        char c;

        if (poll(&p, 1, (int)left) == 1) {
            if (read(STDIN_FILENO, &c, 1) != 1)
                keyboard = 0;
            else if (c == 'q' || c == 'Q')
                return 1;
        }
    }
    return ctl_interrupted != 0;
}

int ctl_top(ctl *x, int argc, char **argv)
{
    static const struct option longs[] = {{"delay", required_argument, 0, 'd'},
                                          {"count", required_argument, 0, 'n'}, CTL_COMMON_OPTIONS};
    const int keyboard = isatty(STDIN_FILENO), redraw = isatty(STDOUT_FILENO);
    look looks[2] = {{0}, {0}};
    struct termios saved, raw;
    float delay = 1;
    long long count = 0;
    int c, code = 0;

    while (code == 0 && (c = ctl_option(x, argc, argv, "d:n:", longs)) != -1) {
        if (c == 0)
            return x->exit_code;
        if (c == 'n')
            code = ctl_int(x, "--count", optarg, 1, 1000000000, &count);
        else
            code = ctl_float(x, "--delay", optarg, &delay);
        if (code == 0 && !(delay >= 0.05f && delay <= 3600))
            code = ctl_usage(x, "--delay %s is outside 0.05 to 3600", optarg);
    }
    if (code)
        return code;
    if (optind < argc)
        return ctl_usage(x, "argument '%s' is not expected", argv[optind]);
    ctl_catch_signals();
    code = ctl_connect(x, 0);
    if (code)
        return code;

    if (keyboard && tcgetattr(STDIN_FILENO, &saved) == 0) {
        raw = saved;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    for (long long i = 0;; i++) {
        code = show(x, &looks[i % 2], &looks[(i + 1) % 2], redraw && !x->json);
        if (code || (count && i + 1 == count) ||
            pause_or_quit((int64_t)(delay * 1000), keyboard))
            break;
    }
    if (keyboard)
        tcsetattr(STDIN_FILENO, TCSANOW, &saved);
    return code;
}
