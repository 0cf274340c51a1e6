/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: one session, byte by byte
 *
 * The input is what a client sends. Whatever it is: the daemon does not crash, what it answers is
 * well-formed, its numbers add up, a well-behaved subscriber beside it hears well-formed packets
 * only, and when all have gone nothing is kept.
 *
 * Byte 0: 1 the handshake is done for it; 2 there is a subscriber to everything; 4 the client
 * reads nothing; 8 the subscriber reads nothing; 16 time passes at the end; 32 both have shared
 * memory; 64 and it has announced segment 1; 128 a descriptor comes with the first bytes. Byte 1: where
 * the bytes are cut.
 */

#include <string.h>
#include "protocol/control.h"
#include "protocol/hello.h"
#include "tests/support/embedded.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

static void pass_over(void *userdata, const struct nd_packet *packet, const uint8_t *body)
{
        (void)userdata;
        (void)packet;
        (void)body;
}

static void send_packet(struct nd_embedded_peer *peer,
                        struct nd_prelude prelude,
                        const struct nd_control_bytes *header)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        prelude.header_bytes = (uint32_t)header->n;
        nd_prelude_pack(&prelude, bytes);
        nd_assert(nd_embedded_send(peer, bytes, sizeof(bytes)));
        nd_assert(nd_embedded_send(peer, header->data, header->n));
}

static void shake_hands(struct nd_embedded_peer *peer, uint32_t features)
{
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        const struct nd_connect connect = {.features = features, .client = ND_STRING("fuzz")};
        struct nd_control_bytes header;
        uint8_t bytes[ND_HELLO_BYTES];

        nd_hello_pack(&hello, bytes);
        nd_assert(nd_embedded_send(peer, bytes, sizeof(bytes)));
        nd_connect_pack(&connect, &header);
        send_packet(peer, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1}, &header);
        nd_embedded_run(2);
}

static void announce(struct nd_embedded_peer *peer)
{
        const struct nd_segment *segment = nd_embedded_segment();
        const struct nd_prelude prelude = {
                .kind = ND_KIND_SEGMENT,
                .flags = ND_FLAG_FD,
                .segment = 1,
                .place = segment->bytes,
                .sequence = 2,
        };
        uint8_t bytes[ND_PRELUDE_BYTES];

        nd_prelude_pack(&prelude, bytes);
        nd_embedded_send_fd(peer, bytes, sizeof(bytes), segment->fd);
        nd_embedded_run(2);
}

static void subscribe(struct nd_embedded_peer *peer, uint32_t features)
{
        const struct nd_subscribe ask = {
                .pattern = ND_STRING("**"),
                .depth_messages = 10,
                .depth_bytes = ND_MIB,
                .window_messages = 10,
                .window_bytes = ND_MIB,
                .retained = true,
        };
        struct nd_control_bytes header;

        shake_hands(peer, features);
        nd_subscribe_pack(&ask, &header);
        send_packet(
                peer,
                (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE, .sequence = 2, .subscription = 1},
                &header);
        nd_embedded_run(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct nd_embedded_peer client, subscriber = {.fd = -1};
        uint32_t features;
        uint32_t cut;

        if (n_data < 2)
                return 0;
        features = data[0] & 32 ? ND_FEATURE_SHM : 0;
        nd_embedded_open(&client);
        if (data[0] & 2) {
                nd_embedded_open(&subscriber);
                subscribe(&subscriber, features);
        }
        if (data[0] & 1) {
                shake_hands(&client, features);
                if (features && data[0] & 64)
                        announce(&client);
        }

        cut = data[1];
        for (size_t i = 2; i < n_data && !client.has_ended;) {
                size_t n = n_data - i;

                if (data[1] > 0) {
                        cut = cut * 1664525u + 1013904223u;
                        n = nd_min_u64(n, 1 + (cut >> 24) % data[1]);
                }
                if (i == 2 && data[0] & 128)
                        nd_embedded_send_fd(&client, data + i, n, nd_embedded_segment()->fd);
                else if (!nd_embedded_send(&client, data + i, n))
                        break; /* it owes too many answers, and will not read them */
                i += n;
                nd_embedded_run(1);
                if (!(data[0] & 4))
                        nd_embedded_read(&client, SIZE_MAX, pass_over, NULL);
                if (!(data[0] & 8))
                        nd_embedded_read(&subscriber, SIZE_MAX, pass_over, NULL);
                nd_embedded_check();
        }
        if (data[0] & 16) {
                nd_embedded_later(31000);
                nd_embedded_later(62000);
                nd_embedded_check();
        }
        nd_embedded_close(&client);
        nd_embedded_run(2);
        nd_embedded_check();
        nd_embedded_read(&subscriber, SIZE_MAX, pass_over, NULL);
        nd_embedded_close(&subscriber);
        nd_embedded_run(3);
        nd_embedded_check_empty();
        return 0;
}
