/* SPDX-License-Identifier: MIT */

/*
 * Queue
 *
 * Entries stand oldest first. Every entry carries how many messages were dropped just before it,
 * and the queue how many behind the last one, so a gap keeps its place wherever the policy takes a
 * message from, neighbours merge by addition, and nothing is lost from the count.
 *
 * A block queue may hold entries beyond its limits: those of publishers that had leave to send when
 * it filled. They are always its newest; the credit of their publishers waits until they fit. So they
 * are the publishers' burden, and are not counted for the identity whose queue it is.
 *
 * Of a group's queue what members have and have not finished counts in the limits, but for one message
 * of each, which it is at work on: else few members could work at a time, or only one, where messages
 * are large.
 */

#include "daemon/queue.h"

static const char *const drop_names[_ND_DROP_N] = {
        [ND_DROP_OLDEST] = "drop-oldest", [ND_DROP_NEWEST] = "drop-newest",
        [ND_DROP_LATEST] = "latest",      [ND_DROP_MEMORY] = "memory",
        [ND_DROP_LIMIT] = "limit",        [ND_DROP_ENDED] = "ended",
};

const char *nd_drop_name(enum nd_drop reason)
{
        return drop_names[reason];
}

static int nd_entry_compare(struct nd_entry *a, struct nd_entry *b)
{
        uintptr_t topic_a = (uintptr_t)a->message->topic;
        uintptr_t topic_b = (uintptr_t)b->message->topic;

        return (topic_a > topic_b) - (topic_a < topic_b);
}

RB_GENERATE_INTERNAL(
        nd_latest_tree, nd_entry, in_latest, nd_entry_compare, __attribute__((unused)) static)

struct nd_entry *
nd_entry_new(struct nd_message *message, struct nd_sink *sink, struct nd_subscription *subscription)
{
        struct nd_entry *entry = nd_slab_take(&message->store->entries, sizeof(*entry));

        if (!entry)
                return NULL;
        *entry = (struct nd_entry){
                .message = nd_message_ref(message),
                .sink = sink,
                .subscription = subscription,
                .state = ND_ENTRY_ARRIVING,
        };
        nd_list_push_tail(&message->entries, &entry->in_message);
        nd_list_init(&entry->in_queue);
        return entry;
}

struct nd_entry *nd_entry_free(struct nd_entry *entry)
{
        struct nd_store *store;

        if (!entry)
                return NULL;
        nd_assert(entry->state != ND_ENTRY_QUEUED);
        store = entry->message->store;
        nd_list_unlink(&entry->in_queue);
        nd_list_unlink(&entry->in_message);
        if (entry->is_old)
                nd_memory_discharge(&store->memory, ND_ENTRY_COST_BYTES);
        nd_message_unref(entry->message);
        nd_slab_give(&store->entries, entry);
        return NULL;
}

void nd_queue_init(struct nd_queue *queue,
                   struct nd_counters *counters,
                   enum nd_policy policy,
                   uint64_t depth_messages,
                   uint64_t depth_bytes)
{
        *queue = (struct nd_queue){
                .counters = counters,
                .policy = policy,
                .depth_messages = depth_messages,
                .depth_bytes = depth_bytes,
        };
        nd_list_init(&queue->entries);
        RB_INIT(&queue->latest);
}

static struct nd_entry *queue_entry(struct nd_list *node)
{
        return node ? nd_list_entry(node, struct nd_entry, in_queue) : NULL;
}

struct nd_entry *nd_queue_peek(const struct nd_queue *queue)
{
        return queue_entry(nd_list_first(&queue->entries));
}

