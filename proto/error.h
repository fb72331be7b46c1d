/* SPDX-License-Identifier: Apache-2.0
 *
 * Error codes and the error record that every layer passes up: the one header of proto/ that all
 * layers may include. Nothing here allocates, logs, or keeps state.
 */
#ifndef KWK_PROTO_ERROR_H
#define KWK_PROTO_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define KWK_API __attribute__((visibility("default")))

enum {
    KWK_OK = 0,
#define KWK_ERR(num, name, text) KWK_##name = -(num),
#include "proto/errors.inc"
#undef KWK_ERR
};

/** What went wrong. `msg` is UTF-8, one line, NUL-terminated, never longer than the array. */
typedef struct kwk_error {
    int code; // KWK_OK or a negative KWK_E…
    char msg[252];
} kwk_error;

/**
 * Write code and message into *err, where the error happens; callers above only pass it on.
 *
 * @param err   may be NULL
 * @param code  a negative KWK_E…
 * @param fmt   printf format: one line, lower case, with the value that was wrong
 *
 * @return code, so that a function can end with `return kwk_fail(…)`
 */
KWK_API int kwk_fail(kwk_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/** "EINVAL" for KWK_EINVAL, "OK" for 0, "E?" for a number outside the list. Static string. */
KWK_API const char *kwk_error_name(int code);

/** The general text of a code ("invalid argument"). Static string. */
KWK_API const char *kwk_error_text(int code);

#ifdef __cplusplus
}
#endif

#endif
