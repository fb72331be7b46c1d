/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of the C tests; contracts in check.h.
 */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 128, POISON = 0xa5 };

const check_level *check_levels(void)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "neon"};
    static check_level levels[CHECK_COUNT(names) + 1];
    const unsigned cpu = kwk_cpu_flags();
    int n = 0;

    for (size_t i = 0; i < CHECK_COUNT(names); i++) {
        const unsigned flags = (unsigned)kwk_cpu_level(names[i]);
        if ((cpu & flags) == flags)
            levels[n++] = (check_level){names[i], flags};
    }
    levels[n] = (check_level){0};
    return levels;
}

uint64_t check_random(uint64_t *seed) // SplitMix64 (Steele, Lea and Flood 2014)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

int check_random_int(uint64_t *seed, int lo, int hi)
{
    const uint64_t range = (uint64_t)((int64_t)hi - lo + 1);

    return (int)(lo + (int64_t)(check_random(seed) % range));
}

float check_random_f32(uint64_t *seed)
{
    return (float)(check_random(seed) >> 40) * 0x1p-23f - 1.0f;
}

static float extreme(uint64_t *seed)
{
    static const float values[] = {
        0.0f,        0x1p-149f,       0x1.8p-140f, 0x1.fffffcp-127f, 0x1p-133f, // float32
                                                                                // subnormals
        0x1p-126f,   0x1p-25f,        0x1p-24f,    0x1.ffp-15f,      0x1p-14f,  // borders of f16
        65504.0f,    65520.0f,        1.0f,        0x1.000002p0f,    0x1p-100f, 0x1p100f,
        0x1.fep127f, 0x1.fffffep127f,
    };
    const uint64_t r = check_random(seed);
    const float v = r % 4 ? check_random_f32(seed) : values[r / 4 % CHECK_COUNT(values)];

    return r >> 63 ? -v : v;
}

void check_fill_f32(float *p, size_t n, check_fill fill, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        switch (fill) {
        case CHECK_UNIFORM:
            p[i] = check_random_f32(seed);
            break;
        case CHECK_WIDE:
            p[i] = ldexpf(check_random_f32(seed), check_random_int(seed, -40, 40));
            break;
        case CHECK_EXTREME:
            p[i] = extreme(seed);
            break;
        default:
            p[i] = 0;
        }
    }
}

/* The front guard begins with the size. */
void *check_alloc(size_t bytes)
{
    const size_t total = (GUARD + bytes + GUARD + 63) / 64 * 64;
    uint8_t *base = aligned_alloc(64, total);

    assert_non_null(base);
    check_poison(base, total);
    memcpy(base, &bytes, sizeof bytes);
    return base + GUARD;
}

void check_free(void *p)
{
    uint8_t *base;
    size_t bytes;

    if (!p)
        return;
    base = (uint8_t *)p - GUARD;
    memcpy(&bytes, base, sizeof bytes);
    check_poisoned(base + sizeof bytes, GUARD - sizeof bytes, "before %zu bytes", bytes);
    check_poisoned(base + GUARD + bytes, GUARD, "after %zu bytes", bytes);
    free(base);
}

void check_poison(void *p, size_t bytes)
{
    memset(p, POISON, bytes);
}

/* The message of a failed check: where it happened, then what. */
static void fail_at(const char *where, va_list args, const char *what)
{
    char text[256];

    vsnprintf(text, sizeof text, where, args);
    print_error("%s: %s\n", text, what);
    fail();
}

void check_poisoned(const void *p, size_t bytes, const char *where, ...)
{
    const uint8_t *b = p;

    for (size_t i = 0; i < bytes; i++) {
        if (b[i] != POISON) {
            char what[64];
            va_list args;
            snprintf(what, sizeof what, "byte %zu was written", i);
            va_start(args, where);
            fail_at(where, args, what);
            va_end(args);
        }
    }
}

void check_same_f32(const float *got, const float *want, size_t n, const char *where, ...)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) && !(isnan(got[i]) && isnan(want[i]))) {
            char what[128];
            va_list args;
            snprintf(what, sizeof what, "element %zu is %a, not %a", i, (double)got[i],
                     (double)want[i]);
            va_start(args, where);
            fail_at(where, args, what);
            va_end(args);
        }
    }
}

void check_same(const void *got, const void *want, size_t bytes, const char *where, ...)
{
    const uint8_t *g = got, *w = want;

    for (size_t i = 0; i < bytes; i++) {
        if (g[i] != w[i]) {
            char what[64];
            va_list args;
            snprintf(what, sizeof what, "byte %zu is %u, not %u", i, g[i], w[i]);
            va_start(args, where);
            fail_at(where, args, what);
            va_end(args);
        }
    }
}
