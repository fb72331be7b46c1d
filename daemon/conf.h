/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration: command line over environment over file over default. The file is JSON; an
 * unknown or repeated key is an error with its line. Values only: knows no module that uses them.
 * A kwkd_conf is written once and then read by anyone.
 */
#ifndef KWK_DAEMON_CONF_H
#define KWK_DAEMON_CONF_H

#include <stdint.h>

#include "proto/error.h"

enum { KWKD_CONF_MODELS = 64, KWKD_CONF_DIRS = 32 };

/* A model that the daemon loads by itself: "models": {"name": {"path": …}}, or --model. */
typedef struct kwkd_model_conf {
    char *name, *path;
    char *precision;       // NULL: the model's own
    int mix_bits, max_ctx; // 0: default
    int pin;
} kwkd_model_conf;

typedef struct kwkd_conf {
#define KWKD_INT(name, value, least, most) int name;
#define KWKD_BYTES(name, value, least, most) int64_t name;
#include "daemon/conf.inc"
#undef KWKD_INT
#undef KWKD_BYTES
    int log_level;                    // kwkd_level
    char *runtime_dir;                // NULL: the default
    char *group;                      // may connect; NULL: only the daemon's own group
    char *default_model;              // NULL: the first configured, or the only one loaded
    char *model_dirs[KWKD_CONF_DIRS]; // absolute
    int n_model_dirs;
    kwkd_model_conf models[KWKD_CONF_MODELS];
    int n_models;
} kwkd_conf;

/* What the command line said; strings are borrowed. */
typedef struct kwkd_conf_input {
    const char *file;          // NULL: $KWKER_CONFIG, else no file
    const char *runtime_dir;   // NULL: not given
    const char *const *models; // (n_models) "NAME=PATH[,precision=P][,mix_bits=B][,ctx=N][,pin]"
    int n_models;
} kwkd_conf_input;

/**
 * Read everything and check it.
 *
 * @return KWK_OK; KWK_EINVAL with "file:line: what"; KWK_ENOENT, KWK_EIO the file; KWK_ENOMEM. On
 *         error *conf needs no kwkd_conf_fini
 */
int kwkd_conf_load(kwkd_conf *conf, const kwkd_conf_input *in, kwk_error *err);
void kwkd_conf_fini(kwkd_conf *conf);

#endif
