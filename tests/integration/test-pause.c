/* SPDX-License-Identifier: MIT */

/*
 * Policy block with wildcards: who stops whom, for how long, and how much is said about it
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "tests/support/client.h"
#include "tests/support/raw-client.h"

#define TOPICS_N   3000u
#define MESSAGES_N 2u /* on each */
#define DEPTH      10u

/* A publisher that obeys. */
struct obedient {
        struct nd_raw *raw;
        bool is_paused[TOPICS_N];
        uint64_t n_published[TOPICS_N];
        uint64_t n_left;   /* to publish */
        uint64_t n_paused; /* TOPIC packets that say so */
        uint64_t n_resumed;
        size_t i_next;
};

static void hear(struct obedient *o, const struct nd_raw_packet *packet)
{
        struct nd_topic_header said;
        char topic[32] = "";
        unsigned i;

        cr_assert(packet, "closed");
        if (packet->prelude.kind != ND_KIND_TOPIC)
                return;
        cr_assert_eq(nd_topic_header_unpack(packet->header, packet->prelude.header_bytes, true,
                                            &said, NULL),
                     0);
        cr_assert_lt(said.topic.n, sizeof(topic));
        memcpy(topic, said.topic.at, said.topic.n);
        cr_assert_eq(sscanf(topic, "t/%u", &i), 1);
        cr_assert_lt(i, TOPICS_N);
        cr_assert_neq(o->is_paused[i], said.paused, "%s: nothing new", topic);
        o->is_paused[i] = said.paused;
        ++*(said.paused ? &o->n_paused : &o->n_resumed);
}

/* PING, and what was said before PONG. */
static void hear_all(struct obedient *o)
{
        const struct nd_raw_packet *packet;

        nd_raw_send_prelude(o->raw, (struct nd_prelude){.kind = ND_KIND_PING,
                                                        .sequence = ++o->raw->n_requests});
        do {
                packet = nd_raw_next(o->raw);
                hear(o, packet);
        } while (packet->prelude.kind != ND_KIND_PONG);
        while (nd_raw_has_input(o->raw))
                hear(o, nd_raw_next(o->raw));
}

/* The next topic that may be published on. False: there is none, or no leave for anything. */
static bool publish(struct obedient *o)
{
        char topic[32];

        if (o->raw->credit < 1000)
                return false;
        for (size_t k = 0; k < TOPICS_N; ++k) {
                size_t i = (o->i_next + k) % TOPICS_N;

                if (o->is_paused[i] || o->n_published[i] == MESSAGES_N)
                        continue;
                snprintf(topic, sizeof(topic), "t/%zu", i);
                nd_raw_publish(o->raw, topic, 10);
                ++o->n_published[i];
                --o->n_left;
                o->i_next = i + 1;
                return true;
        }
        return false;
}

/* Thousands of topics that one slow subscription stops do not all come back for the place of one:
 * each time as many as there are places, until the queue is empty. */
Test(pause, thousands_of_topics)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *slow = nd_raw_open(h, false);
        struct obedient o = {.raw = nd_raw_open(h, false), .n_left = TOPICS_N * MESSAGES_N};
        uint64_t n_taken = 0, n_resumed = 0, n_at_once = 0;

        nd_raw_subscribe(
                slow, 1,
                &(struct nd_raw_subscribe){
                        .pattern = "**", .policy = ND_POLICY_BLOCK, .depth = DEPTH, .window = 1});
        while (n_taken < TOPICS_N * MESSAGES_N) {
                struct nd_raw_message message;

                hear_all(&o);
                if (o.n_left > 0)
                        n_at_once = nd_max_u64(n_at_once, o.n_resumed - n_resumed);
                n_resumed = o.n_resumed;
                while (publish(&o))
                        hear_all(&o);
                message = nd_raw_receive(slow);
                cr_assert_eq(message.n_dropped, 0);
                nd_raw_grant(slow, 1, 1, message.prelude.body_bytes);
                nd_raw_message_free(&message);
                ++n_taken;
        }
        hear_all(&o);
        printf("paused %llu times, at most %llu resumed at once\n", (unsigned long long)o.n_paused,
               (unsigned long long)n_at_once);
        cr_expect_gt(o.n_paused, TOPICS_N / 2);
        cr_expect_leq(n_at_once, 2 * DEPTH); /* two may have been taken when it is heard */
        cr_expect_eq(o.n_resumed, o.n_paused, "it has emptied: nothing is paused any more");
        nd_raw_check_stats(o.raw);
        nd_raw_close(o.raw);
        nd_raw_close(slow);
        nd_harness_stop(h);
}

static void finish(struct nd_raw *member, uint64_t number)
{
        const struct nd_prelude credit = {
                .kind = ND_KIND_CREDIT, .subscription = 1, .body_bytes = sizeof(uint64_t)};
        uint8_t body[sizeof(uint64_t)];

        nd_store_le64(body, number);
        nd_raw_send_packet(member, credit, NULL, 0, NULL, 0, body, sizeof(body));
}

/* What the member has not finished, but for the one that it is at work on, fills the queue, though its
 * window has room for more: who publishes is stopped, what was sent all the same waits in the queue, and
 * at half the limit it goes on. */
