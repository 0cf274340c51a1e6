/* SPDX-License-Identifier: MIT */

/*
 * Service manager
 *
 * A variable that does not concern this process (another LISTEN_PID, another WATCHDOG_PID) was
 * inherited by accident and is ignored, as the manual pages ask.
 *
 * A manager that is busy, or stopped, does not stop the daemon: what its socket has no room for is kept
 * and sent later.
 */

#include "daemon/notify.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "daemon/number.h"

#define NOTIFY_FDS_START 3
#define NOTIFY_FDS_MAX   1024u

/* Return: false if there is no room in the manager's socket; all else is as good as sent */
static bool notify_send(const char *state)
{
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        bool is_sent = true;
        size_t n_path;
        int fd;

        if (!path || (path[0] != '/' && path[0] != '@'))
                return true;
        n_path = strlen(path);
        if (n_path < 2 || n_path >= sizeof(address.sun_path))
                return true;
        memcpy(address.sun_path, path, n_path);
        if (path[0] == '@')
                address.sun_path[0] = '\0';

        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return true;
        if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n_path)) < 0)
                is_sent = errno != EAGAIN && errno != ENOBUFS;
        close(fd);
        return is_sent;
}

void nd_notify(struct nd_notifier *notifier, const char *state)
{
        size_t n = strlen(notifier->unsent);

        /* of several states in one message the last one counts */
        if (n > 0 && n + 1 + strlen(state) < sizeof(notifier->unsent))
                notifier->unsent[n++] = '\n';
        else
                n = 0;
        snprintf(notifier->unsent + n, sizeof(notifier->unsent) - n, "%s", state);
        nd_notify_again(notifier);
}

void nd_notify_again(struct nd_notifier *notifier)
{
        if (notifier->unsent[0] && notify_send(notifier->unsent))
                notifier->unsent[0] = '\0';
}

void nd_notify_alive(void)
{
        (void)notify_send("WATCHDOG=1");
}

/* False if @text is no number, or not there. */
static bool notify_number(const char *text, uint64_t *ret)
{
        return text && nd_number_parse(text, false, 0, UINT64_MAX, "", ret, NULL) == 0;
}

uint64_t nd_notify_watchdog_us(void)
{
        uint64_t us;
        uint64_t pid;

        if (!notify_number(getenv("WATCHDOG_USEC"), &us))
                return 0;
        if (getenv("WATCHDOG_PID") &&
            (!notify_number(getenv("WATCHDOG_PID"), &pid) || pid != (uint64_t)getpid()))
                return 0;
        return us;
}

int nd_notify_listen_fds(void)
{
        const char *pid_text = getenv("LISTEN_PID");
        const char *n_text = getenv("LISTEN_FDS");
        uint64_t pid;
        uint64_t n;

        if (!pid_text || !n_text)
                return 0;
        if (!notify_number(pid_text, &pid))
                return -EINVAL;
        if (pid != (uint64_t)getpid())
                return 0;
        if (!notify_number(n_text, &n) || n > NOTIFY_FDS_MAX)
                return -EINVAL;

        for (int fd = NOTIFY_FDS_START; fd < NOTIFY_FDS_START + (int)n; ++fd) {
                if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                        return -EINVAL;
        }
        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        return (int)n;
}
