/* SPDX-License-Identifier: MIT */

/*
 * Groups through the library: who finishes what, and what becomes of the rest
 *
 * Messages carry their number, so each test can say which were handled, by whom and how often.
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/harness.h"

#define N_MAX 400u

static int deadline_ms(void)
{
        return nd_harness_deadline_ms(20000);
}

static struct ndbus *open_bus(const char *url)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;

        options.connect_timeout_ms = deadline_ms();
        cr_assert_eq(ndbus_open(&bus, url, &options), 0, "%s", ndbus_detail());
        return bus;
}

static void close_bus(struct ndbus *bus)
{
        cr_assert_eq(ndbus_close(bus, deadline_ms(), NULL), 0, "%s", ndbus_detail());
}

static struct ndbus_subscription *join(struct ndbus *bus, uint64_t window)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_subscription *sub = NULL;

        options.group = "workers";
        options.window = window;
        options.timeout_ms = deadline_ms();
        cr_assert_eq(ndbus_subscribe(bus, "jobs/*", &options, &sub), 0, "%s", ndbus_detail());
        return sub;
}

static void publish(struct ndbus *bus, uint64_t first, uint64_t last)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;

        options.timeout_ms = deadline_ms();
        for (uint64_t i = first; i <= last; ++i) {
                const struct ndbus_array array = {.data = &i, .dtype = "uint64"};

                cr_assert_eq(ndbus_publish(bus, "jobs/a", &array, 1, &options), 0, "%s",
                             ndbus_detail());
        }
        cr_assert_eq(ndbus_flush(bus, deadline_ms()), 0, "%s", ndbus_detail());
}

static uint64_t number_of(const struct ndbus_message *m)
{
        const struct ndbus_array *arrays;
        uint64_t number = 0;

        cr_assert_eq(ndbus_message_arrays(m, &arrays), 1);
        memcpy(&number, arrays[0].data, sizeof(number));
        cr_assert(number >= 1 && number < N_MAX, "number %llu", (unsigned long long)number);
        return number;
}

static struct ndbus_message *receive(struct ndbus *bus)
{
        struct ndbus_message *m = NULL;

        cr_assert_eq(ndbus_receive(bus, &m, deadline_ms()), 0, "%s", ndbus_detail());
        return m;
}

static void expect_nothing(struct ndbus *bus)
{
        struct ndbus_message *m = NULL;

        /* after a round trip all that was on its way is here */
        cr_assert_eq(ndbus_ping(bus, NULL, deadline_ms()), 0, "%s", ndbus_detail());
        cr_expect_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
}

/* Has the daemon handle what was said so far. */
static void settle(struct ndbus *bus)
{
        cr_assert_eq(ndbus_ping(bus, NULL, deadline_ms()), 0, "%s", ndbus_detail());
}

Test(groups, finishes_in_any_order)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *publisher = open_bus(h->unix_url), *worker = open_bus(h->tcp_url);
        struct ndbus_message *held[4];

        join(worker, 4);
        publish(publisher, 1, 6);
        for (size_t i = 0; i < 4; ++i) {
                held[i] = receive(worker);
                cr_expect_eq(number_of(held[i]), i + 1);
                cr_expect_not(ndbus_message_redelivered(held[i]));
        }
        expect_nothing(worker);
        ndbus_message_free(held[2]);
        held[2] = receive(worker);
        cr_expect_eq(number_of(held[2]), 5);
        ndbus_message_free(held[0]);
        held[0] = receive(worker);
        cr_expect_eq(number_of(held[0]), 6);
        expect_nothing(worker);
        for (size_t i = 0; i < 4; ++i)
                ndbus_message_free(held[i]);
        close_bus(worker);
        close_bus(publisher);
        nd_harness_stop(h);
}

