/* SPDX-License-Identifier: MIT */

/*
 * Requests
 *
 * Every request carries a number and is answered under it. What is wrong with the framing of one
 * ends the connection; what is wrong with what it asks for is its answer.
 */

#include "daemon/request.h"
#include <inttypes.h>
#include <string.h>
#include "daemon/admission.h"
#include "daemon/credit.h"
#include "daemon/group.h"
#include "daemon/ledger.h"
#include "daemon/server.h"
#include "daemon/stats.h"
#include "protocol/byteorder.h"
#include "protocol/topic.h"

#define REQUEST_CREDIT_BYTES 16u

static void
request_answer(struct nd_connection *connection, uint8_t kind, uint64_t sequence, uint64_t place)
{
        struct nd_prelude prelude = {.kind = kind, .sequence = sequence, .place = place};

        nd_outbox_control(&connection->outbox, &prelude, NULL, NULL, 0);
}

/* ------------------------------------------------------------------------------------- handshake */

void nd_request_answer_hello(struct nd_connection *connection, const struct nd_hello *hello)
{
        struct nd_server *server = connection->server;
        struct nd_hello_reply reply = {.version_min = ND_VERSION, .version_max = ND_VERSION};
        uint8_t bytes[ND_HELLO_BYTES];

        if (connection->refuse_reason) {
                reply.reason = connection->refuse_reason;
                ++server->counters.clients_refused;
        } else if (hello->version_min > ND_VERSION || hello->version_max < ND_VERSION) {
                reply.reason = -NDBUS_EVERSION;
        } else {
                reply.version = ND_VERSION;
                connection->state = ND_CONNECTION_CONNECT;
        }
        nd_hello_reply_pack(&reply, bytes);
        nd_outbox_bytes(&connection->outbox, bytes, sizeof(bytes));
        if (reply.reason)
                nd_connection_end_after_output(connection);
}

/* @proof: that the daemon knows the client's token; NULL without one */
static int request_welcome(struct nd_connection *connection,
                           uint64_t sequence,
                           const uint8_t *proof,
                           struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        struct nd_prelude prelude = {.kind = ND_KIND_WELCOME, .sequence = sequence};
        struct nd_control_bytes header;
        struct nd_welcome welcome = {
                .features = connection->features,
                .header_bytes_max = server->options.header_max,
                .meta_bytes_max = server->options.meta_max,
                .dims_max = NDBUS_DIMS_MAX,
                .subscriptions_max = server->options.subscriptions_max,
                .shm_bytes_max = connection->features ? server->options.shm_max : 0,
                .server = ND_STRING("ndbusd " ND_PROJECT_VERSION),
        };
        int r = nd_admission_begin(connection, fault);

        if (r < 0)
                return r;
        welcome.message_bytes_max =
                nd_min_u64(server->options.message_max, connection->quota.most[ND_LIMIT_MESSAGE]);
        welcome.grant_bytes = nd_credit_open(&connection->publisher);
        if (welcome.grant_bytes == 0)
                return nd_memory_fault(&server->store.memory, ND_PUBLISH_WINDOW_BYTES_MIN, fault);
        if (proof)
                welcome.proof = (struct nd_string){(const char *)proof, ND_TOKEN_PROOF_BYTES};
        connection->source = nd_server_new_source(server);
        connection->state = ND_CONNECTION_OPEN;
        connection->deadline_ns = 0;
        welcome.source = connection->source;
        prelude.source = connection->source;
        nd_welcome_pack(&welcome, &header);
        nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
        if (server->drain_deadline_ns != 0)
                nd_request_say_goodbye(connection, NDBUS_ESHUTDOWN, "the daemon is stopping");
        return 0;
}

static int request_connect(struct nd_connection *connection,
                           const struct nd_packet *packet,
                           struct nd_fault *fault)
{
        struct nd_prelude prelude = {.kind = ND_KIND_AUTH, .sequence = packet->prelude.sequence};
        struct nd_control_bytes header;
        struct nd_connect connect;
        struct nd_auth ask;
        int r = nd_connect_unpack(packet->header, packet->prelude.header_bytes, &connect, fault);

