/* SPDX-License-Identifier: Apache-2.0
 *
 * Where UTF-8 characters end, for text that comes from outside. Pure functions, header only.
 */
#ifndef KWK_PROTO_UTF8_H
#define KWK_PROTO_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed character at p[0 … n), n >= 1; 0: the bytes are the beginning of one that
 * is cut off; -1: p[0] begins no character (overlong forms, surrogates, above U+10FFFF too). */
static inline int kwk_utf8_next(const uint8_t *p, size_t n)
{
    const uint8_t c = p[0];
    uint8_t lo = 0x80, hi = 0xbf; // range of the second byte
    int len;

    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return -1;
    len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (c == 0xe0)
        lo = 0xa0;
    else if (c == 0xed)
        hi = 0x9f;
    else if (c == 0xf0)
        lo = 0x90;
    else if (c == 0xf4)
        hi = 0x8f;
    for (int i = 1; i < len; i++, lo = 0x80, hi = 0xbf) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -1;
    }
    return len;
}

#endif
