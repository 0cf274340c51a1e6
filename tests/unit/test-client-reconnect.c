/* SPDX-License-Identifier: MIT */

/*
 * Connections that are not made, that are lost, and that are made again
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"

/* What answers at the address is no daemon, or one that does not want us. */
struct welcome_case {
        const char *bytes;
        size_t n;
        int want;
};

static void rude_script(struct fake_peer *peer, void *userdata)
{
        const struct welcome_case *c = userdata;

        fake_peer_accept_bare(peer);
        fake_peer_send_bytes(peer, c->bytes, c->n);
        fake_peer_hang_up(peer);
}

Test(client_receive, what_is_no_daemon_is_not_taken_for_one)
{
        static const struct welcome_case cases[] = {
                {"HTTP/1.0 400 Bad Request\r\n\r\n", 28, NDBUS_EPROTOCOL},
                {"NDBUS\0\0\x16\x01\x01\0\0\0\0\0\0", 16, NDBUS_ESERVER_FULL},
                {"NDBUS\0\0\x15\x02\x03\0\0\0\0\0\0", 16, NDBUS_EVERSION},
                {"NDBUS\0\x09\0\x02\x03\0\0\0\0\0\0", 16, NDBUS_EPROTOCOL},
                {"NDBUS\0\x01\0", 8, NDBUS_ENOTCONN},
                {"", 0, NDBUS_ENOTCONN},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
                struct welcome_case c = cases[i];
                struct fake_peer *peer = fake_peer_start(rude_script, &c);
                struct ndbus *bus = NULL;
                int r = ndbus_open(&bus, fake_peer_url(peer), NULL);

                cr_assert_eq(r, c.want, "%zu: %d %s", i, r, ndbus_detail());
                cr_assert_null(bus);
                fake_peer_end(peer);
        }
}

static void silent_script(struct fake_peer *peer, void *userdata)
{
        char byte;

        fake_peer_accept_bare(peer);
        must(read(*(int *)userdata, &byte, 1) == 1);
}

Test(client_receive, opening_does_not_wait_for_ever)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;
        struct fake_peer *peer;
        int go[2];

        cr_assert_eq(pipe(go), 0);
        peer = fake_peer_start(silent_script, &go[0]);
        options.connect_timeout_ms = 50;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), NDBUS_ETIMEDOUT, "%s",
                     ndbus_detail());
        cr_assert_eq(ndbus_open(&bus, "unix:/nowhere/at/all", NULL), NDBUS_ENOTCONN);
        cr_assert(strstr(ndbus_detail(), "/nowhere/at/all"));
        cr_assert_eq(ndbus_open(&bus, "http://x", NULL), NDBUS_EINVAL);
        cr_assert_eq(ndbus_open(&bus, "tcp://127.0.0.1:1", NULL), NDBUS_ENOTCONN);
        cr_assert_eq(ndbus_open(&bus, "tcp://no.such.host.invalid:1", NULL), NDBUS_ENOTCONN);
        cr_assert_null(bus);
        cr_assert_eq(write(go[1], "", 1), 1);
        fake_peer_end(peer);
        close(go[0]);
        close(go[1]);
}

/* -------------------------------------------------------------------- losing the connection */

static void reconnect_script(struct fake_peer *peer, void *userdata)
{
        uint32_t a, b;

        (void)userdata;
        fake_peer_accept(peer);
        a = fake_peer_subscribed(peer);
        b = fake_peer_subscribed(peer);
        fake_peer_send_pattern(peer, a, 10, 1, 0);
        fake_peer_hang_up(peer);

        fake_peer_welcome(peer)->source = 0x5678;
        fake_peer_accept(peer);
        /* before both are acknowledged nothing is handed out */
        must(fake_peer_subscribed(peer) == a);
        fake_peer_send_pattern(peer, a, 10, 1, 0);
        must(fake_peer_subscribed(peer) == b);
        fake_peer_send_pattern(peer, a, 10, 2, 0);
        fake_peer_send_pattern(peer, b, 10, 3, 0);
        fake_peer_drain(peer);
}

