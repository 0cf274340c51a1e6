/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * STATS: what the daemon counts, as one msgpack map in packets; PROTOCOL.md 8
 */

#include "daemon/connection.h"

/* Return: 0, NDBUS_ENOMEM */
int nd_stats_answer(struct nd_connection *connection, uint64_t sequence, struct nd_fault *fault);
