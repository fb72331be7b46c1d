/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

static harness h;
static kwk_error err;

static int setup(void **state)
{
    fake_reset();
    harness_start(&h, 1, NULL);
    return 0;
}

static int teardown(void **state)
{
    harness_stop(&h);
    return 0;
}

#include <fcntl.h>
#include <sys/mman.h>

static int load(const client *c, kwk_load_req req, const char *state)
{
    kwk_request r = {.op = KWK_OP_load};
    kwk_tree *t = NULL;
    int rc;

    r.u.load = req;
    rc = call(&h, c, &r, &t, &err);
    if (rc == KWK_OK)
        assert_string_equal(kwk_tree_str(t, "state"), state);
    kwk_tree_free(t);
    return rc;
}

static void with_wait_the_answer_comes_when_it_is_ready(void **state)
{
    const kwk_load_req later = {.name = "a", .path = h.model},
                       wait = {.name = "b", .path = h.model, .wait = 1};

    atomic_store(&fake.load_ms, 30);
    assert_int_equal(load(NULL, later, "loading"), KWK_OK);
    assert_int_equal(load(NULL, wait, "ready"), KWK_OK);
    assert_int_equal(load(NULL, later, "ready"), KWK_OK); // meanwhile
    assert_int_equal(load(NULL, wait, "ready"), KWK_OK);
    assert_int_equal(atomic_load(&h.d.n_kept), 0);
}

static void bad_requests_are_refused(void **state)
{
    assert_int_equal(load(NULL, (kwk_load_req){.name = "a"}, ""), KWK_EINVAL);
    assert_int_equal(load(NULL, (kwk_load_req){.name = "a", .path = h.model, .pack = 5}, ""),
                     KWK_EINVAL);
    assert_int_equal(load(NULL, (kwk_load_req){.name = "a", .pack = 5}, ""), KWK_EINVAL);
    assert_int_equal(load(NULL, (kwk_load_req){.name = "a", .path = "/etc/passwd"}, ""), KWK_EPERM);
}

static void a_pack_is_good_for_one_load_of_its_session(void **state)
{
    const int fd = memfd_create("pack", MFD_CLOEXEC);
    kwk_load_req req = {.name = "p", .wait = 1};
    client c, d;

    assert_int_equal(write(fd, "pack", 4), 4);
    client_open(&c, &h, 0, 0);
    client_open(&d, &h, 0, 0);
    assert_int_equal(kwkd_session_add_pack(c.session, fd, &req.pack, &err), KWK_OK);
    assert_int_equal(load(&d, req, ""), KWK_ENOENT);
    assert_int_equal(load(&c, req, "ready"), KWK_OK);
    assert_int_equal(load(&c, req, ""), KWK_ENOENT);
    client_close(&c, &h);
    client_close(&d, &h);
}

static void a_failure_is_the_answer(void **state)
{
    const kwk_load_req req = {.name = "a", .path = h.model, .precision = "nonsense", .wait = 1};

    assert_int_equal(load(NULL, req, ""), KWK_EINVAL);
    assert_non_null(strstr(err.msg, "nonsense"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(with_wait_the_answer_comes_when_it_is_ready, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(bad_requests_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pack_is_good_for_one_load_of_its_session, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_failure_is_the_answer, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
