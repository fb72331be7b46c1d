/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of packed weights: allocation, sealing, saving. Private pages are asked for in huge pages,
 * since decoding streams through all of them. No state.
 */
#include "engine/image.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U // Linux 6.3, newer than Debian 12's headers
#endif

enum { HUGE_PAGE = 2 << 20 };

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static size_t page_round(uint64_t n)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return (size_t)((n + page - 1) / page * page);
}

static int no_memory(uint64_t size, kwk_error *err)
{
    return kwk_fail(err, KWK_ENOMEM, "no memory for %llu bytes of packed weights: %s",
                    (unsigned long long)size, strerror(errno));
}

/* Private pages at a huge page's boundary: map more, give back both ends. */
static uint8_t *map_private(uint64_t size)
{
    const size_t want = page_round(size), room = want + HUGE_PAGE;
    uint8_t *p = mmap(NULL, room, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    const size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        munmap(p, head);
    munmap(p + head + want, room - head - want);
    return p + head;
}

int kwk_image_new(kwk_image *img, uint64_t size, int sealed, kwk_error *err)
{
    *img = (kwk_image){.fd = -1};
    if (size == 0 || size > (uint64_t)1 << 46) {
        errno = ENOMEM;
        return no_memory(size, err);
    }
    if (sealed) {
        img->fd = memfd_create("kwk-model", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if (img->fd < 0 && errno == EINVAL)
            img->fd = memfd_create("kwk-model", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (img->fd < 0 || ftruncate(img->fd, (off_t)size) < 0)
            goto fail;
        void *p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, img->fd, 0);
        if (p == MAP_FAILED)
            goto fail;
        img->base = p;
    } else {
        img->base = map_private(size);
        if (!img->base)
            goto fail;
    }
    img->size = (size_t)size;
    (void)madvise(img->base, img->size, MADV_HUGEPAGE); // a wish
    (void)madvise(img->base, img->size, MADV_DONTDUMP);
    return KWK_OK;
fail:
    no_memory(size, err);
    kwk_image_free(img);
    return KWK_ENOMEM;
}

int kwk_image_commit(const kwk_image *img, uint64_t begin, uint64_t end, kwk_error *err)
{
    int rc;

    if (img->fd < 0 || begin == end)
        return KWK_OK;
    do
        rc = fallocate(img->fd, 0, (off_t)begin, (off_t)(end - begin));
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? no_memory(end - begin, err) : KWK_OK;
}

int kwk_image_finish(kwk_image *img, uint64_t size, kwk_error *err)
{
    const size_t kept = page_round(size), mapped = page_round(img->size);

    if (img->fd < 0) {
        if (mapped > kept)
            munmap(img->base + kept, mapped - kept);
        img->size = (size_t)size;
        return mprotect(img->base, kept, PROT_READ) < 0 ? no_memory(size, err) : KWK_OK;
    }
    /* The seal against writing is refused while a writable mapping exists. The new one is private:
     * older kernels do not map a write-sealed memfd shared. */
    munmap(img->base, img->size);
    img->base = NULL;
    img->size = 0;
    if (ftruncate(img->fd, (off_t)size) < 0 || fcntl(img->fd, F_ADD_SEALS, SEALS) < 0)
        return no_memory(size, err);
    void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, img->fd, 0);
    if (p == MAP_FAILED)
        return no_memory(size, err);
    img->base = p;
    img->size = (size_t)size;
    (void)madvise(img->base, img->size, MADV_HUGEPAGE);
    (void)madvise(img->base, img->size, MADV_DONTDUMP);
    return KWK_OK;
}

void kwk_image_free(kwk_image *img)
{
    if (img->base)
        munmap(img->base, page_round(img->size));
    if (img->fd >= 0)
        close(img->fd);
    *img = (kwk_image){.fd = -1};
}

int kwk_image_is_sealed(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS), need = F_SEAL_WRITE | F_SEAL_SHRINK;

    return seals >= 0 && (seals & need) == need;
}

int kwk_image_map(kwk_image *img, int fd, uint64_t size, kwk_error *err)
{
    *img = (kwk_image){.fd = -1};
    img->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (img->fd < 0)
        return kwk_fail(err, KWK_EIO, "dup: %s", strerror(errno));
    void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, img->fd, 0);
    if (p == MAP_FAILED) {
        no_memory(size, err);
        kwk_image_free(img);
        return KWK_ENOMEM;
    }
    img->base = p;
    img->size = (size_t)size;
    (void)madvise(img->base, img->size, MADV_HUGEPAGE);
    (void)madvise(img->base, img->size, MADV_DONTDUMP);
    return KWK_OK;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static int write_all(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        const ssize_t put = write(fd, p, n < (size_t)1 << 30 ? n : (size_t)1 << 30);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

static int sync_dir(const char *path)
{
    char *copy = strdup(path);
    int rc = -1;

    if (!copy)
        return -1;
    const int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        rc = fsync(fd);
        if (rc < 0 && errno == EINVAL) // some file systems have no such thing
            rc = 0;
        close(fd);
    }
    free(copy);
    return rc;
}

int kwk_image_save(const kwk_image *img, const char *path, kwk_error *err)
{
    static atomic_uint counter;
    const size_t room = strlen(path) + 48;
    char *temporary = malloc(room);
    int rc = KWK_OK, fd;

    if (!temporary)
        return kwk_fail(err, KWK_ENOMEM, "%s: out of memory", path);
    snprintf(temporary, room, "%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        rc = kwk_fail(err, errno == ENOENT ? KWK_ENOENT : KWK_EIO, "%s: %s", temporary,
                      strerror(errno));
        free(temporary);
        return rc;
    }
    if (write_all(fd, img->base, img->size) < 0 || fsync(fd) < 0)
        rc = kwk_fail(err, KWK_EIO, "%s: %s", temporary, strerror(errno));
    if (close(fd) < 0 && !rc)
        rc = kwk_fail(err, KWK_EIO, "%s: %s", temporary, strerror(errno));
    if (!rc && rename(temporary, path) < 0)
        rc = kwk_fail(err, KWK_EIO, "%s: %s", path, strerror(errno));
    if (rc < 0)
        unlink(temporary);
    else if (sync_dir(path) < 0)
        rc = kwk_fail(err, KWK_EIO, "%s: its directory: %s", path, strerror(errno));
    free(temporary);
    return rc;
}
