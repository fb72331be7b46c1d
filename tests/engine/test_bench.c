/* SPDX-License-Identifier: Apache-2.0
 *
 * kwk-bench (engine/bench.c, engine/bench_kernels.c) as a user runs it: its JSON has the fields
 * that others rely on, its table a line per test, and bad usage is named.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/check.h"
#include "tests/support/tiny_model.h"

static char output[1 << 20];

/* Run it with these arguments; standard output and error together. Returns the exit status. */
static int run(const char *format, const char *path)
{
    const char *bin = getenv("KWK_BIN_DIR");
    char arguments[1024], command[2048];
    FILE *p;

    snprintf(arguments, sizeof arguments, format, path);
    snprintf(command, sizeof command, "%s/kwk-bench %s 2>&1", bin ? bin : "build/bin", arguments);
    p = popen(command, "r");
    assert_non_null(p);
    output[fread(output, 1, sizeof output - 1, p)] = 0;
    const int status = pclose(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static double field(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item))
        fail_msg("no number '%s' in %s", name, output);
    return item->valuedouble;
}

static const char *text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsString(item))
        fail_msg("no text '%s' in %s", name, output);
    return item->valuestring;
}

static void json_has_the_promised_fields(void **state)
{
    static const char *const names[3] = {"pp20@d7", "tg5@d7", "tg5@b3@d7"};
    const tiny_options o = TINY_OPTIONS;
    char *dir = tiny_model_dir(&o);
    double weights = 0;

    assert_int_equal(run("-m %s -w int8 -p 20 -n 5 -b 3 -d 7 -t 2 -r 3 -o json", dir), 0);
    cJSON *list = cJSON_Parse(output);
    assert_true(cJSON_IsArray(list));
    assert_int_equal(cJSON_GetArraySize(list), 3);
    for (int i = 0; i < 3; i++) {
        const cJSON *x = cJSON_GetArrayItem(list, i);

        assert_string_equal(text(x, "test"), names[i]);
        assert_string_equal(text(x, "isa"), kwk_isa());
        assert_true(field(x, "avg_ts") > 0);
        assert_true(field(x, "stddev_ts") >= 0);
        assert_true(field(x, "n_threads") == 2);
        assert_true(field(x, "weight_bytes") > 0);
        assert_true(i == 0 || field(x, "weight_bytes") == weights);
        weights = field(x, "weight_bytes");
        /* layers, K and V, heads, dim, half precision; slots of all sequences */
        assert_true(field(x, "kv_bytes") ==
                    2 * 2 * 2 * 10 * 2 * (i == 2 ? 3 : 1) * (7 + (i ? 5 : 20)));
        assert_true(field(x, "gb_s") > 0);
    }
    cJSON_Delete(list);
    tiny_dir_free(dir);
}

static void the_table_has_a_line_per_test(void **state)
{
    const tiny_options o = TINY_OPTIONS;
    char *dir = tiny_model_dir(&o);

    assert_int_equal(run("-m %s -p 0 -n 4 -b 2 -r 1", dir), 0);
    assert_null(strstr(output, "| pp"));
    assert_non_null(strstr(output, "| tg4 |"));
    assert_non_null(strstr(output, "| tg4@b2 |"));
    assert_non_null(strstr(output, "| float32 |"));
    tiny_dir_free(dir);
}

static void mix_bits_reach_the_model(void **state)
{
    const tiny_options o = TINY_OPTIONS;
    char *dir = tiny_model_dir(&o);
    double bytes[3]; // default, 8, 6

    for (int i = 0; i < 3; i++) {
        static const char *const more[] = {"", "--mix-bits 8", "--mix-bits 6"};
        char format[96];

        snprintf(format, sizeof format, "-m %%s -w int4 %s -p 0 -n 2 -b 1 -r 1 -o json", more[i]);
        assert_int_equal(run(format, dir), 0);
        cJSON *list = cJSON_Parse(output);
        bytes[i] = field(cJSON_GetArrayItem(list, 0), "weight_bytes");
        cJSON_Delete(list);
    }
    assert_true(bytes[0] == bytes[1] && bytes[2] < bytes[1]);
    assert_int_equal(run("-m %s -w int4 --mix-bits 7", dir), 1);
    assert_non_null(strstr(output, "mix_bits 7 is not 0, 6 or 8"));
    tiny_dir_free(dir);
}

static void bad_usage_is_named(void **state)
{
    assert_int_equal(run("%s", "--help"), 0);
    assert_non_null(strstr(output, "usage: kwk-bench"));
    assert_int_equal(run("%s", "--version"), 0);
    assert_non_null(strstr(output, "kwk-bench " KWK_VERSION));
    assert_int_equal(run("%s", ""), 2);
    assert_string_equal(output,
                        "kwk-bench: -m MODEL is missing\nkwk-bench: see kwk-bench --help\n");
    assert_int_equal(run("%s", "--nonsense"), 2);
    assert_non_null(strstr(output, "--nonsense"));
    assert_int_equal(run("-m x -p %s", "-5"), 2);
    assert_non_null(strstr(output, "-p '-5' is not a number in 0..4096"));
    assert_int_equal(run("-m x -o %s", "xml"), 2);
    assert_int_equal(run("-m x %s", "y"), 2);
    assert_int_equal(run("-m %s", "/nonexistent/model"), 1);
    assert_non_null(strstr(output, "ENOENT"));
}

static void every_kernel_of_this_cpu_is_timed(void **state)
{
    int wanted = 0;

    assert_int_equal(run("%s", "--kernels -r 1 -o json"), 0);
    cJSON *list = cJSON_Parse(output), *item;
    assert_true(cJSON_IsArray(list));
#define KWK_KERNEL(slot, isa, need)                                                                \
    if ((kwk_cpu_flags() & (unsigned)(need)) == (need)) {                                          \
        int found = 0;                                                                             \
        cJSON_ArrayForEach(item, list) if (!strcmp(text(item, "kernel"), #slot) &&                 \
                                           !strcmp(text(item, "isa"), #isa)) found = 1;            \
        const int is_matmul = !strncmp(#slot, "gem", 3) || !strncmp(#slot, "small", 5);            \
        if (!found && !(is_matmul && !strcmp(#isa, "ref")))                                        \
            fail_msg("%s, %s is missing", #slot, #isa);                                            \
        wanted++;                                                                                  \
    }
#include "kernels/kernels.inc"
#undef KWK_KERNEL
    assert_true(wanted > 0);
    cJSON_ArrayForEach(item, list) assert_true(field(item, "gb_s") > 0 && field(item, "us") > 0);
    cJSON_Delete(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_the_promised_fields),
        cmocka_unit_test(the_table_has_a_line_per_test),
        cmocka_unit_test(mix_bits_reach_the_model),
        cmocka_unit_test(bad_usage_is_named),
        cmocka_unit_test(every_kernel_of_this_cpu_is_timed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
