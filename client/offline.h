/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Offline: messages that are kept while there is no connection
 */

#include "client/outgoing.h"

struct nd_publish_sizes {
        uint64_t body_bytes;
        size_t n_header;
        size_t n_meta;
        int32_t ndim_max;
};

/* publish.c: against the daemon's limits. Sets the detail. */
int nd_publish_check_limits(const struct ndbus *bus, const struct nd_publish_sizes *sizes);

/* Keeps a copy of the message: 0; NDBUS_EWOULDBLOCK if there is no room within the time. */
int nd_offline_publish(struct ndbus *bus,
                       const struct nd_outgoing *out,
                       int32_t ndim_max,
                       int timeout_ms);