static void
queue_count_drop(struct nd_queue *queue, const struct nd_message *message, enum nd_drop reason)
{
        uint64_t *const totals[_ND_DROP_N] = {
                [ND_DROP_OLDEST] = &queue->counters->dropped_oldest,
                [ND_DROP_NEWEST] = &queue->counters->dropped_newest,
                [ND_DROP_LATEST] = &queue->counters->dropped_latest,
                [ND_DROP_MEMORY] = &queue->counters->dropped_memory,
                [ND_DROP_LIMIT] = &queue->counters->dropped_limit,
                [ND_DROP_ENDED] = &queue->counters->dropped_ended,
        };

        ++queue->n_dropped[reason];
        ++*totals[reason];
        if (reason == ND_DROP_LATEST || reason == ND_DROP_ENDED)
                return;
        if (queue->n_lost++ == 0)
                queue->lost_topic = nd_topic_ref(message->topic);
        queue->lost_bytes += message->body_bytes;
        queue->lost_reason = reason;
}

void nd_queue_forget_losses(struct nd_queue *queue)
{
        queue->n_lost = 0;
        queue->lost_bytes = 0;
        queue->lost_topic = nd_topic_unref(queue->lost_topic);
}

/* ----------------------------------------------------------------------------- of an identity */

static inline void queue_charge(struct nd_queue *queue, const struct nd_message *message)
{
        uint64_t cost = nd_queue_cost(message);

        queue->charged_bytes += cost;
        if (queue->quota)
                queue->quota->account->used[ND_LIMIT_QUEUED] += cost;
}

static inline void queue_discharge(struct nd_queue *queue, const struct nd_message *message)
{
        uint64_t cost = nd_queue_cost(message);

        queue->charged_bytes -= cost;
        if (queue->quota)
                queue->quota->account->used[ND_LIMIT_QUEUED] -= cost;
}

void nd_queue_set_quota(struct nd_queue *queue, const struct nd_quota *quota)
{
        if (queue->quota)
                nd_quota_discharge(queue->quota, ND_LIMIT_QUEUED, queue->charged_bytes);
        queue->quota = quota;
        nd_quota_charge(queue->quota, ND_LIMIT_QUEUED, queue->charged_bytes);
}

void nd_queue_put_outside(struct nd_queue *queue, const struct nd_entry *entry)
{
        ++queue->n_outside;
        queue->n_outside_bytes += entry->message->body_bytes;
        queue_charge(queue, entry->message);
}

void nd_queue_take_back(struct nd_queue *queue, const struct nd_entry *entry)
{
        --queue->n_outside;
        queue->n_outside_bytes -= entry->message->body_bytes;
        queue_discharge(queue, entry->message);
}

/* --------------------------------------------------------------------------- linking and taking */

static void queue_link(struct nd_queue *queue, struct nd_list *before, struct nd_entry *entry)
{
        uint64_t n_bytes = entry->message->body_bytes;

        nd_list_insert_before(before, &entry->in_queue);
        entry->state = ND_ENTRY_QUEUED;
        ++queue->n_messages;
        queue->n_bytes += n_bytes;
        if (!entry->is_over)
                queue_charge(queue, entry->message);
        if (queue->policy == ND_POLICY_BLOCK)
                ++entry->message->n_pins;
        if (queue->policy == ND_POLICY_LATEST)
                RB_INSERT(nd_latest_tree, &queue->latest, entry);
}

static void queue_unlink(struct nd_queue *queue, struct nd_entry *entry)
{
        uint64_t n_bytes = entry->message->body_bytes;

        nd_assert(entry->state == ND_ENTRY_QUEUED);
        if (entry->is_over) {
                entry->is_over = false;
                --entry->message->n_over;
                --queue->n_over;
                queue->n_over_bytes -= n_bytes;
                if (queue->first_over == &entry->in_queue)
                        queue->first_over = entry->in_queue.next != &queue->entries
                                                    ? entry->in_queue.next
                                                    : NULL;
        } else {
                queue_discharge(queue, entry->message);
        }
        if (queue->policy == ND_POLICY_BLOCK)
                --entry->message->n_pins;
        if (queue->policy == ND_POLICY_LATEST)
                RB_REMOVE(nd_latest_tree, &queue->latest, entry);
        --queue->n_messages;
        queue->n_bytes -= n_bytes;
        nd_list_unlink(&entry->in_queue);
        entry->state = ND_ENTRY_BEGUN;
}

