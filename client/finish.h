/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Finish: messages of groups, given back by whoever frees them
 */

#include "client/fork.h"

struct nd_finisher;

/* Of one message, for as long as it is not freed. */
struct nd_finish {
        struct nd_list node; /* in the finisher, then: it is freed and the bus has not taken it */
        struct nd_finisher *finisher;
        uint64_t generation; /* of the connection */
        uint64_t number;     /* n-th MESSAGE of the subscription on that connection */
        uint64_t body_bytes;
        uint32_t subscription;
        bool is_whole; /* the message came in full: freeing it finishes it */
};

/**
 * nd_finisher_new() - make the place where a bus and its messages meet
 * @guard:    of the bus; borrowed until nd_finisher_close()
 * @wake_fd:  an eventfd, in @guard; written when something is freed while the bus waits
 *
 * Return: NULL without memory
 */
struct nd_finisher *nd_finisher_new(const struct nd_fork_guard *guard, const int *wake_fd);

/* The bus goes: what is freed from now on finishes nothing. Accepts NULL. */
void nd_finisher_close(struct nd_finisher *finisher);

/* NULL: no memory. */
struct nd_finish *nd_finish_new(struct nd_finisher *finisher);

/* Its message is freed, on any thread. Takes @finish. */
void nd_finish_done(struct nd_finish *finish);

/* Moves what was freed to the tail of @list; the caller frees each. */
void nd_finisher_take(struct nd_finisher *finisher, struct nd_list *list);

/* One that was taken: nd_finisher_take() */
void nd_finish_free(struct nd_finish *finish);

/* The bus is about to sleep, in which case freeing must wake it, or no longer. Returns true if
 * something is there already. */
bool nd_finisher_set_waiting(struct nd_finisher *finisher, bool is_waiting);
