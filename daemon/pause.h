/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Pause: policy block asks one publisher to stop publishing on one topic
 */

#include "daemon/publisher.h"
#include "daemon/sink.h"

/* A publisher's topic that a full block queue has stopped. */
struct nd_pause {
        struct nd_list in_sink; /* nd_sink.pauses, in the order in which they stopped */
        struct nd_list in_pair; /* nd_pair.pauses: the topic is paused while there is any */
        struct nd_pair *pair;
        const struct nd_sink *sink;
        uint64_t since_ns;
        bool is_told; /* the operator knows of it */
};

/* A message of @pair went beyond the limits of a block queue. */
void nd_pause_add(struct nd_sink *sink, struct nd_pair *pair);

/* The queue has become shorter: at half its limits it resumes as many as there are places, in
 * order; when it is empty, all. What a group's members have not finished is in it. */
void nd_pause_resume(struct nd_sink *sink);

/* The sink ends, or the publisher goes. */
void nd_pause_end_sink(struct nd_sink *sink);
void nd_pause_end_pair(struct nd_pair *pair);
