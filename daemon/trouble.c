/* SPDX-License-Identifier: MIT */

/*
 * Trouble
 *
 * Losses are added up where they happen and looked at once a second; the first are told at once, what
 * follows once a minute, and the last when the subscription goes, so that the lines add up to what the
 * counters say. A value that a newer one has replaced, as policy latest wants it, is no loss, and what
 * waits when a subscription ends neither.
 *
 * A subscription that has messages waiting and takes none is told of once, and again when it takes
 * some: then it was not lost, only long.
 */

#include "daemon/trouble.h"
#include <inttypes.h>
#include <string.h>
#include "daemon/pause.h"
#include "daemon/server.h"

#define TROUBLE_AGAIN_NS (UINT64_C(60) * 1000000000)
#define TROUBLE_STALL_MS 10000u
#define TROUBLE_NAME     (ND_TOPIC_BYTES_MAX + 1)

/* Names of topics are the clients': none may look like the end of its quotes. */
static const char *trouble_name(const char *name, size_t n, char out[static TROUBLE_NAME])
{
        n = nd_min_u64(n, TROUBLE_NAME - 1);
        for (size_t i = 0; i < n; ++i)
                out[i] = name[i] == '"' || name[i] == '\\' ? '?' : name[i];
        out[n] = '\0';
        return out;
}

const char *nd_trouble_topic(const struct nd_topic *topic, char out[static TROUBLE_NAME])
{
        return topic ? trouble_name(topic->name, topic->n_name, out) : "";
}

static struct nd_subscription *trouble_member(const struct nd_sink *sink)
{
        return nd_list_entry(sink->members.next, struct nd_subscription, in_sink);
}

/* Of a group the member that has been in it longest. */
static void trouble_describe(const struct nd_sink *sink, char *out, size_t n_out)
{
        const struct nd_subscription *member = trouble_member(sink);
        const struct nd_connection *connection = member->connection;
        char pattern[TROUBLE_NAME], group[TROUBLE_NAME];

        snprintf(out, n_out,
                 "peer=\"%s\" client=\"%s\" subscription=%" PRIu32
                 " pattern=\"%s\" group=\"%s\" policy=%s",
                 connection->peer, connection->client, member->id,
                 trouble_name(sink->names, sink->n_pattern, pattern),
                 trouble_name(sink->names + sink->n_pattern, nd_min_u64(sink->n_group, 64), group),
                 nd_policy_name(sink->queue.policy));
}

static uint64_t trouble_seconds(uint64_t since_ns, uint64_t now_ns)
{
        return (now_ns - nd_min_u64(since_ns, now_ns)) / 1000000000;
}

/* The topic of what has waited longest, if anything waits. */
static const struct nd_topic *trouble_oldest(const struct nd_sink *sink)
{
        const struct nd_entry *entry = nd_queue_peek(&sink->queue);

        return entry ? entry->message->topic : NULL;
}

/* -------------------------------------------------------------------------------------- losses */

static void trouble_tell_losses(struct nd_sink *sink, uint64_t now_ns)
{
        struct nd_server *server = sink->server;
        struct nd_queue *queue = &sink->queue;
        char who[768], topic[TROUBLE_NAME];
        bool is_own = queue->lost_reason == ND_DROP_OLDEST || queue->lost_reason == ND_DROP_NEWEST;

        trouble_describe(sink, who, sizeof(who));
        nd_log_limited(&server->trouble_log, now_ns, is_own ? ND_LOG_NOTICE : ND_LOG_WARNING,
                       "messages dropped %s topic=\"%s\" reason=%s messages=%" PRIu64
                       " bytes=%" PRIu64 " seconds=%" PRIu64 " queued=%" PRIu64
                       " queued_bytes=%" PRIu64,
                       who, nd_trouble_topic(queue->lost_topic, topic),
                       nd_drop_name(queue->lost_reason), queue->n_lost, queue->lost_bytes,
                       trouble_seconds(sink->trouble.losing_since_ns, now_ns), queue->n_messages,
                       queue->n_bytes);
        sink->trouble.told_ns = now_ns;
        nd_queue_forget_losses(queue);
}

static void trouble_look_at_losses(struct nd_sink *sink, uint64_t now_ns)
{
        struct nd_trouble *trouble = &sink->trouble;

        if (sink->queue.n_lost == 0) {
                trouble->losing_since_ns = 0;
                return;
        }
        if (trouble->losing_since_ns == 0)
                trouble->losing_since_ns = now_ns;
        if (trouble->told_ns == 0 || now_ns - trouble->told_ns >= TROUBLE_AGAIN_NS)
                trouble_tell_losses(sink, now_ns);
}

void nd_trouble_leave(struct nd_sink *sink)
{
        uint64_t now_ns = sink->server->now_ns;

        if (sink->queue.n_lost == 0)
                return;
        if (sink->trouble.losing_since_ns == 0)
                sink->trouble.losing_since_ns = now_ns;
        trouble_tell_losses(sink, now_ns);
}

/* -------------------------------------------------------------------------------------- stalls */

static uint64_t trouble_stall_ns(const struct nd_server *server)
{
        return nd_min_u64(TROUBLE_STALL_MS, server->options.block_timeout_ms / 2) * 1000000;
}

