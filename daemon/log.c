/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats a log line into a fixed buffer and writes it with one write(2). The fields' format is
 * walked here instead of by vsnprintf so that every string value is escaped. Any thread; the state
 * is set before threads start, but for the level.
 */
#include "daemon/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 1024 };

static int log_fd = -1;
static int log_journal;
static atomic_int log_max = KWKD_INFO;

typedef struct line {
    char text[LINE];
    size_t n;
} line;

static const char *const level_names[] = {
    [KWKD_ERROR] = "error", [KWKD_WARNING] = "warning", [KWKD_NOTICE] = "notice",
    [KWKD_INFO] = "info",   [KWKD_DEBUG] = "debug",
};

int kwkd_log_level_named(const char *name)
{
    for (int i = KWKD_ERROR; i <= KWKD_DEBUG; i++)
        if (!strcmp(name, level_names[i]))
            return i;
    return -1;
}

/* sd_daemon(3): JOURNAL_STREAM is "device:inode" of the stream that leads to the journal. */
static int is_journal(int fd)
{
    const char *env = getenv("JOURNAL_STREAM");
    struct stat st;
    unsigned long long dev, ino;

    return env && sscanf(env, "%llu:%llu", &dev, &ino) == 2 && fstat(fd, &st) == 0 &&
           dev == (unsigned long long)st.st_dev && ino == (unsigned long long)st.st_ino;
}

void kwkd_log_open(int fd, kwkd_level level)
{
    log_fd = fd;
    log_journal = fd >= 0 && is_journal(fd);
    kwkd_log_level(level);
}

void kwkd_log_level(kwkd_level level)
{
    atomic_store_explicit(&log_max, (int)level, memory_order_relaxed);
}

static void put_char(line *l, char c) // one byte stays free for the newline
{
    if (l->n + 1 < sizeof l->text)
        l->text[l->n++] = c;
}

static void put_text(line *l, const char *s)
{
    while (*s)
        put_char(l, *s++);
}

/* Letters, digits and the punctuation of paths and versions need no quotes. */
static int is_plain(const char *s)
{
    if (!*s)
        return 0;
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c <= ' ' || c >= 127 || c == '"' || c == '\\' || c == '=')
            return 0;
    }
    return 1;
}

static void put_value(line *l, const char *s)
{
    static const char hex[] = "0123456789abcdef";

    if (!s) {
        put_char(l, '-');
        return;
    }
    if (is_plain(s)) {
        put_text(l, s);
        return;
    }
    put_char(l, '"');
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            put_char(l, '\\');
            put_char(l, (char)c);
        } else if (c < ' ' || c >= 127) { // also UTF-8: a terminal may read C1 controls out of it
            put_text(l, "\\x");
            put_char(l, hex[c >> 4]);
            put_char(l, hex[c & 15]);
        } else {
            put_char(l, (char)c);
        }
    }
    put_char(l, '"');
}

/* One conversion at *f (after the %); returns the place behind it. */
static const char *put_conversion(line *l, const char *f, va_list *args)
{
    char spec[16] = "%", number[64];
    size_t n = 1;
    int longs = 0;

    while (*f && strchr("0123456789.-+ #lz", *f) && n < sizeof spec - 2) {
        longs += *f == 'l' || *f == 'z';
        spec[n++] = *f++;
    }
    spec[n++] = *f;
    spec[n] = 0;
    number[0] = 0;
    switch (*f) {
    case 's':
        put_value(l, va_arg(*args, const char *));
        return f + 1;
    case 'd':
    case 'i':
    case 'u':
    case 'x': // long, long long and size_t have the same size on the systems this runs on
        if (longs)
            snprintf(number, sizeof number, spec, va_arg(*args, long));
        else
            snprintf(number, sizeof number, spec, va_arg(*args, int));
        break;
    case 'f':
    case 'g':
        snprintf(number, sizeof number, spec, va_arg(*args, double));
        break;
    case '%':
        put_char(l, '%');
        return f + 1;
    default: // a mistake in the format: stop before reading a wrong argument
        return f + strlen(f);
    }
    put_text(l, number);
    return f + 1;
}
_Static_assert(sizeof(long) == sizeof(long long) && sizeof(long) == sizeof(size_t), "LP64");

static void put_prefix(line *l, kwkd_level level)
{
    char head[64];

    if (log_journal) {
        snprintf(head, sizeof head, "<%d>", level);
    } else {
        struct timespec now;
        struct tm tm;
        char stamp[32];

        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
        snprintf(head, sizeof head, "%s.%03ldZ %s ", stamp, now.tv_nsec / 1000000,
                 level_names[level]);
    }
    put_text(l, head);
}

void kwkd_log(kwkd_level level, const char *event, const char *fields, ...)
{
    line l = {.n = 0};
    va_list args;

    if (log_fd < 0 || (int)level > atomic_load_explicit(&log_max, memory_order_relaxed))
        return;
    put_prefix(&l, level);
    put_text(&l, event);
    if (*fields)
        put_char(&l, ' ');
    va_start(args, fields);
    for (const char *f = fields; *f;) {
        if (*f == '%')
            f = put_conversion(&l, f + 1, &args);
        else
            put_char(&l, *f++);
    }
    va_end(args);
    l.text[l.n++] = '\n';
    if (write(log_fd, l.text, l.n) < 0) {
        // nowhere to tell
    }
}
