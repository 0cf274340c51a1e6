/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Ring world: a daemon, a publisher that has a ring, and a subscriber
 *
 * Message k of the publisher is of ring_world_size(k) bytes, so that its number and its body say the
 * same. What is not so ends the test.
 */

#include "tests/support/raw-shm.h"

#define RING_WORLD_SEGMENT_BYTES (UINT64_C(8) << 20)
#define RING_WORLD_SLOT_BYTES    4096u
#define RING_WORLD_SLOTS_N       (RING_WORLD_SEGMENT_BYTES / RING_WORLD_SLOT_BYTES)

struct ring_world {
        struct nd_harness *h;
        struct nd_raw *asker;
        struct nd_raw
                *subscriber; /**< of "t"; without shared memory, so all that comes comes whole */
        struct nd_raw *publisher; /**< NULL: gone */
        struct nd_ring ring;
        struct nd_segment segment; /**< number 1 of the publisher */
        uint64_t n_received;       /**< by the subscriber */
};

/** args: of the daemon, as in nd_harness_options. */
void ring_world_init(struct ring_world *w, const char *const *args);
void ring_world_init_with(struct ring_world *w, const struct nd_harness_options *options);
void ring_world_deinit(struct ring_world *w);

/** The publisher leaves, without a word; and a new one comes. ring_world_init() begins with one. */
void ring_world_leave(struct ring_world *w);
void ring_world_join(struct ring_world *w);
void ring_world_join_as(struct ring_world *w, struct nd_raw *publisher);

uint64_t ring_world_size(uint64_t k);

/** Publishes the next message; by the socket now in its packet, now in a block. */
void ring_world_by_socket(struct ring_world *w);
/** Through the ring, in a block; wakes nobody. */
void ring_world_by_ring(struct ring_world *w);

/** The subscriber's next message is of the next number and so many bytes. */
void ring_world_expect_bytes(struct ring_world *w, uint64_t n_bytes);
/** All up to message k come. */
void ring_world_expect_up_to(struct ring_world *w, uint64_t k);
void ring_world_expect_nothing_more(struct ring_world *w);

/** PING: at the first PONG n messages are routed. */
void ring_world_expect_routed(struct nd_raw *raw, uint64_t n);

/** The daemon says that it sleeps, and has answered others since. */
void ring_world_wait_asleep(struct ring_world *w);

/** How far the daemon has taken the ring. */
uint64_t ring_world_taken(struct ring_world *w);

/** Rings that the daemon maps. */
size_t ring_world_n_mappings(struct ring_world *w);

/** The daemon keeps no descriptor, segment, message or ring of publishers. */
void ring_world_wait_left(struct ring_world *w);
