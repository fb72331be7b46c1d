/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions to the daemon, and its models: load with progress, unload, pin.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOAD_TIMEOUT_MS = 600000, POLL_FIRST_MS = 5, POLL_MAX_MS = 100 };

int kwk_client_query(kwk_client *c, const char *what, char **json, kwk_error *err)
{
    static const kwk_op ops[] = {KWK_OP_status, KWK_OP_models, KWK_OP_metrics};
    kwk_tree *t = NULL;
    kwk_request r;
    kwk_op op = KWK_OP_NONE;
    int rc = kwk_client_check(c, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; what && i < sizeof ops / sizeof *ops; i++)
        if (strcmp(what, kwk_op_name(ops[i])) == 0)
            op = ops[i];
    if (op == KWK_OP_NONE || !json)
        return kwk_fail(err, KWK_EINVAL, "query '%s'", what ? what : "");
    r = kwk_client_request(c, op);
    rc = kwk_client_call(c, &r, c->timeout_ms, &t, NULL, err);
    if (rc < 0)
        return rc;
    kwk_tree_drop(t, "v");
    kwk_tree_drop(t, "ok");
    *json = kwk_tree_json(t);
    kwk_tree_free(t);
    return *json ? KWK_OK : kwk_fail(err, KWK_ENOMEM, "out of memory for an answer");
}

/* Position of a model in a `models` reply; -1 not there. */
static int find_model(const kwk_tree *t, const char *name)
{
    const int n = kwk_tree_count(t, "models");
    char key[64];

    for (int i = 0; i < n; i++) {
        const char *s;
        snprintf(key, sizeof key, "models.%d.name", i);
        s = kwk_tree_str(t, key);
        if (s && strcmp(s, name) == 0)
            return i;
    }
    return -1;
}

/* One look at a loading model: 1 ready, 0 not yet with *progress, or why it failed. */
static int look(kwk_client *c, const char *name, double *progress, kwk_error *err)
{
    kwk_request r = kwk_client_request(c, KWK_OP_models);
    kwk_tree *t = NULL;
    char key[64];
    const char *state;
    int i, rc = kwk_client_call(c, &r, c->timeout_ms, &t, NULL, err);

    if (rc < 0)
        return rc;
    i = find_model(t, name);
    snprintf(key, sizeof key, "models.%d.state", i);
    state = i < 0 ? NULL : kwk_tree_str(t, key);
    snprintf(key, sizeof key, "models.%d.progress", i);
    *progress = i < 0 ? 0 : kwk_tree_double(t, key, 0);
    if (!state) {
        rc = kwk_fail(err, KWK_ENOENT, "model '%s' was unloaded while it loaded", name);
    } else if (strcmp(state, "ready") == 0) {
        rc = 1;
    } else if (strcmp(state, "failed") == 0) {
        const char *why;
        int64_t code;
        snprintf(key, sizeof key, "models.%d.code", i);
        code = kwk_tree_int(t, key, KWK_EIO);
        snprintf(key, sizeof key, "models.%d.error", i);
        why = kwk_tree_str(t, key);
        if (code >= 0 || code < INT32_MIN)
            code = KWK_EIO;
        rc = kwk_fail(err, (int)code, "%s", why ? why : kwk_error_text((int)code));
    }
    kwk_tree_free(t);
    return rc;
}

static void sleep_ms(int64_t ms)
{
    const struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

    (void)nanosleep(&ts, NULL); // a signal only makes the next look earlier
}

static int wait_ready(kwk_client *c, const kwk_client_load *l, int64_t deadline, kwk_error *err)
{
    int64_t pause = POLL_FIRST_MS;

    for (;;) {
        double progress = 0;
        const int rc = look(c, l->name, &progress, err);

        if (rc < 0)
            return rc;
        if (l->progress && l->progress(l->progress_arg, rc == 1 ? 1 : progress) && rc != 1)
            return kwk_fail(err, KWK_ECANCELED, "no longer waiting for model '%s'", l->name);
        if (rc == 1)
            return KWK_OK;
        if (kwk_now_ms() + pause > deadline)
            return kwk_fail(err, KWK_ETIMEOUT, "model '%s' is still loading (%.0f %%)", l->name,
                            progress * 100);
        sleep_ms(pause);
        pause = pause * 2 < POLL_MAX_MS ? pause * 2 : POLL_MAX_MS;
    }
}

int kwk_client_load_model(kwk_client *c, const kwk_client_load *load, kwk_error *err)
{
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    kwk_tree *t = NULL;
    const char *state;
    int64_t deadline;
    kwk_request r;
    char *full = NULL;
    int rc = kwk_client_check(c, err);

    if (rc == KWK_OK)
        rc = kwk_copy_options(&l, sizeof l, load, "kwk_client_load", err);
    if (rc == KWK_OK && !l.name)
        rc = kwk_fail(err, KWK_EINVAL, "name: missing");
    if (rc == KWK_OK && !l.path == (l.fd < 0))
        rc = kwk_fail(err, KWK_EINVAL, "load needs one of path and fd");
    if (rc == KWK_OK && l.timeout_ms < 0)
        rc = kwk_fail(err, KWK_EINVAL, "timeout_ms: %d is negative", l.timeout_ms);
    if (rc < 0)
        return rc;
    deadline = kwk_now_ms() + (l.timeout_ms ? l.timeout_ms : LOAD_TIMEOUT_MS);
    /* The daemon works in another directory and takes no "..": the real path, if there is one here. */
    if (l.path)
        full = realpath(l.path, NULL);
    r = kwk_client_request(c, KWK_OP_load);
    r.u.load = (kwk_load_req){
        .name = l.name,
        .path = full ? full : l.path,
        .precision = l.precision,
        .mix_bits = l.mix_bits,
        .max_ctx = l.max_ctx,
        .pin = l.pin != 0,
    };
    if (!l.path)
        rc = kwk_door_pack(c, l.fd, &r.u.load.pack, err);
    if (rc == KWK_OK)
        rc = kwk_client_call(c, &r, c->timeout_ms, &t, NULL, err);
    free(full);
    if (rc < 0)
        return rc;
    state = kwk_tree_str(t, "state");
    if (!state || strcmp(state, "ready") || l.progress)
        rc = wait_ready(c, &l, deadline, err);
    kwk_tree_free(t);
    return rc;
}

static int simple_call(kwk_client *c, const kwk_request *r, kwk_error *err)
{
    return kwk_client_call(c, r, c->timeout_ms, NULL, NULL, err);
}

int kwk_client_unload(kwk_client *c, const char *name, kwk_error *err)
{
    kwk_request r;
    const int rc = kwk_client_check(c, err);

    if (rc < 0)
        return rc;
    r = kwk_client_request(c, KWK_OP_unload);
    r.u.unload.name = name;
    return simple_call(c, &r, err);
}

int kwk_client_pin(kwk_client *c, const char *name, int pin, kwk_error *err)
{
    kwk_request r;
    const int rc = kwk_client_check(c, err);

    if (rc < 0)
        return rc;
    r = kwk_client_request(c, KWK_OP_pin);
    r.u.pin = (kwk_name_req){name, pin != 0};
    return simple_call(c, &r, err);
}
