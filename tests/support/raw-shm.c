/* SPDX-License-Identifier: MIT */

/*
 * Shared memory over the wire
 *
 * It does no more than it is told: it releases nothing by itself, and does not mind what it
 * publishes twice.
 */

#include "tests/support/raw-shm.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/shm/release.h"
#include "tests/support/pattern.h"

struct nd_raw *nd_raw_open_shm(struct nd_harness *h)
{
        struct nd_raw *raw = nd_raw_open_features(h, false, ND_FEATURE_SHM);

        if (raw->shm_max == 0)
                nd_harness_fail(h, "WELCOME does not give shared memory");
        return raw;
}

void nd_raw_send_fds(
        struct nd_raw *raw, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds)
{
        uint8_t control[CMSG_SPACE(253 * sizeof(int))] __attribute__((aligned(8))) = {0};
        struct iovec iov = {(void *)(uintptr_t)bytes, n_bytes};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        struct cmsghdr *head = (struct cmsghdr *)(void *)control;
        ssize_t n;

        if (n_fds > 0) {
                message.msg_control = control;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                head->cmsg_level = SOL_SOCKET;
                head->cmsg_type = SCM_RIGHTS;
                head->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(head), fds, n_fds * sizeof(int));
        }
        n = sendmsg(raw->fd, &message, MSG_NOSIGNAL);
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
                return;
        if (n < 0)
                nd_harness_fail(raw->harness, "sendmsg: %s", strerror(errno));
        nd_raw_send(raw, (const uint8_t *)bytes + n, n_bytes - (size_t)n);
}

struct nd_segment nd_raw_segment(uint64_t bytes)
{
        struct nd_segment segment;
        struct nd_fault fault;
        struct nd_room room;

        nd_room_read("", &room);
        if (nd_segment_create(bytes, &room, &segment, &fault) < 0)
                nd_harness_fail(NULL, "segment: %s: %s", fault.field, fault.text);
        return segment;
}

/* A request that brings @fd; -1: none. Returns its number. */
static uint64_t raw_send_request(struct nd_raw *raw, struct nd_prelude prelude, int fd)
{
        uint8_t packed[ND_PRELUDE_BYTES];

        prelude.flags = ND_FLAG_FD;
        prelude.sequence = ++raw->n_requests;
        nd_prelude_pack(&prelude, packed);
        nd_raw_send_fds(raw, packed, sizeof(packed), &fd, fd >= 0);
        return prelude.sequence;
}

uint64_t nd_raw_send_segment(struct nd_raw *raw, uint32_t number, uint64_t bytes, int fd)
{
        return raw_send_request(
                raw,
                (struct nd_prelude){.kind = ND_KIND_SEGMENT, .segment = number, .place = bytes},
                fd);
}

void nd_raw_announce(struct nd_raw *raw, uint32_t number, const struct nd_segment *segment)
{
        uint64_t request = nd_raw_send_segment(raw, number, segment->bytes, segment->fd);
        const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_SEGMENT);

        if (packet->prelude.sequence != request || packet->prelude.segment != number ||
            packet->prelude.flags != 0)
                nd_harness_fail(raw->harness, "SEGMENT is not the answer to request %llu",
                                (unsigned long long)request);
}

/* The next PUBLISH, of a block, when there is credit for it. */
static struct nd_prelude raw_publish_prelude(struct nd_raw *raw,
                                             uint32_t number,
                                             uint64_t place,
                                             uint64_t n_bytes,
                                             uint16_t flags,
                                             size_t n_header)
{
        nd_raw_await_credit(raw, ND_PRELUDE_BYTES + n_header);
        raw->credit -= ND_PRELUDE_BYTES + n_header;
        return (struct nd_prelude){
                .kind = ND_KIND_PUBLISH,
                .flags = flags | ND_FLAG_BODY_IN_BLOCK,
                .sequence = ++raw->n_published,
                .segment = number,
                .place = place,
                .body_bytes = n_bytes,
        };
}

void nd_raw_publish_in(struct nd_raw *raw,
                       const char *topic,
                       uint32_t number,
                       uint64_t place,
                       uint64_t n_bytes,
                       uint16_t flags)
{
        size_t n_header;
        nd_autofree uint8_t *header = nd_raw_header(topic, n_bytes, &n_header);

        nd_raw_send_packet(raw, raw_publish_prelude(raw, number, place, n_bytes, flags, n_header),
                           header, n_header, NULL, 0, NULL, 0);
}

