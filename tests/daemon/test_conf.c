/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/conf.h"
#include "daemon/log.h"
#include "tests/daemon/harness.h"

static kwkd_conf conf;
static kwk_error err;

static int load(const char *json, const kwkd_conf_input *more)
{
    char name[] = "/tmp/kwkd-conf-XXXXXX";
    const int fd = mkstemp(name);
    kwkd_conf_input in = more ? *more : (kwkd_conf_input){0};
    int rc;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, strlen(json)), strlen(json));
    close(fd);
    in.file = name;
    memset(&err, 0, sizeof err);
    rc = kwkd_conf_load(&conf, &in, &err);
    unlink(name);
    return rc;
}

/* Loading fails with this text somewhere in the message. */
static void refused(const char *json, const char *text)
{
    assert_int_equal(load(json, NULL), KWK_EINVAL);
    if (!strstr(err.msg, text))
        fail_msg("'%s' is not in '%s'", text, err.msg);
}

static void without_anything_there_are_defaults(void **state)
{
    const kwkd_conf_input in = {0};

    assert_int_equal(kwkd_conf_load(&conf, &in, &err), KWK_OK);
    assert_int_equal(conf.queue, 256);
    assert_int_equal(conf.slice, 128);
    assert_int_equal(conf.log_level, KWKD_INFO);
    assert_null(conf.runtime_dir);
    assert_int_equal(conf.n_models, 0);
    kwkd_conf_fini(&conf);
}

static void every_kind_of_key_is_read(void **state)
{
    assert_int_equal(
        load("{\"queue\": 7, \"kv_bytes\": \"1.5GiB\", \"model_bytes\": 4096,\n"
             " \"log_level\": \"debug\", \"group\": \"staff\",\n"
             " \"model_dirs\": [\"/a\", \"/b\"], \"default_model\": \"m\",\n"
             " \"models\": {\"m\": {\"path\": \"/a/m\", \"precision\": \"int8\",\n"
             "   \"ctx\": 512, \"mix_bits\": 8, \"pin\": true}, \"n\": {\"path\": \"/n\"}}}",
             NULL),
        KWK_OK);
    assert_int_equal(conf.queue, 7);
    assert_true(conf.kv_bytes == 3ll << 29);
    assert_int_equal(conf.model_bytes, 4096);
    assert_int_equal(conf.log_level, KWKD_DEBUG);
    assert_string_equal(conf.group, "staff");
    assert_int_equal(conf.n_model_dirs, 2);
    assert_string_equal(conf.model_dirs[1], "/b");
    assert_int_equal(conf.n_models, 2);
    assert_string_equal(conf.models[0].precision, "int8");
    assert_int_equal(conf.models[0].max_ctx, 512);
    assert_int_equal(conf.models[0].mix_bits, 8);
    assert_int_equal(conf.models[0].pin, 1);
    assert_string_equal(conf.models[1].path, "/n");
    kwkd_conf_fini(&conf);
}

static void an_unknown_key_is_named_with_its_line(void **state)
{
    refused("{\n  \"queue\": 1,\n  \"quue\": 2\n}", ":3: unknown key 'quue'");
    refused("{\"models\": {\n\"m\": {\n\"path\": \"/m\",\n\"prec\": 1}}}",
            ":4: model 'm': key 'prec'");
    // a key-like text inside a string does not shift the count
    refused("{\"group\": \"\\\"x\\\": \",\n\"bad\": 1}", ":2: unknown key 'bad'");
}

static void a_repeated_key_is_refused(void **state)
{
    refused("{\"queue\": 1,\n\"queue\": 2}", ":2: key 'queue' is given twice");
}

