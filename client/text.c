/* SPDX-License-Identifier: Apache-2.0
 *
 * Joining text pieces (text.h). No allocation; one thread at a time.
 */
#include "client/text.h"

#include <string.h>

#include "proto/utf8.h"

static size_t put_replacement(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3); // U+FFFD
    return 3;
}

size_t kwk_text_add(kwk_text *t, const uint8_t *p, size_t n)
{
    uint8_t in[KWK_RECORD_PAYLOAD + 4];
    size_t n_in = t->n_held, at = 0, n_out = 0;

    memcpy(in, t->held, n_in);
    if (n)
        memcpy(in + n_in, p, n);
    n_in += n;
    t->n_held = 0;
    while (at < n_in) {
        const int len = kwk_utf8_next(in + at, n_in - at);
        if (len == 0) {
            t->n_held = (uint32_t)(n_in - at);
            memcpy(t->held, in + at, t->n_held);
            break;
        }
        if (len < 0) {
            n_out += put_replacement(t->out + n_out);
            at++;
        } else {
            memcpy(t->out + n_out, in + at, (size_t)len);
            n_out += (size_t)len;
            at += (size_t)len;
        }
    }
    return n_out;
}

size_t kwk_text_end(kwk_text *t)
{
    if (!t->n_held)
        return 0;
    t->n_held = 0;
    return put_replacement(t->out);
}
