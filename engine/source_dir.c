/* SPDX-License-Identifier: Apache-2.0
 *
 * A Hugging Face directory: config.json, generation_config.json, *.safetensors (one file, or shards
 * named by model.safetensors.index.json), and the tokenizer's files. Every file is opened relative
 * to the directory's descriptor and under a plain name. Loading thread; rows: any thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/file.h"
#include "engine/json.h"
#include "engine/json_scan.h"
#include "engine/source.h"

enum {
    INDEX_MAX = 32 << 20, // bytes of the index, values in it, files it may name
    INDEX_VALUES_MAX = 500000,
    SHARDS_MAX = 1024,
};

typedef struct dir_reader {
    int dirfd;
    int n_fds;
    int fds[SHARDS_MAX]; // open safetensors files
} dir_reader;

static void close_reader(kwk_source *s)
{
    dir_reader *r = s->reader;

    for (int i = 0; i < r->n_fds; i++)
        close(r->fds[i]);
    close(r->dirfd);
    free(r);
}

static int open_dir(const char *path, kwk_error *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return kwk_fail(err, errno == ENOENT || errno == ENOTDIR ? KWK_ENOENT : KWK_EIO, "%s: %s",
                        path, strerror(errno));
    return fd;
}

/* As kwk_file_text, but a missing file is KWK_OK and leaves *text NULL. */
static int optional_text(int dirfd, const char *name, uint64_t max, char **text, size_t *n,
                         kwk_error *err)
{
    *text = NULL;
    *n = 0;
    if (faccessat(dirfd, name, F_OK, 0) < 0 && errno == ENOENT)
        return KWK_OK;
    return kwk_file_text(dirfd, name, max, text, n, err);
}

/* ---- weights --------------------------------------------------------------------------------- */