/* What is finished when a member closes stays finished; what it still holds goes to others. */
Test(groups, closing_gives_back_what_is_held)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *publisher = open_bus(h->unix_url);
        struct ndbus *first = open_bus(h->unix_url), *second = open_bus(h->unix_url);
        struct ndbus_message *held[3], *m;

        join(first, 3);
        publish(publisher, 1, 4);
        for (size_t i = 0; i < 3; ++i)
                held[i] = receive(first);
        join(second, 8);
        m = receive(second);
        cr_expect_eq(number_of(m), 4);
        cr_expect_not(ndbus_message_redelivered(m));
        ndbus_message_free(m);

        ndbus_message_free(held[1]);
        close_bus(first);
        ndbus_message_free(held[0]); /* too late: finishes nothing */
        for (uint64_t i = 1; i <= 3; i += 2) {
                m = receive(second);
                cr_expect_eq(number_of(m), i);
                cr_expect(ndbus_message_redelivered(m));
                ndbus_message_free(m);
        }
        expect_nothing(second);
        cr_expect_eq(number_of(held[2]), 3, "a message outlives its bus");
        ndbus_message_free(held[2]);
        close_bus(second);
        close_bus(publisher);
        nd_harness_stop(h);
}

Test(groups, unsubscribing_finishes_what_was_freed)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *publisher = open_bus(h->unix_url);
        struct ndbus *first = open_bus(h->unix_url), *second = open_bus(h->unix_url);
        struct ndbus_subscription *sub = join(first, 3);
        struct ndbus_message *held[2], *m;

        publish(publisher, 1, 2);
        held[0] = receive(first);
        held[1] = receive(first);
        join(second, 8);
        ndbus_message_free(held[0]);
        cr_assert_eq(ndbus_unsubscribe(sub), 0);
        m = receive(second);
        cr_expect_eq(number_of(m), 2);
        cr_expect(ndbus_message_redelivered(m));
        ndbus_message_free(m);
        expect_nothing(second);
        ndbus_message_free(held[1]);
        settle(first);
        close_bus(first);
        close_bus(second);
        close_bus(publisher);
        nd_harness_stop(h);
}

/* The child: takes ten, frees every second one, latest first, says so, and waits to be killed. */
static void run_victim(const char *url, int fd)
{
        struct ndbus_message *held[10];
        struct ndbus *bus = open_bus(url);

        join(bus, 10);
        if (write(fd, "s", 1) != 1)
                _exit(1);
        for (size_t i = 0; i < 10; ++i)
                held[i] = receive(bus);
        for (size_t i = 10; i-- > 0;)
                if (number_of(held[i]) % 2 == 0)
                        ndbus_message_free(held[i]);
        settle(bus);
        if (write(fd, "f", 1) != 1)
                _exit(1);
        for (;;)
                pause();
}

static void expect_said(int fd, char what)
{
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char said = 0;

        cr_assert_eq(poll(&p, 1, deadline_ms()), 1);
        cr_assert_eq(read(fd, &said, 1), 1);
        cr_assert_eq(said, what);
}

Test(groups, a_killed_member_loses_nothing)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *publisher, *workers[2];
        unsigned n_seen[N_MAX] = {0}, n_seen_all = 0;
        struct ndbus_message *m;
        int fds[2], status;
        pid_t child;

        cr_assert_eq(pipe(fds), 0);
        child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
                run_victim(h->unix_url, fds[1]);
                _exit(1);
        }
        expect_said(fds[0], 's');
        publisher = open_bus(h->unix_url);
        publish(publisher, 1, 10);
        expect_said(fds[0], 'f'); /* 1, 3, 5, 7 and 9 are not finished; it has room for 5 more */
        publish(publisher, 11, 40);
        workers[0] = open_bus(h->unix_url);
        workers[1] = open_bus(h->tcp_url);
        join(workers[0], 4);
        join(workers[1], 4);
        cr_assert_eq(kill(child, SIGKILL), 0);
        cr_assert_eq(waitpid(child, &status, 0), child);

        for (size_t i = 0; n_seen_all < 35; ++i) {
                struct ndbus *worker = workers[i % 2];
                uint64_t number;

                if (ndbus_receive(worker, &m, 10))
                        continue;
                number = number_of(m);
                cr_expect_eq(++n_seen[number], 1, "%llu came twice", (unsigned long long)number);
                cr_expect(number > 10 || number % 2 == 1, "%llu was finished",
                          (unsigned long long)number);
                cr_expect_eq(ndbus_message_redelivered(m), number <= 15, "of %llu",
                             (unsigned long long)number);
                ++n_seen_all;
                ndbus_message_free(m);
        }
        expect_nothing(workers[0]);
        expect_nothing(workers[1]);
        close_bus(workers[0]);
        close_bus(workers[1]);
        close_bus(publisher);
        close(fds[0]);
        close(fds[1]);
        nd_harness_stop(h);
}

