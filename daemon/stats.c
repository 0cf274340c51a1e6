/* SPDX-License-Identifier: MIT */

/*
 * STATS
 *
 * One map, written at one instant, so its numbers add up: for every subscription matched equals
 * delivered plus dropped plus queued.
 */

#include "daemon/stats.h"
#include <msgpack.h>
#include <string.h>
#include <unistd.h>
#include "daemon/server.h"
#include "protocol/header.h"
#include "protocol/openmetrics.h"

/* server, memory, counters, histograms, identities, clients, subscriptions, groups, topics, segments,
 * holders */
#define STATS_PARTS_N  11
#define STATS_SINK_N   11 /* keys of stats_sink() */
#define STATS_MEMBER_N 8  /* of stats_member() */

/* A larger answer must leave an eighth of the memory to messages: clients that ask and do not read
 * would take it from them. */
#define STATS_FREE_BYTES (64u * 1024u)
#define STATS_LEAVES     8u

#define STATS_WORD_BYTES 300u /* of a dtype or a shape */

static void stats_text(msgpack_packer *packer, const char *text, size_t n)
{
        msgpack_pack_str(packer, n);
        msgpack_pack_str_body(packer, text, n);
}

static void stats_key(msgpack_packer *packer, const char *key)
{
        stats_text(packer, key, strlen(key));
}

static void stats_number(msgpack_packer *packer, const char *key, uint64_t value)
{
        stats_key(packer, key);
        msgpack_pack_uint64(packer, value);
}

static void stats_string(msgpack_packer *packer, const char *key, const char *text)
{
        stats_key(packer, key);
        stats_text(packer, text, strlen(text));
}

static void stats_server(msgpack_packer *packer, const struct nd_server *server)
{
        stats_key(packer, "server");
        msgpack_pack_map(packer, 3);
        stats_string(packer, "version", ND_PROJECT_VERSION);
        stats_number(packer, "pid", (uint64_t)getpid());
        stats_number(packer, "uptime_ns", server->now_ns - server->started_ns);

        stats_key(packer, "memory");
        msgpack_pack_map(packer, 7);
        stats_number(packer, "used", server->store.memory.used_bytes);
        stats_number(packer, "used_high", server->store.memory.used_bytes_high);
        stats_number(packer, "max", server->store.memory.max_bytes);
        stats_number(packer, "retained", server->retained_bytes);
        stats_number(packer, "messages", server->store.n_messages);
        stats_number(packer, "shm", server->shares_bytes);
        stats_number(packer, "shm_max", server->options.shm_max);
}

static void stats_counters(msgpack_packer *packer, const struct nd_counters *counters)
{
        size_t n = 0;

#define STATS_COUNT(_name, _text) ++n;
        ND_COUNTERS(STATS_COUNT)
#undef STATS_COUNT
        stats_key(packer, "counters");
        msgpack_pack_map(packer, n);
#define STATS_COUNTER(_name, _text) stats_number(packer, #_name, counters->_name);
        ND_COUNTERS(STATS_COUNTER)
#undef STATS_COUNTER
}

/* Of each bucket what is in it alone. */
static void stats_histogram(msgpack_packer *packer,
                            const char *name,
                            uint64_t sum,
                            const uint64_t *counts,
                            const char *const *bounds,
                            size_t n)
{
        stats_key(packer, name);
        msgpack_pack_map(packer, 2);
        stats_number(packer, "sum", sum);
        stats_key(packer, "buckets");
        msgpack_pack_map(packer, n);
        for (size_t i = 0; i < n; ++i)
                stats_number(packer, bounds[i], counts[i]);
}