void nd_queue_drop(struct nd_queue *queue, struct nd_entry *entry, enum nd_drop reason)
{
        struct nd_list *next = entry->in_queue.next;
        uint64_t *gap = next == &queue->entries
                                ? &queue->gap_tail
                                : &nd_list_entry(next, struct nd_entry, in_queue)->gap_before;

        *gap += entry->gap_before + 1;
        queue_count_drop(queue, entry->message, reason);
        queue_unlink(queue, entry);
        nd_entry_free(entry);
}

void nd_queue_drop_before(struct nd_queue *queue,
                          const struct nd_message *message,
                          enum nd_drop reason)
{
        struct nd_entry *next = nd_queue_peek(queue);

        ++*(next ? &next->gap_before : &queue->gap_tail);
        ++queue->n_matched;
        queue_count_drop(queue, message, reason);
}

/* ------------------------------------------------------------------------------------- policies */

/* Has its identity more than it may have? */
static bool queue_is_beyond_quota(const struct nd_queue *queue)
{
        return queue->quota && nd_quota_is_over(queue->quota, ND_LIMIT_QUEUED, 0);
}

/* The new entry takes the place of the older one of its topic, which counts as dropped there. It may
 * be larger: then the oldest of other topics make room. Alone it fits the queue whatever its size, and
 * goes only where its identity has too much with what it has elsewhere. */
static bool queue_replace(struct nd_queue *queue, struct nd_entry *entry, int *ret)
{
        struct nd_entry *old = RB_FIND(nd_latest_tree, &queue->latest, entry);
        struct nd_list *before;

        if (!old)
                return false;
        before = old->in_queue.next;
        entry->gap_before = old->gap_before + 1;
        queue_count_drop(queue, old->message, ND_DROP_LATEST);
        queue_unlink(queue, old);
        nd_entry_free(old);
        queue_link(queue, before, entry);
        *ret = 0;
        while (queue->n_messages > 1) {
                bool is_full = queue->n_bytes > queue->depth_bytes;
                struct nd_entry *oldest = nd_queue_peek(queue);

                if (!is_full && !queue_is_beyond_quota(queue))
                        return true;
                if (oldest == entry)
                        oldest = nd_list_entry(entry->in_queue.next, struct nd_entry, in_queue);
                nd_queue_drop(queue, oldest, is_full ? ND_DROP_OLDEST : ND_DROP_LIMIT);
        }
        if (queue_is_beyond_quota(queue) &&
            queue->quota->account->used[ND_LIMIT_QUEUED] > queue->charged_bytes) {
                nd_queue_drop(queue, entry, ND_DROP_LIMIT);
                *ret = ND_QUEUE_E_DROPPED;
        }
        return true;
}

static void queue_append(struct nd_queue *queue, struct nd_entry *entry)
{
        entry->gap_before = queue->gap_tail;
        queue->gap_tail = 0;
        queue_link(queue, &queue->entries, entry);
}

static void queue_append_over(struct nd_queue *queue, struct nd_entry *entry)
{
        entry->is_over = true;
        queue_append(queue, entry);
        ++entry->message->n_over;
        ++queue->n_over;
        queue->n_over_bytes += entry->message->body_bytes;
        if (!queue->first_over)
                queue->first_over = &entry->in_queue;
}

static int
queue_refuse(struct nd_queue *queue, struct nd_entry *entry, enum nd_drop reason, int result)
{
        ++queue->gap_tail;
        queue_count_drop(queue, entry->message, reason);
        nd_entry_free(entry);
        return result;
}

