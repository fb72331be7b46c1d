/* SPDX-License-Identifier: Apache-2.0
 *
 * A pull scanner over JSON text (RFC 8259): gives one event after the other, allocates nothing. It
 * is the gate for JSON from outside: grammar, UTF-8, escapes and depth are checked here, and it
 * walks tokenizer.json (tens of megabytes) without building a tree. Any thread.
 *
 * Stricter than the standard: no U+0000, no lone surrogates, nesting up to KWK_JSON_DEPTH.
 */
#ifndef KWK_ENGINE_JSON_SCAN_H
#define KWK_ENGINE_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

enum { KWK_JSON_DEPTH = 64, KWK_JSON_NUMBER_MAX = 256 };

typedef enum kwk_json_kind {
    KWK_JSON_END, // the text is over
    KWK_JSON_OBJECT,
    KWK_JSON_OBJECT_END,
    KWK_JSON_ARRAY,
    KWK_JSON_ARRAY_END,
    KWK_JSON_KEY,
    KWK_JSON_STRING,
    KWK_JSON_NUMBER,
    KWK_JSON_TRUE,
    KWK_JSON_FALSE,
    KWK_JSON_NULL,
} kwk_json_kind;

typedef struct kwk_json_scan {
    const char *text, *what; // borrowed; what: the file's name for messages
    size_t n, pos;
    kwk_json_kind kind; // of the current event
    size_t begin, end;  // its text; keys and strings without quotes, still escaped
    /* private */
    int depth;
    uint8_t expect;
    char stack[KWK_JSON_DEPTH];
} kwk_json_scan;

void kwk_json_scan_init(kwk_json_scan *s, const char *text, size_t n, const char *what);

/* Step to the next event. KWK_EFORMAT names the byte; after it, or after KWK_JSON_END, stop. */
int kwk_json_next(kwk_json_scan *s, kwk_error *err);

/* Step over the value that begins at the current event (to its last event). */
int kwk_json_skip(kwk_json_scan *s, kwk_error *err);

/* Whether the current key or string, escapes resolved, is this text. */
int kwk_json_is(const kwk_json_scan *s, const char *text);

/* The current key or string with escapes resolved, not terminated; out holds end - begin bytes.
 * Returns its length. */
size_t kwk_json_unescape(const kwk_json_scan *s, char *out);

/* The current number as an integer of lo..hi; 0 and *v unchanged when it is none. */
int kwk_json_scan_int(const kwk_json_scan *s, int64_t lo, int64_t hi, int64_t *v);

/* Length of the well-formed UTF-8 character at p (n >= 1 bytes left), 0: there is none. */
size_t kwk_utf8(const uint8_t *p, size_t n);

#endif
