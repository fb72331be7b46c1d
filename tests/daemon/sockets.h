/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests that talk to a daemon through its sockets: a temporary runtime directory, a whole
 * daemon over the fake engine on a thread, connections to its door. Failures go through cmocka.
 */
#ifndef KWK_TESTS_DAEMON_SOCKETS_H
#define KWK_TESTS_DAEMON_SOCKETS_H

#include <sys/types.h>

#include "daemon/kwkerd.h"
#include "tests/daemon/harness.h"

typedef struct daemon_under_test {
    char dir[64]; // temporary; holds "run" and the model file "m"
    char run[80]; // runtime directory
    char door[96], control[96], model[80], conf[80];
    kwkd *d;
    pthread_t thread;
    int running;
} dut;

/* Directories and names only. */
void dut_init(dut *t);
void dut_fini(dut *t);

/* Start with this configuration (NULL: none) and run on a thread; stop and wait. */
void dut_start(dut *t, const char *conf_json);
void dut_stop(dut *t);

/* Wait until a model is loaded. */
void dut_wait_ready(dut *t);

int connect_to(const char *path, int type); // -1 and errno, or a descriptor with 5 s timeouts

/* Say hello at the door; the reply's code, its tree, and descriptors (closed but for `fds` !=
 * NULL). KWK_ECLOSED: hung up without a word. */
int say_hello(int fd, const kwk_hello_req *hello, kwk_tree **tree, int fds[3], int *n_fds);

/* A packet from the door: bytes, 0 at its end. */
ssize_t read_packet(int fd, void *buf, size_t size);

#endif