/* If it is full, or its identity has what it may have, the policy decides. */
static int queue_make_room(struct nd_queue *queue, struct nd_entry *entry)
{
        const struct nd_message *message = entry->message;
        bool is_full;

        while ((is_full = nd_queue_is_full(queue, message->body_bytes)) ||
               nd_queue_is_over_quota(queue, message)) {
                switch (queue->policy) {
                case ND_POLICY_DROP_NEWEST:
                        return queue_refuse(queue, entry, is_full ? ND_DROP_NEWEST : ND_DROP_LIMIT,
                                            ND_QUEUE_E_DROPPED);
                case ND_POLICY_DISCONNECT:
                        return queue_refuse(queue, entry, ND_DROP_ENDED, ND_QUEUE_E_OVERFLOW);
                case ND_POLICY_BLOCK:
                        queue_append_over(queue, entry);
                        return ND_QUEUE_E_OVER;
                case ND_POLICY_DROP_OLDEST:
                case ND_POLICY_LATEST:
                        if (queue->n_messages == 0) /* what members or other queues have */
                                return queue_refuse(queue, entry,
                                                    is_full ? ND_DROP_OLDEST : ND_DROP_LIMIT,
                                                    ND_QUEUE_E_DROPPED);
                        nd_queue_drop(queue, nd_queue_peek(queue),
                                      is_full ? ND_DROP_OLDEST : ND_DROP_LIMIT);
                        break;
                }
        }
        queue_append(queue, entry);
        return 0;
}

int nd_queue_push(struct nd_queue *queue, struct nd_entry *entry)
{
        int r;

        ++queue->n_matched;
        if (queue->policy == ND_POLICY_LATEST && queue_replace(queue, entry, &r))
                return r;
        if (queue->n_over == 0)
                return queue_make_room(queue, entry);
        queue_append_over(queue, entry); /* behind them, whatever has become free elsewhere */
        return ND_QUEUE_E_OVER;
}

void nd_queue_add(struct nd_queue *queue, struct nd_entry *entry)
{
        ++queue->n_matched;
        queue_append(queue, entry);
}

/* -------------------------------------------------------------------------------------- sending */

void nd_queue_count_begun(struct nd_queue *queue)
{
        ++queue->n_matched;
        ++queue->n_delivered;
}

struct nd_entry *nd_queue_pop(struct nd_queue *queue)
{
        struct nd_entry *entry = nd_queue_peek(queue);

        if (!entry)
                return NULL;
        queue_unlink(queue, entry);
        ++queue->n_delivered;
        return entry;
}

void nd_queue_unpop(struct nd_queue *queue, struct nd_entry *entry)
{
        --queue->n_delivered;
        queue_link(queue, queue->entries.next, entry);
}

struct nd_message *nd_queue_settle(struct nd_queue *queue)
{
        struct nd_entry *entry = queue_entry(queue->first_over);
        uint64_t n_bytes;

        if (!entry)
                return NULL;
        n_bytes = entry->message->body_bytes;
        if (nd_queue_would_fill(queue, nd_queue_held(queue) - queue->n_over,
                                nd_queue_held_bytes(queue) - queue->n_over_bytes, n_bytes) ||
            nd_queue_is_over_quota(queue, entry->message))
                return NULL;

        entry->is_over = false;
        --entry->message->n_over;
        --queue->n_over;
        queue->n_over_bytes -= n_bytes;
        queue->first_over = entry->in_queue.next != &queue->entries ? entry->in_queue.next : NULL;
        queue_charge(queue, entry->message);
        return entry->message;
}

void nd_queue_count_taken_back(struct nd_queue *queue,
                               const struct nd_message *message,
                               enum nd_drop reason)
{
        --queue->n_delivered;
        queue_count_drop(queue, message, reason);
}

uint64_t nd_queue_dropped(const struct nd_queue *queue)
{
        uint64_t n = 0;

        for (size_t i = 0; i < _ND_DROP_N; ++i)
                n += queue->n_dropped[i];
        return n;
}
