/* SPDX-License-Identifier: MIT */

/*
 * Slow: what a block queue must take to be spared, and that it ends without anybody looking at it
 *
 * The daemon runs in this process, where no tick does and time is what the test says.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "daemon/subscription.h"
#include "protocol/byteorder.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "tests/support/embedded.h"

#define DAY_MS     UINT64_C(86400000) /* the longest block-timeout */
#define BODY_BYTES 20000u

static struct nd_embedded_peer subscriber, publisher;

static void send_packet(struct nd_embedded_peer *peer,
                        struct nd_prelude prelude,
                        const void *header,
                        size_t n_header,
                        const void *body,
                        size_t n_body)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        prelude.header_bytes = (uint32_t)n_header;
        prelude.body_bytes = n_body;
        nd_prelude_pack(&prelude, bytes);
        cr_assert(nd_embedded_send(peer, bytes, sizeof(bytes)));
        cr_assert(nd_embedded_send(peer, header, n_header));
        cr_assert(nd_embedded_send(peer, body, n_body));
        nd_embedded_run(4);
}

static void connect_peer(struct nd_embedded_peer *peer)
{
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        const struct nd_connect connect = {.client = ND_STRING("test")};
        struct nd_control_bytes header;
        uint8_t bytes[ND_HELLO_BYTES];

        nd_embedded_open(peer, false);
        nd_hello_pack(&hello, bytes);
        cr_assert(nd_embedded_send(peer, bytes, sizeof(bytes)));
        nd_connect_pack(&connect, &header);
        send_packet(peer, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1}, header.data,
                    header.n, NULL, 0);
}

/* The subscriber came first. */
static struct nd_connection *subscriber_connection(void)
{
        return nd_list_entry(nd_embedded_server()->connections.next, struct nd_connection,
                             in_server);
}

static void publish(uint64_t sequence, size_t n_bytes)
{
        static const uint8_t body[BODY_BYTES];
        const struct nd_prelude prelude = {.kind = ND_KIND_PUBLISH, .sequence = sequence};
        int64_t shape = (int64_t)n_bytes;
        struct nd_frame frame = {
                .array = {.ndim = 1, .shape = &shape, .lanes = 1},
                .bytes = n_bytes,
        };
        const struct nd_header header = {
                .topic = "t", .n_topic = 1, .n_frames = 1, .frames = &frame};
        void *bytes = NULL;
        size_t n;

        cr_assert_eq(nd_header_pack(&header, &bytes, &n), 0);
        send_packet(&publisher, prelude, bytes, n, body, n_bytes);
        free(bytes);
}

static void begin(const char *block_timeout, uint64_t depth)
{
        const struct nd_embedded_setting setting = {"block-timeout", block_timeout};
        const struct nd_subscribe ask = {
                .pattern = ND_STRING("t"),
                .policy = ND_POLICY_BLOCK,
                .depth_messages = depth,
                .depth_bytes = UINT64_C(1) << 20,
                .window_messages = 1,
                .window_bytes = UINT64_C(1) << 20,
        };
        struct nd_control_bytes header;
        int least = 1;

        nd_embedded_set(&setting, 1);
        connect_peer(&subscriber);
        connect_peer(&publisher);
        nd_subscribe_pack(&ask, &header);
        send_packet(
                &subscriber,
                (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE, .sequence = 2, .subscription = 1},
                header.data, header.n, NULL, 0);
        cr_assert_eq(subscriber_connection()->n_subscriptions, 1);
        cr_assert_eq(setsockopt(subscriber_connection()->fd, SOL_SOCKET, SO_SNDBUF, &least,
                                sizeof(least)),
                     0);
}

static struct nd_sink *subscriber_sink(void)
{
        return RB_MIN(nd_subscription_tree, &subscriber_connection()->subscriptions)->sink;
}

static void end(void)
{
        nd_embedded_close(&subscriber);
        nd_embedded_close(&publisher);
        nd_embedded_run(8);
        nd_embedded_check_empty();
}

static void grant(uint64_t n_messages, uint64_t n_bytes)
{
        const struct nd_prelude prelude = {.kind = ND_KIND_CREDIT, .subscription = 1};
        uint8_t body[16];

        nd_store_le64(body, n_messages);
        nd_store_le64(body + 8, n_bytes);
        send_packet(&subscriber, prelude, NULL, 0, body, sizeof(body));
}

static void grant_nothing(void)
{
        grant(0, 0);
}

static void grant_bytes(void)
{
        grant(0, 1);
}

static void grant_message(void)
{
        grant(1, 0);
}

static void read_some(void)
{
        uint8_t bytes[BODY_BYTES / 2];

        cr_assert_gt(recv(subscriber.fd, bytes, sizeof(bytes), 0), 0);
        nd_embedded_run(4);
}

static void do_nothing(void)
{
}

/* It took nothing for half a day; then this; and again nothing for most of a day. */
static bool is_spared_by(void (*what)(void))
{
        bool is_there;

        begin("86400000", 1);
        for (uint64_t i = 1; i <= 3; ++i)
                publish(i, BODY_BYTES);
        cr_assert(subscriber_connection()->outbox.half.is_active);
        cr_assert_not(nd_list_is_empty(&subscriber_sink()->in_slow));
        subscriber_sink()->slow_since_ns -= DAY_MS / 2 * UINT64_C(1000000);
        what();
        nd_embedded_later(DAY_MS * 3 / 4);
        is_there = subscriber_connection()->n_subscriptions == 1;
        end();
        return is_there;
}

Test(slow, what_counts)
{
        cr_expect_not(is_spared_by(do_nothing));
        cr_expect_not(is_spared_by(grant_nothing));
        cr_expect_not(is_spared_by(grant_bytes));
        cr_expect(is_spared_by(grant_message));
        cr_expect(is_spared_by(read_some));
}

/* No tick looks at it: nothing else than its deadline wakes the loop. */
Test(slow, ends_at_its_deadline)
{
        begin("100", 1);
        for (uint64_t i = 1; i <= 3; ++i)
                publish(i, 100);
        while (subscriber_connection()->n_subscriptions == 1)
                uv_run(&nd_embedded_server()->loop, UV_RUN_ONCE);
        cr_expect(nd_list_is_empty(&nd_embedded_server()->slow));
        end();
}

/* Not full any more, but above the half at which it resumes who publishes: it stops them all the same. */
Test(slow, stops_a_publisher_and_is_not_full)
{
        begin("86400000", 4);
        for (uint64_t i = 1; i <= 6; ++i) /* one is sent, four wait, one is beyond the limit */
                publish(i, 100);
        cr_assert_eq(subscriber_sink()->queue.n_over, 1);
        grant(1, 100);
        grant(1, 100);
        cr_assert_eq(subscriber_sink()->queue.n_messages, 3);
        cr_assert_eq(subscriber_sink()->queue.n_over, 0);
        cr_assert_not(nd_list_is_empty(&subscriber_sink()->pauses));
        nd_embedded_later(2 * DAY_MS);
        cr_expect_eq(subscriber_connection()->n_subscriptions, 0);
        end();
}
