/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Rescue: what is still wanted of a gone publisher's segment is copied out of it
 */

#include "protocol/list.h"

struct nd_message;
struct nd_server;
struct nd_share;

/* A segment under rescue: the message that is being copied, in slices. */
struct nd_rescue {
        struct nd_list in_server;   /* nd_server.rescues */
        struct nd_message *message; /* reference; NULL: none is begun */
        struct nd_message *copy;    /* its body, as far as it is copied */
        uint64_t next_place;        /* blocks before it are done */
};

/* Its owner is gone: begins, if it is worth it. */
void nd_rescue_consider(struct nd_share *share);

/* It ends, wherever it is. */
void nd_rescue_end(struct nd_share *share);

/* Copies a slice. Return: is there more to be done? */
bool nd_rescue_step(struct nd_server *server);
