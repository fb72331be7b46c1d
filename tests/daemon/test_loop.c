/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "daemon/loop.h"
#include "daemon/work.h"
#include "tests/daemon/harness.h"

typedef struct thing {
    kwkd_source src;
    int loop, calls;
    struct thing *other; // to be removed when this one is called
} thing;

static void called(kwkd_source *src)
{
    thing *t = KWKD_OWNER(thing, src, src);
    char byte;

    t->calls++;
    if (t->other)
        kwkd_loop_remove(t->loop, &t->other->src);
    else if (read(src->fd, &byte, 1) < 0)
        fail();
}

static void a_ready_descriptor_is_served(void **state)
{
    int loop = kwkd_loop_open(NULL), fds[2];
    thing t = {.loop = loop};

    assert_int_equal(pipe(fds), 0);
    assert_int_equal(kwkd_loop_add(loop, &t.src, fds[0], called, NULL), KWK_OK);
    kwkd_loop_dispatch(loop, 0);
    assert_int_equal(t.calls, 0);
    assert_int_equal(write(fds[1], "ab", 2), 2);
    kwkd_loop_dispatch(loop, 0); // level-triggered: once for each dispatch
    kwkd_loop_dispatch(loop, 0);
    kwkd_loop_dispatch(loop, 0);
    assert_int_equal(t.calls, 2);
    kwkd_loop_remove(loop, &t.src);
    assert_int_equal(write(fds[1], "c", 1), 1);
    kwkd_loop_dispatch(loop, 0);
    assert_int_equal(t.calls, 2);
    close(fds[0]);
    close(fds[1]);
    close(loop);
}

static void a_source_removed_by_another_is_not_called(void **state)
{
    int loop = kwkd_loop_open(NULL), a[2], b[2];
    thing s = {.loop = loop}, t = {.loop = loop, .other = &s};

    s.other = &t;
    assert_int_equal(pipe(a), 0);
    assert_int_equal(pipe(b), 0);
    assert_int_equal(kwkd_loop_add(loop, &s.src, a[0], called, NULL), KWK_OK);
    assert_int_equal(kwkd_loop_add(loop, &t.src, b[0], called, NULL), KWK_OK);
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_int_equal(write(b[1], "x", 1), 1);
    kwkd_loop_dispatch(loop, 0);
    assert_int_equal(s.calls + t.calls, 1);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
    close(loop);
}

static void a_bad_descriptor_is_an_error(void **state)
{
    int loop = kwkd_loop_open(NULL);
    thing t = {.src.fd = -1};

    assert_int_equal(kwkd_loop_add(loop, &t.src, -1, called, NULL), KWK_EIO);
    assert_int_equal(t.src.fd, -1);
    kwkd_loop_remove(loop, &t.src); // no effect
    close(loop);
}

static void ticked(kwkd_source *src)
{
    thing *t = KWKD_OWNER(thing, src, src);

    t->calls++;
    kwkd_timer_clear(src->fd);
}

static void timers_fire_once_or_again_and_can_be_turned_off(void **state)
{
    int loop = kwkd_loop_open(NULL), fd = kwkd_timer_open(NULL);
    thing t = {.loop = loop};

    assert_int_equal(kwkd_loop_add(loop, &t.src, fd, ticked, NULL), KWK_OK);
    kwkd_timer_set(fd, 5, 0);
    kwkd_loop_dispatch(loop, 1000);
    kwkd_loop_dispatch(loop, 30);
    assert_int_equal(t.calls, 1);
    kwkd_timer_set(fd, 5, 5);
    kwkd_loop_dispatch(loop, 1000);
    kwkd_loop_dispatch(loop, 1000);
    assert_int_equal(t.calls, 3);
    kwkd_timer_set(fd, 0, 0);
    kwkd_timer_clear(fd); // never blocks
    kwkd_loop_dispatch(loop, 30);
    assert_int_equal(t.calls, 3);
    close(fd);
    close(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ready_descriptor_is_served),
        cmocka_unit_test(a_source_removed_by_another_is_not_called),
        cmocka_unit_test(a_bad_descriptor_is_an_error),
        cmocka_unit_test(timers_fire_once_or_again_and_can_be_turned_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
