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
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/support/client.h"
#include "tests/support/raw-client.h"

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

/* -------------------------------------------------------------------------------- random load */

#define PUBLISHERS_N  4u
#define SUBSCRIBERS_N 12u
#define STEPS         6000u

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state % n;
}

struct subscriber {
        struct ndbus *bus;
        struct ndbus_subscription *sub;
        uint64_t n_received;
        uint64_t n_dropped; /* as messages said */
};

/* Takes up to n messages, without waiting longer than it must for one that is asked for. */
static bool take(struct subscriber *s, uint64_t n, int timeout_ms)
{
        struct ndbus_message *m;

        while (n-- > 0) {
                int r = ndbus_receive(s->bus, &m, timeout_ms);

                if (r == NDBUS_ETIMEDOUT)
                        return false;
                cr_assert_eq(r, 0, "%s: %s", ndbus_errname(r), ndbus_detail());
                s->n_dropped += ndbus_message_dropped(m);
                nd_client_take_number(m);
                ++s->n_received;
        }
        return true;
}

struct crowd {
        struct nd_harness *harness;
        struct ndbus *publishers[PUBLISHERS_N];
        struct subscriber subscribers[SUBSCRIBERS_N];
        struct nd_raw *observer;
};

static void crowd_open(struct crowd *c)
{
        static const char *const patterns[] = {"a", "a/*", "**", "b/x", "*/x"};

        c->harness = nd_harness_start(NULL);
        c->observer = nd_raw_open(c->harness, false);
        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                c->publishers[i] = nd_client_open(c->harness, &nd_transports[i % 2], NULL);
        for (size_t i = 0; i < SUBSCRIBERS_N; ++i) {
                struct ndbus_subscribe_options o = NDBUS_SUBSCRIBE_OPTIONS_INIT;
                struct subscriber *s = &c->subscribers[i];

                o.policy = (enum ndbus_policy)(i % 4);
                o.depth = 1 + random_below(20);
                o.bytes = 1000 + random_below(400000);
                o.window = o.policy == NDBUS_LATEST ? 0 : 1 + random_below(20);
                *s = (struct subscriber){0};
                s->bus = nd_client_open(c->harness, &nd_transports[i / 4 % 2], NULL);
                s->sub = nd_client_subscribe(s->bus, patterns[random_below(5)], &o);
        }
}

static void crowd_step(struct crowd *c, uint64_t number)
{
        static const char *const topics[] = {"a", "a/x", "a/y", "b/x", "c"};
        static const size_t sizes[] = {100, 3000, 70000, 200000};

        if (random_below(3) > 0) {
                struct ndbus *bus = c->publishers[random_below(PUBLISHERS_N)];
                size_t n = random_below(sizes[random_below(4)]);
                int r = nd_client_try_publish(bus, topics[random_below(5)], number, n, 0);

                cr_assert(r == 0 || r == NDBUS_EWOULDBLOCK, "%s: %s", ndbus_errname(r),
                          ndbus_detail());
        } else {
                take(&c->subscribers[random_below(SUBSCRIBERS_N)], random_below(30), 0);
        }
}

/* Takes everything that the daemon still has for anybody. */
static void crowd_drain(struct crowd *c)
{
        bool is_moving = true;

        for (size_t i = 0; i < PUBLISHERS_N; ++i) {
                int r;

                while ((r = ndbus_flush(c->publishers[i], 20)) == NDBUS_ETIMEDOUT) {
                        for (size_t k = 0; k < SUBSCRIBERS_N; ++k)
                                take(&c->subscribers[k], 1000, 0);
                }
                cr_assert_eq(r, 0, "%s", ndbus_detail());
        }
        while (is_moving) {
                is_moving = false;
                for (size_t i = 0; i < SUBSCRIBERS_N; ++i) {
                        struct subscriber *s = &c->subscribers[i];
                        uint32_t id = ndbus_subscription_id(s->sub);
                        uint64_t before = s->n_received;

                        while (nd_raw_stat_subscription(c->observer, ndbus_source(s->bus), id,
                                                        "queued") > 0)
                                take(s, 1, 20);
                        take(s, UINT64_MAX, 20);
                        is_moving |= s->n_received != before;
                }
        }
}

static void expect_sums(struct crowd *c, uint64_t seed)
{
        nd_raw_check_stats(c->observer);
        for (size_t i = 0; i < SUBSCRIBERS_N; ++i) {
                const struct subscriber *s = &c->subscribers[i];
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
                uint32_t id = ndbus_subscription_id(s->sub);
                uint64_t source = ndbus_source(s->bus);
                uint64_t matched = nd_raw_stat_subscription(c->observer, source, id, "matched");
                uint64_t delivered = nd_raw_stat_subscription(c->observer, source, id, "delivered");
                uint64_t dropped = nd_raw_stat_subscription(c->observer, source, id, "dropped");

                cr_assert_eq(ndbus_ping(s->bus, NULL, ND_CLIENT_WAIT_MS), 0);
                ndbus_subscription_stats(s->sub, &stats);
                cr_expect_eq(stats.received, s->n_received);
                cr_expect_eq(stats.waiting, 0);
                cr_expect_eq(delivered, s->n_received,
                             "seed %" PRIu64 ", subscription %zu: delivered %" PRIu64
                             ", received %" PRIu64,
                             seed, i, delivered, s->n_received);
                cr_expect_eq(dropped, stats.dropped,
                             "seed %" PRIu64 ", subscription %zu: dropped %" PRIu64
                             ", announced %" PRIu64,
                             seed, i, dropped, stats.dropped);
                cr_expect_eq(matched, stats.received + stats.dropped,
                             "seed %" PRIu64 ", subscription %zu", seed, i);
                cr_expect_leq(s->n_dropped, stats.dropped); /* the last gap has no message */
                if (i % 4 == NDBUS_BLOCK)
                        cr_expect_eq(dropped, 0, "seed %" PRIu64 ", subscription %zu", seed, i);
        }
}

/* Whatever happens: matched is what was received and what was announced as dropped. */
Test(load, sums)
{
        const char *given = getenv("NDBUS_TEST_SEED");
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        for (size_t round = 0; round < 3; ++round) {
                uint64_t seed =
                        given ? strtoull(given, NULL, 10) : (uint64_t)now.tv_nsec * 4 + round + 1;
                struct crowd c;

                fprintf(stderr, "NDBUS_TEST_SEED=%" PRIu64 "\n", seed);
                random_state = seed;
                crowd_open(&c);
                for (uint64_t i = 1; i <= STEPS; ++i)
                        crowd_step(&c, i);
                crowd_drain(&c);
                expect_sums(&c, seed);
                for (size_t i = 0; i < PUBLISHERS_N; ++i)
                        nd_client_close(c.publishers[i]);
                for (size_t i = 0; i < SUBSCRIBERS_N; ++i)
                        nd_client_close(c.subscribers[i].bus);
                nd_raw_close(c.observer);
                nd_harness_stop(c.harness);
        }
}
