/* SPDX-License-Identifier: MIT */

/*
 * Publisher
 *
 * A PUBLISH is read in three steps that may be far apart: its header, which decides what becomes of
 * it; its body, which is received where it will be sent from; its last byte, at which it is
 * published. A body larger than a chunk is announced to its receivers with the header and passed on
 * while it arrives (cut-through), as fast as the socket brings it; a smaller one is delivered when
 * it is whole.
 *
 * A message that memory has no room for waits in the backlog, and everything behind it, in order;
 * it occupies what was granted and nothing more.
 */

#include "daemon/publisher.h"
#include <inttypes.h>
#include <string.h>
#include "daemon/credit.h"
#include "daemon/pause.h"
#include "daemon/server.h"
#include "protocol/topic.h"

#define PUBLISHER_HEADER_KEPT_MAX 1024u /* bytes, of a topic */

#define PUBLISHER_PAIRS_MAX 65536u /* topics of one connection */
#define PUBLISHER_STALL_S   30u    /* an open PUBLISH that brings nothing */
#define PUBLISHER_STALL_NS  (PUBLISHER_STALL_S * UINT64_C(1000000000))
#define PUBLISHER_SLOW_NS   (UINT64_C(10) * 1000000000) /* the same while others wait for memory */

static int nd_pair_compare(struct nd_pair *a, struct nd_pair *b)
{
        return ((uintptr_t)a->topic > (uintptr_t)b->topic) -
               ((uintptr_t)a->topic < (uintptr_t)b->topic);
}

RB_GENERATE_INTERNAL(
        nd_pair_tree, nd_pair, in_publisher, nd_pair_compare, __attribute__((unused)) static)

static struct nd_server *publisher_server(const struct nd_publisher *publisher)
{
        return publisher->connection->server;
}

static struct nd_memory *publisher_memory(const struct nd_publisher *publisher)
{
        return &publisher_server(publisher)->store.memory;
}

void nd_publisher_init(struct nd_publisher *publisher, struct nd_connection *connection)
{
        *publisher = (struct nd_publisher){.connection = connection};
        RB_INIT(&publisher->pairs);
        nd_list_init(&publisher->news);
        nd_list_init(&publisher->backlog);
        nd_list_init(&publisher->held);
        nd_list_init(&publisher->in_lead);
        nd_list_init(&publisher->in_waiters);
}

static struct nd_message *publisher_first(const struct nd_list *list)
{
        struct nd_list *node = nd_list_first(list);

        return node ? nd_list_entry(node, struct nd_message, in_publisher) : NULL;
}

bool nd_publisher_is_paused(struct nd_publisher *publisher, const struct nd_topic *topic)
{
        struct nd_pair key = {.topic = (struct nd_topic *)(uintptr_t)topic};
        const struct nd_pair *pair = RB_FIND(nd_pair_tree, &publisher->pairs, &key);

        return pair && !nd_list_is_empty(&pair->pauses);
}

bool nd_publisher_is_busy(const struct nd_publisher *publisher)
{
        return publisher->in.is_open || publisher->in.packet_left > 0;
}

uint64_t nd_publisher_routed(const struct nd_publisher *publisher)
{
        const struct nd_message *first = publisher_first(&publisher->backlog);

        if (first)
                return first->number - 1;
        return publisher->n_received - nd_publisher_is_busy(publisher);
}

/* ------------------------------------------------------------------------------------- refusing */

/* Tells the client, and discards what still comes of the message. */
static void
publisher_refuse(struct nd_publisher *publisher, uint64_t number, const struct nd_fault *fault)
{
        struct nd_counters *counters = &publisher_server(publisher)->counters;

        if (fault->code == NDBUS_ETOO_BIG)
                ++counters->refused_too_big;
        else if (fault->code == NDBUS_ENO_SPACE || fault->code == NDBUS_ENOMEM)
                ++counters->refused_no_space;
        else
                ++counters->refused_other;
        nd_connection_error(publisher->connection, fault, ND_KIND_PUBLISH, number);
}

/* Lets go of the message under way; its bytes are discarded from now on. */
static void publisher_discard(struct nd_publisher *publisher)
{
        struct nd_message *message = nd_steal(publisher->in.message);

        if (!message)
                return;
        nd_list_for_each_safe (i, &message->entries)
                nd_entry_aborted(nd_list_entry(i, struct nd_entry, in_message));
        nd_credit_release(message);
        if (message->is_waiting) {
                message->is_waiting = false;
                nd_message_unref(message);
        }
        nd_message_unref(message);
}

