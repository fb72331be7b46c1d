/* SPDX-License-Identifier: Apache-2.0
 *
 * Copying a file into an image: by io_uring with many reads in flight where the kernel allows it
 * (disks answer in parallel), by pread otherwise. Both notice a file that is shorter than promised.
 */
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <unistd.h>

#include "engine/file.h"
#include "engine/image.h"

enum {
    CHUNK = 1 << 20, // bytes of a read
    DEPTH = 16,      // reads in flight
};

static int progress(const kwk_copy *c, uint64_t done, kwk_error *err)
{
    if (c->progress && c->progress(c->progress_arg, done, c->size) != 0)
        return kwk_fail(err, KWK_ECANCELED, "loading was canceled");
    return KWK_OK;
}

int kwk_copy_pread(const kwk_copy *c, kwk_error *err)
{
    for (uint64_t at = 0; at < c->size;) {
        const size_t n = c->size - at < 8 * CHUNK ? (size_t)(c->size - at) : 8 * CHUNK;
        int rc = kwk_file_read(c->fd, c->dst + at, n, at, "packed model", err);
        if (!rc)
            rc = progress(c, at + n, err);
        if (rc < 0)
            return rc;
        at += n;
    }
    return KWK_OK;
}

typedef struct piece {
    uint64_t offset;
    uint32_t n; // bytes still to read; 0: free
} piece;

static void submit(struct io_uring *ring, const kwk_copy *c, piece *p)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring); // never NULL: DEPTH entries, DEPTH pieces

    io_uring_prep_read(sqe, c->fd, c->dst + p->offset, p->n, p->offset);
    io_uring_sqe_set_data(sqe, p);
}

int kwk_copy_uring(const kwk_copy *c, kwk_error *err)
{
    struct io_uring ring;
    piece pieces[DEPTH] = {{0}};
    uint64_t next = 0, done = 0;
    int in_flight = 0, rc = KWK_OK;

    const int e = io_uring_queue_init(DEPTH, &ring, 0);
    if (e < 0)
        return kwk_fail(err, KWK_EUNSUPPORTED, "io_uring: %s", strerror(-e));
    for (;;) {
        for (int i = 0; i < DEPTH && next < c->size && !rc; i++) {
            if (pieces[i].n)
                continue;
            pieces[i].offset = next;
            pieces[i].n = c->size - next < CHUNK ? (uint32_t)(c->size - next) : CHUNK;
            next += pieces[i].n;
            submit(&ring, c, &pieces[i]);
            in_flight++;
        }
        if (!in_flight) // also after an error: the kernel must not write into freed memory
            break;
        struct io_uring_cqe *cqe;
        const int got = io_uring_submit_and_wait(&ring, 1);
        if (got < 0 && got != -EINTR && got != -EAGAIN && got != -EBUSY) {
            rc = kwk_fail(err, KWK_EIO, "io_uring: %s", strerror(-got));
            break; // the ring itself is unusable: nothing of it runs
        }
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            piece *p = io_uring_cqe_get_data(cqe);
            const int res = cqe->res;
            io_uring_cqe_seen(&ring, cqe);
            if (res > 0) {
                p->offset += (uint32_t)res;
                p->n -= (uint32_t)res;
                done += (uint32_t)res;
            } else if (res == 0 && !rc) {
                rc = kwk_fail(err, KWK_EFORMAT,
                              "packed model: the file ends at byte %llu, more "
                              "were expected",
                              (unsigned long long)p->offset);
            } else if (res != -EINTR && res != -EAGAIN && !rc) {
                const int old = res == -EINVAL || res == -EOPNOTSUPP; // kernels before 5.6
                rc = kwk_fail(err, old ? KWK_EUNSUPPORTED : KWK_EIO, "packed model: %s",
                              strerror(-res));
            }
            if (p->n && !rc) { // a short read
                submit(&ring, c, p);
                continue;
            }
            p->n = 0;
            in_flight--;
        }
        if (!rc)
            rc = progress(c, done, err);
    }
    io_uring_queue_exit(&ring);
    return rc;
}

int kwk_image_copy(kwk_image *img, int fd, uint64_t size, int sealed, kwk_progress_fn *fn,
                   void *arg, kwk_error *err)
{
    int rc = kwk_image_new(img, size, sealed, err);

    if (!rc)
        rc = kwk_image_commit(img, 0, size, err);
    if (!rc) {
        const kwk_copy c = {fd, img->base, size, fn, arg};
        rc = kwk_copy_uring(&c, err);
        if (rc == KWK_EUNSUPPORTED)
            rc = kwk_copy_pread(&c, err);
    }
    if (!rc)
        rc = kwk_image_finish(img, size, err);
    if (rc < 0)
        kwk_image_free(img);
    return rc;
}
