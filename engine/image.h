/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that packed weights live in: private pages, or a memfd that can be handed to other
 * processes; written once, then read-only for good. Never a mapping of a file that somebody could
 * shorten. Knows sizes only, not what is inside. One thread per image until it is finished.
 */
#ifndef KWK_ENGINE_IMAGE_H
#define KWK_ENGINE_IMAGE_H

#include "engine/model.h"

/**
 * A zeroed, writable image; size is the most it may become. Memory is taken as it is touched.
 *
 * @param sealed  1: in a memfd, to be sealed by kwk_image_finish()
 *
 * @return KWK_OK; KWK_ENOMEM
 */
int kwk_image_new(kwk_image *img, uint64_t size, int sealed, kwk_error *err);

/* Bytes begin … end-1 are about to be written: take their memory now, so that a lack of it is an
 * error here and not a signal later (memfd only; private pages have no such call). */
int kwk_image_commit(const kwk_image *img, uint64_t begin, uint64_t end, kwk_error *err);

/* Fix the size (at most that of kwk_image_new()), make it read-only, seal a memfd. */
int kwk_image_finish(kwk_image *img, uint64_t size, kwk_error *err);

/* Release; a zeroed image with fd -1 is fine. */
void kwk_image_free(kwk_image *img);

/* Write to `path`: temporary file beside it, fsync, rename, fsync of the directory. */
int kwk_image_save(const kwk_image *img, const char *path, kwk_error *err);

/* 1 when fd is a memfd sealed against writing and shrinking, so that mapping it is safe. */
int kwk_image_is_sealed(int fd);

/* Map a sealed memfd of `size` bytes; fd is duplicated. */
int kwk_image_map(kwk_image *img, int fd, uint64_t size, kwk_error *err);

/**
 * Copy `size` bytes of a file into a finished image (image_read.c).
 *
 * @param sealed    as kwk_image_new
 * @param progress  may be NULL; called with bytes so far and in all
 *
 * @return KWK_OK; KWK_EFORMAT the file is shorter; KWK_EIO; KWK_ENOMEM; KWK_ECANCELED
 */
int kwk_image_copy(kwk_image *img, int fd, uint64_t size, int sealed, kwk_progress_fn *progress,
                   void *progress_arg, kwk_error *err);

/* The two ways in which kwk_image_copy() reads. _uring: KWK_EUNSUPPORTED when the kernel or a
 * sandbox forbids it. */
typedef struct kwk_copy {
    int fd;
    uint8_t *dst;
    uint64_t size;
    kwk_progress_fn *progress;
    void *progress_arg;
} kwk_copy;
int kwk_copy_uring(const kwk_copy *c, kwk_error *err);
int kwk_copy_pread(const kwk_copy *c, kwk_error *err);

#endif
