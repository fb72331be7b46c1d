/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl as a program, against the stand-in daemon: kwkctl.c, ctl_options.c, ctl_output.c,
 * ctl_status.c, ctl_models.c, ctl_generate.c, ctl_top.c. Output, errors, exit codes.
 */
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/fake_daemon.h"

/* What a run of kwkctl wrote and how it ended. */
static char out[1 << 16], errors[1 << 14];

static size_t read_all(int fd, char *buf, size_t size)
{
    size_t n = 0;
    ssize_t k;

    while ((k = read(fd, buf + n, size - 1 - n)) > 0)
        n += (size_t)k;
    buf[n] = 0;
    close(fd);
    return n;
}

static pid_t start_kwkctl(const char *const *args, const char *input, int *out_fd, int *err_fd)
{
    const char *argv[32] = {"kwkctl"};
    char program[4096];
    int in[2], o[2], e[2], n = 1;
    pid_t pid;

    snprintf(program, sizeof program, "%s/kwkctl", getenv("KWK_BIN_DIR"));
    while (*args)
        argv[n++] = *args++;
    assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(o, O_CLOEXEC) | pipe2(e, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        dup2(in[0], 0);
        dup2(o[1], 1);
        dup2(e[1], 2);
        execv(program, (char **)argv);
        _exit(99);
    }
    close(in[0]);
    close(o[1]);
    close(e[1]);
    if (input)
        assert_int_equal(write(in[1], input, strlen(input)), strlen(input));
    close(in[1]);
    *out_fd = o[0];
    *err_fd = e[0];
    return pid;
}

static int finish(pid_t pid, int out_fd, int err_fd)
{
    int status;

    read_all(out_fd, out, sizeof out);
    read_all(err_fd, errors, sizeof errors);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status))
        fail_msg("kwkctl died of signal %d: %s", WTERMSIG(status), errors);
    return WEXITSTATUS(status);
}

static int run_with(const char *const *args, const char *input)
{
    int o, e;
    const pid_t pid = start_kwkctl(args, input, &o, &e);

    return finish(pid, o, e);
}

#define RUN(...) run_with((const char *const[]){__VA_ARGS__, NULL}, NULL)

#define SAYS(text, part)                                             \
    do {                                                             \
        if (!strstr(text, part))                                     \
            fail_msg("'%s' is not in: %s", part, text);              \
    } while (0)

static fake_daemon *d;

static int start(void **state)
{
    d = fake_start();
    setenv("KWKER_DAEMON", d->dir, 1);
    return 0;
}

static int stop(void **state)
{
    fake_stop(d);
    unsetenv("KWKER_DAEMON");
    return 0;
}

static void help_and_version_go_to_standard_output(void **state)
{
    static const char *const commands[] = {"status", "models", "load", "unload", "pin", "generate",
                                           "metrics", "top"};

    assert_int_equal(RUN("--help"), 0);
    SAYS(out, "usage: kwkctl");
    assert_string_equal(errors, "");
    for (size_t i = 0; i < CHECK_COUNT(commands); i++) {
        SAYS(out, commands[i]);
    }
    for (size_t i = 0; i < CHECK_COUNT(commands); i++) {
        char usage[64];
        assert_int_equal(RUN(commands[i], "--help"), 0);
        snprintf(usage, sizeof usage, "usage: kwkctl %s", commands[i]);
        SAYS(out, usage);
    }
    assert_int_equal(RUN("--version"), 0);
    SAYS(out, "kwkctl " KWK_VERSION "\n");
}

static void usage_errors_exit_with_2_and_say_where_help_is(void **state)
{
    static const char *const cases[][6] = {
        {NULL},
        {"nonsense"},
        {"--nonsense"},
        {"status", "--nonsense"},
        {"status", "extra"},
        {"load", "m"},
        {"load", "m", "p", "--ctx", "0"},
        {"load", "m", "p", "--ctx", "12x"},
        {"unload"},
        {"pin", "a", "b"},
        {"generate"},
        {"generate", "--ids", ""},
        {"generate", "--ids", "1,x"},
        {"generate", "--ids", "1,2147483648"},
        {"generate", "--ids", "1", "extra"},
        {"generate", "--ids", "1", "-n", "-2"},
        {"generate", "--ids", "1", "--seed", "-1"},
        {"generate", "--ids", "1", "--temperature", "nan"},
        {"generate", "--ids", "1", "--logprobs", "13"},
        {"top", "--delay", "0"},
        {"top", "--count", "0"},
    };

    for (size_t i = 0; i < CHECK_COUNT(cases); i++) {
        assert_int_equal(run_with(cases[i], NULL), 2);
        SAYS(errors, "kwkctl");
        SAYS(errors, "--help");
        assert_string_equal(out, "");
    }
    assert_int_equal(d->n_hellos, 0); // all of it without a daemon
}