/* Three share, one closes in the middle: each number is handled, twice only where it is marked. */
Test(groups, three_share)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *publisher = open_bus(h->unix_url), *workers[3];
        bool is_finished[N_MAX] = {false};
        struct ndbus_message *held[3] = {NULL}, *m;
        size_t n_finished = 0, n_by[3] = {0};

        for (size_t i = 0; i < 3; ++i) {
                workers[i] = open_bus(i == 2 ? h->tcp_url : h->unix_url);
                join(workers[i], 16);
        }
        publish(publisher, 1, N_MAX - 1);
        for (size_t i = 0; n_finished < N_MAX - 1; ++i) {
                size_t k = i % 3;

                if (workers[k] && k == 1 && i >= 100) {
                        if (held[k]) {
                                is_finished[number_of(held[k])] = true;
                                ++n_finished;
                        }
                        ndbus_message_free(held[k]);
                        held[k] = NULL;
                        close_bus(workers[k]); /* what came and was not received goes to others */
                        workers[k] = NULL;
                }
                if (!workers[k] || ndbus_receive(workers[k], &m, 1))
                        continue;
                ++n_by[k];
                cr_expect_not(is_finished[number_of(m)], "finished, and came again");
                /* one is held back, so that they are finished out of order */
                if (held[k]) {
                        is_finished[number_of(held[k])] = true;
                        ++n_finished;
                        ndbus_message_free(held[k]);
                        held[k] = NULL;
                        is_finished[number_of(m)] = true;
                        ++n_finished;
                        ndbus_message_free(m);
                } else if (n_finished + 8 > N_MAX) {
                        is_finished[number_of(m)] = true;
                        ++n_finished;
                        ndbus_message_free(m);
                } else {
                        held[k] = m;
                }
        }
        for (size_t i = 1; i < N_MAX; ++i)
                cr_expect(is_finished[i], "%zu is missing", i);
        for (size_t k = 0; k < 3; ++k) {
                cr_expect_gt(n_by[k], 0, "worker %zu got nothing", k);
                ndbus_message_free(held[k]);
                if (workers[k])
                        close_bus(workers[k]);
        }
        close_bus(publisher);
        nd_harness_stop(h);
}

/* After a restart of the daemon a message of before finishes nothing, and does no harm. */
Test(groups, messages_of_an_earlier_connection_finish_nothing)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *publisher = open_bus(h->unix_url), *worker = open_bus(h->unix_url);
        struct ndbus_message *old, *m = NULL;
        int r;

        join(worker, 1);
        publish(publisher, 1, 1);
        old = receive(worker);
        cr_assert_eq(ndbus_close(publisher, deadline_ms(), NULL), 0);
        nd_harness_signal(h, SIGKILL);
        nd_harness_wait_exit(h, deadline_ms(), NULL);
        cr_expect_eq(ndbus_receive(worker, &m, deadline_ms()), NDBUS_ENOTCONN);
        nd_harness_start_again(h);
        do
                r = ndbus_ping(worker, NULL, deadline_ms());
        while (r == NDBUS_ENOTCONN);
        cr_assert_eq(r, 0, "%s", ndbus_detail());
        publisher = open_bus(h->unix_url);
        cr_assert_eq(ndbus_wait_subscribers(publisher, "jobs/a", 1, deadline_ms()), 0);
        publish(publisher, 2, 3);
        m = receive(worker);
        cr_expect_eq(number_of(m), 2);
        cr_expect_eq(ndbus_message_dropped(m), NDBUS_UNKNOWN);
        ndbus_message_free(old);
        expect_nothing(worker); /* the window of one is still taken */
        ndbus_message_free(m);
        m = receive(worker);
        cr_expect_eq(number_of(m), 3);
        ndbus_message_free(m);
        close_bus(worker);
        close_bus(publisher);
        nd_harness_stop(h);
}
