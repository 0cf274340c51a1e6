/* SPDX-License-Identifier: MIT */

/*
 * Subscription
 *
 * What waits, waits in the queue, where the policy can still act: an entry leaves it only when the
 * socket takes its first byte. Taking a packet and having it sent are therefore two steps, and a
 * packet of which nothing was sent is undone.
 *
 * At most two messages are begun at a time: one from the queue, and one that is cut through, that
 * is, passed on while it still arrives. The second takes no place in the window until it is
 * complete, so that a publisher that pauses in the middle of a large message holds up nobody; and
 * once it is complete it is finished before anything else begins, because what follows in the
 * queue may be of the same source.
 */

#include "daemon/subscription.h"
#include <string.h>
#include "daemon/credit.h"
#include "daemon/pause.h"
#include "daemon/server.h"
#include "protocol/topic.h"

struct nd_subscription *nd_subscription_from_target(struct nd_target *target)
{
        return nd_container_of(target, struct nd_subscription, target);
}

static struct nd_server *subscription_server(const struct nd_subscription *subscription)
{
        return subscription->connection->server;
}

void nd_subscription_wake(struct nd_subscription *subscription)
{
        if (nd_list_is_empty(&subscription->in_ready))
                nd_list_push_tail(&subscription->connection->outbox.ready, &subscription->in_ready);
        nd_connection_mark_dirty(subscription->connection);
}

/* ------------------------------------------------------------------------------ coming and going */

static void subscription_deliver_retained(struct nd_subscription *subscription)
{
        struct nd_router *router = &subscription_server(subscription)->router;
        struct nd_topic *topic;

        RB_FOREACH (topic, nd_topic_tree, &router->topics) {
                if (topic->retained &&
                    nd_pattern_match(subscription->pattern, subscription->n_pattern, topic->name,
                                     topic->n_name))
                        nd_subscription_deliver_old(subscription, topic->retained);
        }
}

int nd_subscription_new(struct nd_connection *connection,
                        uint32_t id,
                        const struct nd_subscribe *ask,
                        struct nd_subscription **ret)
{
        struct nd_server *server = connection->server;
        uint64_t cost = sizeof(struct nd_subscription) + 4 * ask->pattern.n;
        struct nd_subscription *subscription;

        if (!nd_memory_charge(&server->store.memory, cost))
                return NDBUS_ENO_SPACE;
        subscription = calloc(1, sizeof(*subscription) + ask->pattern.n);
        if (!subscription || nd_router_add(&server->router, ask->pattern.at, ask->pattern.n,
                                           &subscription->target) < 0) {
                nd_memory_discharge(&server->store.memory, cost);
                free(subscription);
                return NDBUS_ENOMEM;
        }

        subscription->connection = connection;
        subscription->id = id;
        subscription->charged_bytes = cost;
        subscription->is_on_demand = ask->window_messages == 0;
        subscription->window_messages = ask->window_messages;
        subscription->window_bytes = ask->window_bytes;
        subscription->messages_left = (int64_t)ask->window_messages;
        subscription->bytes_left = (int64_t)ask->window_bytes;
        subscription->n_pattern = ask->pattern.n;
        memcpy(subscription->pattern, ask->pattern.at, ask->pattern.n);
        nd_list_init(&subscription->in_ready);
        nd_list_init(&subscription->old);
        nd_list_init(&subscription->arriving);
        nd_list_init(&subscription->pauses);
        nd_queue_init(&subscription->queue, subscription, &server->counters, ask->policy,
                      ask->depth_messages, ask->depth_bytes);
        RB_INSERT(nd_subscription_tree, &connection->subscriptions, subscription);
        ++connection->n_subscriptions;

        if (ask->retained)
                subscription_deliver_retained(subscription);
        nd_server_subscriptions_changed(server, subscription->pattern, subscription->n_pattern);
        *ret = subscription;
        return 0;
}

/* A begun entry ends early: RESET. What the socket has of its last packet is still finished. */
static void subscription_reset(struct nd_subscription *subscription, struct nd_entry *entry)
{
        struct nd_outbox *outbox = &subscription->connection->outbox;
        struct nd_prelude reset = {.kind = ND_KIND_RESET, .stream = entry->stream};

        if (subscription->cut == entry)
                subscription->cut = NULL;
        else
                subscription->stream = NULL;
        nd_outbox_control(outbox, &reset, NULL, NULL, 0);
        if (outbox->half.is_active && outbox->half.entry == entry)
                entry->subscription = NULL;
        else
                nd_entry_free(entry);
}

