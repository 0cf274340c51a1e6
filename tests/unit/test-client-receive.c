/* SPDX-License-Identifier: MIT */

/*
 * Receiving, against a scripted daemon: what a daemon may do, what none may do, and what the
 * library does about either.
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"
#include "tests/support/pattern.h"

static void silent_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_drain(peer);
}

Test(client_receive, an_option_that_is_refused_is_named_with_its_value_and_limit)
{
        const uint64_t most = (UINT64_C(1) << 62) - 1;

        const struct {
                const char *detail;
                struct ndbus_subscribe_options options;
        } subscribe[] = {
                {"options.depth: is 0, must be 1 to 18446744073709551615",
                 {.bytes = 1, .window = 1}},
                {"options.bytes: is 0, must be 1 to 18446744073709551615",
                 {.depth = 1, .window = 1}},
                {"options.window: is 0, must be 1 to 4611686018427387903",
                 {.depth = 1, .bytes = 1}},
                {"options.window: is 4611686018427387904, must be 1 to 4611686018427387903",
                 {.depth = 1, .bytes = 1, .window = most + 1}},
                {"options.window_bytes: is 4611686018427387904, must be 0 to 4611686018427387903",
                 {.depth = 1, .bytes = 1, .window = most, .window_bytes = most + 1}},
        };

        const struct {
                const char *detail;
                struct ndbus_options options;
        } open[] = {
                {"options.connect_timeout_ms: is 0, must be at least 1", {.stall_ms = 1}},
                {"options.stall_ms: is -1, must be at least 1",
                 {.connect_timeout_ms = 1, .stall_ms = -1}},
                {"options.ping_ms: is -1, must be at least 0",
                 {.connect_timeout_ms = 1, .stall_ms = 1, .ping_ms = -1, .ping_timeout_ms = 1}},
                {"options.ping_timeout_ms: is 0, must be at least 1",
                 {.connect_timeout_ms = 1, .stall_ms = 1}},
        };
        struct fake_peer *peer = fake_peer_start(silent_script, NULL);
        struct ndbus *bus = client_test_open(peer), *other = NULL;

        for (size_t i = 0; i < nd_array_size(subscribe); ++i) {
                struct ndbus_subscribe_options options = subscribe[i].options;

                options.size = sizeof(options);
                cr_expect_eq(ndbus_subscribe(bus, "t", &options, NULL), NDBUS_EINVAL);
                cr_expect_str_eq(ndbus_detail(), subscribe[i].detail);
        }
        for (size_t i = 0; i < nd_array_size(open); ++i) {
                struct ndbus_options options = open[i].options;

                options.size = sizeof(options);
                cr_expect_eq(ndbus_open(&other, NULL, &options), NDBUS_EINVAL);
                cr_expect_str_eq(ndbus_detail(), open[i].detail);
        }
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* --------------------------------------------------------------------- what a daemon may do */

static void interleave_script(struct fake_peer *peer, void *userdata)
{
        uint8_t body[700000];
        size_t n_header;
        void *header = fake_peer_header("t", sizeof(body), &n_header);
        uint32_t sub[2];

        (void)userdata;
        nd_pattern_fill(body, 0, sizeof(body));
        fake_peer_accept(peer);
        sub[0] = fake_peer_subscribed(peer);
        sub[1] = fake_peer_subscribed(peer);
        for (uint32_t i = 0; i < 2; ++i)
                fake_peer_send_message(peer,
                                       &(struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                                            .flags = ND_FLAG_BODY_IN_CHUNKS,
                                                            .stream = 10 + i,
                                                            .body_bytes = sizeof(body),
                                                            .sequence = 3 - i,
                                                            .subscription = sub[i]},
                                       header, n_header, NULL, 0);
        for (uint32_t at = 0; at < sizeof(body); at += 100000) {
                for (uint32_t i = 0; i < 2; ++i)
                        fake_peer_send(peer,
                                       &(struct nd_prelude){.kind = ND_KIND_CHUNK,
                                                            .stream = 11 - i,
                                                            .place = at},
                                       NULL, 0, body + at, 100000);
                if (at == 300000)
                        fake_peer_send_pattern(peer, sub[0], 1000, 1, 0);
        }
        free(header);
        fake_peer_drain(peer);
}

