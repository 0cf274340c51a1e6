/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Metrics: the daemon's numbers for who asks by HTTP, as Prometheus does
 */

#include "protocol/list.h"

struct nd_server;

struct nd_metrics {
        struct nd_list scrapes; /* connections that are open */
        size_t n_scrapes;
};

void nd_metrics_init(struct nd_metrics *metrics);

/* May another connection come? */
bool nd_metrics_has_room(const struct nd_metrics *metrics);

/* Takes @fd over, and reads and answers one request. Return: 0, or a negative errno: @fd is closed */
int nd_metrics_accept(struct nd_server *server, int fd, bool is_tcp);

/* Closes all connections; they are gone when the loop has let go of them. */
void nd_metrics_close(struct nd_metrics *metrics);
