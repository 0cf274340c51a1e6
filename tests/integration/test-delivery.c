/* SPDX-License-Identifier: MIT */

/*
 * What reaches a subscriber, and when: order, gaps, retained values, messages that end early
 */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "tests/support/bystanders.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)

/* A daemon, one who publishes and one who subscribes. */
struct pair {
        struct nd_harness *h;
        struct nd_raw *publisher;
        struct nd_raw *subscriber;
};

static void pair_init(struct pair *p, bool is_tcp)
{
        p->h = nd_harness_start(NULL);
        p->publisher = nd_raw_open(p->h, is_tcp);
        p->subscriber = nd_raw_open(p->h, is_tcp);
}

static void pair_deinit(struct pair *p)
{
        nd_raw_close(p->publisher);
        nd_raw_close(p->subscriber);
        nd_harness_stop(p->h);
}

static void expect_message(struct nd_raw *raw, uint64_t n_bytes, uint64_t sequence, uint64_t gap)
{
        struct nd_raw_message message = nd_raw_receive(raw);

        cr_assert_eq(message.prelude.body_bytes, n_bytes, "%llu bytes",
                     (unsigned long long)message.prelude.body_bytes);
        cr_assert_eq(message.prelude.sequence, sequence, "sequence %llu, expected %llu",
                     (unsigned long long)message.prelude.sequence, (unsigned long long)sequence);
        cr_assert_eq(message.n_dropped, gap, "gap %llu", (unsigned long long)message.n_dropped);
        nd_raw_message_free(&message);
}

static void expect_silence(struct nd_raw *raw)
{
        cr_assert_not(nd_raw_has_input(raw), "something came, and nothing should");
}

/* T39: acknowledged, then published at once by another client */
Test(delivery, acknowledged_is_subscribed)
{
        struct pair p;

        pair_init(&p, false);
        for (uint32_t i = 1; i <= 1000; ++i) {
                nd_raw_subscribe(p.subscriber, i, &(struct nd_raw_subscribe){.pattern = "t39"});
                nd_raw_publish(p.publisher, "t39", 64);
                expect_message(p.subscriber, 64, i, 0);
                nd_raw_send_prelude(p.subscriber, (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE,
                                                                      .subscription = i,
                                                                      .sequence = i});
                nd_raw_expect(p.subscriber, ND_KIND_UNSUBSCRIBED);
        }
        pair_deinit(&p);
}

/* Each is named by itself; the greatest passes. */
Test(delivery, limits_of_windows)
{
        struct pair p;
        struct nd_error_header error;

        pair_init(&p, false);
        nd_raw_ask_subscribe(
                p.subscriber, 1,
                &(struct nd_raw_subscribe){.pattern = "a", .window = ND_WINDOW_MAX + 1});
        error = nd_raw_expect_error(p.subscriber, NDBUS_ECREDIT, false);
        cr_expect_eq(error.value, ND_WINDOW_MAX + 1);
        cr_expect_eq(error.limit, ND_WINDOW_MAX);
        nd_raw_ask_subscribe(
                p.subscriber, 2,
                &(struct nd_raw_subscribe){.pattern = "a", .window_bytes = ND_WINDOW_MAX + 2});
        error = nd_raw_expect_error(p.subscriber, NDBUS_ECREDIT, false);
        cr_expect_eq(error.value, ND_WINDOW_MAX + 2);
        nd_raw_subscribe(p.subscriber, 3,
                         &(struct nd_raw_subscribe){.pattern = "a",
                                                    .window = ND_WINDOW_MAX,
                                                    .window_bytes = ND_WINDOW_MAX});
        nd_raw_publish(p.publisher, "a", 64);
        expect_message(p.subscriber, 64, 1, 0);
        pair_deinit(&p);
}

