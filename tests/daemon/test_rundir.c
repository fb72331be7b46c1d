/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/rundir.h"
#include "tests/daemon/harness.h"

static char base[64];
static kwk_error err;

static int setup(void **state)
{
    strcpy(base, "/tmp/kwkd-run-XXXXXX");
    return mkdtemp(base) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command);
}

static const char *in_base(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", base, name);
    return path;
}

static int bind_at(const char *path, int type)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, type, 0);

    strcpy(at.sun_path, path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void the_default_follows_systemd_then_the_user_then_run(void **state)
{
    char buf[96];

    setenv("RUNTIME_DIRECTORY", "/run/a:/run/b", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/5", 1);
    assert_int_equal(kwkd_rundir_default(buf, sizeof buf, &err), KWK_OK);
    assert_string_equal(buf, "/run/a");
    unsetenv("RUNTIME_DIRECTORY");
    assert_int_equal(kwkd_rundir_default(buf, sizeof buf, &err), KWK_OK);
    assert_string_equal(buf, "/run/user/5/kwker");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(kwkd_rundir_default(buf, sizeof buf, &err), KWK_OK);
    assert_string_equal(buf, "/run/kwker");
    assert_int_equal(kwkd_rundir_default(buf, 5, &err), KWK_EINVAL);
}

static void a_missing_directory_is_made_private(void **state)
{
    struct stat st;
    kwkd_rundir r;

    assert_int_equal(kwkd_rundir_open(&r, in_base("new"), NULL, &err), KWK_OK);
    assert_int_equal(stat(in_base("new"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_string_equal(r.door, in_base("new/door.sock"));
    assert_string_equal(r.control, in_base("new/kwkerd.sock"));
    kwkd_rundir_close(&r);
}

static void only_one_may_own_it(void **state)
{
    kwkd_rundir a, b;

    assert_int_equal(kwkd_rundir_open(&a, base, NULL, &err), KWK_OK);
    assert_int_equal(kwkd_rundir_open(&b, base, NULL, &err), KWK_EBUSY);
    assert_non_null(strstr(err.msg, base));
    kwkd_rundir_close(&a);
    assert_int_equal(kwkd_rundir_open(&b, base, NULL, &err), KWK_OK);
    kwkd_rundir_close(&b);
}

static void a_killed_owner_leaves_no_lock(void **state)
{
    const pid_t pid = fork();
    kwkd_rundir r;

    if (pid == 0) {
        if (kwkd_rundir_open(&r, base, NULL, NULL) < 0)
            _exit(1);
        pause();
    }
    for (int i = 0; access(in_base("kwkerd.lock"), F_OK) && i < 1000; i++)
        usleep(1000);
    kill(pid, SIGKILL); // not waited for: the next one has to be patient for a moment
    assert_int_equal(kwkd_rundir_open(&r, base, NULL, &err), KWK_OK);
    kwkd_rundir_close(&r);
    waitpid(pid, NULL, 0);
}

static void a_directory_that_others_may_write_is_refused(void **state)
{
    kwkd_rundir r;

    chmod(base, 0777);
    assert_int_equal(kwkd_rundir_open(&r, base, NULL, &err), KWK_EPERM);
    chmod(base, 01777);
    assert_int_equal(kwkd_rundir_open(&r, base, NULL, &err), KWK_OK);
    kwkd_rundir_close(&r);
}

static void bad_paths_and_groups_are_refused(void **state)
{
    char path[200];
    kwkd_rundir r;

    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = 0;
    assert_int_equal(kwkd_rundir_open(&r, path, NULL, &err), KWK_EINVAL);
    assert_int_equal(kwkd_rundir_open(&r, "relative", NULL, &err), KWK_EINVAL);
    assert_int_equal(kwkd_rundir_open(&r, base, "no-such-group-here", &err), KWK_EINVAL);
    assert_int_equal(kwkd_rundir_open(&r, in_base("a/b/c"), NULL, &err), KWK_EIO);
    close(open(in_base("file"), O_CREAT | O_WRONLY, 0600));
    assert_int_equal(kwkd_rundir_open(&r, in_base("file"), NULL, &err), KWK_EIO);
}

static void a_socket_left_behind_is_cleared(void **state)
{
    const char *path = in_base("s");
    const int types[] = {SOCK_SEQPACKET, SOCK_STREAM};

    assert_int_equal(kwkd_socket_clear(path, &err), KWK_OK); // nothing there
    for (int i = 0; i < 2; i++) {
        close(bind_at(path, types[i])); // as kill -9 leaves it
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(kwkd_socket_clear(path, &err), KWK_OK);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

static void a_live_socket_or_a_file_is_left_alone(void **state)
{
    const char *path = in_base("s");
    const int types[] = {SOCK_SEQPACKET, SOCK_STREAM};

    for (int i = 0; i < 2; i++) {
        const int fd = bind_at(path, types[i]);
        listen(fd, 1);
        assert_int_equal(kwkd_socket_clear(path, &err), KWK_EBUSY);
        assert_int_equal(access(path, F_OK), 0);
        close(fd);
        unlink(path);
    }
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(kwkd_socket_clear(path, &err), KWK_EPERM);
    assert_int_equal(access(path, F_OK), 0);
}

static void a_socket_is_opened_to_its_group(void **state)
{
    const char *path = in_base("s");
    const kwkd_rundir r = {.group = getegid()};
    struct stat st;

    close(bind_at(path, SOCK_STREAM));
    assert_int_equal(kwkd_socket_open_to_group(&r, path, &err), KWK_OK);
    stat(path, &st);
    assert_int_equal(st.st_mode & 0777, 0660);
    assert_int_equal(st.st_gid, getegid());
    assert_int_equal(kwkd_socket_open_to_group(&r, in_base("none"), &err), KWK_EPERM);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_default_follows_systemd_then_the_user_then_run),
        TEST(a_missing_directory_is_made_private),
        TEST(only_one_may_own_it),
        TEST(a_killed_owner_leaves_no_lock),
        TEST(a_directory_that_others_may_write_is_refused),
        TEST(bad_paths_and_groups_are_refused),
        TEST(a_socket_left_behind_is_cleared),
        TEST(a_live_socket_or_a_file_is_left_alone),
        TEST(a_socket_is_opened_to_its_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