        if (r < 0)
                return r;
        nd_admission_copy_name(connect.client, connection->client, sizeof(connection->client));
        connection->pid = connect.pid;
        if (connect.features & ND_FEATURE_SHM && !connection->is_tcp &&
            connection->server->options.shm_max > 0)
                connection->features =
                        ND_FEATURE_SHM | (connect.features & (ND_FEATURE_RING | ND_FEATURE_BELL));
        r = nd_admission_ask(connection, connect.token, &ask, fault);
        if (r < 0)
                return r;
        if (r == ND_ADMISSION_E_OPEN)
                return request_welcome(connection, packet->prelude.sequence, NULL, fault);
        connection->state = ND_CONNECTION_AUTH;
        nd_auth_pack(&ask, &header);
        nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
        return 0;
}

static int request_auth(struct nd_connection *connection,
                        const struct nd_packet *packet,
                        struct nd_fault *fault)
{
        uint8_t proof[ND_TOKEN_PROOF_BYTES];
        struct nd_auth auth;
        int r = nd_auth_unpack(packet->header, packet->prelude.header_bytes, &auth, fault);

        if (r < 0)
                return r;
        if (!auth.proof.at)
                return nd_fault_set(fault, NDBUS_EHEADER, "proof", "is missing");
        if (!nd_admission_prove(connection, &auth, proof))
                return 0; /* it is told so later */
        return request_welcome(connection, packet->prelude.sequence, proof, fault);
}

void nd_request_say_goodbye(struct nd_connection *connection, int code, const char *text)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_GOODBYE,
                .place = nd_publisher_routed(&connection->publisher),
        };
        const struct nd_goodbye goodbye = {.code = (uint32_t)-code, .text = {text, strlen(text)}};
        struct nd_control_bytes header;

        nd_goodbye_pack(&goodbye, &header);
        nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
}

/* The client's last packet but RELEASE: its subscriptions end, and the answer is our last one. */
static int request_goodbye(struct nd_connection *connection,
                           const struct nd_packet *packet,
                           struct nd_fault *fault)
{
        struct nd_subscription *subscription;
        struct nd_goodbye said;
        int r = nd_goodbye_unpack(packet->header, packet->prelude.header_bytes, &said, fault);

        if (r < 0)
                return r;
        while ((subscription = RB_ROOT(&connection->subscriptions)))
                nd_subscription_free(subscription);
        nd_publisher_abort(&connection->publisher);
        nd_lender_deinit(&connection->lender);
        request_answer(connection, ND_KIND_GOODBYE, packet->prelude.sequence,
                       nd_publisher_routed(&connection->publisher));
        connection->state = ND_CONNECTION_GOODBYE;
        return 0;
}

/* ----------------------------------------------------------------------------------- subscribing */

/* Patterns that begin with '$' are the system's: a client gets the answers to its own requests. */
static bool request_may_subscribe(const struct nd_connection *connection, struct nd_string pattern)
{
        char own[40];
        int n = snprintf(own, sizeof(own), "$reply/%" PRIu64 "/", connection->source);

        return pattern.at[0] != '$' ||
               (pattern.n > (size_t)n && memcmp(pattern.at, own, (size_t)n) == 0);
}

/* A number that the client has not used yet. */
static int
request_refuse_id(const struct nd_connection *connection, uint32_t id, struct nd_fault *fault)
{
        return nd_fault_set_numbers(fault, NDBUS_ESUBSCRIPTION, "subscription", id,
                                    connection->last_subscription, "is %u, the highest used is %u",
                                    id, connection->last_subscription);
}

static int request_check_subscribe(const struct nd_connection *connection,
                                   uint32_t id,
                                   const struct nd_subscribe *ask,
                                   struct nd_fault *fault)
{
        uint64_t most = connection->server->options.subscriptions_max;