static void subscription_release_credit(struct nd_message *message)
{
        if (message->n_over == 0 && message->publisher)
                nd_credit_settled(message);
}

/* Lets go of every entry; what was matched and not delivered counts as dropped. */
static void subscription_drop_all(struct nd_subscription *subscription)
{
        struct nd_queue *queue = &subscription->queue;
        struct nd_entry *entry;

        while ((entry = nd_queue_peek(queue))) {
                struct nd_message *message = nd_message_ref(entry->message);

                nd_queue_drop(queue, entry, ND_DROP_ENDED);
                subscription_release_credit(message);
                nd_message_unref(message);
        }
        while (!nd_list_is_empty(&subscription->old))
                nd_entry_free(nd_list_entry(subscription->old.next, struct nd_entry, in_queue));
        while (!nd_list_is_empty(&subscription->arriving))
                nd_entry_free(
                        nd_list_entry(subscription->arriving.next, struct nd_entry, in_queue));

        for (int i = 0; i < 2; ++i) {
                entry = i == 0 ? subscription->cut : subscription->stream;
                if (!entry)
                        continue;
                if (entry->message->is_complete && !entry->is_old) {
                        nd_queue_count_taken_back(queue, ND_DROP_ENDED);
                        ++queue->gap_tail;
                }
                subscription_reset(subscription, entry);
        }
        nd_outbox_orphan(&subscription->connection->outbox, subscription);
}

void nd_subscription_free(struct nd_subscription *subscription)
{
        struct nd_connection *connection = subscription->connection;
        struct nd_server *server = connection->server;

        subscription_drop_all(subscription);
        nd_pause_end_subscription(subscription);
        nd_router_remove(&server->router, &subscription->target);
        nd_list_unlink(&subscription->in_ready);
        RB_REMOVE(nd_subscription_tree, &connection->subscriptions, subscription);
        --connection->n_subscriptions;
        nd_memory_discharge(&server->store.memory, subscription->charged_bytes);
        nd_server_subscriptions_changed(server, subscription->pattern, subscription->n_pattern);
        free(subscription);
}

void nd_subscription_end(struct nd_subscription *subscription,
                         const struct nd_fault *fault,
                         uint64_t sequence)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_UNSUBSCRIBED,
                .sequence = sequence,
                .subscription = subscription->id,
        };
        struct nd_unsubscribed said = {0};
        struct nd_control_bytes header;

        if (fault) {
                said = (struct nd_unsubscribed){
                        .code = (uint32_t)-fault->code,
                        .text = {fault->text, strlen(fault->text)},
                        .has_numbers = fault->has_numbers,
                        .value = fault->value,
                        .limit = fault->limit,
                };
        }
        subscription_drop_all(subscription);
        prelude.place = subscription->queue.gap_tail;
        nd_unsubscribed_pack(&said, &header);
        nd_outbox_control(&subscription->connection->outbox, &prelude, &header, NULL, 0);
        nd_subscription_free(subscription);
}

/* ------------------------------------------------------------------------------------- arriving */

/* The queue is full: what the socket and the window take now need not be dropped. */
static void subscription_push_out(struct nd_subscription *subscription)
{
        struct nd_outbox *outbox = &subscription->connection->outbox;

        if (!outbox->is_blocked && subscription->connection->state == ND_CONNECTION_OPEN)
                nd_outbox_write(outbox);
}

static void subscription_overflow(struct nd_subscription *subscription, uint64_t n_bytes)
{
        struct nd_queue *queue = &subscription->queue;
        struct nd_fault fault;

        if (queue->n_messages >= queue->depth_messages)
                nd_fault_set_limit(&fault, NDBUS_EOVERFLOW, "depth", queue->n_messages + 1,
                                   queue->depth_messages, "messages");
        else
                nd_fault_set_limit(&fault, NDBUS_EOVERFLOW, "bytes", queue->n_bytes + n_bytes,
                                   queue->depth_bytes, "bytes");
        nd_subscription_end(subscription, &fault, 0);
}

