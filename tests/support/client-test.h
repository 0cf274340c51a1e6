/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * What tests of the client library do again and again, against a scripted daemon
 *
 * What is not so ends the process with a sentence, which fails the test.
 */

#include <ndbus/ndbus.h>
#include <sys/resource.h>
#include "protocol/shm/ring.h"
#include "tests/support/fake-peer.h"

/** In scripts, where Criterion's assertions do not reach. */
#define must(_cond)                                                                                \
        do {                                                                                       \
                if (!(_cond)) {                                                                    \
                        fprintf(stderr, "script: line %d: not so: %s\n", __LINE__, #_cond);        \
                        abort();                                                                   \
                }                                                                                  \
        } while (0)

/** Descriptors of this process; its mappings of memfds. */
size_t client_test_n_fds(void);
size_t client_test_n_mappings(void);

/** From now on this process may open no more; and again as many as before. */
void client_test_forbid_fds(struct rlimit *ret_before);
void client_test_allow_fds(const struct rlimit *before);

/** For scripts: accepts a connection that shares memory, at most so much or 64 MiB. */
void client_test_accept_shm_of(struct fake_peer *peer, uint64_t bytes_max);
void client_test_accept_shm(struct fake_peer *peer);

/** For scripts: the same, and takes a ring, with 64 MiB of memory; with a bell if the script has set no features. */
void client_test_accept_ring(struct fake_peer *peer);

/** For scripts: the next packet is RING; maps it, and returns its sequence. nd_ring_close() */
uint64_t client_test_map_ring(struct fake_peer *peer, struct nd_ring *ret);

/** For scripts: it is used from now on. */
void client_test_answer_ring(struct fake_peer *peer, uint64_t sequence);

/** For scripts: the next packet in the ring, which is taken, is this PUBLISH in a block. */
struct nd_prelude client_test_take_from_ring(struct nd_ring *ring, uint64_t number);

/** For scripts: RELEASE for a block that the client published. */
void client_test_release(struct fake_peer *peer, uint32_t segment, uint64_t place);

/** For scripts: the next packet is a PING; returns its sequence. */
uint64_t client_test_expect_ping(struct fake_peer *peer);

/** For scripts: PONG: so many messages are routed. */
void client_test_answer_ping(struct fake_peer *peer, uint64_t sequence, uint64_t n_routed);

/** For scripts: both. */
void client_test_pong(struct fake_peer *peer, uint64_t n_routed);

/** For scripts: the next packet is a PUBLISH in a block; returns where. */
uint64_t client_test_expect_block(struct fake_peer *peer, uint32_t segment, uint64_t bytes);

/** An array of @n bytes, written in place. */
struct ndbus_loan *client_test_loan(struct ndbus *bus, int64_t n, uint8_t **ret_data);

struct ndbus_shm_stats client_test_shm_stats(const struct ndbus *bus);

/** Opens a bus to the peer, default options. */
struct ndbus *client_test_open(struct fake_peer *peer);

/** The next message, which must come. */
struct ndbus_message *client_test_receive(struct ndbus *bus);

/** The next message, of one frame of @n pattern bytes; frees it. */
void client_test_expect(struct ndbus *bus, uint64_t sequence, uint64_t n, uint64_t dropped);

/** For scripts: a MESSAGE of one frame of @n pattern bytes on topic "t", in chunks of @n_chunk, or
 *  whole if that is 0. */
void fake_peer_send_pattern(struct fake_peer *peer,
                            uint32_t subscription,
                            uint32_t n,
                            uint64_t sequence,
                            uint32_t n_chunk);

/** For scripts: GAP. */
void fake_peer_gap(struct fake_peer *peer, uint32_t subscription, uint64_t n);
