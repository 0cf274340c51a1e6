/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Ring: packets that a client writes and the daemon takes without a system call; PROTOCOL.md 7.15
 *
 * One memfd that both map. Positions count bytes from the beginning and only grow; the byte at position
 * p is data[p % ND_RING_BYTES]. Each end trusts nothing of what the other one writes: positions are
 * checked, and packets are copied before they are looked at.
 */

#include <stdatomic.h>
#include "protocol/fault.h"
#include "protocol/limit.h"

/* The beginning of the file. What different ends write lies in different cache lines. */
struct nd_ring_head {
        _Alignas(64) _Atomic uint64_t written; /* by the client: whole packets lie before it */
        _Alignas(64) _Atomic uint64_t taken; /* by the daemon: what lies before it is free again */
        _Alignas(64) _Atomic uint32_t is_asleep; /* set by the daemon; the client that finds it set
                                                    clears it, and sends WAKE */
};

/* One end of it. */
struct nd_ring {
        struct nd_ring_head *head; /* NULL: there is none */
        uint8_t *data;             /* [ND_RING_BYTES] */
        uint64_t position;         /* of this end */
        uint64_t seen;             /* of the other end, when it was looked at last */
};

/* Makes one, mapped; the descriptor is the caller's. A forked child does not have the mapping.
 * Return: 0; NDBUS_ENO_FD, NDBUS_ENO_SPACE, NDBUS_ESYSTEM */
int nd_ring_create(struct nd_ring *ret, int *ret_fd, struct nd_fault *fault);

/* Maps what a client sent as one of @bytes, and seals it. @fd stays the caller's.
 * Return: 0; NDBUS_ESHM it is none; NDBUS_ENO_SPACE, NDBUS_ESYSTEM */
int nd_ring_map(int fd, uint64_t bytes, struct nd_ring *ret, struct nd_fault *fault);

/* Unmaps; idempotent. */
void nd_ring_close(struct nd_ring *ring);

/* ---- the client's end */

/* Writes @n bytes, whole packets, more than none. False: there is no room now. */
bool nd_ring_put(struct nd_ring *ring, const void *bytes, size_t n);

/* Behind that: has WAKE to be sent? The daemon is not said to sleep any more then. */
bool nd_ring_must_wake(struct nd_ring *ring);

/* ---- the daemon's end */

/* Copies all that is written and not taken. Return: 0; NDBUS_EPROTOCOL */
int nd_ring_look(struct nd_ring *ring,
                 uint8_t out[static ND_RING_BYTES],
                 size_t *ret_n,
                 struct nd_fault *fault);

/* The first @n of these bytes are done with. */
void nd_ring_take(struct nd_ring *ring, size_t n);

/* Is nothing written that is not taken? */
bool nd_ring_is_empty(const struct nd_ring *ring);

/* Says that it sleeps. False: something was written that it has not seen. */
bool nd_ring_sleep(struct nd_ring *ring);

/* Says that it does not. */
void nd_ring_wake(struct nd_ring *ring);
