/* SPDX-License-Identifier: MIT */

/*
 * Pause
 *
 * A full block queue does not stop a connection: control packets and other topics go on. It tells
 * the publisher of the message that met it to stop on that topic, and that one alone; what the
 * publisher had leave to send meanwhile is kept beyond the limits, and its credit waits.
 *
 * Resuming waits for half the limits, so that a queue that hovers at its limit does not send two
 * packets a message; and it resumes as many as there are places, so that a thousand stopped topics
 * do not come back at once for the place of one.
 *
 * The news (TOPIC, paused or not) is a mark of the pair: what changes twice before there is room to
 * say it is not said.
 */

#include "daemon/pause.h"
#include "daemon/server.h"

static void pause_tell(struct nd_pair *pair)
{
        struct nd_publisher *publisher = pair->publisher;

        if (nd_list_is_empty(&pair->in_news))
                nd_list_push_tail(&publisher->news, &pair->in_news);
        nd_connection_mark_dirty(publisher->connection);
}

static void pause_end(struct nd_pause *pause)
{
        struct nd_pair *pair = pause->pair;

        nd_trouble_resume(pause);
        nd_list_unlink(&pause->in_sink);
        nd_list_unlink(&pause->in_pair);
        free(pause);
        if (nd_list_is_empty(&pair->pauses))
                pause_tell(pair);
}

void nd_pause_add(struct nd_sink *sink, struct nd_pair *pair)
{
        struct nd_pause *pause;

        nd_list_for_each (i, &pair->pauses) {
                if (nd_list_entry(i, struct nd_pause, in_pair)->sink == sink)
                        return;
        }
        pause = malloc(sizeof(*pause));
        if (!pause)
                return; /* its window stops it all the same */
        *pause = (struct nd_pause){.pair = pair, .sink = sink, .since_ns = sink->server->now_ns};
        nd_list_push_tail(&sink->pauses, &pause->in_sink);
        nd_list_push_tail(&pair->pauses, &pause->in_pair);
        pause_tell(pair);
}

void nd_pause_resume(struct nd_sink *sink)
{
        const struct nd_queue *queue = &sink->queue;
        uint64_t n_messages = nd_queue_held(queue);
        uint64_t n_bytes = nd_queue_held_bytes(queue);
        uint64_t n_places = UINT64_MAX;

        if (n_messages > 0) {
                if (n_messages > queue->depth_messages / 2 || n_bytes > queue->depth_bytes / 2)
                        return;
                n_places = queue->depth_messages - n_messages;
        }
        for (; n_places > 0 && !nd_list_is_empty(&sink->pauses); --n_places)
                pause_end(nd_list_entry(sink->pauses.next, struct nd_pause, in_sink));
}

void nd_pause_end_sink(struct nd_sink *sink)
{
        while (!nd_list_is_empty(&sink->pauses))
                pause_end(nd_list_entry(sink->pauses.next, struct nd_pause, in_sink));
}

void nd_pause_end_pair(struct nd_pair *pair)
{
        while (!nd_list_is_empty(&pair->pauses)) {
                struct nd_pause *pause = nd_list_entry(pair->pauses.next, struct nd_pause, in_pair);

                nd_list_unlink(&pause->in_sink);
                nd_list_unlink(&pause->in_pair);
                free(pause);
        }
        nd_list_unlink(&pair->in_news);
}
