/* SPDX-License-Identifier: MIT */

/*
 * What a lost connection leaves unconfirmed: messages whose calls succeeded, and no others
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <unistd.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"

struct leave {
        bool says_goodbye;
        int go[2];
};

/* Takes one message and goes, with or without a word about it. */
static void leave_script(struct fake_peer *peer, void *userdata)
{
        const struct leave *leave = userdata;

        fake_peer_accept(peer);
        fake_peer_expect(peer, ND_KIND_PUBLISH);
        if (leave->says_goodbye) {
                struct nd_control_bytes bytes;

                nd_goodbye_pack(&(struct nd_goodbye){.code = (uint32_t)-NDBUS_ESHUTDOWN}, &bytes);
                fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_GOODBYE, .place = 1},
                               bytes.data, bytes.n, NULL, 0);
        }
        fake_peer_hang_up(peer);
        if (write(leave->go[1], "", 1) != 1)
                abort();
}

/* A bus that published one message, of @array or of none, and whose peer has gone. */
static struct ndbus *leave_begin(struct leave *leave,
                                 const struct ndbus_options *options,
                                 const struct ndbus_array *array,
                                 struct fake_peer **ret_peer)
{
        struct ndbus *bus = NULL;
        char byte;

        cr_assert_eq(pipe(leave->go), 0);
        *ret_peer = fake_peer_start(leave_script, leave);
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(*ret_peer), options), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_publish(bus, "x", array, array ? 1 : 0, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(read(leave->go[0], &byte, 1), 1);
        return bus;
}

static void leave_end(const struct leave *leave, struct fake_peer *peer)
{
        fake_peer_end(peer);
        close(leave->go[0]);
        close(leave->go[1]);
}

/* A message that was refused to the caller is not told again to be unconfirmed. */
Test(client_unconfirmed, what_could_not_be_sent_is_not_unconfirmed_too)
{
        static uint8_t bytes[1000];
        int64_t shape = sizeof(bytes);
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};

        for (int i = 0; i < 2; ++i) {
                struct leave leave = {.says_goodbye = i == 1};
                struct fake_peer *peer;
                struct ndbus *bus = leave_begin(&leave, NULL, &array, &peer);
                size_t n_unconfirmed = 99;

                cr_expect_eq(ndbus_publish(bus, "x", &array, 1, NULL), NDBUS_ENOTCONN);
                ndbus_close(bus, 0, &n_unconfirmed);
                cr_expect_eq(n_unconfirmed, leave.says_goodbye ? 0 : 1, "%zu", n_unconfirmed);
                leave_end(&leave, peer);
        }
}

/* What a flush has told, closing does not tell again, but counts. */
Test(client_unconfirmed, what_is_lost_is_told_once_and_counted)
{
        static uint8_t bytes[1000];
        int64_t shape = sizeof(bytes);
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};

        for (int i = 0; i < 2; ++i) {
                struct leave leave = {.says_goodbye = false};
                struct fake_peer *peer;
                struct ndbus *bus = leave_begin(&leave, NULL, &array, &peer);
                size_t n_unconfirmed = 99;

                if (i == 1)
                        cr_expect_eq(ndbus_flush(bus, -1), NDBUS_ENOTCONN);
                cr_expect_eq(ndbus_close(bus, 0, &n_unconfirmed), i == 1 ? 0 : NDBUS_ENOTCONN);
                cr_expect_eq(n_unconfirmed, 1, "%zu", n_unconfirmed);
                leave_end(&leave, peer);
        }
}

/* Whoever asked for it has the message kept by which the loss is found out. */
Test(client_unconfirmed, what_finds_the_connection_lost_is_kept)
{
        static uint8_t bytes[100000];
        const int64_t shapes[] = {1000, sizeof(bytes)};

        for (size_t i = 0; i < nd_array_size(shapes); ++i) {
                const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shapes[i]};
                struct ndbus_options options = NDBUS_OPTIONS_INIT;
                struct leave leave = {.says_goodbye = false};
                struct fake_peer *peer;
                struct ndbus *bus;
                size_t n_unconfirmed = 99;

                options.offline_messages = 1;
                bus = leave_begin(&leave, &options, NULL, &peer);
                cr_expect_eq(ndbus_publish(bus, "x", &array, 1, NULL), 0, "%s", ndbus_detail());
                ndbus_close(bus, 0, &n_unconfirmed);
                cr_expect_eq(n_unconfirmed, 2, "%zu", n_unconfirmed);
                leave_end(&leave, peer);
        }
}

struct wait_for_room {
        int go[2];
        bool has_told;
};

/* Reads nothing, and goes when it is told to. */
static void no_room_script(struct fake_peer *peer, void *userdata)
{
        const struct wait_for_room *wait = userdata;
        char byte;

        fake_peer_welcome(peer)->grant_bytes = 16 << 20;
        fake_peer_accept(peer);
        if (read(wait->go[0], &byte, 1) != 1)
                abort();
        fake_peer_hang_up(peer);
}

/* The publisher is waiting for room in the socket. */
static int tell_to_go(void *userdata)
{
        struct wait_for_room *wait = userdata;

        if (!wait->has_told && write(wait->go[1], "", 1) != 1)
                abort();
        wait->has_told = true;
        return 0;
}

/* The same for one of which a part has left. */
Test(client_unconfirmed, what_was_being_sent_is_not_unconfirmed_too)
{
        static uint8_t bytes[8000];
        int64_t shape = sizeof(bytes);
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_options bus_options = NDBUS_OPTIONS_INIT;
        struct wait_for_room wait = {.has_told = false};
        struct fake_peer *peer;
        struct ndbus *bus = NULL;
        size_t n_published = 0, n_unconfirmed = 0;
        int r;

        cr_assert_eq(pipe(wait.go), 0);
        peer = fake_peer_start(no_room_script, &wait);
        bus_options.stall_ms = bus_options.ping_timeout_ms = 1000000;
        bus_options.interrupted = tell_to_go;
        bus_options.userdata = &wait;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &bus_options), 0, "%s", ndbus_detail());
        options.timeout_ms = -1;
        while ((r = ndbus_publish(bus, "x", &array, 1, &options)) == 0 && !wait.has_told)
                ++n_published;
        cr_expect_eq(r, NDBUS_ENOTCONN, "%s", ndbus_detail());
        ndbus_close(bus, 0, &n_unconfirmed);
        cr_expect_eq(n_unconfirmed, n_published, "%zu unconfirmed, %zu published", n_unconfirmed,
                     n_published);
        fake_peer_end(peer);
        close(wait.go[0]);
        close(wait.go[1]);
}
