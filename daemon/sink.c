/* SPDX-License-Identifier: MIT */

/*
 * Sink
 *
 * What waits, waits here, where the policy can still act. A full queue first lets its member write,
 * because what the socket and the window take now need not be dropped.
 */

#include "daemon/sink.h"
#include <string.h>
#include "daemon/credit.h"
#include "daemon/group.h"
#include "daemon/pause.h"
#include "daemon/server.h"
#include "daemon/slow.h"

int nd_sink_new(struct nd_server *server, const struct nd_subscribe *ask, struct nd_sink **ret)
{
        size_t n_names = ask->pattern.n + ask->group.n;
        uint64_t cost = sizeof(struct nd_sink) + n_names +
                        nd_router_pattern_cost(ask->pattern.at, ask->pattern.n);
        struct nd_sink *sink;

        if (!nd_server_charge(server, cost))
                return NDBUS_ENO_SPACE;
        sink = calloc(1, sizeof(*sink) + n_names);
        if (!sink ||
            nd_router_add(&server->router, ask->pattern.at, ask->pattern.n, &sink->target) < 0) {
                nd_memory_discharge(&server->store.memory, cost);
                free(sink);
                return NDBUS_ENOMEM;
        }
        sink->server = server;
        sink->trouble.mark_ns = server->now_ns;
        sink->charged_bytes = cost;
        sink->n_pattern = ask->pattern.n;
        sink->n_group = ask->group.n;
        memcpy(sink->names, ask->pattern.at, ask->pattern.n);
        if (ask->group.n > 0)
                memcpy(sink->names + sink->n_pattern, ask->group.at, ask->group.n);
        nd_list_init(&sink->arriving);
        nd_list_init(&sink->pauses);
        nd_list_init(&sink->members);
        nd_list_init(&sink->in_groups);
        nd_list_init(&sink->in_slow);
        nd_queue_init(&sink->queue, &server->counters, ask->policy, ask->depth_messages,
                      ask->depth_bytes);
        if (nd_sink_is_group(sink))
                nd_list_push_tail(&server->groups, &sink->in_groups);
        nd_server_subscriptions_changed(server, sink->names, sink->n_pattern);
        *ret = sink;
        return 0;
}

void nd_sink_release_credit(struct nd_message *message)
{
        if (message->n_over == 0 && message->publisher)
                nd_credit_settled(message);
}

uint64_t nd_sink_drop(struct nd_sink *sink)
{
        uint64_t n_dropped;
        struct nd_entry *entry;

        while ((entry = nd_queue_peek(&sink->queue))) {
                struct nd_message *message = nd_message_ref(entry->message);

                nd_queue_drop(&sink->queue, entry, ND_DROP_ENDED);
                nd_sink_release_credit(message);
                nd_message_unref(message);
        }
        while (!nd_list_is_empty(&sink->arriving))
                nd_entry_free(nd_list_entry(sink->arriving.next, struct nd_entry, in_queue));
        n_dropped = sink->queue.gap_tail;
        sink->queue.gap_tail = 0;
        return n_dropped;
}

uint64_t nd_sink_free(struct nd_sink *sink)
{
        struct nd_server *server = sink->server;
        uint64_t n_dropped;

        nd_assert(nd_list_is_empty(&sink->members));
        n_dropped = nd_sink_drop(sink);
        nd_queue_forget_losses(&sink->queue);
        nd_pause_end_sink(sink);
        nd_list_unlink(&sink->in_groups);
        nd_list_unlink(&sink->in_slow);
        nd_router_remove(&server->router, &sink->target);
        nd_memory_discharge(&server->store.memory, sink->charged_bytes);
        nd_server_subscriptions_changed(server, sink->names, sink->n_pattern);
        free(sink);
        return n_dropped;
}

struct nd_sink *nd_sink_find_group(struct nd_server *server, const struct nd_subscribe *ask)
{
        nd_list_for_each (i, &server->groups) {
                struct nd_sink *sink = nd_list_entry(i, struct nd_sink, in_groups);

                if (sink->n_pattern == ask->pattern.n && sink->n_group == ask->group.n &&
                    memcmp(sink->names, ask->pattern.at, ask->pattern.n) == 0 &&
                    memcmp(sink->names + sink->n_pattern, ask->group.at, ask->group.n) == 0)
                        return sink;
        }
        return NULL;
}

/* The one member of a sink that is no group's. */
static struct nd_subscription *sink_member(const struct nd_sink *sink)
{
        struct nd_list *node = nd_list_first(&sink->members);

        return node && !nd_sink_is_group(sink)
                       ? nd_list_entry(node, struct nd_subscription, in_sink)
                       : NULL;
}

bool nd_sink_takes_blocks(const struct nd_sink *sink)
{
        nd_list_for_each (i, &sink->members) {
                if (nd_ledger_takes_blocks(
                            nd_list_entry(i, struct nd_subscription, in_sink)->connection))
                        return true;
        }
        return false;
}

void nd_sink_wake(struct nd_sink *sink)
{
        struct nd_subscription *member = sink_member(sink);

        if (member)
                nd_subscription_wake(member);
        else
                nd_group_dispatch(sink);
}

void nd_sink_end(struct nd_sink *sink, const struct nd_fault *fault)
{
        bool is_last = false;

        nd_trouble_end(sink, fault);
        while (!is_last) {
                struct nd_list *node = sink->members.next;

                is_last = node->next == &sink->members;
                nd_subscription_end(nd_list_entry(node, struct nd_subscription, in_sink), fault, 0);
        }
}