static void publisher_refuse_incoming(struct nd_publisher *publisher, const struct nd_fault *fault)
{
        publisher_discard(publisher);
        publisher->in.is_refused = true;
        publisher->in.pair = NULL; /* what was refused takes no sequence */
        publisher_refuse(publisher, publisher->n_received, fault);
}

/* --------------------------------------------------------------------------------------- header */

static struct nd_known *
publisher_find_known(struct nd_publisher *publisher, const uint8_t *header, uint32_t n_header)
{
        for (size_t i = 0; i < ND_HEADER_CACHE_N; ++i) {
                struct nd_known *known = &publisher->known[i];

                if (known->bytes && known->bytes->n == n_header &&
                    memcmp(known->bytes->bytes, header, n_header) == 0)
                        return known;
        }
        return NULL;
}

static void publisher_forget(struct nd_publisher *publisher, struct nd_known *known)
{
        nd_memory_discharge(publisher_memory(publisher), known->charged_bytes);
        nd_header_bytes_unref(known->bytes);
        nd_topic_unref(known->topic);
        *known = (struct nd_known){0};
}

/* Of a topic of one publisher: the topic is charged to each, and with it the header that it keeps. */
static uint64_t pair_cost(const struct nd_topic *topic)
{
        return sizeof(struct nd_pair) + sizeof(*topic) + topic->n_name + PUBLISHER_HEADER_KEPT_MAX;
}

static struct nd_pair *
publisher_pair(struct nd_publisher *publisher, struct nd_topic *topic, struct nd_fault *fault)
{
        struct nd_pair key = {.topic = topic};
        struct nd_pair *pair = RB_FIND(nd_pair_tree, &publisher->pairs, &key);
        uint64_t cost = pair_cost(topic);

        if (pair)
                return pair;
        if (publisher->n_pairs >= PUBLISHER_PAIRS_MAX) {
                nd_fault_set_limit(fault, NDBUS_ELIMIT, "topics", publisher->n_pairs + 1,
                                   PUBLISHER_PAIRS_MAX, "topics of one connection");
                return NULL;
        }
        if (nd_quota_check(&publisher->connection->quota, ND_LIMIT_TOPICS, 1, fault) < 0)
                return NULL;
        if (!nd_server_charge(publisher_server(publisher), cost)) {
                nd_memory_fault(publisher_memory(publisher), cost, fault);
                return NULL;
        }
        pair = calloc(1, sizeof(*pair));
        if (!pair) {
                nd_memory_discharge(publisher_memory(publisher), cost);
                nd_fault_set(fault, NDBUS_ENOMEM, "topic", "no memory");
                return NULL;
        }
        pair->publisher = publisher;
        pair->topic = nd_topic_ref(topic);
        nd_list_init(&pair->pauses);
        nd_list_init(&pair->in_news);
        RB_INSERT(nd_pair_tree, &publisher->pairs, pair);
        ++publisher->n_pairs;
        nd_quota_charge(&publisher->connection->quota, ND_LIMIT_TOPICS, 1);
        return pair;
}

static int publisher_deny(struct nd_publisher *publisher,
                          enum nd_right right,
                          const char *topic,
                          size_t n_topic,
                          struct nd_fault *fault)
{
        ++publisher_server(publisher)->counters.denied;
        (void)nd_rights_deny(right, "topic", topic, n_topic, fault);
        return NDBUS_EDENIED;
}

/* Fills @known, an empty slot, from a header that is new. 0 or a negative enum ndbus_err. */
static int publisher_learn(struct nd_publisher *publisher,
                           const struct nd_packet *packet,
                           struct nd_known *known,
                           struct nd_fault *fault)
{
        struct nd_server *server = publisher_server(publisher);
        const struct nd_rights *rights = publisher->connection->rights;
        const struct nd_quota *quota = &publisher->connection->quota;
        const struct nd_header_limits limits = {
                .body_bytes_max = server->options.message_max,
                .dims_max = NDBUS_DIMS_MAX,
        };
        struct nd_header *header;
        int r;

        r = nd_header_unpack(packet->header, packet->prelude.header_bytes, &limits, &header, fault);
        if (r < 0)
                return r;