/* Bodies of every kind of size, both transports; sequence of their topic, order of the source. */
static void sizes(bool is_tcp)
{
        static const uint64_t rows[] = {0,       1,     63,      64,           4096,
                                        65535,   65536, 65537,   100000,       500000,
                                        MIB - 1, MIB,   MIB + 1, 3 * MIB + 17, 20 * MIB};
        struct pair p;

        pair_init(&p, is_tcp);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "a/*"});
        nd_raw_subscribe(p.subscriber, 2, &(struct nd_raw_subscribe){.pattern = "a/b"});
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                uint32_t seen = 0;

                nd_raw_publish(p.publisher, "a/b", rows[i]);
                nd_raw_publish(p.publisher, "a/bc", 0);
                for (int k = 0; k < 3; ++k) {
                        struct nd_raw_message message = nd_raw_receive(p.subscriber);

                        cr_assert_eq(message.prelude.sequence, i + 1);
                        cr_assert_eq(message.prelude.source, p.publisher->source);
                        seen |= 1u << (message.prelude.subscription +
                                       (message.prelude.body_bytes != rows[i] ? 4 : 0));
                        nd_raw_message_free(&message);
                }
                cr_assert(rows[i] == 0 ? seen == 0x6 : seen == 0x26, "seen %x", seen);
                nd_raw_grant(p.subscriber, 1, 2, rows[i]);
                nd_raw_grant(p.subscriber, 2, 1, rows[i]);
        }
        nd_raw_check_stats(p.publisher);
        /* at most what came in one buffer together with the first prelude of a body */
        cr_expect_lt(nd_raw_stat(p.publisher, "counters", "body_bytes_copied"),
                     nd_array_size(rows) * 65536);
        pair_deinit(&p);
}

Test(delivery, sizes_unix)
{
        sizes(false);
}

Test(delivery, sizes_tcp)
{
        sizes(true);
}

/* While large messages come one after another, none of their bytes is copied but in the first. */
Test(delivery, large_bodies_are_not_copied)
{
        struct pair p;
        uint64_t n_before;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "large"});
        nd_raw_publish(p.publisher, "large", 8 * MIB);
        expect_message(p.subscriber, 8 * MIB, 1, 0);
        nd_raw_grant(p.subscriber, 1, 1, 8 * MIB);
        n_before = nd_raw_stat(p.publisher, "counters", "body_bytes_copied");
        for (uint64_t i = 2; i <= 10; ++i) {
                nd_raw_publish(p.publisher, "large", 8 * MIB);
                expect_message(p.subscriber, 8 * MIB, i, 0);
                nd_raw_grant(p.subscriber, 1, 1, 8 * MIB);
        }
        cr_expect_eq(nd_raw_stat(p.publisher, "counters", "body_bytes_copied"), n_before);
        pair_deinit(&p);
}

/* The first bytes of a large body are with the subscriber before the last were sent. */
Test(delivery, cut_through)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "cut"});
        nd_raw_publish_begin(p.publisher, "cut", 2 * MIB, 5);
        nd_raw_publish_chunk(p.publisher, 5, 0, 1000);
        cr_expect_eq(nd_raw_expect(p.subscriber, ND_KIND_MESSAGE)->prelude.body_bytes, 2 * MIB);
        cr_expect_eq(nd_raw_expect(p.subscriber, ND_KIND_CHUNK)->prelude.body_bytes, 1000);
        nd_raw_publish_chunk(p.publisher, 5, 1000, 50);
        cr_expect_eq(nd_raw_expect(p.subscriber, ND_KIND_CHUNK)->prelude.body_bytes, 50);
        nd_raw_publish_rest(p.publisher, 5, 1050, 2 * MIB);
        for (uint64_t n = 1050; n < 2 * MIB;)
                n += nd_raw_expect(p.subscriber, ND_KIND_CHUNK)->prelude.body_bytes;
        cr_expect_eq(nd_raw_stat(p.publisher, "counters", "messages_cut_through"), 1);
        pair_deinit(&p);
}

/* A message that its publisher takes back never existed: RESET, no gap, its sequence used again. */
Test(delivery, reset_in_the_middle)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "reset"});
        nd_raw_publish(p.publisher, "reset", 10);
        expect_message(p.subscriber, 10, 1, 0);
        for (uint32_t i = 0; i < 3; ++i) {
                nd_raw_publish_begin(p.publisher, "reset", 2 * MIB, 5 + i);
                nd_raw_publish_chunk(p.publisher, 5 + i, 0, 1000);
                cr_expect_eq(nd_raw_expect(p.subscriber, ND_KIND_MESSAGE)->prelude.sequence, 2);
                nd_raw_expect(p.subscriber, ND_KIND_CHUNK);
                nd_raw_send_prelude(p.publisher,
                                    (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 5 + i});
                nd_raw_expect(p.subscriber, ND_KIND_RESET);
        }
        nd_raw_publish(p.publisher, "reset", 20);
        expect_message(p.subscriber, 20, 2, 0);
        cr_expect_eq(nd_raw_stat(p.publisher, "counters", "messages_aborted"), 3);
        cr_expect_eq(nd_raw_stat_subscription(p.publisher, p.subscriber->source, 1, "matched"), 2);
        nd_raw_check_stats(p.publisher);
        pair_deinit(&p);
}

