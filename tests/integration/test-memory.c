/* SPDX-License-Identifier: MIT */

/*
 * What is kept is charged: whatever clients do, the daemon stays near --memory-max, and goes on
 *
 * Each test keeps one kind of thing in as large numbers as a client can. Without sanitizers the
 * daemon's memory is compared with the limit and 64 MiB for itself.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "tests/support/bystanders.h"

#define MIB (UINT64_C(1) << 20)

static const char *const args_16[] = {"--memory-max", "16M", NULL};
static const struct nd_harness_options options_16 = {.args = args_16};

static void expect_small(struct nd_harness *h, const char *when)
{
        uint64_t rss = nd_harness_memory(h).rss_peak_bytes;

        if (nd_harness_memory_is_exact())
                cr_assert_lt(rss, 80 * MIB, "%s: %llu MiB", when, (unsigned long long)(rss / MIB));
}

/* Takes what came: an ERROR for a PUBLISH is as good as none. */
static void flush(struct nd_raw *raw)
{
        const struct nd_raw_packet *packet;

        nd_raw_send_prelude(
                raw, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = ++raw->n_requests});
        do {
                packet = nd_raw_next(raw);
                cr_assert(packet, "closed");
        } while (packet->prelude.kind != ND_KIND_PONG);
}

/* Messages as large as they may be, one after another, and a window that grew to carry them. */
Test(memory, largest_messages)
{
        static const char *const args[] = {"--memory-max", "8M", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw *subscriber = nd_raw_open(h, false);

        nd_raw_subscribe(subscriber, 1, &(struct nd_raw_subscribe){.pattern = "largest"});
        for (uint64_t i = 1; i <= 20; ++i) {
                struct nd_raw_message message;

                nd_raw_publish(publisher, "largest", 4 * MIB);
                message = nd_raw_receive(subscriber);
                cr_assert_eq(message.prelude.sequence, i);
                nd_raw_grant(subscriber, 1, 1, 4 * MIB);
                nd_raw_message_free(&message);
        }
        expect_small(h, "largest messages");
        nd_raw_close(publisher);
        nd_raw_close(subscriber);
        nd_harness_stop(h);
}

/* Many publish to many who have stopped, far more than there is memory. */
Test(memory, pressure)
{
        struct nd_harness *h = nd_harness_start(&options_16);
        struct nd_raw *publishers[12], *stopped[12];
        struct nd_raw *fast = nd_raw_open(h, true);
        uint64_t n_published = 0, n_received = 0, n_dropped = 0;

        nd_raw_subscribe(fast, 1, &(struct nd_raw_subscribe){.pattern = "**", .bytes = 4 * MIB});
        for (size_t i = 0; i < nd_array_size(publishers); ++i) {
                publishers[i] = nd_raw_open(h, i & 1);
                stopped[i] = nd_raw_open(h, i & 1);
                nd_raw_subscribe(
                        stopped[i], 1,
                        &(struct nd_raw_subscribe){.pattern = "**",
                                                   .policy = i % 3 == 0   ? ND_POLICY_DROP_NEWEST
                                                             : i % 3 == 1 ? ND_POLICY_LATEST
                                                                          : ND_POLICY_DROP_OLDEST});
        }
        for (int round = 0; round < 12; ++round) {
                for (size_t i = 0; i < nd_array_size(publishers); ++i) {
                        const uint64_t sizes[] = {100, 30000, 300000, 2 * MIB};
                        char topic[32];

                        snprintf(topic, sizeof(topic), "p/%zu", i);
                        nd_raw_publish(publishers[i], topic, sizes[(i + (size_t)round) % 4]);
                        ++n_published;
                }
        }
        for (size_t i = 0; i < nd_array_size(publishers); ++i)
                nd_raw_flush(publishers[i]);
        nd_raw_check_stats(publishers[0]);
        expect_small(h, "pressure");

        nd_raw_publish(publishers[0], "last", 7);
        while (n_received + n_dropped < n_published + 1) {
                struct nd_raw_message message = nd_raw_receive(fast);

                ++n_received;
                n_dropped += message.n_dropped;
                nd_raw_grant(fast, 1, 1, message.prelude.body_bytes);
                nd_raw_message_free(&message);
        }
        cr_expect_eq(n_received + n_dropped, n_published + 1);
        nd_raw_check_stats(publishers[0]);
        for (size_t i = 0; i < nd_array_size(publishers); ++i) {
                nd_raw_close(publishers[i]);
                nd_raw_close(stopped[i]);
        }
        nd_raw_close(fast);
        nd_harness_stop(h);
}

/* A header of n bytes: a key that nobody knows, and what makes it differ from others. */
static uint8_t *large_header(size_t n, uint32_t number)
{
        static const char begin[] = "\x83\xa5topic\xa1h\xa6"
                                    "frames\x90\xa1x\xc6";
        uint8_t *header = calloc(1, n);
        size_t n_rest = n - (sizeof(begin) - 1) - 4;

        cr_assert(header);
        memcpy(header, begin, sizeof(begin) - 1);
        header[sizeof(begin) - 1] = (uint8_t)(n_rest >> 24);
        header[sizeof(begin)] = (uint8_t)(n_rest >> 16);
        header[sizeof(begin) + 1] = (uint8_t)(n_rest >> 8);
        header[sizeof(begin) + 2] = (uint8_t)n_rest;
        nd_store_le32(header + sizeof(begin) + 3, number);
        return header;
}

static void publish_header(struct nd_raw *raw, size_t n, uint32_t number)
{
        uint8_t *header = large_header(n, number);

        while (raw->credit < ND_PRELUDE_BYTES + n && raw->credit < 65536)
                cr_assert(nd_raw_next(raw), "closed");
        raw->credit -= nd_min_u64(raw->credit, ND_PRELUDE_BYTES + n);
        nd_raw_send_packet(
                raw, (struct nd_prelude){.kind = ND_KIND_PUBLISH, .sequence = ++raw->n_published},
                header, n, NULL, 0, NULL, 0);
        flush(raw);
        free(header);
}

/* Headers are kept with their messages, and the last few of each connection besides. */
Test(memory, headers)
{
        struct nd_harness *h = nd_harness_start(&options_16);
        struct nd_raw *stopped = nd_raw_open(h, false);
        struct nd_raw *publishers[4];
        struct nd_bystanders b;
        uint32_t number = 0;

        nd_bystanders_init(&b, h);
        nd_raw_subscribe(stopped, 1, &(struct nd_raw_subscribe){.pattern = "h", .window = 1});
        for (size_t i = 0; i < nd_array_size(publishers); ++i) {
                publishers[i] = nd_raw_open(h, false);
                for (int k = 0; k < 60; ++k)
                        publish_header(publishers[i], 900000, ++number);
        }
        expect_small(h, "headers");
        nd_raw_check_stats(publishers[0]);
        for (size_t i = 0; i < nd_array_size(publishers); ++i)
                nd_raw_close(publishers[i]);
        nd_raw_close(stopped);
        nd_raw_close(b.subscriber);
        nd_raw_close(b.publisher);
        nd_harness_stop(h);
}

/* Places in queues: empty messages, queues as deep as they like. */
Test(memory, queue_places)
{
        struct nd_harness *h = nd_harness_start(&options_16);
        struct nd_raw *stopped = nd_raw_open(h, false);
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_bystanders b;

        for (uint32_t i = 1; i <= 500; ++i)
                nd_raw_subscribe(
                        stopped, i,
                        &(struct nd_raw_subscribe){.pattern = "q", .depth = 1000000, .window = 1});
        for (int i = 0; i < 2000; ++i)
                nd_raw_publish(publisher, "q", 0);
        nd_raw_flush(publisher);
        expect_small(h, "places in queues");
        nd_bystanders_init(&b, h);
        nd_bystanders_talk(&b);
        nd_bystanders_deinit(&b);
        nd_raw_close(publisher);
        nd_raw_close(stopped);
        nd_harness_stop(h);
}

/* Patterns with as many segments as they can have. */
Test(memory, patterns)
{
        struct nd_harness *h = nd_harness_start(&options_16);
        struct nd_raw *raw = nd_raw_open(h, false);
        const struct nd_raw_packet *packet;
        uint32_t n_refused = 0;
        char pattern[256];

        for (uint32_t i = 1; i <= 12000; ++i) {
                memset(pattern, 0, sizeof(pattern));
                for (size_t k = 0; k < 254; k += 2)
                        pattern[k] = (char)('a' + (k < 16 ? i >> k / 2 * 2 & 3 : i % 2)),
                        pattern[k + 1] = k < 252 ? '/' : '\0';
                pattern[30] = (char)('a' + i % 26);
                pattern[32] = (char)('a' + i / 26 % 26);
                pattern[34] = (char)('a' + i / 676 % 26);
                nd_raw_ask_subscribe(raw, i, &(struct nd_raw_subscribe){.pattern = pattern});
                packet = nd_raw_next_other(raw);
                cr_assert(packet);
                n_refused += packet->prelude.kind == ND_KIND_ERROR;
        }
        expect_small(h, "patterns");
        cr_expect_gt(n_refused, 0);
        nd_raw_close(raw);
        raw = nd_raw_open(h, false);
        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = "**"});
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* Retained values wait for each who subscribes. */
Test(memory, retained_values)
{
        struct nd_harness *h = nd_harness_start(&options_16);
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw *raw = nd_raw_open(h, false);
        char topic[32];

        for (int i = 0; i < 3000; ++i) {
                snprintf(topic, sizeof(topic), "r/%d", i);
                nd_raw_publish_flags(publisher, topic, 8, ND_FLAG_RETAINED);
        }
        flush(publisher);
        for (uint32_t i = 1; i <= 400; ++i) {
                nd_raw_ask_subscribe(raw, i,
                                     &(struct nd_raw_subscribe){.pattern = "**", .window = 1});
                if (i % 50 == 0)
                        flush(publisher);
        }
        flush(publisher);
        nd_raw_flush(publisher);
        expect_small(h, "retained values");
        nd_raw_close(raw);
        nd_raw_close(publisher);
        nd_harness_stop(h);
}