static void stats_histograms(msgpack_packer *packer, const struct nd_histograms *histograms)
{
        size_t n = 0;

#define STATS_COUNT(_name, _bounds, _text) ++n;
        ND_HISTOGRAMS(STATS_COUNT)
#undef STATS_COUNT
        stats_key(packer, "histograms");
        msgpack_pack_map(packer, n);
#define STATS_BOUND(_most, _text) _text,
#define STATS_HISTOGRAM(_name, _bounds, _text)                                                     \
        {                                                                                          \
                static const char *const bounds[] = {ND_BOUNDS_##_bounds(STATS_BOUND) "+Inf"};     \
                                                                                                   \
                stats_histogram(packer, #_name, histograms->_name.sum, histograms->_name.counts,   \
                                bounds, nd_array_size(bounds));                                    \
        }
        ND_HISTOGRAMS(STATS_HISTOGRAM)
#undef STATS_HISTOGRAM
#undef STATS_BOUND
}

/* Connections of one identity may have different limits, of different groups; the least is met
 * first. */
static void stats_find_least(struct nd_server *server)
{
        struct nd_account *account;

        RB_FOREACH (account, nd_account_tree, &server->accounts.tree)
                for (size_t i = 0; i < _ND_LIMIT_N; ++i)
                        account->least[i] = ND_LIMIT_NONE;
        nd_list_for_each (i, &server->connections) {
                const struct nd_quota *quota =
                        &nd_list_entry(i, struct nd_connection, in_server)->quota;

                for (size_t k = 0; k < _ND_LIMIT_N && quota->account; ++k)
                        quota->account->least[k] =
                                nd_min_u64(quota->account->least[k], quota->most[k]);
        }
}

/* What is counted for each identity, whether or not it is limited, and what it is limited to. */
static void stats_identities(msgpack_packer *packer, struct nd_server *server)
{
        static const struct {
                enum nd_limit limit;
                const char *used;
                const char *least;
        } rows[] = {
                {ND_LIMIT_CONNECTIONS, "connections", "connections_max"},
                {ND_LIMIT_SUBSCRIPTIONS, "subscriptions", "subscriptions_max"},
                {ND_LIMIT_TOPICS, "topics", "topics_max"},
                {ND_LIMIT_QUEUED, "queued_bytes", "queued_max_bytes"},
                {ND_LIMIT_RETAINED, "retained_bytes", "retained_max_bytes"},
                {ND_LIMIT_HELD, "held_bytes", "held_max_bytes"},
        };
        struct nd_account *account;

        stats_find_least(server);
        stats_key(packer, "identities");
        msgpack_pack_array(packer, server->accounts.n);
        RB_FOREACH (account, nd_account_tree, &server->accounts.tree) {
                size_t n_limited = 0;

                for (size_t i = 0; i < nd_array_size(rows); ++i)
                        n_limited += account->least[rows[i].limit] != ND_LIMIT_NONE;
                msgpack_pack_map(packer, 1 + nd_array_size(rows) + n_limited);
                stats_string(packer, "identity", account->name);
                for (size_t i = 0; i < nd_array_size(rows); ++i) {
                        uint64_t least = account->least[rows[i].limit];

                        stats_number(packer, rows[i].used, account->used[rows[i].limit]);
                        if (least != ND_LIMIT_NONE)
                                stats_number(packer, rows[i].least, least);
                }
        }
}

static uint64_t stats_queued_bytes(struct nd_connection *connection)
{
        struct nd_subscription *subscription;
        uint64_t n_bytes = 0;

        RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions)
                n_bytes += nd_sink_is_group(subscription->sink) ? 0
                                                                : subscription->sink->queue.n_bytes;
        return n_bytes;
}

static void stats_clients(msgpack_packer *packer, const struct nd_server *server)
{
        stats_key(packer, "clients");
        msgpack_pack_array(packer, server->n_connections);
        nd_list_for_each (i, &server->connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);

                msgpack_pack_map(packer, 11);
                stats_number(packer, "source", connection->source);
                stats_string(packer, "client", connection->client);
                stats_string(packer, "peer", connection->peer);
                stats_number(packer, "pid", connection->pid);
                stats_string(packer, "transport", connection->is_tcp ? "tcp" : "unix");
                stats_number(packer, "published", connection->publisher.n_received);
                stats_number(packer, "published_bytes", connection->publisher.n_bytes);
                stats_number(packer, "delivered", connection->outbox.n_messages);
                stats_number(packer, "delivered_bytes", connection->outbox.n_bytes);
                stats_number(packer, "queued_bytes", stats_queued_bytes(connection));
                stats_number(packer, "window", connection->publisher.window_bytes);
        }
}

