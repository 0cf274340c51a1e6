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
#include <inttypes.h>
#include <string.h>
#include "daemon/admission.h"
#include "daemon/credit.h"
#include "daemon/group.h"
#include "daemon/server.h"
#include "protocol/topic.h"

#define SUBSCRIPTION_HOLDER_BYTES_MAX (64u * 1024u)

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

/* The retained value of a topic, for a new subscription. 0; NDBUS_ENO_SPACE, NDBUS_ENOMEM */
static int subscription_deliver_old(struct nd_subscription *subscription,
                                    struct nd_message *message)
{
        struct nd_server *server = subscription_server(subscription);
        struct nd_entry *entry;

        if (!nd_server_charge(server, ND_ENTRY_COST_BYTES))
                return NDBUS_ENO_SPACE;
        entry = nd_entry_new(message, subscription->sink, subscription);
        if (!entry) {
                nd_memory_discharge(&server->store.memory, ND_ENTRY_COST_BYTES);
                return NDBUS_ENOMEM;
        }
        entry->is_old = true;
        nd_list_push_tail(&subscription->old, &entry->in_queue);
        nd_subscription_wake(subscription);
        return 0;
}

static int subscription_deliver_retained(struct nd_subscription *subscription)
{
        struct nd_router *router = &subscription_server(subscription)->router;
        struct nd_topic *topic;
        int r = 0;

        RB_FOREACH (topic, nd_topic_tree, &router->topics) {
                if (r == 0 && topic->retained &&
                    nd_pattern_match(subscription->sink->names, subscription->sink->n_pattern,
                                     topic->name, topic->n_name) &&
                    nd_rights_allow(subscription->sink->target.rights, ND_RIGHT_SUBSCRIBE,
                                    topic->name, topic->n_name))
                        r = subscription_deliver_old(subscription, topic->retained);
        }
        return r;
}

static int subscription_join(struct nd_server *server,
                             const struct nd_subscribe *ask,
                             struct nd_sink **ret,
                             struct nd_fault *fault)
{
        struct nd_sink *sink = ask->group.n > 0 ? nd_sink_find_group(server, ask) : NULL;
        int r;

        if (!sink) {
                r = nd_sink_new(server, ask, ret);
                return r < 0 ? nd_fault_set(fault, r, "subscription", "%s", ndbus_strerror(r)) : 0;
        }
        if (sink->queue.policy != ask->policy ||
            sink->queue.depth_messages != ask->depth_messages ||
            sink->queue.depth_bytes != ask->depth_bytes)
                return nd_fault_set(fault, NDBUS_EGROUP, "group",
                                    "its members have policy %s, depth %llu and bytes %llu",
                                    nd_policy_name(sink->queue.policy),
                                    (unsigned long long)sink->queue.depth_messages,
                                    (unsigned long long)sink->queue.depth_bytes);
        *ret = sink;
        return 0;
}

int nd_subscription_new(struct nd_connection *connection,
                        uint32_t id,
                        const struct nd_subscribe *ask,
                        struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        uint64_t cost = sizeof(struct nd_subscription);
        struct nd_subscription *subscription;
        struct nd_sink *sink;
        int r;

        if (!nd_server_charge(server, cost))
                return nd_memory_fault(&server->store.memory, cost, fault);
        subscription = calloc(1, sizeof(*subscription));
        r = subscription ? subscription_join(server, ask, &sink, fault)
                         : nd_fault_set(fault, NDBUS_ENOMEM, "subscription", "no memory");
        if (r < 0) {
                nd_memory_discharge(&server->store.memory, cost);
                free(subscription);
                return r;
        }

        subscription->connection = connection;
        subscription->sink = sink;
        nd_admission_filter(connection, sink);
        subscription->id = id;
        subscription->charged_bytes = cost;
        subscription->is_on_demand = ask->window_messages == 0;
        subscription->messages_left = (int64_t)ask->window_messages;
        subscription->bytes_left = (int64_t)ask->window_bytes;
        nd_list_init(&subscription->in_ready);
        nd_list_init(&subscription->old);
        nd_list_init(&subscription->assigned);
        nd_list_init(&subscription->unfinished);
        nd_list_push_tail(&sink->members, &subscription->in_sink);
        RB_INSERT(nd_subscription_tree, &connection->subscriptions, subscription);
        ++connection->n_subscriptions;
        nd_quota_charge(&connection->quota, ND_LIMIT_SUBSCRIPTIONS, 1);
        if (!sink->queue.quota)
                nd_queue_set_quota(&sink->queue, &connection->quota);

        if (nd_sink_is_group(sink))
                nd_group_dispatch(sink);
        else if (ask->retained)
                r = subscription_deliver_retained(subscription);
        if (r < 0) {
                nd_subscription_free(subscription);
                return nd_fault_set(fault, r, "retained", "%s", ndbus_strerror(r));
        }
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
                nd_outbox_orphan(outbox, subscription);
        else
                nd_entry_free(entry);
}

