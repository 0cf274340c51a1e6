/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Pause: policy block asks one publisher to stop publishing on one topic
 */

#include "daemon/publisher.h"
#include "daemon/subscription.h"

/* A publisher's topic that a full block queue has stopped. */
struct nd_pause {
        struct nd_list in_queue; /* nd_subscription.pauses, in the order in which they stopped */
        struct nd_list in_pair;  /* nd_pair.pauses: the topic is paused while there is any */
        struct nd_pair *pair;
        const struct nd_subscription *subscription;
};

/* A message of @pair went beyond the limits of a block queue. */
void nd_pause_add(struct nd_subscription *subscription, struct nd_pair *pair);

/* The queue has become shorter: at half its limits it resumes as many as there are places, in
 * order; when it is empty, all. */
void nd_pause_resume(struct nd_subscription *subscription);

/* The subscription ends, or the publisher goes. */
void nd_pause_end_subscription(struct nd_subscription *subscription);
void nd_pause_end_pair(struct nd_pair *pair);
