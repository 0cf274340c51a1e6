/* SPDX-License-Identifier: MIT */

/*
 * How far ahead of the daemon a publisher in shared memory goes, against a scripted daemon
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"

TestSuite(client_lead, .timeout = 60);

static void publish_loan(struct ndbus *bus, int64_t bytes)
{
        uint8_t *data;

        cr_assert_eq(ndbus_publish_loan(bus, "t", client_test_loan(bus, bytes, &data), NULL), 0,
                     "%s", ndbus_detail());
}

static void lead_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segments[2];
        uint32_t numbers[2];

        (void)userdata;
        client_test_accept_shm_of(peer, 128 * ND_MIB);
        segments[0] = fake_peer_segment(peer, &numbers[0]);
        client_test_expect_block(peer, numbers[0], 40 * ND_MIB);
        segments[1] = fake_peer_segment(peer, &numbers[1]);
        client_test_pong(peer, 1);
        client_test_expect_block(peer, numbers[1], 40 * ND_MIB);
        fake_peer_drain(peer);
        nd_segment_close(&segments[0]);
        nd_segment_close(&segments[1]);
}

/* Blocks take no credit: what is not routed is bounded all the same. */
Test(client_lead, a_publisher_waits_for_the_daemon_when_it_is_far_ahead)
{
        struct fake_peer *peer = fake_peer_start(lead_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        publish_loan(bus, 40 * ND_MIB);
        publish_loan(bus, 40 * ND_MIB);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void released_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;
        uint64_t place;

        (void)userdata;
        client_test_accept_shm_of(peer, 128 * ND_MIB);
        segment = fake_peer_segment(peer, &number);
        place = client_test_expect_block(peer, number, 80 * ND_MIB);
        client_test_release(peer, number, place);
        client_test_pong(peer, 0); /* to the application's question; it says nothing of routing */
        client_test_expect_block(peer, number, 80 * ND_MIB);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* What comes back was routed: nothing is asked. */
Test(client_lead, a_publisher_does_not_ask_about_what_is_released)
{
        struct fake_peer *peer = fake_peer_start(released_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        publish_loan(bus, 80 * ND_MIB);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        publish_loan(bus, 80 * ND_MIB);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void kept_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segments[3];
        uint32_t numbers[3];

        (void)userdata;
        client_test_accept_shm_of(peer, 192 * ND_MIB);
        segments[0] = fake_peer_segment(peer, &numbers[0]);
        client_test_expect_block(peer, numbers[0], 40 * ND_MIB);
        segments[1] = fake_peer_segment(peer, &numbers[1]);
        client_test_pong(peer, 1);
        client_test_expect_block(peer, numbers[1], 40 * ND_MIB);
        client_test_pong(peer, 2); /* asked before the next one is even loaned */
        segments[2] = fake_peer_segment(peer, &numbers[2]);
        client_test_expect_block(peer, numbers[2], 40 * ND_MIB);
        fake_peer_drain(peer);
        for (unsigned i = 0; i < 3; ++i)
                nd_segment_close(&segments[i]);
}

/* Readers keep what they get: the next message does not have to ask first. */
Test(client_lead, the_question_how_far_the_daemon_is_leaves_with_the_message)
{
        struct fake_peer *peer = fake_peer_start(kept_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        for (unsigned i = 0; i < 3; ++i)
                publish_loan(bus, 40 * ND_MIB);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void room_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;
        uint64_t ping;

        (void)userdata;
        client_test_accept_shm_of(peer, 176 * ND_MIB);
        segment = fake_peer_segment(peer, &number);
        for (unsigned i = 0; i < 3; ++i)
                client_test_expect_block(peer, number, 16 * ND_MIB);
        ping = client_test_expect_ping(peer);
        for (unsigned i = 3; i < 6; ++i)
                client_test_expect_block(peer, number, 16 * ND_MIB);
        client_test_answer_ping(peer, ping, 3);
        fake_peer_expect(peer, ND_KIND_PING);
        client_test_expect_block(peer, number, 16 * ND_MIB);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* It does not wait for an answer as long as that leaves 64 MiB free: 96 MiB are ahead here. */
Test(client_lead, a_publisher_is_further_ahead_where_there_is_memory)
{
        struct fake_peer *peer = fake_peer_start(room_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        uint8_t *data;

        ndbus_loan_cancel(client_test_loan(bus, 176 * ND_MIB, &data));
        for (unsigned i = 0; i < 7; ++i)
                publish_loan(bus, 16 * ND_MIB);
        cr_assert_eq(client_test_shm_stats(bus).segments, 1);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}
