/* SPDX-License-Identifier: MIT */

/*
 * Intake: how much of many rings is taken before anybody else has his turn
 *
 * The daemon runs in this process, and its loop comes round when the test says so.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "tests/support/embedded.h"

#define CLIENTS_N    20u
#define BODY_BYTES   64u
#define FILLED_BYTES (ND_RING_BYTES - 4096u) /* within the first window */
#define TURN_BYTES   (4u * ND_RING_BYTES)

static struct client {
        struct nd_embedded_peer peer;
        struct nd_ring ring;
        uint64_t n_published;
} clients[CLIENTS_N];

static void send_packet(struct client *client,
                        struct nd_prelude prelude,
                        const struct nd_control_bytes *header,
                        int fd)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        prelude.header_bytes = header ? (uint32_t)header->n : 0;
        nd_prelude_pack(&prelude, bytes);
        if (fd >= 0)
                nd_embedded_send_fd(&client->peer, bytes, sizeof(bytes), fd);
        else
                cr_assert(nd_embedded_send(&client->peer, bytes, sizeof(bytes)));
        if (header)
                cr_assert(nd_embedded_send(&client->peer, header->data, header->n));
        nd_embedded_run(4);
}

/* Connected, with a segment and a ring. */
static void client_open(struct client *client)
{
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        const struct nd_connect connect = {
                .features = ND_FEATURE_SHM | ND_FEATURE_RING,
                .client = ND_STRING("test"),
        };
        const struct nd_segment *segment = nd_embedded_segment();
        struct nd_control_bytes header;
        uint8_t bytes[ND_HELLO_BYTES];
        int fd;

        nd_embedded_open(&client->peer, false);
        nd_hello_pack(&hello, bytes);
        cr_assert(nd_embedded_send(&client->peer, bytes, sizeof(bytes)));
        nd_connect_pack(&connect, &header);
        send_packet(client, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1}, &header,
                    -1);
        send_packet(client,
                    (struct nd_prelude){.kind = ND_KIND_SEGMENT,
                                        .flags = ND_FLAG_FD,
                                        .segment = 1,
                                        .place = segment->bytes,
                                        .sequence = 2},
                    NULL, segment->fd);
        cr_assert_eq(nd_ring_create(&client->ring, &fd, NULL), 0);
        send_packet(client,
                    (struct nd_prelude){.kind = ND_KIND_RING,
                                        .flags = ND_FLAG_FD,
                                        .place = ND_RING_FILE_BYTES,
                                        .sequence = 3},
                    NULL, fd);
        close(fd);
}

/* PUBLISHes of blocks that nobody wants. */
static void client_fill(struct client *client)
{
        int64_t shape = BODY_BYTES;
        struct nd_frame frame = {
                .array = {.ndim = 1, .shape = &shape, .lanes = 1},
                .bytes = BODY_BYTES,
        };
        const struct nd_header header = {
                .topic = "t", .n_topic = 1, .n_frames = 1, .frames = &frame};
        uint8_t packet[512];
        void *bytes = NULL;
        size_t n;

        cr_assert_eq(nd_header_pack(&header, &bytes, &n), 0);
        memcpy(packet + ND_PRELUDE_BYTES, bytes, n);
        while (client->ring.position + ND_PRELUDE_BYTES + n <= FILLED_BYTES) {
                nd_prelude_pack(
                        &(struct nd_prelude){
                                .kind = ND_KIND_PUBLISH,
                                .flags = ND_FLAG_BODY_IN_BLOCK,
                                .header_bytes = (uint32_t)n,
                                .body_bytes = BODY_BYTES,
                                .segment = 1,
                                .place = client->n_published * BODY_BYTES,
                                .sequence = client->n_published + 1,
                        },
                        packet);
                cr_assert(nd_ring_put(&client->ring, packet, ND_PRELUDE_BYTES + n));
                ++client->n_published;
        }
        free(bytes);
}

static uint64_t n_taken(size_t i_client)
{
        return atomic_load(&clients[i_client].ring.head->taken);
}

static uint64_t n_taken_of_all(void)
{
        uint64_t n = 0;

        for (size_t i = 0; i < CLIENTS_N; ++i)
                n += n_taken(i);
        return n;
}

Test(intake, takes_turns)
{
        struct nd_server *server = nd_embedded_server();
        uint64_t n = 0, n_before;
        size_t n_turns = 0;

        for (size_t i = 0; i < CLIENTS_N; ++i)
                client_open(&clients[i]);
        for (size_t i = 0; i < CLIENTS_N; ++i) {
                cr_assert(nd_ring_must_wake(&clients[i].ring));
                cr_assert(nd_embedded_send(&clients[i].peer,
                                           (uint8_t[ND_PRELUDE_BYTES]){ND_KIND_WAKE},
                                           ND_PRELUDE_BYTES));
        }
        uv_run(&server->loop, UV_RUN_NOWAIT); /* they are awake, and not yet looked at */
        for (size_t i = 0; i < CLIENTS_N; ++i)
                client_fill(&clients[i]);
        cr_assert_eq(n_taken_of_all(), 0);

        while (n_taken_of_all() < CLIENTS_N * clients[0].ring.position) {
                n_before = n_taken_of_all();
                cr_assert(nd_intakes_look(server));
                nd_server_settle(server);
                n = n_taken_of_all() - n_before;
                cr_expect_gt(n, 0);
                cr_expect_lt(n, TURN_BYTES + ND_RING_BYTES);
                ++n_turns;
        }
        cr_expect_gt(n_turns, 1);

        /* with nothing more in any of them all fall asleep */
        for (size_t i = 0; i < CLIENTS_N; ++i)
                cr_expect_not(nd_ring_must_wake(&clients[i].ring));
        cr_expect_not(nd_intakes_look(server));
        for (size_t i = 0; i < CLIENTS_N; ++i) {
                cr_expect(nd_ring_must_wake(&clients[i].ring));
                nd_ring_close(&clients[i].ring);
                nd_embedded_close(&clients[i].peer);
        }
        nd_embedded_run(4);
        nd_embedded_check_empty();
}
