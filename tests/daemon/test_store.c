/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c, store_load.c and model.c: loads, names, rights, budgets. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store.h"
#include "tests/daemon/harness.h"

static kwkd_store *store;
static kwkd_metrics metrics;
static kwkd_conf conf;
static kwk_error err;
static char dir[64];

static char *path_of(const char *name)
{
    static char path[4][256];
    static int i;
    char *p = path[i++ % 4];

    snprintf(p, 256, "%s/%s", dir, name);
    return p;
}

static void touch(const char *path)
{
    close(open(path, O_CREAT | O_WRONLY, 0600));
}

static int setup(void **state)
{
    const kwkd_conf_input nothing = {0};

    fake_reset();
    memset(&metrics, 0, sizeof metrics);
    assert_int_equal(kwkd_conf_load(&conf, &nothing, &err), KWK_OK);
    strcpy(dir, "/tmp/kwkd-store-XXXXXX");
    assert_non_null(mkdtemp(dir));
    mkdir(path_of("models"), 0700);
    mkdir(path_of("models2"), 0700);
    touch(path_of("models/a"));
    touch(path_of("models/b"));
    touch(path_of("models/damaged"));
    touch(path_of("models2/x"));
    touch(path_of("secret"));
    assert_int_equal(symlink(path_of("secret"), path_of("models/link")), 0);
    conf.model_dirs[conf.n_model_dirs++] = strdup(path_of("models"));
    assert_int_equal(kwkd_store_new(&store, &metrics, &err), KWK_OK);
    kwkd_store_configure(store, &conf);
    return 0;
}

static int teardown(void **state)
{
    char command[96];

    kwkd_store_stop(store);
    kwkd_store_free(store);
    kwkd_conf_fini(&conf);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(atomic_load(&fake_count.models), 0);
    return 0;
}

/* Results of loads that were waited for. */
static atomic_int done, last_rc;

static void loaded(void *arg, int rc, const kwk_error *e)
{
    atomic_store(&last_rc, rc);
    atomic_fetch_add(&done, 1);
}

static kwkd_load from(const char *name, const char *path)
{
    return (kwkd_load){.name = name, .path = path, .fd = -1, .uid = 1000};
}

static int load(const kwkd_load *l)
{
    int rc;

    atomic_store(&done, 0);
    rc = kwkd_store_load(store, l, loaded, NULL, &err);
    if (rc != 0)
        return rc < 0 ? rc : KWK_OK;
    for (int i = 0; !atomic_load(&done) && i < 5000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&done), 1);
    return atomic_load(&last_rc);
}

static int find(const char *name)
{
    kwkd_model *m = NULL;
    int retry_ms = 0;
    const int rc = kwkd_store_find(store, name, &m, &retry_ms, &err);

    assert_true(rc != KWK_EBUSY || retry_ms > 0);
    kwkd_model_unref(m);
    return rc;
}

static void models_alive(int n)
{
    for (int i = 0; atomic_load(&fake_count.models) != n && i < 5000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&fake_count.models), n);
}

static void a_model_is_loaded_found_and_unloaded(void **state)
{
    const kwkd_load l = from("m", path_of("models/a"));
    kwkd_model *m;
    int retry_ms;

    assert_int_equal(find("m"), KWK_ENOENT);
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(kwkd_store_find(store, "m", &m, &retry_ms, &err), KWK_OK);
    assert_string_equal(m->name, "m");
    assert_int_equal(m->info.vocab, 300);
    assert_int_equal(m->max_tokens, 4096);
    assert_int_equal(m->has_text, 1);
    assert_int_equal(m->max_token_bytes, 1);
    assert_int_equal(kwkd_store_unload(store, "m", 1000, &err), KWK_OK);
    assert_int_equal(find("m"), KWK_ENOENT);
    models_alive(1); // held by us
    kwkd_model_unref(m);
    models_alive(0);
    assert_int_equal(kwkd_store_unload(store, "m", 1000, &err), KWK_ENOENT);
}

static void many_who_ask_share_one_load(void **state)
{
    const kwkd_load l = from("m", path_of("models/a"));

    atomic_store(&fake.load_ms, 50);
    atomic_store(&done, 0);
    for (int i = 0; i < 32; i++)
        assert_int_equal(kwkd_store_load(store, &l, loaded, NULL, &err), 0);
    assert_int_equal(find("m"), KWK_EBUSY);
    for (int i = 0; atomic_load(&done) < 32 && i < 5000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&done), 32);
    assert_int_equal(atomic_load(&fake_count.loads), 1);
    assert_int_equal(kwkd_store_load(store, &l, loaded, NULL, &err), 1);
}

