/* SPDX-License-Identifier: MIT */

/*
 * What tests of the client library do again and again
 */

#include "tests/support/client-test.h"
#include <inttypes.h>
#include <stdlib.h>
#include "tests/support/pattern.h"

struct ndbus *client_test_open(struct fake_peer *peer)
{
        struct ndbus *bus = NULL;

        if (ndbus_open(&bus, fake_peer_url(peer), NULL)) {
                fprintf(stderr, "open: %s\n", ndbus_detail());
                abort();
        }
        return bus;
}

struct ndbus_message *client_test_receive(struct ndbus *bus)
{
        struct ndbus_message *m = NULL;

        if (ndbus_receive(bus, &m, 5000)) {
                fprintf(stderr, "receive: %s\n", ndbus_detail());
                abort();
        }
        return m;
}

void client_test_expect(struct ndbus *bus, uint64_t sequence, uint64_t n, uint64_t dropped)
{
        struct ndbus_message *m = client_test_receive(bus);
        const struct ndbus_array *arrays;

        if (ndbus_message_sequence(m) != sequence || ndbus_message_dropped(m) != dropped) {
                fprintf(stderr,
                        "message %" PRIu64 " came, dropped %" PRIu64 "; expected were %" PRIu64
                        ", dropped %" PRIu64 "\n",
                        ndbus_message_sequence(m), ndbus_message_dropped(m), sequence, dropped);
                abort();
        }
        must(ndbus_message_bytes(m) == n);
        must(ndbus_message_arrays(m, &arrays) == 1);
        must(nd_pattern_compare(arrays[0].data, 0, n) == n);
        must((uintptr_t)arrays[0].data % 64 == 0);
        ndbus_message_free(m);
}

void fake_peer_send_pattern(struct fake_peer *peer,
                            uint32_t subscription,
                            uint32_t n,
                            uint64_t sequence,
                            uint32_t n_chunk)
{
        struct nd_prelude p = {
                .kind = ND_KIND_MESSAGE,
                .body_bytes = n,
                .source = 7,
                .sequence = sequence,
                .time_ns = 1000 + sequence,
                .subscription = subscription,
        };
        uint8_t *body = malloc(n + 1);
        size_t n_header;
        void *header = fake_peer_header("t", n, &n_header);

        must(body);
        nd_pattern_fill(body, 0, n);
        if (n_chunk == 0) {
                fake_peer_send_message(peer, &p, header, n_header, body, n);
        } else {
                p.flags = ND_FLAG_BODY_IN_CHUNKS;
                p.stream = (uint32_t)sequence;
                fake_peer_send_message(peer, &p, header, n_header, NULL, 0);
                for (uint32_t at = 0; at < n; at += n_chunk)
                        fake_peer_send(peer,
                                       &(struct nd_prelude){.kind = ND_KIND_CHUNK,
                                                            .stream = p.stream,
                                                            .place = at},
                                       NULL, 0, body + at, n - at < n_chunk ? n - at : n_chunk);
        }
        free(header);
        free(body);
}

void fake_peer_gap(struct fake_peer *peer, uint32_t subscription, uint64_t n)
{
        fake_peer_send(
                peer,
                &(struct nd_prelude){.kind = ND_KIND_GAP, .subscription = subscription, .place = n},
                NULL, 0, NULL, 0);
}
