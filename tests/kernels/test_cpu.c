/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU levels: names and flags lead to each other, and what is reported is what the machine has.
 */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static void levels_have_their_flags(void **state)
{
    assert_int_equal(kwk_cpu_level("ref"), KWK_CPU_NONE);
    assert_int_equal(kwk_cpu_level("avx2"), KWK_CPU_AVX2);
    assert_int_equal(kwk_cpu_level("avx512"), KWK_CPU_AVX2 | KWK_CPU_AVX512);
    assert_int_equal(kwk_cpu_level("neon"), KWK_CPU_NEON);
}

static void unknown_levels_are_refused(void **state)
{
    static const char *const names[] = {"", "AVX2", "avx", "avx5120", "sse4"};

    for (size_t i = 0; i < CHECK_COUNT(names); i++)
        assert_int_equal(kwk_cpu_level(names[i]), -1);
}

static void a_name_is_that_of_the_best_level(void **state)
{
    static const char *const names[] = {"ref", "avx2", "avx512", "neon"};

    for (size_t i = 0; i < CHECK_COUNT(names); i++)
        assert_string_equal(kwk_cpu_name((unsigned)kwk_cpu_level(names[i])), names[i]);
}

static void this_cpu_is_at_one_of_the_levels(void **state)
{
    const unsigned flags = kwk_cpu_flags();

    assert_int_equal(kwk_cpu_level(kwk_cpu_name(flags)), flags);
}

/* Linux says it in another way. */
static void flags_agree_with_proc_cpuinfo(void **state)
{
#if KWK_ARCH_X86_64
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    unsigned flags = KWK_CPU_NONE;

    if (!f)
        check_skip("needs /proc");
    while (fgets(line, sizeof line, f) && strncmp(line, "flags", 5))
        ;
    fclose(f);
    line[strcspn(line, "\n")] = ' ';
    if (strstr(line, " avx2 ") && strstr(line, " fma ") && strstr(line, " f16c ") &&
        strstr(line, " bmi1 "))
        flags |= KWK_CPU_AVX2;
    if (flags && strstr(line, " avx512f ") && strstr(line, " avx512bw ") &&
        strstr(line, " avx512dq ") && strstr(line, " avx512vl ") && strstr(line, " avx512_vnni "))
        flags |= KWK_CPU_AVX512;
    assert_int_equal(kwk_cpu_flags(), flags);
#else
    assert_int_equal(kwk_cpu_flags() & (KWK_CPU_AVX2 | KWK_CPU_AVX512), 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_have_their_flags),
        cmocka_unit_test(unknown_levels_are_refused),
        cmocka_unit_test(a_name_is_that_of_the_best_level),
        cmocka_unit_test(this_cpu_is_at_one_of_the_levels),
        cmocka_unit_test(flags_agree_with_proc_cpuinfo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
