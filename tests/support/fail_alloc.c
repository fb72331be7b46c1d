/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing allocations by the linker's --wrap (fail_alloc.h).
 */
#include "tests/support/fail_alloc.h"

#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static _Thread_local int left = -1; // allocations until one fails; -1: off
static _Thread_local int failed;

static int fails(void)
{
    if (left < 0)
        return 0;
    if (left-- > 0)
        return 0;
    failed = 1;
    return 1; // and off again
}

void fail_alloc_at(int n)
{
    left = n;
    failed = 0;
}

int fail_alloc_end(void)
{
    left = -1;
    return !failed;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}
