/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl: the command line of kwkerd. Picks the command; the commands are in ctl_*.c.
 */
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"

#define COMMON \
    "  -a, --address DIR  the daemon's runtime directory ($KWKER_DAEMON, else\n" \
    "                     $XDG_RUNTIME_DIR/kwker, else /run/kwker)\n"              \
    "      --json         print JSON\n"                                            \
    "  -h, --help         this text\n"

static const struct {
    const char *name;
    int (*run)(ctl *x, int argc, char **argv);
    const char *summary, *help;
} commands[] = {
    {"status", ctl_status, "whether the daemon lives and what it does",
     "usage: kwkctl status [options]\n\n" COMMON},
    {"models", ctl_models, "the models in memory",
     "usage: kwkctl models [options]\n\n" COMMON},
    {"load", ctl_load, "load a model",
     "usage: kwkctl load [options] NAME PATH\n\n"
     "PATH is a model directory, .gguf or .kwk file under the daemon's model directories.\n\n"
     "      --hand-over    open PATH here and hand it over: a .kwk file anywhere\n"
     "      --precision P  float32, f16, bf16, int8, int4 (default: the model's own)\n"
     "      --mix-bits N   bits of the tensors that int4 keeps finer\n"
     "      --ctx N        longest context (default: the model's)\n"
     "      --pin          never unload it to make room\n"
     "      --timeout S    seconds to wait (default 600)\n" COMMON},
    {"unload", ctl_unload, "unload a model",
     "usage: kwkctl unload [options] NAME\n\n" COMMON},
    {"pin", ctl_pin, "keep a model in memory",
     "usage: kwkctl pin [options] NAME\n\n"
     "      --off          allow to unload it again\n" COMMON},
    {"generate", ctl_generate, "generate tokens from token ids",
     "usage: kwkctl generate [options] --ids 1,2,3\n\n"
     "Prints token ids as they come (with --text their text), figures on standard error.\n"
     "With --json: one object per line, the last with \"finish_reason\".\n\n"
     "  -m, --model M               name (default: the only or default model)\n"
     "      --ids IDS               prompt: token ids, separated by commas or blanks\n"
     "      --ids-file F            the same from a file; -: standard input\n"
     "  -n, --max-new-tokens N      at most N tokens (default: to the context's end)\n"
     "      --min-new-tokens N      no end token before N tokens\n"
     "      --text                  text instead of ids\n"
     "      --sample                sample; implied by the options below\n"
     "      --temperature X --top-k N --top-p X --min-p X --seed N\n"
     "      --repetition-penalty X  (also without sampling)\n"
     "      --eos IDS               end tokens (default: the model's)\n"
     "      --ignore-eos            do not end at an end token\n"
     "      --logprobs N            N <= 12 alternatives for each token (with --json)\n"
     "      --tenant T              whose prefix cache and quota\n"
     "  -q, --quiet                 no figures\n" COMMON},
    {"metrics", ctl_metrics, "counters in Prometheus text format",
     "usage: kwkctl metrics [options]\n\n" COMMON},
    {"top", ctl_top, "live view of status, models and rates",
     "usage: kwkctl top [options]\n\n"
     "q or Ctrl-C ends it.\n\n"
     "  -d, --delay S      seconds between two looks (default 1)\n"
     "  -n, --count N      end after N looks\n" COMMON},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *f)
{
    fprintf(f, "usage: kwkctl [options] COMMAND [options]\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\n" COMMON
               "      --version      version\n\n"
               "kwkctl COMMAND --help explains a command.\n"
               "Exit codes: 0 done, 1 refused or failed, 2 usage, 3 no daemon, 130 interrupted.\n");
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"version", no_argument, 0, 'V'}, CTL_COMMON_OPTIONS};
    ctl x = {.command = ""};
    int c, code;

    // '+': options after the command are the command's
    while ((c = getopt_long(argc, argv, "+a:hV", longs, NULL)) != -1) {
        switch (c) {
        case 'a':
            x.address = optarg;
            break;
        case 'J':
            x.json = 1;
            break;
        case 'V':
            printf("kwkctl %s\n", kwk_client_version());
            return CTL_OK;
        case 'h':
            print_help(stdout);
            return CTL_OK;
        default:
            fprintf(stderr, "kwkctl: see kwkctl --help\n");
            return CTL_USAGE;
        }
    }
    if (optind == argc) {
        print_help(stderr);
        return CTL_USAGE;
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[optind], commands[i].name))
            continue;
        x.command = commands[i].name;
        x.help = commands[i].help;
        argc -= optind;
        argv += optind;
        optind = 0; // glibc: begin anew
        code = commands[i].run(&x, argc, argv);
        kwk_client_close(x.client);
        if (fflush(stdout) && code == CTL_OK) {
            perror("kwkctl: standard output");
            code = CTL_FAILED;
        }
        return code;
    }
    fprintf(stderr, "kwkctl: no command '%s'; see kwkctl --help\n", argv[optind]);
    return CTL_USAGE;
}