        if (header->topic[0] == '$' && !nd_topic_is_answer(header->topic)) {
                r = nd_fault_set(
                        fault, NDBUS_EDENIED, "topic",
                        "of the topics that begin with '$' clients publish on $reply only");
                nd_header_free(header);
                return r;
        }
        if (header->reply && !nd_topic_is_answer_to(header->reply, publisher->connection->source)) {
                r = nd_fault_set(fault, NDBUS_EDENIED, "reply",
                                 "is not $reply/%" PRIu64 "/N, on which this client gets answers",
                                 publisher->connection->source);
                nd_header_free(header);
                return r;
        }
        if (header->topic[0] != '$' &&
            !nd_rights_allow(rights, ND_RIGHT_PUBLISH, header->topic, header->n_topic)) {
                r = publisher_deny(publisher, ND_RIGHT_PUBLISH, header->topic, header->n_topic,
                                   fault);
                nd_header_free(header);
                return r;
        }
        if (header->body_bytes > quota->most[ND_LIMIT_MESSAGE]) {
                r = nd_quota_fault(quota, NDBUS_ETOO_BIG, ND_LIMIT_MESSAGE, header->body_bytes,
                                   fault);
                nd_header_free(header);
                return r;
        }
        *known = (struct nd_known){
                .bytes = nd_header_bytes_new(packet->header, packet->prelude.header_bytes),
                .topic = nd_router_topic(&server->router, header->topic, header->n_topic),
                .body_bytes = header->body_bytes,
                .has_reply = header->reply,
                .is_empty = header->n_frames == 0,
                .may_retain =
                        nd_rights_allow(rights, ND_RIGHT_RETAIN, header->topic, header->n_topic),
        };
        nd_header_free(header);
        if (!known->bytes || !known->topic)
                r = nd_fault_set(fault, NDBUS_ENOMEM, "header", "no memory");
        else if (!nd_topic_is_answer(known->topic->name)) {
                known->pair = publisher_pair(publisher, known->topic, fault);
                r = known->pair ? 0 : fault->code;
        }
        if (r < 0) {
                publisher_forget(publisher, known);
        } else if (nd_memory_charge(&server->store.memory,
                                    sizeof(*known->bytes) + known->bytes->n)) {
                known->charged_bytes = sizeof(*known->bytes) + known->bytes->n;
        }
        return r;
}

static int publisher_know(struct nd_publisher *publisher,
                          const struct nd_packet *packet,
                          struct nd_known **ret,
                          struct nd_fault *fault)
{
        struct nd_known *known =
                publisher_find_known(publisher, packet->header, packet->prelude.header_bytes);
        int r;

        if (!known) {
                known = &publisher->known[publisher->i_known_next];
                publisher_forget(publisher, known);
                r = publisher_learn(publisher, packet, known, fault);
                if (r < 0)
                        return r;
                publisher->i_known_next = (publisher->i_known_next + 1) % ND_HEADER_CACHE_N;
        }
        if (packet->prelude.body_bytes != known->body_bytes)
                return nd_fault_set_exact(fault, NDBUS_ELENGTH, "body_bytes",
                                          packet->prelude.body_bytes, known->body_bytes, "bytes");
        if (packet->prelude.flags & ND_FLAG_RETAINED && !known->may_retain)
                return publisher_deny(publisher, ND_RIGHT_RETAIN, known->topic->name,
                                      known->topic->n_name, fault);
        *ret = known;
        return 0;
}

/* -------------------------------------------------------------------------------------- routing */

static size_t topic_n_receivers(struct nd_topic *topic)
{
        struct nd_target **targets;
        size_t n;

        return nd_topic_route(topic, &targets, &n) < 0 ? 1 : n;
}

static struct nd_entry *message_entry(const struct nd_message *message, const struct nd_sink *sink)
{
        nd_list_for_each (i, &message->entries) {
                struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_message);

                if (entry->sink == sink)
                        return entry;
        }
        return NULL;
}

/* Every subscription that matches, and has not been told, is told that the message arrives. */
static int publisher_announce(struct nd_message *message)
{
        struct nd_target **targets;
        size_t n;
        int r = nd_topic_route(message->topic, &targets, &n);

        if (r < 0)
                return r;
        for (size_t i = 0; i < n; ++i) {
                struct nd_sink *sink = nd_sink_from_target(targets[i]);

                if (message->is_announced && message_entry(message, sink))
                        continue;
                if (!nd_sink_announce(sink, message))
                        return NDBUS_ENOMEM;
        }
        message->is_announced = true;
        return 0;
}

