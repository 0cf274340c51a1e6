/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Group: subscriptions that share the messages of one sink
 */

#include "daemon/subscription.h"

/* Hands what waits to members that have window left, least loaded first. */
void nd_group_dispatch(struct nd_sink *sink);

/* A member was sent the whole of an entry: it is kept until the member says that it is finished. */
void nd_group_sent(struct nd_entry *entry);

/**
 * nd_group_finish() - CREDIT from a member
 * @numbers:  [@n_numbers] little-endian u64: its deliveries that are finished
 *
 * Return: 0, NDBUS_ECREDIT
 */
int nd_group_finish(struct nd_subscription *member,
                    const uint8_t *numbers,
                    size_t n_numbers,
                    struct nd_fault *fault);

/* An entry that was assigned to a member is dropped: there is no memory to send it from. */
void nd_group_drop(struct nd_entry *entry);

/* What a member was sent whole is its own: it goes to nobody else. */
void nd_group_finish_all(struct nd_subscription *member);

/* A member leaves: what it had not finished goes to others, marked if it had begun. */
void nd_group_leave(struct nd_subscription *member);
