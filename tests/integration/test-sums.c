/* SPDX-License-Identifier: MIT */

/*
 * Whatever happens: what matched a subscription was delivered to it, or announced to it as dropped
 *
 * Random load by the library: four publishers, subscriptions of every policy, groups whose members
 * come and go. The test counts what it publishes on matching topics, what it receives and what is
 * announced; the daemon counts the same; all of it must agree. NDBUS_TEST_SEED repeats a run.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "protocol/topic.h"
#include "tests/support/client.h"
#include "tests/support/raw-client.h"

#define PUBLISHERS_N 4u
#define SINGLES_N    15u
#define GROUPS_N     3u
#define MEMBERS_N    3u
#define STEPS        6000u

static const char *const topics[] = {"a", "a/x", "a/y", "b/x", "c"};
static const char *const patterns[] = {"a", "a/*", "**", "b/x", "*/x"};

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state % n;
}

static uint64_t first_seed(void)
{
        const char *given = getenv("NDBUS_TEST_SEED");
        struct timespec now;
        uint64_t seed;

        clock_gettime(CLOCK_REALTIME, &now);
        seed = given ? strtoull(given, NULL, 10) : (uint64_t)now.tv_nsec * 4 + 1;
        fprintf(stderr, "NDBUS_TEST_SEED=%" PRIu64 "\n", seed);
        return seed;
}

/* ------------------------------------------------------------------------- a single subscription */

struct single {
        struct ndbus *bus;
        struct ndbus_subscription *sub;
        const char *pattern;
        enum ndbus_policy policy;
        bool is_ended;
        uint64_t n_matched; /* as the test counts */
        uint64_t n_received;
        uint64_t n_dropped; /* as messages said */
};

static void single_subscribe(struct single *s)
{
        struct ndbus_subscribe_options o = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        o.policy = s->policy;
        o.depth = 1 + random_below(20);
        o.bytes = 1000 + random_below(400000);
        o.window = o.policy == NDBUS_LATEST ? 0 : 1 + random_below(20);
        s->sub = nd_client_subscribe(s->bus, s->pattern, &o);
        s->is_ended = false;
        s->n_matched = s->n_received = s->n_dropped = 0;
}

static void single_count(struct single *s, const char *topic)
{
        s->n_matched += nd_pattern_match(s->pattern, strlen(s->pattern), topic, strlen(topic));
}

/* Takes up to n messages, or all that there are before its end. */
static void single_take(struct single *s, uint64_t n, int timeout_ms)
{
        struct ndbus_message *m;

        for (; n > 0 && !s->is_ended; --n) {
                int r = ndbus_receive(s->bus, &m, timeout_ms);

                if (r == NDBUS_ETIMEDOUT)
                        return;
                if (r == NDBUS_EOVERFLOW && s->policy == NDBUS_DISCONNECT) {
                        s->is_ended = true;
                        return;
                }
                cr_assert_eq(r, 0, "%s: %s", ndbus_errname(r), ndbus_detail());
                s->n_dropped += ndbus_message_dropped(m);
                nd_client_take_number(m);
                ++s->n_received;
        }
}

/* ------------------------------------------------------------------------------------- a group */

struct group {
        const char *name;
        const char *pattern;
        struct ndbus_subscribe_options options;
        struct ndbus *members[MEMBERS_N];
        uint64_t n_matched;
        uint64_t n_received;
};

static void group_join(struct group *g, struct nd_harness *h, size_t i)
{
        g->options.window = 1 + random_below(8);
        g->members[i] = nd_client_open(h, &nd_transports[random_below(2)], NULL);
        nd_client_subscribe(g->members[i], g->pattern, &g->options);
}

static void group_take(struct group *g, size_t i, uint64_t n, int timeout_ms)
{
        struct ndbus_message *m;

        for (; n > 0; --n) {
                int r = ndbus_receive(g->members[i], &m, timeout_ms);

                if (r == NDBUS_ETIMEDOUT)
                        return;
                cr_assert_eq(r, 0, "%s: %s", ndbus_errname(r), ndbus_detail());
                nd_client_take_number(m);
                ++g->n_received;
        }
}

/* ----------------------------------------------------------------------------------- all of them */

struct crowd {
        struct nd_harness *harness;
        struct ndbus *publishers[PUBLISHERS_N];
        struct single singles[SINGLES_N];
        struct group groups[GROUPS_N];
        struct nd_raw *observer;
        uint64_t n_ended; /* subscriptions */
        uint64_t n_dropped_ended;
};