/* The same when the publisher dies, or says GOODBYE, in the middle. */
Test(delivery, publisher_ends_in_the_middle)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "end"});
        for (int i = 0; i < 4; ++i) {
                struct nd_raw *publisher = nd_raw_open(p.h, i & 1);

                nd_raw_publish_begin(publisher, "end", 2 * MIB, 5);
                nd_raw_publish_chunk(publisher, 5, 0, 1000);
                nd_raw_expect(p.subscriber, ND_KIND_MESSAGE);
                nd_raw_expect(p.subscriber, ND_KIND_CHUNK);
                if (i & 2) {
                        nd_raw_send_prelude(publisher,
                                            (struct nd_prelude){.kind = ND_KIND_GOODBYE});
                        nd_raw_publish_chunk(publisher, 5, 1000, 1000); /* passed over */
                        nd_raw_expect(publisher, ND_KIND_GOODBYE);
                        nd_raw_expect(p.subscriber, ND_KIND_RESET);
                }
                nd_raw_close(publisher);
                if (!(i & 2))
                        nd_raw_expect(p.subscriber, ND_KIND_RESET);
        }
        nd_raw_publish(p.publisher, "end", 20);
        expect_message(p.subscriber, 20, 1, 0);
        cr_expect_eq(nd_raw_stat(p.publisher, "counters", "protocol_errors"), 0);
        nd_raw_check_stats(p.publisher);
        pair_deinit(&p);
}

/* While a message is cut through, others of the same subscription go past it. */
Test(delivery, others_pass_an_unfinished_message)
{
        struct nd_raw_message message;
        struct nd_raw *other;
        struct pair p;

        pair_init(&p, false);
        other = nd_raw_open(p.h, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "**", .window = 2});
        nd_raw_publish_begin(p.publisher, "slow", 2 * MIB, 5);
        nd_raw_publish_chunk(p.publisher, 5, 0, 1000);
        for (uint64_t i = 1; i <= 20; ++i) {
                nd_raw_publish(other, "fast", i % 2 ? 100 : 3 * MIB);
                message = nd_raw_receive(p.subscriber);
                cr_assert_eq(message.prelude.source, other->source);
                nd_raw_grant(p.subscriber, 1, 1, message.prelude.body_bytes);
                nd_raw_message_free(&message);
        }
        nd_raw_publish_rest(p.publisher, 5, 1000, 2 * MIB);
        expect_message(p.subscriber, 2 * MIB, 1, 0);
        nd_raw_check_stats(p.publisher);
        nd_raw_close(other);
        pair_deinit(&p);
}

/* A message that was begun by cut-through is complete; telling one subscription, whose queue is full,
 * makes its connection write; what is written there for another must not take bytes from a third,
 * whose socket is full and who has not been told yet. */
Test(delivery, completion_beside_a_full_queue)
{
        const struct nd_raw_subscribe ask = {.pattern = "c"};
        struct nd_raw *full, *stopped;
        uint64_t n = 0;
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &ask);
        for (uint64_t i = 1; i <= 4; ++i) { /* the window grows */
                nd_raw_publish(p.publisher, "c", 8 * MIB);
                expect_message(p.subscriber, 8 * MIB, i, 0);
                nd_raw_grant(p.subscriber, 1, 1, 8 * MIB);
        }
        nd_raw_close(p.subscriber);

        full = nd_raw_open(p.h, true); /* its socket takes whole chunks at a time */
        stopped = nd_raw_open(p.h, false);
        nd_raw_subscribe(full, 1, &ask);
        nd_raw_subscribe(full, 2,
                         &(struct nd_raw_subscribe){.pattern = "c", .depth = 1, .window = 1});
        nd_raw_subscribe(stopped, 1, &ask);
        nd_raw_publish(p.publisher, "c", 1); /* subscription 2: its window is used up */
        nd_raw_publish(p.publisher, "c", 1); /* and its queue full */
        nd_raw_publish_begin(p.publisher, "c", 4 * MIB, 3);
        nd_raw_publish_rest(p.publisher, 3, 0, 3 * MIB);
        for (int i = 0; i < 3; ++i) {
                struct nd_raw_message message = nd_raw_receive(full);

                cr_assert_eq(message.prelude.body_bytes, 1);
                nd_raw_message_free(&message);
        }
        nd_raw_expect(full, ND_KIND_MESSAGE);
        while (n < 3 * MIB)
                n += nd_raw_expect(full, ND_KIND_CHUNK)->prelude.body_bytes;
        nd_raw_publish_rest(p.publisher, 3, 3 * MIB, 4 * MIB);
        while (n < 4 * MIB)
                n += nd_raw_expect(full, ND_KIND_CHUNK)->prelude.body_bytes;
        expect_message(stopped, 1, 5, 0);
        expect_message(stopped, 1, 6, 0);
        expect_message(stopped, 4 * MIB, 7, 0);
        nd_raw_check_stats(p.publisher);
        nd_raw_close(full);
        nd_raw_close(stopped);
        p.subscriber = nd_raw_open(p.h, false);
        pair_deinit(&p);
}

