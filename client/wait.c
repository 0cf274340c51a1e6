/* SPDX-License-Identifier: MIT */

/*
 * Waiting
 *
 * Every wait in the library is this one. It serves both directions: a publisher that waits for
 * credit takes in messages, a subscriber that waits for messages finishes what was half sent; so
 * two ends that both wait for room can always go on. While it waits it also asks whether the
 * daemon lives, grants what was taken, and makes a lost connection anew.
 *
 * Reading is tried before poll() is asked as long as the socket gives all that is asked for. A read
 * that got less has emptied it: then poll() comes first, or each message of a slow flow would cost a
 * read in vain.
 */

#include <limits.h>
#include <poll.h>
#include "client/bus.h"
#include "client/detail.h"

static int bus_move(struct ndbus *bus, bool want_read)
{
        struct nd_connection *c = &bus->connection;
        uint64_t generation = c->generation;
        enum nd_state state = c->state;
        size_t n_offline = bus->offline.n;
        int r = 0;

        nd_grant_collect(bus);
        nd_hold_collect(bus);
        nd_connection_advance(bus);
        if (c->state >= ND_STATE_WELCOME) {
                nd_connection_send(bus);
                if (want_read && c->state >= ND_STATE_WELCOME)
                        r = nd_input_read(bus);
        }
        if (c->state == ND_STATE_READY && bus->offline.n > 0)
                nd_offline_step(bus);
        return r || c->generation != generation || c->state != state || bus->offline.n != n_offline;
}

int nd_bus_move(struct ndbus *bus)
{
        return bus_move(bus, true);
}

/* Pings when it is time, and gives a daemon up that did not answer one. */
static void wait_check_life(struct ndbus *bus, uint64_t now)
{
        struct nd_connection *c = &bus->connection;
        uint64_t ping_ns = (uint64_t)bus->options.ping_ms * ND_NS_PER_MS;
        uint64_t timeout_ns = (uint64_t)bus->options.ping_timeout_ms * ND_NS_PER_MS;
        int r;

        if (c->state != ND_STATE_READY || bus->options.ping_ms == 0)
                return;
        if (c->ping_ns == 0) {
                if (now < c->heard_ns + ping_ns)
                        return;
                c->ping_ns = now;
                r = nd_request_ping(bus);
                c->ping_sequence = c->n_requests;
                if (!r)
                        nd_connection_send(bus);
        } else if (now >= c->ping_ns + timeout_ns) {
                nd_connection_lose_text(bus, NDBUS_EDEAD,
                                        "%s: the daemon has not answered for %d ms", c->url_text,
                                        bus->options.ping_timeout_ms);
        }
}

uint64_t nd_bus_next_ns(const struct ndbus *bus)
{
        const struct nd_connection *c = &bus->connection;
        uint64_t next = bus->subscriptions.grant_ns;

        if (c->state == ND_STATE_READY && bus->options.ping_ms > 0)
                next = nd_min_u64(
                        next,
                        c->ping_ns
                                ? c->ping_ns + (uint64_t)bus->options.ping_timeout_ms * ND_NS_PER_MS
                                : c->heard_ns + (uint64_t)bus->options.ping_ms * ND_NS_PER_MS);
        if (c->state == ND_STATE_DOWN && !c->is_closing)
                next = nd_min_u64(next, c->retry_ns);
        return nd_min_u64(next, c->attempt_ns);
}

short nd_bus_events(const struct ndbus *bus, bool want_send)
{
        want_send = want_send || bus->offline.needs_socket || nd_output_bytes(&bus->output) > 0;

        switch (bus->connection.state) {
        case ND_STATE_DOWN:
                return 0;
        case ND_STATE_CONNECTING:
                return POLLOUT;
        default:
                return want_send ? POLLIN | POLLOUT : POLLIN;
        }
}

/* Milliseconds for poll(), rounded up so that a wait does not end in a run of empty ones. */
static int wait_ms(uint64_t now, uint64_t until)
{
        uint64_t ms;

        if (until == ND_NEVER)
                return -1;
        if (until <= now)
                return 0;
        ms = (until - now + ND_NS_PER_MS - 1) / ND_NS_PER_MS;
        return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Meanwhile the bus is closed to the application: it is in the middle of a call. */
static bool is_interrupted(struct ndbus *bus)
{
        bool is_so;

        if (!bus->options.interrupted)
                return false;
        bus->is_asking = true;
        is_so = bus->options.interrupted(bus->options.userdata);
        bus->is_asking = false;
        return is_so;
}

/* A signal that comes just before poll() does not end it: who can be interrupted is asked again after
 * this long. */
#define WAIT_ASK_NS (500 * ND_NS_PER_MS)

int nd_bus_turn(struct ndbus *bus, uint64_t deadline_ns, bool want_send)
{
        const bool is_dry = bus->input.is_dry;
        struct pollfd p[2];
        uint64_t now, until;
        int r;

        if (bus_move(bus, !is_dry))
                return 1;

        now = nd_clock_ns();
        if (now >= bus->subscriptions.grant_ns && bus->connection.state == ND_STATE_READY) {
                nd_grant_write_all(bus);
                nd_connection_send(bus);
        }
        wait_check_life(bus, now);
        if (now >= deadline_ns)
                return is_dry ? nd_bus_move(bus) : 0;

        /* descriptors that are not there are -1, and passed over */
        p[0] = (struct pollfd){.fd = nd_bus_socket(bus), .events = nd_bus_events(bus, want_send)};
        p[1] = (struct pollfd){.fd = bus->guard.fds[ND_FD_WAKE], .events = POLLIN};
        if (bus->finisher)
                nd_finisher_set_waiting(bus->finisher, true);
        until = nd_min_u64(deadline_ns, nd_bus_next_ns(bus));
        if (bus->options.interrupted)
                until = nd_min_u64(until, now + WAIT_ASK_NS);
        nd_hold_leave(bus, true);
        r = poll(p, 2, wait_ms(now, until));
        nd_hold_enter(bus);
        if (bus->finisher) {
                nd_finisher_set_waiting(bus->finisher, false);
                nd_grant_collect(bus);
        }
        if (r <= 0 && is_interrupted(bus))
                return nd_detail_say(NDBUS_EINTERRUPTED, "interrupted");
        if (r > 0 && p[0].revents & (POLLIN | POLLHUP | POLLERR) &&
            bus->connection.state >= ND_STATE_WELCOME)
                nd_input_read(bus);
        return 1;
}

int nd_bus_wait_ready(struct ndbus *bus, uint64_t deadline_ns)
{
        int r;

        while (!nd_bus_is_ready(bus)) {
                if (bus->connection.is_closing)
                        return nd_connection_fail_down(bus);
                r = nd_bus_turn(bus, deadline_ns, false);
                if (r < 0)
                        return r;
                if (r == 0)
                        return nd_connection_fail_down(bus);
        }
        return 0;
}
