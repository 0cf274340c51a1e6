/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * OpenMetrics: the daemon's numbers as text for Prometheus and its like
 */

#include <stdio.h>
#include "protocol/fault.h"

/**
 * nd_openmetrics_write() - an answer to STATS as OpenMetrics text, version 1.0.0
 * @stats:      [@n_stats] the msgpack map of PROTOCOL.md 8
 *
 * Whether @out has taken it is the caller's to ask.
 *
 * Return: 0; NDBUS_EMETA: that is no msgpack map; NDBUS_ENOMEM
 */
int nd_openmetrics_write(FILE *out, const void *stats, size_t n_stats, struct nd_fault *fault);
