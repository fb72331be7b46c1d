/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/notify.h"
#include "tests/daemon/harness.h"

static int bound(const char *name, size_t n, int type)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, type, 0);

    memcpy(at.sun_path, name, n);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
        0);
    return fd;
}

static void expect(int fd, const char *text)
{
    char got[256];
    const ssize_t n = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);

    assert_true(n >= 0);
    got[n] = 0;
    assert_string_equal(got, text);
}

static void without_systemd_nothing_is_sent(void **state)
{
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(kwkd_notify("READY=1"), 0);
}

static void a_datagram_reaches_a_path_and_an_abstract_socket(void **state)
{
    char path[64], name[64];
    int fd;

    snprintf(path, sizeof path, "/tmp/kwkd-notify-%d", getpid());
    fd = bound(path, strlen(path) + 1, SOCK_DGRAM);
    setenv("NOTIFY_SOCKET", path, 1);
    assert_int_equal(kwkd_notify("STATUS=%d models", 3), 1);
    expect(fd, "STATUS=3 models");
    close(fd);
    unlink(path);
    assert_int_equal(kwkd_notify("READY=1"), KWK_EIO);

    name[0] = 0;
    snprintf(name + 1, sizeof name - 1, "kwkd-notify-%d", getpid());
    fd = bound(name, 1 + strlen(name + 1), SOCK_DGRAM);
    snprintf(path, sizeof path, "@%s", name + 1);
    setenv("NOTIFY_SOCKET", path, 1);
    assert_int_equal(kwkd_notify("READY=1"), 1);
    expect(fd, "READY=1");
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

static void a_reader_that_does_not_read_does_not_block_us(void **state)
{
    char path[64];
    int fd, rc = 1;

    snprintf(path, sizeof path, "/tmp/kwkd-notify-%d", getpid());
    fd = bound(path, strlen(path) + 1, SOCK_DGRAM);
    setenv("NOTIFY_SOCKET", path, 1);
    for (int i = 0; rc == 1 && i < 100000; i++)
        rc = kwkd_notify("WATCHDOG=1");
    assert_int_equal(rc, KWK_EIO);
    close(fd);
    unlink(path);
    unsetenv("NOTIFY_SOCKET");
}

static void the_watchdog_is_ours_only_with_our_pid(void **state)
{
    char pid[16];

    unsetenv("WATCHDOG_USEC");
    assert_int_equal(kwkd_notify_watchdog_us(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    assert_int_equal(kwkd_notify_watchdog_us(), 30000000);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(kwkd_notify_watchdog_us(), 0);
    snprintf(pid, sizeof pid, "%d", getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(kwkd_notify_watchdog_us(), 30000000);
    setenv("WATCHDOG_USEC", "soon", 1);
    assert_int_equal(kwkd_notify_watchdog_us(), 0);
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static void a_passed_socket_is_found_by_name_and_checked(void **state)
{
    char path[64], pid[16];
    kwk_error err;
    int fd;

    snprintf(pid, sizeof pid, "%d", getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_FDNAMES", "other:door", 1);
    snprintf(path, sizeof path, "/tmp/kwkd-notify-%d", getpid());
    fd = bound(path, strlen(path) + 1, SOCK_SEQPACKET);
    assert_int_equal(dup2(fd, 4), 4); // descriptors begin at 3: the second is 4
    if (fd != 4)
        close(fd);
    assert_int_equal(kwkd_listen_fd("door", &err), KWK_EINVAL); // not listening yet
    assert_int_equal(listen(4, 1), 0);
    assert_int_equal(kwkd_listen_fd("door", &err), 4);
    assert_int_equal(kwkd_listen_fd("window", &err), -1);
    setenv("LISTEN_PID", "1", 1);
    assert_int_equal(kwkd_listen_fd("door", &err), -1);
    close(4);
    unlink(path);
    unsetenv("LISTEN_PID");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_systemd_nothing_is_sent),
        cmocka_unit_test(a_datagram_reaches_a_path_and_an_abstract_socket),
        cmocka_unit_test(a_reader_that_does_not_read_does_not_block_us),
        cmocka_unit_test(the_watchdog_is_ours_only_with_our_pid),
        cmocka_unit_test(a_passed_socket_is_found_by_name_and_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
