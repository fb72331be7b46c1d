/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of the C tests: the instruction-set levels of this CPU, reproducible fills, buffers that
 * notice writes outside them, comparison of bits. Failures go through cmocka. One thread.
 */
#ifndef KWK_TESTS_SUPPORT_CHECK_H
#define KWK_TESTS_SUPPORT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#define CHECK_COUNT(a) (sizeof(a) / sizeof *(a))

/* The levels that this CPU runs, "ref" first; the last entry has a NULL name:
 *     for (const check_level *l = check_levels(); l->name; l++)
 *         kwk_kernels_init(&k, l->flags);                                                       */
typedef struct check_level {
    const char *name;
    unsigned flags;
} check_level;
const check_level *check_levels(void);

/* Skip the rest of the test for a reason of scripts/allowed-skips.txt. */
#define check_skip(reason)                                                                         \
    do {                                                                                           \
        print_message("SKIP: %s\n", reason);                                                       \
        skip();                                                                                    \
    } while (0)

/* Pseudo-random numbers; *seed is the state, any value is a good start. */
uint64_t check_random(uint64_t *seed);
int check_random_int(uint64_t *seed, int lo, int hi); // lo <= v <= hi
float check_random_f32(uint64_t *seed);               // -1 <= v < 1

typedef enum check_fill {
    CHECK_ZERO,
    CHECK_UNIFORM, // -1 <= v < 1
    CHECK_WIDE,    // either sign, exponents 2^-40 to 2^40
    CHECK_EXTREME, // +-0, subnormals, the least and greatest finite values among ordinary ones
    CHECK_FILLS
} check_fill;
void check_fill_f32(float *p, size_t n, check_fill fill, uint64_t *seed);

/* 64-byte aligned memory filled with poison, with guards before and after it: check_free() fails
 * the test when a guard was written. Never NULL. */
void *check_alloc(size_t bytes);
void check_free(void *p);

/* Fill with the poison pattern; fail unless all of it is still there (where: printf style). */
void check_poison(void *p, size_t bytes);
void check_poisoned(const void *p, size_t bytes, const char *where, ...)
    __attribute__((format(printf, 3, 4)));

/* Fail unless the n values have the same bits; any NaN equals any NaN. */
void check_same_f32(const float *got, const float *want, size_t n, const char *where, ...)
    __attribute__((format(printf, 4, 5)));

/* Fail unless the bytes are equal. */
void check_same(const void *got, const void *want, size_t bytes, const char *where, ...)
    __attribute__((format(printf, 4, 5)));

#endif
