/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: packet reader
 *
 * A byte stream given whole and the same stream given in pieces must yield the same packets and
 * the same end. The first byte chooses the direction and the features, and seeds the cuts. Whatever is accepted is
 * within the limits, and lies inside the bytes that were given.
 */

#include <string.h>
#include "protocol/base.h"
#include "protocol/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

#define PACKETS_MAX 64u

struct run {
        size_t n_packets;
        size_t at; /* where reading ended */
        int end;   /* 1: wants more; negative: error */
        struct nd_packet packets[PACKETS_MAX];
};

static void check_packet(const struct nd_reader_limits *limits,
                         const struct nd_packet *packet,
                         const uint8_t *at,
                         size_t n_at)
{
        const struct nd_prelude *p = &packet->prelude;
        uint8_t out[ND_PRELUDE_BYTES];

        nd_assert(packet->n_bytes >= ND_PRELUDE_BYTES && packet->n_bytes <= n_at);
        nd_assert(p->header_bytes <= limits->header_bytes_max ||
                  p->header_bytes <= ND_CONTROL_HEADER_BYTES_MAX);
        nd_assert(p->meta_bytes <= limits->meta_bytes_max);
        nd_assert(nd_prelude_inline_bytes(p) <= ND_PACKET_BODY_BYTES_MAX);
        nd_assert(packet->header == at + ND_PRELUDE_BYTES);
        nd_assert(packet->meta == packet->header + p->header_bytes);
        if (packet->body)
                nd_assert(packet->body + p->body_bytes == at + packet->n_bytes);

        nd_prelude_pack(p, out);
        nd_assert(memcmp(out, at, sizeof(out)) == 0);
}

/* Bodies of messages and chunks go past the reader: here they are passed over. */
static size_t packet_bytes(const struct nd_packet *packet)
{
        return packet->n_bytes +
               (packet->body ? 0 : (size_t)nd_prelude_inline_bytes(&packet->prelude));
}

/* Reads with no more than cuts allow: a seed of 0 gives everything at once. */
static void run_reader(const struct nd_reader_limits *limits,
                       const uint8_t *data,
                       size_t n_data,
                       uint32_t seed,
                       struct run *ret)
{
        size_t n_there = seed ? 0 : n_data;

        *ret = (struct run){0};
        while (ret->n_packets < PACKETS_MAX) {
                struct nd_packet *packet = &ret->packets[ret->n_packets];
                size_t n_at = n_there - ret->at, wanted = 0;

                ret->end = nd_reader_next(limits, data + ret->at, n_at, packet, &wanted, NULL);
                if (ret->end < 0)
                        return;
                if (ret->end == 0) {
                        size_t n = packet_bytes(packet);

                        check_packet(limits, packet, data + ret->at, n_at);
                        if (n > n_data - ret->at)
                                return;
                        ret->at += n;
                        if (n_there < ret->at)
                                n_there = ret->at;
                        ++ret->n_packets;
                        continue;
                }

                nd_assert(wanted > n_at);
                if (n_there == n_data)
                        return;
                seed = seed * 1664525u + 1013904223u;
                n_there += 1 + (seed >> 24) % 90;
                if (n_there > n_data)
                        n_there = n_data;
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        static struct run whole, cut;
        struct nd_reader_limits limits = {ND_FROM_CLIENT, 512, 128, 0};

        if (n_data == 0)
                return 0;
        if (data[0] & 1)
                limits.direction = ND_FROM_DAEMON;
        if (data[0] & 128)
                limits.features = ND_FEATURE_SHM | ND_FEATURE_RING;

        run_reader(&limits, data + 1, n_data - 1, 0, &whole);
        run_reader(&limits, data + 1, n_data - 1, 1u + (data[0] >> 1), &cut);

        nd_assert(whole.end == cut.end);
        nd_assert(whole.at == cut.at);
        nd_assert(whole.n_packets == cut.n_packets);
        for (size_t i = 0; i < whole.n_packets; ++i) {
                nd_assert(whole.packets[i].header == cut.packets[i].header);
                nd_assert(whole.packets[i].body == cut.packets[i].body);
                nd_assert(whole.packets[i].n_bytes == cut.packets[i].n_bytes);
        }
        return 0;
}