Test(client_receive, streams_interleave_and_small_ones_overtake)
{
        struct fake_peer *peer = fake_peer_start(interleave_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        cr_assert_eq(ndbus_subscribe(bus, "*", NULL, NULL), 0);
        client_test_expect(bus, 1, 1000, 0);
        client_test_expect(bus, 2, 700000, 0);
        client_test_expect(bus, 3, 700000, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* The same packets in pieces of every size: cuts must not matter. */
static void cuts_script(struct fake_peer *peer, void *userdata)
{
        size_t n_header, n_bytes = 0;
        void *header = fake_peer_header("t", 100, &n_header);
        uint8_t bytes[4096], body[100];
        uint32_t sub;
        struct nd_prelude p = {
                .kind = ND_KIND_MESSAGE, .body_bytes = 100, .header_bytes = (uint32_t)n_header};

        (void)userdata;
        nd_pattern_fill(body, 0, sizeof(body));
        fake_peer_accept(peer);
        sub = fake_peer_subscribed(peer);
        for (uint64_t i = 1; i <= 6; ++i) {
                p.sequence = i;
                p.subscription = sub;
                nd_prelude_pack(&p, bytes + n_bytes);
                memcpy(bytes + n_bytes + 64, header, n_header);
                memcpy(bytes + n_bytes + 64 + n_header, body, 100);
                n_bytes += 64 + n_header + 100;
        }
        for (size_t n = 1; n < 200; n += n < 70 ? 1 : 7) {
                for (size_t at = 0; at < n_bytes; at += n)
                        if (!fake_peer_send_bytes(peer, bytes + at,
                                                  n_bytes - at < n ? n_bytes - at : n))
                                break;
                /* every piece is read before the next one is written as long as grants come */
        }
        free(header);
        fake_peer_drain(peer);
}

Test(client_receive, cuts_do_not_matter)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct fake_peer *peer = fake_peer_start(cuts_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        options.window = 1000000;
        cr_assert_eq(ndbus_subscribe(bus, "t", &options, NULL), 0);
        for (size_t n = 1; n < 200; n += n < 70 ? 1 : 7)
                for (uint64_t i = 1; i <= 6; ++i)
                        client_test_expect(bus, i, 100, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void gap_script(struct fake_peer *peer, void *userdata)
{
        uint32_t sub;

        (void)userdata;
        fake_peer_accept(peer);
        sub = fake_peer_subscribed(peer);
        fake_peer_send_pattern(peer, sub, 10, 10, 0);
        fake_peer_gap(peer, sub, 4);
        fake_peer_gap(peer, sub, 3);
        fake_peer_send_pattern(peer, sub, 2000000, 18, 1000000);
        /* begun after a gap, taken back: the gap is said with the next */
        fake_peer_gap(peer, sub, 2);
        {
                size_t n_header;
                void *header = fake_peer_header("t", 2000000, &n_header);

                fake_peer_send_message(peer,
                                       &(struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                                            .flags = ND_FLAG_BODY_IN_CHUNKS,
                                                            .stream = 77,
                                                            .body_bytes = 2000000,
                                                            .subscription = sub},
                                       header, n_header, NULL, 0);
                fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_CHUNK, .stream = 77},
                               NULL, 0, header, n_header);
                fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_RESET, .stream = 77},
                               NULL, 0, NULL, 0);
                free(header);
        }
        fake_peer_send_pattern(peer, sub, 10, 21, 0);
        fake_peer_send_pattern(peer, sub, 0, 22, 0);
        fake_peer_drain(peer);
}

Test(client_receive, t45_gaps_are_added_up)
{
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
        struct fake_peer *peer = fake_peer_start(gap_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_subscription *sub;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, &sub), 0);
        client_test_expect(bus, 10, 10, 0);
        client_test_expect(bus, 18, 2000000, 7);
        client_test_expect(bus, 21, 10, 2);
        client_test_expect(bus, 22, 0, 0);
        cr_assert_eq(ndbus_subscription_stats(sub, &stats), 0);
        cr_assert_eq(stats.received, 4);
        cr_assert_eq(stats.received_bytes, 2000020);
        cr_assert_eq(stats.dropped, 9);
        cr_assert_eq(stats.gaps_unknown, 0);
        cr_assert_eq(stats.waiting, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void end_script(struct fake_peer *peer, void *userdata)
{
        const struct nd_unsubscribed ended = {.code = -NDBUS_EOVERFLOW,
                                              .text = ND_STRING("too much"),
                                              .has_numbers = true,
                                              .value = 1001,
                                              .limit = 1000};
        struct nd_control_bytes bytes;
        uint32_t a, b;

        (void)userdata;
        fake_peer_accept(peer);
        a = fake_peer_subscribed(peer);
        b = fake_peer_subscribed(peer);
        fake_peer_send_pattern(peer, a, 10, 1, 0);
        nd_unsubscribed_pack(&ended, &bytes);
        fake_peer_send(
                peer,
                &(struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBED, .subscription = a, .place = 5},
                bytes.data, bytes.n, NULL, 0);
        fake_peer_send_pattern(peer, b, 10, 2, 0);
        fake_peer_drain(peer);
}

Test(client_receive, t38_the_end_of_a_subscription_is_said_in_its_turn)
{
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
        struct fake_peer *peer = fake_peer_start(end_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_subscription *a, *b;
        struct ndbus_message *m = NULL;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, &a), 0);
        cr_assert_eq(ndbus_subscribe(bus, "*", NULL, &b), 0);
        client_test_expect(bus, 1, 10, 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_EOVERFLOW);
        cr_assert(strstr(ndbus_detail(), "1001") && strstr(ndbus_detail(), "1000"), "%s",
                  ndbus_detail());
        client_test_expect(bus, 2, 10, 0);
        cr_assert_eq(ndbus_receive_from(a, &m, 5000), NDBUS_EENDED);
        cr_assert_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
        cr_assert_eq(ndbus_subscription_stats(a, &stats), 0);
        cr_assert_eq(stats.dropped, 5);
        cr_assert_eq(ndbus_unsubscribe(a), 0);
        cr_assert_eq(ndbus_unsubscribe(b), 0);
        cr_assert_null(m);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void unsubscribed_script(struct fake_peer *peer, void *userdata)
{
        uint32_t a, b;

        (void)userdata;
        fake_peer_accept(peer);
        a = fake_peer_subscribed(peer);
        fake_peer_expect(peer, ND_KIND_UNSUBSCRIBE);
        b = fake_peer_subscribed(peer);
        /* these were under way */
        fake_peer_send_pattern(peer, a, 100, 1, 0);
        fake_peer_send_pattern(peer, a, 3000000, 2, 700000);
        fake_peer_gap(peer, a, 3);
        fake_peer_send_pattern(peer, b, 100, 3, 0);
        fake_peer_drain(peer);
}

Test(client_receive, what_was_under_way_to_nobody_is_passed_over)
{
        struct fake_peer *peer = fake_peer_start(unsubscribed_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_subscription *sub;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, &sub), 0);
        cr_assert_eq(ndbus_subscription_id(sub), 1);
        cr_assert_eq(ndbus_unsubscribe(sub), 0);
        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, &sub), 0);
        cr_assert_eq(ndbus_subscription_id(sub), 2);
        client_test_expect(bus, 3, 100, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* Windows: sends 4, must be granted 2 or more before it sends on; then on demand. */
static void window_script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        uint64_t n = 0;
        uint32_t a, b;

        (void)userdata;
        fake_peer_accept(peer);
        a = fake_peer_subscribed(peer);
        for (uint64_t i = 1; i <= 4; ++i)
                fake_peer_send_pattern(peer, a, 1000, i, 0);
        while (n < 4) {
                packet = fake_peer_expect(peer, ND_KIND_CREDIT);
                must(packet->prelude.subscription == a && packet->n_body == 16);
                n += nd_load_le64(packet->body);
                must(nd_load_le64(packet->body + 8) == 1000 * nd_load_le64(packet->body));
        }
        must(n == 4);
        b = fake_peer_subscribed(peer);
        for (uint64_t i = 5; i <= 7; ++i) {
                packet = fake_peer_expect(peer, ND_KIND_CREDIT);
                must(packet->prelude.subscription == b && nd_load_le64(packet->body) == 1);
                fake_peer_send_pattern(peer, b, 1000, i, 0);
        }
        while ((packet = fake_peer_read(peer)))
                must(packet->prelude.kind != ND_KIND_CREDIT);
}

