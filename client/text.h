/* SPDX-License-Identifier: Apache-2.0
 *
 * Text that arrives in pieces which may end inside a character: hands out whole characters only.
 */
#ifndef KWK_CLIENT_TEXT_H
#define KWK_CLIENT_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/ring.h"

typedef struct kwk_text {
    uint8_t held[4]; // beginning of a character
    uint32_t n_held; // 0..3
    char out[3 * (KWK_RECORD_PAYLOAD + 4)]; // a byte that is no character becomes U+FFFD: 3 bytes
} kwk_text;

/** Add n <= KWK_RECORD_PAYLOAD bytes; the whole characters known now are out[0 … result). */
size_t kwk_text_add(kwk_text *t, const uint8_t *p, size_t n);

/** The end: what is held back becomes U+FFFD. Result as above. */
size_t kwk_text_end(kwk_text *t);

#endif