static void subscription_push(struct nd_subscription *subscription, struct nd_entry *entry)
{
        struct nd_pair *pair = entry->message->pair;
        uint64_t n_bytes = entry->message->body_bytes;

        if (nd_queue_is_full(&subscription->queue, n_bytes))
                subscription_push_out(subscription);
        switch (nd_queue_push(&subscription->queue, entry)) {
        case ND_QUEUE_E_DROPPED:
                return;
        case ND_QUEUE_E_OVERFLOW:
                subscription_overflow(subscription, n_bytes);
                return;
        case ND_QUEUE_E_OVER:
                if (pair)
                        nd_pause_add(subscription, pair);
                break;
        default:
                break;
        }
        if (subscription->full_since_ns == 0 && nd_queue_is_full(&subscription->queue, 0))
                subscription->full_since_ns = subscription_server(subscription)->now_ns;
        nd_subscription_wake(subscription);
}

void nd_subscription_deliver(struct nd_subscription *subscription, struct nd_message *message)
{
        struct nd_entry *entry = nd_entry_new(message, subscription);

        if (!entry) {
                nd_queue_count_begun(&subscription->queue);
                nd_queue_count_taken_back(&subscription->queue, ND_DROP_MEMORY);
                ++subscription->queue.gap_tail;
                return;
        }
        subscription_push(subscription, entry);
}

bool nd_subscription_announce(struct nd_subscription *subscription, struct nd_message *message)
{
        struct nd_entry *entry = nd_entry_new(message, subscription);

        if (!entry)
                return false;
        nd_list_push_tail(&subscription->arriving, &entry->in_queue);
        return true;
}

void nd_entry_advanced(struct nd_entry *entry)
{
        if (entry->subscription)
                nd_subscription_wake(entry->subscription);
}

void nd_subscription_deliver_old(struct nd_subscription *subscription, struct nd_message *message)
{
        struct nd_entry *entry = nd_entry_new(message, subscription);

        if (!entry)
                return;
        entry->is_old = true;
        nd_list_push_tail(&subscription->old, &entry->in_queue);
        nd_subscription_wake(subscription);
}

/* --------------------------------------------------------------------------------------- window */

static bool subscription_is_open(const struct nd_subscription *subscription, uint64_t n_bytes)
{
        if (subscription->messages_left < 1)
                return false;
        return subscription->is_on_demand || subscription->messages_out == 0 ||
               (subscription->bytes_left >= 0 && (uint64_t)subscription->bytes_left >= n_bytes);
}

static void subscription_use_window(struct nd_subscription *subscription, uint64_t n_bytes)
{
        --subscription->messages_left;
        subscription->bytes_left -= (int64_t)n_bytes;
        ++subscription->messages_out;
        subscription->bytes_out += n_bytes;
}

static void subscription_return_window(struct nd_subscription *subscription, uint64_t n_bytes)
{
        ++subscription->messages_left;
        subscription->bytes_left += (int64_t)n_bytes;
        --subscription->messages_out;
        subscription->bytes_out -= n_bytes;
}

static int subscription_grant_on_demand(struct nd_subscription *subscription,
                                        uint64_t n_messages,
                                        struct nd_fault *fault)
{
        uint64_t n_left = subscription->messages_left > 0;

        if (n_messages != 1 || n_left > 0)
                return nd_fault_set_limit(fault, NDBUS_ECREDIT, "messages", n_left + n_messages, 1,
                                          "messages");
        subscription->messages_left = 1;
        subscription->messages_out = 0;
        subscription->bytes_out = 0;
        return 0;
}

int nd_subscription_grant(struct nd_subscription *subscription,
                          uint64_t n_messages,
                          uint64_t n_bytes,
                          struct nd_fault *fault)
{
        if (subscription->is_on_demand) {
                int r = subscription_grant_on_demand(subscription, n_messages, fault);

                if (r < 0)
                        return r;
        } else {
                if (n_messages > subscription->messages_out)
                        return nd_fault_set_limit(fault, NDBUS_ECREDIT, "messages", n_messages,
                                                  subscription->messages_out, "messages");
                if (n_bytes > subscription->bytes_out)
                        return nd_fault_set_limit(fault, NDBUS_ECREDIT, "bytes", n_bytes,
                                                  subscription->bytes_out, "bytes");
                subscription->messages_left += (int64_t)n_messages;
                subscription->messages_out -= n_messages;
                subscription->bytes_left += (int64_t)n_bytes;
                subscription->bytes_out -= n_bytes;
        }
        if (subscription->full_since_ns != 0)
                subscription->full_since_ns = subscription_server(subscription)->now_ns;
        nd_subscription_wake(subscription);
        return 0;
}

