/* SPDX-License-Identifier: MIT */

/*
 * The closer: whatever hangs, whoever puts a descriptor there goes on, and it is closed when it can be
 *
 * That something is closed is heard by its other end; that nothing waits is that the test ends, long
 * before the minute in which a socket lingers.
 */

#include <criterion/criterion.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/closer.h"
#include "tests/support/lingering.h"

#define N_HANGING 20u

/* In line until it hangs up. Returns the end that hears it. */
static int put_pipe(struct nd_closer *closer)
{
        int fds[2];

        cr_assert_eq(pipe(fds), 0);
        nd_closer_close(closer, &fds[1], 1);
        return fds[0];
}

static bool is_open(int fd)
{
        struct pollfd p = {.fd = fd, .events = POLLIN};

        return poll(&p, 1, 0) == 0;
}

static void expect_closed(int fd)
{
        char byte;

        cr_assert_eq(read(fd, &byte, 1), 0);
        close(fd);
}

/* Its other end hears that a descriptor is closed before it is no longer counted. */
static void wait_until_nothing_is_pending(const struct nd_closer *closer)
{
        while (nd_closer_pending(closer) > 0)
                sched_yield();
}

static void put_hanging(struct nd_closer *closer, int peers[static N_HANGING])
{
        for (size_t i = 0; i < N_HANGING; ++i) {
                int fd;

                peers[i] = nd_lingering_make_nested(&fd);
                nd_closer_close(closer, &fd, 1);
        }
}

/* One after another: the workers are not waited for. */
static void hang_and_go_on(size_t n_workers_max)
{
        struct nd_closer closer;
        int peers[N_HANGING], pipe_end, free_end;

        cr_assert_eq(nd_closer_init(&closer, N_HANGING, n_workers_max), 0);
        free_end = put_pipe(&closer);
        expect_closed(free_end);
        wait_until_nothing_is_pending(&closer);
        put_hanging(&closer, peers);
        cr_assert_eq(nd_closer_pending_received(&closer), N_HANGING, "none of them can be closed");
        cr_assert(nd_closer_is_full(&closer));
        pipe_end = put_pipe(&closer);
        cr_assert(is_open(pipe_end), "all workers hang");
        cr_assert_eq(nd_closer_pending(&closer), N_HANGING + 1);

        for (size_t i = 0; i < N_HANGING; ++i)
                close(peers[i]); /* what was not read is lost, and the close returns */
        expect_closed(pipe_end);
        nd_closer_deinit(&closer);
        nd_closer_deinit(&closer);
}

Test(closer, hangs_in_all_its_threads_and_goes_on)
{
        hang_and_go_on(8);
}

/* As where no thread can be made any more. */
Test(closer, hangs_in_its_only_thread_and_goes_on)
{
        hang_and_go_on(1);
}

Test(closer, has_segments_not_wait_for_what_hangs)
{
        struct nd_segment segment = ND_SEGMENT_NULL;
        struct nd_closer closer;
        int peers[N_HANGING], fds[2];

        cr_assert_eq(nd_closer_init(&closer, N_HANGING, 2), 0);
        put_hanging(&closer, peers);
        cr_assert_eq(pipe(fds), 0);
        segment.fd = fds[1]; /* its other end hears what that of a memfd does not */
        nd_closer_close_segment(&closer, &segment);
        cr_assert_eq(segment.fd, -1);
        expect_closed(fds[0]);
        for (size_t i = 0; i < N_HANGING; ++i)
                close(peers[i]);
        nd_closer_deinit(&closer);
}

/* What no socket option is needed for. */
Test(closer, has_no_socket_linger)
{
        struct nd_closer closer;
        int pipe_end;
        int peers[N_HANGING];

        cr_assert_eq(nd_closer_init(&closer, N_HANGING, 1), 0);
        for (size_t i = 0; i < N_HANGING; ++i) {
                int fds[2];

                nd_lingering_make(fds);
                nd_closer_close(&closer, &fds[0], 1);
                peers[i] = fds[1];
        }
        pipe_end = put_pipe(&closer);
        expect_closed(pipe_end);
        for (size_t i = 0; i < N_HANGING; ++i)
                close(peers[i]);
        nd_closer_deinit(&closer);
}

/* What an unread socket holds hangs as well; and one that is read is closed at once. */
Test(closer, does_not_wait_for_what_a_socket_holds)
{
        struct nd_closer closer;
        int fd, peer, fds[2];

        cr_assert_eq(nd_closer_init(&closer, N_HANGING, 1), 0);
        peer = nd_lingering_make_nested(&fd);
        nd_closer_close_socket(&closer, fd);
        cr_assert_eq(nd_closer_pending_received(&closer), 1);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        nd_closer_close_socket(&closer, fds[0]);
        cr_assert_eq(nd_closer_pending_received(&closer), 1);
        expect_closed(fds[1]);

        nd_closer_deinit(&closer); /* its thread has it still */
        close(peer);
}