/* T45: seven drops forced between 10 and 18: one gap of seven; a restart is a new source */
Test(delivery, gap_of_drop_oldest)
{
        struct pair p;
        uint64_t source;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1,
                         &(struct nd_raw_subscribe){.pattern = "t45", .window = 10, .depth = 3});
        for (int i = 0; i < 20; ++i)
                nd_raw_publish(p.publisher, "t45", 100);
        nd_raw_flush(p.publisher);
        for (uint64_t i = 1; i <= 10; ++i)
                expect_message(p.subscriber, 100, i, 0);
        nd_raw_flush(p.subscriber); /* the gap needs no window, but it is no news before 18 */
        nd_raw_grant(p.subscriber, 1, 10, 1000);
        expect_message(p.subscriber, 100, 18, 7);
        expect_message(p.subscriber, 100, 19, 0);
        expect_message(p.subscriber, 100, 20, 0);
        cr_expect_eq(nd_raw_stat_subscription(p.publisher, p.subscriber->source, 1, "dropped"), 7);
        nd_raw_check_stats(p.publisher);

        source = p.publisher->source;
        nd_raw_close(p.publisher);
        p.publisher = nd_raw_open(p.h, false);
        cr_expect_neq(p.publisher->source, source);
        nd_raw_publish(p.publisher, "t45", 100);
        expect_message(p.subscriber, 100, 1, 0);
        pair_deinit(&p);
}

/* What drop-newest drops is told behind what it kept, alone when nothing follows. */
Test(delivery, gap_of_drop_newest)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(
                p.subscriber, 1,
                &(struct nd_raw_subscribe){
                        .pattern = "n", .policy = ND_POLICY_DROP_NEWEST, .window = 2, .depth = 3});
        for (int i = 0; i < 9; ++i)
                nd_raw_publish(p.publisher, "n", 100);
        nd_raw_flush(p.publisher);
        nd_raw_grant(p.subscriber, 1, 0, 0);
        expect_message(p.subscriber, 100, 1, 0);
        expect_message(p.subscriber, 100, 2, 0);
        nd_raw_grant(p.subscriber, 1, 2, 200);
        expect_message(p.subscriber, 100, 3, 0);
        expect_message(p.subscriber, 100, 4, 0);
        nd_raw_grant(p.subscriber, 1, 2, 200);
        expect_message(p.subscriber, 100, 5, 0);
        cr_expect_eq(nd_raw_expect(p.subscriber, ND_KIND_GAP)->prelude.place, 4);
        nd_raw_publish(p.publisher, "n", 100);
        expect_message(p.subscriber, 100, 10, 0);
        nd_raw_check_stats(p.publisher);
        pair_deinit(&p);
}

/* latest: one message when asked for, the newest of each topic */
Test(delivery, latest)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1,
                         &(struct nd_raw_subscribe){.pattern = "l/*", .policy = ND_POLICY_LATEST});
        for (uint64_t i = 1; i <= 5; ++i) {
                nd_raw_publish(p.publisher, "l/a", 100 + i);
                nd_raw_publish(p.publisher, "l/b", 200 + i);
        }
        nd_raw_flush(p.publisher);
        nd_raw_flush(p.subscriber);
        expect_silence(p.subscriber);
        nd_raw_grant(p.subscriber, 1, 1, 0);
        expect_message(p.subscriber, 105, 5, 4);
        nd_raw_flush(p.subscriber);
        expect_silence(p.subscriber);
        nd_raw_publish(p.publisher, "l/b", 206);
        nd_raw_flush(p.publisher);
        nd_raw_grant(p.subscriber, 1, 1, 0);
        expect_message(p.subscriber, 206, 6, 5);
        nd_raw_grant(p.subscriber, 1, 1, 0); /* now it waits for the next */
        nd_raw_flush(p.subscriber);
        nd_raw_publish(p.publisher, "l/a", 2 * MIB);
        expect_message(p.subscriber, 2 * MIB, 6, 0);
        nd_raw_check_stats(p.publisher);
        nd_raw_grant(p.subscriber, 1, 1, 0);
        nd_raw_grant(p.subscriber, 1, 1, 0); /* more than one grant outstanding */
        nd_raw_expect_error(p.subscriber, NDBUS_ECREDIT, true);
        pair_deinit(&p);
}

