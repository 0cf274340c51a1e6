/* SPDX-License-Identifier: MIT */

/*
 * Subscribers whose process is stopped (SIGSTOP) and continued: what they get then, and that the
 * others did not notice
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include "tests/support/raw-client.h"
#include "tests/support/subscriber.h"

#define MIB ((size_t)1 << 20)

struct scene {
        const struct nd_transport *transport;
        struct nd_harness *h;
        struct ndbus *pub;
        struct nd_raw *observer;
        struct nd_subscriber stopped; /* to "a" */
};

static void
scene_init(struct scene *s, size_t i_transport, const struct ndbus_subscribe_options *options)
{
        s->transport = &nd_transports[i_transport];
        s->h = nd_harness_start(NULL);
        s->pub = nd_client_open(s->h, s->transport, NULL);
        s->observer = nd_raw_open(s->h, false);
        nd_subscriber_start(&s->stopped, s->h, s->transport, "a", options);
        nd_subscriber_signal(&s->stopped, SIGSTOP);
}

static void scene_deinit(struct scene *s)
{
        nd_raw_check_stats(s->observer);
        nd_subscriber_end(&s->stopped);
        nd_raw_close(s->observer);
        nd_client_close(s->pub);
        nd_harness_stop(s->h);
}

static uint64_t stat_of_stopped(const struct scene *s, const char *counter)
{
        return nd_raw_stat_subscription(s->observer, s->stopped.source, s->stopped.id, counter);
}

/* T32: a tail without holes that ends in the last one; the sum is right, and stat agrees */
Test(stopped, tail)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        options.bytes = 8 * MIB;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                uint64_t n_received = 0, n_dropped = 0, last = 0;
                struct nd_proc_memory before;
                struct scene s;

                scene_init(&s, t, &options);
                before = nd_harness_memory(s.h);
                for (uint64_t i = 1; i <= 100; ++i)
                        nd_client_publish(s.pub, "a", i, MIB);
                nd_client_flush(s.pub);
                if (nd_harness_memory_is_exact())
                        cr_expect_lt(nd_harness_memory(s.h).rss_bytes, before.rss_bytes + 12 * MIB);
                nd_subscriber_signal(&s.stopped, SIGCONT);
                while (last < 100) {
                        struct nd_heard heard = nd_subscriber_next(&s.stopped);

                        cr_assert_eq(heard.number, last + heard.dropped + 1);
                        cr_assert_eq(heard.sequence, heard.number);
                        last = heard.number;
                        ++n_received;
                        n_dropped += heard.dropped;
                }
                cr_expect_eq(n_received + n_dropped, 100);
                cr_expect_gt(n_dropped, 50);
                cr_expect_eq(stat_of_stopped(&s, "dropped"), n_dropped);
                cr_expect_eq(stat_of_stopped(&s, "delivered"), n_received);
                scene_deinit(&s);
        }
}

/* T34: beside a stopped one a fast one misses nothing. It is never left more behind than its queue
 * holds, however slow the machine is. */
Test(stopped, beside_a_fast_one)
{
        enum {
                FRAMES_N = 200,
                AHEAD_N = 6
        };

        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_subscriber fast;
                struct scene s;

                scene_init(&s, t, NULL);
                nd_subscriber_start(&fast, s.h, s.transport, "a", NULL);
                for (uint64_t i = 1; i <= FRAMES_N + AHEAD_N; ++i) {
                        if (i <= FRAMES_N)
                                nd_client_publish(s.pub, "a", i, 6000000);
                        if (i > AHEAD_N) {
                                struct nd_heard heard = nd_subscriber_next(&fast);

                                cr_assert_eq(heard.number, i - AHEAD_N);
                                cr_assert_eq(heard.dropped, 0);
                        }
                }
                cr_expect_eq(stat_of_stopped(&s, "matched"), FRAMES_N);
                cr_expect_gt(stat_of_stopped(&s, "dropped"), FRAMES_N / 2);
                nd_subscriber_end(&fast);
                scene_deinit(&s);
        }
}