/* What is the same of a subscription's own sink and of a group. */
static void stats_sink(msgpack_packer *packer, const struct nd_sink *sink)
{
        const struct nd_queue *queue = &sink->queue;

        stats_key(packer, "pattern");
        stats_text(packer, sink->names, sink->n_pattern);
        stats_key(packer, "group");
        stats_text(packer, sink->names + sink->n_pattern, sink->n_group);
        stats_string(packer, "policy", nd_policy_name(queue->policy));
        stats_number(packer, "depth", queue->depth_messages);
        stats_number(packer, "bytes", queue->depth_bytes);
        stats_number(packer, "matched", queue->n_matched);
        stats_number(packer, "delivered", queue->n_delivered);
        stats_number(packer, "dropped", nd_queue_dropped(queue));
        stats_key(packer, "dropped_by");
        msgpack_pack_map(packer, _ND_DROP_N);
        for (enum nd_drop reason = 0; reason < _ND_DROP_N; ++reason)
                stats_number(packer, nd_drop_name(reason), queue->n_dropped[reason]);
        stats_number(packer, "queued", queue->n_messages);
        stats_number(packer, "queued_bytes", queue->n_bytes);
}

/* Of a member of a group the numbers are its own: what was dropped or waits is the group's. */
static void stats_member(msgpack_packer *packer, const struct nd_subscription *subscription)
{
        const struct nd_sink *sink = subscription->sink;

        stats_key(packer, "pattern");
        stats_text(packer, sink->names, sink->n_pattern);
        stats_key(packer, "group");
        stats_text(packer, sink->names + sink->n_pattern, sink->n_group);
        stats_string(packer, "policy", nd_policy_name(sink->queue.policy));
        stats_number(packer, "matched", subscription->n_deliveries);
        stats_number(packer, "delivered", subscription->n_deliveries);
        stats_number(packer, "dropped", 0);
        stats_number(packer, "queued", 0);
        stats_number(packer, "unfinished", subscription->messages_out);
}

static void stats_subscription(msgpack_packer *packer, const struct nd_subscription *subscription)
{
        bool is_group = nd_sink_is_group(subscription->sink);

        msgpack_pack_map(packer, 2 + (is_group ? STATS_MEMBER_N : STATS_SINK_N));
        stats_number(packer, "source", subscription->connection->source);
        stats_number(packer, "id", subscription->id);
        if (is_group)
                stats_member(packer, subscription);
        else
                stats_sink(packer, subscription->sink);
}

static size_t stats_count(const struct nd_list *list)
{
        size_t n = 0;

        nd_list_for_each (i, list)
                ++n;
        return n;
}

static void stats_groups(msgpack_packer *packer, const struct nd_server *server)
{
        stats_key(packer, "groups");
        msgpack_pack_array(packer, stats_count(&server->groups));
        nd_list_for_each (i, &server->groups) {
                const struct nd_sink *sink = nd_list_entry(i, struct nd_sink, in_groups);

                msgpack_pack_map(packer, STATS_SINK_N + 2);
                stats_sink(packer, sink);
                stats_number(packer, "members", stats_count(&sink->members));
                stats_number(packer, "unfinished", sink->queue.n_outside);
        }
}

static void stats_subscriptions(msgpack_packer *packer, const struct nd_server *server)
{
        size_t n = 0;

        nd_list_for_each (i, &server->connections)
                n += nd_list_entry(i, struct nd_connection, in_server)->n_subscriptions;
        stats_key(packer, "subscriptions");
        msgpack_pack_array(packer, n);
        nd_list_for_each (i, &server->connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);
                struct nd_subscription *subscription;

                RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions)
                        stats_subscription(packer, subscription);
        }
}