/* Lets go of what it is being sent. What was complete counts as dropped. */
static void subscription_leave(struct nd_subscription *subscription)
{
        struct nd_queue *queue = &subscription->sink->queue;

        while (!nd_list_is_empty(&subscription->old))
                nd_entry_free(nd_list_entry(subscription->old.next, struct nd_entry, in_queue));
        if (nd_sink_is_group(subscription->sink))
                nd_group_leave(subscription);
        for (int i = 0; i < 2; ++i) {
                struct nd_entry *entry = i == 0 ? subscription->cut : subscription->stream;

                if (!entry)
                        continue;
                if (entry->message->is_complete && !entry->is_old) {
                        nd_queue_count_taken_back(queue, entry->message, ND_DROP_ENDED);
                        ++queue->gap_tail;
                }
                subscription_reset(subscription, entry);
        }
        nd_outbox_orphan(&subscription->connection->outbox, subscription);
}

/* A group's queue is counted for its oldest member. */
static void subscription_bequeath(struct nd_sink *sink, const struct nd_connection *connection)
{
        const struct nd_subscription *oldest =
                nd_list_entry(sink->members.next, struct nd_subscription, in_sink);

        if (sink->queue.quota == &connection->quota)
                nd_queue_set_quota(&sink->queue, &oldest->connection->quota);
}

/* Returns how many messages are dropped with it and not yet told. */
static uint64_t subscription_free(struct nd_subscription *subscription)
{
        struct nd_connection *connection = subscription->connection;
        struct nd_sink *sink = subscription->sink;
        uint64_t n_dropped = 0;

        if (sink->members.next == sink->members.prev)
                nd_trouble_leave(sink);
        subscription_leave(subscription);
        nd_list_unlink(&subscription->in_ready);
        nd_list_unlink(&subscription->in_sink);
        RB_REMOVE(nd_subscription_tree, &connection->subscriptions, subscription);
        --connection->n_subscriptions;
        nd_quota_discharge(&connection->quota, ND_LIMIT_SUBSCRIPTIONS, 1);
        nd_memory_discharge(&connection->server->store.memory, subscription->charged_bytes);
        free(subscription);
        if (nd_list_is_empty(&sink->members)) {
                n_dropped = nd_sink_free(sink);
        } else {
                subscription_bequeath(sink, connection);
                nd_sink_settle(sink);
                nd_group_dispatch(sink);
        }
        return n_dropped;
}

void nd_subscription_free(struct nd_subscription *subscription)
{
        (void)subscription_free(subscription);
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
        struct nd_outbox *outbox = &subscription->connection->outbox;
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
        prelude.place = subscription_free(subscription);
        nd_unsubscribed_pack(&said, &header);
        nd_outbox_control(outbox, &prelude, &header, NULL, 0);
}

void nd_subscription_stop(struct nd_subscription *subscription)
{
        if (nd_sink_is_group(subscription->sink))
                nd_group_finish_all(subscription);
        subscription_leave(subscription);
}

