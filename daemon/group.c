/* SPDX-License-Identifier: MIT */

/*
 * Group
 *
 * An entry leaves the shared queue when a member that has window left is chosen for it, the least
 * loaded one; then it is the member's until the member says that it is finished, and counts in the
 * group's limits all that time, unless it is the one that this member is at work on. What is beyond the
 * limits stays in the queue until a member has finished all that it had. So a member's death costs
 * nothing: what it had is put back where it was, at the head of the queue, and goes to others, marked as
 * redelivered if a first byte of it had gone out.
 *
 * Entries of a group are never passed on while they arrive: nobody knows yet who will be free.
 */

#include "daemon/group.h"
#include <inttypes.h>
#include "daemon/server.h"
#include "protocol/byteorder.h"

static struct nd_subscription *group_at(struct nd_list *node)
{
        return nd_list_entry(node, struct nd_subscription, in_sink);
}

static uint64_t group_load(const struct nd_subscription *member)
{
        return member->messages_out + member->n_assigned;
}

/* May it take one more of @n_bytes, those included that it has been assigned? */
static bool group_has_window(const struct nd_subscription *member, uint64_t n_bytes)
{
        int64_t bytes_left = member->bytes_left - (int64_t)member->n_assigned_bytes;

        return member->messages_left > (int64_t)member->n_assigned &&
               (group_load(member) == 0 || bytes_left >= (int64_t)n_bytes);
}

static struct nd_subscription *group_choose(const struct nd_sink *sink, uint64_t n_bytes)
{
        struct nd_subscription *best = NULL;

        nd_list_for_each (i, &sink->members) {
                struct nd_subscription *member = group_at(i);

                if (group_has_window(member, n_bytes) &&
                    (!best || group_load(member) < group_load(best)))
                        best = member;
        }
        return best;
}

/* Makes @entry, or nothing, what the member is at work on. */
static void group_set_work(struct nd_subscription *member, struct nd_entry *entry)
{
        struct nd_queue *queue = &member->sink->queue;

        if (member->at_work) {
                --queue->n_at_work;
                queue->n_at_work_bytes -= member->at_work->message->body_bytes;
        }
        if (entry) {
                ++queue->n_at_work;
                queue->n_at_work_bytes += entry->message->body_bytes;
        }
        member->at_work = entry;
}

static struct nd_entry *group_first(struct nd_list *list, const struct nd_entry *but)
{
        nd_list_for_each (i, list) {
                struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_queue);

                if (entry != but)
                        return entry;
        }
        return NULL;
}

/* One that a member had is no longer its own, and still in its list. The next one, in the order in which it
 * got them, is what it is at work on. */
static void group_take_back(struct nd_subscription *member, struct nd_entry *entry)
{
        struct nd_entry *next;

        nd_queue_take_back(&member->sink->queue, entry);
        if (member->at_work != entry)
                return;
        next = group_first(&member->unfinished, entry);
        if (!next && member->stream != entry)
                next = member->stream;
        group_set_work(member, next ? next : group_first(&member->assigned, entry));
}

void nd_group_dispatch(struct nd_sink *sink)
{
        struct nd_entry *entry;

        while ((entry = nd_queue_peek(&sink->queue))) {
                uint64_t n_bytes = entry->message->body_bytes;
                struct nd_subscription *member = group_choose(sink, n_bytes);

                if (!member || (entry->is_over && member->at_work))
                        return;
                nd_queue_pop(&sink->queue);
                entry->subscription = member;
                entry->state = ND_ENTRY_ASSIGNED;
                nd_queue_put_outside(&sink->queue, entry);
                if (!member->at_work)
                        group_set_work(member, entry);
                ++member->n_assigned;
                member->n_assigned_bytes += n_bytes;
                nd_list_push_tail(&member->assigned, &entry->in_queue);
                nd_sink_release_credit(entry->message);
                nd_sink_settle(sink);
                nd_subscription_wake(member);
        }
}

void nd_group_sent(struct nd_entry *entry)
{
        entry->state = ND_ENTRY_UNFINISHED;
        nd_list_push_tail(&entry->subscription->unfinished, &entry->in_queue);
}

