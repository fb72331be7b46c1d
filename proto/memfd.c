/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealed memfds: made by the daemon, checked and mapped by either side. Knows nothing of what lies
 * in them. Any thread; no state.
 */
#include "proto/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static int code_of(int e)
{
    switch (e) {
    case ENOMEM:
    case ENOSPC:
        return KWK_ENOMEM;
    case EMFILE:
    case ENFILE:
        return KWK_EBUSY; // passes when others close theirs
    case EPERM:
    case EACCES:
        return KWK_EPERM;
    }
    return KWK_EIO;
}

/* Bytes that the machine can hold at all. The kernel does not ask before it commits pages of a memfd:
 * beyond this it would kill processes instead of failing. */
static uint64_t ram_bytes(void)
{
    struct sysinfo si;

    return sysinfo(&si) == 0 ? (uint64_t)si.totalram * si.mem_unit : INT64_MAX;
}

int kwk_memfd_create(const char *name, size_t size, kwk_error *err)
{
    int fd, e;

    if (size > ram_bytes())
        return kwk_fail(err, KWK_ENOMEM, "memfd '%s' of %zu bytes: more than the memory there is",
                        name, size);
    // Kernels from 6.4 on log a missing NOEXEC; older ones refuse it.
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        e = errno;
        return kwk_fail(err, code_of(e), "memfd '%s': %s", name, strerror(e));
    }

    // Commit the pages now: running out of memory at first touch would be a SIGBUS.
    do
        e = posix_fallocate(fd, 0, (off_t)size);
    while (e == EINTR);
    if (e) {
        close(fd);
        return kwk_fail(err, code_of(e), "memfd '%s' of %zu bytes: %s", name, size, strerror(e));
    }
    return fd;
}

void *kwk_memfd_map(int fd, size_t size, int writable, kwk_error *err)
{
    const int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED) {
        const int e = errno;
        kwk_fail(err, code_of(e), "map %zu bytes %s: %s", size,
                 writable ? "for writing" : "for reading", strerror(e));
        return NULL;
    }
    return p;
}

int kwk_memfd_seal(int fd, int future_write, kwk_error *err)
{
    const int seals =
        F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (future_write ? F_SEAL_FUTURE_WRITE : 0);

    if (fcntl(fd, F_ADD_SEALS, seals) < 0) {
        const int e = errno;
        return kwk_fail(err, code_of(e), "seal memfd: %s", strerror(e));
    }
    return KWK_OK;
}

int kwk_memfd_check(int fd, size_t size, kwk_error *err)
{
    struct stat st;
    const int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return kwk_fail(err, KWK_EPROTO, "descriptor is not a memfd");
    if (!(seals & F_SEAL_SHRINK))
        return kwk_fail(err, KWK_EPROTO, "memfd is not sealed against shrinking");
    if (fstat(fd, &st) < 0 || st.st_size < 0)
        return kwk_fail(err, KWK_EPROTO, "memfd without a size: %s", strerror(errno));
    if ((uint64_t)st.st_size < size)
        return kwk_fail(err, KWK_EPROTO, "memfd has %lld bytes, %zu announced",
                        (long long)st.st_size, size);
    return KWK_OK;
}
