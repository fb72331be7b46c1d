/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON trees for small files (config.json, headers), by cJSON behind our own gate: json_scan.h
 * checks the text first, so cJSON sees only well-formed input of bounded depth and size. Then
 * duplicate keys and numbers that are not finite are refused. Any thread.
 *
 * Of cJSON's interface only the parser and the plain accessors are used: its lookup ignores case,
 * so look members up with kwk_json_get().
 */
#ifndef KWK_ENGINE_JSON_H
#define KWK_ENGINE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "proto/error.h"

/**
 * Parse n bytes.
 *
 * @param out         cJSON_Delete() it
 * @param max_values  most values (members, elements) accepted, which bounds the memory
 * @param what        the file's name for messages
 *
 * @return KWK_OK, KWK_EFORMAT, KWK_ENOMEM
 */
int kwk_json_parse(cJSON **out, const char *text, size_t n, size_t max_values, const char *what,
                   kwk_error *err);

/* Member of an object, or NULL: none, or not an object. */
const cJSON *kwk_json_get(const cJSON *object, const char *key);

/* The value as an integer of lo..hi; 0 and *v unchanged when it is none. NULL is none. */
int kwk_json_int(const cJSON *item, int64_t lo, int64_t hi, int64_t *v);

#endif
