/* SPDX-License-Identifier: MIT */

/*
 * Rings: what one end writes the other one takes, no lie of either harms the other, and a file that is
 * none is refused
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/shm/ring.h"
#include "tests/support/memfd.h"
#include "tests/support/proc.h"
#include "tests/support/temporary.h"

static size_t n_fds(void)
{
        size_t n = 0;

        cr_assert(nd_proc_fds(getpid(), &n));
        return n;
}

static size_t n_mappings(void)
{
        size_t n = 0;

        cr_assert(nd_proc_mappings(getpid(), "memfd:", &n));
        return n;
}

/* ---------------------------------------------------------------------------------- both ends */

struct ends {
        struct nd_ring client;
        struct nd_ring daemon;
};

static struct ends open_ends(void)
{
        struct ends ends;
        struct nd_fault fault;
        int fd;

        cr_assert_eq(nd_ring_create(&ends.client, &fd, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        cr_assert_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        cr_assert_eq(nd_ring_map(fd, ND_RING_FILE_BYTES, &ends.daemon, &fault), 0, "%s: %s",
                     fault.field, fault.text);
        close(fd);
        cr_assert_neq(ends.client.head, ends.daemon.head);
        return ends;
}

static void close_ends(struct ends *ends)
{
        nd_ring_close(&ends->client);
        nd_ring_close(&ends->daemon);
}

/* What lies at each position; of a period that the ring's size is no multiple of. */
static const uint8_t *bytes_at(uint64_t position)
{
        static uint8_t bytes[ND_RING_BYTES + 1 + 251];

        for (size_t i = 0; i < sizeof(bytes); ++i)
                bytes[i] = (uint8_t)(i % 251);
        return bytes + position % 251;
}

static bool put(struct ends *ends, size_t n)
{
        return nd_ring_put(&ends->client, bytes_at(ends->client.position), n);
}

static void look(struct ends *ends, size_t n_wanted)
{
        static uint8_t out[ND_RING_BYTES];
        struct nd_fault fault;
        size_t n = 0;

        cr_assert_eq(nd_ring_look(&ends->daemon, out, &n, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        cr_assert_eq(n, n_wanted);
        cr_assert_eq(memcmp(out, bytes_at(ends->daemon.position), n), 0);
}

Test(ring, bytes_come_as_they_were_written)
{
        struct ends ends = open_ends();

        look(&ends, 0);
        cr_assert(nd_ring_is_empty(&ends.daemon));
        cr_assert(put(&ends, 1));
        cr_assert(put(&ends, 100));
        cr_assert_not(nd_ring_is_empty(&ends.daemon));
        look(&ends, 101);
        look(&ends, 101); /* looking takes nothing */
        nd_ring_take(&ends.daemon, 1);
        look(&ends, 100);
        nd_ring_take(&ends.daemon, 100);
        look(&ends, 0);
        cr_assert(nd_ring_is_empty(&ends.daemon));
        close_ends(&ends);
}

Test(ring, they_do_so_across_the_end)
{
        struct ends ends = open_ends();

        cr_assert(put(&ends, ND_RING_BYTES - 10));
        look(&ends, ND_RING_BYTES - 10);
        nd_ring_take(&ends.daemon, ND_RING_BYTES - 10);
        cr_assert(put(&ends, 10)); /* to the last byte */
        look(&ends, 10);
        cr_assert(put(&ends, 200));
        look(&ends, 210);
        nd_ring_take(&ends.daemon, 210);
        for (size_t n = 1; ends.client.position < 10u * ND_RING_BYTES; n += 997) {
                cr_assert(put(&ends, n));
                look(&ends, n);
                nd_ring_take(&ends.daemon, n);
        }
        close_ends(&ends);
}

Test(ring, holds_so_many_bytes_and_none_more)
{
        /* where a full one begins */
        static const size_t firsts[] = {0, 1, ND_RING_BYTES / 2, ND_RING_BYTES - 1, ND_RING_BYTES};

        for (size_t i = 0; i < nd_array_size(firsts); ++i) {
                struct ends ends = open_ends();

                if (firsts[i] > 0) {
                        cr_assert(put(&ends, firsts[i]));
                        nd_ring_take(&ends.daemon, firsts[i]);
                }
                cr_assert_not(put(&ends, ND_RING_BYTES + 1));
                cr_assert_not(put(&ends, SIZE_MAX));
                look(&ends, 0);
                cr_assert(put(&ends, ND_RING_BYTES));
                look(&ends, ND_RING_BYTES);
                cr_assert_not(put(&ends, 1));
                look(&ends, ND_RING_BYTES);
                nd_ring_take(&ends.daemon, 7);
                cr_assert_not(put(&ends, 8));
                cr_assert(put(&ends, 7));
                look(&ends, ND_RING_BYTES);
                cr_assert_not(put(&ends, 1));
                close_ends(&ends);
        }
}

Test(ring, is_closed_twice)
{
        struct ends ends = open_ends();

        cr_assert(put(&ends, 5));
        nd_ring_close(&ends.client);
        nd_ring_close(&ends.client);
        cr_assert_null(ends.client.head);
        cr_assert_null(ends.client.data);
        look(&ends, 5); /* the other end lasts */
        nd_ring_close(&ends.daemon);
        nd_ring_close(&ends.daemon);
}

Test(ring, a_child_does_not_have_the_clients_end)
{
        struct ends ends = open_ends();
        unsigned char is_there;
        int status;
        pid_t pid = fork();

        if (pid == 0)
                _exit(mincore(ends.client.head, 4096, &is_there) == 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0);
        cr_assert_eq(mincore(ends.client.head, 4096, &is_there), 0);
        close_ends(&ends);
}

/* --------------------------------------------------------------------------------------- lies */

Test(ring, a_lie_about_what_is_taken_makes_no_room)
{
        struct ends ends = open_ends();
        _Atomic uint64_t *taken = &ends.daemon.head->taken;
        const uint64_t lies[] = {
                ND_RING_BYTES + 11,         /* more than was written, by one */
                ND_RING_BYTES + 11 + 1000,  /* and by some */
                UINT64_MAX,                 /* and by most */
                (uint64_t)1 << 63,          /* and by half of all */
                9,                          /* one more than fits lies before it */
                0,                          /* far behind */
                UINT64_MAX - ND_RING_BYTES, /* and farther than positions reach */
        };

        cr_assert(put(&ends, 10));
        nd_ring_take(&ends.daemon, 10);
        cr_assert(put(&ends, ND_RING_BYTES));
        for (size_t i = 0; i < nd_array_size(lies); ++i) {
                atomic_store(taken, lies[i]);
                cr_assert_not(put(&ends, 1), "%llu", (unsigned long long)lies[i]);
                look(&ends, ND_RING_BYTES); /* nothing was written over */
        }
        nd_ring_take(&ends.daemon, 1); /* and it believes what may be true */
        cr_assert(put(&ends, 1));
        cr_assert_not(put(&ends, 1));
        close_ends(&ends);
}

Test(ring, a_lie_about_what_is_written_is_a_fault)
{
        static uint8_t out[ND_RING_BYTES];
        struct ends ends = open_ends();
        const uint64_t lies[] = {
                10 + ND_RING_BYTES + 1, /* one byte more than it holds */
                9,                      /* before what is taken */
                0,
                (uint64_t)1 << 63,
                UINT64_MAX,
        };

        cr_assert(put(&ends, 10));
        nd_ring_take(&ends.daemon, 10);
        for (size_t i = 0; i < nd_array_size(lies); ++i) {
                struct nd_fault fault = {0};
                size_t n = 4711;

                atomic_store(&ends.client.head->written, lies[i]);
                memset(out, 0xee, sizeof(out));
                cr_assert_eq(nd_ring_look(&ends.daemon, out, &n, &fault), NDBUS_EPROTOCOL);
                cr_assert_eq(fault.code, NDBUS_EPROTOCOL);
                cr_assert_str_eq(fault.field, "written");
                cr_assert(fault.has_numbers);
                cr_assert_eq(fault.value, lies[i]);
                cr_assert_eq(fault.limit, 10 + ND_RING_BYTES);
                cr_assert(strstr(fault.text, "10 are taken"), "%s", fault.text);
                cr_assert_eq(n, 4711);
                cr_assert_eq(out[0], 0xee);
                cr_assert_eq(nd_ring_look(&ends.daemon, out, &n, NULL), NDBUS_EPROTOCOL);
                cr_assert_not(nd_ring_is_empty(&ends.daemon));
        }
        /* one byte less is as many as it holds */
        atomic_store(&ends.client.head->written, 10 + ND_RING_BYTES);
        cr_assert_eq(nd_ring_look(&ends.daemon, out, &(size_t){0}, NULL), 0);
        close_ends(&ends);
}

/* -------------------------------------------------------------------------------------- sleep */

Test(ring, who_writes_behind_a_sleep_must_wake_once)
{
        struct ends ends = open_ends();

        cr_assert(nd_ring_sleep(&ends.daemon), "nothing was written");
        cr_assert(put(&ends, 5));
        cr_assert(nd_ring_must_wake(&ends.client));
        cr_assert_not(nd_ring_must_wake(&ends.client), "it has been said");
        cr_assert(put(&ends, 5));
        cr_assert_not(nd_ring_must_wake(&ends.client));
        look(&ends, 10);
        nd_ring_take(&ends.daemon, 10);
        cr_assert(nd_ring_sleep(&ends.daemon));
        cr_assert(put(&ends, 1));
        cr_assert(nd_ring_must_wake(&ends.client), "and again");
        close_ends(&ends);
}

Test(ring, who_writes_before_it_is_seen_by_who_would_sleep)
{
        struct ends ends = open_ends();

        cr_assert(put(&ends, 5));
        cr_assert_not(nd_ring_must_wake(&ends.client));
        cr_assert_not(nd_ring_sleep(&ends.daemon), "5 bytes were not seen");
        nd_ring_wake(&ends.daemon);
        look(&ends, 5);

        cr_assert(put(&ends, 5)); /* between the look and the sleep */
        cr_assert_not(nd_ring_must_wake(&ends.client));
        cr_assert_not(nd_ring_sleep(&ends.daemon), "5 more were not seen");
        nd_ring_wake(&ends.daemon);
        look(&ends, 10);
        nd_ring_take(&ends.daemon, 10);
        cr_assert(nd_ring_sleep(&ends.daemon));
        close_ends(&ends);
}

Test(ring, both_may_find_each_other)
{
        struct ends ends = open_ends();

        cr_assert(put(&ends, 5));
        cr_assert_not(nd_ring_sleep(&ends.daemon), "it sees what was written");
        cr_assert(nd_ring_must_wake(&ends.client), "and is woken for nothing");
        nd_ring_wake(&ends.daemon);
        look(&ends, 5);
        cr_assert(put(&ends, 5));
        cr_assert_not(nd_ring_must_wake(&ends.client), "it is awake");
        close_ends(&ends);
}

Test(ring, who_has_seen_and_not_taken_may_sleep)
{
        struct ends ends = open_ends();

        cr_assert(put(&ends, 5));
        look(&ends, 5);
        cr_assert(nd_ring_sleep(&ends.daemon), "it is not the turn of what is there");
        cr_assert_not(nd_ring_is_empty(&ends.daemon));
        nd_ring_take(&ends.daemon, 5);
        cr_assert(nd_ring_sleep(&ends.daemon));
        cr_assert(put(&ends, 5));
        cr_assert(nd_ring_must_wake(&ends.client));
        close_ends(&ends);
}

/* ----------------------------------------------------------------------- what is none, and seals */

static void refused(int fd, uint64_t bytes, const char *field)
{
        struct nd_ring ring = {0};
        struct nd_fault fault = {0};
        size_t n = n_fds(), n_mapped = n_mappings();

        cr_assert_geq(fd, 0);
        cr_assert_eq(nd_ring_map(fd, bytes, &ring, &fault), NDBUS_ESHM, "%s: %s", fault.field,
                     fault.text);
        cr_assert_eq(fault.code, NDBUS_ESHM);
        cr_assert_str_eq(fault.field, field, "%s: %s", fault.field, fault.text);
        cr_assert_null(ring.head);
        cr_assert_eq(nd_ring_map(fd, bytes, &ring, NULL), NDBUS_ESHM);
        cr_assert_eq(n_fds(), n, "it stays the caller's");
        cr_assert_eq(n_mappings(), n_mapped, "%s: %s", fault.field, fault.text);
        cr_assert_eq(close(fd), 0);
}

Test(ring, what_is_no_memfd_is_refused)
{
        char name[128];
        int fds[2], file;
        size_t n = n_fds();

        nd_temporary_name(name, sizeof(name), "ring");
        file = mkostemp(name, O_CLOEXEC);
        cr_assert_geq(file, 0);
        unlink(name);
        cr_assert_eq(posix_fallocate(file, 0, ND_RING_FILE_BYTES), 0);
        refused(file, ND_RING_FILE_BYTES, "fd");
        cr_assert_eq(pipe(fds), 0);
        refused(fds[0], ND_RING_FILE_BYTES, "fd");
        refused(fds[1], ND_RING_FILE_BYTES, "fd");
        refused(socket(AF_UNIX, SOCK_STREAM, 0), ND_RING_FILE_BYTES, "fd");
        refused(open("/dev/zero", O_RDWR), ND_RING_FILE_BYTES, "fd");
        refused(open("/", O_RDONLY | O_DIRECTORY), ND_RING_FILE_BYTES, "fd");
        refused(open("/dev/null", O_PATH), ND_RING_FILE_BYTES, "fd");
        cr_assert_eq(n_fds(), n);
}

static int file_of(uint64_t bytes, int seals)
{
        return nd_memfd_make(bytes, bytes, seals);
}

Test(ring, one_that_cannot_be_sealed_or_written_is_refused)
{
        size_t n = n_fds();
        int fd = memfd_create("test", MFD_CLOEXEC);

        cr_assert_eq(fallocate(fd, 0, 0, ND_RING_FILE_BYTES), 0);
        refused(fd, ND_RING_FILE_BYTES, "seals");
        refused(file_of(ND_RING_FILE_BYTES, F_SEAL_SEAL), ND_RING_FILE_BYTES, "seals");
        refused(file_of(ND_RING_FILE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                ND_RING_FILE_BYTES, "seals");
        refused(file_of(ND_RING_FILE_BYTES, F_SEAL_FUTURE_WRITE), ND_RING_FILE_BYTES, "fd");
        refused(file_of(ND_RING_FILE_BYTES, F_SEAL_WRITE), ND_RING_FILE_BYTES, "fd");
        refused(nd_memfd_reopen(file_of(ND_RING_FILE_BYTES, 0), O_RDONLY), ND_RING_FILE_BYTES,
                "fd");
        refused(nd_memfd_reopen(file_of(ND_RING_FILE_BYTES, 0), O_WRONLY), ND_RING_FILE_BYTES,
                "fd");
        refused(nd_memfd_reopen(file_of(ND_RING_FILE_BYTES, 0), O_PATH), ND_RING_FILE_BYTES, "fd");
        cr_assert_eq(n_fds(), n);
}

Test(ring, one_of_a_wrong_size_or_with_holes_is_refused)
{
        static const uint64_t places[] = {
                0,
                ND_RING_BYTES,
                ND_RING_FILE_BYTES - 1,
                ND_RING_FILE_BYTES + 1,
                ND_RING_FILE_BYTES + ((uint64_t)1 << 32),
                UINT64_MAX,
        };
        size_t n = n_fds();
        int fd;

        for (size_t i = 0; i < nd_array_size(places); ++i) {
                struct nd_fault fault;
                struct nd_ring ring = {0};

                fd = file_of(ND_RING_FILE_BYTES, 0);
                cr_assert_eq(nd_ring_map(fd, places[i], &ring, &fault), NDBUS_ESHM);
                cr_assert(fault.has_numbers);
                cr_assert_eq(fault.value, places[i]);
                cr_assert_eq(fault.limit, ND_RING_FILE_BYTES);
                refused(fd, places[i], "place");
        }
        refused(nd_memfd_make(0, 0, 0), ND_RING_FILE_BYTES, "fd");
        refused(file_of(ND_RING_FILE_BYTES - 1, 0), ND_RING_FILE_BYTES, "fd");
        refused(file_of(ND_RING_FILE_BYTES - 4096, 0), ND_RING_FILE_BYTES, "fd");
        refused(file_of(ND_RING_FILE_BYTES + 1, 0), ND_RING_FILE_BYTES, "fd");
        refused(file_of(2 * ND_RING_FILE_BYTES, 0), ND_RING_FILE_BYTES, "fd");
        refused(nd_memfd_make(ND_RING_FILE_BYTES, 0, 0), ND_RING_FILE_BYTES, "fd");
        refused(nd_memfd_make(ND_RING_FILE_BYTES, ND_RING_FILE_BYTES - 4096, 0), ND_RING_FILE_BYTES,
                "fd");
        fd = file_of(ND_RING_FILE_BYTES, 0);
        cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
        refused(fd, ND_RING_FILE_BYTES, "fd");
        cr_assert_eq(n_fds(), n);
}

/* Less than a huge page can be mapped of one, and not be unmapped again. */
Test(ring, one_of_huge_pages_is_refused)
{
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
        struct stat st;

        if (fd < 0)
                cr_skip_test("a kernel without huge pages");
        cr_assert_eq(fstat(fd, &st), 0);
        cr_assert_eq(ftruncate(fd, st.st_blksize), 0);
        refused(fd, ND_RING_FILE_BYTES, "fd");
}

Test(ring, what_is_allocated_past_the_end_is_no_part_of_it)
{
        struct nd_ring ring = {0};
        struct stat before, after;
        struct nd_fault fault;
        int fd = nd_memfd_make(ND_RING_FILE_BYTES, 0, 0);

        cr_assert_eq(fallocate(fd, FALLOC_FL_KEEP_SIZE, ND_RING_FILE_BYTES, ND_RING_FILE_BYTES), 0);
        cr_assert_eq(nd_ring_map(fd, ND_RING_FILE_BYTES, &ring, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        cr_assert_eq(fstat(fd, &before), 0);
        memset(ring.head, 1, ND_RING_FILE_BYTES);
        cr_assert_eq(fstat(fd, &after), 0);
        cr_assert_eq(after.st_blocks, before.st_blocks, "no page was missing");
        nd_ring_close(&ring);
        close(fd);
}

static void *map_to_write(int fd)
{
        return mmap(NULL, ND_RING_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

Test(ring, nobody_can_change_the_file_of_a_good_one)
{
        const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        struct nd_ring client, daemon;
        struct nd_fault fault;
        size_t n = n_fds();
        void *reader;
        int fd, again;

        cr_assert_eq(nd_ring_create(&client, &fd, &fault), 0);
        cr_assert_eq(n_fds(), n + 1);
        cr_assert_eq(nd_ring_map(fd, ND_RING_FILE_BYTES, &daemon, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        cr_assert_eq(n_fds(), n + 1, "the mapping needs no other");

        cr_assert_lt(ftruncate(fd, 4096), 0);
        cr_assert_lt(ftruncate(fd, ND_RING_FILE_BYTES - 1), 0);
        cr_assert_lt(ftruncate(fd, ND_RING_FILE_BYTES + 1), 0);
        cr_assert_lt(fallocate(fd, 0, 0, 2 * ND_RING_FILE_BYTES), 0);
        cr_assert_lt(fallocate(fd, punch, 0, 4096), 0);
        cr_assert_lt(fallocate(fd, punch, ND_RING_HEAD_BYTES, ND_RING_BYTES), 0);
        cr_assert_lt(madvise(client.head, ND_RING_FILE_BYTES, MADV_REMOVE), 0);
        cr_assert_lt(madvise(daemon.head, ND_RING_FILE_BYTES, MADV_REMOVE), 0);
        cr_assert_lt(pwrite(fd, "x", 1, 0), 0);
        cr_assert_eq(map_to_write(fd), MAP_FAILED);
        cr_assert_lt(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        cr_assert_eq(errno, EPERM, "not even seals");

        again = nd_memfd_reopen(dup(fd), O_RDWR);
        cr_assert_eq(map_to_write(again), MAP_FAILED);
        reader = mmap(NULL, ND_RING_FILE_BYTES, PROT_READ, MAP_SHARED, again, 0);
        cr_assert_neq(reader, MAP_FAILED);
        cr_assert_lt(mprotect(reader, ND_RING_FILE_BYTES, PROT_READ | PROT_WRITE), 0);
        munmap(reader, ND_RING_FILE_BYTES);
        close(again);
        refused(fd, ND_RING_FILE_BYTES, "fd"); /* nor is it mapped for a second connection */

        cr_assert(nd_ring_put(&client, "abc", 3));
        cr_assert_eq(memcmp(daemon.data, "abc", 3), 0, "these two are what they were");
        cr_assert_eq(n_mappings(), 2);
        nd_ring_close(&client);
        nd_ring_close(&daemon);
        cr_assert_eq(n_fds(), n);
        cr_assert_eq(n_mappings(), 0);
}
