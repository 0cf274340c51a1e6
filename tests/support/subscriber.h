/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Subscriber: a process of its own that receives, so that it can be stopped, continued and killed
 *
 * It subscribes once, checks every byte of what it gets, and tells the test of each message. The
 * test hears what it tells in its own time: until about a thousand messages wait to be heard, the
 * process receives on.
 */

#include <ndbus/ndbus.h>
#include "tests/support/client.h"

struct nd_subscriber {
        pid_t pid;
        uint64_t source; /**< of its connection */
        uint32_t id;     /**< of its subscription */
        int said_fd;
};

/** A message published by nd_client_publish(), as it was received. */
struct nd_heard {
        uint64_t number;
        uint64_t dropped; /**< just before it */
        uint64_t source;
        uint64_t sequence;
};

/** Start it, and wait until it has subscribed. options may be NULL. */
void nd_subscriber_start(struct nd_subscriber *s,
                         const struct nd_harness *h,
                         const struct nd_transport *transport,
                         const char *pattern,
                         const struct ndbus_subscribe_options *options);

/** After SIGSTOP it has stopped when this returns. */
void nd_subscriber_signal(const struct nd_subscriber *s, int signal_number);

/** The next message that it received; waits for it. */
struct nd_heard nd_subscriber_next(const struct nd_subscriber *s);

/** Kill it, stopped or not. */
void nd_subscriber_end(struct nd_subscriber *s);
