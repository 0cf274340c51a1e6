/* SPDX-License-Identifier: MIT */

/*
 * What a process costs, seen from outside
 *
 * CPU time is read from the process's own CPU clock, which counts nanoseconds of all its threads;
 * utime and stime in /proc/PID/stat count the same in ticks of 10 ms, too coarse for short runs.
 */

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/bench/harness.h"

uint64_t bench_now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

void bench_nap_us(unsigned us)
{
        const struct timespec ts = {.tv_sec = us / 1000000, .tv_nsec = (us % 1000000) * 1000L};

        clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}

uint64_t bench_cpu_ns(pid_t pid)
{
        struct timespec ts;
        clockid_t clock;

        if (pid <= 0 || clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &ts))
                return 0;

        return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

uint64_t bench_status_kib(pid_t pid, const char *key)
{
        char path[64], line[256];
        size_t n_key = strlen(key);
        uint64_t value = 0;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        file = pid > 0 ? fopen(path, "re") : NULL;
        if (!file)
                return 0;

        while (fgets(line, sizeof(line), file)) {
                if (!strncmp(line, key, n_key) && line[n_key] == ':') {
                        value = strtoull(line + n_key + 1, NULL, 10);
                        break;
                }
        }

        fclose(file);
        return value;
}

unsigned bench_n_fds(pid_t pid)
{
        char path[64];
        unsigned n = 0;
        DIR *dir;

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        dir = opendir(path);
        if (!dir)
                return 0;

        for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
                n += entry->d_name[0] != '.';

        closedir(dir);
        return n;
}

void bench_say_ready(void)
{
        puts("ready");
        fflush(stdout);
}

static int percentile_compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

uint64_t bench_percentile(uint64_t *values, size_t n_values, double percent)
{
        size_t i;

        if (!n_values)
                return 0;

        qsort(values, n_values, sizeof(*values), percentile_compare);
        i = (size_t)((double)n_values * percent / 100.0);

        return values[i < n_values ? i : n_values - 1];
}
