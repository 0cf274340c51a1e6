/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Segment: memory that processes share, and that can neither shrink nor be written by its readers
 */

#include "protocol/shm/room.h"

struct nd_segment {
        int fd;         /* -1: none */
        uint8_t *base;  /* NULL: not mapped */
        uint64_t bytes; /* a multiple of ND_SEGMENT_UNIT_BYTES */
};

#define ND_SEGMENT_NULL                                                                            \
        {                                                                                          \
                .fd = -1                                                                           \
        }

/**
 * nd_segment_create() - make one of @bytes, mapped for writing and sealed
 * @bytes: a positive multiple of ND_SEGMENT_UNIT_BYTES
 * @room:  what nd_room_read() found
 * @fault: filled on failure; may be NULL
 *
 * Its memory is there when this returns, so that touching it neither fails nor is slow. A forked
 * child does not have the mapping: what it wrote would appear in others' arrays.
 *
 * Return: 0; NDBUS_ENO_SPACE, NDBUS_ENO_FD at the descriptor limit, NDBUS_ESYSTEM
 */
int nd_segment_create(uint64_t bytes,
                      const struct nd_room *room,
                      struct nd_segment *ret,
                      struct nd_fault *fault);

/* The same, but for its memory, which comes by nd_segment_fill(). Who made one at once would stand still for
 * as long as making memory takes, a second for a gibibyte. */
int nd_segment_create_bare(uint64_t bytes,
                           const struct nd_room *room,
                           struct nd_segment *ret,
                           struct nd_fault *fault);

/* Its memory is there from @from up to @to, multiples of ND_SEGMENT_UNIT_BYTES; it can be all that is
 * left of it, and before that no reader takes it for one. Return: as nd_segment_create() */
int nd_segment_fill(const struct nd_segment *segment,
                    uint64_t from,
                    uint64_t to,
                    struct nd_fault *fault);

/* Is what a peer sent as a segment of @bytes one? 0, or NDBUS_ESHM that names what is wrong. */
int nd_segment_check(int fd, uint64_t bytes, struct nd_fault *fault);

/* Maps one for reading. It takes @fd on success, and must have been checked. 0 or NDBUS_ESYSTEM. */
int nd_segment_map_read(int fd, uint64_t bytes, struct nd_segment *ret, struct nd_fault *fault);

/* Closes the descriptor; the mapping stays. */
void nd_segment_close_fd(struct nd_segment *segment);

/* Unmaps and closes; idempotent. */
void nd_segment_close(struct nd_segment *segment);