/* disconnect: in the middle of a message that is being sent (T38); the connection goes on */
Test(delivery, disconnect)
{
        const struct nd_raw_packet *packet;
        struct nd_unsubscribed said;
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1,
                         &(struct nd_raw_subscribe){.pattern = "d",
                                                    .policy = ND_POLICY_DISCONNECT,
                                                    .bytes = 40 * MIB});
        nd_raw_subscribe(p.subscriber, 2, &(struct nd_raw_subscribe){.pattern = "e"});
        for (int i = 0; i < 3; ++i) /* one being sent, one queued, one too many */
                nd_raw_publish(p.publisher, "d", 30 * MIB);
        nd_raw_publish(p.publisher, "e", 50);
        nd_raw_flush(p.publisher);

        nd_raw_expect(p.subscriber, ND_KIND_MESSAGE);
        do
                packet = nd_raw_next_other(p.subscriber);
        while (packet->prelude.kind == ND_KIND_CHUNK);
        cr_assert_eq(packet->prelude.kind, ND_KIND_RESET);
        packet = nd_raw_expect(p.subscriber, ND_KIND_UNSUBSCRIBED);
        cr_expect_eq(packet->prelude.subscription, 1);
        cr_expect_eq(packet->prelude.sequence, 0);
        cr_expect_eq(packet->prelude.place, 3);
        cr_assert_eq(
                nd_unsubscribed_unpack(packet->header, packet->prelude.header_bytes, &said, NULL),
                0);
        cr_expect_eq(said.code, -NDBUS_EOVERFLOW);
        cr_expect(said.has_numbers);
        cr_expect_eq(said.value, 60 * MIB);
        cr_expect_eq(said.limit, 40 * MIB);
        expect_message(p.subscriber, 50, 1, 0);
        nd_raw_check_stats(p.publisher);
        pair_deinit(&p);
}

/* A stopped subscriber costs a fast one nothing. */
Test(delivery, slow_beside_fast)
{
        struct nd_raw *stopped;
        struct pair p;

        pair_init(&p, false);
        stopped = nd_raw_open(p.h, false);
        nd_raw_subscribe(stopped, 1, &(struct nd_raw_subscribe){.pattern = "**", .bytes = 8 * MIB});
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "**"});
        for (uint64_t i = 1; i <= 60; ++i) {
                nd_raw_publish(p.publisher, "s", 6 * MIB);
                expect_message(p.subscriber, 6 * MIB, i, 0);
                nd_raw_grant(p.subscriber, 1, 1, 6 * MIB);
        }
        nd_raw_check_stats(p.publisher);
        nd_raw_close(stopped);
        pair_deinit(&p);
}

/* T32: a stopped subscriber wakes up: a consistent tail, and the sum is right */
Test(delivery, tail_after_a_stop)
{
        uint64_t n_received = 0, n_dropped = 0, last = 0;
        struct nd_proc_memory before;
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1,
                         &(struct nd_raw_subscribe){.pattern = "t32", .bytes = 8 * MIB});
        before = nd_harness_memory(p.h);
        for (int i = 0; i < 100; ++i)
                nd_raw_publish(p.publisher, "t32", MIB);
        nd_raw_flush(p.publisher);
        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(p.h).rss_bytes, before.rss_bytes + 12 * MIB);
        while (last < 100) {
                struct nd_raw_message message = nd_raw_receive(p.subscriber);

                cr_assert_eq(message.prelude.sequence, last + message.n_dropped + 1);
                last = message.prelude.sequence;
                ++n_received;
                n_dropped += message.n_dropped;
                nd_raw_message_free(&message);
        }
        cr_expect_eq(n_received + n_dropped, 100);
        cr_expect_gt(n_dropped, 50);
        cr_expect_eq(nd_raw_stat_subscription(p.publisher, p.subscriber->source, 1, "dropped"),
                     n_dropped);
        nd_raw_check_stats(p.publisher);
        pair_deinit(&p);
}

