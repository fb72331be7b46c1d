/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts. Any thread; no state.
 */
#include "proto/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/utf8.h"

/* One line of UTF-8 whatever the values held: they come from messages, files and paths. */
static void clean(char *msg)
{
    uint8_t *p = (uint8_t *)msg;
    size_t n = strlen(msg);

    while (n > 0) {
        int len = kwk_utf8_next(p, n);
        if (len == 0) { // cut off by the end of the array
            *p = 0;
            return;
        }
        if (len < 0 || (len == 1 && (*p < ' ' || *p == 127))) {
            *p = '?';
            len = 1;
        } else if (len == 2 && p[0] == 0xc2 && p[1] < 0xa0) { // C1 controls move terminals too
            p[0] = p[1] = '?';
        }
        p += len;
        n -= (size_t)len;
    }
}

int kwk_fail(kwk_error *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list ap;

        err->code = code;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        clean(err->msg);
    }
    return code;
}

const char *kwk_error_name(int code)
{
    switch (code) {
    case KWK_OK:
        return "OK";
#define KWK_ERR(num, name, text) \
    case -(num):                 \
        return #name;
#include "proto/errors.inc"
#undef KWK_ERR
    }
    return "E?";
}

const char *kwk_error_text(int code)
{
    switch (code) {
    case KWK_OK:
        return "success";
#define KWK_ERR(num, name, text) \
    case -(num):                 \
        return text;
#include "proto/errors.inc"
#undef KWK_ERR
    }
    return "unknown error";
}
