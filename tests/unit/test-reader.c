/* SPDX-License-Identifier: MIT */

/*
 * Packet reader
 *
 * Each kind as it should be, at every length; and then each rule broken, one at a time, with the
 * number of bytes after which the reader must have noticed.
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/reader.h"

#define HEADER_MAX 1000u
#define META_MAX   500u

static const struct nd_reader_limits from_client = {ND_FROM_CLIENT, HEADER_MAX, META_MAX, 0};
static const struct nd_reader_limits from_daemon = {ND_FROM_DAEMON, HEADER_MAX, META_MAX, 0};
static const struct nd_reader_limits shm_client = {ND_FROM_CLIENT, HEADER_MAX, META_MAX,
                                                   ND_FEATURE_SHM};
static const struct nd_reader_limits shm_daemon = {ND_FROM_DAEMON, HEADER_MAX, META_MAX,
                                                   ND_FEATURE_SHM};

static const struct nd_reader_limits ring_client = {ND_FROM_CLIENT, HEADER_MAX, META_MAX,
                                                    ND_FEATURE_SHM | ND_FEATURE_RING};
static const struct nd_reader_limits ring_daemon = {ND_FROM_DAEMON, HEADER_MAX, META_MAX,
                                                    ND_FEATURE_SHM | ND_FEATURE_RING};

static uint8_t buffer[ND_PRELUDE_BYTES + ND_CONTROL_BODY_BYTES_MAX + 4096];

static int next(const struct nd_reader_limits *limits,
                const struct nd_prelude *prelude,
                size_t n,
                struct nd_packet *ret,
                size_t *ret_wanted,
                struct nd_fault *fault)
{
        nd_prelude_pack(prelude, buffer);
        return nd_reader_next(limits, buffer, n, ret, ret_wanted, fault);
}

struct kind_case {
        const struct nd_reader_limits *limits;
        struct nd_prelude p;
        size_t n_bytes; /* that the reader takes from the buffer */
        bool has_body;
};

