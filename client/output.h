/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Output: bytes that wait for the socket, in the order in which they leave
 */

#include "protocol/limit.h"
#include "protocol/prelude.h"

/* A packet that brings a descriptor begins a system call. */
struct nd_output_fd {
        size_t at; /* where the packet begins, counted from the first byte that waits */
        int fd;    /* borrowed until it has left */
};

struct nd_output {
        uint8_t *data;
        size_t start;
        size_t end;
        size_t n_max;
        struct nd_output_fd fds[ND_FDS_MAX]; /* in the order of their packets */
        size_t n_fds;
        bool is_ahead; /* something that a later PUBLISH must not overtake has been put here since the last
                            PUBLISH that was */
        uint64_t n_left; /* bytes that have left, in all */
};

static inline size_t nd_output_bytes(const struct nd_output *output)
{
        return output->end - output->start;
}

static inline const uint8_t *nd_output_at(const struct nd_output *output)
{
        return output->data + output->start;
}

/* Room for @n more bytes behind the others; nd_output_commit() says how many were written. NULL
 * without memory. */
uint8_t *nd_output_reserve(struct nd_output *output, size_t n);

static inline void nd_output_commit(struct nd_output *output, size_t n)
{
        output->end += n;
}

/* Room for @n more bytes before the others; they are committed. NULL without memory. */
uint8_t *nd_output_insert(struct nd_output *output, size_t n);

void nd_output_move_fds(struct nd_output *output, size_t n);

/* The first @n bytes have left. */
static inline void nd_output_consume(struct nd_output *output, size_t n)
{
        if (output->n_fds > 0)
                nd_output_move_fds(output, n);
        output->n_left += n;
        output->start += n;
        if (output->start == output->end)
                output->start = output->end = 0;
}

/* A control packet; header_bytes and body_bytes are set here. 0 or NDBUS_ENOMEM. */
int nd_output_packet(struct nd_output *output,
                     const struct nd_prelude *prelude,
                     const void *header,
                     size_t n_header,
                     const void *body,
                     size_t n_body);

/* The same, and @fd leaves with it: false if too many wait already, or without memory. */
bool nd_output_packet_with_fd(struct nd_output *output, const struct nd_prelude *prelude, int fd);

/**
 * nd_output_send() - send what goes without waiting
 *
 * A descriptor that the kernel does not take, because too many are on their way, stays here, and its
 * packet goes without it: the receiver will say that it lacks.
 *
 * Return: 0 nothing waits any more; EAGAIN; else what the system call said
 */
int nd_output_send(struct nd_output *output, int fd);

/* Forgets everything and gives back what is more than a small buffer. */
void nd_output_reset(struct nd_output *output);
void nd_output_deinit(struct nd_output *output);
