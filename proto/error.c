/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts. Any thread; no state.
 */
#include "proto/error.h"

#include <stdarg.h>
#include <stdio.h>

int kwk_fail(kwk_error *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list ap;

        err->code = code;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        for (char *c = err->msg; *c; c++) // one line whatever the values held
            if ((unsigned char)*c < ' ' || *c == 127)
                *c = '?';
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
