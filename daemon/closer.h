/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Closer: closes descriptors that the loop must not wait for
 */

#include "protocol/shm/segment.h"

struct nd_closer_line;

struct nd_closer {
        struct nd_closer_line *received; /* what peers sent: closing it may take for ever */
        struct nd_closer_line *segments; /* closing them takes as long as they are large */
        size_t n_received_max;           /* with so many of the first kind it is full */
};

/**
 * nd_closer_init() - with a thread for either kind, so that what comes later needs none
 * @n_workers_max: threads that what peers sent may have
 *
 * Return: 0 or a negative errno
 */
int nd_closer_init(struct nd_closer *closer, size_t n_received_max, size_t n_workers_max);

/* Waits for nothing: its threads go on while the process lives. Idempotent. */
void nd_closer_deinit(struct nd_closer *closer);

/* Takes over @fds, [@n]. */
void nd_closer_close(struct nd_closer *closer, const int *fds, size_t n);

/* The same for a socket of ours: what its peer sent and nobody read may hold descriptors. */
void nd_closer_close_socket(struct nd_closer *closer, int fd);

/* The same for a segment that was checked, which is unmapped first. */
void nd_closer_close_segment(struct nd_closer *closer, struct nd_segment *segment);

/* Descriptors that are not closed yet. */
size_t nd_closer_pending(const struct nd_closer *closer);

/* Of those that peers sent. */
size_t nd_closer_pending_received(const struct nd_closer *closer);

/* Nobody's descriptors are to be taken until some of them are closed. */
bool nd_closer_is_full(const struct nd_closer *closer);