static const struct kind_case good[] = {
        {&from_client, {.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = 30}, 94, true},
        {&from_client, {.kind = ND_KIND_CONNECT, .header_bytes = 4096}, 4160, true},
        {&from_daemon, {.kind = ND_KIND_WELCOME, .sequence = 1, .header_bytes = 90}, 154, true},
        {&from_daemon, {.kind = ND_KIND_ERROR, .sequence = 9, .header_bytes = 50}, 114, true},
        {&from_client, {.kind = ND_KIND_PING, .sequence = 2}, 64, true},
        {&from_daemon, {.kind = ND_KIND_PONG, .sequence = 2, .place = 7}, 64, true},
        {&from_client, {.kind = ND_KIND_GOODBYE, .header_bytes = 7}, 71, true},
        {&from_daemon, {.kind = ND_KIND_GOODBYE, .header_bytes = 7}, 71, true},
        {&from_client, {.kind = ND_KIND_PUBLISH, .header_bytes = 40, .body_bytes = 12}, 104, false},
        {&from_client, {.kind = ND_KIND_PUBLISH, .header_bytes = 40}, 104, false},
        {&from_client,
         {.kind = ND_KIND_PUBLISH,
          .flags = ND_FLAG_RETAINED,
          .header_bytes = HEADER_MAX,
          .meta_bytes = META_MAX,
          .body_bytes = ND_PACKET_BODY_BYTES_MAX},
         64 + HEADER_MAX + META_MAX,
         false},
        {&from_client,
         {.kind = ND_KIND_PUBLISH,
          .flags = ND_FLAG_BODY_IN_CHUNKS,
          .stream = 1,
          .header_bytes = 40,
          .body_bytes = ND_BODY_BYTES_MAX},
         104,
         false},
        {&from_daemon,
         {.kind = ND_KIND_MESSAGE,
          .flags = ND_FLAG_RETAINED | ND_FLAG_REDELIVERED,
          .header_bytes = 40,
          .meta_bytes = 10,
          .body_bytes = 12},
         114,
         false},
        {&from_daemon,
         {.kind = ND_KIND_MESSAGE,
          .flags = ND_FLAG_BODY_IN_CHUNKS,
          .stream = UINT32_MAX,
          .header_bytes = 40,
          .body_bytes = 1},
         104,
         false},
        {&from_client, {.kind = ND_KIND_CHUNK, .stream = 1, .body_bytes = 1}, 64, false},
        {&from_daemon,
         {.kind = ND_KIND_CHUNK, .stream = 1, .place = 5, .body_bytes = ND_PACKET_BODY_BYTES_MAX},
         64,
         false},
        {&from_client, {.kind = ND_KIND_RESET, .stream = 1}, 64, true},
        {&from_daemon, {.kind = ND_KIND_RESET, .stream = 1}, 64, true},
        {&from_client,
         {.kind = ND_KIND_SUBSCRIBE, .subscription = 1, .header_bytes = 60},
         124,
         true},
        {&from_daemon,
         {.kind = ND_KIND_SUBSCRIBED, .subscription = 1, .header_bytes = 20},
         84,
         true},
        {&from_client, {.kind = ND_KIND_UNSUBSCRIBE, .subscription = 1}, 64, true},
        {&from_daemon, {.kind = ND_KIND_UNSUBSCRIBED, .header_bytes = 7, .place = 3}, 71, true},
        {&from_client, {.kind = ND_KIND_CREDIT, .subscription = 1, .body_bytes = 16}, 80, true},
        {&from_client, {.kind = ND_KIND_CREDIT, .subscription = 1, .body_bytes = 8}, 72, true},
        {&from_daemon, {.kind = ND_KIND_CREDIT, .body_bytes = 65536}, 65600, true},
        {&from_daemon, {.kind = ND_KIND_GAP, .subscription = 1, .place = 12}, 64, true},
        {&from_client, {.kind = ND_KIND_TOPIC, .header_bytes = 12}, 76, true},
        {&from_daemon, {.kind = ND_KIND_TOPIC, .header_bytes = 50}, 114, true},
        {&from_client, {.kind = ND_KIND_STATS, .sequence = 3}, 64, true},
        {&from_daemon, {.kind = ND_KIND_STATS_REPLY, .sequence = 3}, 64, true},
        {&from_daemon, {.kind = ND_KIND_STATS_REPLY, .body_bytes = 65536}, 65600, true},
        {&shm_client,
         {.kind = ND_KIND_PUBLISH,
          .flags = ND_FLAG_BODY_IN_BLOCK | ND_FLAG_RETAINED,
          .header_bytes = 40,
          .body_bytes = ND_BODY_BYTES_MAX,
          .place = 64,
          .segment = 1},
         104,
         false},
        {&shm_daemon,
         {.kind = ND_KIND_MESSAGE,
          .flags = ND_FLAG_BODY_IN_BLOCK,
          .header_bytes = 40,
          .body_bytes = 1,
          .segment = UINT32_MAX},
         104,
         false},
        {&shm_client, {.kind = ND_KIND_PUBLISH, .header_bytes = 40}, 104, false},
        {&shm_client,
         {.kind = ND_KIND_SEGMENT, .flags = ND_FLAG_FD, .segment = 1, .place = 4096},
         64,
         true},
        {&shm_daemon, {.kind = ND_KIND_SEGMENT, .segment = 1}, 64, true},
        {&shm_client, {.kind = ND_KIND_SEGMENT_GONE, .segment = 1, .sequence = 1}, 64, true},
        {&shm_daemon, {.kind = ND_KIND_SEGMENT_GONE, .segment = 1}, 64, true},
        {&shm_client, {.kind = ND_KIND_RELEASE, .body_bytes = 16}, 80, true},
        {&shm_daemon, {.kind = ND_KIND_RELEASE, .body_bytes = 65536}, 65600, true},
        {&ring_client, {.kind = ND_KIND_RING, .flags = ND_FLAG_FD, .sequence = 6}, 64, true},
        {&ring_daemon, {.kind = ND_KIND_RING, .sequence = 6}, 64, true},
        {&ring_client, {.kind = ND_KIND_WAKE}, 64, true},
};

Test(reader, takes_every_kind_and_says_where_its_parts_are)
{
        for (size_t i = 0; i < nd_array_size(good); ++i) {
                const struct kind_case *c = &good[i];
                struct nd_packet packet;
                struct nd_fault fault = {0};
                size_t wanted;
                int r = next(c->limits, &c->p, sizeof(buffer), &packet, &wanted, &fault);

                cr_assert_eq(r, 0, "%zu (%s): %d %s %s", i, nd_kind_name(c->p.kind), r, fault.field,
                             fault.text);
                cr_expect_eq(packet.n_bytes, c->n_bytes, "%zu: %zu", i, packet.n_bytes);
                cr_expect_eq(packet.header, buffer + 64, "%zu", i);
                cr_expect_eq(packet.meta, buffer + 64 + c->p.header_bytes, "%zu", i);
                cr_expect_eq(packet.body, c->has_body ? packet.meta + c->p.meta_bytes : NULL, "%zu",
                             i);
                cr_expect_eq(packet.prelude.body_bytes, c->p.body_bytes, "%zu", i);
                cr_expect_eq(packet.prelude.place, c->p.place, "%zu", i);
        }
}