uint64_t nd_subscription_give_up(struct nd_subscription *subscription)
{
        struct nd_prelude gap = {
                .kind = ND_KIND_GAP,
                .subscription = subscription->id,
                .place = nd_sink_drop(subscription->sink),
        };

        if (gap.place > 0)
                nd_outbox_control(&subscription->connection->outbox, &gap, NULL, NULL, 0);
        return gap.place;
}

void nd_entry_advanced(struct nd_entry *entry)
{
        if (entry->subscription)
                nd_subscription_wake(entry->subscription);
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

void nd_subscription_return_window(struct nd_subscription *subscription, uint64_t n_bytes)
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
        if (n_messages > 0)
                nd_sink_took(subscription->sink);
        nd_subscription_wake(subscription);
        return 0;
}

/* -------------------------------------------------------------------------------------- sending */

/* Body bytes of one packet, which are @most. Who holds blocks is not closed for being slow, so what it
 * can leave half sent is bounded. */
static uint64_t subscription_packet_bytes(const struct nd_subscription *subscription, uint64_t most)
{
        return subscription->connection->holder.n_held > 0
                       ? nd_min_u64(most, SUBSCRIPTION_HOLDER_BYTES_MAX)
                       : most;
}

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
                .to = nd_min_u64(entry->taken_bytes +
                                         subscription_packet_bytes(subscription, ND_CHUNK_BYTES),
                                 message->available_bytes),
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

static struct nd_entry *subscription_first(const struct nd_list *list)
{
        struct nd_list *node = nd_list_first(list);

        return node ? nd_list_entry(node, struct nd_entry, in_queue) : NULL;
}

/* What may be begun while it arrives. A body that is received into a block is handed over whole; until it
 * is, others go past it, and its publisher, which is paced by its receivers, is not kept waiting. */
static struct nd_entry *subscription_next_arriving(struct nd_subscription *subscription)
{
        nd_list_for_each (i, &subscription->sink->arriving) {
                struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_queue);
                struct nd_message *message = entry->message;

                if (!message->block || !nd_ledger_takes_blocks(subscription->connection))
                        return entry;
                if (entry->sent_bytes < message->available_bytes &&
                    subscription_is_open(subscription, message->body_bytes)) {
                        entry->sent_bytes = message->available_bytes;
                        nd_credit_progress(message, false);
                }
        }
        return NULL;
}

static struct nd_entry *subscription_next(struct nd_subscription *subscription,
                                          enum nd_piece_origin *ret_origin)
{
        struct nd_sink *sink = subscription->sink;
        struct nd_entry *entry;

        if (subscription->stream || (subscription->cut && subscription->cut->message->is_complete))
                return NULL;

        *ret_origin = ND_PIECE_FROM_OLD;
        entry = subscription_next_old(subscription);
        if (entry)
                return entry;

        if (nd_sink_is_group(sink)) {
                *ret_origin = ND_PIECE_FROM_ASSIGNED;
                return subscription_first(&subscription->assigned);
        }
        *ret_origin = ND_PIECE_FROM_QUEUE;
        entry = nd_queue_peek(&subscription->sink->queue);
        if (entry)
                return entry;

        *ret_origin = ND_PIECE_FROM_ARRIVING;
        entry = subscription_next_arriving(subscription);
        return subscription->cut ? NULL : entry;
}

static void
subscription_take_gap(struct nd_subscription *subscription, uint64_t *gap, struct nd_piece *ret)
{
        *ret = (struct nd_piece){
                .kind = ND_KIND_GAP,
                .subscription = subscription,
                .entry = gap == &subscription->sink->queue.gap_tail
                                 ? NULL
                                 : nd_container_of(gap, struct nd_entry, gap_before),
                .gap = *gap,
        };
        *gap = 0;
}

/* The daemon cannot read its body, and the client cannot be handed it. */
static void subscription_drop(struct nd_subscription *subscription,
                              struct nd_entry *entry,
                              enum nd_piece_origin origin)
{
        struct nd_sink *sink = subscription->sink;