Test(client_receive, a_lost_connection_is_said_once_and_made_again)
{
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
        struct fake_peer *peer = fake_peer_start(reconnect_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_subscription *a;
        struct ndbus_message *m = NULL;

        cr_assert_eq(ndbus_source(bus), 0x1234);
        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, &a), 0);
        cr_assert_eq(ndbus_subscribe(bus, "*", NULL, NULL), 0);
        client_test_expect(bus, 1, 10, 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_ENOTCONN, "%s", ndbus_detail());
        cr_assert_eq(ndbus_source(bus), 0);
        client_test_expect(bus, 1, 10, NDBUS_UNKNOWN);
        client_test_expect(bus, 2, 10, 0);
        client_test_expect(bus, 3, 10, NDBUS_UNKNOWN);
        cr_assert_eq(ndbus_source(bus), 0x5678);
        cr_assert_eq(ndbus_subscription_stats(a, &stats), 0);
        cr_assert_eq(stats.gaps_unknown, 1);
        cr_assert_eq(stats.dropped, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void late_script(struct fake_peer *peer, void *userdata)
{
        const int *to_script = userdata, *to_test = to_script + 2;

        fake_peer_accept(peer);
        fake_peer_subscribed(peer);
        must(read(to_script[0], &(char){0}, 1) == 1);
        fake_peer_send_pattern(peer, 1, 10, 1, 0);
        fake_peer_send_pattern(peer, 1, 10, 2, 0);
        fake_peer_stop_listening(peer);
        fake_peer_hang_up(peer);
        must(write(to_test[1], "", 1) == 1);
}

/* Also when it is found out by a write: something waits to be sent. */
Test(client_receive, the_loss_stands_behind_what_came_before_it)
{
        struct ndbus_publish_options more = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_message *m;
        struct fake_peer *peer;
        struct ndbus *bus;
        int fds[4];

        cr_assert_eq(pipe(fds), 0);
        cr_assert_eq(pipe(fds + 2), 0);
        more.more = true;
        peer = fake_peer_start(late_script, fds);
        bus = client_test_open(peer);
        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        cr_assert_eq(ndbus_publish(bus, "t", NULL, 0, &more), 0);
        cr_assert_eq(write(fds[1], "", 1), 1);
        cr_assert_eq(read(fds[2], &(char){0}, 1), 1);
        client_test_expect(bus, 1, 10, 0);
        client_test_expect(bus, 2, 10, 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_ENOTCONN, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        for (size_t i = 0; i < 4; ++i)
                close(fds[i]);
}

static void half_script(struct fake_peer *peer, void *userdata)
{
        size_t n_header;
        void *header = fake_peer_header("t", 5000000, &n_header);
        static const uint8_t part[1000];

        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_subscribed(peer);
        fake_peer_send_message(peer,
                               &(struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                                    .flags = ND_FLAG_BODY_IN_CHUNKS,
                                                    .stream = 1,
                                                    .body_bytes = 5000000,
                                                    .subscription = 1},
                               header, n_header, NULL, 0);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_CHUNK, .stream = 1}, NULL, 0,
                       part, sizeof(part));
        free(header);
        fake_peer_hang_up(peer);
        fake_peer_accept(peer);
        must(fake_peer_subscribed(peer) == 1);
        fake_peer_send_pattern(peer, 1, 5000000, 1, 1000000);
        fake_peer_drain(peer);
}

Test(client_receive, never_half_a_message_as_a_whole_one)
{
        struct fake_peer *peer = fake_peer_start(half_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_message *m;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_ENOTCONN);
        client_test_expect(bus, 1, 5000000, NDBUS_UNKNOWN);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void goodbye_script(struct fake_peer *peer, void *userdata)
{
        const struct nd_goodbye goodbye = {.code = -NDBUS_ESHUTDOWN};
        struct nd_control_bytes bytes;

        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_subscribed(peer);
        nd_goodbye_pack(&goodbye, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_GOODBYE}, bytes.data, bytes.n,
                       NULL, 0);
        fake_peer_send_pattern(peer, 1, 10, 1, 0); /* what was queued is still sent */
        fake_peer_stop_listening(peer);
}

Test(client_receive, a_daemon_that_stops_says_so)
{
        struct fake_peer *peer = fake_peer_start(goodbye_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_message *m;

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0);
        client_test_expect(bus, 1, 10, 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_ESHUTDOWN, "%s", ndbus_detail());
        cr_assert_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
        cr_assert_eq(ndbus_publish(bus, "t", NULL, 0, NULL), NDBUS_ENOTCONN);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void closes_script(struct fake_peer *peer, void *userdata)
{
        const struct nd_error_header error = {.code = -NDBUS_ECREDIT,
                                              .closes = true,
                                              .field = ND_STRING("packet"),
                                              .text = ND_STRING("is 7, the limit is 5")};
        struct nd_control_bytes bytes;

        (void)userdata;
        fake_peer_accept(peer);
        nd_error_header_pack(&error, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_ERROR}, bytes.data, bytes.n, NULL,
                       0);
        fake_peer_stop_listening(peer);
}

Test(client_receive, the_reason_for_which_a_daemon_closes_is_kept)
{
        struct fake_peer *peer = fake_peer_start(closes_script, NULL);
        struct ndbus_message *m;
        struct ndbus *bus = NULL;
        int r = ndbus_open(&bus, fake_peer_url(peer), NULL);

        if (r == 0) /* else it came with WELCOME */
                r = ndbus_receive(bus, &m, 5000);
        cr_assert_eq(r, NDBUS_ECREDIT);
        cr_assert(strstr(ndbus_detail(), "is 7"), "%s", ndbus_detail());
        if (bus)
                ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* Answers nothing, not even pings. */
static void dead_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_expect(peer, ND_KIND_PING);
        fake_peer_stop_listening(peer);
        fake_peer_drain(peer);
}

Test(client_receive, t41_a_daemon_that_answers_no_ping_is_dead)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct fake_peer *peer = fake_peer_start(dead_script, NULL);
        struct ndbus_message *m;
        struct ndbus *bus;

        options.ping_ms = 20;
        options.ping_timeout_ms = 60;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_EDEAD, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}
