/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Bystanders: a well-behaved publisher and subscriber, beside whom others misbehave
 */

#include "tests/support/raw-client.h"

struct nd_bystanders {
        struct nd_raw *publisher;
        struct nd_raw *subscriber; /**< subscription 1, pattern "**" */
        uint64_t n_sent;
};

void nd_bystanders_init(struct nd_bystanders *b, struct nd_harness *h);

/** One publishes and the other receives: the next message of the source, and no gap. */
void nd_bystanders_talk(struct nd_bystanders *b);

/** The same, and the daemon's numbers add up. */
void nd_bystanders_check(struct nd_bystanders *b);

void nd_bystanders_deinit(struct nd_bystanders *b);