Test(client_receive, windows_are_granted_as_messages_are_taken)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct fake_peer *peer = fake_peer_start(window_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_message *m;

        options.window = 4;
        cr_assert_eq(ndbus_subscribe(bus, "t", &options, NULL), 0);
        for (uint64_t i = 1; i <= 4; ++i)
                client_test_expect(bus, i, 1000, 0);
        cr_assert_eq(ndbus_receive(bus, &m, 20), NDBUS_ETIMEDOUT);
        options.policy = NDBUS_LATEST;
        cr_assert_eq(ndbus_subscribe(bus, "t", &options, NULL), 0);
        for (uint64_t i = 5; i <= 7; ++i)
                client_test_expect(bus, i, 1000, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* -------------------------------------------------------------------- what no daemon may do */

enum crime {
        UNKNOWN_SUBSCRIPTION,
        SUBSCRIPTION_0,
        UNKNOWN_STREAM,
        CHUNK_OUT_OF_ORDER,
        CHUNK_TOO_LONG,
        CHUNK_EMPTY,
        STREAM_TWICE,
        RESET_OF_NOTHING,
        WHOLE_BODY_OVER_A_PACKET,
        BODY_BYTES_ARE_OTHERS,
        BODY_OVER_MESSAGE_MAX,
        HEADER_IS_NOISE,
        HEADER_IS_A_BOMB,
        WINDOW_OVERRUN,
        WINDOW_BYTES_OVERRUN,
        IN_A_BLOCK,
        UNKNOWN_KIND,
        KIND_OF_A_CLIENT,
        WELCOME_AGAIN,
        CREDIT_FOR_A_SUBSCRIPTION,
        CREDIT_WITHOUT_END,
        SUBSCRIBED_IS_NOISE,
        NOISE,
        N_CRIMES,
};

/* So many messages in one write: none of them is taken before the last has come. */
static void send_together(struct fake_peer *peer, size_t n, size_t n_body)
{
        struct nd_prelude p = {.kind = ND_KIND_MESSAGE, .body_bytes = n_body, .subscription = 1};
        uint8_t bytes[8192] = {0};
        size_t n_header, at = 0;
        void *header = fake_peer_header("t", n_body, &n_header);

        p.header_bytes = (uint32_t)n_header;
        for (; n > 0; --n) {
                must(at + 64 + n_header + n_body <= sizeof(bytes));
                nd_prelude_pack(&p, bytes + at);
                memcpy(bytes + at + 64, header, n_header);
                at += 64 + n_header + n_body;
        }
        fake_peer_send_bytes(peer, bytes, at);
        free(header);
}

static void commit_crime(struct fake_peer *peer, void *userdata)
{
        enum crime crime = *(enum crime *)userdata;
        struct nd_prelude p = {.kind = ND_KIND_MESSAGE, .body_bytes = 100, .subscription = 1};
        uint8_t body[200] = {0}, noise[200];
        size_t n_header;
        void *header = fake_peer_header("t", 100, &n_header);
        size_t n_body = 100;

        fake_peer_welcome(peer)->message_bytes_max = 10 << 20;
        fake_peer_accept(peer);
        must(fake_peer_subscribed(peer) == 1);
        memset(noise, 0xc1, sizeof(noise));
        switch (crime) {
        case UNKNOWN_SUBSCRIPTION:
                p.subscription = 99;
                break;
        case SUBSCRIPTION_0:
                p.subscription = 0;
                break;
        case CHUNK_OUT_OF_ORDER:
        case CHUNK_TOO_LONG:
        case CHUNK_EMPTY:
        case STREAM_TWICE:
                p.flags = ND_FLAG_BODY_IN_CHUNKS;
                p.stream = 5;
                fake_peer_send_message(peer, &p, header, n_header, NULL, 0);
                if (crime == STREAM_TWICE)
                        fake_peer_send_message(peer, &p, header, n_header, NULL, 0);
                else
                        fake_peer_send(peer,
                                       &(struct nd_prelude){.kind = ND_KIND_CHUNK,
                                                            .stream = 5,
                                                            .place = crime == CHUNK_OUT_OF_ORDER},
                                       NULL, 0, body,
                                       crime == CHUNK_TOO_LONG ? 101
                                       : crime == CHUNK_EMPTY  ? 0
                                                               : 50);
                break;
        case UNKNOWN_STREAM:
                p = (struct nd_prelude){.kind = ND_KIND_CHUNK, .stream = 9, .body_bytes = 100};
                n_header = 0;
                break;
        case RESET_OF_NOTHING:
                p = (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 9};
                n_header = n_body = 0;
                break;
        case WHOLE_BODY_OVER_A_PACKET:
                p.body_bytes = (1 << 20) + 1;
                break;
        case BODY_BYTES_ARE_OTHERS:
                p.body_bytes = 99;
                break;
        case BODY_OVER_MESSAGE_MAX:
                p.flags = ND_FLAG_BODY_IN_CHUNKS;
                p.stream = 1;
                p.body_bytes = (10 << 20) + 1;
                n_body = 0;
                break;
        case HEADER_IS_NOISE:
                memset(header, 0xc1, n_header);
                break;
        case HEADER_IS_A_BOMB:
                memcpy(header, "\xdf\x10\x00\x00\x00", 5);
                break;
        case WINDOW_OVERRUN:
                send_together(peer, 9, 100);
                break;
        case WINDOW_BYTES_OVERRUN:
                send_together(peer, 2, 500);
                break;
        case IN_A_BLOCK:
                p.flags = ND_FLAG_BODY_IN_BLOCK;
                n_body = 0;
                break;
        case UNKNOWN_KIND:
                p.kind = 99;
                break;
        case KIND_OF_A_CLIENT:
                p.kind = ND_KIND_PUBLISH;
                break;
        case WELCOME_AGAIN:
                p = (struct nd_prelude){.kind = ND_KIND_WELCOME};
                n_body = 0;
                break;
        case CREDIT_FOR_A_SUBSCRIPTION:
                p = (struct nd_prelude){
                        .kind = ND_KIND_CREDIT, .subscription = 1, .body_bytes = 16};
                n_header = 0;
                n_body = 16;
                break;
        case CREDIT_WITHOUT_END:
                fake_peer_grant(peer, UINT64_MAX, 0);
                fake_peer_grant(peer, UINT64_MAX, 0);
                break;
        case SUBSCRIBED_IS_NOISE:
                p = (struct nd_prelude){.kind = ND_KIND_SUBSCRIBED, .subscription = 1};
                memset(header, 0xc1, n_header);
                n_body = 0;
                break;
        default:
                fake_peer_send_bytes(peer, noise, sizeof(noise));
        }
        fake_peer_send_message(peer, &p, header, n_header, body, n_body);
        free(header);
        fake_peer_drain(peer);
        fake_peer_stop_listening(peer);
}

Test(client_receive, crimes_end_the_connection_and_nothing_else)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        options.window = 8;
        options.window_bytes = 950;
        for (enum crime crime = 0; crime < N_CRIMES; ++crime) {
                struct fake_peer *peer = fake_peer_start(commit_crime, &crime);
                struct ndbus *bus = client_test_open(peer);
                struct ndbus_message *m = NULL, *innocent[8];
                size_t n = 0;
                int r = ndbus_subscribe(bus, "t", &options, NULL);

                if (r == 0) { /* the crime may have come with the answer */
                        while ((r = ndbus_receive(bus, &m, 5000)) == 0 && n < 8)
                                innocent[n++] = m;
                }
                cr_assert_eq(r, NDBUS_EPROTOCOL, "crime %d: %d %s", (int)crime, r, ndbus_detail());
                cr_assert(strstr(ndbus_detail(), ": "), "crime %d: no field: %s", (int)crime,
                          ndbus_detail());
                ndbus_close(bus, 0, NULL);
                while (n > 0)
                        ndbus_message_free(innocent[--n]);
                fake_peer_end(peer);
        }
}

/* --------------------------------------------------------------------------------- the rest */

static void malformed_meta_script(struct fake_peer *peer, void *userdata)
{
        static const uint8_t metas[] = {0x01, 0x80}; /* no map; an empty one */
        const uint8_t body[100] = {0};
        size_t n_header;
        uint8_t *header = fake_peer_header("t", sizeof(body), &n_header), *both;

        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_subscribed(peer);
        both = realloc(header, n_header + 1);
        must(both);
        for (size_t i = 0; i < sizeof(metas); ++i) {
                struct nd_prelude p = {.kind = ND_KIND_MESSAGE,
                                       .header_bytes = (uint32_t)n_header,
                                       .meta_bytes = 1,
                                       .body_bytes = sizeof(body),
                                       .subscription = 1};
                uint8_t prelude[ND_PRELUDE_BYTES];

                both[n_header] = metas[i];
                nd_prelude_pack(&p, prelude);
                fake_peer_send_bytes(peer, prelude, sizeof(prelude));
                fake_peer_send_bytes(peer, both, n_header + 1);
                fake_peer_send_bytes(peer, body, sizeof(body));
        }
        free(both);
        fake_peer_drain(peer);
}

/* It costs nobody the message, and nobody takes it for none. */
Test(client_receive, malformed_meta_is_told)
{
        struct fake_peer *peer = fake_peer_start(malformed_meta_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        const void *meta;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_receive(bus, &m, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_message_check_meta(m), NDBUS_EMETA);
        cr_assert(strncmp(ndbus_detail(), "meta: ", 6) == 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_message_meta(m, &meta), 0);
        cr_assert_null(meta);
        cr_assert_eq(ndbus_message_arrays(m, &arrays), 1);
        ndbus_message_free(m);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_message_check_meta(m), 0);
        cr_assert_eq(ndbus_message_meta(m, &meta), 1);
        ndbus_message_free(m);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

Test(client_receive, messages_outlive_their_bus)
{
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        static uint8_t bytes[100000];
        int64_t shape = 100;
        struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        const struct ndbus_array *got;
        struct ndbus_message *m[2];

        nd_pattern_fill(bytes, 0, sizeof(bytes));
        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        for (size_t i = 0; i < 2; ++i) {
                cr_assert_eq(ndbus_publish(bus, "t", &array, 1, NULL), 0);
                m[i] = client_test_receive(bus);
                shape = sizeof(bytes);
        }
        cr_assert_eq(ndbus_close(bus, 5000, NULL), 0, "%s", ndbus_detail());
        fake_peer_end(peer);
        for (size_t i = 0; i < 2; ++i) {
                ndbus_message_arrays(m[i], &got);
                cr_assert_eq(nd_pattern_compare(got->data, 0, (size_t)got->shape[0]),
                             (size_t)got->shape[0]);
                cr_assert_str_eq(ndbus_message_topic(m[i]), "t");
                cr_assert_eq(ndbus_message_own(m[i]), 0);
                ndbus_message_free(m[i]);
        }
}

Test(client_receive, a_forked_child_has_no_bus_but_its_messages)
{
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_message *m, *in_child;
        int status;
        pid_t pid;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        cr_assert_eq(ndbus_publish(bus, "t", NULL, 0, NULL), 0);
        m = client_test_receive(bus);
        cr_assert_geq(ndbus_fd(bus), 0);
        pid = fork();
        if (pid == 0) {
                size_t n = 7;
                bool ok = ndbus_publish(bus, "t", NULL, 0, NULL) == NDBUS_EFORKED &&
                          ndbus_receive(bus, &in_child, 0) == NDBUS_EFORKED &&
                          ndbus_fd(bus) == NDBUS_EFORKED && ndbus_source(bus) == 0 &&
                          strcmp(ndbus_message_topic(m), "t") == 0 &&
                          ndbus_close(bus, 1000, &n) == 0;

                ndbus_message_free(m);
                _exit(ok ? 0 : 1);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0);
        ndbus_message_free(m);
        /* the parent's is untouched */
        cr_assert_eq(ndbus_publish(bus, "t", NULL, 0, NULL), 0);
        ndbus_message_free(client_test_receive(bus));
        cr_assert_eq(ndbus_close(bus, 5000, NULL), 0);
        fake_peer_end(peer);
}

static int give_up(void *userdata)
{
        return ++*(int *)userdata >= 2;
}

static void on_signal(int number)
{
        (void)number;
}

struct nuisance {
        pthread_t victim;
        _Atomic int stop;
};

static void *send_signals(void *userdata)
{
        struct nuisance *n = userdata;

        while (!n->stop) {
                poll(NULL, 0, 5);
                pthread_kill(n->victim, SIGUSR1);
        }
        return NULL;
}

Test(client_receive, a_wait_asks_whether_to_go_on_when_interrupted)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct sigaction action = {.sa_handler = on_signal};
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct nuisance nuisance = {.victim = pthread_self()};
        struct ndbus_message *m;
        struct ndbus *bus;
        pthread_t thread;
        int n_asked = 0;

        cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
        options.interrupted = give_up;
        options.userdata = &n_asked;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        n_asked = 0;
        cr_assert_eq(pthread_create(&thread, NULL, send_signals, &nuisance), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 10000), NDBUS_EINTERRUPTED);
        cr_assert_eq(n_asked, 2);
        nuisance.stop = 1;
        pthread_join(thread, NULL);
        ndbus_close(bus, 5000, NULL);
        fake_peer_end(peer);
}

