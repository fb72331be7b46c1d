/* SPDX-License-Identifier: Apache-2.0
 *
 * engine/limits.c on made-up /proc and /sys trees: cgroup v1, v2, containers, nonsense.
 */
#include <ftw.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/limits.h"
#include "tests/support/check.h"

static char root[64];

static int make_root(void **state)
{
    strcpy(root, "/tmp/kwk-limits-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    return remove(path);
}

static int remove_root(void **state)
{
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void without_cgroups_there_is_no_limit(void **state)
{
    assert_int_equal(kwk_limits_quota(root), INT32_MAX);
    assert_true(kwk_limits_memory(root) >= (uint64_t)64 << 20);
}

static void v2_takes_the_least_of_the_group_and_those_above(void **state)
{
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.max", "50000000\n");
    assert_int_equal(kwk_limits_quota(root), 3); // whole CPUs
    assert_int_equal(kwk_limits_memory(root), 50000000);
}

static void less_than_one_cpu_is_one_thread(void **state)
{
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/cpu.max", "20000 100000\n");
    assert_int_equal(kwk_limits_quota(root), 1);
    assert_int_equal(kwk_limits_threads(root), 1);
}

static void v1_reads_each_controllers_own_path(void **state)
{
    put("/proc/self/cgroup", "5:cpu,cpuacct:/jobs/7\n4:memory:/m\n1:name=systemd:/x\n0::/\n");
    put("/sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "200000\n");
    put("/sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1234567\n");
    assert_int_equal(kwk_limits_quota(root), 2);
    assert_int_equal(kwk_limits_memory(root), 1234567);
}

static void a_container_that_hides_its_path_still_sees_its_root(void **state)
{
    put("/proc/self/cgroup", "0::/kubepods/pod1/c2\n");
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(kwk_limits_quota(root), 4);
}

static void nonsense_counts_as_no_limit(void **state)
{
    put("/proc/self/cgroup", "hello\n::\n0:\n\n0::/g\n");
    put("/sys/fs/cgroup/g/cpu.max", "-5 0\n");
    put("/sys/fs/cgroup/g/memory.max", "0\n");
    put("/sys/fs/cgroup/cpu.max", "many\n");
    assert_int_equal(kwk_limits_quota(root), INT32_MAX);
    assert_true(kwk_limits_memory(root) >= (uint64_t)64 << 20);
}

static void cpus_of_one_core_count_once(void **state)
{
    kwk_cores c;
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(getpid(), sizeof set, &set), 0);
    kwk_limits_cores(&c, root); // no topology: every CPU is a core
    assert_int_equal(c.n, CPU_COUNT(&set));
    assert_int_equal(c.n_cpus, CPU_COUNT(&set));

    for (int cpu = 0; cpu < 64; cpu++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        put(path, "0-63\n");
    }
    kwk_limits_cores(&c, root);
    if (CPU_COUNT(&set) <= 64) {
        assert_int_equal(c.n, 1);
        assert_int_equal(CPU_COUNT(&c.core[0]), CPU_COUNT(&set));
    }
}

static void affinity_of_the_process_bounds_the_cores(void **state)
{
    kwk_cores c;
    cpu_set_t set, one;
    int cpu = 0;

    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    kwk_limits_cores(&c, "");
    assert_int_equal(c.n, 1);
    assert_true(CPU_EQUAL(&c.core[0], &one));

    assert_int_equal(setenv("OMP_PROC_BIND", "true", 1), 0); // then the binding is not the user's
    kwk_limits_cores(&c, "");
    assert_int_equal(c.n_cpus, CPU_COUNT(&set));
    unsetenv("OMP_PROC_BIND");
    assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
}

static void a_runtime_that_binds_at_its_start_takes_no_core(void **state)
{
    static const char *const settings[] = {"OMP_PROC_BIND=true", "OMP_PLACES=threads"};
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char *const args[] = {"test_limits", "cpus", NULL};
        char *const env[] = {(char *)settings[i], NULL};
        const pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
            execve("/proc/self/exe", args, env);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), CPU_COUNT(&set) % 256);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "cpus")) { // the child of the test above
        static kwk_cores c;

        if (omp_get_max_threads() < 1) // the runtime is part of the program, whoever else uses it
            return 0;
        kwk_limits_cores(&c, "");
        return c.n_cpus % 256;
    }

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        TEST(without_cgroups_there_is_no_limit),
        TEST(v2_takes_the_least_of_the_group_and_those_above),
        TEST(less_than_one_cpu_is_one_thread),
        TEST(v1_reads_each_controllers_own_path),
        TEST(a_container_that_hides_its_path_still_sees_its_root),
        TEST(nonsense_counts_as_no_limit),
        TEST(cpus_of_one_core_count_once),
        TEST(affinity_of_the_process_bounds_the_cores),
        TEST(a_runtime_that_binds_at_its_start_takes_no_core),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
