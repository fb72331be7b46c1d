/* SPDX-License-Identifier: Apache-2.0
 *
 * kwkctl load, unload, pin.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl.h"

static int done(ctl *x)
{
    if (x->json)
        puts("{\"ok\":true}");
    return CTL_OK;
}

/* On a terminal the percentage; Ctrl-C stops waiting. */
static int show_progress(void *arg, double fraction)
{
    const ctl *x = arg;

    if (!x->json && isatty(STDERR_FILENO))
        fprintf(stderr, "\rloading %3.0f %%%s", fraction * 100, fraction >= 1 ? "\n" : "");
    return ctl_interrupted;
}

int ctl_load(ctl *x, int argc, char **argv)
{
    enum { HAND_OVER = 1000, PRECISION, MIX_BITS, CTX, PIN, TIMEOUT };
    static const struct option longs[] = {
        {"hand-over", no_argument, 0, HAND_OVER}, {"precision", required_argument, 0, PRECISION},
        {"mix-bits", required_argument, 0, MIX_BITS}, {"ctx", required_argument, 0, CTX},
        {"pin", no_argument, 0, PIN}, {"timeout", required_argument, 0, TIMEOUT},
        CTL_COMMON_OPTIONS};
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;
    int c, code = 0, hand_over = 0;
    long long v = 0;
    kwk_error err;

    while (code == 0 && (c = ctl_option(x, argc, argv, "", longs)) != -1) {
        switch (c) {
        case 0:
            return x->exit_code;
        case HAND_OVER:
            hand_over = 1;
            break;
        case PRECISION:
            l.precision = optarg;
            break;
        case MIX_BITS:
            code = ctl_int(x, "--mix-bits", optarg, 0, 32, &v);
            l.mix_bits = (int)v;
            break;
        case CTX:
            code = ctl_int(x, "--ctx", optarg, 1, KWK_NEW_TOKENS_MAX, &v);
            l.max_ctx = (int)v;
            break;
        case PIN:
            l.pin = 1;
            break;
        case TIMEOUT:
            code = ctl_int(x, "--timeout", optarg, 1, 1000000, &v);
            l.timeout_ms = (int)v * 1000;
            break;
        }
    }
    if (code)
        return code;
    if (argc - optind != 2)
        return ctl_usage(x, "NAME and PATH expected, %d arguments given", argc - optind);
    l.name = argv[optind];
    l.progress = show_progress;
    l.progress_arg = x;
    if (hand_over) {
        l.fd = open(argv[optind + 1], O_RDONLY | O_CLOEXEC);
        if (l.fd < 0) {
            kwk_fail(&err, KWK_EIO, "'%s': %s", argv[optind + 1], strerror(errno));
            code = ctl_error(x, &err);
            goto out;
        }
    } else {
        l.path = argv[optind + 1];
    }
    ctl_catch_signals();
    code = ctl_connect(x, 0);
    if (code)
        goto out;
    if (kwk_client_load_model(x->client, &l, &err) == KWK_OK) {
        code = done(x);
    } else {
        code = ctl_error(x, &err);
        if (err.code == KWK_ECANCELED && ctl_interrupted)
            code = CTL_INTERRUPTED;
        if (err.code == KWK_EPERM && !hand_over && !x->json)
            fprintf(stderr, "kwkctl: --hand-over loads a .kwk file from anywhere\n");
    }
out:
    if (l.fd >= 0)
        close(l.fd);
    return code;
}

int ctl_unload(ctl *x, int argc, char **argv)
{
    static const struct option longs[] = {CTL_COMMON_OPTIONS};
    kwk_error err;
    int code;

    if (ctl_option(x, argc, argv, "", longs) == 0)
        return x->exit_code;
    if (argc - optind != 1)
        return ctl_usage(x, "NAME expected, %d arguments given", argc - optind);
    code = ctl_connect(x, 0);
    if (code)
        return code;
    if (kwk_client_unload(x->client, argv[optind], &err) < 0)
        return ctl_error(x, &err);
    return done(x);
}

int ctl_pin(ctl *x, int argc, char **argv)
{
    static const struct option longs[] = {{"off", no_argument, 0, 'O'}, CTL_COMMON_OPTIONS};
    kwk_error err;
    int c, code, pin = 1;

    while ((c = ctl_option(x, argc, argv, "", longs)) != -1) {
        if (c == 0)
            return x->exit_code;
        pin = 0;
    }
    if (argc - optind != 1)
        return ctl_usage(x, "NAME expected, %d arguments given", argc - optind);
    code = ctl_connect(x, 0);
    if (code)
        return code;
    if (kwk_client_pin(x->client, argv[optind], pin, &err) < 0)
        return ctl_error(x, &err);
    return done(x);
}