        if (id <= connection->last_subscription)
                return nd_fault_set_numbers(fault, NDBUS_ESUBSCRIPTION, "subscription", id,
                                            connection->last_subscription,
                                            "is %u, must be greater than %u, the highest used", id,
                                            connection->last_subscription);
        if (connection->n_subscriptions >= most)
                return nd_fault_set_limit(fault, NDBUS_ELIMIT, "subscriptions",
                                          connection->n_subscriptions + 1, most,
                                          "subscriptions of one connection");
        if (nd_quota_check(&connection->quota, ND_LIMIT_SUBSCRIPTIONS, 1, fault) < 0)
                return NDBUS_ELIMIT;
        if (!request_may_subscribe(connection, ask->pattern))
                return nd_fault_set(fault, NDBUS_EDENIED, "pattern",
                                    "of the topics that begin with '$' a client receives its own "
                                    "$reply only");
        if (nd_admission_check_subscribe(connection, ask, fault))
                return NDBUS_EDENIED;
        if (ask->group.n > 0 && ask->policy == ND_POLICY_LATEST)
                return nd_fault_set(
                        fault, NDBUS_EGROUP, "policy",
                        "latest is not for groups: a message is finished, not replaced");
        if ((ask->policy == ND_POLICY_LATEST) != (ask->window_messages == 0))
                return nd_fault_set(fault, NDBUS_ECREDIT, "window",
                                    "is 0 with policy latest, and at least 1 with any other");
        if (ask->window_messages > ND_WINDOW_MAX)
                return nd_fault_set_limit(fault, NDBUS_ECREDIT, "window", ask->window_messages,
                                          ND_WINDOW_MAX, "");
        if (ask->window_bytes > ND_WINDOW_MAX)
                return nd_fault_set_limit(fault, NDBUS_ECREDIT, "window_bytes", ask->window_bytes,
                                          ND_WINDOW_MAX, "bytes");
        return 0;
}

static int request_subscribe(struct nd_connection *connection,
                             const struct nd_packet *packet,
                             struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        struct nd_prelude prelude = {
                .kind = ND_KIND_SUBSCRIBED,
                .sequence = packet->prelude.sequence,
                .subscription = packet->prelude.subscription,
        };
        struct nd_subscribed said;
        struct nd_control_bytes header;
        struct nd_subscribe ask;
        int r;

        r = nd_subscribe_unpack(packet->header, packet->prelude.header_bytes, &ask, fault);
        if (r == NDBUS_EHEADER)
                return r;
        if (r == 0)
                r = request_check_subscribe(connection, packet->prelude.subscription, &ask, fault);
        if (r == 0) {
                ask.depth_bytes = nd_min_u64(ask.depth_bytes, server->store.memory.max_bytes / 4);
                said = (struct nd_subscribed){ask.depth_messages, ask.depth_bytes};
                nd_subscribed_pack(&said, &header);
                nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
                r = nd_subscription_new(connection, packet->prelude.subscription, &ask, fault);
                if (r < 0)
                        nd_outbox_uncontrol(&connection->outbox, ND_PRELUDE_BYTES + header.n);
        }
        if (r < 0)
                nd_connection_error(connection, fault, ND_KIND_SUBSCRIBE, packet->prelude.sequence);
        else
                connection->last_subscription = packet->prelude.subscription;
        return 0;
}

static int request_unsubscribe(struct nd_connection *connection,
                               const struct nd_packet *packet,
                               struct nd_fault *fault)
{
        uint32_t id = packet->prelude.subscription;
        struct nd_subscription *subscription = nd_connection_subscription(connection, id);
        struct nd_prelude prelude = {
                .kind = ND_KIND_UNSUBSCRIBED,
                .sequence = packet->prelude.sequence,
                .subscription = id,
        };
        const struct nd_unsubscribed said = {0};
        struct nd_control_bytes header;

        if (subscription) {
                nd_subscription_end(subscription, NULL, packet->prelude.sequence);
        } else if (id != 0 && id <= connection->last_subscription) { /* it ended a moment ago */
                nd_unsubscribed_pack(&said, &header);
                nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
        } else {
                request_refuse_id(connection, id, fault);
                nd_connection_error(connection, fault, ND_KIND_UNSUBSCRIBE,
                                    packet->prelude.sequence);
        }
        return 0;
}

static int request_check_credit(const struct nd_subscription *subscription,
                                uint64_t n_body,
                                struct nd_fault *fault)
{
        bool is_group = subscription && nd_sink_is_group(subscription->sink);

