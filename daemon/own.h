/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Own blocks: shared memory of the daemon's own, into which it receives what comes by a socket and
 * goes to clients that share memory
 */

#include "protocol/shm/pool.h"

struct nd_block;
struct nd_server;
struct nd_share;
struct nd_topic;

/* Bodies from here on: smaller ones are read together with what precedes them, and copied. */
#define ND_OWN_BYTES_MIN (64u * 1024u)

/* A segment in which nothing has been for so long is given back. */
#define ND_OWN_IDLE_NS (UINT64_C(10) * 1000000000)

struct nd_own {
        struct nd_shm_pool pool;
        uint32_t last_number;
        uint64_t failed_ns; /* when the system last had no memory for a segment; 0: it had */
};

void nd_own_init(struct nd_server *server);
/* No block may be in use. */
void nd_own_deinit(struct nd_server *server);

/* A block for a body of @bytes, wanted once. NULL: nobody of those who get it wants it in one, or there is
 * none, which is counted. */
struct nd_block *nd_own_take(struct nd_server *server, struct nd_topic *topic, uint64_t bytes);

/* The memory of a segment is there up to @to. false: the system has none; other segments have it all */
bool nd_own_fill(struct nd_share *share, uint64_t to);

/* Gives back the segments that were idle @ago_ns ago; 0: all that are idle. Return: were there any? */
bool nd_own_trim(struct nd_server *server, uint64_t ago_ns);