Test(pause, not_finished_by_a_group)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *member = nd_raw_open(h, false), *watcher = nd_raw_open(h, false);
        static struct obedient o;

        static const struct {
                uint64_t queued;
                bool is_paused;
        } after[] = {{2, true},  {1, true},  {0, true},  {0, true},
                     {0, false}, {0, false}, {0, false}, {0, false}};

        o = (struct obedient){.raw = nd_raw_open(h, false)};
        nd_raw_subscribe(member, 1,
                         &(struct nd_raw_subscribe){.pattern = "t/*",
                                                    .group = "U",
                                                    .policy = ND_POLICY_BLOCK,
                                                    .depth = 4,
                                                    .window = 1000});
        for (uint64_t n = 1; n <= 7; ++n) {
                nd_raw_publish(o.raw, "t/0", 10);
                hear_all(&o);
                cr_expect_eq(o.is_paused[0], n > 5, "after %llu", (unsigned long long)n);
        }
        for (uint64_t n = 0; n <= 7; ++n) {
                uint64_t n_has = nd_min_u64(7 - n, 5);

                if (n > 0)
                        finish(member, n);
                nd_raw_flush(member); /* passes over what it was sent */
                hear_all(&o);
                cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "unfinished"), n_has,
                             "%llu finished", (unsigned long long)n);
                cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "queued"), after[n].queued);
                cr_expect_eq(o.is_paused[0], after[n].is_paused, "%llu finished",
                             (unsigned long long)n);
        }
        cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "dropped"), 0);
        nd_raw_close(o.raw);
        nd_raw_close(watcher);
        nd_raw_close(member);
        nd_harness_stop(h);
}

/* Each member of a group is at work on one message, however large: limits are for what it has beyond
 * that, and the third is such, the fourth beyond them. */
Test(pause, each_member_of_a_group_is_at_work_on_one)
{
        const struct nd_raw_subscribe ask = {
                .pattern = "t/*",
                .group = "U",
                .policy = ND_POLICY_BLOCK,
                .bytes = 10,
                .window = 1000,
        };
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *members[2], *watcher = nd_raw_open(h, false);
        static struct obedient o;

        o = (struct obedient){.raw = nd_raw_open(h, false)};
        for (size_t i = 0; i < nd_array_size(members); ++i) {
                members[i] = nd_raw_open(h, false);
                nd_raw_subscribe(members[i], 1, &ask);
        }
        for (uint64_t n = 1; n <= 4; ++n) {
                nd_raw_publish(o.raw, "t/0", 1000);
                hear_all(&o);
                cr_expect_eq(o.is_paused[0], n == 4, "after %llu", (unsigned long long)n);
                cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "unfinished"),
                             nd_min_u64(n, 3));
        }
        cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "queued"), 1);
        finish(members[0], 1); /* now it is at work on the third, and the fourth is beyond that */
        nd_raw_flush(members[0]);
        hear_all(&o);
        cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "unfinished"), 3);
        cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "queued"), 0);
        cr_expect(o.is_paused[0]);
        finish(members[0], 2); /* on the fourth, and nothing is */
        nd_raw_flush(members[0]);
        hear_all(&o);
        cr_expect_eq(nd_raw_stat_group(watcher, "t/*", "U", "unfinished"), 2);
        cr_expect_not(o.is_paused[0]);
        nd_raw_close(o.raw);
        nd_raw_close(watcher);
        for (size_t i = 0; i < nd_array_size(members); ++i)
                nd_raw_close(members[i]);
        nd_harness_stop(h);
}

/* One that asked for everything with block and never reads stops all others for block-timeout; then
 * it is told why it has ended, and they have lost nothing. */
Test(pause, never_reads)
{
        static const char *const args[] = {"--block-timeout", "1000", NULL};
        static const char *const topics[] = {"a", "b"};

        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
                struct nd_raw *never = nd_raw_open(h, nd_transports[t].is_tcp);
                struct ndbus *pubs[2], *subs[2];
                const struct nd_raw_packet *packet;
                struct nd_unsubscribed said;
                bool was_blocked[2] = {false};

                nd_raw_subscribe(never, 1,
                                 &(struct nd_raw_subscribe){
                                         .pattern = "**", .policy = ND_POLICY_BLOCK, .depth = 20});
                for (size_t i = 0; i < 2; ++i) {
                        pubs[i] = nd_client_open(h, &nd_transports[t], NULL);
                        subs[i] = nd_client_open(h, &nd_transports[t], NULL);
                        nd_client_subscribe(subs[i], topics[i], NULL);
                }
                for (uint64_t n = 1; n <= 200; ++n) {
                        for (size_t i = 0; i < 2; ++i) {
                                if (nd_client_try_publish(pubs[i], topics[i], n, 300000, 0) == 0)
                                        continue;
                                was_blocked[i] = true;
                                nd_client_publish(pubs[i], topics[i], n, 300000);
                        }
                        for (size_t i = 0; i < 2; ++i)
                                nd_client_expect(subs[i], n);
                }
                cr_expect(was_blocked[0] || was_blocked[1]);
                do {
                        packet = nd_raw_next_other(never);
                        cr_assert(packet, "it was closed");
                } while (packet->prelude.kind != ND_KIND_UNSUBSCRIBED);
                cr_assert_eq(nd_unsubscribed_unpack(packet->header, packet->prelude.header_bytes,
                                                    &said, NULL),
                             0);
                cr_expect_eq(said.code, -NDBUS_ESLOW);
                nd_raw_check_stats(never); /* the connection goes on */
                for (size_t i = 0; i < 2; ++i) {
                        nd_client_close(pubs[i]);
                        nd_client_close(subs[i]);
                }
                nd_raw_close(never);
                nd_harness_stop(h);
        }
}
