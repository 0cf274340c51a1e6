/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Slow: block queues that stop who publishes and take nothing, and the moment at which they end
 */

#include <stdbool.h>

struct nd_server;
struct nd_sink;

/* Policy block: does it stop anybody, or would it the next who publishes? */
bool nd_slow_is_in_the_way(const struct nd_sink *sink);

/* A message came to a block queue that was in nobody's way before, or was (@was_in_the_way). */
void nd_slow_watch(struct nd_sink *sink, bool was_in_the_way);

/* Its members took something. */
void nd_slow_took(struct nd_sink *sink);

/* Once a second: what else may have put it in the way, or out of it. */
void nd_slow_look(struct nd_sink *sink);

/* Ends those whose time has come, and sets the timer for the next. */
void nd_slow_end(struct nd_server *server);

/* block-timeout has changed. */
void nd_slow_set_timer(struct nd_server *server);
