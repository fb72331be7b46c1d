/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting and ending a real kwkerd (daemon_process.h). The program is $KWK_BIN_DIR/kwkerd.
 */
#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/unix_socket.h"
#include "tests/support/check.h"

/* The end of the daemon's log. */
static void print_log(const daemon_process *d)
{
    char text[16384] = "";
    FILE *f = fopen(d->log, "re");

    if (!f)
        return;
    if (fseek(f, -(long)sizeof text + 1, SEEK_END) < 0)
        rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    print_message("log of kwkerd:\n%s\n", text);
}

static void fail_with_log(const daemon_process *d, const char *what)
{
    print_log(d);
    fail_msg("%s", what);
}

static int door_is_open(const daemon_process *d)
{
    char path[96];
    int fd;

    snprintf(path, sizeof path, "%s/door.sock", d->dir);
    fd = kwk_unix_connect(path, 5 /* SOCK_SEQPACKET */, 1000, NULL);
    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

void daemon_restart(daemon_process *d, const char *const *args)
{
    const char *argv[32] = {"kwkerd", "--runtime-dir", d->dir};
    const int64_t end = kwk_now_ms() + 20000;
    char program[4096];
    int n = 3, status;

    snprintf(program, sizeof program, "%s/kwkerd", getenv("KWK_BIN_DIR"));
    while (*args)
        argv[n++] = *args++;
    d->pid = fork();
    if (d->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // no daemon outlives a test that failed
        const int log = open(d->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(log, 1);
        dup2(log, 2);
        execv(program, (char **)argv);
        _exit(99);
    }
    while (!door_is_open(d)) {
        if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
            d->pid = 0;
            fail_with_log(d, "kwkerd ended at once");
        }
        if (kwk_now_ms() > end)
            fail_with_log(d, "kwkerd opened no door");
        usleep(5000);
    }
}

void daemon_start(daemon_process *d, const char *const *args)
{
    memset(d, 0, sizeof *d);
    strcpy(d->dir, "/tmp/kwk-e2e-XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    snprintf(d->log, sizeof d->log, "%s/log", d->dir);
    daemon_restart(d, args);
}

void daemon_kill(daemon_process *d)
{
    if (!d->pid)
        return;
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    d->pid = 0;
}

int daemon_stop(daemon_process *d)
{
    char command[128];
    int status = 0;

    if (d->pid) {
        kill(d->pid, SIGTERM);
        waitpid(d->pid, &status, 0);
        d->pid = 0;
        if (status)
            print_log(d); // the caller will fail on the status: say why
    }
    snprintf(command, sizeof command, "rm -rf '%s'", d->dir);
    if (system(command))
        print_message("could not remove %s\n", d->dir);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