/* Topics that are asked about, each of which leads to every subscription. */
Test(memory, routes)
{
        struct nd_harness *h = nd_harness_start(&options_16);
        struct nd_raw *raw = nd_raw_open(h, false);
        char topic[32];

        for (uint32_t i = 1; i <= 5000; ++i) {
                nd_raw_ask_subscribe(raw, i, &(struct nd_raw_subscribe){.pattern = "**"});
                nd_raw_expect(raw, ND_KIND_SUBSCRIBED);
        }
        for (int i = 0; i < 4000; ++i) {
                struct nd_control_bytes header;
                const struct nd_topic_header ask = {.topic = {topic, 0}, .watch = true};
                struct nd_topic_header asked = ask;

                asked.topic.n = (size_t)snprintf(topic, sizeof(topic), "t/%d", i);
                nd_topic_header_pack(&asked, false, &header);
                nd_raw_send_packet(
                        raw,
                        (struct nd_prelude){.kind = ND_KIND_TOPIC, .sequence = ++raw->n_requests},
                        header.data, header.n, NULL, 0, NULL, 0);
                cr_assert(nd_raw_next(raw));
        }
        expect_small(h, "routes");
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* One fills all that may be filled; others can still come and are answered. */
Test(memory, full_and_others_connect)
{
        static const char *const args[] = {"--memory-max", "8M", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *filler = nd_raw_open(h, false);
        struct nd_raw *raws[7];
        uint32_t n_asked = 0;
        bool is_full = false;

        while (!is_full) {
                const struct nd_raw_packet *packet;

                cr_assert_lt(n_asked, 65536);
                nd_raw_ask_subscribe(filler, ++n_asked, &(struct nd_raw_subscribe){.pattern = "a"});
                packet = nd_raw_next_other(filler);
                cr_assert(packet);
                is_full = packet->prelude.kind == ND_KIND_ERROR;
                if (!is_full)
                        cr_assert_eq(packet->prelude.kind, ND_KIND_SUBSCRIBED);
        }
        nd_raw_ask_subscribe(filler, ++n_asked, &(struct nd_raw_subscribe){.pattern = "a"});
        nd_raw_expect_error(filler, NDBUS_ENO_SPACE, false);
        for (size_t i = 0; i < nd_array_size(raws); ++i) {
                raws[i] = nd_raw_open(h, i & 1);
                nd_raw_flush(raws[i]);
        }
        for (size_t i = 0; i < nd_array_size(raws); ++i)
                nd_raw_close(raws[i]);
        nd_raw_close(filler);
        nd_harness_wait_fds(h, h->n_fds_ready, nd_harness_deadline_ms(20000));
        raws[0] = nd_raw_open(h, false);
        cr_expect_lt(nd_raw_stat(raws[0], "memory", "used"), ND_MIB);
        nd_raw_close(raws[0]);
        nd_harness_stop(h);
}

/* What can never fit is said at once; what can, waits, and a block queue that takes nothing ends. */
Test(memory, full_of_what_must_not_be_dropped)
{
        static const char *const args[] = {"--memory-max", "16M", "--block-timeout", "2000", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *publishers[6], *stopped[6];
        struct nd_bystanders b;
        char topic[32];

        nd_bystanders_init(&b, h);
        nd_raw_send_prelude(
                b.subscriber,
                (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE, .subscription = 1, .sequence = 9});
        nd_raw_expect(b.subscriber, ND_KIND_UNSUBSCRIBED);
        nd_raw_subscribe(b.subscriber, 2, &(struct nd_raw_subscribe){.pattern = "bystanders"});
        for (size_t i = 0; i < nd_array_size(stopped); ++i) {
                snprintf(topic, sizeof(topic), "block/%zu", i);
                publishers[i] = nd_raw_open(h, false);
                stopped[i] = nd_raw_open(h, false);
                nd_raw_subscribe(
                        stopped[i], 1,
                        &(struct nd_raw_subscribe){.pattern = topic, .policy = ND_POLICY_BLOCK});
        }
        for (int k = 0; k < 10; ++k) {
                for (size_t i = 0; i < nd_array_size(stopped); ++i) {
                        if (publishers[i]->credit < 60000)
                                continue;
                        snprintf(topic, sizeof(topic), "block/%zu", i);
                        nd_raw_publish(publishers[i], topic, 50000);
                }
        }
        for (size_t i = 0; i < nd_array_size(stopped); ++i) {
                snprintf(topic, sizeof(topic), "block/%zu", i);
                nd_raw_publish_begin(publishers[i], topic, 3500000, 99);
                while (nd_raw_has_input(publishers[i]))
                        cr_assert(nd_raw_next(publishers[i]));
                nd_raw_publish_chunk(publishers[i], 99, 0,
                                     nd_min_u64(publishers[i]->credit - 64, 40000));
        }
        /* it waits its turn at worst until the stopped ones are ended */
        nd_raw_publish(b.publisher, "bystanders", 1000);
        {
                struct nd_raw_message message = nd_raw_receive(b.subscriber);

                nd_raw_message_free(&message);
        }
        nd_raw_flush(b.publisher);
        expect_small(h, "blocked");
        for (size_t i = 0; i < nd_array_size(stopped); ++i) {
                nd_raw_close(publishers[i]);
                nd_raw_close(stopped[i]);
        }
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}
