/* SPDX-License-Identifier: MIT */

/*
 * Delivery under load, by the library: lossless where that was asked for, counted where not
 *
 * A subscriber that does not call the library is as one whose process is stopped: its window fills
 * and the daemon's policy decides. So one thread can be everybody, except where two must wait for
 * each other.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "tests/support/client.h"

#define MIB ((size_t)1 << 20)

/* T39: a thousand times: subscribed is subscribed. T47: patterns. T40: the retained value. */
Test(load, subscribed_at_once)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *pub = nd_client_open(h, &nd_transports[0], NULL);
        struct ndbus *sub = nd_client_open(h, &nd_transports[1], NULL);

        for (uint64_t i = 1; i <= 1000; ++i) {
                struct ndbus_subscription *s = nd_client_subscribe(sub, "a", NULL);

                nd_client_publish(pub, "a", i, 100);
                nd_client_expect(sub, i);
                cr_assert_eq(ndbus_unsubscribe(s), 0);
        }
        nd_client_close(pub);
        nd_client_close(sub);
        nd_harness_stop(h);
}

Test(load, patterns)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *bus = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus_subscription *subs[3];
                static const uint64_t expected[3] = {2, 1, 0};
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};

                subs[0] = nd_client_subscribe(bus, "a/*", NULL);
                subs[1] = nd_client_subscribe(bus, "a/b", NULL);
                subs[2] = nd_client_subscribe(bus, "tx", NULL);
                nd_client_publish(bus, "a/b", 1, 100);
                nd_client_publish(bus, "a/bc", 2, 100);
                nd_client_publish(bus, "tx_trytes", 3, 100);
                nd_client_flush(bus);
                nd_client_expect(bus, 1);
                nd_client_expect(bus, 1);
                nd_client_expect(bus, 2);
                for (size_t i = 0; i < 3; ++i) {
                        ndbus_subscription_stats(subs[i], &stats);
                        cr_expect_eq(stats.received, expected[i], "subscription %zu", i);
                        cr_expect_eq(stats.waiting, 0);
                }
                nd_client_close(bus);
                nd_harness_stop(h);
        }
}

static void publish_retained(struct ndbus *bus, uint64_t value)
{
        struct ndbus_publish_options retain = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_array array = {.data = &value, .dtype = "uint64"};

        retain.retain = 1;
        cr_assert_eq(ndbus_publish(bus, "a", &array, 1, &retain), 0, "%s", ndbus_detail());
}

static void expect_value(struct ndbus *bus, uint64_t value, bool is_retained)
{
        struct ndbus_message *m = nd_client_receive(bus);
        const struct ndbus_array *arrays;

        cr_assert_eq(ndbus_message_arrays(m, &arrays), 1);
        cr_expect_eq(memcmp(arrays[0].data, &value, sizeof(value)), 0);
        cr_expect_eq(ndbus_message_retained(m) != 0, is_retained, "value %" PRIu64, value);
        ndbus_message_free(m);
}

Test(load, retained)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *pub = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus *sub = nd_client_open(h, &nd_transports[t], NULL);

                for (uint64_t i = 1; i <= 3; ++i)
                        publish_retained(pub, i);
                nd_client_flush(pub);
                nd_client_subscribe(sub, "a", NULL);
                publish_retained(pub, 4);
                publish_retained(pub, 5);
                expect_value(sub, 3, true);
                expect_value(sub, 4, false);
                expect_value(sub, 5, false);
                nd_client_close(pub);
                nd_client_close(sub);
                nd_harness_stop(h);
        }
}

