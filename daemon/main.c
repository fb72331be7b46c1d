/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkerd: options, signals, systemd's protocol, around kwkerd.h. One thread.
 *
 * SIGTERM, SIGINT: end, running generations may finish; again: end at once. SIGHUP: read the
 * configuration again.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <unistd.h>

#include "daemon/conf.h"
#include "daemon/kwkerd.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/work.h"

enum { EXIT_USAGE = 64, EXIT_BUSY = 75, EXIT_PERMISSION = 77, EXIT_CONFIG = 78 };
enum { MODELS = 64, END_MS = 3000, AT_ONCE_MS = 200 };

static const char help[] =
    "Usage: kwkerd [options]\n"
    "Keep language models in memory and run them for the processes of this machine.\n"
    "\n"
    "  --config FILE         JSON configuration (default: $KWKER_CONFIG, else none)\n"
    "  --runtime-dir DIR     where the sockets lie (default: $RUNTIME_DIRECTORY, else\n"
    "                        $XDG_RUNTIME_DIR/kwker, else /run/kwker)\n"
    "  --model NAME=PATH[,precision=P][,mix_bits=B][,ctx=N][,pin]\n"
    "                        load a model: a Hugging Face directory, .gguf or .kwk file;\n"
    "                        may be repeated\n"
    "  --check-config        read the configuration, say whether it is right, and exit\n"
    "  --help, --version\n"
    "\n"
    "Options come before the environment (KWKER_<SETTING>), the environment before the\n"
    "file, the file before the defaults. SIGTERM ends the daemon after running\n"
    "generations, a second one at once; SIGHUP reads the configuration again.\n"
    "\n"
    "Exit status: 0 ended as told; 1 error; 64 usage; 75 another kwkerd owns the\n"
    "directory; 77 not permitted; 78 configuration.\n";

typedef struct arguments {
    const char *models[MODELS];
    kwkd_options daemon;
    int check;
} arguments;

/* -1: go on; else exit with this status. */
static int parse(int argc, char **argv, arguments *a)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'},
        {"runtime-dir", required_argument, NULL, 'd'},
        {"model", required_argument, NULL, 'm'},
        {"check-config", no_argument, NULL, 'C'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    int o;

    *a = (arguments){.daemon = KWKD_OPTIONS_INIT};
    a->daemon.models = a->models;
    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (o) {
        case 'c':
            a->daemon.config = optarg;
            break;
        case 'd':
            a->daemon.runtime_dir = optarg;
            break;
        case 'm':
            if (a->daemon.n_models == MODELS) {
                fprintf(stderr, "kwkerd: more than %d --model options\n", MODELS);
                return EXIT_USAGE;
            }
            a->models[a->daemon.n_models++] = optarg;
            break;
        case 'C':
            a->check = 1;
            break;
        case 'h':
            fputs(help, stdout);
            return EXIT_SUCCESS;
        case 'V':
            puts("kwkerd " KWK_VERSION);
            return EXIT_SUCCESS;
        default:
            fputs("Try 'kwkerd --help'.\n", stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "kwkerd: unexpected argument '%s'\n", argv[optind]);
        return EXIT_USAGE;
    }
    return -1;
}

static int check_config(const arguments *a)
{
    const kwkd_conf_input in = {.file = a->daemon.config,
                                .runtime_dir = a->daemon.runtime_dir,
                                .models = a->models,
                                .n_models = a->daemon.n_models};
    kwkd_conf conf;
    kwk_error err = {0};

    if (kwkd_conf_load(&conf, &in, &err) < 0) {
        fprintf(stderr, "kwkerd: %s\n", err.msg);
        return EXIT_CONFIG;
    }
    printf("configuration is valid: %d models, %d model directories\n", conf.n_models,
           conf.n_model_dirs);
    kwkd_conf_fini(&conf);
    return EXIT_SUCCESS;
}