void nd_raw_publish_block(struct nd_raw *raw,
                          const char *topic,
                          const struct nd_segment *segment,
                          uint32_t number,
                          uint64_t place,
                          uint64_t n_bytes)
{
        nd_pattern_fill(segment->base + place, 0, n_bytes);
        nd_raw_publish_in(raw, topic, number, place, n_bytes, 0);
}

/* ------------------------------------------------------------------------------- through the ring */

struct nd_raw *nd_raw_open_ring(struct nd_harness *h)
{
        struct nd_raw *raw =
                nd_raw_open_features(h, false, ND_FEATURE_SHM | ND_FEATURE_RING | ND_FEATURE_BELL);

        if (!(raw->features & ND_FEATURE_RING))
                nd_harness_fail(h, "WELCOME does not give a ring");
        return raw;
}

uint64_t nd_raw_send_ring(struct nd_raw *raw, uint64_t bytes, int fd)
{
        return raw_send_request(raw, (struct nd_prelude){.kind = ND_KIND_RING, .place = bytes}, fd);
}

void nd_raw_expect_ring(struct nd_raw *raw, uint64_t number)
{
        const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_RING);

        if (packet->prelude.sequence != number)
                nd_harness_fail(raw->harness, "RING is not the answer to request %llu",
                                (unsigned long long)number);
        raw->bell = nd_raw_take_fd(raw);
        if ((raw->bell >= 0) != (packet->prelude.flags == ND_FLAG_FD))
                nd_harness_fail(raw->harness, "RING has flags %#x, and %s descriptor comes",
                                packet->prelude.flags, raw->bell < 0 ? "no" : "a");
}

uint64_t nd_raw_ask_ring(struct nd_raw *raw, struct nd_ring *ret)
{
        struct nd_fault fault;
        uint64_t number;
        int fd;

        if (nd_ring_create(ret, &fd, &fault) < 0)
                nd_harness_fail(NULL, "ring: %s: %s", fault.field, fault.text);
        number = nd_raw_send_ring(raw, ND_RING_FILE_BYTES, fd);
        close(fd);
        return number;
}

struct nd_ring nd_raw_ring(struct nd_raw *raw)
{
        struct nd_ring ring;

        nd_raw_expect_ring(raw, nd_raw_ask_ring(raw, &ring));
        return ring;
}

void nd_raw_ring_put(struct nd_raw *raw,
                     struct nd_ring *ring,
                     struct nd_prelude prelude,
                     const void *header,
                     size_t n_header)
{
        uint8_t bytes[4096];

        if (n_header > sizeof(bytes) - ND_PRELUDE_BYTES)
                nd_harness_fail(raw->harness, "a header of %zu bytes", n_header);
        prelude.header_bytes = (uint32_t)n_header;
        nd_prelude_pack(&prelude, bytes);
        if (n_header > 0)
                memcpy(bytes + ND_PRELUDE_BYTES, header, n_header);
        if (!nd_ring_put(ring, bytes, ND_PRELUDE_BYTES + n_header))
                nd_harness_fail(raw->harness, "the ring is full");
}

void nd_raw_ring_publish_in(struct nd_raw *raw,
                            struct nd_ring *ring,
                            const char *topic,
                            uint32_t number,
                            uint64_t place,
                            uint64_t n_bytes,
                            uint16_t flags)
{
        size_t n_header;
        nd_autofree uint8_t *header = nd_raw_header(topic, n_bytes, &n_header);

        nd_raw_ring_put(raw, ring,
                        raw_publish_prelude(raw, number, place, n_bytes, flags, n_header), header,
                        n_header);
}

void nd_raw_send_wake(struct nd_raw *raw)
{
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_WAKE});
}

void nd_raw_ring_wake(struct nd_raw *raw, struct nd_ring *ring)
{
        if (nd_ring_must_wake(ring))
                nd_raw_send_wake(raw);
}

void nd_raw_ring_bell(struct nd_raw *raw)
{
        const uint64_t once = 1;

        if (write(raw->bell, &once, sizeof(once)) != (ssize_t)sizeof(once))
                nd_harness_fail(raw->harness, "the bell cannot be rung");
}

void nd_raw_ring_call(struct nd_raw *raw, struct nd_ring *ring)
{
        if (nd_ring_must_wake(ring))
                nd_raw_ring_bell(raw);
}