static void trouble_look_at_stall(struct nd_sink *sink, uint64_t now_ns)
{
        struct nd_server *server = sink->server;
        struct nd_trouble *trouble = &sink->trouble;
        const struct nd_queue *queue = &sink->queue;
        const struct nd_subscription *member = trouble_member(sink);
        char who[768], topic[TROUBLE_NAME];

        if (queue->n_messages == 0 || member->is_on_demand || trouble->has_taken ||
            queue->n_delivered != trouble->n_delivered) {
                if (trouble->is_stalled) {
                        trouble_describe(sink, who, sizeof(who));
                        nd_log_limited(&server->trouble_log, now_ns, ND_LOG_NOTICE,
                                       "subscription takes messages again %s seconds=%" PRIu64, who,
                                       trouble_seconds(trouble->mark_ns, now_ns));
                }
                trouble->has_taken = false;
                trouble->is_stalled = false;
                trouble->n_delivered = queue->n_delivered;
                trouble->mark_ns = now_ns;
                return;
        }
        if (trouble->is_stalled || now_ns - trouble->mark_ns < trouble_stall_ns(server))
                return;
        trouble->is_stalled = true;
        trouble_describe(sink, who, sizeof(who));
        nd_log_limited(&server->trouble_log, now_ns, ND_LOG_NOTICE,
                       "subscription takes nothing %s topic=\"%s\" queued=%" PRIu64
                       " queued_bytes=%" PRIu64 " untaken=%" PRIu64 " untaken_bytes=%" PRIu64
                       " socket=%s seconds=%" PRIu64,
                       who, nd_trouble_topic(trouble_oldest(sink), topic), queue->n_messages,
                       queue->n_bytes, member->messages_out, member->bytes_out,
                       member->connection->outbox.is_blocked ? "full" : "open",
                       trouble_seconds(trouble->mark_ns, now_ns));
}

/* ------------------------------------------------------------------------------ publishers stopped */

/* The one that waits longest stands for all that this sink has stopped. */
static void trouble_look_at_pause(struct nd_sink *sink, uint64_t now_ns)
{
        struct nd_server *server = sink->server;
        struct nd_list *node = nd_list_first(&sink->pauses);
        struct nd_pause *pause = node ? nd_list_entry(node, struct nd_pause, in_sink) : NULL;
        const struct nd_connection *publisher;
        char who[768], topic[TROUBLE_NAME];

        if (!pause || pause->is_told || now_ns - pause->since_ns < trouble_stall_ns(server))
                return;
        pause->is_told = true;
        publisher = pause->pair->publisher->connection;
        trouble_describe(sink, who, sizeof(who));
        nd_log_limited(&server->trouble_log, now_ns, ND_LOG_WARNING,
                       "publisher stopped by a full queue publisher_peer=\"%s\" "
                       "publisher_client=\"%s\" topic=\"%s\" seconds=%" PRIu64 " %s queued=%" PRIu64
                       " queued_bytes=%" PRIu64,
                       publisher->peer, publisher->client,
                       nd_trouble_topic(pause->pair->topic, topic),
                       trouble_seconds(pause->since_ns, now_ns), who, sink->queue.n_messages,
                       sink->queue.n_bytes);
}

void nd_trouble_resume(const struct nd_pause *pause)
{
        const struct nd_connection *publisher = pause->pair->publisher->connection;
        struct nd_server *server = publisher->server;
        char topic[TROUBLE_NAME];

        if (!pause->is_told)
                return;
        nd_log_limited(&server->trouble_log, server->now_ns, ND_LOG_NOTICE,
                       "publisher may go on publisher_peer=\"%s\" publisher_client=\"%s\" "
                       "topic=\"%s\" seconds=%" PRIu64,
                       publisher->peer, publisher->client,
                       nd_trouble_topic(pause->pair->topic, topic),
                       trouble_seconds(pause->since_ns, server->now_ns));
}

void nd_trouble_give_up(const struct nd_publisher *publisher, const struct nd_fault *fault)
{
        const struct nd_connection *connection = publisher->connection;
        const struct nd_incoming *in = &publisher->in;
        struct nd_server *server = connection->server;
        char topic[TROUBLE_NAME];

        nd_log_limited(&server->trouble_log, server->now_ns, ND_LOG_WARNING,
                       "message given up peer=\"%s\" client=\"%s\" topic=\"%s\" error=%s "
                       "arrived_bytes=%" PRIu64 " bytes=%" PRIu64 " seconds=%" PRIu64
                       " field=\"%s\": %s",
                       connection->peer, connection->client,
                       nd_trouble_topic(in->message ? in->message->topic : NULL, topic),
                       ndbus_errname(fault->code), in->arrived_bytes, in->body_bytes,
                       trouble_seconds(in->mark_ns, server->now_ns), fault->field, fault->text);
}

/* -------------------------------------------------------------------------------------- the whole */

void nd_trouble_look(struct nd_sink *sink, uint64_t now_ns)
{
        trouble_look_at_losses(sink, now_ns);
        trouble_look_at_stall(sink, now_ns);
        trouble_look_at_pause(sink, now_ns);
}

void nd_trouble_end(struct nd_sink *sink, const struct nd_fault *fault)
{
        struct nd_server *server = sink->server;
        char who[768], topic[TROUBLE_NAME];

        trouble_describe(sink, who, sizeof(who));
        nd_log_limited(&server->trouble_log, server->now_ns, ND_LOG_WARNING,
                       "subscription ended %s topic=\"%s\" error=%s queued=%" PRIu64
                       " queued_bytes=%" PRIu64 " field=\"%s\": %s",
                       who, nd_trouble_topic(trouble_oldest(sink), topic),
                       ndbus_errname(fault->code), sink->queue.n_messages, sink->queue.n_bytes,
                       fault->field, fault->text);
}
