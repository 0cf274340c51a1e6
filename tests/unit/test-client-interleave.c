/* SPDX-License-Identifier: MIT */

/*
 * What a client says between its messages does not get into them: grants, above all, which fall due
 * at their own time, also while a large message stands half sent. Against a scripted daemon, which
 * stops reading when that is worst.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <ndbus/ndbus.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include "protocol/byteorder.h"
#include "tests/support/fake-peer.h"
#include "tests/support/harness.h"

#define BODY_BYTES  (15 << 20)
#define GRANT_BYTES (16 << 20)

/* What the script saw of one large message. */
static struct seen {
        sem_t go_on; /* the script reads no further before */
        uint64_t place;
        unsigned n_credits;
        unsigned n_resets;
        uint64_t messages_granted;
} seen;

static void send_small(struct fake_peer *peer, uint32_t subscription, uint64_t sequence)
{
        size_t n_header;
        void *header = fake_peer_header("small", 8, &n_header);
        const struct nd_prelude prelude = {
                .kind = ND_KIND_MESSAGE,
                .body_bytes = 8,
                .source = 7,
                .sequence = sequence,
                .subscription = subscription,
        };

        fake_peer_send_message(peer, &prelude, header, n_header, "grant me", 8);
        free(header);
}

static void note(const struct fake_packet *packet)
{
        switch (packet->prelude.kind) {
        case ND_KIND_CHUNK:
                cr_expect_eq(packet->prelude.place, seen.place);
                seen.place += packet->n_body;
                break;
        case ND_KIND_CREDIT:
                ++seen.n_credits;
                seen.messages_granted += nd_load_le64(packet->body);
                break;
        case ND_KIND_RESET:
                ++seen.n_resets;
                break;
        default:
                cr_expect_eq(packet->prelude.kind, ND_KIND_PUBLISH, "%s",
                             nd_kind_name(packet->prelude.kind));
        }
}

/* Lets the client subscribe, gives it a message to grant for, and does not read until told. */
static void script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;

        (void)userdata;

        fake_peer_welcome(peer)->grant_bytes = GRANT_BYTES;
        fake_peer_accept(peer);
        send_small(peer, fake_peer_subscribed(peer), 1);
        while (sem_wait(&seen.go_on) && errno == EINTR)
                continue;
        for (packet = fake_peer_read(peer); packet && packet->prelude.kind != ND_KIND_GOODBYE;
             packet = fake_peer_read(peer))
                if (packet->prelude.kind != ND_KIND_PING)
                        note(packet);
}

static void on_alarm(int signal_number)
{
        (void)signal_number;
        sem_post(&seen.go_on);
}

static struct ndbus *open_and_receive(struct fake_peer *peer, int stall_ms)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus_message *m;
        struct ndbus *bus;

        options.stall_ms = stall_ms;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_subscribe(bus, "small", NULL, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_receive(bus, &m, nd_harness_deadline_ms(10000)), 0, "%s",
                     ndbus_detail());
        ndbus_message_free(m);
        return bus;
}

static int publish_large(struct ndbus *bus)
{
        const int64_t shape[1] = {BODY_BYTES};
        struct ndbus_array array = {.ndim = 1, .shape = shape};
        void *data = calloc(1, BODY_BYTES);
        int r;

        cr_assert(data);
        array.data = data;
        r = ndbus_publish(bus, "large", &array, 1, NULL);
        free(data);
        return r;
}

Test(client_interleave, a_grant_falls_due_while_a_message_waits_in_the_middle_of_a_packet)
{
        const struct itimerval later = {.it_value = {.tv_usec = 100000}};
        struct fake_peer *peer;
        struct ndbus *bus;

        cr_assert_eq(sem_init(&seen.go_on, 0, 0), 0);
        peer = fake_peer_start(script, NULL);
        bus = open_and_receive(peer, 60000);

        /* the publisher is in the call while this must happen: the time decides only for how long
         * it stands still */
        cr_assert_neq(signal(SIGALRM, on_alarm), SIG_ERR);
        cr_assert_eq(setitimer(ITIMER_REAL, &later, NULL), 0);
        cr_expect_eq(publish_large(bus), 0, "%s", ndbus_detail());

        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_expect_eq(seen.place, BODY_BYTES);
        cr_expect_eq(seen.n_credits, 1);
        cr_expect_eq(seen.messages_granted, 1);
        cr_expect_eq(seen.n_resets, 0);
}

Test(client_interleave, a_grant_is_due_when_a_message_is_given_up)
{
        struct fake_peer *peer;
        struct ndbus *bus;

        cr_assert_eq(sem_init(&seen.go_on, 0, 0), 0);
        peer = fake_peer_start(script, NULL);
        bus = open_and_receive(peer, 100);
        cr_expect_eq(publish_large(bus), NDBUS_ETIMEDOUT, "%s", ndbus_detail());
        cr_expect_eq(sem_post(&seen.go_on), 0);

        /* sends what is left, for an answer that does not come */
        cr_expect_eq(ndbus_flush(bus, 1000), NDBUS_ETIMEDOUT, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_expect_gt(seen.place, 0);
        cr_expect_lt(seen.place, BODY_BYTES);
        cr_expect_eq(seen.n_credits, 1);
        cr_expect_eq(seen.messages_granted, 1);
        cr_expect_eq(seen.n_resets, 1);
}

/* Every grant of an on-demand subscription is of one message. */
static void script_latest(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        uint64_t sequence = 0;
        uint32_t subscription;

        (void)userdata;

        fake_peer_accept(peer);
        subscription = fake_peer_subscribed(peer);
        fake_peer_subscribed(peer);
        for (packet = fake_peer_read(peer); packet && packet->prelude.kind != ND_KIND_GOODBYE;
             packet = fake_peer_read(peer)) {
                if (packet->prelude.kind == ND_KIND_PING)
                        continue;
                cr_expect_eq(packet->prelude.kind, ND_KIND_CREDIT);
                cr_expect_eq(packet->prelude.subscription, subscription);
                cr_expect_eq(nd_load_le64(packet->body), 1);
                send_small(peer, subscription, ++sequence);
        }
}

Test(client_interleave, latest_is_granted_only_when_the_application_asks)
{
        struct fake_peer *peer = fake_peer_start(script_latest, NULL);
        struct ndbus_subscribe_options latest = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_subscription *one, *other;
        struct ndbus *bus;

        latest.policy = NDBUS_LATEST;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_subscribe(bus, "small", &latest, &one), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_subscribe(bus, "other", NULL, &other), 0, "%s", ndbus_detail());
        for (int i = 0; i < 3; ++i) {
                struct ndbus_message *m;

                cr_assert_eq(ndbus_receive_from(one, &m, nd_harness_deadline_ms(10000)), 0, "%s",
                             ndbus_detail());
                ndbus_message_free(m);

                /* long enough for whatever is granted by itself */
                cr_expect_eq(ndbus_receive_from(other, &m, 20), NDBUS_ETIMEDOUT, "%s",
                             ndbus_detail());
        }

        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}
