/* SPDX-License-Identifier: Apache-2.0
 *
 * Directory, lock and stale sockets. No threads, no state but the struct.
 */
#include "daemon/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int kwkd_rundir_default(char *buf, size_t size, kwk_error *err)
{
    const char *runtime = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
    int n;

    if (runtime && *runtime) // systemd lists several with colons; the first is ours
        n = snprintf(buf, size, "%.*s", (int)strcspn(runtime, ":"), runtime);
    else if (xdg && *xdg)
        n = snprintf(buf, size, "%s/kwker", xdg);
    else
        n = snprintf(buf, size, "/run/kwker");
    if (n < 0 || (size_t)n >= size)
        return kwk_fail(err, KWK_EINVAL, "runtime directory's name has %d bytes, at most %zu fit",
                        n, size - 1);
    return KWK_OK;
}

static int find_group(kwkd_rundir *r, const char *name, kwk_error *err)
{
    const struct group *g;

    r->group = (gid_t)-1;
    if (!name || !*name)
        return KWK_OK;
    g = getgrnam(name);
    if (!g)
        return kwk_fail(err, KWK_EINVAL, "group '%s' does not exist", name);
    r->group = g->gr_gid;
    return KWK_OK;
}

static int make_directory(kwkd_rundir *r, kwk_error *err)
{
    const int shared = r->group != (gid_t)-1;
    struct stat st;

    if (mkdir(r->path, shared ? 0750 : 0700) == 0) {
        if (shared && (chown(r->path, (uid_t)-1, r->group) < 0 || chmod(r->path, 0750) < 0))
            return kwk_fail(err, KWK_EPERM, "giving '%s' to the group: %s", r->path,
                            strerror(errno));
    } else if (errno != EEXIST) {
        return kwk_fail(err, KWK_EIO, "making '%s': %s", r->path, strerror(errno));
    }
    if (stat(r->path, &st) < 0)
        return kwk_fail(err, KWK_EIO, "'%s': %s", r->path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return kwk_fail(err, KWK_EIO, "'%s' is not a directory", r->path);
    // Whoever can rename our sockets away can put theirs in the place.
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return kwk_fail(err, KWK_EPERM, "'%s' belongs to user %u", r->path, st.st_uid);
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX))
        return kwk_fail(err, KWK_EPERM, "'%s' is writable by others (mode %o)", r->path,
                        st.st_mode & 07777);
    return KWK_OK;
}

static int take_lock(kwkd_rundir *r, kwk_error *err)
{
    enum { TRIES = 50, WAIT_MS = 20 };
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/kwkerd.lock", r->path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return kwk_fail(err, KWK_EIO, "'%s': %s", path, strerror(errno));
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        const struct timespec wait = {0, WAIT_MS * 1000000};
        if (errno != EWOULDBLOCK && errno != EINTR) {
            close(fd);
            return kwk_fail(err, KWK_EIO, "locking '%s': %s", path, strerror(errno));
        }
        if (i == TRIES) {
            close(fd);
            return kwk_fail(err, KWK_EBUSY, "another kwkerd owns '%s'", r->path);
        }
        nanosleep(&wait, NULL);
    }
    r->lock_fd = fd;
    return KWK_OK;
}

int kwkd_rundir_open(kwkd_rundir *r, const char *path, const char *group, kwk_error *err)
{
    int rc;

    memset(r, 0, sizeof *r);
    r->lock_fd = -1;
    if (strlen(path) >= sizeof r->path || path[0] != '/')
        return kwk_fail(err, KWK_EINVAL,
                        "runtime directory '%s' must be absolute and below %zu bytes", path,
                        sizeof r->path);
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->door, sizeof r->door, "%s/door.sock", r->path);
    snprintf(r->control, sizeof r->control, "%s/kwkerd.sock", r->path);
    rc = find_group(r, group, err);
    if (rc == KWK_OK)
        rc = make_directory(r, err);
    if (rc == KWK_OK)
        rc = take_lock(r, err);
    return rc;
}

void kwkd_rundir_close(kwkd_rundir *r)
{
    if (r->lock_fd > 0)
        close(r->lock_fd);
    r->lock_fd = -1;
}

/* Whether something accepts connections at path: 1 yes, 0 refused, negative: cannot tell. A socket
 * of either type: connect() to the wrong one says EPROTOTYPE, which also means that it is alive. */
static int is_alive(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd, rc;

    if (strlen(path) >= sizeof to.sun_path)
        return -1;
    strcpy(to.sun_path, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EAGAIN ||
        errno == EPROTOTYPE)
        rc = 1;
    else
        rc = errno == ECONNREFUSED ? 0 : -1;
    close(fd);
    return rc;
}

int kwkd_socket_clear(const char *path, kwk_error *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? KWK_OK : kwk_fail(err, KWK_EIO, "'%s': %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return kwk_fail(err, KWK_EPERM, "'%s' is in the way and is no socket", path);
    switch (is_alive(path)) {
    case 0:
        if (unlink(path) < 0 && errno != ENOENT)
            return kwk_fail(err, KWK_EIO, "removing the old '%s': %s", path, strerror(errno));
        return KWK_OK;
    case 1:
        return kwk_fail(err, KWK_EBUSY, "something else listens on '%s'", path);
    default:
        return kwk_fail(err, KWK_EPERM, "'%s' is in the way and cannot be probed: %s", path,
                        strerror(errno));
    }
}

int kwkd_socket_open_to_group(const kwkd_rundir *r, const char *path, kwk_error *err)
{
    if (r->group != (gid_t)-1 && lchown(path, (uid_t)-1, r->group) < 0)
        return kwk_fail(err, KWK_EPERM, "giving '%s' to group %u: %s", path, r->group,
                        strerror(errno));
    if (chmod(path, KWKD_SOCKET_MODE) < 0)
        return kwk_fail(err, KWK_EIO, "mode of '%s': %s", path, strerror(errno));
    return KWK_OK;
}