static void without_a_daemon_the_exit_code_is_3(void **state)
{
    assert_int_equal(RUN("status", "--address", "/nowhere"), 3);
    assert_string_equal(errors, "kwkctl: no kwkerd at '/nowhere/door.sock'\n");
    assert_int_equal(RUN("-a", "/nowhere", "--json", "models"), 3);
    assert_string_equal(out, "{\"error\":\"ENOENT\",\"code\":-4,\"message\":"
                             "\"no kwkerd at '/nowhere/door.sock'\"}\n");
    assert_string_equal(errors, "");
}

static void status_models_and_metrics_print_for_people_and_as_json(void **state)
{
    assert_int_equal(RUN("status"), 0);
    SAYS(out, "fake/1, pid ");
    SAYS(out, "up 1m 5s, ready, ref on 2 threads\n");
    SAYS(out, "1 sessions, 1 running, 0 queued, 0 models\n");
    assert_int_equal(RUN("status", "--json"), 0);
    SAYS(out, "{\"server\":\"fake/1\"");
    assert_int_equal(RUN("models"), 0);
    assert_string_equal(out, "no models\n");
    assert_int_equal(RUN("load", "mine", "/models/m"), 0);
    assert_int_equal(RUN("models"), 0);
    SAYS(out, "NAME  STATE  TYPE  PRECISION  SIZE  CTX  KV FREE  PIN\n");
    SAYS(out, "mine  ready  -     -          -     -    -        no\n");
    assert_int_equal(RUN("models", "--json"), 0);
    SAYS(out, "{\"models\":[{\"name\":\"mine\",\"state\":\"ready\"");
    assert_int_equal(RUN("metrics"), 0);
    SAYS(out, "# TYPE kwk_tokens_total counter\nkwk_tokens_total 5\n");
    assert_int_equal(RUN("metrics", "--json"), 0);
    SAYS(out, "{\"text\":\"# TYPE");
}

static void models_are_loaded_pinned_and_unloaded(void **state)
{
    char path[128];
    FILE *f;

    assert_int_equal(RUN("load", "m", "/models/m", "--precision", "int4", "--ctx", "512", "--pin"), 0);
    assert_int_equal(RUN("models", "--json"), 0);
    SAYS(out, "\"pin\":true");
    assert_int_equal(RUN("pin", "--off", "m"), 0);
    assert_int_equal(RUN("models", "--json"), 0);
    SAYS(out, "\"pin\":false");
    assert_int_equal(RUN("pin", "m", "--json"), 0);
    assert_string_equal(out, "{\"ok\":true}\n");
    assert_int_equal(RUN("unload", "m"), 0);
    assert_int_equal(RUN("unload", "m"), 1);
    assert_string_equal(errors, "kwkctl: model 'm' is not loaded\n");

    snprintf(path, sizeof path, "%s/some.kwk", d->dir);
    f = fopen(path, "we");
    fputs("K", f);
    fclose(f);
    assert_int_equal(RUN("load", "--hand-over", "m", path), 0);
    assert_int_equal(d->n_packs, 1);
    unlink(path);
    assert_int_equal(RUN("load", "--hand-over", "m", path), 1);
    SAYS(errors, "No such file");
    d->load_fails = 1;
    assert_int_equal(RUN("load", "n", "/models/n"), 1);
    assert_string_equal(errors, "kwkctl: tensor 3 is damaged\n");
}

static void generate_streams_ids_text_or_json(void **state)
{
    assert_int_equal(RUN("generate", "-m", "count", "--ids", "5, 6 7", "-n", "4"), 0);
    assert_string_equal(out, "5 6 7 8\n");
    SAYS(errors, "4 tokens (length)");
    assert_int_equal(RUN("generate", "--ids", "5", "-n", "3", "--text", "-q"), 0);
    assert_string_equal(out, "5 6 7 \n");
    assert_string_equal(errors, "");
    assert_int_equal(
        RUN("generate", "--ids", "5", "-n", "2", "--json", "--text", "--logprobs", "1"), 0);
    assert_string_equal(
        out, "{\"token\":5,\"text\":\"5 \",\"logprob\":-0.5,\"top\":[[5,-0.5]]}\n"
             "{\"token\":6,\"text\":\"6 \",\"logprob\":-0.5,\"top\":[[6,-0.5]]}\n"
             "{\"finish_reason\":\"length\",\"prompt_tokens\":1,\"new_tokens\":2,\"cached_tokens\":0,"
             "\"queue_us\":10,\"prefill_us\":20,\"decode_us\":30,\"seed\":4711}\n");
    assert_int_equal(
        RUN("generate", "--ids", "5", "-n", "1", "--json", "--seed", "18446744073709551615"), 0);
    SAYS(out, "{\"token\":5}\n");
    SAYS(out, "\"seed\":18446744073709551615}\n");
    assert_int_equal(RUN("generate", "--ids", "5", "-n", "0"), 0);
    assert_string_equal(out, "\n");
}

