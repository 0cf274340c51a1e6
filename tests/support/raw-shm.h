/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Shared memory over the wire: a raw client that makes, announces, maps and releases by hand
 *
 * Blocks are filled with the pattern (pattern.h) from their first byte on, like other bodies.
 */

#include "protocol/shm/ring.h"
#include "protocol/shm/segment.h"
#include "tests/support/raw-client.h"

/** Connected with feature shm; the daemon has it too. */
struct nd_raw *nd_raw_open_shm(struct nd_harness *h);

/** Bytes, with descriptors that come with the first of them. */
void nd_raw_send_fds(
        struct nd_raw *raw, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds);

/** A segment of these bytes, sealed and mapped for writing; nd_segment_close(). */
struct nd_segment nd_raw_segment(uint64_t bytes);

/** SEGMENT with this descriptor (-1: none). Returns its request number. */
uint64_t nd_raw_send_segment(struct nd_raw *raw, uint32_t number, uint64_t bytes, int fd);

/** The same, and the daemon has answered that it may be used. */
void nd_raw_announce(struct nd_raw *raw, uint32_t number, const struct nd_segment *segment);

/** PUBLISH of a block that is not written to. */
void nd_raw_publish_in(struct nd_raw *raw,
                       const char *topic,
                       uint32_t number,
                       uint64_t place,
                       uint64_t n_bytes,
                       uint16_t flags);

/** Fills a block with P(n_bytes), and publishes it. */
void nd_raw_publish_block(struct nd_raw *raw,
                          const char *topic,
                          const struct nd_segment *segment,
                          uint32_t number,
                          uint64_t place,
                          uint64_t n_bytes);

/** The next packet is this MESSAGE in a block, perhaps with its segment before it, which is checked
 * and mapped. Returns where it lies; the body has been checked to be P. */
struct nd_prelude nd_raw_receive_block(struct nd_raw *raw);

/** The same, but the body may have come in the packet too: then BODY_IN_BLOCK is not set. */
struct nd_prelude nd_raw_receive_either(struct nd_raw *raw);

/** The bytes of a block that was received. */
const uint8_t *nd_raw_block_bytes(struct nd_raw *raw, const struct nd_prelude *message);

/** RELEASE of one block, by the names of whoever holds it. */
void nd_raw_release(struct nd_raw *raw, uint32_t segment, uint64_t place);

/** The next packets are RELEASE, of n blocks in all; the sum of their places is *ret_places, or NULL. */
void nd_raw_expect_released(struct nd_raw *raw, size_t n, uint64_t *ret_places);

/** Connected with features shm and ring; the daemon has both. */
struct nd_raw *nd_raw_open_ring(struct nd_harness *h);

/** RING of so many bytes with this descriptor (-1: none). Returns its request number. */
uint64_t nd_raw_send_ring(struct nd_raw *raw, uint64_t bytes, int fd);

/** The same of a ring that is made for it; nd_ring_close(). */
uint64_t nd_raw_ask_ring(struct nd_raw *raw, struct nd_ring *ret);

/** The answer to that; its bell, if it brings one, is nd_raw.bell. */
void nd_raw_expect_ring(struct nd_raw *raw, uint64_t number);

/** A ring that the daemon has accepted; nd_ring_close(). */
struct nd_ring nd_raw_ring(struct nd_raw *raw);

/** A packet of prelude and header into the ring, which has room for it. Wakes nobody. */
void nd_raw_ring_put(struct nd_raw *raw,
                     struct nd_ring *ring,
                     struct nd_prelude prelude,
                     const void *header,
                     size_t n_header);

/** PUBLISH of a block that is not written to, through the ring. Wakes nobody. */
void nd_raw_ring_publish_in(struct nd_raw *raw,
                            struct nd_ring *ring,
                            const char *topic,
                            uint32_t number,
                            uint64_t place,
                            uint64_t n_bytes,
                            uint16_t flags);

/** WAKE, whatever the daemon says. */
void nd_raw_send_wake(struct nd_raw *raw);

/** WAKE, if the daemon says that it sleeps. */
void nd_raw_ring_wake(struct nd_raw *raw, struct nd_ring *ring);

/** Rings its bell, whatever the daemon says; and if it says that it sleeps. */
void nd_raw_ring_bell(struct nd_raw *raw);
void nd_raw_ring_call(struct nd_raw *raw, struct nd_ring *ring);
