/* SPDX-License-Identifier: Apache-2.0
 *
 * libkwkclient when memory runs out: every call fails with KWK_ENOMEM at each of its allocations and
 * works the next time; nothing leaks, neither memory nor descriptors nor places for streams.
 */
#include "tests/support/check.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "client/kwkclient.h"
#include "tests/support/fail_alloc.h"
#include "tests/support/fake_daemon.h"

static fake_daemon *d;
static kwk_client *c;

static kwk_client *open_client(void)
{
    kwk_client_options o = KWK_CLIENT_OPTIONS_INIT;
    kwk_client *client = NULL;

    o.logits_bytes = 1 << 20;
    assert_int_equal(kwk_client_open(&client, d->dir, &o, NULL), KWK_OK);
    return client;
}

static int start(void **state)
{
    d = fake_start();
    c = open_client();
    return 0;
}

static int stop(void **state)
{
    kwk_client_close(c);
    fake_stop(d);
    return 0;
}

static int n_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int try_open(void)
{
    kwk_client *client = NULL;
    const int rc = kwk_client_open(&client, d->dir, NULL, NULL);

    kwk_client_close(client);
    return rc;
}

static int try_query(void)
{
    char *json = NULL;
    const int rc = kwk_client_query(c, "models", &json, NULL);

    kwk_client_free(json);
    return rc;
}

static int try_load(void)
{
    kwk_client_load l = KWK_CLIENT_LOAD_INIT;

    l.name = "m";
    l.path = "/models/m";
    return kwk_client_load_model(c, &l, NULL);
}

static int try_generate(void)
{
    const int32_t prompt[] = {1};
    kwk_generate g = KWK_GENERATE_INIT;
    kwk_stream *s = NULL;
    int rc;

    g.prompt = prompt;
    g.n_prompt = 1;
    g.max_new_tokens = 0;
    rc = kwk_client_generate(&s, c, &g, NULL);
    kwk_stream_free(s);
    return rc;
}

static int try_seq(void)
{
    kwk_client_seq *a = NULL, *b = NULL;
    int rc = kwk_client_seq_open(&a, c, NULL, NULL);

    if (rc == KWK_OK)
        rc = kwk_client_seq_fork(&b, a, NULL);
    if (rc == KWK_OK)
        rc = kwk_client_seq_truncate(b, 0, NULL);
    kwk_client_seq_free(b);
    kwk_client_seq_free(a);
    return rc;
}

static void each_call_fails_at_each_allocation_and_then_works(void **state)
{
    static const struct {
        const char *name;
        int (*call)(void);
        int least; // allocations that must have failed
    } calls[] = {
        {"open", try_open, 4},         {"query", try_query, 4}, {"load", try_load, 3},
        {"generate", try_generate, 4}, {"seq", try_seq, 8},
    };
    const int before = n_fds();

    for (size_t i = 0; i < CHECK_COUNT(calls); i++)
        FAIL_EACH(n) {
            int rc;
            fail_alloc_at(n);
            rc = calls[i].call();
            if (fail_alloc_end()) {
                assert_int_equal(rc, KWK_OK);
                assert_true(n >= calls[i].least);
                break;
            }
            if (rc != KWK_ENOMEM && rc != KWK_OK) // a call that frees may do without
                fail_msg("%s at allocation %d: %d", calls[i].name, n, rc);
            rc = calls[i].call();
            if (rc != KWK_OK)
                fail_msg("%s after allocation %d failed: %d", calls[i].name, n, rc);
        }
    for (int i = 0; i < 200 && n_fds() > before; i++)
        usleep(5000);
    assert_true(n_fds() <= before);
}

static void forward_fails_and_leaves_its_sequence_alone(void **state)
{
    const int32_t tokens[] = {5};
    kwk_client_seq *s = NULL;
    kwk_forward item;

    assert_int_equal(kwk_client_seq_open(&s, c, NULL, NULL), KWK_OK);
    item = (kwk_forward){.seq = s, .tokens = tokens, .n_tokens = 1};
    FAIL_EACH(n) {
        int rc;
        fail_alloc_at(n);
        rc = kwk_client_forward(c, &item, 1, NULL);
        if (fail_alloc_end()) {
            assert_int_equal(rc, KWK_OK);
            assert_int_equal(n, 2);
            break;
        }
        assert_int_equal(rc, KWK_ENOMEM);
        assert_int_equal(kwk_client_seq_length(s), 0);
    }
    assert_int_equal(kwk_client_seq_length(s), 1);
    assert_true(item.logits[3] == 5 * 1000 + 3);
}

static void a_queue_that_cannot_grow_ends_the_session(void **state)
{
    const int32_t prompt[] = {1};
    kwk_generate g = KWK_GENERATE_INIT;
    kwk_stream *s = NULL;
    kwk_event e;
    kwk_error err;

    g.model = "manual";
    g.prompt = prompt;
    g.n_prompt = 1;
    assert_int_equal(kwk_client_generate(&s, c, &g, NULL), KWK_OK);
    fake_record(d, (uint32_t)d->last_stream, KWK_REC_TOKEN, 5, "", 0);
    fail_alloc_at(0);
    assert_int_equal(kwk_stream_next(s, &e, 1000, &err), KWK_ENOMEM);
    assert_false(fail_alloc_end());
    assert_int_equal(try_query(), KWK_ENOMEM); // records are lost: it cannot go on
    kwk_stream_free(s);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(each_call_fails_at_each_allocation_and_then_works),
        TEST(forward_fails_and_leaves_its_sequence_alone),
        TEST(a_queue_that_cannot_grow_ends_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
