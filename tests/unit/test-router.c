/* SPDX-License-Identifier: MIT */

/*
 * Router: its routes are exactly those that nd_pattern_match() gives, whatever comes and goes
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "daemon/router.h"
#include "protocol/topic.h"

#define TARGETS_N 60u

struct target {
        struct nd_target target;
        bool is_there;
        char pattern[64];
};

static unsigned random_state;

static unsigned random_below(unsigned n)
{
        random_state = random_state * 1664525u + 1013904223u;
        return (random_state >> 8) % n;
}

static void make_name(char *out, bool is_pattern)
{
        static const char *const segments[] = {"a", "b", "ab", "$x", "c", "*", "**", "**"};
        unsigned n = 1 + random_below(5);

        out[0] = '\0';
        for (unsigned i = 0; i < n; ++i) {
                strcat(out, i > 0 ? "/" : "");
                strcat(out, segments[random_below(is_pattern ? 8 : 5)]);
        }
}

static bool route_has(struct nd_target **targets, size_t n, const struct nd_target *target)
{
        size_t n_found = 0;

        for (size_t i = 0; i < n; ++i)
                n_found += targets[i] == target;
        cr_assert_leq(n_found, 1, "a target is there twice");
        return n_found == 1;
}

static void check_topic(struct nd_topic *topic, const struct target *all)
{
        struct nd_target **targets;
        size_t n, n_expected = 0;

        cr_assert_eq(nd_topic_route(topic, &targets, &n), 0);
        for (size_t i = 0; i < TARGETS_N; ++i) {
                bool matches =
                        all[i].is_there && nd_pattern_match(all[i].pattern, strlen(all[i].pattern),
                                                            topic->name, topic->n_name);

                n_expected += matches;
                cr_assert_eq(route_has(targets, n, &all[i].target), matches, "%s and %s",
                             all[i].pattern, topic->name);
        }
        cr_assert_eq(n, n_expected);
}

static void flip(struct nd_router *router, struct target *target)
{
        if (target->is_there) {
                nd_router_remove(router, &target->target);
                nd_router_remove(router, &target->target); /* idempotent */
        } else {
                make_name(target->pattern, true);
                cr_assert_eq(nd_router_add(router, target->pattern, strlen(target->pattern),
                                           &target->target),
                             0);
        }
        target->is_there = !target->is_there;
}

Test(router, agrees_with_the_matcher)
{
        static struct target all[TARGETS_N];
        struct nd_router router;
        struct nd_topic *kept[5];
        char name[64];

        random_state = (unsigned)time(NULL);
        fprintf(stderr, "seed %u\n", random_state);
        cr_assert_eq(nd_router_init(&router), 0);
        for (size_t i = 0; i < nd_array_size(kept); ++i) {
                make_name(name, false);
                kept[i] = nd_router_topic(&router, name, strlen(name));
        }
        for (int round = 0; round < 3000; ++round) {
                struct nd_topic *topic;

                flip(&router, &all[random_below(TARGETS_N)]);
                make_name(name, false);
                topic = nd_router_topic(&router, name, strlen(name));
                cr_assert(topic);
                check_topic(topic, all);
                nd_topic_unref(topic);
                check_topic(kept[random_below(nd_array_size(kept))], all);
        }
        for (size_t i = 0; i < TARGETS_N; ++i) {
                if (all[i].is_there)
                        flip(&router, &all[i]);
        }
        cr_assert_eq(router.n_patterns, 1, "%zu nodes are left", router.n_patterns);
        for (size_t i = 0; i < nd_array_size(kept); ++i) {
                check_topic(kept[i], all);
                nd_topic_unref(kept[i]);
        }
        cr_assert_eq(router.n_topics, 0);
        cr_assert_eq(router.n_routes, 0);
        nd_router_deinit(&router);
}