static void another_model_cannot_take_the_name(void **state)
{
    kwkd_load l = from("m", path_of("models/a"));

    assert_int_equal(load(&l), KWK_OK);
    l.precision = "int8";
    assert_int_equal(load(&l), KWK_EINVAL);
    l = from("m", path_of("models/b"));
    assert_int_equal(load(&l), KWK_EINVAL);
    assert_int_equal(find("m"), KWK_OK);
}

static void what_may_not_be_opened_is_not_loaded(void **state)
{
    kwkd_load l = from("m", path_of("secret"));

    assert_int_equal(load(&l), KWK_EPERM);
    l = from("m", path_of("models/none"));
    assert_int_equal(load(&l), KWK_ENOENT);
    assert_int_equal(atomic_load(&fake_count.loads), 0);
}

static void a_failed_load_says_why_and_can_be_repeated(void **state)
{
    kwkd_load l = from("m", path_of("models/damaged"));

    assert_int_equal(load(&l), KWK_EFORMAT);
    assert_int_equal(find("m"), KWK_EFORMAT);
    assert_non_null(strstr(err.msg, "is damaged"));
    l = from("m", path_of("models/a"));
    l.precision = "nonsense";
    assert_int_equal(load(&l), KWK_EINVAL);
    l.precision = NULL;
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(kwkd_counted(&metrics.load_failures), 2);
}

static void an_unload_cancels_a_running_load(void **state)
{
    const kwkd_load l = from("m", path_of("models/a"));

    fake.load_parts = 1000;
    atomic_store(&fake.load_ms, 5);
    atomic_store(&done, 0);
    assert_int_equal(kwkd_store_load(store, &l, loaded, NULL, &err), 0);
    usleep(20000);
    assert_int_equal(kwkd_store_unload(store, "m", 1000, &err), KWK_OK);
    for (int i = 0; !atomic_load(&done) && i < 1000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&last_rc), KWK_ECANCELED);
    assert_int_equal(find("m"), KWK_ENOENT);
}

static void stopping_cancels_loads_at_once(void **state)
{
    const kwkd_load a = from("a", path_of("models/a")), b = from("b", path_of("models/b"));

    fake.load_parts = 1000;
    atomic_store(&fake.load_ms, 5);
    atomic_store(&done, 0);
    assert_int_equal(kwkd_store_load(store, &a, loaded, NULL, &err), 0);
    assert_int_equal(kwkd_store_load(store, &b, loaded, NULL, &err), 0); // waits its turn
    usleep(10000);
    kwkd_store_stop(store);
    for (int i = 0; atomic_load(&done) < 2 && i < 500; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&done), 2);
    assert_int_equal(kwkd_store_load(store, &a, NULL, NULL, &err), KWK_ECLOSED);
}

static void others_cannot_unload_or_pin(void **state)
{
    const kwkd_load l = from("m", path_of("models/a"));
    kwkd_load ours = {
        .name = "c", .path = path_of("secret"), .fd = -1, .uid = 1000, .configured = 1};

    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(load(&ours), KWK_OK); // a configured model may lie anywhere
    if (geteuid() != 1001) {
        assert_int_equal(kwkd_store_unload(store, "m", 1001, &err), KWK_EPERM);
        assert_int_equal(kwkd_store_pin(store, "m", 1, 1001, &err), KWK_EPERM);
    }
    if (geteuid() != 1000)
        assert_int_equal(kwkd_store_unload(store, "c", 1000, &err), KWK_EPERM);
    assert_int_equal(kwkd_store_pin(store, "m", 1, 1000, &err), KWK_OK);
    assert_int_equal(kwkd_store_unload(store, "c", geteuid(), &err), KWK_OK);
}

static void packs_come_by_descriptor(void **state)
{
    const int fd = memfd_create("pack", MFD_CLOEXEC), other = memfd_create("pack", MFD_CLOEXEC);
    kwkd_load l = {.name = "m", .fd = dup(fd), .uid = 1000};

    assert_int_equal(write(fd, "pack", 4), 4);
    assert_int_equal(load(&l), KWK_OK);
    l.fd = dup(fd); // the same again
    assert_int_equal(load(&l), KWK_OK);
    l.fd = other;
    assert_int_equal(load(&l), KWK_EINVAL); // not taken
    close(other);
    close(fd);
}

