/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Closer: closes descriptors that the loop must not wait for
 */

#include <stdatomic.h>
#include "protocol/shm/segment.h"

struct nd_closer {
        atomic_size_t n_pending; /* being closed */
        size_t n_pending_max;    /* above it the loop closes by itself */
};

/* Takes over @fds, [@n]. */
void nd_closer_close(struct nd_closer *closer, const int *fds, size_t n);

/* The same for a connection's socket: what its peer sent and nobody read may hold descriptors. */
void nd_closer_close_socket(struct nd_closer *closer, int fd);

/* The same for a segment, which is unmapped first: with its pages that takes as long. */
void nd_closer_close_segment(struct nd_closer *closer, struct nd_segment *segment);

/* Descriptors that are not closed yet. */
size_t nd_closer_pending(const struct nd_closer *closer);