/* Two that block each other and do not receive: both are told, nothing hangs, nothing is lost. */
Test(load, cycle)
{
        struct ndbus_subscribe_options block = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        static const char *const topics[] = {"a", "b"};

        block.policy = NDBUS_BLOCK;
        block.depth = 4;
        block.window = 4;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *buses[2];
                uint64_t n[2] = {0};

                for (size_t i = 0; i < 2; ++i) {
                        buses[i] = nd_client_open(h, &nd_transports[t], NULL);
                        nd_client_subscribe(buses[i], topics[1 - i], &block);
                }
                for (bool is_open[2] = {true, true}; is_open[0] || is_open[1];) {
                        for (size_t i = 0; i < 2; ++i) {
                                int r;

                                if (!is_open[i])
                                        continue;
                                r = nd_client_try_publish(buses[i], topics[i], n[i] + 1, 300000,
                                                          200);
                                cr_assert(r == 0 || r == NDBUS_EWOULDBLOCK, "%s: %s",
                                          ndbus_errname(r), ndbus_detail());
                                is_open[i] = r == 0;
                                n[i] += r == 0;
                                cr_assert_lt(n[i], 1000, "nothing blocks");
                        }
                }
                for (size_t i = 0; i < 2; ++i) {
                        for (uint64_t k = 1; k <= n[1 - i]; ++k)
                                nd_client_expect(buses[i], k);
                }
                for (size_t i = 0; i < 2; ++i)
                        nd_client_close(buses[i]);
                nd_harness_stop(h);
        }
}

/* ------------------------------------------------------------------------------- full memory */

struct talker {
        struct nd_harness *harness;
        const struct nd_transport *transport;
        const char *says;
        const char *hears;
        pthread_barrier_t *both;
        uint64_t n_sent;
        uint64_t n_heard;
        uint64_t n_refused;
};

static void *talk(void *userdata)
{
        struct talker *talker = userdata;
        struct ndbus_subscribe_options block = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus *bus = nd_client_open(talker->harness, talker->transport, NULL);
        struct ndbus_message *m;

        block.policy = NDBUS_BLOCK;
        block.bytes = 12 * MIB;
        block.window_bytes = MIB;
        nd_client_subscribe(bus, talker->hears, &block);
        pthread_barrier_wait(talker->both);
        for (uint64_t i = 1; i <= 6; ++i) {
                int r = nd_client_try_publish(bus, talker->says, i, 22 * MIB, 500);

                talker->n_sent += r == 0;
                talker->n_refused += r != 0;
                if (r != 0 && r != NDBUS_EWOULDBLOCK && r != NDBUS_ETIMEDOUT &&
                    r != NDBUS_ENO_SPACE && r != NDBUS_ESTALLED)
                        nd_harness_fail(NULL, "publish: %s: %s", ndbus_errname(r), ndbus_detail());
                while (i % 3 == 0 && ndbus_receive(bus, &m, 0) == 0) {
                        nd_client_take_number(m);
                        ++talker->n_heard;
                }
        }
        while (ndbus_receive(bus, &m, 1000) == 0) {
                nd_client_take_number(m);
                ++talker->n_heard;
        }
        ndbus_flush(bus, 15000);
        while (ndbus_receive(bus, &m, 1000) == 0) {
                nd_client_take_number(m);
                ++talker->n_heard;
        }
        ndbus_close(bus, 1000, NULL);
        return NULL;
}

/* Memory full, both half-way through large messages, both blocking: every wait ends. */
Test(load, full_memory)
{
        static const char *const args[] = {"--memory-max", "48M", NULL};

        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
                pthread_barrier_t both;
                struct talker talkers[2] = {
                        {.harness = h,
                         .transport = &nd_transports[t],
                         .says = "a",
                         .hears = "b",
                         .both = &both},
                        {.harness = h,
                         .transport = &nd_transports[t],
                         .says = "b",
                         .hears = "a",
                         .both = &both},
                };
                pthread_t threads[2];

                pthread_barrier_init(&both, NULL, 2);
                for (size_t i = 0; i < 2; ++i)
                        pthread_create(&threads[i], NULL, talk, &talkers[i]);
                for (size_t i = 0; i < 2; ++i)
                        pthread_join(threads[i], NULL);
                pthread_barrier_destroy(&both);
                for (size_t i = 0; i < 2; ++i)
                        printf("%s: sent %" PRIu64 ", refused %" PRIu64 ", heard %" PRIu64 "\n",
                               talkers[i].says, talkers[i].n_sent, talkers[i].n_refused,
                               talkers[i].n_heard);
                cr_expect_gt(talkers[0].n_heard + talkers[1].n_heard, 0);
                if (nd_harness_memory_is_exact())
                        cr_expect_leq(nd_harness_memory(h).rss_peak_bytes, (48 + 64) * MIB);
                nd_harness_stop(h);
        }
}
