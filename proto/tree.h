/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of kwk_tree (msg.h), for tree.c and json.c; and the pieces of JSON that programs print.
 */
#ifndef KWK_PROTO_TREE_H
#define KWK_PROTO_TREE_H

#include <msgpack.h>

#include "proto/msg.h"

struct kwk_tree {
    msgpack_unpacked unpacked; // the root is a map; strings are NUL-terminated in place
    uint8_t message[];         // private copy, one byte longer
};

/* Append a JSON string; bytes that are no UTF-8 become U+FFFD. 0, or nonzero out of memory. */
int kwk_json_str(kwk_buf *b, const char *s, size_t n);

/* Append the shortest number that reads back as v (as a float with is_f32); null if not finite. */
int kwk_json_number(kwk_buf *b, double v, int is_f32);

#endif