/* The last byte of an announced message is here. Completing one entry may send from, or free, any
 * other; so all stay on the list, and those that are done move behind those that are not. */
static void publisher_complete_entries(struct nd_message *message)
{
        struct nd_list *node;

        while ((node = nd_list_first(&message->entries))) {
                struct nd_entry *entry = nd_list_entry(node, struct nd_entry, in_message);

                if (entry->is_completed)
                        return;
                entry->is_completed = true;
                nd_list_unlink(node);
                nd_list_push_tail(&message->entries, node);
                nd_entry_completed(entry);
        }
}

static void publisher_deliver(struct nd_message *message)
{
        struct nd_target **targets;
        size_t n;

        if (message->is_announced) {
                if (message->is_retained)
                        (void)publisher_announce(message); /* those that came meanwhile */
                publisher_complete_entries(message);
                return;
        }
        if (nd_topic_route(message->topic, &targets, &n) < 0)
                return;
        for (size_t i = 0; i < n; ++i)
                nd_sink_deliver(nd_sink_from_target(targets[i]), message);
}

static void publisher_retain(struct nd_publisher *publisher, struct nd_message *message)
{
        struct nd_server *server = publisher_server(publisher);
        struct nd_fault fault;

        if (nd_server_retain(server, message, &publisher->connection->quota, &fault) == 0)
                return;
        ++server->counters.retain_full;
        nd_connection_error(publisher->connection, &fault, ND_KIND_PUBLISH, message->number);
}

/* STATS says what a topic carries. Longer headers are not kept: they would have to be charged. */
static void publisher_remember_header(struct nd_topic *topic, struct nd_header_bytes *header)
{
        if (topic->header == header)
                return;
        nd_header_bytes_unref(topic->header);
        topic->header = header->n <= PUBLISHER_HEADER_KEPT_MAX ? nd_header_bytes_ref(header) : NULL;
}

/* Its last byte is here and memory has room for it: it is published. */
static void publisher_route(struct nd_publisher *publisher, struct nd_message *message)
{
        struct nd_counters *counters = &publisher_server(publisher)->counters;
        struct nd_topic *topic = message->topic;

        message->is_complete = true;
        message->available_bytes = message->body_bytes;
        message->sequence = message->pair ? ++message->pair->sequence : 0;
        ++counters->messages_in;
        if (nd_block_is_own(message->block))
                ++counters->shm_own_messages;
        else if (message->block)
                ++counters->shm_messages;
        counters->messages_in_bytes += message->body_bytes;
        nd_observe_message_size_bytes(&publisher_server(publisher)->histograms.message_size_bytes,
                                      message->body_bytes);
        ++topic->n_messages;
        topic->n_bytes += message->body_bytes;
        publisher_remember_header(topic, message->header);
        publisher->n_bytes += message->body_bytes;

        publisher_deliver(message);
        message->pair = NULL;
        if (message->is_retained)
                publisher_retain(publisher, message);
        nd_credit_hold(publisher, message);
}

/* ------------------------------------------------------------------------------------- arriving */

/* May it be passed on while it arrives? What is one chunk is not worth two packets. */
static bool publisher_is_cut(const struct nd_publisher *publisher)
{
        return publisher->in.body_bytes > ND_CHUNK_BYTES;
}

/* The message has memory now. 0 or a negative enum ndbus_err: it is to be refused. */
static int publisher_admitted(struct nd_publisher *publisher, struct nd_message *message)
{
        if (message != publisher->in.message)
                return 0;
        if (!publisher_is_cut(publisher)) {
                if (publisher->in.is_open) {
                        /* the rest must come, and no receiver sets its pace yet */
                        nd_credit_return(publisher, message->credit_bytes);
                        message->credit_bytes = 0;
                }
                return 0;
        }
        message->sequence = message->pair ? message->pair->sequence + 1 : 0;
        if (publisher_announce(message) < 0)
                return NDBUS_ENOMEM;
        nd_credit_watch(publisher);
        return 0;
}

enum {
        _PUBLISHER_E_SUCCESS,

        PUBLISHER_E_WAIT, /* there will be room for it, but not now */
};

