/* SPDX-License-Identifier: MIT */

/*
 * Bystanders
 *
 * What hostile clients do must not reach others. That is not seen by looking at the hostile one, so
 * each test has two who go on as if nothing had been.
 */

#include "tests/support/bystanders.h"

#define BYSTANDERS_BYTES 100u

void nd_bystanders_init(struct nd_bystanders *b, struct nd_harness *h)
{
        *b = (struct nd_bystanders){
                .publisher = nd_raw_open(h, false),
                .subscriber = nd_raw_open(h, false),
        };
        nd_raw_subscribe(b->subscriber, 1, &(struct nd_raw_subscribe){.pattern = "**"});
}

void nd_bystanders_talk(struct nd_bystanders *b)
{
        struct nd_raw_message message;

        nd_raw_publish(b->publisher, "bystanders", BYSTANDERS_BYTES);
        message = nd_raw_receive(b->subscriber);
        if (message.prelude.source != b->publisher->source)
                nd_harness_fail(b->publisher->harness, "a message of somebody else came");
        if (message.prelude.sequence != ++b->n_sent || message.n_dropped != 0)
                nd_harness_fail(b->publisher->harness, "a message was lost");
        nd_raw_message_free(&message);
        nd_raw_grant(b->subscriber, 1, 1, BYSTANDERS_BYTES);
}

void nd_bystanders_check(struct nd_bystanders *b)
{
        nd_bystanders_talk(b);
        nd_raw_check_stats(b->publisher);
}

void nd_bystanders_deinit(struct nd_bystanders *b)
{
        nd_raw_close(b->publisher);
        nd_raw_close(b->subscriber);
}
