/* SPDX-License-Identifier: MIT */

/*
 * Subscriber
 *
 * A fork of the test, which uses the library as any program does. It dies with the test, and what
 * goes wrong in it ends it, which the test hears as the end of the pipe between them.
 */

#include "tests/support/subscriber.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What it says first. */
struct greeting {
        uint64_t source;
        uint64_t id;
};

static void say(int fd, const void *bytes, size_t n_bytes)
{
        if (write(fd, bytes, n_bytes) != (ssize_t)n_bytes) /* less than PIPE_BUF: all or nothing */
                _exit(1);
}

_Noreturn static void run(const struct nd_harness *h,
                          const struct nd_transport *transport,
                          const char *pattern,
                          const struct ndbus_subscribe_options *options,
                          int fd)
{
        struct ndbus_options bus_options = NDBUS_OPTIONS_INIT;
        struct ndbus_subscription *sub;
        struct ndbus_message *m;
        struct ndbus *bus;

        bus_options.no_shm = !transport->is_shm;
        if (ndbus_open(&bus, nd_client_url(h, transport), &bus_options))
                nd_harness_fail(NULL, "subscriber: %s", ndbus_detail());
        sub = nd_client_subscribe(bus, pattern, options);
        say(fd, &(struct greeting){ndbus_source(bus), ndbus_subscription_id(sub)},
            sizeof(struct greeting));
        while (ndbus_receive(bus, &m, -1) == 0) {
                struct nd_heard heard = {
                        .dropped = ndbus_message_dropped(m),
                        .source = ndbus_message_source(m),
                        .sequence = ndbus_message_sequence(m),
                };

                heard.number = nd_client_take_number(m);
                say(fd, &heard, sizeof(heard));
        }
        nd_harness_fail(NULL, "subscriber: %s", ndbus_detail());
}

static void hear(const struct nd_subscriber *s, void *bytes, size_t n_bytes)
{
        struct pollfd p = {.fd = s->said_fd, .events = POLLIN};

        if (poll(&p, 1, nd_harness_deadline_ms(ND_CLIENT_WAIT_MS)) != 1)
                nd_harness_fail(NULL, "the subscriber received nothing");
        if (read(s->said_fd, bytes, n_bytes) != (ssize_t)n_bytes)
                nd_harness_fail(NULL, "the subscriber ended");
}

void nd_subscriber_start(struct nd_subscriber *s,
                         const struct nd_harness *h,
                         const struct nd_transport *transport,
                         const char *pattern,
                         const struct ndbus_subscribe_options *options)
{
        struct greeting greeting;
        int fds[2];

        if (pipe(fds))
                nd_harness_fail(NULL, "pipe: %s", strerror(errno));
        s->pid = fork();
        if (s->pid < 0)
                nd_harness_fail(NULL, "fork: %s", strerror(errno));
        if (s->pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                close(fds[0]);
                run(h, transport, pattern, options, fds[1]);
        }
        close(fds[1]);
        s->said_fd = fds[0];
        hear(s, &greeting, sizeof(greeting));
        s->source = greeting.source;
        s->id = (uint32_t)greeting.id;
}

void nd_subscriber_signal(const struct nd_subscriber *s, int signal_number)
{
        int status;

        if (kill(s->pid, signal_number))
                nd_harness_fail(NULL, "kill: %s", strerror(errno));
        if (signal_number == SIGSTOP &&
            (waitpid(s->pid, &status, WUNTRACED) != s->pid || !WIFSTOPPED(status)))
                nd_harness_fail(NULL, "the subscriber ended");
}

struct nd_heard nd_subscriber_next(const struct nd_subscriber *s)
{
        struct nd_heard heard;

        hear(s, &heard, sizeof(heard));
        return heard;
}

void nd_subscriber_end(struct nd_subscriber *s)
{
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
        close(s->said_fd);
}
