/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of a stream out of its tokens' bytes. A token may end in the middle of a character: such
 * bytes are held back until the rest comes, so that every piece handed out is valid UTF-8 by
 * itself. Pure; one thread per state.
 */
#ifndef KWK_DAEMON_TEXT_H
#define KWK_DAEMON_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct kwkd_text {
    uint8_t held[4]; // a valid but incomplete character
    uint8_t n_held;  // 0..3
} kwkd_text;

/** Most bytes that n more can make. */
static inline size_t kwkd_text_bound(size_t n)
{
    return 3 * n + 3;
}

/**
 * Add a token's bytes.
 *
 * @param out  at least kwkd_text_bound(n) bytes; gets complete characters; what can never become
 *             one is U+FFFD, once for each longest piece that could have begun one (as the Unicode
 *             standard, section 3.9, recommends)
 *
 * @return bytes written
 */
size_t kwkd_text_push(kwkd_text *t, const uint8_t *bytes, size_t n, uint8_t *out);

/** The stream ends: what is still held becomes U+FFFD. At most 3 bytes. */
size_t kwkd_text_end(kwkd_text *t, uint8_t *out);

/** Longest prefix of valid UTF-8 that has at most `most` bytes and cuts no character. */
size_t kwkd_text_cut(const uint8_t *text, size_t n, size_t most);

#endif
