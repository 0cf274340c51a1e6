/* SPDX-License-Identifier: MIT */

/*
 * Daemons that stop, die and come back, and publishers that do
 *
 * What the library promises about connections, with a real daemon at the other end, over every
 * transport. The only times that are checked are the two that the library's users may count on:
 * when a daemon is taken for dead, and when closing gives up. That it is not too early the clock says;
 * that it is not too late, a ticker, for while the machine stands still the library cannot answer.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/client.h"

#define MIB ((size_t)1 << 20)

#define TICK_MS 10

static int64_t now_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* Time in which this process could run: a thread counts the ticks of a timer, but of those that passed
 * before it came to look at most two. */
struct ticker {
        pthread_t thread;
        int timer;
        _Atomic int64_t n;
        _Atomic bool is_over;
};

static void *ticker_run(void *userdata)
{
        struct ticker *ticker = userdata;
        uint64_t n;

        while (!atomic_load(&ticker->is_over)) {
                if (read(ticker->timer, &n, sizeof(n)) != sizeof(n))
                        nd_harness_fail(NULL, "read of a timer: %s", strerror(errno));
                atomic_fetch_add(&ticker->n, n < 2 ? 1 : 2);
        }
        return NULL;
}

static void ticker_start(struct ticker *ticker)
{
        const struct timespec tick = {.tv_nsec = TICK_MS * 1000000};

        *ticker = (struct ticker){.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)};
        cr_assert(ticker->timer >= 0 &&
                  timerfd_settime(ticker->timer, 0, &(struct itimerspec){tick, tick}, NULL) == 0);
        cr_assert_eq(pthread_create(&ticker->thread, NULL, ticker_run, ticker), 0);
}

/* Milliseconds since it was started. */
static int64_t ticker_stop(struct ticker *ticker)
{
        int64_t n = atomic_load(&ticker->n);

        atomic_store(&ticker->is_over, true);
        cr_assert_eq(pthread_join(ticker->thread, NULL), 0);
        close(ticker->timer);
        return n * TICK_MS;
}

/* Receives until the loss of the connection is said. */
static int hear_loss(struct ndbus *bus)
{
        struct ndbus_message *m;

        return ndbus_receive(bus, &m, ND_CLIENT_WAIT_MS);
}

/* Serves the bus until it has another connection, on which all subscriptions are back. */
static void serve_until_back(struct ndbus *bus, uint64_t old_source)
{
        int64_t deadline = now_ms() + nd_harness_deadline_ms(ND_CLIENT_WAIT_MS);
        struct ndbus_message *m;

        while (ndbus_source(bus) == 0 || ndbus_source(bus) == old_source ||
               ndbus_ping(bus, NULL, ND_CLIENT_WAIT_MS) != 0) {
                int r = ndbus_receive(bus, &m, 10);

                cr_assert(r == NDBUS_ETIMEDOUT || r == NDBUS_ENOTCONN, "%s: %s", ndbus_errname(r),
                          ndbus_detail());
                cr_assert_lt(now_ms(), deadline, "no connection: %s", ndbus_detail());
        }
}

/* The message and the gap before it. */
static void expect_after_gap(struct ndbus *bus, uint64_t number, uint64_t dropped)
{
        struct ndbus_message *m = nd_client_receive(bus);

        cr_expect_eq(ndbus_message_dropped(m), dropped, "message %" PRIu64 ": gap %" PRIu64, number,
                     ndbus_message_dropped(m));
        cr_expect_eq(nd_client_take_number(m), number);
}

/* T41: a stopped daemon is told of in 3 to 4.5 s (contract); then it goes on */
Test(reconnect, stopped_daemon)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct ndbus_options options = NDBUS_OPTIONS_INIT;
                struct nd_harness *h = nd_harness_start(NULL);
                int64_t start, took, took_running;
                struct ndbus *sub, *pub;
                struct ticker ticker;
                uint64_t source;

                options.ping_ms = 1000;
                options.ping_timeout_ms = 3000;
                sub = nd_client_open(h, &nd_transports[t], &options);
                nd_client_subscribe(sub, "a", NULL);
                source = ndbus_source(sub);
                nd_harness_signal(h, SIGSTOP);
                ticker_start(&ticker);
                start = now_ms();
                cr_expect_eq(hear_loss(sub), NDBUS_EDEAD, "%s", ndbus_detail());
                took = now_ms() - start;
                took_running = ticker_stop(&ticker);
                cr_expect(took >= 3000 && took_running <= 4500,
                          "%s: told after %" PRId64 " ms, %" PRId64 " of them running",
                          nd_transports[t].name, took, took_running);

                nd_harness_signal(h, SIGCONT);
                serve_until_back(sub, source);
                pub = nd_client_open(h, &nd_transports[t], NULL);
                nd_client_publish(pub, "a", 1, 100);
                expect_after_gap(sub, 1, NDBUS_UNKNOWN);
                nd_client_close(pub);
                nd_client_close(sub);
                nd_harness_stop(h);
        }
}