/* Return: 0; PUBLISHER_E_WAIT; NDBUS_ENO_SPACE if it would not fit with every queue empty. */
static int
publisher_charge(struct nd_server *server, struct nd_message *message, struct nd_fault *fault)
{
        const struct nd_memory *memory = &server->store.memory;
        uint64_t n_queued = server->store.messages_bytes - server->retained_bytes;
        uint64_t n_other;

        if (nd_message_charge(message) || (nd_own_trim(server, 0) && nd_message_charge(message)))
                return 0;
        n_other = nd_memory_taken(memory) - n_queued;
        if (message->charged_bytes > memory->max_bytes - nd_min_u64(n_other, memory->max_bytes))
                return nd_fault_set_limit(fault, NDBUS_ENO_SPACE, "memory-max",
                                          n_other + message->charged_bytes, memory->max_bytes,
                                          "bytes");
        if (nd_server_make_room(server, message->charged_bytes) && nd_message_charge(message))
                return 0;
        return PUBLISHER_E_WAIT;
}

static void publisher_wait(struct nd_publisher *publisher, struct nd_message *message)
{
        struct nd_server *server = publisher_server(publisher);

        message->is_waiting = true;
        nd_message_ref(message);
        nd_list_push_tail(&publisher->backlog, &message->in_publisher);
        if (nd_list_is_empty(&publisher->in_waiters)) {
                nd_list_push_tail(&server->memory_waiters, &publisher->in_waiters);
                publisher->waiting_since_ns = server->now_ns;
        }
}

static void publisher_start(struct nd_publisher *publisher,
                            const struct nd_known *known,
                            const struct nd_packet *packet,
                            struct nd_block *block,
                            uint64_t credit_bytes,
                            struct nd_fault *fault)
{
        struct nd_server *server = publisher_server(publisher);
        bool is_first = nd_list_is_empty(&publisher->backlog);
        struct nd_block *own =
                block || !is_first /* behind others that wait it would keep what these could use */
                        ? NULL
                        : nd_own_take(server, known->topic, packet->prelude.body_bytes);
        struct nd_message *message = nd_message_new(&server->store, &packet->prelude, known->bytes,
                                                    known->topic, packet->meta, own ? own : block);
        int r;

        nd_block_unwant(own); /* the message's now */
        if (!message) {
                nd_credit_return(publisher, credit_bytes);
                nd_fault_set(fault, NDBUS_ENOMEM, "message", "no memory");
                publisher_refuse_incoming(publisher, fault);
                return;
        }
        message->publisher = publisher;
        message->credit_bytes = credit_bytes;
        message->pair = known->pair;
        message->number = publisher->n_received;
        message->source = publisher->connection->source;
        message->is_clearing = message->is_retained && known->is_empty && message->meta_bytes == 0;
        nd_message_add_cost(message, topic_n_receivers(message->topic) * ND_ENTRY_COST_BYTES);
        publisher->in.message = message;

        r = is_first ? publisher_charge(server, message, fault) : PUBLISHER_E_WAIT;
        if (r == PUBLISHER_E_WAIT) {
                publisher_wait(publisher, message);
                return;
        }
        if (r == 0 && publisher_admitted(publisher, message) < 0)
                r = nd_fault_set(fault, NDBUS_ENOMEM, "message", "no memory");
        if (r < 0)
                publisher_refuse_incoming(publisher, fault);
}

static int publisher_check(const struct nd_publisher *publisher,
                           const struct nd_prelude *prelude,
                           struct nd_fault *fault)
{
        bool is_open = prelude->flags & ND_FLAG_BODY_IN_CHUNKS;

        if (publisher->in.is_open)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind",
                                    "PUBLISH while stream %u is not finished",
                                    publisher->in.stream);
        if (prelude->sequence != publisher->n_received + 1)
                return nd_fault_set_exact(fault, NDBUS_EPROTOCOL, "sequence", prelude->sequence,
                                          publisher->n_received + 1, "");
        if (prelude->source != 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "source",
                                    "a client sends 0: the daemon fills it in");
        if (is_open != (prelude->stream != 0) || (is_open && prelude->body_bytes == 0))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "stream",
                                    "a body in chunks has a stream and bytes, any other none");
        return 0;
}

