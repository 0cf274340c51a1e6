/* SPDX-License-Identifier: MIT */

/*
 * Outlet
 *
 * A call for each message costs more than all else that is done to publish one whose body is in a block. So
 * those are written into a ring, which the daemon reads without being called as long as it is awake.
 *
 * The daemon takes them in the order of their numbers, so what goes by the socket in between, because the
 * ring is full or because a body is not in a block, is in its place. Other packets of the socket have no
 * number: those that must come before a PUBLISH are in nd_output.is_ahead, and the next PUBLISH goes behind them
 * by the socket. What comes behind a PUBLISH needs nothing: the daemon looks into the ring before it takes a
 * packet of the socket.
 */

#include "client/outlet.h"
#include <unistd.h>
#include "client/bus.h"

/* Messages of a connection before it asks for a ring. */
#define OUTLET_PUBLISHED_MIN 16u

static void outlet_close_fd(struct ndbus *bus)
{
        int *fd = &bus->guard.fds[ND_FD_RING];

        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

void nd_outlet_close(struct ndbus *bus)
{
        outlet_close_fd(bus);
        nd_ring_close(&bus->outlet.ring);
        bus->outlet = (struct nd_outlet){0};
}

static void outlet_refuse(struct ndbus *bus)
{
        nd_outlet_close(bus);
        bus->outlet.state = ND_OUTLET_REFUSED;
}

void nd_outlet_ask(struct ndbus *bus)
{
        struct nd_outlet *outlet = &bus->outlet;
        const struct nd_prelude p = {
                .kind = ND_KIND_RING,
                .flags = ND_FLAG_FD,
                .place = ND_RING_FILE_BYTES,
                .sequence = bus->connection.n_requests + 1,
        };
        int *fd = &bus->guard.fds[ND_FD_RING];

        if (outlet->state != ND_OUTLET_NONE || !(bus->connection.features & ND_FEATURE_RING) ||
            bus->credit.n_published < OUTLET_PUBLISHED_MIN)
                return;
        if (nd_ring_create(&outlet->ring, fd, NULL) ||
            !nd_output_packet_with_fd(&bus->output, &p, *fd)) {
                outlet_refuse(bus);
                return;
        }
        outlet->sequence = ++bus->connection.n_requests;
        outlet->state = ND_OUTLET_ASKED;
}

bool nd_outlet_put(struct ndbus *bus, const void *bytes, size_t n)
{
        struct nd_outlet *outlet = &bus->outlet;

        if (outlet->state != ND_OUTLET_OPEN || bus->output.is_ahead ||
            !nd_ring_put(&outlet->ring, bytes, n))
                return false;
        if (nd_ring_must_wake(&outlet->ring)) /* there is room for it: that of the PUBLISH */
                (void)nd_output_packet(&bus->output, &(struct nd_prelude){.kind = ND_KIND_WAKE},
                                       NULL, 0, NULL, 0);
        return true;
}

int nd_outlet_hear_answer(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        struct nd_outlet *outlet = &bus->outlet;

        if (outlet->state != ND_OUTLET_ASKED || outlet->sequence != p->sequence)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "RING",
                                    "answers request %llu, which was not about one",
                                    (unsigned long long)p->sequence);
        outlet_close_fd(bus);
        outlet->state = ND_OUTLET_OPEN;
        return 0;
}

bool nd_outlet_hear_refusal(struct ndbus *bus, uint64_t sequence)
{
        if (bus->outlet.state != ND_OUTLET_ASKED || bus->outlet.sequence != sequence)
                return false;
        outlet_refuse(bus);
        return true;
}
