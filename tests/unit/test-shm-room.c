/* SPDX-License-Identifier: MIT */

/*
 * Room: what cgroups of both versions, meminfo and ulimit leave, read from files made here
 */

#include <criterion/criterion.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/shm/room.h"

static char root[200];

static void make_root(void)
{
        const char *tmp = getenv("TMPDIR");

        snprintf(root, sizeof(root), "%s/ndbus-room-XXXXXX", tmp ? tmp : "/tmp");
        cr_assert(mkdtemp(root));
}

static void remove_root(void)
{
        char command[300];

        snprintf(command, sizeof(command), "rm -r '%s'", root);
        cr_assert_eq(system(command), 0);
}

TestSuite(shm_room, .init = make_root, .fini = remove_root);

/* Writes ROOT PATH, its folders too. */
static void put(const char *path, const char *text)
{
        char full[400];
        FILE *file;

        snprintf(full, sizeof(full), "%s%s", root, path);
        for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); ++slash) {
                *slash = '\0';
                mkdir(full, 0700);
                *slash = '/';
        }
        file = fopen(full, "w");
        cr_assert(file, "%s", full);
        fputs(text, file);
        cr_assert_eq(fclose(file), 0);
}

static struct nd_room room_read(void)
{
        struct nd_room room;

        nd_room_read(root, &room);
        return room;
}

Test(shm_room, without_files_nothing_is_limited)
{
        struct nd_room room = room_read();
        struct nd_fault fault;

        cr_assert_eq(room.cgroup_bytes, UINT64_MAX);
        cr_assert_eq(room.available_bytes, UINT64_MAX);
        cr_assert_eq(nd_room_cgroup_max(root), UINT64_MAX);
        cr_assert_eq(nd_room_check(&room, UINT64_C(1) << 60, &fault), 0);
}

Test(shm_room, meminfo)
{
        struct nd_room room;
        struct nd_fault fault;

        put("/proc/meminfo", "MemTotal:       24683936 kB\nMemFree:        23402752 kB\n"
                             "MemAvailable:       8000 kB\nBuffers:              12 kB\n");
        room = room_read();
        cr_assert_eq(room.available_bytes, 8000 * 1024);
        cr_assert_eq(nd_room_check(&room, 7000 * 1024, &fault), 0);
        cr_assert_eq(nd_room_check(&room, 7000 * 1024 + 1, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "MemAvailable");
        cr_assert_eq(fault.value, 7000 * 1024 + 1);
        cr_assert_eq(fault.limit, 7000 * 1024);
}

/* The narrowest of all above counts; the cache of files does not. */
Test(shm_room, version_2)
{
        struct nd_room room;
        struct nd_fault fault;

        put("/proc/self/cgroup", "0::/a/b c\n");
        put("/sys/fs/cgroup/a/b c/memory.max", "max\n");
        put("/sys/fs/cgroup/a/memory.max", "80000000\n");
        put("/sys/fs/cgroup/a/memory.current", "30000000\n");
        put("/sys/fs/cgroup/a/memory.stat", "anon 5000000\nfile 25000000\nactive_anon 7\n"
                                            "inactive_file 20000000\nactive_file 1000000\n");
        room = room_read();
        cr_assert_eq(room.cgroup_bytes, 80000000 - 9000000);
        cr_assert_eq(nd_room_cgroup_max(root), 80000000);

        put("/sys/fs/cgroup/a/b c/memory.max", "50000000\n");
        put("/sys/fs/cgroup/a/b c/memory.current", "49999999\n");
        room = room_read();
        cr_assert_eq(room.cgroup_bytes, 1);
        cr_assert_eq(nd_room_cgroup_max(root), 50000000);
        cr_assert_eq(nd_room_check(&room, 4096, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "memory cgroup");
        cr_assert_eq(fault.value, 4096);
        cr_assert_eq(fault.limit, 1);

        put("/sys/fs/cgroup/a/b c/memory.current", "50000001\n");
        cr_assert_eq(room_read().cgroup_bytes, 0, "over its limit");
}

Test(shm_room, version_1)
{
        put("/proc/self/cgroup", "9:name=systemd:/\n7:cpu,memory:/user/x\n3:cpuset:/\n0::/\n");
        put("/sys/fs/cgroup/memory/user/memory.limit_in_bytes", "1000000\n");
        put("/sys/fs/cgroup/memory/user/memory.usage_in_bytes", "900000\n");
        put("/sys/fs/cgroup/memory/user/memory.stat",
            "inactive_file 1\ntotal_inactive_file 300000\ntotal_active_file 0\n");
        put("/sys/fs/cgroup/memory/user/x/memory.limit_in_bytes", "9223372036854771712\n");
        cr_assert_eq(room_read().cgroup_bytes, 400000);
        cr_assert_eq(nd_room_cgroup_max(root), 1000000);
}

/* In a container the path is that of the host; its own cgroup is at the root of the mount. */
Test(shm_room, a_path_that_is_not_there)
{
        put("/proc/self/cgroup",
            "4:memory:/docker/0123456789abcdef\n0::/docker/0123456789abcdef\n");
        put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700\n");
        put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
        cr_assert_eq(room_read().cgroup_bytes, 600);

        put("/sys/fs/cgroup/memory.max", "500\n");
        put("/sys/fs/cgroup/memory.current", "0\n");
        cr_assert_eq(room_read().cgroup_bytes, 500);
}

Test(shm_room, nonsense_limits_nothing)
{
        put("/proc/self/cgroup", "\n:\n::\n1:memory\n2:memory:x\n0::/\n3:memory,:/a\n4:,memory:/b");
        put("/proc/meminfo", "MemAvailable: none\nMemAvailable\n");
        put("/sys/fs/cgroup/memory.max", "many\n");
        cr_assert_eq(room_read().cgroup_bytes, UINT64_MAX);
        cr_assert_eq(room_read().available_bytes, UINT64_MAX);
        put("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "10\n");
        cr_assert_eq(room_read().cgroup_bytes, 10, "the last line, without its end");
}

Test(shm_room, ulimit)
{
        struct rlimit limit = {.rlim_cur = 12345678, .rlim_max = 12345678};
        struct nd_room room;
        struct nd_fault fault;

        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        room = room_read();
        cr_assert_eq(room.file_bytes, 12345678);
        cr_assert_eq(nd_room_check(&room, 12345678, &fault), 0);
        cr_assert_eq(nd_room_check(&room, 12345679, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "RLIMIT_FSIZE");
        cr_assert_eq(fault.value, 12345679);
        cr_assert_eq(fault.limit, 12345678);
}