/* Killed and started again: every subscription is back, and says once that it does not know what it
 * missed. */
Test(reconnect, killed_daemon)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *bus = nd_client_open(h, &nd_transports[t], NULL), *pub;
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
                struct ndbus_subscription *subs[3];
                uint64_t source;

                subs[0] = nd_client_subscribe(bus, "a", NULL);
                subs[1] = nd_client_subscribe(bus, "b/*", NULL);
                subs[2] = nd_client_subscribe(bus, "c/**", NULL);
                nd_client_publish(bus, "a", 1, 100);
                nd_client_flush(bus);
                nd_client_expect(bus, 1);

                for (uint64_t n = 1; n <= 2; ++n) {
                        source = ndbus_source(bus);
                        nd_harness_signal(h, SIGKILL);
                        cr_expect_eq(hear_loss(bus), NDBUS_ENOTCONN, "%s", ndbus_detail());
                        nd_harness_start_again(h);
                        serve_until_back(bus, source);

                        pub = nd_client_open(h, &nd_transports[t], NULL);
                        nd_client_publish(pub, "a", 2, 100);
                        nd_client_publish(pub, "b/x", 3, 100);
                        nd_client_publish(pub, "c", 4, 2 * MIB);
                        nd_client_publish(pub, "a", 5, 100);
                        nd_client_publish(pub, "c", 6, 100);
                        expect_after_gap(bus, 2, NDBUS_UNKNOWN);
                        expect_after_gap(bus, 3, NDBUS_UNKNOWN);
                        cr_assert_eq(ndbus_flush(pub, ND_CLIENT_WAIT_MS), 0);
                        for (size_t i = 0; i < 3; ++i) { /* a large one may be overtaken */
                                struct ndbus_message *m = nd_client_receive(bus);
                                uint64_t dropped = ndbus_message_dropped(m);
                                uint64_t number = nd_client_take_number(m);

                                cr_expect_eq(dropped, number == 4 ? NDBUS_UNKNOWN : 0,
                                             "message %" PRIu64, number);
                        }
                        nd_client_close(pub);
                        for (size_t i = 0; i < 3; ++i) {
                                cr_assert_eq(ndbus_subscription_stats(subs[i], &stats), 0);
                                cr_expect_eq(stats.gaps_unknown, n, "subscription %zu", i);
                                cr_expect_eq(stats.dropped, 0);
                        }
                }
                nd_client_close(bus);
                nd_harness_stop(h);
        }
}

/* T43: without a daemon */
Test(reconnect, offline)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct ndbus_options options = NDBUS_OPTIONS_INIT;
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *online = nd_client_open(h, &nd_transports[t], NULL), *offline, *sub;

                nd_harness_signal(h, SIGKILL);
                cr_expect_eq(hear_loss(online), NDBUS_ENOTCONN);
                for (uint64_t i = 1; i <= 10; ++i)
                        cr_expect_eq(nd_client_try_publish(online, "a", i, 100, 0), NDBUS_ENOTCONN);

                options.offline_messages = 4;
                offline = nd_client_open(h, &nd_transports[t], &options);
                for (uint64_t i = 1; i <= 10; ++i) {
                        int r = nd_client_try_publish(offline, "a", i, 1000 * i, 0);

                        cr_expect_eq(r, i <= 4 ? 0 : NDBUS_EWOULDBLOCK, "%" PRIu64 ": %s", i,
                                     ndbus_errname(r));
                }
                nd_harness_start_again(h);
                sub = nd_client_open(h, &nd_transports[t], NULL);
                nd_client_subscribe(sub, "a", NULL);
                while (ndbus_source(offline) == 0) {
                        struct ndbus_message *m;

                        ndbus_receive(offline, &m, 10);
                }
                nd_client_flush(offline);
                nd_client_publish(offline, "a", 99, 100);
                for (uint64_t i = 1; i <= 4; ++i)
                        nd_client_expect(sub, i);
                nd_client_expect(sub, 99);
                ndbus_close(online, 0, NULL);
                nd_client_close(offline);
                nd_client_close(sub);
                nd_harness_stop(h);
        }
}

/* T44, first half: what close() has waited for has arrived */
Test(reconnect, close_delivers)
{
        struct ndbus_subscribe_options room = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        room.bytes = 256 * MIB;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *pub = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus *sub = nd_client_open(h, &nd_transports[t], NULL);
                size_t n_unconfirmed = 99;

                nd_client_subscribe(sub, "a", &room);
                for (uint64_t i = 1; i <= 100; ++i)
                        nd_client_publish(pub, "a", i, MIB);
                cr_expect_eq(ndbus_close(pub, ND_CLIENT_WAIT_MS, &n_unconfirmed), 0, "%s",
                             ndbus_detail());
                cr_expect_eq(n_unconfirmed, 0);
                for (uint64_t i = 1; i <= 100; ++i)
                        nd_client_expect(sub, i);
                nd_client_close(sub);
                nd_harness_stop(h);
        }
}

