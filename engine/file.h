/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading files from outside: opened once, regular files only, always by pread and never mapped (a
 * file that shrinks while it is mapped kills the process). Any thread.
 */
#ifndef KWK_ENGINE_FILE_H
#define KWK_ENGINE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

/**
 * Open a regular file for reading.
 *
 * @param dirfd  directory that a relative path starts at, or AT_FDCWD
 * @param size   out: bytes it has now
 *
 * @return a descriptor; KWK_ENOENT, KWK_EPERM, KWK_EIO, KWK_EFORMAT (not a regular file)
 */
int kwk_file_open(int dirfd, const char *path, uint64_t *size, kwk_error *err);

/* Read exactly n bytes at an offset: KWK_OK; KWK_EFORMAT the file ends before; KWK_EIO. */
int kwk_file_read(int fd, void *buf, size_t n, uint64_t offset, const char *what, kwk_error *err);

/**
 * The whole of a small file, with a NUL added.
 *
 * @param max   more bytes are KWK_EFORMAT
 * @param text  out, free() it
 */
int kwk_file_text(int dirfd, const char *path, uint64_t max, char **text, size_t *n,
                  kwk_error *err);

#endif