        if (is_group ? n_body > 0 && n_body % 8 == 0 : n_body == REQUEST_CREDIT_BYTES)
                return 0;
        if (!is_group)
                return nd_fault_set_exact(fault, NDBUS_ECREDIT, "body_bytes", n_body,
                                          REQUEST_CREDIT_BYTES, "bytes");
        return nd_fault_set(fault, NDBUS_ECREDIT, "body_bytes",
                            "is %" PRIu64 " bytes, must be 8 for each delivery, and one at least",
                            n_body);
}

static int request_credit(struct nd_connection *connection,
                          const struct nd_packet *packet,
                          struct nd_fault *fault)
{
        uint32_t id = packet->prelude.subscription;
        struct nd_subscription *subscription = nd_connection_subscription(connection, id);
        int r;

        if (id > connection->last_subscription)
                return request_refuse_id(connection, id, fault);
        if (id != 0 && !subscription)
                return 0; /* it ended a moment ago */
        r = request_check_credit(subscription, packet->prelude.body_bytes, fault);
        if (r < 0)
                return r;
        if (id == 0 && nd_load_le64(packet->body) != 0)
                return nd_fault_set_exact(fault, NDBUS_ECREDIT, "messages",
                                          nd_load_le64(packet->body), 0, "");
        if (id == 0)
                return nd_credit_give_back(&connection->publisher, nd_load_le64(packet->body + 8),
                                           fault);
        if (nd_sink_is_group(subscription->sink))
                return nd_group_finish(subscription, packet->body,
                                       (size_t)packet->prelude.body_bytes / 8, fault);
        return nd_subscription_grant(subscription, nd_load_le64(packet->body),
                                     nd_load_le64(packet->body + 8), fault);
}

/* ---------------------------------------------------------------------------------- shared memory */

/* The descriptor of the packet; -1: it brings none. */
static int request_take_fd(struct nd_connection *connection, const struct nd_packet *packet)
{
        return packet->prelude.flags & ND_FLAG_FD ? nd_descriptors_take(&connection->descriptors)
                                                  : -1;
}

static int request_segment_gone(struct nd_connection *connection,
                                const struct nd_packet *packet,
                                struct nd_fault *fault)
{
        switch (packet->prelude.sequence) {
        case 0:
                return nd_share_withdraw(connection, packet->prelude.segment, fault);
        case 1:
                return nd_ledger_unmappable(connection, packet->prelude.segment, fault);
        default:
                return nd_fault_set_numbers(
                        fault, NDBUS_EPROTOCOL, "sequence", packet->prelude.sequence, 1,
                        "is %" PRIu64 ", must be 0 or 1", packet->prelude.sequence);
        }
}

/* --------------------------------------------------------------------------------------- watching */

static struct nd_watch *request_find_watch(struct nd_connection *connection,
                                           const struct nd_topic *topic)
{
        nd_list_for_each (i, &topic->watches) {
                struct nd_watch *watch = nd_list_entry(i, struct nd_watch, in_topic);

                if (watch->connection == connection)
                        return watch;
        }
        return NULL;
}

static void request_unwatch(struct nd_watch *watch)
{
        struct nd_connection *connection = watch->connection;

        nd_list_unlink(&watch->in_dirty);
        nd_list_unlink(&watch->in_topic);
        nd_list_unlink(&watch->in_connection);
        if (nd_list_is_empty(&watch->topic->watches))
                nd_list_unlink(&watch->topic->in_watched);
        --connection->n_watches;
        nd_quota_discharge(&connection->quota, ND_LIMIT_TOPICS, 1);
        nd_memory_discharge(&connection->server->store.memory,
                            sizeof(*watch) + sizeof(*watch->topic) + watch->topic->n_name);
        nd_topic_unref(watch->topic);
        free(watch);
}

void nd_request_unwatch_all(struct nd_connection *connection)
{
        while (!nd_list_is_empty(&connection->watches))
                request_unwatch(
                        nd_list_entry(connection->watches.next, struct nd_watch, in_connection));
}

