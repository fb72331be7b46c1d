/* SPDX-License-Identifier: Apache-2.0
 *
 * A growing text, for writing JSON. A failed allocation is remembered and everything after it does
 * nothing, so that callers check once at the end. One thread per text.
 */
#ifndef KWK_ENGINE_STRBUF_H
#define KWK_ENGINE_STRBUF_H

#include <stddef.h>
#include <stdint.h>

typedef struct kwk_strbuf {
    char *p; // NUL-terminated once anything was added; the owner frees it
    size_t n, room;
    int failed; // out of memory
} kwk_strbuf;

void kwk_strbuf_add(kwk_strbuf *t, const char *s, size_t n);
void kwk_strbuf_str(kwk_strbuf *t, const char *s);
void kwk_strbuf_int(kwk_strbuf *t, int64_t v);

/* The shortest-that-is-sure decimal form of a finite float, whatever the locale. */
void kwk_strbuf_float(kwk_strbuf *t, float v);

/* A JSON string of n bytes of UTF-8, quoted and escaped. */
void kwk_strbuf_json(kwk_strbuf *t, const char *s, size_t n);

#endif