/* What the first frame of the topic's last message is, in words: "float32", ">int16", "[480,640]". */
static void stats_frame(msgpack_packer *packer, const struct nd_topic *topic)
{
        char dtype[STATS_WORD_BYTES] = "", shape[STATS_WORD_BYTES] = "";
        struct nd_header *header = NULL;
        size_t n = 0;

        if (topic->header && nd_header_unpack(topic->header->bytes, topic->header->n, NULL, &header,
                                              &(struct nd_fault){0}) == 0) {
                const struct ndbus_array *array = &header->frames->array;

                if (header->n_frames > 0) {
                        snprintf(dtype, sizeof(dtype), "%s%s",
                                 array->flags & NDBUS_BIG_ENDIAN ? ">" : "",
                                 array->dtype ? array->dtype : "raw");
                        for (int32_t i = 0; i < array->ndim && n < sizeof(shape) - 24; ++i)
                                n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%lld",
                                                      i ? "," : "[", (long long)array->shape[i]);
                        snprintf(shape + n, sizeof(shape) - n, n ? "]" : "[]");
                }
                nd_header_free(header);
        }
        stats_string(packer, "dtype", dtype);
        stats_string(packer, "shape", shape);
}

static void stats_topics(msgpack_packer *packer, struct nd_server *server)
{
        struct nd_topic *topic;

        stats_key(packer, "topics");
        msgpack_pack_array(packer, server->router.n_topics);
        RB_FOREACH (topic, nd_topic_tree, &server->router.topics) {
                struct nd_target **targets;
                size_t n = 0;

                (void)nd_topic_route(topic, &targets, &n);
                msgpack_pack_map(packer, 7);
                stats_key(packer, "topic");
                stats_text(packer, topic->name, topic->n_name);
                stats_number(packer, "subscribers", n);
                stats_number(packer, "messages", topic->n_messages);
                stats_number(packer, "bytes", topic->n_bytes);
                stats_frame(packer, topic);
                stats_key(packer, "retained");
                if (topic->retained)
                        msgpack_pack_true(packer);
                else
                        msgpack_pack_false(packer);
        }
}

/* Shared memory: what publishers have announced, and what of it is out. */
static void stats_segments(msgpack_packer *packer, const struct nd_server *server)
{
        stats_key(packer, "segments");
        msgpack_pack_array(packer, server->n_shares);
        nd_list_for_each (i, &server->shares) {
                const struct nd_share *share = nd_list_entry(i, struct nd_share, in_server);
                const struct nd_connection *owner = share->owner;

                msgpack_pack_map(packer, 8);
                stats_number(packer, "source", owner ? owner->source : 0);
                stats_string(packer, "client", owner ? owner->client : share->own ? "ndbusd" : "");
                stats_number(packer, "pid",
                             owner        ? (uint64_t)owner->peer_pid
                             : share->own ? (uint64_t)getpid()
                                          : 0);
                stats_number(packer, "segment", share->number);
                stats_number(packer, "bytes", share->memory.bytes);
                stats_number(packer, "blocks", share->n_blocks);
                stats_number(packer, "queued", share->n_wanted);
                stats_number(packer, "queued_bytes", share->wanted_bytes);
        }
}

/* And who holds it: those that publishers wait for. */
static void stats_holders(msgpack_packer *packer, const struct nd_server *server)
{
        size_t n = 0;

        nd_list_for_each (i, &server->connections)
                n += nd_list_entry(i, struct nd_connection, in_server)->holder.n_held > 0;
        stats_key(packer, "holders");
        msgpack_pack_array(packer, n);
        nd_list_for_each (i, &server->connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);
                struct nd_holder *holder = &connection->holder;

                if (holder->n_held == 0)
                        continue;
                msgpack_pack_map(packer, 6);
                stats_number(packer, "source", connection->source);
                stats_string(packer, "client", connection->client);
                stats_number(packer, "pid", (uint64_t)connection->peer_pid);
                stats_number(packer, "blocks", holder->n_held);
                stats_number(packer, "bytes", holder->held_bytes);
                stats_number(packer, "oldest_ns", server->now_ns - nd_holder_oldest_ns(holder));
        }
}

/* msgpack-c reports a failed allocation by the result of the write that needed it; a buffer that
 * remembers is simpler than a check at every number. */
struct stats_buffer {
        msgpack_sbuffer bytes;
        bool has_failed;
};

static int stats_write(void *data, const char *bytes, size_t n_bytes)
{
        struct stats_buffer *buffer = data;

        if (msgpack_sbuffer_write(&buffer->bytes, bytes, n_bytes) != 0)
                buffer->has_failed = true;
        return buffer->has_failed ? -1 : 0;
}