static void values_outside_their_range_are_refused(void **state)
{
    refused("{\"queue\": 0}", "queue is 0");
    refused("{\"queue\": 1.5}", "queue is 1.5");
    refused("{\"queue\": 1e999}", "queue");
    refused("{\"queue\": true}", "queue");
    refused("{\"queue\": \"3MiB\"}", "queue is '3MiB', not a number");
    refused("{\"kv_bytes\": \"3 apples\"}", "not a size");
    refused("{\"kv_bytes\": -1}", "kv_bytes is -1");
    refused("{\"kv_bytes\": 1e19}", "kv_bytes");
    refused("{\"log_level\": \"loud\"}", "log_level");
    refused("{\"group\": 5}", "group must be a text");
    refused("{\"models\": {\"m\": {\"path\": \"relative\"}}}", "absolute path");
    refused("{\"models\": {\"m\": {}}}", "absolute path");
    refused("{\"models\": []}", "models must be an object");
    refused("{\"model_dirs\": [\"x\"]}", "not absolute");
    refused("{\"contexts\": 8, \"inline_requests\": 8}", "inline_requests");
}

static void broken_text_is_refused_with_its_line(void **state)
{
    refused("{\n\"queue\": 1,\n", "not JSON");
    refused("{\n\"queue\": }", ":2: not JSON");
    refused("[]", "not a JSON object");
    refused("{\"group\": \"a\\u0000b\"}", "\\u0000");
    refused("", "not JSON");
}

static void the_command_line_beats_environment_beats_file(void **state)
{
    const kwkd_conf_input in = {.runtime_dir = "/from/cli"};

    setenv("KWKER_QUEUE", "11", 1);
    setenv("KWKER_RUNTIME_DIR", "/from/env", 1);
    assert_int_equal(load("{\"queue\": 5, \"slice\": 6, \"runtime_dir\": \"/from/file\"}", &in),
                     KWK_OK);
    assert_int_equal(conf.queue, 11);
    assert_int_equal(conf.slice, 6);
    assert_string_equal(conf.runtime_dir, "/from/cli");
    kwkd_conf_fini(&conf);
    setenv("KWKER_QUEUE", "many", 1);
    refused("{}", "KWKER_QUEUE");
    unsetenv("KWKER_QUEUE");
    unsetenv("KWKER_RUNTIME_DIR");
}

static void model_arguments_have_options_and_replace_the_file(void **state)
{
    const char *models[] = {"m=/x,precision=int4,ctx=99,pin,mix_bits=6", "n=/y"};
    const kwkd_conf_input in = {.models = models, .n_models = 2};

    assert_int_equal(load("{\"models\": {\"m\": {\"path\": \"/old\"}}}", &in), KWK_OK);
    assert_int_equal(conf.n_models, 2);
    assert_string_equal(conf.models[0].path, "/x");
    assert_string_equal(conf.models[0].precision, "int4");
    assert_int_equal(conf.models[0].max_ctx, 99);
    assert_int_equal(conf.models[0].mix_bits, 6);
    assert_int_equal(conf.models[0].pin, 1);
    kwkd_conf_fini(&conf);
}

static void bad_model_arguments_are_refused(void **state)
{
    const char *bad[] = {"m",          "=/x", "m=", "m=/x,ctx=", "m=/x,ctx=0", "m=/x,speed=fast",
                         "m=/x,ctx=1x"};

    for (size_t i = 0; i < COUNT(bad); i++) {
        const kwkd_conf_input in = {.models = &bad[i], .n_models = 1};
        assert_int_equal(kwkd_conf_load(&conf, &in, &err), KWK_EINVAL);
    }
}

static void a_missing_file_is_an_error(void **state)
{
    const kwkd_conf_input in = {.file = "/nonexistent/kwkerd.json"};

    assert_int_equal(kwkd_conf_load(&conf, &in, &err), KWK_ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_anything_there_are_defaults),
        cmocka_unit_test(every_kind_of_key_is_read),
        cmocka_unit_test(an_unknown_key_is_named_with_its_line),
        cmocka_unit_test(a_repeated_key_is_refused),
        cmocka_unit_test(values_outside_their_range_are_refused),
        cmocka_unit_test(broken_text_is_refused_with_its_line),
        cmocka_unit_test(the_command_line_beats_environment_beats_file),
        cmocka_unit_test(model_arguments_have_options_and_replace_the_file),
        cmocka_unit_test(bad_model_arguments_are_refused),
        cmocka_unit_test(a_missing_file_is_an_error),
    };

    unsetenv("KWKER_CONFIG");
    unsetenv("KWKER_THREADS");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