struct meddler {
        struct ndbus *bus;
        int n_asked;
        int results[4];
};

static int meddle(void *userdata)
{
        struct meddler *meddler = userdata;
        struct ndbus_message *m;

        if (!meddler->bus)
                return 0;
        ++meddler->n_asked;
        meddler->results[0] = ndbus_receive(meddler->bus, &m, 0);
        meddler->results[1] = ndbus_publish(meddler->bus, "t", NULL, 0, NULL);
        meddler->results[2] = ndbus_flush(meddler->bus, 1000);
        meddler->results[3] = ndbus_close(meddler->bus, 1000, NULL);
        return 1;
}

Test(client_receive, whoever_is_asked_cannot_use_the_bus)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct meddler meddler = {0};
        struct ndbus_message *m;
        struct ndbus *bus;

        options.interrupted = meddle;
        options.userdata = &meddler;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        meddler.bus = bus;
        cr_assert_eq(ndbus_receive(bus, &m, 10000), NDBUS_EINTERRUPTED);
        cr_expect_eq(meddler.n_asked, 1);
        for (size_t i = 0; i < nd_array_size(meddler.results); ++i)
                cr_expect_eq(meddler.results[i], NDBUS_EINVAL, "%zu", i);
        meddler.bus = NULL;
        cr_expect_eq(ndbus_close(bus, 5000, NULL), 0, "%s", ndbus_detail());
        fake_peer_end(peer);
}

