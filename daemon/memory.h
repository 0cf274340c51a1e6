/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Memory: what the daemon keeps for others is charged here before it is kept
 *
 * One number and its limit, --memory-max. Whoever keeps bytes for a peer beyond the call in which
 * they came charges them first and discharges them when they are gone. What to do when there is no
 * room is the caller's decision: wait, drop, refuse.
 *
 * A part is set aside for clients that are still to come, so that whoever wants to look at a daemon
 * that is full can connect to it; nothing else is charged there.
 */

#include "protocol/fault.h"

struct nd_memory {
        uint64_t used_bytes;
        uint64_t used_bytes_high; /* most ever used */
        uint64_t aside_bytes;     /* of max_bytes, not used: for clients to come */
        uint64_t max_bytes;
};

/* What is not there for messages. */
static inline uint64_t nd_memory_taken(const struct nd_memory *memory)
{
        return memory->used_bytes + memory->aside_bytes;
}

static inline bool nd_memory_has_room(const struct nd_memory *memory, uint64_t n_bytes)
{
        return n_bytes <=
               memory->max_bytes - nd_min_u64(nd_memory_taken(memory), memory->max_bytes);
}

/* Whatever the limit: what is bounded otherwise, and what was set aside. */
static inline void nd_memory_charge_anyway(struct nd_memory *memory, uint64_t n_bytes)
{
        memory->used_bytes += n_bytes;
        memory->used_bytes_high = nd_max_u64(memory->used_bytes_high, memory->used_bytes);
}

static inline bool nd_memory_charge(struct nd_memory *memory, uint64_t n_bytes)
{
        if (!nd_memory_has_room(memory, n_bytes))
                return false;
        nd_memory_charge_anyway(memory, n_bytes);
        return true;
}

static inline void nd_memory_discharge(struct nd_memory *memory, uint64_t n_bytes)
{
        nd_assert(n_bytes <= memory->used_bytes);
        memory->used_bytes -= n_bytes;
}

/* There is no room for @n_bytes more. Return: NDBUS_ENO_SPACE */
static inline int
nd_memory_fault(const struct nd_memory *memory, uint64_t n_bytes, struct nd_fault *fault)
{
        return nd_fault_set_limit(fault, NDBUS_ENO_SPACE, "memory-max",
                                  nd_memory_taken(memory) + n_bytes, memory->max_bytes, "bytes");
}