        if (origin == ND_PIECE_FROM_ASSIGNED) {
                nd_group_drop(entry);
        } else if (origin == ND_PIECE_FROM_QUEUE) {
                nd_queue_drop(&sink->queue, entry, ND_DROP_MEMORY);
        } else { /* retained: what a publisher's block holds does not arrive */
                nd_queue_drop_before(&sink->queue, entry->message, ND_DROP_MEMORY);
                nd_entry_free(entry);
        }
        nd_sink_settle(sink);
        nd_sink_wake(sink);
}

static void subscription_begin(struct nd_subscription *subscription,
                               struct nd_entry *entry,
                               enum nd_piece_origin origin,
                               struct nd_handed *handed,
                               struct nd_piece *ret)
{
        const struct nd_message *message = entry->message;
        bool is_cut = origin == ND_PIECE_FROM_ARRIVING;
        bool is_whole = handed ||
                        (!is_cut &&
                         message->body_bytes <=
                                 subscription_packet_bytes(subscription, ND_PACKET_BODY_BYTES_MAX));

        if (origin == ND_PIECE_FROM_QUEUE)
                nd_queue_pop(&subscription->sink->queue);
        else
                nd_list_unlink(&entry->in_queue);
        entry->state = ND_ENTRY_BEGUN;
        if (!is_cut)
                subscription_use_window(subscription, message->body_bytes);
        if (origin == ND_PIECE_FROM_ASSIGNED) {
                --subscription->n_assigned;
                subscription->n_assigned_bytes -= message->body_bytes;
                entry->number = ++subscription->n_deliveries;
        }

        *ret = (struct nd_piece){
                .kind = ND_KIND_MESSAGE,
                .origin = origin,
                .subscription = subscription,
                .entry = entry,
                .handed = handed,
                .to = is_whole && !handed ? message->body_bytes : 0,
                .is_last = is_whole,
                .is_cut = is_cut,
        };
        entry->taken_bytes = ret->to;
        if (!is_whole) {
                entry->stream = nd_outbox_next_stream(&subscription->connection->outbox);
                *(is_cut ? &subscription->cut : &subscription->stream) = entry;
        }
}

/* The segment that the next message lies in goes first. */
static void subscription_take_segment(struct nd_subscription *subscription,
                                      struct nd_handed *handed,
                                      struct nd_piece *ret)
{
        handed->state = ND_HANDED_TOLD;
        *ret = (struct nd_piece){
                .kind = ND_KIND_SEGMENT,
                .subscription = subscription,
                .handed = handed,
        };
}

/* A message whose body lies in a block of shared memory. false: it cannot be read, and is dropped */
static bool subscription_take_block(struct nd_subscription *subscription,
                                    struct nd_entry *entry,
                                    enum nd_piece_origin origin,
                                    struct nd_piece *ret)
{
        struct nd_block *block = entry->message->block;
        struct nd_handed *handed = NULL;
        enum nd_way way = nd_ledger_way(subscription->connection, block, &handed);

        if (way == ND_WAY_HAND) {
                subscription_take_segment(subscription, handed, ret);
                return true;
        }
        if (way == ND_WAY_BLOCK && nd_ledger_hold(handed, block)) {
                subscription_begin(subscription, entry, origin, handed, ret);
                return true;
        }
        if (!nd_message_reach(entry->message)) {
                subscription_drop(subscription, entry, origin);
                return false;
        }
        subscription_begin(subscription, entry, origin, NULL, ret);
        ret->is_fallback = way != ND_WAY_SOCKET;
        return true;
}

bool nd_subscription_take(struct nd_subscription *subscription, struct nd_piece *ret)
{
        struct nd_queue *queue = &subscription->sink->queue;
        enum nd_piece_origin origin;
        struct nd_entry *entry;

        if (subscription_continue(subscription, ret))
                return true;

        if (queue->n_messages == 0 && queue->gap_tail > 0 &&
            nd_list_is_empty(&subscription->assigned)) {
                subscription_take_gap(subscription, &queue->gap_tail, ret);
                return true;
        }
        entry = subscription_next(subscription, &origin);
        if (!entry || !subscription_is_open(subscription, entry->message->body_bytes))
                return false;
        if (entry->gap_before > 0)
                subscription_take_gap(subscription, &entry->gap_before, ret);
        else if (entry->message->block)
                return subscription_take_block(subscription, entry, origin, ret);
        else
                subscription_begin(subscription, entry, origin, NULL, ret);
        return true;
}