static int add_file(kwk_source *s, const char *name, kwk_error *err)
{
    dir_reader *r = s->reader;
    uint64_t size;

    if (r->n_fds == SHARDS_MAX)
        return kwk_fail(err, KWK_EFORMAT, "%s: more than %d files", s->what, SHARDS_MAX);
    const int fd = kwk_file_open(r->dirfd, name, &size, err);
    if (fd < 0)
        return fd;
    r->fds[r->n_fds++] = fd;
    return kwk_safetensors_read(s, fd, size, name, err);
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Open each file that the index names, once; then every tensor it lists must be there. */
static int add_shards(kwk_source *s, const char *index, size_t n, kwk_error *err)
{
    static const char what[] = "model.safetensors.index.json";
    const char **files = NULL;
    cJSON *root = NULL;
    int count = 0, rc;

    rc = kwk_json_parse(&root, index, n, INDEX_VALUES_MAX, what, err);
    if (rc < 0)
        return rc;
    const cJSON *map = kwk_json_get(root, "weight_map");
    if (!cJSON_IsObject(map)) {
        rc = kwk_fail(err, KWK_EFORMAT, "%s: no weight_map", what);
        goto out;
    }
    files = malloc(((size_t)cJSON_GetArraySize(map) + 1) * sizeof *files);
    if (!files) {
        rc = kwk_fail(err, KWK_ENOMEM, "%s: out of memory", what);
        goto out;
    }
    for (const cJSON *item = map->child; item; item = item->next) {
        const char *file = cJSON_IsString(item) ? item->valuestring : "";
        if (!*file || strchr(file, '/') || file[0] == '.') {
            rc = kwk_fail(err, KWK_EFORMAT, "%s: '%s' is in no plainly named file", what,
                          item->string);
            goto out;
        }
        files[count++] = file;
    }
    if (count)
        qsort(files, (size_t)count, sizeof *files, by_string);
    for (int i = 0; i < count && !rc; i++)
        if (i == 0 || strcmp(files[i - 1], files[i]) != 0)
            rc = add_file(s, files[i], err);
    if (!rc)
        rc = kwk_source_sort(s, err);
    for (const cJSON *item = map->child; item && !rc; item = item->next)
        if (!kwk_source_find(s, item->string))
            rc = kwk_fail(err, KWK_EFORMAT, "%s: tensor '%s' is not in %s", what, item->string,
                          item->valuestring);
out:
    free(files);
    cJSON_Delete(root);
    return rc;
}

static int add_weights(kwk_source *s, kwk_error *err)
{
    const dir_reader *r = s->reader;
    char *index;
    size_t n;

    if (faccessat(r->dirfd, "model.safetensors", F_OK, 0) == 0) {
        const int rc = add_file(s, "model.safetensors", err);
        return rc ? rc : kwk_source_sort(s, err);
    }
    int rc = optional_text(r->dirfd, "model.safetensors.index.json", INDEX_MAX, &index, &n, err);
    if (rc < 0)
        return rc;
    if (index) {
        rc = add_shards(s, index, n, err);
        free(index);
        return rc;
    }
    if (faccessat(r->dirfd, "pytorch_model.bin", F_OK, 0) == 0 ||
        faccessat(r->dirfd, "pytorch_model.bin.index.json", F_OK, 0) == 0)
        return kwk_fail(err, KWK_EUNSUPPORTED,
                        "%s: weights in pytorch_model.bin; only safetensors "
                        "files are read",
                        s->what);
    return kwk_fail(err, KWK_ENOENT, "%s: no model.safetensors", s->what);
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static int check_json(const char *text, size_t n, const char *what, kwk_error *err)
{
    kwk_json_scan s;
    int rc;

    kwk_json_scan_init(&s, text, n, what);
    do
        rc = kwk_json_next(&s, err);
    while (rc == KWK_OK && s.kind != KWK_JSON_END);
    return rc;
}

/* Texts only, checked; absent files are left NULL. */
static int read_tokenizer(int dirfd, kwk_tokenizer *out, kwk_error *err)
{
    char *config = NULL;
    size_t n;
    int rc =
        optional_text(dirfd, "tokenizer.json", KWK_TOKENIZER_MAX, &out->json, &out->json_len, err);

    if (!rc && out->json)
        rc = check_json(out->json, out->json_len, "tokenizer.json", err);
    if (!rc) /* newer than the member of tokenizer_config.json, and wins over it */
        rc = optional_text(dirfd, "chat_template.jinja", KWK_TEMPLATE_MAX, &out->chat_template, &n,
                           err);
    if (!rc && !out->chat_template) {
        rc = optional_text(dirfd, "tokenizer_config.json", KWK_TOKENIZER_MAX, &config, &n, err);
        if (!rc && config)
            rc = kwk_tokenizer_template(&out->chat_template, config, n, err);
        free(config);
    }
    return rc;
}

static int dir_tokenizer(const kwk_source *s, kwk_tokenizer *out, kwk_error *err)
{
    const dir_reader *r = s->reader;
    int rc = read_tokenizer(r->dirfd, out, err);

    if (!rc && out->json)
        rc = kwk_tokenizer_bytes(out, out->json, out->json_len, err);
    return rc;
}

int kwk_source_dir_tokenizer(const char *path, kwk_tokenizer *out, kwk_error *err)
{
    const int dirfd = open_dir(path, err);

    if (dirfd < 0)
        return dirfd;
    const int rc = read_tokenizer(dirfd, out, err);
    close(dirfd);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

int kwk_source_open_dir(kwk_source *s, const char *path, kwk_error *err)
{
    dir_reader *r;
    int rc;

    memset(s, 0, sizeof *s);
    s->what = path;
    const int dirfd = open_dir(path, err);
    if (dirfd < 0)
        return dirfd;
    r = calloc(1, sizeof *r);
    if (!r) {
        close(dirfd);
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", path);
    }
    r->dirfd = dirfd;
    s->reader = r;
    s->close = close_reader;
    s->tokenizer = dir_tokenizer;

    rc = kwk_file_text(dirfd, "config.json", KWK_CONFIG_MAX, &s->config, &s->config_len, err);
    if (!rc)
        rc = optional_text(dirfd, "generation_config.json", KWK_CONFIG_MAX, &s->generation,
                           &s->generation_len, err);
    if (!rc)
        rc = add_weights(s, err);
    if (rc < 0)
        kwk_source_close(s);
    return rc;
}