static void crowd_open(struct crowd *c)
{
        static const char *const names[GROUPS_N] = {"one", "two", "three"};

        static const enum ndbus_policy policies[GROUPS_N] = {NDBUS_DROP_OLDEST, NDBUS_DROP_NEWEST,
                                                             NDBUS_BLOCK};

        *c = (struct crowd){.harness = nd_harness_start(NULL)};
        c->observer = nd_raw_open(c->harness, false);
        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                c->publishers[i] = nd_client_open(c->harness, &nd_transports[i % 2], NULL);
        for (size_t i = 0; i < SINGLES_N; ++i) {
                struct single *s = &c->singles[i];

                s->policy = (enum ndbus_policy)(i % 5);
                s->pattern = patterns[random_below(5)];
                s->bus = nd_client_open(c->harness, &nd_transports[i / 5 % 2], NULL);
                single_subscribe(s);
        }
        for (size_t i = 0; i < GROUPS_N; ++i) {
                struct group *g = &c->groups[i];

                g->name = names[i];
                g->pattern = patterns[random_below(5)];
                g->options = (struct ndbus_subscribe_options)NDBUS_SUBSCRIBE_OPTIONS_INIT;
                g->options.policy = policies[i];
                g->options.group = g->name;
                g->options.depth = 5 + random_below(30);
                g->options.bytes = 1000 + random_below(400000);
                for (size_t k = 0; k < MEMBERS_N; ++k)
                        group_join(g, c->harness, k);
        }
}

static void crowd_publish(struct crowd *c, uint64_t number)
{
        static const size_t sizes[] = {100, 3000, 70000, 200000, 600000};
        struct ndbus *bus = c->publishers[random_below(PUBLISHERS_N)];
        const char *topic = topics[random_below(5)];
        size_t n = random_below(sizes[random_below(5)]);
        int r = nd_client_try_publish(bus, topic, number, n, 0);

        if (r == NDBUS_EWOULDBLOCK)
                return;
        cr_assert_eq(r, 0, "%s: %s", ndbus_errname(r), ndbus_detail());
        for (size_t i = 0; i < SINGLES_N; ++i)
                single_count(&c->singles[i], topic);
        for (size_t i = 0; i < GROUPS_N; ++i)
                c->groups[i].n_matched += nd_pattern_match(
                        c->groups[i].pattern, strlen(c->groups[i].pattern), topic, strlen(topic));
}

/* It has ended, and what it missed was announced with that. What matched it until then, nobody but
 * the daemon can know here, see Test(sums, ended); a new one takes its place. */
static void crowd_replace(struct crowd *c, struct single *s)
{
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};

        ndbus_subscription_stats(s->sub, &stats);
        cr_expect_eq(stats.received, s->n_received);
        cr_expect_eq(s->n_dropped, 0, "it lost messages before its end");
        cr_expect_gt(stats.dropped, 0);
        cr_expect_leq(stats.received + stats.dropped, s->n_matched);
        ++c->n_ended;
        c->n_dropped_ended += stats.dropped;
        cr_assert_eq(ndbus_unsubscribe(s->sub), 0);
        for (size_t i = 0; i < PUBLISHERS_N; ++i) /* what is counted now comes after this */
                nd_client_flush(c->publishers[i]);
        single_subscribe(s);
}

static void crowd_take(struct crowd *c)
{
        struct single *s = &c->singles[random_below(SINGLES_N)];

        single_take(s, random_below(30), 0);
        if (s->is_ended)
                crowd_replace(c, s);
}

/* One leaves what it has to the others. */
static void crowd_change_member(struct crowd *c)
{
        struct group *g = &c->groups[random_below(GROUPS_N)];
        size_t i = random_below(MEMBERS_N);

        nd_client_close(g->members[i]);
        group_join(g, c->harness, i);
}

static void crowd_step(struct crowd *c, uint64_t number)
{
        uint64_t what = random_below(100);

        if (what < 60)
                crowd_publish(c, number);
        else if (what < 84)
                crowd_take(c);
        else if (what < 99)
                group_take(&c->groups[random_below(GROUPS_N)], random_below(MEMBERS_N),
                           random_below(20), 0);
        else
                crowd_change_member(c);
}

static bool single_is_drained(struct crowd *c, const struct single *s)
{
        return s->is_ended ||
               nd_raw_stat_subscription(c->observer, ndbus_source(s->bus),
                                        ndbus_subscription_id(s->sub), "queued") == 0;
}

static bool group_is_drained(struct crowd *c, const struct group *g)
{
        return nd_raw_stat_group(c->observer, g->pattern, g->name, "queued") == 0 &&
               nd_raw_stat_group(c->observer, g->pattern, g->name, "unfinished") == 0;
}

/* Takes everything that the daemon still has for anybody. */
static void crowd_drain(struct crowd *c)
{
        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                nd_client_flush(c->publishers[i]);
        for (bool is_drained = false; !is_drained;) {
                is_drained = true;
                for (size_t i = 0; i < SINGLES_N; ++i) {
                        single_take(&c->singles[i], UINT64_MAX, 20);
                        is_drained = is_drained && single_is_drained(c, &c->singles[i]);
                }
                for (size_t i = 0; i < GROUPS_N; ++i) {
                        for (size_t k = 0; k < MEMBERS_N; ++k)
                                group_take(&c->groups[i], k, UINT64_MAX, 20);
                        is_drained = is_drained && group_is_drained(c, &c->groups[i]);
                }
        }
        for (size_t i = 0; i < SINGLES_N; ++i) { /* what was sent last is on its way */
                if (!c->singles[i].is_ended)
                        cr_assert_eq(ndbus_ping(c->singles[i].bus, NULL, ND_CLIENT_WAIT_MS), 0);
                single_take(&c->singles[i], UINT64_MAX, 0);
                if (c->singles[i].is_ended)
                        crowd_replace(c, &c->singles[i]);
        }
}