/* ------------------------------------------------------------------------------------- arriving */

static void sink_push_out(struct nd_sink *sink)
{
        struct nd_subscription *member = sink_member(sink);

        if (!member)
                nd_group_dispatch(sink);
        else if (!member->connection->outbox.is_blocked &&
                 member->connection->state == ND_CONNECTION_OPEN)
                nd_outbox_write(&member->connection->outbox);
}

/* Its identity may have no more waiting: what its other subscriptions can be sent now need not be
 * dropped. Not again before there is more of it than was left the last time. */
static void sink_push_out_identity(struct nd_sink *sink)
{
        struct nd_account *account = sink->queue.quota->account;

        if (account->used[ND_LIMIT_QUEUED] <= account->stuck_bytes)
                return;
        nd_list_for_each (i, &sink->server->dirty) {
                struct nd_connection *connection = nd_list_entry(i, struct nd_connection, in_dirty);

                if (connection->quota.account == account && !connection->outbox.is_blocked &&
                    connection->state == ND_CONNECTION_OPEN)
                        nd_outbox_write(&connection->outbox);
        }
        account->stuck_bytes = account->used[ND_LIMIT_QUEUED];
}

static void sink_overflow(struct nd_sink *sink, uint64_t n_bytes, uint64_t n_identity)
{
        const struct nd_queue *queue = &sink->queue;
        uint64_t n_messages = nd_queue_held(queue);
        struct nd_fault fault;

        if (n_messages >= queue->depth_messages)
                nd_fault_set_limit(&fault, NDBUS_EOVERFLOW, "depth", n_messages + 1,
                                   queue->depth_messages, "messages");
        else if (n_identity > 0)
                nd_quota_fault(queue->quota, NDBUS_EOVERFLOW, ND_LIMIT_QUEUED, n_identity, &fault);
        else
                nd_fault_set_limit(&fault, NDBUS_EOVERFLOW, "bytes",
                                   nd_queue_held_bytes(queue) + n_bytes, queue->depth_bytes,
                                   "bytes");
        nd_sink_end(sink, &fault);
}

/* No room for it: what the socket and the window take now makes some. Returns what its identity would
 * have queued with it if that is still too much; else 0. */
static uint64_t sink_make_way(struct nd_sink *sink, const struct nd_message *message)
{
        const struct nd_queue *queue = &sink->queue;

        if (nd_queue_is_full(queue, message->body_bytes))
                sink_push_out(sink);
        if (!nd_queue_is_over_quota(queue, message))
                return 0;
        sink_push_out_identity(sink);
        return nd_queue_is_over_quota(queue, message)
                       ? queue->quota->account->used[ND_LIMIT_QUEUED] + nd_queue_cost(message)
                       : 0;
}

/* The policy decides. Return: false if it is not in the queue; the sink may have ended */
static bool sink_push_over(struct nd_sink *sink, struct nd_entry *entry)
{
        struct nd_queue *queue = &sink->queue;
        struct nd_pair *pair = entry->message->pair;
        uint64_t n_bytes = entry->message->body_bytes;
        uint64_t n_identity = sink_make_way(sink, entry->message);

        switch (nd_queue_push(queue, entry)) {
        case ND_QUEUE_E_DROPPED:
                if (queue->n_messages == 0)
                        nd_sink_wake(sink); /* nothing else takes the GAP along */
                return false;
        case ND_QUEUE_E_OVERFLOW:
                sink_overflow(sink, n_bytes, n_identity);
                return false;
        case ND_QUEUE_E_OVER:
                if (pair)
                        nd_pause_add(sink, pair);
                return true;
        default:
                return true;
        }
}

void nd_sink_push(struct nd_sink *sink, struct nd_entry *entry)
{
        struct nd_queue *queue = &sink->queue;
        bool is_block = queue->policy == ND_POLICY_BLOCK;
        bool was_in_the_way = is_block && nd_slow_is_in_the_way(sink);

        entry->since_ns = sink->server->now_ns;
        if (nd_queue_has_room(queue, entry->message))
                nd_queue_add(queue, entry);
        else if (!sink_push_over(sink, entry))
                return;
        if (is_block)
                nd_slow_watch(sink, was_in_the_way);
        nd_sink_wake(sink);
}

void nd_sink_deliver(struct nd_sink *sink, struct nd_message *message)
{
        struct nd_entry *entry = nd_entry_new(message, sink, sink_member(sink));

        if (!entry) {
                nd_queue_count_begun(&sink->queue);
                nd_queue_count_taken_back(&sink->queue, message, ND_DROP_MEMORY);
                ++sink->queue.gap_tail;
                return;
        }
        nd_sink_push(sink, entry);
}

bool nd_sink_announce(struct nd_sink *sink, struct nd_message *message)
{
        struct nd_entry *entry = nd_entry_new(message, sink, sink_member(sink));

        if (!entry)
                return false;
        nd_list_push_tail(&sink->arriving, &entry->in_queue);
        return true;
}

/* ------------------------------------------------------------------------------- becoming shorter */

void nd_sink_settle(struct nd_sink *sink)
{
        struct nd_message *message;

        while ((message = nd_queue_settle(&sink->queue)))
                nd_sink_release_credit(message);
        if (!nd_list_is_empty(&sink->pauses))
                nd_pause_resume(sink);
}

void nd_sink_took(struct nd_sink *sink)
{
        sink->trouble.has_taken = true;
        nd_slow_took(sink);
}