/* T40: retained v1 v2 v3; subscribe; v4. And clearing. */
Test(delivery, retained)
{
        struct nd_raw_message message;
        struct nd_raw *late;
        struct pair p;

        pair_init(&p, false);
        for (uint64_t i = 1; i <= 3; ++i)
                nd_raw_publish_flags(p.publisher, "t40/x", 100 * i, ND_FLAG_RETAINED);
        nd_raw_publish_flags(p.publisher, "t40/y", 2 * MIB, ND_FLAG_RETAINED);
        nd_raw_flush(p.publisher);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "t40/x"});
        message = nd_raw_receive(p.subscriber);
        cr_expect_eq(message.prelude.body_bytes, 300);
        cr_expect_eq(message.prelude.sequence, 3);
        cr_expect(message.prelude.flags & ND_FLAG_RETAINED);
        nd_raw_message_free(&message);
        nd_raw_publish_flags(p.publisher, "t40/x", 400, ND_FLAG_RETAINED);
        message = nd_raw_receive(p.subscriber);
        cr_expect_eq(message.prelude.body_bytes, 400);
        cr_expect_not(message.prelude.flags & ND_FLAG_RETAINED);
        nd_raw_message_free(&message);
        nd_raw_flush(p.subscriber);
        expect_silence(p.subscriber);

        nd_raw_publish_flags(p.publisher, "t40/x", 0, ND_FLAG_RETAINED); /* clears it */
        nd_raw_flush(p.publisher);
        expect_message(p.subscriber, 0, 5, 0);
        late = nd_raw_open(p.h, false);
        nd_raw_subscribe(late, 1, &(struct nd_raw_subscribe){.pattern = "t40/*"});
        message = nd_raw_receive(late);
        cr_expect_eq(message.prelude.body_bytes, 2 * MIB);
        cr_expect(message.prelude.flags & ND_FLAG_RETAINED);
        nd_raw_message_free(&message);
        nd_raw_flush(late);
        expect_silence(late);
        nd_raw_subscribe(late, 2,
                         &(struct nd_raw_subscribe){.pattern = "t40/*", .no_retained = true});
        nd_raw_flush(late);
        expect_silence(late);
        cr_expect_eq(nd_raw_stat_subscription(p.publisher, p.subscriber->source, 1, "matched"), 2);
        nd_raw_check_stats(p.publisher);
        nd_raw_publish_flags(p.publisher, "t40/y", 0, ND_FLAG_RETAINED);
        nd_raw_flush(p.publisher);
        cr_expect_eq(nd_raw_stat(p.publisher, "memory", "retained"), 0);
        nd_raw_close(late);
        pair_deinit(&p);
}

/* Who subscribes while a retained message still arrives gets it too, once. */
Test(delivery, retained_that_still_arrives)
{
        struct pair p;
        size_t n_header;
        uint8_t *header = nd_raw_header("r", 2 * MIB, &n_header);

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "r"});
        p.publisher->credit -= ND_PRELUDE_BYTES + n_header;
        nd_raw_send_packet(p.publisher,
                           (struct nd_prelude){.kind = ND_KIND_PUBLISH,
                                               .flags = ND_FLAG_BODY_IN_CHUNKS | ND_FLAG_RETAINED,
                                               .stream = 3,
                                               .sequence = ++p.publisher->n_published,
                                               .body_bytes = 2 * MIB},
                           header, n_header, NULL, 0, NULL, 0);
        nd_raw_publish_chunk(p.publisher, 3, 0, 30000);
        cr_expect_eq(nd_raw_expect(p.subscriber, ND_KIND_MESSAGE)->prelude.subscription, 1);
        nd_raw_expect(p.subscriber, ND_KIND_CHUNK);
        nd_raw_subscribe(p.publisher, 9, &(struct nd_raw_subscribe){.pattern = "r"});
        nd_raw_publish_rest(p.publisher, 3, 30000, 2 * MIB);
        expect_message(p.publisher, 2 * MIB, 1, 0);
        nd_raw_flush(p.publisher);
        nd_raw_check_stats(p.publisher);
        free(header);
        pair_deinit(&p);
}

