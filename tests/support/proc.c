/* SPDX-License-Identifier: MIT */

/*
 * A process seen from outside
 *
 * Bounds on memory are promises to the operator, so they are tested on the numbers that an operator
 * sees, not on counters of the daemon's own.
 */

#include "tests/support/proc.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static FILE *proc_open(pid_t pid, const char *name, const char *mode)
{
        char path[64];

        snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
        return fopen(path, mode);
}

bool nd_proc_memory(pid_t pid, struct nd_proc_memory *ret_memory)
{
        struct nd_proc_memory m = {0};

        const struct {
                const char *key;
                uint64_t *bytes;
        } fields[] = {
                {"VmRSS", &m.rss_bytes},
                {"VmHWM", &m.rss_peak_bytes},
                {"VmSize", &m.vm_bytes},
                {"VmPeak", &m.vm_peak_bytes},
        };

        size_t n_found = 0;
        char line[256], key[32];
        uint64_t kib;
        FILE *f = proc_open(pid, "status", "re");

        if (!f)
                return false;
        while (fgets(line, sizeof(line), f)) {
                if (sscanf(line, "%31[^:]: %" SCNu64 " kB", key, &kib) != 2)
                        continue;
                for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); ++i) {
                        if (strcmp(key, fields[i].key) == 0) {
                                *fields[i].bytes = kib * 1024;
                                ++n_found;
                        }
                }
        }
        fclose(f);
        /* a zombie has a status, but no memory */
        if (n_found != sizeof(fields) / sizeof(fields[0]))
                return false;

        *ret_memory = m;
        return true;
}

bool nd_proc_pss(pid_t pid, uint64_t *ret_bytes)
{
        FILE *f = proc_open(pid, "smaps_rollup", "re");
        bool is_found = false;
        char line[256];
        uint64_t kib;

        while (f && !is_found && fgets(line, sizeof(line), f))
                is_found = sscanf(line, "Pss: %" SCNu64 " kB", &kib) == 1;
        if (f)
                fclose(f);
        if (is_found)
                *ret_bytes = kib * 1024;
        return is_found;
}

bool nd_proc_reset_peak(pid_t pid)
{
        FILE *f = proc_open(pid, "clear_refs", "we");

        if (!f)
                return false;
        fputs("5", f);
        return fclose(f) == 0;
}

/* What follows the name, which stands in parentheses and may hold anything. "" if it is gone. */
static void proc_read_stat(pid_t pid, char *ret_text, size_t n_text)
{
        char line[1024] = "";
        const char *after_name;
        FILE *f = proc_open(pid, "stat", "re");

        if (f) {
                if (!fgets(line, sizeof(line), f))
                        line[0] = '\0';
                fclose(f);
        }
        after_name = strrchr(line, ')');
        snprintf(ret_text, n_text, "%s", after_name ? after_name : "");
}

bool nd_proc_is_asleep(pid_t pid)
{
        char text[1024];

        proc_read_stat(pid, text, sizeof(text));
        return strncmp(text, ") S", 3) == 0;
}

bool nd_proc_cpu_ns(pid_t pid, uint64_t *ret_ns)
{
        uint64_t user, system, hz = (uint64_t)sysconf(_SC_CLK_TCK);
        char text[1024];

        proc_read_stat(pid, text, sizeof(text));
        if (sscanf(text, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                   &user, &system) != 2)
                return false;

        *ret_ns = (user + system) * (UINT64_C(1000000000) / hz);
        return true;
}

static DIR *proc_open_fds(pid_t pid)
{
        char path[64];

        snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
        return opendir(path);
}

bool nd_proc_fds(pid_t pid, size_t *ret_n)
{
        size_t n = 0;
        DIR *dir = proc_open_fds(pid);

        if (!dir)
                return false;
        for (struct dirent *entry; (entry = readdir(dir));)
                n += entry->d_name[0] != '.';
        closedir(dir);

        *ret_n = n - (pid == getpid());
        return true;
}

/* The next descriptor and what it is; false at the end. */
static bool proc_next_fd(DIR *dir, const char **ret_number, char ret_target[static PATH_MAX])
{
        for (struct dirent *entry; (entry = readdir(dir));) {
                ssize_t n = -1;

                if (entry->d_name[0] != '.')
                        n = readlinkat(dirfd(dir), entry->d_name, ret_target, PATH_MAX - 1);
                if (n < 0)
                        continue;
                ret_target[n] = '\0';
                *ret_number = entry->d_name;
                return true;
        }
        return false;
}

bool nd_proc_has_fd(pid_t pid, const char *target)
{
        char is[PATH_MAX];
        const char *number;
        bool found = false;
        DIR *dir = proc_open_fds(pid);

        while (dir && !found && proc_next_fd(dir, &number, is))
                found = strcmp(is, target) == 0;
        if (dir)
                closedir(dir);
        return found;
}

bool nd_proc_mappings(pid_t pid, const char *name, size_t *ret_n)
{
        char path[64], line[512];
        size_t n = 0;
        FILE *f;

        snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
        f = fopen(path, "re");
        if (!f)
                return false;
        while (fgets(line, sizeof(line), f))
                n += strstr(line, name) != NULL;
        fclose(f);
        *ret_n = n;
        return true;
}

void nd_proc_print_fds(pid_t pid, FILE *f)
{
        char is[PATH_MAX];
        const char *number;
        DIR *dir = proc_open_fds(pid);

        while (dir && proc_next_fd(dir, &number, is))
                fprintf(f, "  fd %s: %s\n", number, is);
        if (dir)
                closedir(dir);
}
