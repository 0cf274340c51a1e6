/* SPDX-License-Identifier: MIT */

/*
 * Outlet
 *
 * A call for each message costs more than all else that is done to publish one whose body is in a block. So
 * those are written into a ring, which the daemon reads without being called as long as it is awake; else
 * its bell is rung.
 *
 * The daemon takes them in the order of their numbers, so what goes by the socket in between, because the
 * ring is full or because a body is not in a block, is in its place. Other packets of the socket have no
 * number: those that must come before a PUBLISH are in nd_output.is_ahead, and the next PUBLISH goes behind them
 * by the socket. What comes behind a PUBLISH needs nothing: the daemon looks into the ring before it takes a
 * packet of the socket.
 */

#include "client/outlet.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/bus.h"

/* Messages of a connection before it asks for a ring. */
#define OUTLET_PUBLISHED_MIN 16u

static void outlet_close_fd(struct ndbus *bus, enum nd_fd_slot slot)
{
        int *fd = &bus->guard.fds[slot];

        if (*fd >= 0)
                close(*fd);
        *fd = -1;
}

void nd_outlet_close(struct ndbus *bus)
{
        outlet_close_fd(bus, ND_FD_RING);
        outlet_close_fd(bus, ND_FD_BELL);
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

/* One that cannot be rung is none. */
static bool outlet_ring_bell(struct ndbus *bus)
{
        const uint64_t once = 1;
        int fd = bus->guard.fds[ND_FD_BELL];

        if (fd < 0)
                return false;
        if (write(fd, &once, sizeof(once)) == (ssize_t)sizeof(once))
                return true;
        outlet_close_fd(bus, ND_FD_BELL);
        return false;
}

static void outlet_call(struct ndbus *bus)
{
        const struct nd_prelude wake = {.kind = ND_KIND_WAKE};

        if (!outlet_ring_bell(bus)) /* there is room for it: that of the PUBLISH */
                (void)nd_output_packet(&bus->output, &wake, NULL, 0, NULL, 0);
}

bool nd_outlet_put(struct ndbus *bus, const void *bytes, size_t n, bool is_slow)
{
        struct nd_outlet *outlet = &bus->outlet;

        /* to put it here and then to call by the socket is slower than the socket alone */
        if (is_slow && bus->guard.fds[ND_FD_BELL] < 0)
                return false;
        if (outlet->state != ND_OUTLET_OPEN || bus->output.is_ahead ||
            !nd_ring_put(&outlet->ring, bytes, n))
                return false;
        if (nd_ring_must_wake(&outlet->ring))
                outlet_call(bus);
        return true;
}

/* Not a file, pipe or socket, which a write could change, or raise SIGPIPE; an eventfd has no type. And not one
 * on which a write may wait, as far as the daemon, whose it is too, does not change that. */
static bool outlet_is_bell(int fd)
{
        struct stat st;
        int flags = fcntl(fd, F_GETFL);

        return flags >= 0 && flags & O_NONBLOCK && fstat(fd, &st) == 0 &&
               (st.st_mode & S_IFMT) == 0;
}

int nd_outlet_hear_answer(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        struct nd_outlet *outlet = &bus->outlet;
        int fd;

        if (outlet->state != ND_OUTLET_ASKED || outlet->sequence != p->sequence)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "RING",
                                    "answers request %llu, which was not about one",
                                    (unsigned long long)p->sequence);
        outlet_close_fd(bus, ND_FD_RING);
        outlet->state = ND_OUTLET_OPEN;
        if (!(p->flags & ND_FLAG_FD))
                return 0;
        if (!(bus->connection.features & ND_FEATURE_BELL))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "RING",
                                    "brings a bell, which was not agreed on");
        if (!nd_input_take_fd(&bus->input, &fd))
                return nd_fault_set(fault, NDBUS_EFDS, "RING",
                                    "says that a descriptor comes with it, and none came");
        bus->guard.fds[ND_FD_BELL] = fd; /* -1: this process may open no more */
        if (fd >= 0 && !outlet_is_bell(fd))
                outlet_close_fd(bus, ND_FD_BELL);
        return 0;
}

bool nd_outlet_hear_refusal(struct ndbus *bus, uint64_t sequence)
{
        if (bus->outlet.state != ND_OUTLET_ASKED || bus->outlet.sequence != sequence)
                return false;
        outlet_refuse(bus);
        return true;
}