static void the_least_recently_used_makes_room(void **state)
{
    kwkd_load l = from("a", path_of("models/a"));

    conf.model_bytes = 2500; // two of 1000
    kwkd_store_configure(store, &conf);
    assert_int_equal(load(&l), KWK_OK);
    l = from("b", path_of("models/b"));
    assert_int_equal(load(&l), KWK_OK);
    usleep(1000);
    assert_int_equal(find("a"), KWK_OK); // so b is the older
    l = from("c", path_of("models/a"));
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(find("b"), KWK_ENOENT);
    assert_int_equal(find("a"), KWK_OK);
    assert_int_equal(kwkd_store_pin(store, "a", 1, 1000, &err), KWK_OK);
    assert_int_equal(kwkd_store_pin(store, "c", 1, 1000, &err), KWK_OK);
    l = from("d", path_of("models/b"));
    assert_int_equal(load(&l), KWK_EFULL); // nothing may go
    assert_int_equal(find("d"), KWK_EFULL);
    assert_non_null(strstr(err.msg, "2500"));
    assert_int_equal(kwkd_counted(&metrics.evictions), 1);
}

static void what_is_used_is_not_evicted(void **state)
{
    kwkd_load l = from("a", path_of("models/a"));
    kwkd_model *m;
    int retry_ms;

    conf.model_bytes = 1000;
    kwkd_store_configure(store, &conf);
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(kwkd_store_find(store, "a", &m, &retry_ms, &err), KWK_OK);
    l = from("b", path_of("models/b"));
    assert_int_equal(load(&l), KWK_EFULL);
    kwkd_model_unref(m);
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(find("a"), KWK_ENOENT);
}

static void unused_models_go_after_their_time(void **state)
{
    const kwkd_load l = from("a", path_of("models/a"));

    assert_int_equal(load(&l), KWK_OK);
    kwkd_store_tick(store);
    assert_int_equal(find("a"), KWK_OK);
    conf.keep_alive_s = 1;
    kwkd_store_configure(store, &conf);
    kwkd_store_tick(store);
    assert_int_equal(find("a"), KWK_OK);
    usleep(1100000);
    kwkd_store_tick(store);
    assert_int_equal(find("a"), KWK_ENOENT);
    models_alive(0);
}

static void the_default_is_the_configured_or_the_only_one(void **state)
{
    kwkd_load l = from("a", path_of("models/a"));

    assert_int_equal(find(NULL), KWK_EINVAL);
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(find(NULL), KWK_OK);
    l = from("b", path_of("models/b"));
    assert_int_equal(load(&l), KWK_OK);
    assert_int_equal(find(NULL), KWK_EINVAL);
    conf.default_model = strdup("b");
    kwkd_store_configure(store, &conf);
    assert_int_equal(find(NULL), KWK_OK);
}

static void a_configured_model_comes_back_when_it_is_asked_for(void **state)
{
    conf.models[0] = (kwkd_model_conf){.name = strdup("c"), .path = strdup(path_of("models/a"))};
    conf.n_models = 1;
    kwkd_store_configure(store, &conf);
    assert_int_equal(find("c"), KWK_EBUSY);
    for (int i = 0; find("c") == KWK_EBUSY && i < 5000; i++)
        usleep(1000);
    assert_int_equal(find(NULL), KWK_OK);
}

static int n_rows;

static void count_row(void *arg, const kwkd_model_row *row)
{
    static const char *const names[] = {"a", "damaged"};

    assert_string_equal(row->name, names[n_rows]);
    assert_int_equal(row->state, n_rows ? KWKD_FAILED : KWKD_READY);
    assert_true(n_rows ? row->error && !row->model : !row->error && row->model);
    n_rows++;
}

static void the_list_is_sorted_and_tells_states(void **state)
{
    kwkd_load l = from("damaged", path_of("models/damaged"));
    int ready, loading;
    double progress;

    (void)load(&l);
    l = from("a", path_of("models/a"));
    assert_int_equal(load(&l), KWK_OK);
    n_rows = 0;
    kwkd_store_each(store, count_row, NULL);
    assert_int_equal(n_rows, 2);
    kwkd_store_counts(store, &ready, &loading, &progress);
    assert_int_equal(ready, 1);
    assert_int_equal(loading, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_model_is_loaded_found_and_unloaded),
        TEST(many_who_ask_share_one_load),
        TEST(another_model_cannot_take_the_name),
        TEST(what_may_not_be_opened_is_not_loaded),
        TEST(a_failed_load_says_why_and_can_be_repeated),
        TEST(an_unload_cancels_a_running_load),
        TEST(stopping_cancels_loads_at_once),
        TEST(others_cannot_unload_or_pin),
        TEST(packs_come_by_descriptor),
        TEST(the_least_recently_used_makes_room),
        TEST(what_is_used_is_not_evicted),
        TEST(unused_models_go_after_their_time),
        TEST(the_default_is_the_configured_or_the_only_one),
        TEST(a_configured_model_comes_back_when_it_is_asked_for),
        TEST(the_list_is_sorted_and_tells_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
