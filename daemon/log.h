/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's log: the only code of kwkerd that prints while it runs. One line per event: a name
 * and key=value fields. Never prompts, never generated text. Any thread.
 */
#ifndef KWK_DAEMON_LOG_H
#define KWK_DAEMON_LOG_H

/* syslog's numbers, as the journal's <n> prefixes want them. */
typedef enum kwkd_level {
    KWKD_ERROR = 3,
    KWKD_WARNING = 4,
    KWKD_NOTICE = 5,
    KWKD_INFO = 6,
    KWKD_DEBUG = 7,
} kwkd_level;

/** Log to fd, events up to `level`. When JOURNAL_STREAM names fd, lines begin with <priority>, else
 *  with the time. Before the first call nothing is logged. */
void kwkd_log_open(int fd, kwkd_level level);
void kwkd_log_level(kwkd_level level);

/** "error", "warning", "notice", "info", "debug" → level, or -1. */
int kwkd_log_level_named(const char *name);

/**
 * Log one event.
 *
 * @param event   what happened, a constant: "session opened"
 * @param fields  printf format of the fields: "uid=%u client=%s". Knows %s %d %i %u %x with l, ll,
 * z, and %.Nf. A %s value is quoted and escaped when it is not a plain word, so no value can forge
 * a field or a line. NULL is written as -.
 */
void kwkd_log(kwkd_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

#endif
