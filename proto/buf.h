/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing a kwk_buf, inside proto/ and client/.
 */
#ifndef KWK_PROTO_BUF_H
#define KWK_PROTO_BUF_H

#include "proto/msg.h"

/* n more bytes at the end, not initialised; NULL: out of memory, nothing changed. */
uint8_t *kwk_buf_grow(kwk_buf *b, size_t n);

/* Append; 0, or -1 out of memory. Has msgpack-c's type msgpack_packer_write (buf: kwk_buf *). */
int kwk_buf_write(void *buf, const char *data, size_t n);

#endif
