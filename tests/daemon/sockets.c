/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons and connections of tests; see sockets.h.
 */
#include "tests/daemon/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

void dut_init(dut *t)
{
    memset(t, 0, sizeof *t);
    strcpy(t->dir, "/tmp/kwkd-sock-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    snprintf(t->run, sizeof t->run, "%s/run", t->dir);
    snprintf(t->door, sizeof t->door, "%s/door.sock", t->run);
    snprintf(t->control, sizeof t->control, "%s/kwkerd.sock", t->run);
    snprintf(t->model, sizeof t->model, "%s/m", t->dir);
    snprintf(t->conf, sizeof t->conf, "%s/conf", t->dir);
    write_file(t->model, "weights");
}

void dut_fini(dut *t)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", t->dir);
    assert_int_equal(system(command), 0);
}

static void *run(void *arg)
{
    kwkd_run(arg);
    return NULL;
}

void dut_start(dut *t, const char *conf_json)
{
    kwkd_options o = KWKD_OPTIONS_INIT;
    kwk_error err = {0};

    o.runtime_dir = t->run;
    if (conf_json) {
        write_file(t->conf, conf_json);
        o.config = t->conf;
    }
    if (kwkd_new(&t->d, &o, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(pthread_create(&t->thread, NULL, run, t->d), 0);
    t->running = 1;
}

void dut_stop(dut *t)
{
    if (!t->running)
        return;
    kwkd_stop(t->d);
    pthread_join(t->thread, NULL);
    kwkd_free(t->d);
    t->running = 0;
}

void dut_wait_ready(dut *t)
{
    int ready = 0;

    for (int i = 0; !ready && i < 5000; i++) {
        kwkd_store_counts(t->d->store, &ready, NULL, NULL);
        usleep(1000);
    }
    assert_true(ready);
}

int connect_to(const char *path, int type)
{
    const struct timeval patience = {.tv_sec = 5};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    strcpy(to.sun_path, path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

ssize_t read_packet(int fd, void *buf, size_t size)
{
    return recv(fd, buf, size, 0);
}

int say_hello(int fd, const kwk_hello_req *hello, kwk_tree **tree, int fds[3], int *n_fds)
{
    uint8_t packet[4096];
    char space[CMSG_SPACE(3 * sizeof(int))];
    struct iovec iov = {packet, sizeof packet};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    kwk_buf b = {0};
    kwk_error err = {0};
    kwk_tree *t = NULL;
    int got[3], n = 0, retry_ms, rc;
    ssize_t bytes;

    assert_int_equal(kwk_hello_req_encode(&b, hello, &err), KWK_OK);
    (void)send(fd, b.data, b.size, MSG_NOSIGNAL); // a refusal may be faster
    kwk_buf_fini(&b);
    bytes = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    if (bytes <= 0)
        return KWK_ECLOSED;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(got, CMSG_DATA(c), (size_t)n * sizeof(int));
    }
    for (int i = 0; i < n; i++) {
        if (fds)
            fds[i] = got[i];
        else
            close(got[i]);
    }
    if (n_fds)
        *n_fds = n;
    assert_int_equal(kwk_tree_parse(&t, packet, (size_t)bytes, &err), KWK_OK);
    rc = kwk_tree_status(t, &retry_ms, &err);
    if (tree && rc == KWK_OK)
        *tree = t;
    else
        kwk_tree_free(t);
    return rc;
}

/* NNG 1.5 loses connections that hang up during the handshake (fixed in 1.9.0). */
KWK_API const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libnng";
}
