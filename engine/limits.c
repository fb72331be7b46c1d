/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process may use of the machine. The files read here belong to the kernel, but a
 * container may hide or fake them: whatever cannot be read or parsed counts as "no limit".
 */
#include "engine/limits.h"

#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cpu_set_t loaded_with; // affinity when the library was loaded
static int loaded_known;

__attribute__((constructor)) static void remember_affinity(void)
{
    loaded_known = sched_getaffinity(0, sizeof loaded_with, &loaded_with) == 0;
}

/* First line of a file without its end of line; -1: cannot be read. */
static int read_line(const char *path, char *buf, int size)
{
    FILE *f = fopen(path, "re");
    int rc = -1;

    if (!f)
        return -1;
    if (fgets(buf, size, f)) {
        buf[strcspn(buf, "\n")] = 0;
        rc = 0;
    }
    fclose(f);
    return rc;
}

static int openmp_binds(void)
{
    static const char *const names[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return 1;
    return 0;
}

/* CPUs of OpenMP's places: those of the process before the runtime bound its main thread, which it
 * does before any code of ours can look. 0: it has no places. */
static int openmp_cpus(cpu_set_t *set)
{
    int ids[CPU_SETSIZE];

    CPU_ZERO(set);
    for (int place = 0; place < omp_get_num_places(); place++) {
        const int n = omp_get_place_num_procs(place);

        if (n < 0 || n > CPU_SETSIZE)
            continue;
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < n; i++)
            if (ids[i] >= 0 && ids[i] < CPU_SETSIZE)
                CPU_SET(ids[i], set);
    }
    return CPU_COUNT(set);
}

/* Lowest CPU that shares a core with this one. */
static int core_of(int cpu, const char *root)
{
    char path[512], line[256];
    int first;

    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             root, cpu);
    if (read_line(path, line, sizeof line) < 0 || sscanf(line, "%d", &first) != 1 || first < 0 ||
        first > cpu)
        return cpu;
    return first;
}

void kwk_limits_cores(kwk_cores *c, const char *root)
{
    int lead[KWK_MAX_THREADS]; // core_of() of each core found

    memset(c, 0, sizeof *c);
    const int binds = openmp_binds();
    if (binds && openmp_cpus(&c->all))
        ; // they are the ones
    else if (binds && loaded_known)
        c->all = loaded_with;
    else if (sched_getaffinity(getpid(), sizeof c->all, &c->all) < 0) // more than CPU_SETSIZE CPUs
        CPU_ZERO(&c->all);
    c->n_cpus = CPU_COUNT(&c->all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int i = 0;

        if (!CPU_ISSET(cpu, &c->all))
            continue;
        const int first = core_of(cpu, root);
        while (i < c->n && lead[i] != first)
            i++;
        if (i == KWK_MAX_THREADS)
            continue;
        if (i == c->n) {
            lead[i] = first;
            c->n++;
        }
        CPU_SET(cpu, &c->core[i]);
    }
    if (c->n == 0) {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);

        c->n = online < 1 ? 1 : online > KWK_MAX_THREADS ? KWK_MAX_THREADS : (int)online;
        c->n_cpus = c->n;
    }
}

/* Path of this process in the hierarchy of a v1 controller, or in v2's ("" as controller). */
static int cgroup_path(const char *root, const char *controller, char *out, size_t size)
{
    char path[512], line[4096];
    FILE *f;
    int rc = -1;

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    if (!f)
        return -1;
    while (rc < 0 && fgets(line, sizeof line, f)) { // id:controller,controller:/path
        char *list = strchr(line, ':'), *where = list ? strchr(list + 1, ':') : NULL;
        char *save = NULL;

        if (!where)
            continue;
        *where++ = 0;
        where[strcspn(where, "\n")] = 0;
        list++;
        if (!*controller && !*list)
            rc = 0;
        for (char *t = strtok_r(list, ",", &save); t && *controller; t = strtok_r(NULL, ",", &save))
            if (!strcmp(t, controller))
                rc = 0;
        if (rc == 0)
            snprintf(out, size, "%s", strcmp(where, "/") ? where : "");
    }
    fclose(f);
    return rc;
}

/* Call fn on `file` of the process's cgroup and of every one above it. A container may see only
 * the upper part of its path, so missing files are passed over. */
static void each_cgroup(const char *root, const char *controller, const char *file,
                        void (*fn)(void *arg, const char *dir, const char *line), void *arg)
{
    char group[2048], dir[3072], path[4096], line[256];

    if (cgroup_path(root, controller, group, sizeof group) < 0)
        return;
    for (;;) {
        snprintf(dir, sizeof dir, "%s/sys/fs/cgroup%s%s%s", root, *controller ? "/" : "",
                 controller, group);
        snprintf(path, sizeof path, "%s/%s", dir, file);
        if (read_line(path, line, sizeof line) == 0)
            fn(arg, dir, line);
        char *cut = strrchr(group, '/');
        if (!cut)
            break;
        *cut = 0;
    }
}

static void lower_quota(int *n, double quota, double period)
{
    if (quota > 0 && period > 0 && quota / period < *n)
        *n = (int)(quota / period); // whole CPUs: a spinning thread must not be throttled
}

static void quota_v2(void *arg, const char *dir, const char *line)
{
    double quota, period;

    if (sscanf(line, "%lf %lf", &quota, &period) == 2) // "max 100000": no limit
        lower_quota(arg, quota, period);
}

static void quota_v1(void *arg, const char *dir, const char *line)
{
    char path[4096], period[256];

    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (read_line(path, period, sizeof period) == 0)
        lower_quota(arg, atof(line), atof(period)); // -1: no limit
}

int kwk_limits_quota(const char *root)
{
    int n = INT32_MAX;

    each_cgroup(root, "", "cpu.max", quota_v2, &n);
    each_cgroup(root, "cpu", "cpu.cfs_quota_us", quota_v1, &n);
    return n < 1 ? 1 : n;
}

static void lower_memory(void *arg, const char *dir, const char *line)
{
    uint64_t *least = arg;
    uint64_t v;

    if (sscanf(line, "%" SCNu64, &v) == 1 && v > 0 && v < *least) // v2 "max" does not parse
        *least = v;
}

uint64_t kwk_limits_memory(const char *root)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t least = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;

    each_cgroup(root, "", "memory.max", lower_memory, &least);
    each_cgroup(root, "memory", "memory.limit_in_bytes", lower_memory, &least);
    return least;
}

int kwk_limits_threads(const char *root)
{
    kwk_cores c;

    kwk_limits_cores(&c, root);
    const int quota = kwk_limits_quota(root);
    return c.n < quota ? c.n : quota;
}
