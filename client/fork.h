/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Fork: what a child must not inherit, and what it must be able to use
 *
 * A bus registers its descriptors: in the child they are closed and the bus is marked. A lock that
 * is taken through here is never held by another thread at the moment of the fork.
 */

#include <pthread.h>
#include "protocol/limit.h"
#include "protocol/list.h"

#define ND_FORK_FDS (7 + ND_SEGMENTS_MAX)

/* Embedded in a bus. fds that are not open are -1. */
struct nd_fork_guard {
        struct nd_list node;
        int fds[ND_FORK_FDS];
        bool is_child; /* this is a forked child: the fds are closed, nothing may be sent */
};

/* 0, or a positive errno if the fork handlers could not be installed. */
int nd_fork_guard_init(struct nd_fork_guard *guard);
void nd_fork_guard_deinit(struct nd_fork_guard *guard);

struct nd_fork_lock {
        struct nd_list node;
        pthread_mutex_t mutex;
};

void nd_fork_lock_init(struct nd_fork_lock *lock);
void nd_fork_lock_deinit(struct nd_fork_lock *lock);

static inline void nd_fork_lock_take(struct nd_fork_lock *lock)
{
        int r = pthread_mutex_lock(&lock->mutex);

        nd_assert(r == 0);
}

static inline void nd_fork_lock_drop(struct nd_fork_lock *lock)
{
        int r = pthread_mutex_unlock(&lock->mutex);

        nd_assert(r == 0);
}
