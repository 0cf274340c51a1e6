/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Outlet: what is published through a ring rather than the socket
 */

#include "protocol/prelude.h"
#include "protocol/shm/ring.h"

struct ndbus;

enum nd_outlet_state {
        ND_OUTLET_NONE,
        ND_OUTLET_ASKED, /* the daemon has not answered about it yet */
        ND_OUTLET_OPEN,
        ND_OUTLET_REFUSED, /* this connection has none */
};

struct nd_outlet {
        struct nd_ring ring;
        enum nd_outlet_state state;
        uint64_t sequence; /* of the request */
};

/* Has one made, of a connection on which so much is published that it is worth it. Before a message that
 * could go there. */
void nd_outlet_ask(struct ndbus *bus);

/* Writes @n bytes, one PUBLISH whose body is in a block, for which the output has room. If the daemon has to be
 * told, its bell is rung; without one WAKE is put there. @is_slow: copying the body took longer than a call, so
 * the daemon will sleep. False: it goes by the socket. */
bool nd_outlet_put(struct ndbus *bus, const void *bytes, size_t n, bool is_slow);

/* The connection is lost, or the bus goes. */
void nd_outlet_close(struct ndbus *bus);

/* What the daemon says. 0, or a fault that ends the connection. */
int nd_outlet_hear_answer(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault);
/* False: it is about something else. */
bool nd_outlet_hear_refusal(struct ndbus *bus, uint64_t sequence);
