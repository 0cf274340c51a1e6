/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Descriptors: file descriptors that came over a Unix socket and wait for their packet
 *
 * Packets take them in the order in which they came. Whoever takes one owns it.
 */

#include <sys/socket.h>
#include "protocol/fault.h"
#include "protocol/limit.h"

struct nd_descriptors {
        int fds[ND_FDS_MAX]; /* [n], oldest first */
        size_t n;
};

/* What one sendmsg() can bring at most: SCM_MAX_FD of Linux. Room for all of them, so that the kernel
 * has none to close, which could take long. */
#define ND_DESCRIPTORS_CAME_MAX 253u

union nd_descriptors_room {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(ND_DESCRIPTORS_CAME_MAX * sizeof(int))];
};

/* The way out for those that nobody takes. */
struct nd_closer;

/* Will descriptors come when so many bytes are read? The bytes are put where they would be, and not taken. */
bool nd_descriptors_are_next(int fd, struct iovec *iov, size_t n_iov);

/**
 * nd_descriptors_add() - those that came with @message
 * @closer:     where they go if they are refused
 * @is_allowed: false: none belong here
 *
 * Return: 0; NDBUS_EFDS if there are more than wait at a time, or not all of them could be taken, or
 *         none belong here: then those of this message are closed
 */
int nd_descriptors_add(struct nd_descriptors *descriptors,
                       struct nd_closer *closer,
                       const struct msghdr *message,
                       bool is_allowed,
                       struct nd_fault *fault);

/* The oldest; -1: there is none. */
int nd_descriptors_take(struct nd_descriptors *descriptors);

/* Closes those that wait. */
void nd_descriptors_deinit(struct nd_descriptors *descriptors, struct nd_closer *closer);