int nd_publisher_publish(struct nd_publisher *publisher,
                         const struct nd_packet *packet,
                         struct nd_fault *fault)
{
        const struct nd_prelude *prelude = &packet->prelude;
        uint64_t n_inline = nd_prelude_inline_bytes(prelude);
        uint64_t n_wire = packet->n_bytes + n_inline;
        bool is_in_block = prelude->flags & ND_FLAG_BODY_IN_BLOCK;
        struct nd_block *block = NULL;
        struct nd_known *known = NULL;
        int r;

        r = publisher_check(publisher, prelude, fault);
        if (r < 0)
                return r;
        r = nd_credit_use(publisher, &n_wire, n_inline == 0, fault);
        if (r < 0)
                return r;
        if (is_in_block)
                r = nd_lender_block(publisher->connection, prelude, &block, fault);
        if (r == NDBUS_EPROTOCOL)
                return r;

        ++publisher->n_received;
        publisher->packet_bytes = n_wire;
        publisher->is_bulk = !is_in_block && prelude->body_bytes >= ND_CREDIT_BULK_BYTES;
        publisher->in = (struct nd_incoming){
                .is_open = prelude->flags & ND_FLAG_BODY_IN_CHUNKS,
                .stream = prelude->stream,
                .body_bytes = is_in_block ? 0 : prelude->body_bytes,
                .packet_left = n_inline,
                .mark_ns = publisher->last_ns,
        };
        if (r == 0)
                r = nd_credit_count(publisher, fault);
        if (r == 0)
                r = publisher_know(publisher, packet, &known, fault);
        if (r == NDBUS_EHEADER) {
                nd_block_unwant(block);
                return r;
        }
        if (!known) {
                nd_credit_return(publisher, n_wire);
                publisher_refuse_incoming(publisher, fault);
        } else if (!(prelude->flags & ND_FLAG_RETAINED) && topic_n_receivers(known->topic) == 0) {
                nd_credit_return(publisher, n_wire);
                publisher->in.pair = known->pair;
                ++publisher_server(publisher)->counters.messages_unmatched;
                if (known->has_reply) {
                        nd_fault_set(fault, NDBUS_ENO_SUBSCRIBER, "topic",
                                     "nobody subscribes to %s", known->topic->name);
                        publisher_refuse_incoming(publisher, fault);
                }
        } else {
                publisher_start(publisher, known, packet, block, n_wire, fault);
        }
        if (known && known->charged_bytes == 0)
                publisher_forget(publisher, known);
        nd_publisher_received(publisher, 0);
        if (block)
                nd_block_unwant(block);
        else if (is_in_block)
                nd_lender_release(publisher->connection, prelude->segment, prelude->place);
        return 0;
}

int nd_publisher_chunk(struct nd_publisher *publisher,
                       const struct nd_prelude *prelude,
                       struct nd_fault *fault)
{
        struct nd_incoming *in = &publisher->in;
        uint64_t n_wire = ND_PRELUDE_BYTES + prelude->body_bytes;
        int r;

        if (!in->is_open || prelude->stream != in->stream)
                return nd_fault_set(fault, NDBUS_ECHUNK, "stream", "stream %u is not open",
                                    prelude->stream);
        if (prelude->place != in->place)
                return nd_fault_set_exact(fault, NDBUS_ECHUNK, "place", prelude->place, in->place,
                                          "");
        if (prelude->body_bytes == 0 || prelude->body_bytes > in->body_bytes - in->place)
                return nd_fault_set_limit(fault, NDBUS_ECHUNK, "body_bytes", prelude->body_bytes,
                                          in->body_bytes - in->place, "bytes");
        r = nd_credit_use(publisher, &n_wire, false, fault);
        if (r < 0)
                return r;

        in->place += prelude->body_bytes;
        in->packet_left = prelude->body_bytes;
        if (in->message && (in->message->is_waiting || publisher_is_cut(publisher)))
                in->message->credit_bytes += n_wire;
        else
                nd_credit_return(publisher, n_wire);
        return 0;
}

int nd_publisher_reset(struct nd_publisher *publisher,
                       const struct nd_prelude *prelude,
                       struct nd_fault *fault)
{
        if (!publisher->in.is_open || prelude->stream != publisher->in.stream)
                return nd_fault_set(fault, NDBUS_ECHUNK, "stream", "stream %u is not open",
                                    prelude->stream);
        if (!publisher->in.is_refused)
                ++publisher_server(publisher)->counters.messages_aborted;
        publisher_discard(publisher);
        publisher->in = (struct nd_incoming){0};
        return 0;
}