void nd_piece_undo(struct nd_piece *piece)
{
        struct nd_subscription *subscription = piece->subscription;
        struct nd_entry *entry = piece->entry;

        nd_subscription_wake(subscription);
        if (piece->kind == ND_KIND_SEGMENT) {
                piece->handed->state = ND_HANDED_NEW;
                return;
        }
        if (piece->kind == ND_KIND_GAP) {
                *(entry ? &entry->gap_before : &subscription->sink->queue.gap_tail) += piece->gap;
                return;
        }

        entry->taken_bytes = piece->from;
        if (piece->origin == ND_PIECE_CONTINUES) {
                *(piece->is_cut ? &subscription->cut : &subscription->stream) = entry;
                return;
        }
        if (piece->handed)
                nd_ledger_unhold(piece->handed, entry->message->block);
        /* it may be whole, and small enough for one packet, when it is begun again */
        entry->stream = 0;
        if (subscription->cut == entry)
                subscription->cut = NULL;
        if (subscription->stream == entry)
                subscription->stream = NULL;
        if (!piece->is_cut)
                nd_subscription_return_window(subscription, entry->message->body_bytes);
        if (piece->origin == ND_PIECE_FROM_QUEUE) {
                nd_queue_unpop(&subscription->sink->queue, entry);
                return;
        }
        if (piece->origin == ND_PIECE_FROM_ASSIGNED) {
                ++subscription->n_assigned;
                subscription->n_assigned_bytes += entry->message->body_bytes;
                --subscription->n_deliveries;
                entry->state = ND_ENTRY_ASSIGNED;
                nd_list_push_head(&subscription->assigned, &entry->in_queue);
                return;
        }
        entry->state = ND_ENTRY_ARRIVING;
        nd_list_push_head(piece->is_cut ? &subscription->sink->arriving : &subscription->old,
                          &entry->in_queue);
}

static void subscription_say_fallback(const struct nd_subscription *subscription,
                                      const struct nd_message *message)
{
        const struct nd_connection *connection = subscription->connection;
        const struct nd_holder *holder = &connection->holder;
        const struct nd_quota *quota = &connection->quota;
        struct nd_server *server = connection->server;
        char most[48] = "";

        ++server->counters.shm_fallback;
        if (!connection->sees_all) /* so it is meant to be */
                return;
        if (quota->most[ND_LIMIT_HELD] != ND_LIMIT_NONE)
                snprintf(most, sizeof(most), " identity_held_max=%" PRIu64,
                         quota->most[ND_LIMIT_HELD]);
        nd_log_limited(&server->fallback_log, server->now_ns, ND_LOG_NOTICE,
                       "a message goes by the socket peer=\"%s\" client=\"%s\" bytes=%" PRIu64
                       " held_blocks=%" PRIu64 " held_bytes=%" PRIu64 " held_max=%" PRIu64
                       " identity=%s identity_held_bytes=%" PRIu64 "%s",
                       connection->peer, connection->client, message->body_bytes, holder->n_held,
                       holder->held_bytes, server->options.shm_max / ND_HOLDER_PART,
                       quota->account->name, quota->account->used[ND_LIMIT_HELD], most);
}

