/* SPDX-License-Identifier: Apache-2.0
 *
 * A real kwkerd as a child process of a test, with its runtime directory under /tmp.
 */
#ifndef KWK_TESTS_SUPPORT_DAEMON_PROCESS_H
#define KWK_TESTS_SUPPORT_DAEMON_PROCESS_H

#include <sys/types.h>

typedef struct daemon_process {
    pid_t pid; // 0: not running
    char dir[64];
    char log[80]; // what it wrote to standard error
} daemon_process;

/** Start kwkerd with more arguments (NULL-terminated) and wait until its door is there. Fails the test
 *  with its log otherwise. */
void daemon_start(daemon_process *d, const char *const *args);
/** The same again in the same directory. */
void daemon_restart(daemon_process *d, const char *const *args);
/** kill -9, and wait for its end. */
void daemon_kill(daemon_process *d);
/** SIGTERM: its exit code. Removes the directory. */
int daemon_stop(daemon_process *d);

#endif
