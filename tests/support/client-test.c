/* SPDX-License-Identifier: MIT */

/*
 * What tests of the client library do again and again
 */

#include "tests/support/client-test.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/reader.h"
#include "protocol/shm/release.h"
#include "tests/support/pattern.h"
#include "tests/support/proc.h"

size_t client_test_n_fds(void)
{
        size_t n = 0;

        must(nd_proc_fds(getpid(), &n));
        return n;
}

size_t client_test_n_mappings(void)
{
        size_t n = 0;

        must(nd_proc_mappings(getpid(), "/memfd:", &n));
        return n;
}

void client_test_forbid_fds(struct rlimit *ret_before)
{
        struct rlimit low;
        int next = dup(0);

        must(next >= 0 && getrlimit(RLIMIT_NOFILE, ret_before) == 0);
        low = *ret_before;
        low.rlim_cur = (rlim_t)next;
        close(next);
        must(setrlimit(RLIMIT_NOFILE, &low) == 0);
}

void client_test_allow_fds(const struct rlimit *before)
{
        must(setrlimit(RLIMIT_NOFILE, before) == 0);
}

void client_test_accept_shm_of(struct fake_peer *peer, uint64_t bytes_max)
{
        fake_peer_welcome(peer)->features = ND_FEATURE_SHM;
        fake_peer_welcome(peer)->shm_bytes_max = bytes_max;
        fake_peer_accept(peer);
}

void client_test_accept_shm(struct fake_peer *peer)
{
        client_test_accept_shm_of(peer, 64 * ND_MIB);
}

void client_test_accept_ring(struct fake_peer *peer)
{
        if (!fake_peer_welcome(peer)->features)
                fake_peer_welcome(peer)->features =
                        ND_FEATURE_SHM | ND_FEATURE_RING | ND_FEATURE_BELL;
        fake_peer_welcome(peer)->shm_bytes_max = 64 * ND_MIB;
        fake_peer_accept(peer);
}

uint64_t client_test_map_ring(struct fake_peer *peer, struct nd_ring *ret)
{
        const struct nd_prelude p = fake_peer_expect(peer, ND_KIND_RING)->prelude;
        int fd = fake_peer_take_fd(peer);

        must(p.flags == ND_FLAG_FD && fd >= 0);
        must(nd_ring_map(fd, p.place, ret, NULL) == 0);
        close(fd);
        return p.sequence;
}

void client_test_answer_ring(struct fake_peer *peer, uint64_t sequence)
{
        const struct nd_prelude p = {.kind = ND_KIND_RING, .sequence = sequence};

        fake_peer_send(peer, &p, NULL, 0, NULL, 0);
}

struct nd_prelude client_test_take_from_ring(struct nd_ring *ring, uint64_t number)
{
        const struct nd_reader_limits limits = {
                .direction = ND_FROM_CLIENT,
                .header_bytes_max = ND_HEADER_BYTES_MAX,
                .meta_bytes_max = ND_META_BYTES_MAX,
                .features = ND_FEATURE_SHM | ND_FEATURE_RING,
        };
        uint8_t data[ND_RING_BYTES];
        struct nd_packet packet;
        size_t n, n_wanted;

        must(nd_ring_look(ring, data, &n, NULL) == 0 && n > 0);
        must(nd_reader_next(&limits, data, n, &packet, &n_wanted, NULL) == 0);
        must(packet.prelude.kind == ND_KIND_PUBLISH && packet.prelude.sequence == number);
        must(packet.prelude.flags == ND_FLAG_BODY_IN_BLOCK);
        nd_ring_take(ring, packet.n_bytes);
        return packet.prelude;
}

void client_test_release(struct fake_peer *peer, uint32_t segment, uint64_t place)
{
        uint8_t body[ND_CONTROL_BODY_BYTES_MAX];
        struct nd_release_writer writer = {.data = body};

        must(nd_release_add(&writer, segment, place));
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_RELEASE}, NULL, 0, body,
                       writer.n);
}

uint64_t client_test_expect_ping(struct fake_peer *peer)
{
        return fake_peer_expect(peer, ND_KIND_PING)->prelude.sequence;
}

void client_test_answer_ping(struct fake_peer *peer, uint64_t sequence, uint64_t n_routed)
{
        const struct nd_prelude p = {.kind = ND_KIND_PONG, .sequence = sequence, .place = n_routed};

        fake_peer_send(peer, &p, NULL, 0, NULL, 0);
}

void client_test_pong(struct fake_peer *peer, uint64_t n_routed)
{
        client_test_answer_ping(peer, client_test_expect_ping(peer), n_routed);
}

uint64_t client_test_expect_block(struct fake_peer *peer, uint32_t segment, uint64_t bytes)
{
        const struct nd_prelude *p = &fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude;

        must(p->flags == ND_FLAG_BODY_IN_BLOCK && p->segment == segment);
        must(p->body_bytes == bytes && p->place % 64 == 0);
        return p->place;
}

struct ndbus_loan *client_test_loan(struct ndbus *bus, int64_t n, uint8_t **ret_data)
{
        struct ndbus_array array = {.dtype = "uint8", .ndim = 1, .shape = &n};
        struct ndbus_loan *loan = NULL;

        must(ndbus_loan(bus, &array, 1, &loan) == 0);
        must((uintptr_t)array.data % 64 == 0);
        *ret_data = (uint8_t *)(uintptr_t)array.data;
        return loan;
}

struct ndbus_shm_stats client_test_shm_stats(const struct ndbus *bus)
{
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};

        must(ndbus_shm_stats(bus, &stats) == 0);
        return stats;
}

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
