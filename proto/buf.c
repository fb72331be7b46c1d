/* SPDX-License-Identifier: Apache-2.0
 *
 * The growing output buffer of the message encoders (msg.h, buf.h). Any thread.
 */
#include "proto/buf.h"

#include <stdlib.h>
#include <string.h>

void kwk_buf_fini(kwk_buf *b)
{
    if (b) {
        free(b->data);
        *b = (kwk_buf){0};
    }
}

uint8_t *kwk_buf_grow(kwk_buf *b, size_t n)
{
    uint8_t *p;

    if (n > SIZE_MAX / 2 - b->size)
        return NULL;
    if (b->size + n > b->capacity) {
        size_t capacity = b->capacity ? b->capacity : 256;
        while (capacity < b->size + n)
            capacity *= 2;
        p = realloc(b->data, capacity);
        if (!p)
            return NULL;
        b->data = p;
        b->capacity = capacity;
    }
    p = b->data + b->size;
    b->size += n;
    return p;
}

int kwk_buf_write(void *buf, const char *data, size_t n)
{
    uint8_t *p = n ? kwk_buf_grow(buf, n) : NULL;

    if (!n)
        return 0;
    if (!p)
        return -1;
    memcpy(p, data, n);
    return 0;
}
