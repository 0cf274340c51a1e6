/* SPDX-License-Identifier: MIT */

/*
 * One descriptor for event loops
 *
 * An epoll instance is itself a descriptor that polls readable when something in it is ready. In it
 * are the socket, whichever it is at the time; an eventfd that is set while a receiving call would
 * return something without reading; and a timerfd for what is due without anything arriving: a
 * ping, a grant, the next attempt to connect. So the loop of the application needs one descriptor,
 * which stays the same, and no callback for timeouts.
 *
 * All of it exists only once it was asked for, and is brought up to date when a public call ends. The
 * timer is moved only to an earlier time; a time that has moved on is noticed when the old one comes.
 */

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"

static void fd_update_socket(struct ndbus *bus)
{
        const struct nd_connection *c = &bus->connection;
        short wanted;
        struct epoll_event event = {0};
        int op = EPOLL_CTL_MOD;

        if (c->state == ND_STATE_DOWN)
                return; /* closing it took it out */
        wanted = nd_bus_events(bus, false);
        event.events = (wanted & POLLIN ? (uint32_t)EPOLLIN : 0) |
                       (wanted & POLLOUT ? (uint32_t)EPOLLOUT : 0);
        if (bus->epoll_generation != c->generation)
                op = EPOLL_CTL_ADD;
        else if (bus->epoll_events == event.events)
                return;
        if (epoll_ctl(bus->guard.fds[ND_FD_EPOLL], op, nd_bus_socket(bus), &event) == 0) {
                bus->epoll_generation = c->generation;
                bus->epoll_events = event.events;
        }
}

static void fd_update_event(struct ndbus *bus)
{
        bool is_ready = nd_receive_is_ready(bus) || nd_grant_is_to_ask(bus);
        uint64_t count = 1;

        if (is_ready == bus->is_event_set)
                return;
        if (is_ready) {
                if (write(bus->guard.fds[ND_FD_EVENT], &count, sizeof(count)) < 0)
                        return;
        } else if (read(bus->guard.fds[ND_FD_EVENT], &count, sizeof(count)) < 0) {
                return;
        }
        bus->is_event_set = is_ready;
}

static void fd_update_timer(struct ndbus *bus)
{
        uint64_t next_ns = nd_bus_next_ns(bus);
        struct itimerspec at = {0};

        if (next_ns == bus->timer_ns || (next_ns > bus->timer_ns && nd_clock_ns() < bus->timer_ns))
                return;
        if (next_ns != ND_NEVER) {
                at.it_value.tv_sec = (time_t)(next_ns / ND_NS_PER_S);
                at.it_value.tv_nsec = (long)(next_ns % ND_NS_PER_S);
                if (at.it_value.tv_sec == 0 && at.it_value.tv_nsec == 0)
                        at.it_value.tv_nsec = 1; /* 0 would disarm it */
        }
        if (timerfd_settime(bus->guard.fds[ND_FD_TIMER], TFD_TIMER_ABSTIME, &at, NULL) == 0)
                bus->timer_ns = next_ns;
}

void nd_fd_update(struct ndbus *bus)
{
        if (bus->guard.fds[ND_FD_EPOLL] < 0)
                return;
        fd_update_socket(bus);
        fd_update_event(bus);
        fd_update_timer(bus);
        if (bus->finisher)
                nd_finisher_set_waiting(bus->finisher, true);
}

void nd_fd_deinit(struct ndbus *bus)
{
        for (size_t i = ND_FD_EPOLL; i <= ND_FD_TIMER; ++i) {
                if (bus->guard.fds[i] >= 0)
                        close(bus->guard.fds[i]);
                bus->guard.fds[i] = -1;
        }
}

static int fd_add(struct ndbus *bus, enum nd_fd_slot slot)
{
        struct epoll_event event = {.events = EPOLLIN};

        if (bus->guard.fds[slot] < 0)
                return -1;
        return epoll_ctl(bus->guard.fds[ND_FD_EPOLL], EPOLL_CTL_ADD, bus->guard.fds[slot], &event);
}

int nd_fd_add_wake(struct ndbus *bus)
{
        int *fd = &bus->guard.fds[ND_FD_WAKE];

        if (*fd < 0)
                *fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (*fd < 0)
                return nd_detail_errno("eventfd", errno);
        if (bus->guard.fds[ND_FD_EPOLL] >= 0 && fd_add(bus, ND_FD_WAKE) && errno != EEXIST)
                return nd_detail_errno("epoll_ctl", errno);
        return 0;
}

bool nd_fd_wake(struct ndbus *bus)
{
        uint64_t count = 1;

        return bus->guard.fds[ND_FD_WAKE] >= 0 &&
               write(bus->guard.fds[ND_FD_WAKE], &count, sizeof(count)) == (ssize_t)sizeof(count);
}

void nd_fd_drain_wake(struct ndbus *bus)
{
        uint64_t count;

        while (read(bus->guard.fds[ND_FD_WAKE], &count, sizeof(count)) < 0 && errno == EINTR)
                ;
}

void nd_fd_forget_socket(struct ndbus *bus)
{
        struct epoll_event event = {0};

        if (bus->guard.fds[ND_FD_EPOLL] >= 0)
                epoll_ctl(bus->guard.fds[ND_FD_EPOLL], EPOLL_CTL_DEL, nd_bus_socket(bus), &event);
}

ND_PUBLIC int ndbus_fd(struct ndbus *bus)
{
        int r = nd_bus_enter(bus);

        if (r)
                return r;
        if (bus->guard.fds[ND_FD_EPOLL] < 0) {
                bus->guard.fds[ND_FD_EVENT] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
                bus->guard.fds[ND_FD_TIMER] =
                        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
                bus->guard.fds[ND_FD_EPOLL] = epoll_create1(EPOLL_CLOEXEC);
                if (bus->guard.fds[ND_FD_EPOLL] < 0 || fd_add(bus, ND_FD_EVENT) ||
                    fd_add(bus, ND_FD_TIMER) ||
                    (bus->guard.fds[ND_FD_WAKE] >= 0 && fd_add(bus, ND_FD_WAKE))) {
                        r = nd_detail_errno("epoll, eventfd, timerfd", errno);
                        nd_fd_deinit(bus);
                        return nd_bus_leave(bus, r);
                }
                bus->is_event_set = false;
                bus->timer_ns = ND_NEVER;
                bus->epoll_generation = 0;
        }
        return nd_bus_leave(bus, bus->guard.fds[ND_FD_EPOLL]);
}