static bool is_readable(int fd, int timeout_ms)
{
        struct pollfd p = {.fd = fd, .events = POLLIN};

        return poll(&p, 1, timeout_ms) == 1;
}

static void fd_script(struct fake_peer *peer, void *userdata)
{
        char byte;

        fake_peer_accept(peer);
        must(fake_peer_subscribed(peer) == 1);
        must(read(*(int *)userdata, &byte, 1) == 1);
        fake_peer_send_pattern(peer, 1, 10, 1, 0);
        fake_peer_send_pattern(peer, 1, 10, 2, 0);
        fake_peer_expect(peer, ND_KIND_CREDIT);
        fake_peer_hang_up(peer);
        fake_peer_accept(peer);
        must(fake_peer_subscribed(peer) == 1);
        fake_peer_send_pattern(peer, 1, 10, 3, 0);
        fake_peer_drain(peer);
}

Test(client_receive, the_descriptor_is_readable_when_a_call_would_progress)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct fake_peer *peer;
        struct ndbus_message *m;
        struct ndbus *bus;
        int go[2], fd, r;
        size_t n_lost = 0, n = 0;

        cr_assert_eq(pipe(go), 0);
        peer = fake_peer_start(fd_script, &go[0]);
        options.ping_ms = 0;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        fd = ndbus_fd(bus);
        cr_assert_geq(fd, 0);
        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
        cr_assert_not(is_readable(fd, 30));
        cr_assert_eq(write(go[1], "", 1), 1);
        /* as a loop does: through a reconnect, on one descriptor */
        while (n < 3) {
                cr_assert(is_readable(fd, 5000));
                while ((r = ndbus_receive(bus, &m, 0)) == 0) {
                        cr_assert_eq(ndbus_message_sequence(m), ++n);
                        ndbus_message_free(m);
                        if (n == 1)
                                cr_assert(is_readable(fd, 5000), "the second one is there");
                }
                n_lost += r == NDBUS_ENOTCONN;
        }
        cr_assert_eq(n_lost, 1);
        cr_assert_eq(ndbus_fd(bus), fd);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        close(go[0]);
        close(go[1]);
}

Test(client_receive, statistics_are_put_together)
{
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        uint64_t ns = 0;
        void *data;
        size_t n;

        cr_assert_eq(ndbus_stats(bus, &data, &n, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(n, 7);
        cr_assert_arr_eq(data, "\x81\xa4used\x07", 7);
        free(data);
        cr_assert_eq(ndbus_ping(bus, &ns, 5000), 0);
        cr_assert_gt(ns, 0);
        cr_assert_eq(ndbus_close(bus, 5000, NULL), 0);
        fake_peer_end(peer);
}
