/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Body of RELEASE: blocks that their holder no longer needs; PROTOCOL.md 7.14
 *
 * Groups of u32 segment, u32 count and as many u64 places.
 */

#include "protocol/fault.h"
#include "protocol/limit.h"

/* One body being written; no more than a packet holds. Starts as zeros, but for @data. */
struct nd_release_writer {
        uint8_t *data; /* [ND_CONTROL_BODY_BYTES_MAX] */
        size_t n;
        size_t n_head; /* where the count of the last group stands */
        uint32_t segment;
        uint32_t count; /* of the last group */
};

/* False: the body is full, and unchanged. */
bool nd_release_add(struct nd_release_writer *writer, uint32_t segment, uint64_t place);

struct nd_release_reader {
        const uint8_t *data; /* [n], what is left */
        size_t n;
        uint32_t segment;
        uint32_t n_left; /* places of the group at hand */
};

/* 1: the next place is in @ret_segment, @ret_place; 0: that was all; NDBUS_EPROTOCOL. */
int nd_release_next(struct nd_release_reader *reader,
                    uint32_t *ret_segment,
                    uint64_t *ret_place,
                    struct nd_fault *fault);
