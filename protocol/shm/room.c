/* SPDX-License-Identifier: MIT */

/*
 * Room
 *
 * A limit of a cgroup binds those below it, so all from this process's own up to the root are read.
 * In a container /proc/self/cgroup may name a path that exists outside of it only; what is mounted at
 * the root is then the container's own, and that is read too. Version 2 has one tree for all
 * controllers, version 1 one for memory, and both can be mounted at a time.
 *
 * What a cgroup uses contains the cache of files, which the kernel drops before it kills anybody, so
 * that does not count as used.
 */

#include "protocol/shm/room.h"
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>

#define ROOM_PATH_BYTES 4096

/* The files of one version. */
struct room_files {
        const char *mount;
        const char *limit;
        const char *used;
        const char *cache[2]; /* lines of memory.stat */
};

static const struct room_files room_files_v2 = {
        "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};
static const struct room_files room_files_v1 = {"/sys/fs/cgroup/memory",
                                                "memory.limit_in_bytes",
                                                "memory.usage_in_bytes",
                                                {"total_inactive_file", "total_active_file"}};

/* What is free within all cgroups, and the least of their limits. */
struct room_cgroups {
        uint64_t free_bytes;
        uint64_t limit_bytes;
};

/* Opens ROOT FOLDER/NAME. */
static FILE *room_open(const char *root, const char *folder, const char *name)
{
        char path[ROOM_PATH_BYTES];
        int n = snprintf(path, sizeof(path), "%s%s/%s", root, folder, name);

        return n < 0 || (size_t)n >= sizeof(path) ? NULL : fopen(path, "re");
}

/* The number that a file holds; @otherwise if there is none. */
static uint64_t
room_read_number(const char *root, const char *folder, const char *name, uint64_t otherwise)
{
        FILE *file = room_open(root, folder, name);
        uint64_t number;

        if (!file)
                return otherwise;
        if (fscanf(file, "%" SCNu64, &number) != 1) /* "max" */
                number = otherwise;
        fclose(file);
        return number;
}

/* The number in the line of a file that begins with the word @key; @otherwise if there is none. */
static uint64_t room_read_line(
        const char *root, const char *folder, const char *name, const char *key, uint64_t otherwise)
{
        FILE *file = room_open(root, folder, name);
        uint64_t number = otherwise, value;
        char line[256], word[64];

        if (!file)
                return otherwise;
        while (fgets(line, sizeof(line), file)) {
                if (sscanf(line, "%63s %" SCNu64, word, &value) != 2 || strcmp(word, key) != 0)
                        continue;
                number = value;
                break;
        }
        fclose(file);
        return number;
}

static void room_read_one(const char *root,
                          const struct room_files *files,
                          const char *folder,
                          struct room_cgroups *cgroups)
{
        uint64_t limit = room_read_number(root, folder, files->limit, UINT64_MAX);
        uint64_t used, cache = 0;

        if (limit == UINT64_MAX)
                return;
        used = room_read_number(root, folder, files->used, 0);
        for (size_t i = 0; i < nd_array_size(files->cache); ++i)
                cache += room_read_line(root, folder, "memory.stat", files->cache[i], 0);
        used -= nd_min_u64(used, cache);
        cgroups->limit_bytes = nd_min_u64(cgroups->limit_bytes, limit);
        cgroups->free_bytes = nd_min_u64(cgroups->free_bytes, limit - nd_min_u64(limit, used));
}

/* @path and all above it. @path is cut. */
static void room_read_up(const char *root,
                         const struct room_files *files,
                         char *path,
                         struct room_cgroups *cgroups)
{
        char folder[ROOM_PATH_BYTES];

        for (char *slash = path + strlen(path); slash; slash = strrchr(path, '/')) {
                *slash = '\0';
                snprintf(folder, sizeof(folder), "%s%s", files->mount, path);
                room_read_one(root, files, folder, cgroups);
        }
}

/* Is "memory" one of the comma-separated names before ':'? */
static bool room_has_memory(const char *names)
{
        size_t n = strcspn(names, ":");

        while (n > 0) {
                size_t n_name = strcspn(names, ",:");

                if (n_name == 6 && memcmp(names, "memory", 6) == 0)
                        return true;
                if (n_name == n)
                        return false;
                names += n_name + 1;
                n -= n_name + 1;
        }
        return false;
}

static void room_read_cgroups(const char *root, struct room_cgroups *ret)
{
        FILE *file = room_open(root, "/proc/self", "cgroup");
        char line[ROOM_PATH_BYTES];

        *ret = (struct room_cgroups){UINT64_MAX, UINT64_MAX};
        room_read_one(root, &room_files_v2, room_files_v2.mount, ret);
        room_read_one(root, &room_files_v1, room_files_v1.mount, ret);
        if (!file)
                return;
        while (fgets(line, sizeof(line), file)) {
                char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;

                if (!path || path[1] != '/')
                        continue;
                line[strcspn(line, "\n")] = '\0';
                if (path == names + 1)
                        room_read_up(root, &room_files_v2, path + 1, ret);
                else if (room_has_memory(names + 1))
                        room_read_up(root, &room_files_v1, path + 1, ret);
        }
        fclose(file);
}

void nd_room_read(const char *root, struct nd_room *ret)
{
        struct room_cgroups cgroups;
        struct rlimit limit;
        uint64_t kib;

        room_read_cgroups(root, &cgroups);
        kib = room_read_line(root, "/proc", "meminfo", "MemAvailable:", UINT64_MAX);
        *ret = (struct nd_room){
                .file_bytes = UINT64_MAX,
                .cgroup_bytes = cgroups.free_bytes,
                .available_bytes = kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024,
        };
        if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
                ret->file_bytes = limit.rlim_cur;
}

uint64_t nd_room_cgroup_max(const char *root)
{
        struct room_cgroups cgroups;

        room_read_cgroups(root, &cgroups);
        return cgroups.limit_bytes;
}

static int room_check_one(uint64_t bytes, uint64_t room, const char *what, struct nd_fault *fault)
{
        if (bytes <= room)
                return 0;
        return nd_fault_set_limit(fault, NDBUS_ENO_SPACE, what, bytes, room, "bytes");
}

int nd_room_check(const struct nd_room *room, uint64_t bytes, struct nd_fault *fault)
{
        int r = room_check_one(bytes, room->file_bytes, "RLIMIT_FSIZE", fault);

        if (r == 0)
                r = room_check_one(bytes, room->cgroup_bytes - room->cgroup_bytes / 8,
                                   "memory cgroup", fault);
        if (r == 0)
                r = room_check_one(bytes, room->available_bytes - room->available_bytes / 8,
                                   "MemAvailable", fault);
        return r;
}
