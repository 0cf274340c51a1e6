/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Bell: an eventfd by which a client says that something is in its ring
 */

#include <uv.h>
#include "protocol/base.h"

struct nd_connection;
struct nd_server;

/* All of them, in one set that the loop watches. */
struct nd_bells {
        int set; /* epoll; -1: there are none */
        size_t n;
        size_t n_max;
        uv_poll_t poll;
};

/* Makes the set; it is watched from now on, until its loop is closed. Return: 0, or a negative errno */
int nd_bells_init(struct nd_server *server, size_t n_max);
void nd_bells_deinit(struct nd_bells *bells);

/* One for the ring of @connection. -1: no more can be had now. */
int nd_bell_open(struct nd_connection *connection);

/* @bell may be -1, and is afterwards. */
void nd_bell_close(struct nd_bells *bells, int *bell);