/* A window that is too large is refused by its own name and value; the greatest is none. */
Test(delivery, window_limits)
{
        const uint64_t most = (UINT64_C(1) << 62) - 1;
        const struct nd_raw_subscribe asks[] = {
                {.pattern = "w", .window = most + 1},
                {.pattern = "w", .window_bytes = most + 1},
        };
        const char *const fields[] = {"window", "window_bytes"};
        struct pair p;

        pair_init(&p, false);
        for (size_t i = 0; i < nd_array_size(asks); ++i) {
                struct nd_error_header error;

                nd_raw_ask_subscribe(p.subscriber, (uint32_t)i + 1, &asks[i]);
                error = nd_raw_expect_error(p.subscriber, NDBUS_ECREDIT, false);
                cr_expect_eq(error.field.n, strlen(fields[i]));
                cr_expect_arr_eq(error.field.at, fields[i], strlen(fields[i]));
                cr_expect_eq(error.value, most + 1);
                cr_expect_eq(error.limit, most);
        }
        nd_raw_subscribe(
                p.subscriber, 3,
                &(struct nd_raw_subscribe){.pattern = "w", .window = most, .window_bytes = most});
        nd_raw_publish(p.publisher, "w", 5);
        expect_message(p.subscriber, 5, 1, 0);
        pair_deinit(&p);
}

/* The window of a subscription: so many messages, so many bytes, and one that is larger than all. */
Test(delivery, window)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(
                p.subscriber, 1,
                &(struct nd_raw_subscribe){.pattern = "w", .window = 3, .window_bytes = 1000});
        for (uint64_t i = 0; i < 5; ++i)
                nd_raw_publish(p.publisher, "w", 400);
        nd_raw_publish(p.publisher, "w", 5000);
        nd_raw_publish(p.publisher, "w", 1);
        nd_raw_flush(p.publisher);
        expect_message(p.subscriber, 400, 1, 0);
        expect_message(p.subscriber, 400, 2, 0);
        nd_raw_flush(p.subscriber);
        expect_silence(p.subscriber);
        nd_raw_grant(p.subscriber, 1, 1, 400);
        expect_message(p.subscriber, 400, 3, 0);
        nd_raw_grant(p.subscriber, 1, 2, 800);
        expect_message(p.subscriber, 400, 4, 0);
        expect_message(p.subscriber, 400, 5, 0);
        nd_raw_flush(p.subscriber);
        expect_silence(p.subscriber); /* 5000 do not fit while anything is out */
        nd_raw_grant(p.subscriber, 1, 2, 800);
        expect_message(p.subscriber, 5000, 6, 0);
        nd_raw_flush(p.subscriber);
        expect_silence(p.subscriber);
        nd_raw_grant(p.subscriber, 1, 1, 5000);
        expect_message(p.subscriber, 1, 7, 0);
        nd_raw_grant(p.subscriber, 1, 1, 2); /* more than is out */
        nd_raw_expect_error(p.subscriber, NDBUS_ECREDIT, true);
        pair_deinit(&p);
}

/* Packets of which the window holds one and not another: it grows, or every message would wait for
 * the one before it to be granted again. */
Test(delivery, publishing_window_holds_two)
{
        const uint64_t n_packet = ND_PRELUDE_BYTES + 100 + 64 * KIB; /* the header takes less */
        uint64_t most = 0;
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "w"});
        nd_raw_publish(p.publisher, "w", 40000);
        expect_message(p.subscriber, 40000, 1, 0);
        for (uint64_t i = 2; i <= 20; ++i) {
                while (p.publisher->credit < n_packet)
                        cr_assert(nd_raw_next(p.publisher));
                nd_raw_publish(p.publisher, "w", 64 * KIB);
                expect_message(p.subscriber, 64 * KIB, i, 0);
                most = nd_max_u64(most, p.publisher->credit);
        }
        cr_expect_geq(most, n_packet);
        pair_deinit(&p);
}

/* T37: many stopped subscribers, one large message: it is there once */
Test(delivery, one_copy_for_all)
{
        struct nd_raw *stopped[50];
        struct nd_proc_memory before;
        struct pair p;

        pair_init(&p, false);
        for (size_t i = 0; i < nd_array_size(stopped); ++i) {
                stopped[i] = nd_raw_open(p.h, false);
                nd_raw_subscribe(stopped[i], 1, &(struct nd_raw_subscribe){.pattern = "t37"});
        }
        before = nd_harness_memory(p.h);
        nd_raw_publish(p.publisher, "t37", 64 * MIB);
        nd_raw_flush(p.publisher);
        if (nd_harness_memory_is_exact())
                cr_expect_leq(nd_harness_memory(p.h).rss_bytes, before.rss_bytes + 80 * MIB);
        nd_raw_check_stats(p.publisher);
        for (size_t i = 0; i < nd_array_size(stopped); ++i) {
                if (i % 10 == 0)
                        expect_message(stopped[i], 64 * MIB, 1, 0);
                nd_raw_close(stopped[i]);
        }
        pair_deinit(&p);
}

