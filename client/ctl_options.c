/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl: options and their values.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl.h"

int ctl_usage(ctl *x, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "kwkctl %s: ", x->command);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; see kwkctl %s --help\n", x->command);
    return CTL_USAGE;
}

int ctl_option(ctl *x, int argc, char **argv, const char *shorts, const struct option *longs)
{
    char all[64];

    snprintf(all, sizeof all, "a:h%s", shorts);
    for (;;) {
        const int c = getopt_long(argc, argv, all, longs, NULL);

        switch (c) {
        case 'a':
            x->address = optarg;
            break;
        case 'J':
            x->json = 1;
            break;
        case 'h':
            fputs(x->help, stdout);
            x->exit_code = CTL_OK;
            return 0;
        case '?': // getopt has said what is wrong
            fprintf(stderr, "kwkctl: see kwkctl %s --help\n", x->command);
            x->exit_code = CTL_USAGE;
            return 0;
        default:
            return c;
        }
    }
}

int ctl_int(ctl *x, const char *option, const char *text, long long least, long long most,
            long long *value)
{
    char *end;

    errno = 0;
    *value = strtoll(text, &end, 10);
    if (end == text || *end || errno || *value < least || *value > most)
        return ctl_usage(x, "%s '%s' is no number from %lld to %lld", option, text, least, most);
    return 0;
}

int ctl_uint64(ctl *x, const char *option, const char *text, uint64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno) // strtoull takes "-1" too
        return ctl_usage(x, "%s '%s' is no number from 0 to 2^64-1", option, text);
    return 0;
}

int ctl_float(ctl *x, const char *option, const char *text, float *value)
{
    char *end;

    *value = strtof(text, &end);
    if (end == text || *end || !isfinite(*value))
        return ctl_usage(x, "%s '%s' is no number", option, text);
    return 0;
}

int ctl_ids(ctl *x, const char *option, const char *text, int32_t **ids, int *n)
{
    static const char separators[] = ", \t\r\n";
    int32_t *list = NULL;
    int count = 0, capacity = 0;
    const char *p = text + strspn(text, separators);

    while (*p) {
        char *end;
        long v;

        errno = 0;
        v = strtol(p, &end, 10);
        if (end == p || !(*end == 0 || strchr(separators, *end)) || errno || v < INT32_MIN ||
            v > INT32_MAX) {
            free(list);
            return ctl_usage(x, "%s: '%.*s' is no token id", option,
                             (int)strcspn(p, separators) > 40 ? 40 : (int)strcspn(p, separators),
                             p);
        }
        if (count == KWK_PROMPT_MAX) {
            free(list);
            return ctl_usage(x, "%s: more than %d ids", option, KWK_PROMPT_MAX);
        }
        if (count == capacity) {
            int32_t *more;
            capacity = capacity ? 2 * capacity : 256;
            more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more) {
                free(list);
                return ctl_usage(x, "%s: out of memory", option);
            }
            list = more;
        }
        list[count++] = (int32_t)v;
        p = end + strspn(end, separators);
    }
    free(*ids);
    *ids = list;
    *n = count;
    return 0;
}
