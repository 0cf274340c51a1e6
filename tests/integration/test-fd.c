/* SPDX-License-Identifier: MIT */

/*
 * The descriptor that an application polls
 *
 * Readable exactly when a call would progress, one for the life of the bus, whatever happens to the
 * sockets behind it.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/client.h"

/* More wake-ups than housekeeping has reasons for. */
#define WAKES_MAX 50

static bool is_readable(int fd, int timeout_ms)
{
        struct pollfd p = {.fd = fd, .events = POLLIN};

        return poll(&p, 1, timeout_ms) == 1;
}

/* As an application does it: poll, then receive until nothing is there. What came, or an error. */
static int next(struct ndbus *bus, int fd, struct ndbus_message **ret)
{
        for (;;) {
                int r;

                cr_assert(is_readable(fd, nd_harness_deadline_ms(ND_CLIENT_WAIT_MS)),
                          "the descriptor is not readable");
                r = ndbus_receive(bus, ret, 0);
                if (r != NDBUS_ETIMEDOUT)
                        return r;
        }
}

/* Nothing is there, so after some housekeeping it is quiet. */
static void expect_quiet(struct ndbus *bus, int fd)
{
        struct ndbus_message *m;
        int n = 0;

        while (is_readable(fd, 0)) {
                cr_assert_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
                cr_assert_lt(++n, WAKES_MAX, "the descriptor stays readable and nothing comes");
        }
}

Test(fd, level_triggered)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *bus = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus *pub = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus_message *m;
                int fd;

                nd_client_subscribe(bus, "a", NULL);
                fd = ndbus_fd(bus);
                cr_assert_geq(fd, 0);
                cr_assert_eq(ndbus_fd(bus), fd);
                expect_quiet(bus, fd);

                for (uint64_t i = 1; i <= 5; ++i)
                        nd_client_publish(pub, "a", i, i == 3 ? 3000000 : 100);
                nd_client_flush(pub);
                for (uint64_t i = 1; i <= 5; ++i) {
                        cr_assert_eq(next(bus, fd, &m), 0, "%s", ndbus_detail());
                        nd_client_take_number(m);
                }
                expect_quiet(bus, fd);

                /* another call takes messages in: they make it readable though the socket is
                 * empty */
                for (uint64_t i = 1; i <= 3; ++i)
                        nd_client_publish(pub, "a", i, 100);
                nd_client_flush(pub);
                cr_assert_eq(next(bus, fd, &m), 0);
                cr_assert_eq(nd_client_take_number(m), 1);
                cr_assert_eq(ndbus_ping(bus, NULL, ND_CLIENT_WAIT_MS), 0);
                for (uint64_t i = 2; i <= 3; ++i) {
                        cr_assert_eq(next(bus, fd, &m), 0);
                        cr_assert_eq(nd_client_take_number(m), i);
                }
                expect_quiet(bus, fd);
                nd_client_close(pub);
                nd_client_close(bus);
                nd_harness_stop(h);
        }
}

Test(fd, survives_a_reconnect)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *bus = nd_client_open(h, &nd_transports[t], NULL), *pub;
                uint64_t source = ndbus_source(bus);
                struct ndbus_message *m;
                int fd = ndbus_fd(bus);

                nd_client_subscribe(bus, "a", NULL);
                nd_harness_signal(h, SIGKILL);
                cr_assert_eq(next(bus, fd, &m), NDBUS_ENOTCONN);
                nd_harness_start_again(h);
                while (ndbus_source(bus) == 0 || ndbus_source(bus) == source) {
                        cr_assert(is_readable(fd, nd_harness_deadline_ms(ND_CLIENT_WAIT_MS)));
                        cr_assert_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
                }
                cr_assert_eq(ndbus_ping(bus, NULL, ND_CLIENT_WAIT_MS), 0);
                cr_assert_eq(ndbus_fd(bus), fd);

                pub = nd_client_open(h, &nd_transports[t], NULL);
                nd_client_publish(pub, "a", 7, 100);
                cr_assert_eq(next(bus, fd, &m), 0);
                cr_expect_eq(ndbus_message_dropped(m), NDBUS_UNKNOWN);
                cr_assert_eq(nd_client_take_number(m), 7);
                expect_quiet(bus, fd);
                nd_client_close(pub);
                nd_client_close(bus);
                nd_harness_stop(h);
        }
}

/* A program whose stdin is closed: the number is free, and no connection takes it. */
Test(fd, standard_streams_are_left_alone)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *bus;

                close(STDIN_FILENO);
                bus = nd_client_open(h, &nd_transports[t], NULL);
                cr_assert(fcntl(STDIN_FILENO, F_GETFD) < 0 && errno == EBADF,
                          "over %s something has become stdin", nd_transports[t].name);
                nd_client_close(bus);
                cr_assert_eq(open("/dev/null", O_RDONLY), STDIN_FILENO);
                nd_harness_stop(h);
        }
}