static int request_watch(struct nd_connection *connection,
                         struct nd_topic *topic,
                         uint64_t n_told,
                         struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        uint64_t cost = sizeof(struct nd_watch) + sizeof(*topic) + topic->n_name;
        struct nd_watch *watch = request_find_watch(connection, topic);

        if (!watch) {
                if (connection->n_watches >= server->options.subscriptions_max)
                        return nd_fault_set_limit(fault, NDBUS_ELIMIT, "topics",
                                                  connection->n_watches + 1,
                                                  server->options.subscriptions_max,
                                                  "watched topics of one connection");
                if (nd_quota_check(&connection->quota, ND_LIMIT_TOPICS, 1, fault) < 0)
                        return NDBUS_ELIMIT;
                if (!nd_memory_charge(&server->store.memory, cost))
                        return nd_memory_fault(&server->store.memory, cost, fault);
                watch = calloc(1, sizeof(*watch));
                if (!watch) {
                        nd_memory_discharge(&server->store.memory, cost);
                        return nd_fault_set(fault, NDBUS_ENOMEM, "topic", "no memory");
                }
                watch->connection = connection;
                watch->topic = nd_topic_ref(topic);
                nd_list_init(&watch->in_dirty);
                nd_list_push_tail(&topic->watches, &watch->in_topic);
                nd_list_push_tail(&connection->watches, &watch->in_connection);
                if (nd_list_is_empty(&topic->in_watched))
                        nd_list_push_tail(&server->router.watched, &topic->in_watched);
                ++connection->n_watches;
                nd_quota_charge(&connection->quota, ND_LIMIT_TOPICS, 1);
        }
        watch->n_told = n_told;
        return 0;
}

static void request_tell(struct nd_connection *connection,
                         const struct nd_topic *topic,
                         uint64_t n_subscribers,
                         uint64_t sequence)
{
        struct nd_prelude prelude = {.kind = ND_KIND_TOPIC, .sequence = sequence};
        bool is_allowed = topic->name[0] == '$'
                                  ? nd_topic_is_answer(topic->name)
                                  : nd_rights_allow(connection->rights, ND_RIGHT_PUBLISH,
                                                    topic->name, topic->n_name);
        const struct nd_topic_header said = {
                .topic = {topic->name, topic->n_name},
                .allowed = is_allowed,
                .subscribers = is_allowed ? n_subscribers : 0,
                .paused = nd_publisher_is_paused(&connection->publisher, topic),
        };
        struct nd_control_bytes header;

        nd_topic_header_pack(&said, true, &header);
        nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
}

static int request_topic(struct nd_connection *connection,
                         const struct nd_packet *packet,
                         struct nd_fault *fault)
{
        struct nd_topic_header ask;
        struct nd_target **targets;
        struct nd_topic *topic;
        struct nd_watch *watch;
        size_t n;
        int r;

        r = nd_topic_header_unpack(packet->header, packet->prelude.header_bytes, false, &ask,
                                   fault);
        if (r == NDBUS_EHEADER)
                return r;
        if (r < 0) {
                nd_connection_error(connection, fault, ND_KIND_TOPIC, packet->prelude.sequence);
                return 0;
        }
        topic = nd_router_topic(&connection->server->router, ask.topic.at, ask.topic.n);
        if (!topic || nd_topic_route(topic, &targets, &n) < 0) {
                r = nd_fault_set(fault, NDBUS_ENOMEM, "topic", "no memory");
        } else if (ask.watch) {
                r = request_watch(connection, topic, n, fault);
        } else {
                watch = request_find_watch(connection, topic);
                if (watch)
                        request_unwatch(watch);
        }
        if (r < 0)
                nd_connection_error(connection, fault, ND_KIND_TOPIC, packet->prelude.sequence);
        else
                request_tell(connection, topic, n, packet->prelude.sequence);
        nd_topic_unref(topic);
        return 0;
}

/* Topics on which the client is to stop, or may go on. */
static void request_write_pauses(struct nd_connection *connection)
{
        struct nd_publisher *publisher = &connection->publisher;

        while (!nd_list_is_empty(&publisher->news) && !nd_outbox_is_full(&connection->outbox)) {
                struct nd_pair *pair = nd_list_entry(publisher->news.next, struct nd_pair, in_news);
                bool is_paused = !nd_list_is_empty(&pair->pauses);
                struct nd_target **targets;
                size_t n;

                nd_list_unlink(&pair->in_news);
                if (is_paused == pair->is_told_paused ||
                    nd_topic_route(pair->topic, &targets, &n) < 0)
                        continue;
                pair->is_told_paused = is_paused;
                request_tell(connection, pair->topic, n, 0);
        }
}