bool nd_subscription_check_slow(struct nd_subscription *subscription, uint64_t now_ns)
{
        struct nd_server *server = subscription_server(subscription);
        uint64_t timeout_ms = server->options.block_timeout_ms;
        struct nd_fault fault;
        bool is_full;

        if (subscription->queue.policy != ND_POLICY_BLOCK)
                return false;
        /* while somebody waits for memory, what a block queue holds is in the way */
        is_full =
                nd_queue_is_full(&subscription->queue, 0) ||
                (subscription->queue.n_messages > 0 && !nd_list_is_empty(&server->memory_waiters));
        if (!is_full)
                subscription->full_since_ns = 0;
        else if (subscription->full_since_ns == 0)
                subscription->full_since_ns = now_ns;
        if (!is_full)
                return false;
        if (now_ns - subscription->full_since_ns < timeout_ms * 1000000)
                return false;
        nd_fault_set_limit(&fault, NDBUS_ESLOW, "block-timeout",
                           (now_ns - subscription->full_since_ns) / 1000000, timeout_ms, "ms");
        nd_subscription_end(subscription, &fault, 0);
        return true;
}

/* -------------------------------------------------------------------------------------- sending */

/* The next packet of a message under way. */
static bool subscription_continue(struct nd_subscription *subscription, struct nd_piece *ret)
{
        struct nd_entry *cut = subscription->cut;
        struct nd_entry *entry = subscription->stream;
        const struct nd_message *message;

        if (cut && cut->taken_bytes == cut->message->available_bytes)
                cut = NULL;
        if (cut && (!entry || subscription->is_cut_next))
                entry = cut;
        if (!entry)
                return false;

        subscription->is_cut_next = entry == subscription->stream;
        message = entry->message;
        *ret = (struct nd_piece){
                .kind = ND_KIND_CHUNK,
                .origin = ND_PIECE_CONTINUES,
                .subscription = subscription,
                .entry = entry,
                .from = entry->taken_bytes,
                .to = nd_min_u64(entry->taken_bytes + ND_CHUNK_BYTES, message->available_bytes),
                .is_cut = entry == subscription->cut,
        };
        ret->is_last = ret->to == message->body_bytes;
        entry->taken_bytes = ret->to;
        if (ret->is_last) {
                if (ret->is_cut)
                        subscription->cut = NULL;
                else
                        subscription->stream = NULL;
        }
        return true;
}

/* The retained value that goes next; one that a newer value has replaced is passed over. */
static struct nd_entry *subscription_next_old(struct nd_subscription *subscription)
{
        while (!nd_list_is_empty(&subscription->old)) {
                struct nd_entry *entry =
                        nd_list_entry(subscription->old.next, struct nd_entry, in_queue);

                if (entry->message->topic->retained == entry->message)
                        return entry;
                nd_entry_free(entry);
        }
        return NULL;
}

static struct nd_entry *subscription_next(struct nd_subscription *subscription,
                                          enum nd_piece_origin *ret_origin)
{
        struct nd_entry *entry;

        if (subscription->stream || (subscription->cut && subscription->cut->message->is_complete))
                return NULL;

        *ret_origin = ND_PIECE_FROM_OLD;
        entry = subscription_next_old(subscription);
        if (entry)
                return entry;

        *ret_origin = ND_PIECE_FROM_QUEUE;
        entry = nd_queue_peek(&subscription->queue);
        if (entry)
                return entry;

        *ret_origin = ND_PIECE_FROM_ARRIVING;
        if (subscription->cut || nd_list_is_empty(&subscription->arriving))
                return NULL;
        return nd_list_entry(subscription->arriving.next, struct nd_entry, in_queue);
}

