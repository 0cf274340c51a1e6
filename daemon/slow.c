/* SPDX-License-Identifier: MIT */

/*
 * Slow
 *
 * A block queue that is in the way has block-timeout to take something: a message granted or finished,
 * or a byte of what it is being sent. The smallest honest client grants one message at a time and reads
 * it slowly, so bytes count; a CREDIT that returns no message does not, because it could come for ever.
 *
 * The time is the same for all, so the list of those in the way, in the order in which they took
 * something last, is in the order of their deadlines too, and one timer serves all: it is set for the
 * first, and what has taken something meanwhile is found when it fires.
 */

#include "daemon/slow.h"
#include "daemon/server.h"

#define SLOW_MS_NS UINT64_C(1000000)

static struct nd_sink *slow_sink(struct nd_list *node)
{
        return nd_list_entry(node, struct nd_sink, in_slow);
}

static void slow_on_timer(uv_timer_t *timer)
{
        struct nd_server *server = nd_container_of(timer, struct nd_server, slow_timer);

        server->now_ns = uv_hrtime();
        nd_slow_end(server);
        nd_server_settle(server);
}

static uint64_t slow_timeout_ns(const struct nd_server *server)
{
        return server->options.block_timeout_ms * SLOW_MS_NS;
}

bool nd_slow_is_in_the_way(const struct nd_sink *sink)
{
        const struct nd_queue *queue = &sink->queue;

        /* while somebody waits for memory, what a block queue holds is in the way */
        return queue->n_over > 0 || !nd_list_is_empty(&sink->pauses) ||
               nd_queue_is_full(queue, 0) ||
               (queue->n_messages > 0 && !nd_list_is_empty(&sink->server->memory_waiters));
}

static void slow_begin(struct nd_sink *sink)
{
        struct nd_server *server = sink->server;

        nd_list_unlink(&sink->in_slow);
        nd_list_push_tail(&server->slow, &sink->in_slow);
        sink->slow_since_ns = server->now_ns;
        if (!uv_is_active((uv_handle_t *)&server->slow_timer))
                (void)uv_timer_start(&server->slow_timer, slow_on_timer,
                                     server->options.block_timeout_ms, 0);
}

void nd_slow_watch(struct nd_sink *sink, bool was_in_the_way)
{
        if (nd_slow_is_in_the_way(sink) && (!was_in_the_way || nd_list_is_empty(&sink->in_slow)))
                slow_begin(sink);
}

void nd_slow_took(struct nd_sink *sink)
{
        if (!nd_list_is_empty(&sink->in_slow))
                slow_begin(sink);
}

void nd_slow_look(struct nd_sink *sink)
{
        if (sink->queue.policy != ND_POLICY_BLOCK)
                return;
        if (!nd_slow_is_in_the_way(sink))
                nd_list_unlink(&sink->in_slow);
        else
                nd_slow_watch(sink, true);
}

static void slow_end_sink(struct nd_sink *sink)
{
        const struct nd_server *server = sink->server;
        struct nd_fault fault;

        nd_fault_set_limit(&fault, NDBUS_ESLOW, "block-timeout",
                           (server->now_ns - sink->slow_since_ns) / SLOW_MS_NS,
                           server->options.block_timeout_ms, "ms");
        nd_sink_end(sink, &fault);
}

void nd_slow_end(struct nd_server *server)
{
        uint64_t timeout_ns = slow_timeout_ns(server);
        struct nd_list *node;

        while ((node = nd_list_first(&server->slow))) {
                struct nd_sink *sink = slow_sink(node);
                uint64_t due_ns = sink->slow_since_ns + timeout_ns;

                if (!nd_slow_is_in_the_way(sink)) {
                        nd_list_unlink(node);
                } else if (due_ns <= server->now_ns) {
                        slow_end_sink(sink);
                } else {
                        (void)uv_timer_start(&server->slow_timer, slow_on_timer,
                                             (due_ns - server->now_ns) / SLOW_MS_NS + 1, 0);
                        return;
                }
        }
}

void nd_slow_set_timer(struct nd_server *server)
{
        if (!nd_list_is_empty(&server->slow))
                (void)uv_timer_start(&server->slow_timer, slow_on_timer, 0, 0);
}