/* ---------------------------------------------------------------------------------- receiving */

static void raw_map(struct nd_raw *raw, const struct nd_prelude *prelude)
{
        int fd = nd_raw_take_fd(raw);
        struct nd_fault fault;

        if (prelude->segment == 0 || prelude->segment >= ND_RAW_HANDED_MAX ||
            raw->handed[prelude->segment].base)
                nd_harness_fail(raw->harness, "segment %u is handed over twice, or out of turn",
                                prelude->segment);
        if (fd < 0)
                nd_harness_fail(raw->harness, "SEGMENT without a descriptor");
        if (nd_segment_check(fd, prelude->place, &fault) < 0 ||
            nd_segment_map_read(fd, prelude->place, &raw->handed[prelude->segment], &fault) < 0)
                nd_harness_fail(raw->harness, "segment: %s: %s", fault.field, fault.text);
}

const uint8_t *nd_raw_block_bytes(struct nd_raw *raw, const struct nd_prelude *message)
{
        const struct nd_segment *segment;

        if (message->segment >= ND_RAW_HANDED_MAX)
                nd_harness_fail(raw->harness, "segment %u was not handed over", message->segment);
        segment = &raw->handed[message->segment];
        if (!segment->base || message->place > segment->bytes ||
            message->body_bytes > segment->bytes - message->place)
                nd_harness_fail(raw->harness, "a block is in no segment that was handed over");
        return segment->base + message->place;
}

struct nd_prelude nd_raw_receive_block(struct nd_raw *raw)
{
        struct nd_prelude message = nd_raw_receive_either(raw);

        if (!(message.flags & ND_FLAG_BODY_IN_BLOCK))
                nd_harness_fail(raw->harness, "a body came, expected was where it lies");
        return message;
}

struct nd_prelude nd_raw_receive_either(struct nd_raw *raw)
{
        const struct nd_raw_packet *packet = nd_raw_next_other(raw);
        struct nd_prelude message;
        const uint8_t *body;

        while (packet && raw->ignores_gone && packet->prelude.kind == ND_KIND_SEGMENT_GONE)
                packet = nd_raw_next_other(raw);
        if (packet && packet->prelude.kind == ND_KIND_SEGMENT) {
                raw_map(raw, &packet->prelude);
                packet = nd_raw_next_other(raw);
        }
        if (!packet || packet->prelude.kind != ND_KIND_MESSAGE ||
            packet->prelude.flags & ND_FLAG_BODY_IN_CHUNKS)
                nd_harness_fail(raw->harness, "%s came, expected was a MESSAGE in one packet",
                                packet ? nd_kind_name(packet->prelude.kind) : "the end");
        message = packet->prelude;
        body = message.flags & ND_FLAG_BODY_IN_BLOCK ? nd_raw_block_bytes(raw, &message)
                                                     : packet->body;
        if (nd_pattern_compare(body, 0, message.body_bytes) != message.body_bytes)
                nd_harness_fail(raw->harness, "the body is not P");
        return message;
}

/* ---------------------------------------------------------------------------------- releasing */

void nd_raw_release(struct nd_raw *raw, uint32_t segment, uint64_t place)
{
        uint8_t body[16];
        struct nd_release_writer writer = {.data = body};
        const struct nd_prelude prelude = {.kind = ND_KIND_RELEASE, .body_bytes = sizeof(body)};

        (void)nd_release_add(&writer, segment, place);
        nd_raw_send_packet(raw, prelude, NULL, 0, NULL, 0, body, sizeof(body));
}

void nd_raw_expect_released(struct nd_raw *raw, size_t n, uint64_t *ret_places)
{
        uint64_t places = 0;

        while (n > 0) {
                const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_RELEASE);
                struct nd_release_reader reader = {.data = packet->body,
                                                   .n = packet->prelude.body_bytes};
                struct nd_fault fault;
                uint32_t segment;
                uint64_t place;
                int r;

                while ((r = nd_release_next(&reader, &segment, &place, &fault)) > 0) {
                        if (n-- == 0)
                                nd_harness_fail(raw->harness, "more is released than expected");
                        places += place;
                }
                if (r < 0)
                        nd_harness_fail(raw->harness, "%s: %s", fault.field, fault.text);
        }
        if (ret_places)
                *ret_places = places;
}