static struct nd_entry *group_find(const struct nd_subscription *member, uint64_t number)
{
        nd_list_for_each (i, &member->unfinished) {
                struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_queue);

                if (entry->number == number)
                        return entry;
        }
        return NULL;
}

int nd_group_finish(struct nd_subscription *member,
                    const uint8_t *numbers,
                    size_t n_numbers,
                    struct nd_fault *fault)
{
        for (size_t i = 0; i < n_numbers; ++i) {
                uint64_t number = nd_load_le64(numbers + 8 * i);
                struct nd_entry *entry = group_find(member, number);

                if (!entry)
                        return nd_fault_set_numbers(
                                fault, NDBUS_ECREDIT, "delivery", number, member->n_deliveries,
                                "is %" PRIu64 ", which is not open; the last one is %" PRIu64,
                                number, member->n_deliveries);
                nd_subscription_return_window(member, entry->message->body_bytes);
                group_take_back(member, entry);
                nd_entry_free(entry);
        }
        nd_sink_took(member->sink);
        nd_sink_settle(member->sink);
        nd_group_dispatch(member->sink);
        return 0;
}

void nd_group_finish_all(struct nd_subscription *member)
{
        while (!nd_list_is_empty(&member->unfinished)) {
                struct nd_entry *entry =
                        nd_list_entry(member->unfinished.next, struct nd_entry, in_queue);

                group_take_back(member, entry);
                nd_entry_free(entry);
        }
}

void nd_group_drop(struct nd_entry *entry)
{
        struct nd_subscription *member = entry->subscription;
        struct nd_sink *sink = entry->sink;

        --member->n_assigned;
        member->n_assigned_bytes -= entry->message->body_bytes;
        group_take_back(member, entry);
        nd_queue_count_taken_back(&sink->queue, entry->message, ND_DROP_MEMORY);
        ++sink->queue.gap_tail;
        nd_entry_free(entry);
}

/* Puts one entry back at the head of the queue. */
static void group_return(struct nd_sink *sink, struct nd_entry *entry)
{
        nd_list_unlink(&entry->in_queue);
        nd_queue_take_back(&sink->queue, entry);
        if (entry->state != ND_ENTRY_ASSIGNED)
                entry->is_redelivered = true;
        entry->subscription = NULL;
        entry->taken_bytes = 0;
        entry->sent_bytes = 0;
        entry->stream = 0;
        nd_queue_unpop(&sink->queue, entry);
}

/* The socket has a part of this entry's packet, and needs it until the end: another takes its place
 * in the queue. */
static struct nd_entry *group_replace(struct nd_sink *sink, struct nd_entry *entry)
{
        struct nd_entry *other = nd_entry_new(entry->message, sink, NULL);

        entry->subscription = NULL;
        entry->sink = NULL;
        if (other) {
                other->state = ND_ENTRY_BEGUN;
                return other;
        }
        nd_queue_take_back(&sink->queue, entry);
        nd_queue_count_taken_back(&sink->queue, entry->message, ND_DROP_MEMORY);
        ++sink->queue.gap_tail;
        return NULL;
}

void nd_group_leave(struct nd_subscription *member)
{
        struct nd_sink *sink = member->sink;
        const struct nd_half *half = &member->connection->outbox.half;
        struct nd_entry *begun = member->stream;

        group_set_work(member, NULL);
        /* newest first, each to the head */
        while (!nd_list_is_empty(&member->assigned))
                group_return(sink, nd_list_entry(member->assigned.prev, struct nd_entry, in_queue));
        member->n_assigned = 0;
        member->n_assigned_bytes = 0;

        if (begun) {
                struct nd_prelude reset = {.kind = ND_KIND_RESET, .stream = begun->stream};

                nd_outbox_control(&member->connection->outbox, &reset, NULL, NULL, 0);
        }
        member->stream = NULL;
        if (half->is_active && half->entry && half->entry->subscription == member)
                begun = group_replace(sink, half->entry);
        if (begun)
                group_return(sink, begun);
        while (!nd_list_is_empty(&member->unfinished))
                group_return(sink,
                             nd_list_entry(member->unfinished.prev, struct nd_entry, in_queue));
}