void nd_piece_begun(const struct nd_piece *piece)
{
        struct nd_subscription *subscription = piece->subscription;
        struct nd_server *server = subscription_server(subscription);
        struct nd_outbox *outbox = &subscription->connection->outbox;
        uint64_t n_bytes = piece->to - piece->from;

        if (piece->kind == ND_KIND_GAP || piece->kind == ND_KIND_SEGMENT)
                return;
        nd_sink_took(subscription->sink);
        if (piece->kind == ND_KIND_MESSAGE) {
                ++server->counters.messages_out;
                ++outbox->n_messages;
                if (piece->is_cut)
                        ++server->counters.messages_cut_through;
                if (piece->origin <= ND_PIECE_FROM_ASSIGNED)
                        nd_observe_queue_wait_seconds(&server->histograms.queue_wait_seconds,
                                                      server->now_ns - piece->entry->since_ns);
                if (piece->handed) {
                        ++server->counters.shm_deliveries;
                        n_bytes = piece->entry->message->body_bytes;
                }
                if (piece->is_fallback)
                        subscription_say_fallback(subscription, piece->entry->message);
        }
        server->counters.messages_out_bytes += n_bytes;
        outbox->n_bytes += n_bytes;
        if (piece->origin == ND_PIECE_FROM_QUEUE &&
            subscription->sink->queue.policy == ND_POLICY_BLOCK) {
                nd_sink_release_credit(piece->entry->message);
                nd_sink_settle(subscription->sink);
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

                /* what a group's member does not finish is sent again from its first byte */
                if (entry->state != ND_ENTRY_BEGUN ||
                    (entry->sink && nd_sink_is_group(entry->sink)))
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
        if (!entry->subscription)
                nd_entry_free(entry);
        else if (!is_last)
                subscription_trim(message);
        else if (nd_sink_is_group(entry->sink))
                nd_group_sent(entry);
        else
                nd_entry_free(entry);
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
        if (piece->kind == ND_KIND_SEGMENT) {
                ret->subscription = 0;
                ret->flags = ND_FLAG_FD;
                ret->segment = piece->handed->number;
                ret->place = piece->handed->share->memory.bytes;
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
        if (piece->handed) {
                ret->flags |= ND_FLAG_BODY_IN_BLOCK;
                ret->segment = piece->handed->number;
                ret->place = message->block->place;
        }
        if (!piece->is_last)
                ret->flags |= ND_FLAG_BODY_IN_CHUNKS;
        if (piece->entry->is_old)
                ret->flags |= ND_FLAG_RETAINED;
        if (piece->entry->is_redelivered)
                ret->flags |= ND_FLAG_REDELIVERED;
}

/* --------------------------------------------------------------- while and after a message arrives */

void nd_entry_completed(struct nd_entry *entry)
{
        struct nd_subscription *subscription = entry->subscription;
        struct nd_sink *sink = entry->sink;

        if (!sink)
                return;
        if (entry->state == ND_ENTRY_BEGUN) {
                nd_queue_count_begun(&sink->queue);
                subscription_use_window(subscription, entry->message->body_bytes);
                nd_subscription_wake(subscription);
                return;
        }
        nd_list_unlink(&entry->in_queue);
        nd_sink_push(sink, entry);
}

void nd_entry_aborted(struct nd_entry *entry)
{
        if (!entry->sink)
                return;
        if (entry->state == ND_ENTRY_BEGUN)
                subscription_reset(entry->subscription, entry);
        else
                nd_entry_free(entry);
}

void nd_entry_taken_back(struct nd_entry *entry)
{
        struct nd_subscription *subscription = entry->subscription;
        struct nd_sink *sink = entry->sink;
        struct nd_entry *next;

        if (!sink)
                return;
        if (entry->state == ND_ENTRY_QUEUED) {
                nd_queue_drop(&sink->queue, entry, ND_DROP_MEMORY);
                nd_sink_wake(sink);
                return;
        }
        if (entry->state == ND_ENTRY_ARRIVING) { /* a retained value that did not go yet */
                nd_entry_free(entry);
                return;
        }
        if (nd_sink_is_group(sink) || (entry != subscription->cut && entry != subscription->stream))
                return; /* a member has it, or its only packet is half sent: it is finished */

        next = nd_queue_peek(&sink->queue);
        nd_subscription_return_window(subscription, entry->message->body_bytes);
        if (!entry->is_old) {
                nd_queue_count_taken_back(&sink->queue, entry->message, ND_DROP_MEMORY);
                ++*(next ? &next->gap_before : &sink->queue.gap_tail);
        }
        subscription_reset(subscription, entry);
        nd_subscription_wake(subscription);
}
