/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/paths.h"
#include "tests/daemon/harness.h"

static char dir[64];
static kwkd_conf conf;
static kwk_error err;

static const char *path_of(const char *name)
{
    static char path[8][256];
    static int i;
    char *p = path[i++ % 8];

    snprintf(p, 256, "%s/%s", dir, name);
    return p;
}

static int setup(void **state)
{
    const kwkd_conf_input nothing = {0};

    assert_int_equal(kwkd_conf_load(&conf, &nothing, &err), KWK_OK);
    strcpy(dir, "/tmp/kwkd-paths-XXXXXX");
    assert_non_null(mkdtemp(dir));
    mkdir(path_of("models"), 0700);
    mkdir(path_of("models/sub"), 0700);
    mkdir(path_of("models2"), 0700);
    close(open(path_of("models/a"), O_CREAT | O_WRONLY, 0600));
    close(open(path_of("models2/x"), O_CREAT | O_WRONLY, 0600));
    close(open(path_of("secret"), O_CREAT | O_WRONLY, 0600));
    assert_int_equal(symlink(path_of("secret"), path_of("models/out")), 0);
    assert_int_equal(symlink("../a", path_of("models/sub/in")), 0);
    conf.model_dirs[conf.n_model_dirs++] = strdup(path_of("models/"));
    return 0;
}

static int teardown(void **state)
{
    char command[96];

    kwkd_conf_fini(&conf);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static int resolve(const char *path)
{
    char *real = NULL;
    const int rc = kwkd_path_resolve(&conf, path, &real, &err);

    free(real);
    return rc;
}

static void paths_below_a_model_directory_are_allowed(void **state)
{
    char *real = NULL;

    assert_int_equal(resolve(path_of("models/a")), KWK_OK);
    assert_int_equal(resolve(path_of("models/sub")), KWK_OK);
    assert_int_equal(kwkd_path_resolve(&conf, path_of("models/sub/in"), &real, &err), KWK_OK);
    assert_string_equal(real, path_of("models/a"));
    free(real);
    assert_int_equal(resolve(path_of("models/none")), KWK_ENOENT);
}

static void everything_else_is_not(void **state)
{
    const char *bad[] = {path_of("secret"),
                         path_of("models/../secret"),
                         path_of("models/sub/.."),
                         path_of("models/out"),
                         path_of("models"),
                         path_of("models2/x"),
                         "/etc/passwd",
                         "/nonexistent",
                         "relative",
                         "",
                         "/"};

    for (size_t i = 0; i < COUNT(bad); i++)
        if (resolve(bad[i]) != KWK_EPERM)
            fail_msg("'%s': %s", bad[i], err.msg);
}

static void a_model_directory_may_be_a_link(void **state)
{
    assert_int_equal(symlink(path_of("models"), path_of("alias")), 0);
    free(conf.model_dirs[0]);
    conf.model_dirs[0] = strdup(path_of("alias"));
    assert_int_equal(resolve(path_of("alias/a")), KWK_OK);  // by the link's name
    assert_int_equal(resolve(path_of("models/a")), KWK_OK); // by the place it leads to
    assert_int_equal(resolve(path_of("alias/out")), KWK_EPERM);
    assert_int_equal(resolve(path_of("secret")), KWK_EPERM);
}

static void a_configured_models_path_is_allowed_as_it_is(void **state)
{
    conf.models[0] = (kwkd_model_conf){.name = strdup("s"), .path = strdup(path_of("secret"))};
    conf.n_models = 1;
    assert_int_equal(resolve(path_of("secret")), KWK_OK);
    assert_int_equal(resolve(path_of("models/../secret")), KWK_EPERM);
}

static void descriptors_that_could_block_are_refused(void **state)
{
    const int memfd = memfd_create("pack", MFD_CLOEXEC);
    struct stat st;
    int fds[2], fd;

    assert_int_equal(kwkd_pack_check(memfd, &st, &err), KWK_OK);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(kwkd_pack_check(fds[0], &st, &err), KWK_EUNSUPPORTED);
    fd = open(dir, O_PATH);
    assert_int_equal(kwkd_pack_check(fd, &st, &err), KWK_EUNSUPPORTED);
    close(fd);
    fd = open("/dev/null", O_RDONLY);
    assert_int_equal(kwkd_pack_check(fd, &st, &err), KWK_EUNSUPPORTED);
    close(fd);
    fd = open(path_of("models/a"), O_WRONLY);
    assert_int_equal(kwkd_pack_check(fd, &st, &err), KWK_EUNSUPPORTED);
    close(fd);
    fd = open(path_of("models/a"), O_RDONLY);
    assert_int_equal(kwkd_pack_check(fd, &st, &err), KWK_OK);
    close(fd);
    assert_int_equal(kwkd_pack_check(-1, &st, &err), KWK_EIO);
    close(memfd);
    close(fds[0]);
    close(fds[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(paths_below_a_model_directory_are_allowed),
        TEST(everything_else_is_not),
        TEST(a_model_directory_may_be_a_link),
        TEST(a_configured_models_path_is_allowed_as_it_is),
        TEST(descriptors_that_could_block_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
