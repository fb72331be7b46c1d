/* SPDX-License-Identifier: Apache-2.0
 *
 * The look at a message before msgpack-c sees it. msgpack_unpack_next() allocates what a header
 * claims before reading any of it, so claims are checked against the bytes that are there.
 * Pure function.
 */
#ifndef KWK_PROTO_WALKER_H
#define KWK_PROTO_WALKER_H

#include "proto/msg.h"

/** Check that the n bytes are exactly one map within the limits of msg.h: counts no larger than the
 *  bytes left, KWK_DEPTH_MAX levels, KWK_OBJECTS_MAX objects, KWK_KEYS_MAX keys in a map, keys
 *  strings of at most KWK_NAME_MAX bytes without repetition, nothing after the end.
 *  @return KWK_OK or KWK_EPROTO */
int kwk_walk(const void *data, size_t n, kwk_error *err);

#endif