Test(reader, wants_the_rest_at_every_shorter_length)
{
        for (size_t i = 0; i < nd_array_size(good); ++i) {
                const struct kind_case *c = &good[i];

                for (size_t n = 0; n < c->n_bytes; n += n < 200 ? 1 : 97) {
                        struct nd_packet packet = {.n_bytes = 77};
                        size_t wanted = 0;
                        int r = next(c->limits, &c->p, n, &packet, &wanted, NULL);

                        cr_assert_eq(r, 1, "%zu, n=%zu: %d", i, n, r);
                        cr_assert_eq(wanted, n < 64 ? 64 : c->n_bytes, "%zu, n=%zu: %zu", i, n,
                                     wanted);
                        cr_assert_eq(packet.n_bytes, 77, "result was written");
                }
        }
}

static const struct {
        const char *why;
        const struct nd_reader_limits *limits;
        struct nd_prelude p;
        size_t n_seen; /* bytes that show it */
        int want;
        const char *field;
} bad[] = {

#define P NDBUS_EPROTOCOL
#define B NDBUS_ETOO_BIG
        {"kind 0", &from_client, {.kind = 0}, 1, P, "kind"},
        {"unknown kind", &from_client, {.kind = 100}, 1, P, "kind"},
        {"kind of files", &from_client, {.kind = ND_KIND_FILE_INDEX}, 1, P, "kind"},
        {"kind 255", &from_daemon, {.kind = 255}, 1, P, "kind"},
        {"SEGMENT without feature", &from_client, {.kind = ND_KIND_SEGMENT}, 1, P, "kind"},
        {"RELEASE without feature", &from_daemon, {.kind = ND_KIND_RELEASE}, 1, P, "kind"},
        {"MESSAGE from a client", &from_client, {.kind = ND_KIND_MESSAGE}, 1, P, "kind"},
        {"PUBLISH from a daemon", &from_daemon, {.kind = ND_KIND_PUBLISH}, 1, P, "kind"},
        {"PONG from a client", &from_client, {.kind = ND_KIND_PONG}, 1, P, "kind"},
        {"reserved", &from_client, {.kind = ND_KIND_PING, .reserved = 1}, 2, P, "reserved"},
        {"flag nobody knows", &from_client, {.kind = ND_KIND_PUBLISH, .flags = 64}, 4, P, "flags"},
        {"highest flag", &from_client, {.kind = ND_KIND_PUBLISH, .flags = 0x8000}, 4, P, "flags"},
        {"block without feature",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_BODY_IN_BLOCK},
         4,
         P,
         "flags"},
        {"fd without feature",
         &from_client,
         {.kind = ND_KIND_PING, .flags = ND_FLAG_FD},
         4,
         P,
         "flags"},
        {"fd with a message",
         &shm_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_FD},
         4,
         P,
         "flags"},
        {"link with another feature",
         &shm_daemon,
         {.kind = ND_KIND_MESSAGE, .flags = ND_FLAG_LINK},
         4,
         P,
         "flags"},
        {"block of no segment",
         &shm_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_BODY_IN_BLOCK, .body_bytes = 1},
         64,
         P,
         "segment"},
        {"nothing in a block",
         &shm_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_BODY_IN_BLOCK, .segment = 1},
         64,
         P,
         "body_bytes"},
        {"block at no multiple of 64",
         &shm_daemon,
         {.kind = ND_KIND_MESSAGE,
          .flags = ND_FLAG_BODY_IN_BLOCK,
          .segment = 1,
          .body_bytes = 1,
          .place = 63},
         64,
         P,
         "place"},
        {"in a block and in chunks",
         &shm_client,
         {.kind = ND_KIND_PUBLISH,
          .flags = ND_FLAG_BODY_IN_BLOCK | ND_FLAG_BODY_IN_CHUNKS,
          .segment = 1,
          .stream = 1,
          .body_bytes = 1},
         64,
         P,
         "flags"},
        {"body in a block over 2^62",
         &shm_client,
         {.kind = ND_KIND_PUBLISH,
          .flags = ND_FLAG_BODY_IN_BLOCK,
          .segment = 1,
          .body_bytes = ND_BODY_BYTES_MAX + 1},
         64,
         B,
         "body_bytes"},
        {"segment 0", &shm_client, {.kind = ND_KIND_SEGMENT}, 64, P, "segment"},
        {"segment 0 gone", &shm_daemon, {.kind = ND_KIND_SEGMENT_GONE}, 64, P, "segment"},
        {"segment with bytes",
         &shm_client,
         {.kind = ND_KIND_SEGMENT, .segment = 1, .body_bytes = 8},
         64,
         P,
         "body_bytes"},
        {"RING without its feature", &shm_client, {.kind = ND_KIND_RING}, 1, P, "kind"},
        {"WAKE without its feature", &shm_client, {.kind = ND_KIND_WAKE}, 1, P, "kind"},
        {"WAKE from the daemon", &ring_daemon, {.kind = ND_KIND_WAKE}, 1, P, "kind"},
        {"FD in WAKE", &ring_client, {.kind = ND_KIND_WAKE, .flags = ND_FLAG_FD}, 4, P, "flags"},
        {"WAKE with a body",
         &ring_client,
         {.kind = ND_KIND_WAKE, .body_bytes = 1},
         64,
         P,
         "body_bytes"},
        {"RELEASE of nothing", &shm_client, {.kind = ND_KIND_RELEASE}, 64, P, "body_bytes"},
        {"RELEASE of half a place",
         &shm_client,
         {.kind = ND_KIND_RELEASE, .body_bytes = 20},
         64,
         P,
         "body_bytes"},
        {"big RELEASE",
         &shm_daemon,
         {.kind = ND_KIND_RELEASE, .body_bytes = ND_CONTROL_BODY_BYTES_MAX + 8},
         64,
         B,
         "body_bytes"},
        {"link without feature",
         &from_daemon,
         {.kind = ND_KIND_MESSAGE, .flags = ND_FLAG_LINK},
         4,
         P,
         "flags"},
        {"redelivered by a client",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_REDELIVERED},
         4,
         P,
         "flags"},
        {"retained ping",
         &from_client,
         {.kind = ND_KIND_PING, .flags = ND_FLAG_RETAINED},
         4,
         P,
         "flags"},
        {"chunks without stream",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_BODY_IN_CHUNKS, .body_bytes = 9},
         64,
         P,
         "stream"},
        {"stream without chunks",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .stream = 1, .body_bytes = 9},
         64,
         P,
         "stream"},
        {"CHUNK without stream",
         &from_client,
         {.kind = ND_KIND_CHUNK, .body_bytes = 9},
         64,
         P,
         "stream"},
        {"RESET without stream", &from_client, {.kind = ND_KIND_RESET}, 64, P, "stream"},
        {"PING with stream", &from_client, {.kind = ND_KIND_PING, .stream = 1}, 64, P, "stream"},
        {"nothing in chunks",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .flags = ND_FLAG_BODY_IN_CHUNKS, .stream = 1},
         64,
         P,
         "body_bytes"},
        {"empty CHUNK", &from_client, {.kind = ND_KIND_CHUNK, .stream = 1}, 64, P, "body_bytes"},
        {"big CHUNK",
         &from_client,
         {.kind = ND_KIND_CHUNK, .stream = 1, .body_bytes = ND_PACKET_BODY_BYTES_MAX + 1},
         64,
         B,
         "body_bytes"},
        {"big inline body",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .body_bytes = ND_PACKET_BODY_BYTES_MAX + 1},
         64,
         B,
         "body_bytes"},
        {"body of 2^64 - 1",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .body_bytes = UINT64_MAX},
         64,
         B,
         "body_bytes"},
        {"body in chunks over 2^62",
         &from_client,
         {.kind = ND_KIND_PUBLISH,
          .flags = ND_FLAG_BODY_IN_CHUNKS,
          .stream = 1,
          .body_bytes = ND_BODY_BYTES_MAX + 1},
         64,
         B,
         "body_bytes"},
        {"header over the limit",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .header_bytes = HEADER_MAX + 1},
         64,
         B,
         "header_bytes"},
        {"header of 2^32 - 1",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .header_bytes = UINT32_MAX, .meta_bytes = UINT32_MAX},
         64,
         B,
         "header_bytes"},
        {"meta over the limit",
         &from_client,
         {.kind = ND_KIND_PUBLISH, .meta_bytes = META_MAX + 1},
         64,
         B,
         "meta_bytes"},
        {"CONNECT over 4 KiB",
         &from_client,
         {.kind = ND_KIND_CONNECT, .header_bytes = 4097},
         64,
         B,
         "header_bytes"},
        {"PING with header",
         &from_client,
         {.kind = ND_KIND_PING, .header_bytes = 1},
         64,
         P,
         "header_bytes"},
        {"CHUNK with header",
         &from_client,
         {.kind = ND_KIND_CHUNK, .stream = 1, .header_bytes = 1, .body_bytes = 1},
         64,
         P,
         "header_bytes"},
        {"SUBSCRIBE with meta",
         &from_client,
         {.kind = ND_KIND_SUBSCRIBE, .header_bytes = 60, .meta_bytes = 1},
         64,
         P,
         "meta_bytes"},
        {"SUBSCRIBE with body",
         &from_client,
         {.kind = ND_KIND_SUBSCRIBE, .header_bytes = 60, .body_bytes = 1},
         64,
         P,
         "body_bytes"},
        {"GAP with body",
         &from_daemon,
         {.kind = ND_KIND_GAP, .body_bytes = 8},
         64,
         P,
         "body_bytes"},
        {"empty CREDIT", &from_client, {.kind = ND_KIND_CREDIT}, 64, P, "body_bytes"},
        {"CREDIT of 15 bytes",
         &from_client,
         {.kind = ND_KIND_CREDIT, .body_bytes = 15},
         64,
         P,
         "body_bytes"},
        {"CREDIT over 64 KiB",
         &from_client,
         {.kind = ND_KIND_CREDIT, .body_bytes = 65544},
         64,
         B,
         "body_bytes"},
        {"STATS_REPLY over 64 KiB",
         &from_daemon,
         {.kind = ND_KIND_STATS_REPLY, .body_bytes = 65537},
         64,
         B,
         "body_bytes"},