/* What begins with '$' is reached by what begins with the same, and by nothing else. */
Test(router, system_topics)
{
        static const struct {
                const char *pattern;
                const char *topic;
                bool matches;
        } rows[] = {
                {"**", "$x", false},       {"*", "$x", false},      {"**/$x", "$x", false},
                {"**/**/$x", "$x", false}, {"$x", "$x", true},      {"$x/**", "$x", true},
                {"$x/**", "$x/a", true},   {"$x/*", "$x/$x", true}, {"a/**", "a/$x", true},
                {"**", "a/$x", true},      {"*/$x", "a/$x", true},  {"**/$x", "a/$x", true},
                {"**/a", "$x/a", false},   {"*/a", "$x/a", false},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_target target = {0}, **targets;
                struct nd_router router;
                struct nd_topic *topic;
                size_t n;

                cr_assert_eq(nd_router_init(&router), 0);
                cr_assert_eq(
                        nd_router_add(&router, rows[i].pattern, strlen(rows[i].pattern), &target),
                        0);
                topic = nd_router_topic(&router, rows[i].topic, strlen(rows[i].topic));
                cr_assert_eq(nd_topic_route(topic, &targets, &n), 0);
                cr_expect_eq(n, rows[i].matches, "%s and %s", rows[i].pattern, rows[i].topic);
                cr_expect_eq(nd_pattern_match(rows[i].pattern, strlen(rows[i].pattern),
                                              rows[i].topic, strlen(rows[i].topic)),
                             rows[i].matches, "%s and %s", rows[i].pattern, rows[i].topic);
                nd_topic_unref(topic);
                nd_router_remove(&router, &target);
                nd_router_deinit(&router);
        }
}

/* A name is one topic, however often it is asked for; it goes with its last reference. */
Test(router, topics)
{
        struct nd_router router;
        struct nd_topic *a, *again, *ab;

        cr_assert_eq(nd_router_init(&router), 0);
        a = nd_router_topic(&router, "a/bc", 3);
        cr_assert_str_eq(a->name, "a/b");
        again = nd_router_topic(&router, "a/b", 3);
        ab = nd_router_topic(&router, "a/bc", 4);
        cr_assert_eq(a, again);
        cr_assert_neq(a, ab);
        cr_assert_eq(router.n_topics, 2);
        nd_topic_unref(a);
        cr_assert_eq(router.n_topics, 2);
        nd_topic_unref(again);
        nd_topic_unref(ab);
        cr_assert_eq(router.n_topics, 0);
        nd_router_deinit(&router);
}

/* What topics remember of their routes is bounded, and found again when it was forgotten. */
Test(router, remembers_a_bounded_number)
{
        enum {
                N = 3000
        };
        static struct nd_target many[N];
        static struct nd_topic *topics[N];
        struct nd_target **targets;
        struct nd_router router;
        char name[16];
        size_t n;

        cr_assert_eq(nd_router_init(&router), 0);
        for (size_t i = 0; i < N; ++i)
                cr_assert_eq(nd_router_add(&router, "**", 2, &many[i]), 0);
        for (size_t i = 0; i < N; ++i) {
                int n_name = snprintf(name, sizeof(name), "%zu", i);

                topics[i] = nd_router_topic(&router, name, (size_t)n_name);
                cr_assert_eq(nd_topic_route(topics[i], &targets, &n), 0);
                cr_assert_eq(n, N);
                cr_assert_leq(router.n_routes, ((size_t)1 << 20) + 4096);
        }
        for (size_t i = 0; i < N; ++i) {
                cr_assert_eq(nd_topic_route(topics[i], &targets, &n), 0);
                cr_assert_eq(n, N);
                nd_topic_unref(topics[i]);
        }
        for (size_t i = 0; i < N; ++i)
                nd_router_remove(&router, &many[i]);
        cr_assert_eq(router.n_patterns, 1);
        cr_assert_eq(router.n_routes, 0);
        nd_router_deinit(&router);
}

/* A pattern's cost is no less than what it takes. */
Test(router, cost_of_patterns)
{
        struct nd_target target = {0};
        struct nd_router router;
        size_t n_nodes;

        cr_assert_eq(nd_router_init(&router), 0);
        cr_assert_eq(nd_router_add(&router, "a/b/*/c/**", 10, &target), 0);
        n_nodes = router.n_patterns - 1;
        cr_assert_eq(n_nodes, 5);
        cr_assert_geq(nd_router_pattern_cost("a/b/*/c/**", 10),
                      n_nodes * sizeof(struct nd_pattern) + 10);
        nd_router_remove(&router, &target);
        nd_router_deinit(&router);
}