static int exit_status(int rc)
{
    switch (rc) {
    case KWK_EINVAL:
    case KWK_ENOENT:
        return EXIT_CONFIG;
    case KWK_EBUSY:
        return EXIT_BUSY;
    case KWK_EPERM:
        return EXIT_PERMISSION;
    }
    return EXIT_FAILURE;
}

/* Every session takes two descriptors, for a moment five. */
static void raise_descriptors(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < 65536 ? r.rlim_max : 65536;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int block_signals(void)
{
    sigset_t set;

    signal(SIGPIPE, SIG_IGN); // the log's reader may go away
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL); // before any thread starts: they inherit it
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void quit(int sig)
{
    _exit(EXIT_SUCCESS); // as told
}

/* The last part of the end waits for a step, joins threads and closes NNG's sockets. Should that
 * take longer, or another signal come, go without it: the next kwkerd clears the sockets away. */
static void end_within(int ms)
{
    const struct itimerval t = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    sigset_t set;

    signal(SIGALRM, quit);
    signal(SIGTERM, quit);
    signal(SIGINT, quit);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    setitimer(ITIMER_REAL, &t, NULL);
}

static void reload(kwkd *d)
{
    kwk_error err = {0};

    kwkd_notify("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)kwkd_now_us());
    if (kwkd_reload(d, &err) < 0)
        kwkd_log(KWKD_ERROR, "configuration not read", "message=%s", err.msg);
    kwkd_notify("READY=1");
}

/* Pending signals. @return how many of them say "end" */
static int take_signals(kwkd *d, int signals)
{
    struct signalfd_siginfo info;
    int n = 0;

    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            reload(d);
        } else {
            if (n++ == 0)
                kwkd_notify("STOPPING=1");
            kwkd_stop(d);
        }
    }
    return n;
}

/* Feed the watchdog while the engine makes progress, and keep the status line fresh. */
static void tell_systemd(kwkd *d, uint64_t watchdog_us, uint64_t *fed_us, char status[256])
{
    const uint64_t now = kwkd_now_us();
    char line[256];

    if (watchdog_us && now - *fed_us > watchdog_us / 3 && kwkd_healthy(d)) {
        kwkd_notify("WATCHDOG=1");
        *fed_us = now;
    }
    kwkd_describe(d, line, sizeof line);
    if (strcmp(line, status)) {
        kwkd_notify("STATUS=%s", line);
        strcpy(status, line);
    }
}

static void serve(kwkd *d, int signals)
{
    struct pollfd fds[] = {{.fd = kwkd_fd(d), .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    const uint64_t watchdog_us = kwkd_notify_watchdog_us();
    uint64_t fed_us = kwkd_now_us();
    char status[256] = "";
    int go_on = 1, ends = 0;

    while (go_on) {
        (void)poll(fds, 2, -1);
        ends += take_signals(d, signals);
        if (ends > 1) // told twice
            end_within(AT_ONCE_MS);
        go_on = kwkd_dispatch(d);
        if (go_on)
            tell_systemd(d, watchdog_us, &fed_us, status);
    }
}

int main(int argc, char **argv)
{
    arguments a;
    kwkd *d = NULL;
    kwk_error err = {0};
    int rc = parse(argc, argv, &a), signals;

    if (rc >= 0)
        return rc;
    if (a.check)
        return check_config(&a);
    raise_descriptors();
    signals = block_signals();
    a.daemon.log_fd = STDERR_FILENO;
    rc = kwkd_listen_fd("door", &err);
    if (rc >= 0)
        a.daemon.door_fd = rc;
    if (rc < -1 || (rc = kwkd_new(&d, &a.daemon, &err)) < 0) {
        fprintf(stderr, "kwkerd: %s\n", err.msg);
        return exit_status(rc);
    }
    kwkd_notify("READY=1");
    serve(d, signals);
    end_within(END_MS);
    kwkd_free(d);
    return EXIT_SUCCESS;
}
