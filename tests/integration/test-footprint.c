/* SPDX-License-Identifier: MIT */

/*
 * A large array has one place in memory, however many processes read it
 *
 * Summed is Pss, each process's share of the pages that it maps, over publisher, daemon and readers.
 * Only there a second copy shows wherever it is made.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/client.h"
#include "tests/support/proc.h"

#define MIB        (UINT64_C(1) << 20)
#define READERS_N  8u
#define ARRAY_MIB  256u
#define ADDED_MIB  16u
#define FILLING    0x5a
#define PAGE_BYTES 4096u

struct reader {
        pid_t pid;
        int said_fd; /* a byte when it has subscribed, and one when it holds the array and has read it */
};

static const struct nd_transport *const shm = &nd_transports[ND_WAYS_N - 1];

/* Holds the first message until it is killed. */
_Noreturn static void read_and_hold(struct nd_harness *h, int said_fd)
{
        struct ndbus *bus = nd_client_open(h, shm, NULL);
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        const uint8_t *bytes;
        size_t n_wrong = 0;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        nd_client_subscribe(bus, "large", NULL);
        if (write(said_fd, "s", 1) != 1)
                _exit(1);
        m = nd_client_receive(bus);
        if (ndbus_message_arrays(m, &arrays) != 1 ||
            arrays[0].shape[0] != (int64_t)(ARRAY_MIB * MIB))
                _exit(1);
        bytes = arrays[0].data;
        for (uint64_t i = 0; i < ARRAY_MIB * MIB; i += PAGE_BYTES)
                n_wrong += bytes[i] != FILLING;
        if (n_wrong > 0 || write(said_fd, "r", 1) != 1)
                _exit(1);
        for (;;)
                pause();
}

static void reader_start(struct reader *reader, struct nd_harness *h)
{
        int fds[2];

        cr_assert_eq(pipe(fds), 0);
        reader->pid = fork();
        cr_assert_geq(reader->pid, 0);
        if (reader->pid == 0) {
                close(fds[0]);
                read_and_hold(h, fds[1]);
        }
        close(fds[1]);
        reader->said_fd = fds[0];
}

static void reader_expect(const struct reader *reader, char what)
{
        char said = '\0';

        cr_assert_eq(read(reader->said_fd, &said, 1), 1, "a reader ended");
        cr_assert_eq(said, what);
}

static uint64_t pss_of_all(const struct nd_harness *h, const struct reader *readers)
{
        uint64_t sum = 0, bytes;

        for (size_t i = 0; i < READERS_N; ++i) {
                cr_assert(nd_proc_pss(readers[i].pid, &bytes));
                sum += bytes;
        }
        cr_assert(nd_proc_pss(getpid(), &bytes));
        sum += bytes;
        cr_assert(nd_proc_pss(h->pid, &bytes));
        return sum + bytes;
}

Test(footprint, of_one_array_and_eight_readers_is_the_array)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *bus = nd_client_open(h, shm, NULL);
        const int64_t shape = ARRAY_MIB * MIB;
        struct ndbus_array array = {.dtype = "uint8", .ndim = 1, .shape = &shape};
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};
        struct reader readers[READERS_N];
        struct ndbus_loan *loan;
        uint64_t before, added;

        for (size_t i = 0; i < READERS_N; ++i)
                reader_start(&readers[i], h);
        for (size_t i = 0; i < READERS_N; ++i)
                reader_expect(&readers[i], 's');
        before = pss_of_all(h, readers);

        cr_assert_eq(ndbus_loan(bus, &array, 1, &loan), 0, "%s", ndbus_detail());
        memset((void *)(uintptr_t)array.data, FILLING, ARRAY_MIB * MIB);
        cr_assert_eq(ndbus_publish_loan(bus, "large", loan, NULL), 0, "%s", ndbus_detail());
        for (size_t i = 0; i < READERS_N; ++i)
                reader_expect(&readers[i], 'r');

        cr_assert_eq(ndbus_shm_stats(bus, &stats), 0);
        cr_assert_eq(stats.fallback, 0);
        added = pss_of_all(h, readers) - before;
        if (nd_harness_memory_is_exact()) {
                printf("%" PRIu64 " MiB in segments, %" PRId64 " KiB beside them\n",
                       stats.segment_bytes / MIB,
                       ((int64_t)added - (int64_t)stats.segment_bytes) / 1024);
                /* pages of libraries count less while others run who have them too */
                cr_assert_gt(added + ADDED_MIB * MIB, stats.segment_bytes,
                             "the segment is part of it");
                cr_expect_lt(added, stats.segment_bytes + ADDED_MIB * MIB,
                             "%" PRId64 " KiB beside the segment's",
                             ((int64_t)added - (int64_t)stats.segment_bytes) / 1024);
        }

        for (size_t i = 0; i < READERS_N; ++i) {
                kill(readers[i].pid, SIGKILL);
                waitpid(readers[i].pid, NULL, 0);
                close(readers[i].said_fd);
        }
        nd_client_close(bus);
        nd_harness_stop(h);
}
