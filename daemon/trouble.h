/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Trouble: what the operator is told of a subscription that loses messages, takes none, or stops
 * others, and of a message that stops arriving
 *
 * Which client, which topic, how many messages and bytes, how long; in one line, and seldom.
 */

#include "protocol/fault.h"
#include "protocol/limit.h"

struct nd_pause;
struct nd_publisher;
struct nd_sink;
struct nd_topic;

/* What is remembered of one sink. */
struct nd_trouble {
        uint64_t
                losing_since_ns; /* losses were seen at every look since; 0: at the last one none */
        uint64_t told_ns;        /* when losses were told last; 0: never */
        uint64_t mark_ns;        /* when it took something last, or had nothing to take */
        uint64_t n_delivered;    /* at that time */
        bool has_taken;          /* since the last look */
        bool is_stalled;         /* and that has been told */
};

/* A topic's name as a line can show it, for any part that tells of trouble. @topic: or NULL */
const char *nd_trouble_topic(const struct nd_topic *topic, char out[static ND_TOPIC_BYTES_MAX + 1]);

/* Once a second, for each sink. */
void nd_trouble_look(struct nd_sink *sink, uint64_t now_ns);

/* A publisher that was stopped may go on; its sink may have ended. */
void nd_trouble_resume(const struct nd_pause *pause);

/* The message that is arriving has stopped in the middle. */
void nd_trouble_give_up(const struct nd_publisher *publisher, const struct nd_fault *fault);

/* The daemon ends it. */
void nd_trouble_end(struct nd_sink *sink, const struct nd_fault *fault);

/* Its last member leaves: losses that were not told yet are. */
void nd_trouble_leave(struct nd_sink *sink);
