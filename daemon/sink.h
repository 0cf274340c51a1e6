/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Sink: where the messages of a pattern end: a queue and its members
 *
 * A subscription has a sink of its own; the subscriptions of a group share one.
 */

#include "daemon/queue.h"
#include "daemon/trouble.h"

struct nd_server;

struct nd_sink {
        struct nd_target target;
        struct nd_server *server;
        struct nd_queue queue;
        struct nd_trouble trouble;
        struct nd_list arriving;  /* entries whose message still arrives, not begun */
        struct nd_list pauses;    /* nd_pause.in_sink: publishers that it has stopped, in order */
        struct nd_list members;   /* nd_subscription.in_sink */
        struct nd_list in_groups; /* nd_server.groups, if it is a group's */
        struct nd_list in_slow;   /* nd_server.slow, policy block: it is in the way of others */
        uint64_t slow_since_ns;   /* and took nothing since */
        uint64_t charged_bytes;
        size_t n_pattern;
        size_t n_group; /* 0: it is no group's */
        char names[];   /* the pattern, then the group */
};

/* Return: 0; NDBUS_ENO_SPACE, NDBUS_ENOMEM */
int nd_sink_new(struct nd_server *server, const struct nd_subscribe *ask, struct nd_sink **ret);

/* Drops all that waits. Returns how many messages were dropped behind the last one that was sent,
 * which the caller tells. */
uint64_t nd_sink_drop(struct nd_sink *sink);

/* The same; its members must have left. */
uint64_t nd_sink_free(struct nd_sink *sink);

/* The sink of this group, or NULL. */
struct nd_sink *nd_sink_find_group(struct nd_server *server, const struct nd_subscribe *ask);

static inline struct nd_sink *nd_sink_from_target(struct nd_target *target)
{
        return nd_container_of(target, struct nd_sink, target);
}

static inline bool nd_sink_is_group(const struct nd_sink *sink)
{
        return sink->n_group > 0;
}

/* A complete message arrives; the policy decides. May end the sink (disconnect). */
void nd_sink_deliver(struct nd_sink *sink, struct nd_message *message);

/* Does any of its members take bodies in blocks? */
bool nd_sink_takes_blocks(const struct nd_sink *sink);

/* A message whose body still arrives: it may be passed on at once. false: no memory */
bool nd_sink_announce(struct nd_sink *sink, struct nd_message *message);

/* Puts an announced entry, whose message is complete now, into the queue. May end the sink. */
void nd_sink_push(struct nd_sink *sink, struct nd_entry *entry);

/* The queue became shorter: those it has stopped may go on. */
void nd_sink_settle(struct nd_sink *sink);

/* Its members took something: a message granted or finished, or bytes. */
void nd_sink_took(struct nd_sink *sink);

/* There may be something for a member to send. */
void nd_sink_wake(struct nd_sink *sink);

/* Ends the subscriptions of all members, and with the last the sink. */
void nd_sink_end(struct nd_sink *sink, const struct nd_fault *fault);

/* No block queue holds @message beyond its limits any more, if that is so. */
void nd_sink_release_credit(struct nd_message *message);
