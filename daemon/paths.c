/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths and descriptors of models, checked. No state; any thread.
 */
#include "daemon/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

/* Is `path` below `dir`, by name, without "..": nothing outside is even looked at? */
static int below(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    return !strncmp(path, dir, n) && path[n] == '/' && path[n + 1] && !strstr(path, "/../") &&
           (strlen(path) < 3 || strcmp(path + strlen(path) - 3, "/.."));
}

/* Does `path` lie below the directory `dir`, by the name it has or the one it leads to? */
static int below_either(const char *path, const char *dir)
{
    char *real = realpath(dir, NULL);
    const int yes = below(path, dir) || (real && below(path, real));

    free(real);
    return yes;
}

static int is_configured(const kwkd_conf *conf, const char *path)
{
    int yes = 0;

    for (int i = 0; i < conf->n_models && !yes; i++) {
        char *real = realpath(conf->models[i].path, NULL);
        yes = !strcmp(conf->models[i].path, path) || (real && !strcmp(real, path));
        free(real);
    }
    return yes;
}

int kwkd_path_resolve(const kwkd_conf *conf, const char *path, char **out, kwk_error *err)
{
    int by_place = is_configured(conf, path), by_name = by_place;
    char *real;

    for (int i = 0; i < conf->n_model_dirs && !by_name; i++)
        by_name = below_either(path, conf->model_dirs[i]);
    if (!by_name)
        return kwk_fail(err, KWK_EPERM, "'%s' is not under a model directory of this daemon", path);
    real = realpath(path, NULL);
    if (!real && errno == ENOMEM)
        return kwk_fail(err, KWK_ENOMEM, "a path of %zu bytes", strlen(path));
    if (!real)
        return kwk_fail(err, errno == ENOENT || errno == ENOTDIR ? KWK_ENOENT : KWK_EIO, "'%s': %s",
                        path, strerror(errno));
    for (int i = 0; i < conf->n_model_dirs && !by_place; i++) // links may lead elsewhere
        by_place = below_either(real, conf->model_dirs[i]);
    if (!by_place) {
        free(real);
        return kwk_fail(err, KWK_EPERM, "'%s' leads out of the model directories", path);
    }
    *out = real;
    return KWK_OK;
}

int kwkd_pack_check(int fd, struct stat *st, kwk_error *err)
{
    static const unsigned long remote[] = {
        0x65735546, 0x6969, 0xff534d42, 0xfe534d42, 0x01021997, 0x00c36400, 0x5346414f,
    }; // FUSE, NFS, CIFS, SMB2, 9P, Ceph, AFS
    struct statfs fs;
    const int flags = fcntl(fd, F_GETFL);

    if (fstat(fd, st) < 0 || fstatfs(fd, &fs) < 0 || flags < 0)
        return kwk_fail(err, KWK_EIO, "pack: %s", strerror(errno));
    if (!S_ISREG(st->st_mode) || (flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY)
        return kwk_fail(err, KWK_EUNSUPPORTED, "pack: no regular file or memfd open for reading");
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        if ((unsigned long)fs.f_type == remote[i])
            return kwk_fail(err, KWK_EUNSUPPORTED,
                            "pack: on a network or user-space file system; use a sealed memfd");
    return KWK_OK;
}