void nd_publisher_abort(struct nd_publisher *publisher)
{
        if (publisher->in.message && publisher->in.is_open)
                ++publisher_server(publisher)->counters.messages_aborted;
        publisher_discard(publisher);
        publisher->in = (struct nd_incoming){0};
}

/* All that was announced is here. */
static void publisher_finish(struct nd_publisher *publisher)
{
        struct nd_message *message = nd_steal(publisher->in.message);
        struct nd_pair *pair = publisher->in.pair;

        publisher->in = (struct nd_incoming){0};
        if (message) {
                if (!message->is_waiting)
                        publisher_route(publisher, message);
                nd_message_unref(message);
        } else if (pair) {
                ++pair->sequence; /* nobody wanted it; it was published all the same */
        }
}

void nd_publisher_space(struct nd_publisher *publisher,
                        struct iovec *iov,
                        size_t n_iov,
                        size_t *ret_n)
{
        struct nd_incoming *in = &publisher->in;
        struct nd_fault fault;

        *ret_n = 0;
        if (!in->message)
                return;
        if (nd_message_space(in->message, in->packet_left, iov, n_iov, ret_n) == 0) {
                nd_memory_fault(publisher_memory(publisher), ND_BLOCK_BYTES, &fault);
                publisher_refuse_incoming(publisher, &fault);
        }
}

/* More of an announced message can be passed on. If nobody is left who wants it, the rest is
 * discarded as it comes. */
static void publisher_advance(struct nd_publisher *publisher)
{
        struct nd_message *message = publisher->in.message;

        if (nd_list_is_empty(&message->entries) && !message->is_retained) {
                publisher->in.pair = message->pair;
                publisher_discard(publisher);
                return;
        }
        message->available_bytes = message->received_bytes;
        nd_list_for_each (i, &message->entries)
                nd_entry_advanced(nd_list_entry(i, struct nd_entry, in_message));
}

void nd_publisher_received(struct nd_publisher *publisher, size_t n_bytes)
{
        struct nd_incoming *in = &publisher->in;
        struct nd_message *message = in->message;

        nd_assert(n_bytes <= in->packet_left);
        in->packet_left -= n_bytes;
        if (message)
                nd_message_received(message, n_bytes);
        in->arrived_bytes += n_bytes;
        if (in->packet_left == 0 && (!in->is_open || in->place == in->body_bytes))
                publisher_finish(publisher);
        else if (message && message->is_announced)
                publisher_advance(publisher);
}

void nd_publisher_append(struct nd_publisher *publisher, const uint8_t *data, size_t n_bytes)
{
        struct nd_message *message = publisher->in.message;

        if (message && message->body_bytes > ND_CREDIT_BULK_BYTES)
                publisher_server(publisher)->counters.body_bytes_copied += n_bytes;
        while (n_bytes > 0) {
                struct iovec iov;
                size_t n_iov;
                size_t n = n_bytes;

                nd_publisher_space(publisher, &iov, 1, &n_iov);
                if (n_iov > 0) {
                        n = nd_min_u64(n, iov.iov_len);
                        memcpy(iov.iov_base, data, n);
                }
                nd_publisher_received(publisher, n);
                data += n;
                n_bytes -= n;
        }
}

/* ----------------------------------------------------------------------- waiting, and giving up */

static void publisher_admit_incoming(struct nd_publisher *publisher, struct nd_message *message)
{
        struct nd_fault fault;

        if (publisher_admitted(publisher, message) < 0) {
                nd_fault_set(&fault, NDBUS_ENOMEM, "message", "no memory");
                publisher_refuse_incoming(publisher, &fault);
        } else if (message->is_announced) {
                publisher_advance(publisher);
        }
}

/* Since it began to wait something else has taken the memory that it needs. */
static void publisher_refuse_waiting(struct nd_publisher *publisher,
                                     struct nd_message *message,
                                     const struct nd_fault *fault)
{
        if (message == publisher->in.message) {
                publisher_refuse_incoming(publisher, fault);
        } else {
                nd_credit_release(message);
                publisher_refuse(publisher, message->number, fault);
        }
}