/* T44, second half: close() gives up when it was told to (contract), and says what is not sure */
Test(reconnect, close_gives_up)
{
        static const size_t sizes[] = {MIB, 1000};

        for (size_t i = 0; i < ND_TRANSPORTS_N * 2; ++i) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus_options options = NDBUS_OPTIONS_INIT;
                int64_t start, took, took_running;
                struct ticker ticker;
                uint64_t n_taken = 0;
                size_t n_unconfirmed = 0;
                struct ndbus *bus;
                int r;

                options.ping_ms = 0; /* it is not taken for dead meanwhile */
                bus = nd_client_open(h, &nd_transports[i % 2], &options);
                nd_client_publish(bus, "a", 1, 100);
                nd_client_flush(bus);
                nd_harness_signal(h, SIGSTOP);
                while ((r = nd_client_try_publish(bus, "a", 2 + n_taken, sizes[i / 2], 0)) == 0)
                        ++n_taken;
                cr_expect(r == NDBUS_EWOULDBLOCK || (sizes[i / 2] == MIB && r == NDBUS_ETIMEDOUT),
                          "%s: %s", ndbus_errname(r), ndbus_detail());
                ticker_start(&ticker);
                start = now_ms();
                cr_expect_eq(ndbus_close(bus, 5000, &n_unconfirmed), NDBUS_ETIMEDOUT);
                took = now_ms() - start;
                took_running = ticker_stop(&ticker);
                cr_expect(took >= 5000 && took_running <= 5500,
                          "closed after %" PRId64 " ms, %" PRId64 " of them running", took,
                          took_running);
                cr_expect_eq(n_unconfirmed, n_taken, "%zu unconfirmed, %" PRIu64 " published",
                             n_unconfirmed, n_taken);
                nd_harness_signal(h, SIGCONT);
                nd_harness_stop(h);
        }
}

/* T45: a gap of seven, and none when the publisher starts again */
Test(reconnect, publisher_again)
{
        struct ndbus_subscribe_options small = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        small.window = 10;
        small.depth = 3;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *pub = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus *sub = nd_client_open(h, &nd_transports[t], NULL);
                uint64_t source = ndbus_source(pub);
                struct ndbus_message *m;

                nd_client_subscribe(sub, "a", &small);
                for (uint64_t i = 1; i <= 20; ++i)
                        nd_client_publish(pub, "a", i, 100);
                nd_client_close(pub);
                for (uint64_t i = 1; i <= 20; i += i == 10 ? 8 : 1) {
                        m = nd_client_receive(sub);
                        cr_expect_eq(ndbus_message_sequence(m), i);
                        cr_expect_eq(ndbus_message_source(m), source);
                        cr_expect_eq(ndbus_message_dropped(m), i == 18 ? 7 : 0, "%" PRIu64, i);
                        cr_expect_eq(nd_client_take_number(m), i);
                }
                pub = nd_client_open(h, &nd_transports[t], NULL);
                cr_expect_neq(ndbus_source(pub), source);
                nd_client_publish(pub, "a", 21, 100);
                m = nd_client_receive(sub);
                cr_expect_eq(ndbus_message_sequence(m), 1);
                cr_expect_eq(ndbus_message_source(m), ndbus_source(pub));
                cr_expect_eq(ndbus_message_dropped(m), 0);
                cr_expect_eq(nd_client_take_number(m), 21);
                nd_client_close(pub);
                nd_client_close(sub);
                nd_harness_stop(h);
        }
}

/* T57: no SIGPIPE, and no signal handler of the library's */
Test(reconnect, no_signal)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct sigaction before[NSIG], after;
                struct ndbus *bus;
                int r = 0;

                signal(SIGPIPE, SIG_DFL);
                for (int s = 1; s < NSIG; ++s)
                        sigaction(s, NULL, &before[s]);
                bus = nd_client_open(h, &nd_transports[t], NULL);
                nd_client_publish(bus, "a", 1, 100);
                nd_client_flush(bus);
                nd_harness_signal(h, SIGKILL);
                for (uint64_t i = 2; i <= 4; ++i) {
                        r = nd_client_try_publish(bus, "a", i, MIB, 1000);
                        cr_expect_lt(r, 0);
                }
                cr_expect_eq(r, NDBUS_ENOTCONN);
                for (int s = 1; s < NSIG; ++s) {
                        if (sigaction(s, NULL, &after) == 0)
                                cr_expect_eq(after.sa_handler, before[s].sa_handler, "signal %d",
                                             s);
                }
                ndbus_close(bus, 0, NULL);
                nd_harness_free(h);
        }
}