/* What a client had sent when it died, without having read what it was told, arrives. (Over TCP a
 * reset may overtake it.) */
Test(delivery, last_messages_of_the_dead)
{
        struct pair p;

        pair_init(&p, false);
        nd_raw_subscribe(p.subscriber, 1, &(struct nd_raw_subscribe){.pattern = "dead"});
        for (int i = 0; i < 20; ++i) {
                struct nd_raw *publisher = nd_raw_open(p.h, false);

                nd_raw_send_prelude(publisher,
                                    (struct nd_prelude){.kind = ND_KIND_PING, .sequence = 2});
                while (!nd_raw_has_input(publisher))
                        ; /* a PONG that it will not have read */
                nd_harness_signal(p.h, SIGSTOP);
                for (uint64_t k = 0; k < 30; ++k)
                        nd_raw_publish(publisher, "dead", 1000);
                nd_raw_close(publisher);
                nd_harness_signal(p.h, SIGCONT);
                for (uint64_t k = 1; k <= 30; ++k)
                        expect_message(p.subscriber, 1000, k, 0);
                nd_raw_grant(p.subscriber, 1, 30, 30000);
        }
        pair_deinit(&p);
}

/* A member of a group dies in the middle of a large message: another gets it from its first byte,
 * marked, though the first bytes had gone out long ago. */
Test(delivery, group_member_dies_in_the_middle)
{
        const struct nd_raw_subscribe ask = {.pattern = "g", .group = "workers", .window = 1};
        struct nd_raw_message message;
        struct nd_raw *second;
        struct pair p;

        for (int is_tcp = 0; is_tcp < 2; ++is_tcp) {
                uint64_t n = 0;

                pair_init(&p, is_tcp);
                nd_raw_subscribe(p.subscriber, 1, &ask);
                nd_raw_publish(p.publisher, "g", 12 * MIB);
                nd_raw_publish(p.publisher, "g", 100);
                nd_raw_expect(p.subscriber, ND_KIND_MESSAGE);
                while (n < 2 * MIB)
                        n += nd_raw_expect(p.subscriber, ND_KIND_CHUNK)->prelude.body_bytes;
                second = nd_raw_open(p.h, is_tcp);
                nd_raw_subscribe(second, 1, &ask);
                message = nd_raw_receive(second); /* the small one went to it */
                cr_expect_eq(message.prelude.body_bytes, 100);
                cr_expect_not(message.prelude.flags & ND_FLAG_REDELIVERED);
                nd_raw_message_free(&message);
                nd_raw_close(p.subscriber);
                {
                        uint8_t one[8];

                        nd_store_le64(one, 1);
                        nd_raw_send_packet(second,
                                           (struct nd_prelude){.kind = ND_KIND_CREDIT,
                                                               .subscription = 1,
                                                               .body_bytes = sizeof(one)},
                                           NULL, 0, NULL, 0, one, sizeof(one));
                }
                message = nd_raw_receive(second);
                cr_expect_eq(message.prelude.body_bytes, 12 * MIB);
                cr_expect(message.prelude.flags & ND_FLAG_REDELIVERED);
                nd_raw_message_free(&message);
                nd_raw_check_stats(p.publisher);
                p.subscriber = second;
                pair_deinit(&p);
        }
}

/* It says its last and goes, while the daemon has something for it and writes that first. */
Test(delivery, what_was_sent_before_going_is_taken)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *publisher = nd_raw_open(h, false), *other = nd_raw_open(h, false);

        nd_raw_subscribe(other, 1, &(struct nd_raw_subscribe){.pattern = "last"});
        for (int i = 1; i <= 20; ++i) {
                struct nd_raw *going = nd_raw_open(h, false);
                struct nd_raw_message message;

                nd_raw_subscribe(going, 1, &(struct nd_raw_subscribe){.pattern = "news"});
                nd_harness_signal(h, SIGSTOP);
                nd_raw_publish(publisher, "news", 100);
                nd_raw_publish(going, "last", 100);
                nd_raw_close(going);
                nd_harness_signal(h, SIGCONT);
                nd_raw_flush(publisher);
                message = nd_raw_receive(other);
                cr_expect_eq(message.prelude.sequence, 1);
                nd_raw_grant(other, 1, 1, 100);
                nd_raw_message_free(&message);
        }
        nd_raw_close(publisher);
        nd_raw_close(other);
        nd_harness_stop(h);
}
