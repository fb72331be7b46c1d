/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading files from outside. No state.
 */
#include "engine/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int kwk_file_open(int dirfd, const char *path, uint64_t *size, kwk_error *err)
{
    /* O_NONBLOCK: a FIFO in the file's place must not hang us. */
    const int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;

    if (fd < 0) {
        const int code = errno == ENOENT || errno == ENOTDIR ? KWK_ENOENT
                         : errno == EACCES || errno == EPERM ? KWK_EPERM
                                                             : KWK_EIO;
        return kwk_fail(err, code, "%s: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) < 0) {
        const int e = errno;
        close(fd);
        return kwk_fail(err, KWK_EIO, "%s: %s", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return kwk_fail(err, KWK_EFORMAT, "%s: not a regular file", path);
    }
    *size = (uint64_t)st.st_size;
    return fd;
}

int kwk_file_read(int fd, void *buf, size_t n, uint64_t offset, const char *what, kwk_error *err)
{
    uint8_t *p = buf;

    while (n) {
        const ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return kwk_fail(err, KWK_EIO, "%s: %s", what, strerror(errno));
        if (got == 0)
            return kwk_fail(err, KWK_EFORMAT, "%s: the file ends at byte %llu, more were expected",
                            what, (unsigned long long)offset);
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return KWK_OK;
}

int kwk_file_text(int dirfd, const char *path, uint64_t max, char **text, size_t *n, kwk_error *err)
{
    uint64_t size;
    int rc;
    const int fd = kwk_file_open(dirfd, path, &size, err);

    if (fd < 0)
        return fd;
    char *buf = NULL;
    if (size > max) {
        rc = kwk_fail(err, KWK_EFORMAT, "%s: %llu bytes, more than the %llu accepted", path,
                      (unsigned long long)size, (unsigned long long)max);
        goto out;
    }
    buf = malloc((size_t)size + 1);
    if (!buf) {
        rc = kwk_fail(err, KWK_ENOMEM, "%s: no memory for %llu bytes", path,
                      (unsigned long long)size);
        goto out;
    }
    rc = kwk_file_read(fd, buf, (size_t)size, 0, path, err);
    if (rc < 0)
        goto out;
    buf[size] = 0;
    *text = buf;
    *n = (size_t)size;
    buf = NULL;
out:
    free(buf);
    close(fd);
    return rc;
}