static void ids_come_from_a_file_or_standard_input(void **state)
{
    static const char *const from_stdin[] = {"generate", "--ids-file", "-", "-n", "1", NULL};
    static const char *const binary[] = {"generate", "--ids-file", "/proc/self/exe", NULL};
    const int32_t *prompt;

    assert_int_equal(run_with(from_stdin, "1\n2,\t3\n4\n"), 0);
    assert_int_equal(fake_last_prompt(d, &prompt), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(prompt[i], i + 1);
    assert_int_equal(run_with(from_stdin, "1 2 three"), 2);
    SAYS(errors, "'three' is no token id");
    assert_int_equal(run_with(binary, NULL), 2);
    SAYS(errors, "is no text");
    assert_int_equal(RUN("generate", "--ids-file", "/nowhere"), 1);
    SAYS(errors, "'/nowhere': No such file");
}

static void errors_of_the_daemon_exit_with_1(void **state)
{
    assert_int_equal(RUN("generate", "-m", "absent", "--ids", "1"), 1);
    assert_string_equal(errors, "kwkctl: model 'absent' is not loaded\n");
    assert_int_equal(RUN("generate", "--ids", "1", "--top-p", "2"), 1);
    SAYS(errors, "top_p: 2 is outside 0 to 1");
    d->error = KWK_EBUSY;
    assert_int_equal(RUN("status", "--json"), 1);
    SAYS(out, "{\"error\":\"EBUSY\",\"code\":-6,"
              "\"message\":\"as the test wants it; try again in 70 ms\"}");
}

static void an_interrupt_cancels_and_exits_with_130(void **state)
{
    static const char *const args[] = {"generate", "--ids", "1", NULL};
    int o, e;
    const pid_t pid = start_kwkctl(args, NULL, &o, &e);
    char first[2];

    assert_int_equal(read(o, first, 1), 1); // it runs
    kill(pid, SIGINT);
    assert_int_equal(finish(pid, o, e), 130);
    SAYS(errors, "(cancel)");
    assert_int_equal(d->n_cancels, 1);
}

static void a_daemon_that_dies_ends_generate_with_3(void **state)
{
    static const char *const args[] = {"generate", "--ids", "1", NULL};
    int o, e;
    const pid_t pid = start_kwkctl(args, NULL, &o, &e);
    char first[2];

    assert_int_equal(read(o, first, 1), 1);
    fake_kill(d);
    assert_int_equal(finish(pid, o, e), 3);
    SAYS(errors, "kwkctl: kwkerd closed the session\n");
}

static void records_with_control_characters_do_not_reach_a_table(void **state)
{
    assert_int_equal(RUN("load", "evil\033[2Jname", "/models/m"), 0);
    assert_int_equal(RUN("models"), 0);
    SAYS(out, "evil?[2Jname");
    assert_null(strchr(out, 033));
}

static void top_prints_as_many_views_as_asked_for(void **state)
{
    const char *p = out;
    int n = 0;

    assert_int_equal(RUN("load", "mine", "/models/m"), 0);
    assert_int_equal(RUN("top", "-n", "3", "-d", "0.05"), 0);
    for (; (p = strstr(p, "fake/1, pid")) != NULL; p++)
        n++;
    assert_int_equal(n, 3);
    SAYS(out, "mine");
    SAYS(out, "COUNTER           VALUE  PER SECOND\n");
    SAYS(out, "kwk_tokens_total  5      -\n");  // nothing to compare with yet
    SAYS(out, "kwk_tokens_total  5      0.0\n");
    assert_null(strchr(out, 033)); // no terminal, no escape sequences
    assert_int_equal(RUN("top", "--json", "-n", "2", "-d", "0.05"), 0);
    SAYS(out, "{\"status\":{\"server\"");
}

static void top_ends_on_an_interrupt(void **state)
{
    static const char *const args[] = {"top", NULL};
    int o, e;
    const pid_t pid = start_kwkctl(args, NULL, &o, &e);
    char first[2];

    assert_int_equal(read(o, first, 1), 1);
    kill(pid, SIGINT);
    assert_int_equal(finish(pid, o, e), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(help_and_version_go_to_standard_output),
        TEST(usage_errors_exit_with_2_and_say_where_help_is),
        TEST(without_a_daemon_the_exit_code_is_3),
        TEST(status_models_and_metrics_print_for_people_and_as_json),
        TEST(models_are_loaded_pinned_and_unloaded),
        TEST(generate_streams_ids_text_or_json),
        TEST(ids_come_from_a_file_or_standard_input),
        TEST(errors_of_the_daemon_exit_with_1),
        TEST(an_interrupt_cancels_and_exits_with_130),
        TEST(a_daemon_that_dies_ends_generate_with_3),
        TEST(records_with_control_characters_do_not_reach_a_table),
        TEST(top_prints_as_many_views_as_asked_for),
        TEST(top_ends_on_an_interrupt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