/* T35: without any wait a publisher is told, about one publishing window after the queue is full,
 * that nothing more can be taken; nothing of that message is sent; other topics go on; and when the
 * subscriber does, it has missed nothing. */
Test(stopped, block)
{
        struct ndbus_subscribe_options block = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        block.policy = NDBUS_BLOCK;
        block.bytes = 8 * MIB;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                uint64_t n_taken = 0, n_heard = 0;
                struct ndbus *other;
                struct scene s;
                int r;

                scene_init(&s, t, &block);
                other = nd_client_open(s.h, s.transport, NULL);
                nd_client_subscribe(other, "b", NULL);
                while ((r = nd_client_try_publish(s.pub, "a", n_taken + 1, MIB, 0)) == 0)
                        cr_assert_lt(++n_taken, 500, "nothing blocks");
                cr_assert_eq(r, NDBUS_EWOULDBLOCK, "%s: %s", ndbus_errname(r), ndbus_detail());
                /* the queue, one publishing window of 17 MiB, and what sockets hold */
                cr_expect_geq(n_taken, 8, "blocked after %" PRIu64, n_taken);
                cr_expect_leq(n_taken, 8 + 17 + 10, "blocked after %" PRIu64, n_taken);
                cr_expect_eq(nd_client_try_publish(s.pub, "a", 0, MIB, 0), NDBUS_EWOULDBLOCK);
                nd_client_publish(s.pub, "b", 1, 100);
                nd_client_expect(other, 1);
                nd_client_flush(s.pub);
                cr_expect_eq(stat_of_stopped(&s, "matched"), n_taken);

                nd_subscriber_signal(&s.stopped, SIGCONT);
                for (uint64_t i = n_taken + 1; i <= 500; ++i) {
                        if (nd_client_try_publish(s.pub, "a", i, MIB, 0))
                                nd_client_publish(s.pub, "a", i, MIB);
                }
                while (n_heard < 500) {
                        struct nd_heard heard = nd_subscriber_next(&s.stopped);

                        cr_assert_eq(heard.number, ++n_heard);
                        cr_assert_eq(heard.dropped, 0);
                }
                nd_client_close(other);
                scene_deinit(&s);
        }
}

static void expect(const struct nd_subscriber *s, struct nd_heard expected)
{
        struct nd_heard heard = nd_subscriber_next(s);

        cr_assert_eq(heard.source, expected.source);
        cr_assert_eq(heard.sequence, expected.sequence, "%" PRIu64 ", expected %" PRIu64,
                     heard.sequence, expected.sequence);
        cr_assert_eq(heard.number, expected.number);
        cr_assert_eq(heard.dropped, expected.dropped, "before %" PRIu64 ": %" PRIu64, heard.number,
                     heard.dropped);
}

/* T45: seven drops forced between 10 and 18, one gap of seven; the publisher that starts again is a
 * new source, with sequence 1 and no gap */
Test(stopped, gap)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        options.window = 10;
        options.depth = 3;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                uint64_t source, again;
                struct scene s;

                scene_init(&s, t, &options);
                source = ndbus_source(s.pub);
                for (uint64_t i = 1; i <= 20; ++i)
                        nd_client_publish(s.pub, "a", i, 100);
                nd_client_close(s.pub);
                s.pub = nd_client_open(s.h, s.transport, NULL);
                again = ndbus_source(s.pub);
                cr_expect_neq(again, source);

                nd_subscriber_signal(&s.stopped, SIGCONT);
                for (uint64_t i = 1; i <= 20; ++i) {
                        if (i <= 10 || i >= 18)
                                expect(&s.stopped, (struct nd_heard){.source = source,
                                                                     .sequence = i,
                                                                     .number = i,
                                                                     .dropped = i == 18 ? 7 : 0});
                }
                nd_client_publish(s.pub, "a", 21, 100);
                expect(&s.stopped, (struct nd_heard){.source = again, .sequence = 1, .number = 21});
                cr_expect_eq(stat_of_stopped(&s, "dropped"), 7);
                scene_deinit(&s);
        }
}
