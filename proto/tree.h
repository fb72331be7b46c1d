/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of kwk_tree (msg.h), for tree.c and json.c.
 */
#ifndef KWK_PROTO_TREE_H
#define KWK_PROTO_TREE_H

#include <msgpack.h>

#include "proto/msg.h"

struct kwk_tree {
    msgpack_unpacked unpacked; // the root is a map; strings are NUL-terminated in place
    uint8_t message[];         // private copy, one byte longer
};

#endif