static void
subscription_take_gap(struct nd_subscription *subscription, uint64_t *gap, struct nd_piece *ret)
{
        *ret = (struct nd_piece){
                .kind = ND_KIND_GAP,
                .subscription = subscription,
                .entry = gap == &subscription->queue.gap_tail
                                 ? NULL
                                 : nd_container_of(gap, struct nd_entry, gap_before),
                .gap = *gap,
        };
        *gap = 0;
}

static void subscription_begin(struct nd_subscription *subscription,
                               struct nd_entry *entry,
                               enum nd_piece_origin origin,
                               struct nd_piece *ret)
{
        const struct nd_message *message = entry->message;
        bool is_cut = origin == ND_PIECE_FROM_ARRIVING;
        bool is_inline = !is_cut && message->body_bytes <= ND_PACKET_BODY_BYTES_MAX;

        if (origin == ND_PIECE_FROM_QUEUE)
                nd_queue_pop(&subscription->queue);
        else
                nd_list_unlink(&entry->in_queue);
        entry->state = ND_ENTRY_BEGUN;
        if (!is_cut)
                subscription_use_window(subscription, message->body_bytes);

        *ret = (struct nd_piece){
                .kind = ND_KIND_MESSAGE,
                .origin = origin,
                .subscription = subscription,
                .entry = entry,
                .to = is_inline ? message->body_bytes : 0,
                .is_last = is_inline,
                .is_cut = is_cut,
        };
        entry->taken_bytes = ret->to;
        if (!is_inline) {
                entry->stream = nd_outbox_next_stream(&subscription->connection->outbox);
                *(is_cut ? &subscription->cut : &subscription->stream) = entry;
        }
}

bool nd_subscription_take(struct nd_subscription *subscription, struct nd_piece *ret)
{
        struct nd_queue *queue = &subscription->queue;
        enum nd_piece_origin origin;
        struct nd_entry *entry;

        if (subscription_continue(subscription, ret))
                return true;

        if (queue->n_messages == 0 && queue->gap_tail > 0) {
                subscription_take_gap(subscription, &queue->gap_tail, ret);
                return true;
        }
        entry = subscription_next(subscription, &origin);
        if (!entry || !subscription_is_open(subscription, entry->message->body_bytes))
                return false;
        if (entry->gap_before > 0)
                subscription_take_gap(subscription, &entry->gap_before, ret);
        else
                subscription_begin(subscription, entry, origin, ret);
        return true;
}

void nd_piece_undo(struct nd_piece *piece)
{
        struct nd_subscription *subscription = piece->subscription;
        struct nd_entry *entry = piece->entry;

        nd_subscription_wake(subscription);
        if (piece->kind == ND_KIND_GAP) {
                *(entry ? &entry->gap_before : &subscription->queue.gap_tail) += piece->gap;
                return;
        }

        entry->taken_bytes = piece->from;
        if (piece->origin == ND_PIECE_CONTINUES) {
                *(piece->is_cut ? &subscription->cut : &subscription->stream) = entry;
                return;
        }
        if (subscription->cut == entry)
                subscription->cut = NULL;
        if (subscription->stream == entry)
                subscription->stream = NULL;
        if (!piece->is_cut)
                subscription_return_window(subscription, entry->message->body_bytes);
        if (piece->origin == ND_PIECE_FROM_QUEUE) {
                nd_queue_unpop(&subscription->queue, entry);
                return;
        }
        entry->state = ND_ENTRY_ARRIVING;
        nd_list_push_head(piece->is_cut ? &subscription->arriving : &subscription->old,
                          &entry->in_queue);
}

/* The queue became shorter: publishers whose messages stood beyond its limits get their credit. */
static void subscription_settle(struct nd_subscription *subscription)
{
        struct nd_message *message;

        while ((message = nd_queue_settle(&subscription->queue)))
                subscription_release_credit(message);
        if (!nd_list_is_empty(&subscription->pauses))
                nd_pause_resume(subscription);
}

