/* SPDX-License-Identifier: Apache-2.0
 *
 * What kwkctl's commands share: options, exit codes, output. A command is a function of one file; it
 * talks to the daemon through libkwkclient. One thread.
 */
#ifndef KWK_CLIENT_CTL_H
#define KWK_CLIENT_CTL_H

#include <getopt.h>
#include <signal.h>

#include "client/kwkclient.h"
#include "proto/msg.h"

enum {
    CTL_OK = 0,
    CTL_FAILED = 1,      // the daemon refused, or the work failed
    CTL_USAGE = 2,       // wrong options
    CTL_NO_DAEMON = 3,   // none there, or it went away
    CTL_INTERRUPTED = 130,
};

typedef struct ctl {
    const char *command; // for messages
    const char *help;    // the command's help text
    const char *address; // NULL: the usual places
    int json;
    int exit_code;       // set when ctl_option() says that the command should return
    kwk_client *client;  // after ctl_connect()
} ctl;

/** The next option of the command: its letter, -1 after the last, 0 when the command should return
 *  ctl->exit_code. --address, --json and --help are done here. shorts: getopt's, without those. */
int ctl_option(ctl *x, int argc, char **argv, const char *shorts, const struct option *longs);
#define CTL_COMMON_OPTIONS                                                  \
    {"address", required_argument, 0, 'a'}, {"json", no_argument, 0, 'J'}, \
        {"help", no_argument, 0, 'h'}, {0, 0, 0, 0}

/** Values of options. 0, or CTL_USAGE after saying what is wrong. */
int ctl_int(ctl *x, const char *option, const char *text, long long least, long long most,
            long long *value);
int ctl_uint64(ctl *x, const char *option, const char *text, uint64_t *value);
int ctl_float(ctl *x, const char *option, const char *text, float *value);
/** Ids separated by commas or blanks; *ids is the caller's to free. */
int ctl_ids(ctl *x, const char *option, const char *text, int32_t **ids, int *n);

/** Print a usage error and return CTL_USAGE. */
int ctl_usage(ctl *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Print an error (as JSON with --json) and return its exit code. */
int ctl_error(ctl *x, const kwk_error *err);

/** Open the session: CTL_OK or an exit code, error printed. */
int ctl_connect(ctl *x, int logits_bytes);

/** Ask status, models or metrics: *t is the caller's. CTL_OK or an exit code, error printed. */
int ctl_ask(ctl *x, kwk_op op, kwk_tree **t);

/** Print an answer as one line of JSON. */
int ctl_print_json(ctl *x, kwk_tree *t);

/** Print text that came from elsewhere: control characters become '?' (with keep_lines: but newline
 *  and tab). Raw when standard output is no terminal. */
void ctl_print_text(const char *s, size_t n, int keep_lines);

/** Rows of cells, columns aligned; n_columns <= 10. The first row is the heading. */
typedef struct ctl_table {
    int n_columns, n_rows, capacity;
    char (*cells)[10][96];
} ctl_table;
void ctl_table_add(ctl_table *t, const char *const *cells); // NULL: "-"
void ctl_table_print(const ctl_table *t);
void ctl_table_fini(ctl_table *t);

/** "1.4 GiB", "512 B". */
const char *ctl_bytes(double bytes, char buf[32]);
/** "3d 4h", "2m 5s". */
const char *ctl_duration(double ms, char buf[32]);

/** Set by SIGINT and SIGTERM after ctl_catch_signals(). */
extern volatile sig_atomic_t ctl_interrupted;
void ctl_catch_signals(void);

/* ---- commands: exit codes ---------------------------------------------------------------------- */

int ctl_status(ctl *x, int argc, char **argv);
int ctl_models(ctl *x, int argc, char **argv);
int ctl_metrics(ctl *x, int argc, char **argv);
int ctl_load(ctl *x, int argc, char **argv);
int ctl_unload(ctl *x, int argc, char **argv);
int ctl_pin(ctl *x, int argc, char **argv);
int ctl_generate(ctl *x, int argc, char **argv);
int ctl_top(ctl *x, int argc, char **argv);

/** For top: the same views as status and models. */
void ctl_print_status(const kwk_tree *status);
void ctl_print_models(const kwk_tree *models);

#endif