void nd_request_write_news(struct nd_connection *connection)
{
        request_write_pauses(connection);
        while (!nd_list_is_empty(&connection->dirty_watches) &&
               !nd_outbox_is_full(&connection->outbox)) {
                struct nd_watch *watch =
                        nd_list_entry(connection->dirty_watches.next, struct nd_watch, in_dirty);
                struct nd_target **targets;
                size_t n;

                nd_list_unlink(&watch->in_dirty);
                if (nd_topic_route(watch->topic, &targets, &n) < 0 || n == watch->n_told)
                        continue;
                watch->n_told = n;
                request_tell(connection, watch->topic, n, 0);
        }
}

static int request_stats(struct nd_connection *connection,
                         const struct nd_packet *packet,
                         struct nd_fault *fault)
{
        if (nd_rights_allow_stats(connection->rights))
                return nd_stats_answer(connection, packet->prelude.sequence, fault);
        ++connection->server->counters.denied;
        nd_fault_set(fault, NDBUS_EDENIED, "stats", "the right 'stats' is missing");
        nd_connection_error(connection, fault, ND_KIND_STATS, packet->prelude.sequence);
        return 0;
}

/* -------------------------------------------------------------------------------------- the table */

/* Its answer repeats the number; 0 is what the daemon says unasked. */
static bool request_has_number(uint8_t kind)
{
        return kind == ND_KIND_PING || kind == ND_KIND_SUBSCRIBE || kind == ND_KIND_UNSUBSCRIBE ||
               kind == ND_KIND_TOPIC || kind == ND_KIND_STATS || kind == ND_KIND_SEGMENT ||
               kind == ND_KIND_RING;
}

int nd_request_take(struct nd_connection *connection,
                    const struct nd_packet *packet,
                    struct nd_fault *fault)
{
        bool is_handshake =
                packet->prelude.kind == ND_KIND_CONNECT || packet->prelude.kind == ND_KIND_AUTH;

        if (is_handshake && packet->prelude.sequence != 1)
                return nd_fault_set_exact(fault, NDBUS_EHANDSHAKE, "sequence",
                                          packet->prelude.sequence, 1, "");
        if (packet->prelude.sequence == 0 && request_has_number(packet->prelude.kind))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "sequence",
                                    "is 0, %s carries a request number",
                                    nd_kind_name(packet->prelude.kind));
        switch (packet->prelude.kind) {
        case ND_KIND_CONNECT:
                return request_connect(connection, packet, fault);
        case ND_KIND_AUTH:
                return request_auth(connection, packet, fault);
        case ND_KIND_PING:
                nd_credit_ask(&connection->publisher);
                request_answer(connection, ND_KIND_PONG, packet->prelude.sequence,
                               nd_publisher_routed(&connection->publisher));
                return 0;
        case ND_KIND_GOODBYE:
                return request_goodbye(connection, packet, fault);
        case ND_KIND_SUBSCRIBE:
                return request_subscribe(connection, packet, fault);
        case ND_KIND_UNSUBSCRIBE:
                return request_unsubscribe(connection, packet, fault);
        case ND_KIND_CREDIT:
                return request_credit(connection, packet, fault);
        case ND_KIND_TOPIC:
                return request_topic(connection, packet, fault);
        case ND_KIND_SEGMENT:
                return nd_share_announce(connection, &packet->prelude,
                                         request_take_fd(connection, packet), fault);
        case ND_KIND_SEGMENT_GONE:
                return request_segment_gone(connection, packet, fault);
        case ND_KIND_RING:
                return nd_intake_open(connection, &packet->prelude,
                                      request_take_fd(connection, packet), fault);
        case ND_KIND_WAKE:
                return nd_intake_wake(connection, fault);
        case ND_KIND_RELEASE:
                return nd_ledger_release(connection, packet, fault);
        case ND_KIND_STATS:
                return request_stats(connection, packet, fault);
        default:
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind", "%s is not a client's to send",
                                    nd_kind_name(packet->prelude.kind));
        }
}
