/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * STATS: what the daemon counts, as one msgpack map in packets; PROTOCOL.md 8
 */

#include "daemon/connection.h"

/* Return: 0, NDBUS_ENOMEM */
int nd_stats_answer(struct nd_connection *connection, uint64_t sequence, struct nd_fault *fault);

/**
 * nd_stats_openmetrics() - the same as OpenMetrics text
 * @ret:    [@ret_n] malloc()ed; the caller charges it while it is kept
 *
 * Return: 0; NDBUS_ENOMEM; NDBUS_ENO_SPACE: it is large and would leave messages too little
 */
int nd_stats_openmetrics(struct nd_server *server,
                         char **ret,
                         size_t *ret_n,
                         struct nd_fault *fault);
