/* SPDX-License-Identifier: MIT */

/*
 * Segments: what is made is accepted, whatever else is not, and neither end can change it
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/shm/segment.h"
#include "tests/support/memfd.h"
#include "tests/support/proc.h"

#define BYTES ((uint64_t)1 << 20)

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static struct nd_segment make(uint64_t bytes)
{
        struct nd_segment segment;
        struct nd_fault fault;
        struct nd_room room;

        nd_room_read("", &room);
        cr_assert_eq(nd_segment_create(bytes, &room, &segment, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        return segment;
}

static size_t n_fds(void)
{
        size_t n = 0;

        cr_assert(nd_proc_fds(getpid(), &n));
        return n;
}

Test(shm_segment, is_written_here_and_read_there)
{
        struct nd_segment segment = make(BYTES), reader = ND_SEGMENT_NULL;
        struct nd_fault fault;
        int fd = fcntl(segment.fd, F_DUPFD_CLOEXEC, 0);

        cr_assert_eq((uintptr_t)segment.base % 4096, 0);
        cr_assert_eq(fcntl(segment.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        cr_assert_eq(nd_segment_check(fd, BYTES, &fault), 0, "%s: %s", fault.field, fault.text);
        cr_assert_eq(nd_segment_map_read(fd, BYTES, &reader, &fault), 0);
        memset(segment.base, 0x5a, BYTES);
        cr_assert_eq(memcmp(reader.base, segment.base, BYTES), 0);

        cr_assert_lt(mprotect(reader.base, BYTES, PROT_READ | PROT_WRITE), 0);
        cr_assert_eq(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        cr_assert_lt(ftruncate(fd, 4096), 0);
        cr_assert_lt(fallocate(segment.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
        cr_assert_lt(madvise(segment.base, 4096, MADV_REMOVE), 0);
        cr_assert_lt(pwrite(fd, "x", 1, 0), 0);

        nd_segment_close_fd(&segment);
        nd_segment_close(&segment);
        nd_segment_close(&segment);
        cr_assert_eq(reader.base[BYTES - 1], 0x5a, "the reader's lasts");
        nd_segment_close(&reader);
}

Test(shm_segment, that_is_bare_is_none_until_it_is_filled)
{
        struct nd_segment segment = ND_SEGMENT_NULL;
        struct nd_fault fault;
        struct nd_room room;

        nd_room_read("", &room);
        cr_assert_eq(nd_segment_create_bare(BYTES, &room, &segment, &fault), 0);
        cr_assert_eq(nd_segment_check(segment.fd, BYTES, &fault), NDBUS_ESHM);
        cr_assert_eq(nd_segment_fill(&segment, 0, BYTES - 4096, &fault), 0);
        cr_assert_eq(nd_segment_check(segment.fd, BYTES, &fault), NDBUS_ESHM, "a page is missing");
        cr_assert_eq(nd_segment_fill(&segment, BYTES - 4096, BYTES, &fault), 0);
        cr_assert_eq(nd_segment_check(segment.fd, BYTES, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        memset(segment.base, 0x5a, BYTES);
        cr_assert_lt(pwrite(segment.fd, "x", 1, 0), 0);
        cr_assert_eq(nd_segment_fill(&segment, 0, BYTES, &fault), 0, "what is there stays");
        cr_assert_eq(segment.base[BYTES - 1], 0x5a);
        nd_segment_close(&segment);

        room.file_bytes = BYTES - 1;
        cr_assert_eq(nd_segment_create_bare(BYTES, &room, &segment, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "RLIMIT_FSIZE");
}

Test(shm_segment, a_child_has_no_part_in_it)
{
        struct nd_segment segment = make(4096);
        int status;
        pid_t pid = fork();

        if (pid == 0) {
                struct rlimit none = {0};

                setrlimit(RLIMIT_CORE, &none);
                signal(SIGSEGV, SIG_DFL);
                segment.base[0] = 1;
                _exit(0);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_neq(status, 0);
        cr_assert_eq(segment.base[0], 0);
        nd_segment_close(&segment);
}

static void refused(int fd, uint64_t bytes, const char *field)
{
        struct nd_fault fault;

        cr_assert_geq(fd, 0);
        cr_assert_eq(nd_segment_check(fd, bytes, &fault), NDBUS_ESHM, "%s", field);
        cr_assert_str_eq(fault.field, field, "%s: %s", fault.field, fault.text);
        close(fd);
}

Test(shm_segment, refuses_what_is_none)
{
        char name[] = "/tmp/ndbus-segment-XXXXXX";
        int fds[2], file = mkstemp(name);
        size_t n = n_fds();

        cr_assert_geq(file, 0);
        unlink(name);
        cr_assert_eq(ftruncate(file, BYTES), 0);
        refused(file, BYTES, "fd");
        cr_assert_eq(pipe(fds), 0);
        refused(fds[0], BYTES, "fd");
        refused(fds[1], BYTES, "fd");
        refused(socket(AF_UNIX, SOCK_STREAM, 0), BYTES, "fd");
        refused(open("/dev/zero", O_RDWR), BYTES, "fd");
        refused(open("/", O_RDONLY | O_DIRECTORY), BYTES, "fd");
        refused(open("/dev/null", O_PATH), BYTES, "fd");
        cr_assert_eq(n_fds(), n - 1);

        for (int seal = F_SEAL_SEAL; seal <= F_SEAL_FUTURE_WRITE; seal *= 2) {
                if (ALL_SEALS & seal)
                        refused(nd_memfd_make(BYTES, BYTES, ALL_SEALS & ~seal), BYTES, "seals");
        }
        refused(memfd_create("test", MFD_CLOEXEC), BYTES, "seals");
}

/* Nor what cannot be written: what lies past its end could not be taken away. */
Test(shm_segment, refuses_what_is_not_open_for_both)
{
        refused(nd_memfd_reopen(nd_memfd_make(BYTES, BYTES, ALL_SEALS), O_WRONLY), BYTES, "fd");
        refused(nd_memfd_reopen(nd_memfd_make(BYTES, BYTES, ALL_SEALS), O_ACCMODE), BYTES, "fd");
        refused(nd_memfd_reopen(nd_memfd_make(BYTES, BYTES, ALL_SEALS), O_PATH), BYTES, "fd");
        refused(nd_memfd_reopen(nd_memfd_make(BYTES, BYTES, ALL_SEALS), O_RDONLY), BYTES, "fd");
}