#undef P
#undef B
};

Test(reader, refuses_at_the_byte_that_shows_it_and_at_no_other)
{
        for (size_t i = 0; i < nd_array_size(bad); ++i) {
                for (size_t n = 0; n <= 70; ++n) {
                        struct nd_packet packet = {.n_bytes = 77};
                        struct nd_fault fault = {0};
                        size_t wanted = 0;
                        int r = next(bad[i].limits, &bad[i].p, n, &packet, &wanted, &fault);

                        cr_assert_eq(r, n < bad[i].n_seen ? 1 : bad[i].want, "%s: n=%zu: %d",
                                     bad[i].why, n, r);
                        cr_assert_eq(packet.n_bytes, 77, "%s: result was written", bad[i].why);
                        if (r < 0) {
                                cr_expect_eq(fault.code, r, "%s", bad[i].why);
                                cr_expect_str_eq(fault.field, bad[i].field, "%s", bad[i].why);
                                cr_expect_neq(fault.text[0], '\0', "%s", bad[i].why);
                        }
                }
        }
}

Test(reader, knows_for_each_kind_who_sends_it)
{
        static const bool may_come[2][256] = {
#define XX(_name, _num, _client, _daemon) [_num] = (_client),
                [ND_FROM_CLIENT] = {ND_KIND_MAP(XX)},
#undef XX
#define XX(_name, _num, _client, _daemon) [_num] = (_daemon),
                [ND_FROM_DAEMON] = {ND_KIND_MAP(XX)},
#undef XX
        };

        for (unsigned kind = 0; kind <= UINT8_MAX; ++kind) {
                uint8_t byte = (uint8_t)kind;
                struct nd_packet packet;
                size_t wanted;

                cr_expect_eq(nd_reader_next(&ring_client, &byte, 1, &packet, &wanted, NULL),
                             may_come[ND_FROM_CLIENT][kind] ? 1 : NDBUS_EPROTOCOL, "%u", kind);
                cr_expect_eq(nd_reader_next(&ring_daemon, &byte, 1, &packet, &wanted, NULL),
                             may_come[ND_FROM_DAEMON][kind] ? 1 : NDBUS_EPROTOCOL, "%u", kind);
        }
}

Test(reader, says_both_numbers_of_a_size_over_its_limit)
{
        struct nd_packet packet;
        struct nd_fault fault = {0};
        size_t wanted;

        next(&from_client, &(struct nd_prelude){.kind = ND_KIND_PUBLISH, .header_bytes = 1001}, 64,
             &packet, &wanted, &fault);
        cr_expect(fault.has_numbers);
        cr_expect_eq(fault.value, 1001);
        cr_expect_eq(fault.limit, 1000);
}
