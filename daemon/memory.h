/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Memory: what the daemon keeps for others is charged here before it is kept
 *
 * One number and its limit, --memory-max. Whoever keeps bytes for a peer beyond the call in which
 * they came charges them first and discharges them when they are gone. What to do when there is no
 * room is the caller's decision: wait, drop, refuse.
 */

#include "protocol/fault.h"

struct nd_memory {
        uint64_t used_bytes;
        uint64_t used_bytes_high; /* most ever used */
        uint64_t max_bytes;
};

static inline bool nd_memory_has_room(const struct nd_memory *memory, uint64_t n_bytes)
{
        return n_bytes <= memory->max_bytes - nd_min_u64(memory->used_bytes, memory->max_bytes);
}

static inline bool nd_memory_charge(struct nd_memory *memory, uint64_t n_bytes)
{
        if (!nd_memory_has_room(memory, n_bytes))
                return false;
        memory->used_bytes += n_bytes;
        if (memory->used_bytes > memory->used_bytes_high)
                memory->used_bytes_high = memory->used_bytes;
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
                                  memory->used_bytes + n_bytes, memory->max_bytes, "bytes");
}