Test(shm_segment, refuses_a_wrong_size_and_holes)
{
        struct nd_fault fault;
        int fd;

        refused(nd_memfd_make(BYTES, BYTES, ALL_SEALS), BYTES + 4096, "place");
        refused(nd_memfd_make(BYTES, BYTES, ALL_SEALS), BYTES - 4096, "place");
        refused(nd_memfd_make(BYTES, BYTES, ALL_SEALS), 0, "place");
        refused(nd_memfd_make(0, 0, ALL_SEALS), 0, "place");
        refused(nd_memfd_make(BYTES + 100, BYTES + 100, ALL_SEALS), BYTES + 100, "place");
        refused(nd_memfd_make(BYTES, BYTES, ALL_SEALS), UINT64_MAX / 4096 * 4096, "place");
        refused(nd_memfd_make(BYTES, 0, ALL_SEALS), BYTES, "fd");
        refused(nd_memfd_make(BYTES, BYTES - 4096, ALL_SEALS), BYTES, "fd");

        fd = nd_memfd_make(BYTES, BYTES, ALL_SEALS);
        cr_assert_eq(nd_segment_check(fd, BYTES, &fault), 0, "the last of these is a good one");
        close(fd);
}

/* Of @n_allocated bytes at its beginning, and as many past its end as it lacks. */
static int memfd_with_a_tail(off_t n_allocated)
{
        int fd = nd_memfd_make(BYTES, (uint64_t)n_allocated, 0);

        cr_assert_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, BYTES, BYTES), 0);
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
        return fd;
}

Test(shm_segment, is_not_deceived_by_blocks_past_its_end)
{
        struct nd_fault fault;
        struct stat st;
        int fd;

        refused(memfd_with_a_tail(BYTES - 4096), BYTES, "fd");
        refused(memfd_with_a_tail(0), BYTES, "fd");
        fd = memfd_with_a_tail(BYTES);
        cr_assert_eq(nd_segment_check(fd, BYTES, &fault), 0, "%s: %s", fault.field, fault.text);
        cr_assert_eq(fstat(fd, &st), 0);
        cr_expect_eq(st.st_blocks, BYTES / 512);
        close(fd);
}

/* T52: an error with both numbers, not SIGXFSZ. */
Test(shm_segment, stays_below_the_file_size_limit)
{
        struct rlimit limit = {.rlim_cur = BYTES, .rlim_max = RLIM_INFINITY};
        struct nd_segment segment = ND_SEGMENT_NULL;
        struct nd_fault fault;
        struct nd_room room;
        size_t n = n_fds();

        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = BYTES;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        nd_room_read("", &room);
        cr_assert_eq(nd_segment_create(BYTES + 4096, &room, &segment, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "RLIMIT_FSIZE");
        cr_assert_eq(fault.value, BYTES + 4096);
        cr_assert_eq(fault.limit, BYTES);
        cr_assert_eq(segment.fd, -1);
        cr_assert_eq(nd_segment_create(BYTES, &room, &segment, &fault), 0);
        nd_segment_close(&segment);
        cr_assert_eq(n_fds(), n);
}

Test(shm_segment, says_that_descriptors_ran_out)
{
        struct nd_segment segment = ND_SEGMENT_NULL;
        struct nd_fault fault;
        struct nd_room room;
        struct rlimit limit;

        nd_room_read("", &room);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = (rlim_t)dup(0);
        close((int)limit.rlim_cur);
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        cr_assert_eq(nd_segment_create(BYTES, &room, &segment, &fault), NDBUS_ENO_FD);
        cr_assert_str_eq(fault.field, "memfd_create");
}
