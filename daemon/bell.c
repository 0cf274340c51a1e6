/* SPDX-License-Identifier: MIT */

/*
 * Bell
 *
 * What is written to a socket wakes who reads it on the processor of the writer, as if that were about to
 * sleep; the kernel calls it synchronous. A publisher that goes on copying has the daemon on its own processor
 * then, while another one idles. An eventfd wakes it where there is room.
 *
 * The client has it too, and can fill it, empty it, and make it block at any time. So it is never read: in
 * a set of its own, edge-triggered, each write is told once, and what its counter is does not matter.
 */

#include "daemon/bell.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "daemon/server.h"

#define BELLS_RUNG_MAX 64 /* that are heard in one call */

static void bells_on_event(uv_poll_t *poll, int status, int events)
{
        struct nd_server *server = nd_container_of(poll, struct nd_server, bells.poll);
        struct epoll_event rung[BELLS_RUNG_MAX];
        int n = status < 0 ? 0 : epoll_wait(server->bells.set, rung, BELLS_RUNG_MAX, 0);

        (void)events;
        server->now_ns = uv_hrtime();
        for (int i = 0; i < n; ++i) {
                nd_intake_keep_awake(rung[i].data.ptr);
                ++server->counters.ring_calls;
        }
        (void)nd_intakes_look(server);
        nd_server_settle(server);
}

int nd_bells_init(struct nd_server *server, size_t n_max)
{
        struct nd_bells *bells = &server->bells;
        int r;

        *bells = (struct nd_bells){.set = epoll_create1(EPOLL_CLOEXEC), .n_max = n_max};
        if (bells->set < 0)
                return -errno;
        r = uv_poll_init(&server->loop, &bells->poll, bells->set);
        return r < 0 ? r : uv_poll_start(&bells->poll, UV_READABLE, bells_on_event);
}

void nd_bells_deinit(struct nd_bells *bells)
{
        nd_assert(bells->n == 0);
        if (bells->set >= 0)
                close(bells->set);
        bells->set = -1;
}

int nd_bell_open(struct nd_connection *connection)
{
        struct nd_bells *bells = &connection->server->bells;
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = connection};
        int fd;

        if (bells->n >= bells->n_max)
                return -1;
        fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
                return -1;
        if (epoll_ctl(bells->set, EPOLL_CTL_ADD, fd, &event) < 0) {
                close(fd);
                return -1;
        }
        ++bells->n;
        return fd;
}

void nd_bell_close(struct nd_bells *bells, int *bell)
{
        if (*bell < 0)
                return;
        /* the client has it open: to close it alone would leave it in the set */
        (void)epoll_ctl(bells->set, EPOLL_CTL_DEL, *bell, NULL);
        close(*bell);
        *bell = -1;
        --bells->n;
}
