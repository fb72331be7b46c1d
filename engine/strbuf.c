/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing texts and the pieces of JSON that go into them.
 */
#include "engine/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kwk_strbuf_add(kwk_strbuf *t, const char *s, size_t n)
{
    if (t->failed)
        return;
    if (n >= t->room - t->n) { // one byte for the NUL
        size_t room = t->room ? t->room : 256;
        while (room - t->n <= n)
            room *= 2;
        char *more = realloc(t->p, room);
        if (!more) {
            t->failed = 1;
            return;
        }
        t->p = more;
        t->room = room;
    }
    memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = 0;
}

void kwk_strbuf_str(kwk_strbuf *t, const char *s)
{
    kwk_strbuf_add(t, s, strlen(s));
}

void kwk_strbuf_int(kwk_strbuf *t, int64_t v)
{
    char buf[24];
    const int n = snprintf(buf, sizeof buf, "%lld", (long long)v);

    kwk_strbuf_add(t, buf, (size_t)n);
}

void kwk_strbuf_float(kwk_strbuf *t, float v)
{
    char buf[48];
    const int n = snprintf(buf, sizeof buf, "%.8e", (double)v);
    const char *e = memchr(buf, 'e', (size_t)n);
    const size_t sign = buf[0] == '-';

    /* d, a decimal point in whatever form the locale has it, eight digits, exponent */
    kwk_strbuf_add(t, buf, sign + 1);
    kwk_strbuf_str(t, ".");
    kwk_strbuf_add(t, e - 8, (size_t)(buf + n - (e - 8)));
}

void kwk_strbuf_json(kwk_strbuf *t, const char *s, size_t n)
{
    size_t from = 0;

    kwk_strbuf_str(t, "\"");
    for (size_t i = 0; i < n; i++) {
        const uint8_t c = (uint8_t)s[i];
        char escape[8];
        if (c >= ' ' && c != '"' && c != '\\')
            continue;
        kwk_strbuf_add(t, s + from, i - from);
        from = i + 1;
        if (c < ' ')
            snprintf(escape, sizeof escape, "\\u%04x", c);
        else
            snprintf(escape, sizeof escape, "\\%c", c);
        kwk_strbuf_str(t, escape);
    }
    kwk_strbuf_add(t, s + from, n - from);
    kwk_strbuf_str(t, "\"");
}
