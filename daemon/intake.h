/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Intake: what a client publishes through a ring rather than its socket
 */

#include "protocol/list.h"
#include "protocol/prelude.h"
#include "protocol/shm/ring.h"

struct nd_connection;
struct nd_server;

struct nd_intake {
        struct nd_ring ring;
        int bell; /* that is rung when something is in it; -1: WAKE comes */
        struct nd_list
                in_awake; /* nd_server.intakes: it is looked at whenever the loop comes round */
        uint64_t
                waits_for; /* what is in it follows this PUBLISH, which comes by the socket; 0: none */
};

void nd_intake_init(struct nd_intake *intake);
void nd_intake_deinit(struct nd_connection *connection);

/* RING from a client; @fd that came with it, or -1, is taken. Answers it. Return: 0, NDBUS_EPROTOCOL */
int nd_intake_open(struct nd_connection *connection,
                   const struct nd_prelude *prelude,
                   int fd,
                   struct nd_fault *fault);

static inline bool nd_intake_is_empty(const struct nd_intake *intake)
{
        return !intake->ring.head || nd_ring_is_empty(&intake->ring);
}

/* Takes what is there and whose turn it is. To be called before each packet of the socket, and behind the
 * last one. */
void nd_intake_take(struct nd_connection *connection);

/* It is looked at from now on, until nothing is in it. */
void nd_intake_keep_awake(struct nd_connection *connection);

/* WAKE: the same. Return: 0; NDBUS_EPROTOCOL: there is no ring */
int nd_intake_wake(struct nd_connection *connection, struct nd_fault *fault);

/* Looks into those that are awake, each time that the loop comes round; into so many in turn that not too much is
 * taken. Those in which nothing is fall asleep. False: all do. */
bool nd_intakes_look(struct nd_server *server);
