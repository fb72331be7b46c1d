/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 assembly, a byte at a time (Unicode standard, table 3-7). No state but the caller's.
 */
#include "daemon/text.h"

#include <string.h>

static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd}; // U+FFFD

/* Bytes of the character that begins with b; 0: none does. */
static int length_of(uint8_t b)
{
    if (b < 0x80)
        return 1;
    if (b >= 0xc2 && b <= 0xdf)
        return 2;
    if (b >= 0xe0 && b <= 0xef)
        return 3;
    return b >= 0xf0 && b <= 0xf4 ? 4 : 0;
}

/* Can b follow the held bytes? Second bytes are narrower after some first ones: no overlong forms,
 * no surrogates, nothing above U+10FFFF. */
static int continues(const kwkd_text *t, uint8_t b)
{
    if (t->n_held == 1) {
        switch (t->held[0]) {
        case 0xe0:
            return b >= 0xa0 && b <= 0xbf;
        case 0xed:
            return b >= 0x80 && b <= 0x9f;
        case 0xf0:
            return b >= 0x90 && b <= 0xbf;
        case 0xf4:
            return b >= 0x80 && b <= 0x8f;
        }
    }
    return b >= 0x80 && b <= 0xbf;
}

static size_t put_replacement(uint8_t *out)
{
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

size_t kwkd_text_push(kwkd_text *t, const uint8_t *bytes, size_t n, uint8_t *out)
{
    size_t w = 0;

    for (size_t i = 0; i < n; i++) {
        const uint8_t b = bytes[i];
        if (t->n_held && !continues(t, b)) {
            w += put_replacement(out + w);
            t->n_held = 0;
        }
        if (!t->n_held && !length_of(b)) {
            w += put_replacement(out + w);
            continue;
        }
        t->held[t->n_held++] = b;
        if (t->n_held == length_of(t->held[0])) {
            memcpy(out + w, t->held, t->n_held);
            w += t->n_held;
            t->n_held = 0;
        }
    }
    return w;
}

size_t kwkd_text_end(kwkd_text *t, uint8_t *out)
{
    if (!t->n_held)
        return 0;
    t->n_held = 0;
    return put_replacement(out);
}

size_t kwkd_text_cut(const uint8_t *text, size_t n, size_t most)
{
    if (n <= most)
        return n;
    while (most && (text[most] & 0xc0) == 0x80) // text[most] begins the next piece
        most--;
    return most;
}