void nd_piece_begun(const struct nd_piece *piece)
{
        struct nd_subscription *subscription = piece->subscription;
        struct nd_server *server = subscription_server(subscription);
        struct nd_outbox *outbox = &subscription->connection->outbox;

        if (piece->kind == ND_KIND_GAP)
                return;
        if (piece->kind == ND_KIND_MESSAGE) {
                ++server->counters.messages_out;
                ++outbox->n_messages;
                if (piece->is_cut)
                        ++server->counters.messages_cut_through;
        }
        server->counters.messages_out_bytes += piece->to - piece->from;
        outbox->n_bytes += piece->to - piece->from;
        if (piece->origin == ND_PIECE_FROM_QUEUE && subscription->queue.policy == ND_POLICY_BLOCK) {
                subscription_release_credit(piece->entry->message);
                subscription_settle(subscription);
        }
}

/* Frees the blocks that every receiver is past. */
static void subscription_trim(struct nd_message *message)
{
        uint64_t offset = message->received_bytes;

        if (message->is_retained || message->n_blocks == 0)
                return;
        nd_list_for_each (i, &message->entries) {
                struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_message);

                if (entry->state != ND_ENTRY_BEGUN)
                        return;
                offset = nd_min_u64(offset, entry->sent_bytes);
        }
        nd_message_free_before(message, offset);
}

void nd_entry_sent(struct nd_entry *entry, uint64_t to, bool is_last)
{
        struct nd_message *message = entry->message;

        entry->sent_bytes = to;
        if (message->publisher)
                nd_credit_progress(message, is_last);
        if (is_last || !entry->subscription)
                nd_entry_free(entry);
        else
                subscription_trim(message);
}

void nd_piece_prelude(const struct nd_piece *piece, struct nd_prelude *ret)
{
        const struct nd_message *message;

        *ret = (struct nd_prelude){
                .kind = (uint8_t)piece->kind,
                .subscription = piece->subscription->id,
        };
        if (piece->kind == ND_KIND_GAP) {
                ret->place = piece->gap;
                return;
        }
        message = piece->entry->message;
        ret->stream = piece->entry->stream;
        if (piece->kind == ND_KIND_CHUNK) {
                ret->place = piece->from;
                ret->body_bytes = piece->to - piece->from;
                return;
        }
        ret->header_bytes = message->header->n;
        ret->meta_bytes = message->meta_bytes;
        ret->body_bytes = message->body_bytes;
        ret->source = message->source;
        ret->sequence = message->sequence;
        ret->time_ns = message->time_ns;
        if (!piece->is_last)
                ret->flags |= ND_FLAG_BODY_IN_CHUNKS;
        if (piece->entry->is_old)
                ret->flags |= ND_FLAG_RETAINED;
}

/* --------------------------------------------------------------- while and after a message arrives */

void nd_entry_completed(struct nd_entry *entry)
{
        struct nd_subscription *subscription = entry->subscription;

        if (!subscription)
                return;
        if (entry->state == ND_ENTRY_BEGUN) {
                nd_queue_count_begun(&subscription->queue);
                subscription_use_window(subscription, entry->message->body_bytes);
                nd_subscription_wake(subscription);
                return;
        }
        nd_list_unlink(&entry->in_queue);
        subscription_push(subscription, entry);
}

void nd_entry_aborted(struct nd_entry *entry)
{
        struct nd_subscription *subscription = entry->subscription;

        if (!subscription)
                return;
        if (entry->state == ND_ENTRY_BEGUN)
                subscription_reset(subscription, entry);
        else
                nd_entry_free(entry);
}

void nd_entry_taken_back(struct nd_entry *entry)
{
        struct nd_subscription *subscription = entry->subscription;
        struct nd_queue *queue;
        struct nd_entry *next;

        if (!subscription)
                return;
        queue = &subscription->queue;
        if (entry->state == ND_ENTRY_QUEUED) {
                nd_queue_drop(queue, entry, ND_DROP_MEMORY);
                nd_subscription_wake(subscription);
                return;
        }
        if (entry->state == ND_ENTRY_ARRIVING) { /* a retained value that did not go yet */
                nd_entry_free(entry);
                return;
        }
        if (entry != subscription->cut && entry != subscription->stream)
                return; /* its only packet is half sent: it is finished */

        next = nd_queue_peek(queue);
        subscription_return_window(subscription, entry->message->body_bytes);
        if (!entry->is_old) {
                nd_queue_count_taken_back(queue, ND_DROP_MEMORY);
                ++*(next ? &next->gap_before : &queue->gap_tail);
        }
        subscription_reset(subscription, entry);
        nd_subscription_wake(subscription);
}
