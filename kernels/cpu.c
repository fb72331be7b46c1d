/* SPDX-License-Identifier: Apache-2.0
 *
 * What this CPU and operating system can run. Reads cpuid only; KWKER_ISA is read by the engine.
 */
#include <string.h>

#include "kernels/kernels.h"

unsigned kwk_cpu_flags(void)
{
    unsigned flags = KWK_CPU_NONE;

#if KWK_ARCH_X86_64
    __builtin_cpu_init(); // its tests include the operating system's XSAVE state
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi"))
        flags |= KWK_CPU_AVX2;
    /* AVX-512 without VNNI (Skylake-X) has no form of its own: it runs the AVX2 kernels. */
    if ((flags & KWK_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        flags |= KWK_CPU_AVX512;
#elif KWK_ARCH_AARCH64
    flags |= KWK_CPU_NEON;
#endif
    return flags;
}

int kwk_cpu_level(const char *name)
{
    if (!strcmp(name, "ref"))
        return KWK_CPU_NONE;
    if (!strcmp(name, "avx2"))
        return KWK_CPU_AVX2;
    if (!strcmp(name, "avx512"))
        return KWK_CPU_AVX2 | KWK_CPU_AVX512;
    if (!strcmp(name, "neon"))
        return KWK_CPU_NEON;
    return -1;
}

const char *kwk_cpu_name(unsigned flags)
{
    if (flags & KWK_CPU_AVX512)
        return "avx512";
    if (flags & KWK_CPU_AVX2)
        return "avx2";
    if (flags & KWK_CPU_NEON)
        return "neon";
    return "ref";
}