/* Return: 0; NDBUS_ENOMEM: @ret need not be destroyed */
static int stats_pack(struct nd_server *server, msgpack_sbuffer *ret, struct nd_fault *fault)
{
        struct stats_buffer buffer = {0};
        msgpack_packer packer;

        msgpack_sbuffer_init(&buffer.bytes);
        msgpack_packer_init(&packer, &buffer, stats_write);
        msgpack_pack_map(&packer, STATS_PARTS_N);
        stats_server(&packer, server);
        stats_counters(&packer, &server->counters);
        stats_histograms(&packer, &server->histograms);
        stats_identities(&packer, server);
        stats_clients(&packer, server);
        stats_subscriptions(&packer, server);
        stats_groups(&packer, server);
        stats_topics(&packer, server);
        stats_segments(&packer, server);
        stats_holders(&packer, server);
        if (buffer.has_failed) {
                msgpack_sbuffer_destroy(&buffer.bytes);
                return nd_fault_set(fault, NDBUS_ENOMEM, "stats", "no memory");
        }
        *ret = buffer.bytes;
        return 0;
}

/* Return: 0, NDBUS_ENO_SPACE */
static int stats_check_room(const struct nd_memory *memory, size_t n_bytes, struct nd_fault *fault)
{
        if (n_bytes <= STATS_FREE_BYTES ||
            nd_memory_has_room(memory, n_bytes + memory->max_bytes / STATS_LEAVES))
                return 0;
        return nd_fault_set_limit(fault, NDBUS_ENO_SPACE, "memory-max",
                                  memory->used_bytes + n_bytes,
                                  memory->max_bytes - memory->max_bytes / STATS_LEAVES, "bytes");
}

int nd_stats_answer(struct nd_connection *connection, uint64_t sequence, struct nd_fault *fault)
{
        msgpack_sbuffer bytes;
        int r = stats_pack(connection->server, &bytes, fault);

        if (r < 0)
                return r;
        if (stats_check_room(&connection->server->store.memory, bytes.size, fault) < 0) {
                nd_connection_error(connection, fault, ND_KIND_STATS, sequence);
                msgpack_sbuffer_destroy(&bytes);
                return 0;
        }
        for (size_t i = 0; i <= bytes.size; i += ND_CONTROL_BODY_BYTES_MAX) {
                size_t n = nd_min_u64(bytes.size - i, ND_CONTROL_BODY_BYTES_MAX);
                struct nd_prelude prelude = {.kind = ND_KIND_STATS_REPLY, .sequence = sequence};

                nd_outbox_control(&connection->outbox, &prelude, NULL, bytes.data + i, n);
        }
        if (bytes.size % ND_CONTROL_BODY_BYTES_MAX != 0) {
                struct nd_prelude last = {.kind = ND_KIND_STATS_REPLY, .sequence = sequence};

                nd_outbox_control(&connection->outbox, &last, NULL, NULL, 0);
        }
        msgpack_sbuffer_destroy(&bytes);
        return 0;
}

int nd_stats_openmetrics(struct nd_server *server,
                         char **ret,
                         size_t *ret_n,
                         struct nd_fault *fault)
{
        msgpack_sbuffer bytes;
        char *text = NULL;
        size_t n_text = 0;
        FILE *out;
        int r = stats_pack(server, &bytes, fault);

        if (r < 0)
                return r;
        out = open_memstream(&text, &n_text);
        if (out) {
                r = nd_openmetrics_write(out, bytes.data, bytes.size, fault);
                if (r == 0 && ferror(out))
                        r = nd_fault_set(fault, NDBUS_ENOMEM, "stats", "no memory");
                if (fclose(out) != 0 && r == 0)
                        r = nd_fault_set(fault, NDBUS_ENOMEM, "stats", "no memory");
        } else {
                r = nd_fault_set(fault, NDBUS_ENOMEM, "stats", "no memory");
        }
        msgpack_sbuffer_destroy(&bytes);
        r = r < 0 ? r : stats_check_room(&server->store.memory, n_text, fault);
        if (r < 0) {
                free(text);
                return r;
        }
        *ret = text;
        *ret_n = n_text;
        return 0;
}
