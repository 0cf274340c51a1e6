/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * What tests of publishing through a ring do again and again, against a scripted daemon
 *
 * A PING is the mark between what was published before it and after: when it has come by the socket, all
 * that went through the ring is there.
 */

#include <ndbus/ndbus.h>
#include "protocol/shm/ring.h"
#include "protocol/shm/segment.h"
#include "tests/support/fake-peer.h"

/* Messages of a connection before it asks for a ring; the next one goes behind the question. */
#define OUTLET_N_BEFORE 16u
#define OUTLET_N_BEGUN  (OUTLET_N_BEFORE + 1)

#define OUTLET_SLOW_COPY_BYTES ((size_t)256 << 10)

/* ------------------------------------------------------------------------ for scripts */

struct outlet_session {
        struct nd_segment segment;
        uint32_t number; /* of the segment */
        struct nd_ring ring;
};

/** A message by the socket, which is this one; @n of them from @number on. */
void outlet_expect_number(struct fake_peer *peer, uint64_t number);
void outlet_expect_numbers(struct fake_peer *peer, uint64_t number, size_t n);

/** Takes what outlet_begin_publishing() publishes, and maps the ring. Returns the sequence of its RING. */
uint64_t outlet_begin_asked(struct fake_peer *peer, struct outlet_session *s);

/** The same, and lets it be used. */
void outlet_begin(struct fake_peer *peer, struct outlet_session *s);

void outlet_close_session(struct outlet_session *s);

/** Reads until the client closes, and closes. */
void outlet_end(struct fake_peer *peer, struct outlet_session *s);

/* ------------------------------------------------------------------------ for tests */

/* A test of one script, which leaves nothing behind. */
struct outlet_stage {
        size_t n_fds;
        struct fake_peer *peer;
        struct ndbus *bus;
};

struct outlet_stage outlet_stage_open(fake_peer_script script, void *userdata);
struct outlet_stage outlet_stage_open_with(fake_peer_script script,
                                           void *userdata,
                                           const struct ndbus_options *options);

/** Returns how many messages were not confirmed. */
size_t outlet_stage_close(struct outlet_stage *stage);

/** By a copy of @n bytes, which is in a block from 8 KiB on. */
int outlet_publish_copy(struct ndbus *bus, int64_t n, const struct ndbus_publish_options *options);

/** By a loan. */
int outlet_publish_with(struct ndbus *bus, int64_t n, const struct ndbus_publish_options *options);
void outlet_publish(struct ndbus *bus);
void outlet_publish_more(struct ndbus *bus);
void outlet_publish_n(struct ndbus *bus, size_t n);

/** What the script has sent before its PONG is heard, too. */
void outlet_ping(struct ndbus *bus);

/** The other side of outlet_begin(). */
void outlet_begin_publishing(struct ndbus *bus);

/** Descriptors of rings of this process; where rings are mapped, and how many. */
size_t outlet_n_ring_fds(void);
size_t outlet_ring_mappings(uintptr_t out[static 4]);
size_t outlet_n_ring_mappings(void);

/** The script has hung up; nothing is left of that connection. And a new one, with a message on it. */
void outlet_expect_loss(struct ndbus *bus);
void outlet_reconnect(struct ndbus *bus);
