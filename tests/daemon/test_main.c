/* SPDX-License-Identifier: Apache-2.0
 *
 * The program: options, exit codes, signals, systemd's protocol. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/sockets.h"

static dut t; // for its directories
static char output[8192];
static int notify_fd;

static int setup(void **state)
{
    const struct timeval patience = {.tv_sec = 5};
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    dut_init(&t);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/notify", t.dir);
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    setsockopt(notify_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(bind(notify_fd, (struct sockaddr *)&at, sizeof at), 0);
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    return 0;
}

static int teardown(void **state)
{
    close(notify_fd);
    unsetenv("NOTIFY_SOCKET");
    dut_fini(&t);
    return 0;
}

/* Start with these arguments (NULL-terminated); its output goes to a pipe. */
static pid_t start(int *out, const char *const *args)
{
    const char *argv[16] = {"kwkerd"};
    char path[512];
    int fds[2];
    pid_t pid;

    snprintf(path, sizeof path, "%s/kwkerd", getenv("KWK_BIN_DIR"));
    for (int i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        execv(path, (char *const *)argv);
        _exit(127);
    }
    close(fds[1]);
    *out = fds[0];
    return pid;
}

static int end(pid_t pid, int out) // exit status; everything it wrote is in output
{
    size_t n = 0;
    ssize_t got;
    int status;

    while (n < sizeof output - 1 && (got = read(out, output + n, sizeof output - 1 - n)) > 0)
        n += (size_t)got;
    output[n] = 0;
    close(out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int run(const char *const *args)
{
    int out;
    const pid_t pid = start(&out, args);

    return end(pid, out);
}

#define ARGS(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* The next notification that is not a status line. */
static void expect_notify(const char *text)
{
    char got[512];
    ssize_t n;

    do {
        n = recv(notify_fd, got, sizeof got - 1, 0);
        assert_true(n > 0);
        got[n] = 0;
    } while (!strncmp(got, "STATUS=", 7));
    if (strncmp(got, text, strlen(text)))
        fail_msg("'%s' came, not '%s'", got, text);
}

static void help_and_version_go_to_standard_output(void **state)
{
    assert_int_equal(run(ARGS("--help")), 0);
    assert_non_null(strstr(output, "--runtime-dir"));
    assert_non_null(strstr(output, "--check-config"));
    assert_int_equal(run(ARGS("--version")), 0);
    assert_string_equal(output, "kwkerd " KWK_VERSION "\n");
}

static void wrong_usage_is_64(void **state)
{
    assert_int_equal(run(ARGS("--nonsense")), 64);
    assert_int_equal(run(ARGS("file")), 64);
    assert_int_equal(run(ARGS("--model")), 64);
}

static void a_wrong_configuration_is_78_with_its_line(void **state)
{
    FILE *f = fopen(t.conf, "w");

    fputs("{\n \"queue\": 1,\n \"bad\": 2\n}", f);
    fclose(f);
    assert_int_equal(run(ARGS("--config", t.conf, "--check-config")), 78);
    assert_non_null(strstr(output, ":3: unknown key 'bad'"));
    assert_int_equal(run(ARGS("--config", t.conf, "--runtime-dir", t.run)), 78);
    assert_int_equal(run(ARGS("--config", "/nonexistent")), 78);
    assert_int_equal(run(ARGS("--model", "nothing", "--check-config")), 78);
    f = fopen(t.conf, "w");
    fputs("{\"models\": {\"m\": {\"path\": \"/m\"}}}", f);
    fclose(f);
    assert_int_equal(run(ARGS("--config", t.conf, "--check-config")), 0);
    assert_non_null(strstr(output, "valid: 1 models"));
}

static void systemd_hears_ready_and_stopping(void **state)
{
    const char *args[] = {"--runtime-dir", t.run, NULL};
    int out;
    const pid_t pid = start(&out, args);

    expect_notify("READY=1");
    assert_int_equal(kill(pid, SIGTERM), 0);
    expect_notify("STOPPING=1");
    assert_int_equal(end(pid, out), 0);
    assert_non_null(strstr(output, "notice ended"));
    assert_int_not_equal(access(t.door, F_OK), 0);
}

static void the_watchdog_is_fed(void **state)
{
    int out;
    pid_t pid;

    setenv("WATCHDOG_USEC", "1000000", 1);
    pid = start(&out, ARGS("--runtime-dir", t.run));
    expect_notify("READY=1");
    expect_notify("WATCHDOG=1");
    expect_notify("WATCHDOG=1");
    unsetenv("WATCHDOG_USEC");
    kill(pid, SIGTERM);
    assert_int_equal(end(pid, out), 0);
}

static void hangup_reads_the_configuration_again(void **state)
{
    int out;
    pid_t pid;

    FILE *f = fopen(t.conf, "w");
    fputs("{}", f);
    fclose(f);
    pid = start(&out, ARGS("--runtime-dir", t.run, "--config", t.conf));
    expect_notify("READY=1");
    f = fopen(t.conf, "w");
    fputs("{\"bad\": 1}", f);
    fclose(f);
    kill(pid, SIGHUP);
    expect_notify("RELOADING=1\nMONOTONIC_USEC=");
    expect_notify("READY=1");
    kill(pid, SIGTERM);
    assert_int_equal(end(pid, out), 0);
    assert_non_null(strstr(output, "configuration not read"));
    assert_non_null(strstr(output, "unknown key 'bad'"));
}

static void a_second_one_is_75(void **state)
{
    const char *args[] = {"--runtime-dir", t.run, NULL};
    int out;
    const pid_t pid = start(&out, args);

    expect_notify("READY=1");
    assert_int_equal(run(args), 75);
    assert_non_null(strstr(output, "another kwkerd owns"));
    kill(pid, SIGTERM);
    assert_int_equal(end(pid, out), 0);
}

static void killed_it_starts_again_at_once(void **state)
{
    const char *args[] = {"--runtime-dir", t.run, NULL};
    int out;
    pid_t pid;

    for (int i = 0; i < 20; i++) {
        pid = start(&out, args);
        expect_notify("READY=1");
        assert_int_equal(access(t.door, F_OK), 0);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(end(pid, out), 1000 + SIGKILL);
    }
}

static void two_signals_end_it_at_once(void **state)
{
    const char *args[] = {"--runtime-dir", t.run, NULL};
    int out;
    const pid_t pid = start(&out, args);

    expect_notify("READY=1");
    kill(pid, SIGINT);
    kill(pid, SIGTERM);
    assert_int_equal(end(pid, out), 0);
}

static void a_door_passed_by_systemd_is_used(void **state)
{
    const kwk_hello_req hello = {.version = KWK_PROTO_VERSION};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char path[512];
    pid_t pid;
    int fd, client, status;

    snprintf(path, sizeof path, "%s/kwkerd", getenv("KWK_BIN_DIR"));
    snprintf(at.sun_path, sizeof at.sun_path, "%s/outside", t.dir);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 5), 0);
    client = connect_to(at.sun_path, SOCK_SEQPACKET);
    pid = fork();
    if (pid == 0) {
        char own[16];
        snprintf(own, sizeof own, "%d", getpid());
        setenv("LISTEN_PID", own, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("LISTEN_FDNAMES", "door", 1);
        if (fd != 3)
            dup2(fd, 3);
        else
            fcntl(fd, F_SETFD, 0);
        execl(path, "kwkerd", "--runtime-dir", t.run, (char *)NULL);
        _exit(127);
    }
    close(fd);
    assert_int_equal(say_hello(client, &hello, NULL, NULL, NULL), KWK_OK);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(access(at.sun_path, F_OK), 0);
    close(client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(help_and_version_go_to_standard_output),
        TEST(wrong_usage_is_64),
        TEST(a_wrong_configuration_is_78_with_its_line),
        TEST(systemd_hears_ready_and_stopping),
        TEST(the_watchdog_is_fed),
        TEST(hangup_reads_the_configuration_again),
        TEST(a_second_one_is_75),
        TEST(killed_it_starts_again_at_once),
        TEST(two_signals_end_it_at_once),
        TEST(a_door_passed_by_systemd_is_used),
    };

    if (!getenv("KWK_BIN_DIR")) {
        print_error("KWK_BIN_DIR is not set: run by ctest\n");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