static void expect_single(struct crowd *c, const struct single *s, size_t i)
{
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
        uint64_t source = ndbus_source(s->bus);
        uint32_t id = ndbus_subscription_id(s->sub);

        ndbus_subscription_stats(s->sub, &stats);
        cr_expect_eq(stats.received, s->n_received, "subscription %zu", i);
        cr_expect_eq(stats.waiting, 0, "subscription %zu", i);
        cr_expect_eq(s->n_matched, stats.received + stats.dropped,
                     "subscription %zu: %" PRIu64 " matched, %" PRIu64 " received, %" PRIu64
                     " announced",
                     i, s->n_matched, stats.received, stats.dropped);
        cr_expect_eq(nd_raw_stat_subscription(c->observer, source, id, "matched"), s->n_matched);
        cr_expect_eq(nd_raw_stat_subscription(c->observer, source, id, "delivered"),
                     stats.received);
        cr_expect_eq(nd_raw_stat_subscription(c->observer, source, id, "dropped"), stats.dropped);
        cr_expect_leq(s->n_dropped, stats.dropped); /* the last gap has no message */
        if (s->policy == NDBUS_BLOCK || s->policy == NDBUS_DISCONNECT)
                cr_expect_eq(stats.dropped, 0, "subscription %zu", i);
}

static void expect_group(struct crowd *c, const struct group *g)
{
        uint64_t dropped = nd_raw_stat_group(c->observer, g->pattern, g->name, "dropped");

        cr_expect_eq(nd_raw_stat_group(c->observer, g->pattern, g->name, "matched"), g->n_matched);
        cr_expect_eq(nd_raw_stat_group(c->observer, g->pattern, g->name, "delivered"),
                     g->n_received);
        cr_expect_eq(g->n_matched, g->n_received + dropped,
                     "group %s: %" PRIu64 " matched, %" PRIu64 " received, %" PRIu64 " dropped",
                     g->name, g->n_matched, g->n_received, dropped);
        if (g->options.policy == NDBUS_BLOCK)
                cr_expect_eq(dropped, 0, "group %s", g->name);
}

static void crowd_close(struct crowd *c)
{
        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                nd_client_close(c->publishers[i]);
        for (size_t i = 0; i < SINGLES_N; ++i)
                nd_client_close(c->singles[i].bus);
        for (size_t i = 0; i < GROUPS_N; ++i)
                for (size_t k = 0; k < MEMBERS_N; ++k)
                        nd_client_close(c->groups[i].members[k]);
        nd_raw_close(c->observer);
        nd_harness_stop(c->harness);
}

Test(sums, random_load)
{
        uint64_t seed = first_seed();

        for (uint64_t round = 0; round < 3; ++round) {
                struct crowd c;

                random_state = seed + round;
                crowd_open(&c);
                for (uint64_t i = 1; i <= STEPS; ++i)
                        crowd_step(&c, i);
                crowd_drain(&c);
                nd_raw_check_stats(c.observer);
                for (size_t i = 0; i < SINGLES_N; ++i)
                        expect_single(&c, &c.singles[i], i);
                for (size_t i = 0; i < GROUPS_N; ++i)
                        expect_group(&c, &c.groups[i]);
                cr_expect_gt(c.n_ended, 0);
                cr_expect_eq(nd_raw_stat(c.observer, "counters", "dropped_ended"),
                             c.n_dropped_ended);
                crowd_close(&c);
        }
}

/* Policy disconnect: the message that was too many is known here, because each is routed before the
 * next is published. */
Test(sums, ended)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *pub = nd_client_open(h, &nd_transports[0], NULL);
        struct nd_raw *observer = nd_raw_open(h, false);
        uint64_t n_ended = 0;

        random_state = first_seed();
        for (size_t round = 0; round < 40; ++round) {
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
                struct single s = {.policy = NDBUS_DISCONNECT, .pattern = "a"};
                uint64_t most = 1 + random_below(2) * 300000;

                s.bus = nd_client_open(h, &nd_transports[round % 2], NULL);
                single_subscribe(&s);
                while (nd_raw_stat(observer, "counters", "dropped_ended") == n_ended) {
                        nd_client_publish(pub, "a", ++s.n_matched, random_below(most));
                        nd_client_flush(pub);
                }
                single_take(&s, UINT64_MAX, ND_CLIENT_WAIT_MS);
                ndbus_subscription_stats(s.sub, &stats);
                cr_expect_eq(stats.received, s.n_received);
                cr_expect_eq(s.n_matched, stats.received + stats.dropped,
                             "%" PRIu64 " matched, %" PRIu64 " received, %" PRIu64 " announced",
                             s.n_matched, stats.received, stats.dropped);
                n_ended += stats.dropped;
                cr_assert_eq(nd_raw_stat(observer, "counters", "dropped_ended"), n_ended);
                nd_client_close(s.bus);
        }
        nd_client_close(pub);
        nd_raw_close(observer);
        nd_harness_stop(h);
}
