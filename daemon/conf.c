/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the configuration. cJSON keeps no line numbers, so the text is scanned once for the line of
 * each key in document order, and the tree is walked in that order. No state, any thread.
 */
#include "daemon/conf.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"

enum { FILE_MAX = 1 << 20, KEYS_MAX = 4096, STRING_MAX = 4095 };

typedef struct setting {
    const char *name;
    size_t offset;
    int is_bytes;
    int64_t value, least, most;
} setting;

static const setting settings[] = {
#define KWKD_INT(name, value, least, most)                                                         \
    {#name, offsetof(kwkd_conf, name), 0, value, least, most},
#define KWKD_BYTES(name, value, least, most)                                                       \
    {#name, offsetof(kwkd_conf, name), 1, value, least, most},
#include "daemon/conf.inc"
#undef KWKD_INT
#undef KWKD_BYTES
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* State of one reading. */
typedef struct reader {
    kwkd_conf *conf;
    const char *file;
    int lines[KEYS_MAX]; // line of the i-th key of the text
    int n_keys, key;     // keys found; of them, visited
    kwk_error *err;
} reader;

static int copy_string(char **to, const char *s, kwk_error *err)
{
    char *copy = strdup(s);

    if (!copy)
        return kwk_fail(err, KWK_ENOMEM, "%zu bytes of configuration", strlen(s));
    free(*to);
    *to = copy;
    return KWK_OK;
}

/* ---- numbers
 * ------------------------------------------------------------------------------------- */

static int set_number(kwkd_conf *conf, const setting *s, double v, const char *where,
                      kwk_error *err)
{
    // every bound but INT64_MAX is exact in a double, and 2^63 itself is refused
    if (!(v >= (double)s->least && v <= (double)s->most && v < 0x1p63) || v != floor(v))
        return kwk_fail(err, KWK_EINVAL, "%s: %s is %g, not a whole number from %lld to %lld",
                        where, s->name, v, (long long)s->least, (long long)s->most);
    if (s->is_bytes)
        *(int64_t *)((char *)conf + s->offset) = (int64_t)v;
    else
        *(int *)((char *)conf + s->offset) = (int)v;
    return KWK_OK;
}

/* A number, for sizes with a unit: "512MiB", "4GiB". */
static int set_text(kwkd_conf *conf, const setting *s, const char *text, const char *where,
                    kwk_error *err)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    double v = isdigit((unsigned char)*text) ? strtod(text, &end) : NAN;
    size_t u = 0;

    if (v == v && *end) { // v == v: not a NaN
        while (u < 4 && strcmp(end, units[u].unit))
            u++;
        v = u < 4 && s->is_bytes ? v * units[u].factor : NAN;
    }
    if (v != v)
        return kwk_fail(err, KWK_EINVAL, "%s: %s is '%s', not a %s", where, s->name, text,
                        s->is_bytes ? "size (\"512MiB\")" : "number");
    return set_number(conf, s, v, where, err);
}

static int set_level(kwkd_conf *conf, const char *text, const char *where, kwk_error *err)
{
    const int level = text ? kwkd_log_level_named(text) : -1;

    if (level < 0)
        return kwk_fail(err, KWK_EINVAL,
                        "%s: log_level must be error, warning, notice, info or debug", where);
    conf->log_level = level;
    return KWK_OK;
}

/* ---- models
 * -------------------------------------------------------------------------------------- */

static void model_fini(kwkd_model_conf *m)
{
    free(m->name);
    free(m->path);
    free(m->precision);
    memset(m, 0, sizeof *m);
}

static int check_model(const kwkd_model_conf *m, const char *where, kwk_error *err)
{
    if (!m->name[0] || strlen(m->name) > 255)
        return kwk_fail(err, KWK_EINVAL, "%s: a model's name has 1 to 255 bytes", where);
    if (!m->path || m->path[0] != '/')
        return kwk_fail(err, KWK_EINVAL, "%s: model '%s' needs an absolute path", where, m->name);
    return KWK_OK;
}

/* Put *m into the configuration, over one of the same name; takes its strings in any case. */
static int add_model(kwkd_conf *conf, kwkd_model_conf *m, const char *where, kwk_error *err)
{
    int i = 0, rc = check_model(m, where, err);

    while (i < conf->n_models && strcmp(conf->models[i].name, m->name))
        i++;
    if (rc == KWK_OK && i == KWKD_CONF_MODELS)
        rc = kwk_fail(err, KWK_EINVAL, "%s: more than %d models", where, KWKD_CONF_MODELS);
    if (rc < 0) {
        model_fini(m);
        return rc;
    }
    if (i == conf->n_models)
        conf->n_models++;
    else
        model_fini(&conf->models[i]);
    conf->models[i] = *m;
    return KWK_OK;
}

static int parse_int(const char *s, int least, int most, int *out)
{
    char *end;
    long v;

    errno = 0;
    v = strtol(s, &end, 10);
    if (end == s || *end || errno || v < least || v > most)
        return -1;
    *out = (int)v;
    return 0;
}

/* One ",option" of a --model argument. */
static int model_option(kwkd_model_conf *m, const char *o, kwk_error *err)
{
    if (!strncmp(o, "precision=", 10))
        return copy_string(&m->precision, o + 10, err);
    if (!strcmp(o, "pin")) {
        m->pin = 1;
        return KWK_OK;
    }
    if (!strncmp(o, "ctx=", 4) && parse_int(o + 4, 1, 1 << 24, &m->max_ctx) == 0)
        return KWK_OK;
    if (!strncmp(o, "mix_bits=", 9) && parse_int(o + 9, 1, 16, &m->mix_bits) == 0)
        return KWK_OK;
    return kwk_fail(err, KWK_EINVAL,
                    "--model: option '%s' is not precision=P, mix_bits=B, ctx=N or pin", o);
}

static int model_argument(kwkd_conf *conf, const char *arg, kwk_error *err)
{
    kwkd_model_conf m = {0};
    char *copy = strdup(arg), *path = NULL, *save = NULL;
    int rc = KWK_OK;

    if (!copy)
        return kwk_fail(err, KWK_ENOMEM, "%zu bytes of configuration", strlen(arg));
    path = strchr(copy, '=');
    if (!path || path == copy) {
        rc = kwk_fail(err, KWK_EINVAL, "--model '%s' is not NAME=PATH[,options]", arg);
        goto out;
    }
    *path++ = 0;
    rc = copy_string(&m.name, copy, err);
    path = strtok_r(path, ",", &save);
    if (rc == KWK_OK && path) {
        char *absolute = realpath(path, NULL); // relative to where the command was given
        rc = copy_string(&m.path, absolute ? absolute : path, err);
        free(absolute);
    }
    for (char *o; rc == KWK_OK && path && (o = strtok_r(NULL, ",", &save));)
        rc = model_option(&m, o, err);
    if (rc == KWK_OK)
        rc = add_model(conf, &m, "--model", err);
    else
        model_fini(&m);
out:
    free(copy);
    return rc;
}

/* ---- the file
 * ------------------------------------------------------------------------------------- */

static int line_at(const char *text, const char *at)
{
    int line = 1;

    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

/* Note the line of each key. The text is known to be JSON. \u0000 would cut a string short. */
static int scan_keys(reader *r, const char *text)
{
    int line = 1;

    for (const char *c = text; *c; c++) {
        const char *after;
        const int start = line;
        if (*c == '\n')
            line++;
        if (*c != '"')
            continue;
        for (c++; *c != '"'; c++) {
            if (*c != '\\')
                continue;
            if (!strncmp(c + 1, "u0000", 5))
                return kwk_fail(r->err, KWK_EINVAL, "%s:%d: \\u0000 in a string", r->file, line);
            c++;
        }
        after = c + 1 + strspn(c + 1, " \t\r\n");
        if (*after != ':')
            continue;
        if (r->n_keys == KEYS_MAX)
            return kwk_fail(r->err, KWK_EINVAL, "%s:%d: more than %d keys", r->file, start,
                            KEYS_MAX);
        r->lines[r->n_keys++] = start;
    }
    return KWK_OK;
}

/* Visit a member: its line, "file:line" into where, and that no earlier sibling has its name. */
static int visit(reader *r, const cJSON *object, const cJSON *member, char where[64])
{
    const char *base = strrchr(r->file, '/');

    snprintf(where, 64, "%.48s:%d", base ? base + 1 : r->file, r->lines[r->key++]);
    for (const cJSON *c = object->child; c != member; c = c->next)
        if (!strcmp(c->string, member->string))
            return kwk_fail(r->err, KWK_EINVAL, "%s: key '%s' is given twice", where,
                            member->string);
    return KWK_OK;
}

static int want_string(reader *r, const cJSON *v, const char *where, char **to)
{
    if (!cJSON_IsString(v) || !v->valuestring[0] || strlen(v->valuestring) > STRING_MAX)
        return kwk_fail(r->err, KWK_EINVAL, "%s: %s must be a text of 1 to %d bytes", where,
                        v->string ? v->string : "an entry", STRING_MAX);
    return copy_string(to, v->valuestring, r->err);
}

static int read_model(reader *r, const cJSON *v, const char *where)
{
    kwkd_model_conf m = {0};
    char at[64];
    int rc = copy_string(&m.name, v->string, r->err);

    if (rc == KWK_OK && !cJSON_IsObject(v))
        rc = kwk_fail(r->err, KWK_EINVAL, "%s: model '%s' must be an object", where, v->string);
    for (const cJSON *c = v->child; rc == KWK_OK && c; c = c->next) {
        rc = visit(r, v, c, at);
        if (rc < 0)
            break;
        if (!strcmp(c->string, "path"))
            rc = want_string(r, c, at, &m.path);
        else if (!strcmp(c->string, "precision"))
            rc = want_string(r, c, at, &m.precision);
        else if (!strcmp(c->string, "pin") && cJSON_IsBool(c))
            m.pin = cJSON_IsTrue(c);
        else if (!strcmp(c->string, "ctx") && cJSON_IsNumber(c) && c->valuedouble >= 1 &&
                 c->valuedouble <= 1 << 24 && c->valuedouble == floor(c->valuedouble))
            m.max_ctx = c->valueint;
        else if (!strcmp(c->string, "mix_bits") && cJSON_IsNumber(c) && c->valuedouble >= 1 &&
                 c->valuedouble <= 16 && c->valuedouble == floor(c->valuedouble))
            m.mix_bits = c->valueint;
        else
            rc = kwk_fail(r->err, KWK_EINVAL,
                          "%s: model '%s': key '%s' is unknown or has a wrong value", at, v->string,
                          c->string);
    }
    if (rc == KWK_OK)
        return add_model(r->conf, &m, where, r->err);
    model_fini(&m);
    return rc;
}

static int read_models(reader *r, const cJSON *v, const char *where)
{
    char at[64];
    int rc = cJSON_IsObject(v)
                 ? KWK_OK
                 : kwk_fail(r->err, KWK_EINVAL, "%s: models must be an object", where);

    for (const cJSON *c = v->child; rc == KWK_OK && c; c = c->next) {
        rc = visit(r, v, c, at);
        if (rc == KWK_OK)
            rc = read_model(r, c, at);
    }
    return rc;
}

static int read_dirs(reader *r, const cJSON *v, const char *where)
{
    kwkd_conf *conf = r->conf;
    int rc = KWK_OK;

    if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) > KWKD_CONF_DIRS)
        return kwk_fail(r->err, KWK_EINVAL, "%s: model_dirs must be a list of at most %d paths",
                        where, KWKD_CONF_DIRS);
    for (const cJSON *c = v->child; rc == KWK_OK && c; c = c->next) {
        char **to = &conf->model_dirs[conf->n_model_dirs];
        rc = want_string(r, c, where, to);
        if (rc == KWK_OK) {
            conf->n_model_dirs++;
            if (**to != '/')
                rc = kwk_fail(r->err, KWK_EINVAL, "%s: model_dirs: '%s' is not absolute", where,
                              *to);
        }
    }
    return rc;
}

static int read_member(reader *r, const cJSON *v, const char *where)
{
    kwkd_conf *conf = r->conf;

    for (int i = 0; i < N_SETTINGS; i++) {
        if (strcmp(v->string, settings[i].name))
            continue;
        if (cJSON_IsString(v))
            return set_text(conf, &settings[i], v->valuestring, where, r->err);
        return set_number(conf, &settings[i], cJSON_IsNumber(v) ? v->valuedouble : NAN, where,
                          r->err);
    }
    if (!strcmp(v->string, "log_level"))
        return set_level(conf, cJSON_GetStringValue(v), where, r->err);
    if (!strcmp(v->string, "runtime_dir"))
        return want_string(r, v, where, &conf->runtime_dir);
    if (!strcmp(v->string, "group"))
        return want_string(r, v, where, &conf->group);
    if (!strcmp(v->string, "default_model"))
        return want_string(r, v, where, &conf->default_model);
    if (!strcmp(v->string, "model_dirs"))
        return read_dirs(r, v, where);
    if (!strcmp(v->string, "models"))
        return read_models(r, v, where);
    return kwk_fail(r->err, KWK_EINVAL, "%s: unknown key '%s'", where, v->string);
}

static int read_text(reader *r, const char *text, size_t n)
{
    const char *end = NULL;
    cJSON *root = NULL;
    char where[64];
    int rc = KWK_OK;

    if (memchr(text, 0, n))
        return kwk_fail(r->err, KWK_EINVAL, "%s: a zero byte in the text", r->file);
    root = cJSON_ParseWithLengthOpts(text, n + 1, &end, 1);
    if (!root)
        return kwk_fail(r->err, KWK_EINVAL, "%s:%d: not JSON", r->file,
                        line_at(text, end && end <= text + n ? end : text + n));
    if (!cJSON_IsObject(root))
        rc = kwk_fail(r->err, KWK_EINVAL, "%s: not a JSON object", r->file);
    else
        rc = scan_keys(r, text);
    for (const cJSON *c = root->child; rc == KWK_OK && c; c = c->next) {
        rc = visit(r, root, c, where);
        if (rc == KWK_OK)
            rc = read_member(r, c, where);
    }
    cJSON_Delete(root);
    return rc;
}

static int read_file(kwkd_conf *conf, const char *file, kwk_error *err)
{
    reader *r = calloc(1, sizeof *r);
    char *text = malloc(FILE_MAX + 1);
    int fd = -1, rc;
    size_t n = 0;
    ssize_t got;

    if (!r || !text) {
        rc = kwk_fail(err, KWK_ENOMEM, "%d bytes of configuration", FILE_MAX);
        goto out;
    }
    r->conf = conf;
    r->file = file;
    r->err = err;
    fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO must not hang the start
    if (fd < 0) {
        rc = kwk_fail(err, errno == ENOENT ? KWK_ENOENT : KWK_EIO, "'%s': %s", file,
                      strerror(errno));
        goto out;
    }
    while (n < FILE_MAX && (got = read(fd, text + n, FILE_MAX - n)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            rc = kwk_fail(err, KWK_EIO, "'%s': %s", file, strerror(errno));
            goto out;
        }
        n += (size_t)got;
    }
    if (n == FILE_MAX) {
        rc = kwk_fail(err, KWK_EINVAL, "'%s' has %d bytes or more", file, FILE_MAX);
        goto out;
    }
    text[n] = 0;
    rc = read_text(r, text, n);
out:
    if (fd >= 0)
        close(fd);
    free(text);
    free(r);
    return rc;
}

/* ---- the environment
 * --------------------------------------------------------------------------------- */

static const char *env(const char *name, char full[64])
{
    int n = snprintf(full, 64, "KWKER_%s", name);

    for (int i = 0; i < n; i++)
        full[i] = (char)toupper((unsigned char)full[i]);
    return getenv(full);
}

static int read_environment(kwkd_conf *conf, kwk_error *err)
{
    char name[64];
    const char *v;
    int rc = KWK_OK;

    for (int i = 0; rc == KWK_OK && i < N_SETTINGS; i++) {
        v = env(settings[i].name, name);
        if (v && *v)
            rc = set_text(conf, &settings[i], v, name, err);
    }
    if (rc == KWK_OK && (v = env("log_level", name)) && *v)
        rc = set_level(conf, v, name, err);
    if (rc == KWK_OK && (v = env("runtime_dir", name)) && *v)
        rc = copy_string(&conf->runtime_dir, v, err);
    return rc;
}

/* ---- all of it
 * -------------------------------------------------------------------------------------- */

static int check(const kwkd_conf *conf, kwk_error *err)
{
    if (conf->inline_requests + 4 > conf->contexts)
        return kwk_fail(err, KWK_EINVAL,
                        "inline_requests is %d, must be at most contexts (%d) - 4, so that others "
                        "are still answered",
                        conf->inline_requests, conf->contexts);
    return KWK_OK;
}

int kwkd_conf_load(kwkd_conf *conf, const kwkd_conf_input *in, kwk_error *err)
{
    const char *file = in->file ? in->file : getenv("KWKER_CONFIG");
    int rc = KWK_OK;

    memset(conf, 0, sizeof *conf);
    conf->log_level = KWKD_INFO;
    for (int i = 0; rc == KWK_OK && i < N_SETTINGS; i++) // the default INT64_MAX never occurs
        rc = set_number(conf, &settings[i], (double)settings[i].value, "default", err);
    if (rc == KWK_OK && file && *file)
        rc = read_file(conf, file, err);
    if (rc == KWK_OK)
        rc = read_environment(conf, err);
    if (rc == KWK_OK && in->runtime_dir)
        rc = copy_string(&conf->runtime_dir, in->runtime_dir, err);
    for (int i = 0; rc == KWK_OK && i < in->n_models; i++)
        rc = model_argument(conf, in->models[i], err);
    if (rc == KWK_OK)
        rc = check(conf, err);
    if (rc < 0)
        kwkd_conf_fini(conf);
    return rc;
}

void kwkd_conf_fini(kwkd_conf *conf)
{
    free(conf->runtime_dir);
    free(conf->group);
    free(conf->default_model);
    for (int i = 0; i < KWKD_CONF_DIRS; i++)
        free(conf->model_dirs[i]);
    for (int i = 0; i < conf->n_models; i++)
        model_fini(&conf->models[i]);
    memset(conf, 0, sizeof *conf);
}