bool nd_publisher_admit(struct nd_publisher *publisher)
{
        struct nd_server *server = publisher_server(publisher);
        struct nd_message *message;

        while ((message = publisher_first(&publisher->backlog))) {
                struct nd_fault fault;
                int r = publisher_charge(server, message, &fault);

                if (r == PUBLISHER_E_WAIT)
                        return false;

                nd_list_unlink(&message->in_publisher);
                message->is_waiting = false;
                if (r < 0)
                        publisher_refuse_waiting(publisher, message, &fault);
                else if (message == publisher->in.message)
                        publisher_admit_incoming(publisher, message);
                else
                        publisher_route(publisher, message);
                nd_message_unref(message);
        }
        nd_list_unlink(&publisher->in_waiters);
        publisher->waiting_since_ns = 0;
        return true;
}

void nd_publisher_tick(struct nd_publisher *publisher, uint64_t now_ns)
{
        struct nd_server *server = publisher_server(publisher);
        struct nd_incoming *in = &publisher->in;
        struct nd_fault fault;
        bool is_waited_for = !nd_list_is_empty(&server->memory_waiters);

        if (nd_publisher_is_busy(publisher) && !in->is_refused) {
                uint64_t n_new = in->arrived_bytes - in->mark_bytes;

                if (in->packet_left == 0 && publisher->left_bytes < ND_CREDIT_LOW_BYTES) {
                        in->mark_ns = now_ns; /* it has no leave to bring anything */
                } else if (now_ns - in->mark_ns >= PUBLISHER_STALL_NS && n_new == 0) {
                        nd_fault_set_numbers(
                                &fault, NDBUS_ESTALLED, "body", in->arrived_bytes, in->body_bytes,
                                "nothing came for %u s, after %" PRIu64 " of %" PRIu64 " bytes",
                                PUBLISHER_STALL_S, in->arrived_bytes, in->body_bytes);
                        nd_trouble_give_up(publisher, &fault);
                        publisher_refuse_incoming(publisher, &fault);
                } else if (is_waited_for && now_ns - in->mark_ns >= PUBLISHER_SLOW_NS &&
                           n_new < ND_MIB) {
                        nd_memory_fault(&server->store.memory, in->body_bytes - in->arrived_bytes,
                                        &fault);
                        nd_trouble_give_up(publisher, &fault);
                        publisher_refuse_incoming(publisher, &fault);
                } else if (n_new >= ND_MIB ||
                           (n_new > 0 && now_ns - in->mark_ns >= PUBLISHER_SLOW_NS)) {
                        in->mark_bytes = in->arrived_bytes;
                        in->mark_ns = now_ns;
                }
        }
        if (!nd_publisher_is_busy(publisher) && nd_list_is_empty(&publisher->backlog) &&
            publisher->charged_bytes > ND_PUBLISH_WINDOW_BYTES_MIN &&
            now_ns - publisher->last_ns >= 2 * ND_PUBLISH_WINDOW_IDLE_MS * UINT64_C(1000000))
                (void)nd_credit_charge(publisher, ND_PUBLISH_WINDOW_BYTES_MIN);
}

void nd_publisher_forget_headers(struct nd_publisher *publisher)
{
        for (size_t i = 0; i < ND_HEADER_CACHE_N; ++i)
                publisher_forget(publisher, &publisher->known[i]);
}

void nd_publisher_deinit(struct nd_publisher *publisher)
{
        struct nd_message *message;
        struct nd_pair *pair;

        nd_publisher_abort(publisher);
        while ((message = publisher_first(&publisher->backlog))) {
                nd_list_unlink(&message->in_publisher);
                message->publisher = NULL;
                nd_message_unref(message);
        }
        while ((message = publisher_first(&publisher->held))) {
                nd_list_unlink(&message->in_publisher);
                message->publisher = NULL;
        }
        nd_publisher_forget_headers(publisher);
        while ((pair = RB_ROOT(&publisher->pairs))) {
                RB_REMOVE(nd_pair_tree, &publisher->pairs, pair);
                nd_pause_end_pair(pair);
                nd_memory_discharge(publisher_memory(publisher), pair_cost(pair->topic));
                nd_quota_discharge(&publisher->connection->quota, ND_LIMIT_TOPICS, 1);
                nd_topic_unref(pair->topic);
                free(pair);
        }
        nd_credit_close(publisher);
        nd_list_unlink(&publisher->in_lead);
        nd_list_unlink(&publisher->in_waiters);
}
