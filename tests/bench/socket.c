/* SPDX-License-Identifier: MIT */

/*
 * Blocking stream sockets by URL
 *
 * Addresses are numeric: a name server has no place in a measurement. TCP_NODELAY is set everywhere,
 * as ndbus sets it; buffer sizes are the kernel's.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "tests/bench/harness.h"

union socket_address {
        struct sockaddr any;
        struct sockaddr_un un;
        struct sockaddr_in in;
};

void bench_print(const char *format, ...)
{
        va_list args;

        fprintf(stderr, "%s: ", program_invocation_short_name);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
}

static int socket_parse(const char *url, union socket_address *ret_address, socklen_t *ret_bytes)
{
        union socket_address address = {0};
        char host[64];
        unsigned port;

        if (!strncmp(url, "unix:", 5) && strlen(url + 5) < sizeof(address.un.sun_path)) {
                address.un.sun_family = AF_UNIX;
                memcpy(address.un.sun_path, url + 5, strlen(url + 5));
                *ret_bytes = sizeof(address.un);
        } else if (sscanf(url, "tcp://%63[0-9.]:%u", host, &port) == 2 && port <= UINT16_MAX &&
                   inet_pton(AF_INET, host, &address.in.sin_addr) == 1) {
                address.in.sin_family = AF_INET;
                address.in.sin_port = htons((uint16_t)port);
                *ret_bytes = sizeof(address.in);
        } else {
                return bench_say("URL %s: expected unix:/path or tcp://a.b.c.d:port", url);
        }

        *ret_address = address;
        return BENCH_OK;
}

static void socket_set_nodelay(int fd)
{
        int one = 1;

        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* fails on Unix sockets */
}

int bench_listen(const char *url, int *ret_fd)
{
        union socket_address address;
        socklen_t n_address;
        int one = 1, fd;

        if (socket_parse(url, &address, &n_address))
                return BENCH_FAILED;

        fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return bench_say("socket: %s", strerror(errno));

        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(fd, &address.any, n_address) || listen(fd, 128)) {
                bench_print("listen on %s: %s", url, strerror(errno));
                close(fd);
                return BENCH_FAILED;
        }

        *ret_fd = fd;
        return BENCH_OK;
}

int bench_connect(const char *url, const char *source, int *ret_fd)
{
        union socket_address address, from;
        socklen_t n_address, n_from;
        int fd;

        if (socket_parse(url, &address, &n_address) ||
            (source && socket_parse(source, &from, &n_from)))
                return BENCH_FAILED;

        fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return bench_say("socket: %s", strerror(errno));

        if ((source && bind(fd, &from.any, n_from)) || connect(fd, &address.any, n_address)) {
                bench_print("connect to %s: %s", url, strerror(errno));
                close(fd);
                return BENCH_FAILED;
        }

        socket_set_nodelay(fd);
        *ret_fd = fd;
        return BENCH_OK;
}

int bench_accept(int listener, int *ret_fd)
{
        int fd;

        do
                fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));

        if (fd < 0)
                return bench_say("accept: %s", strerror(errno));

        socket_set_nodelay(fd);
        *ret_fd = fd;
        return BENCH_OK;
}

int bench_send_all(int fd, const void *data, size_t n_data)
{
        const char *at = data;

        while (n_data) {
                ssize_t n = send(fd, at, n_data, MSG_NOSIGNAL);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return bench_say("send: %s", strerror(errno));

                at += n;
                n_data -= (size_t)n;
        }

        return BENCH_OK;
}

int bench_join(const char *url, char role, int *ret_fd)
{
        int fd;

        if (bench_connect(url, NULL, &fd))
                return BENCH_FAILED;

        if (bench_send_all(fd, &role, 1)) {
                close(fd);
                return BENCH_FAILED;
        }

        *ret_fd = fd;
        return BENCH_OK;
}

int bench_gather(int listener, unsigned n_subs, int *ret_pub, int *ret_subs)
{
        unsigned n = 0;
        int pub = -1;

        while (pub < 0 || n < n_subs) {
                char role;
                int fd;

                if (bench_accept(listener, &fd))
                        return BENCH_FAILED;

                if (recv(fd, &role, 1, 0) != 1)
                        close(fd);
                else if (role == 'P' && pub < 0)
                        pub = fd;
                else if (role == 'S' && n < n_subs)
                        ret_subs[n++] = fd;
                else
                        close(fd);
        }

        *ret_pub = pub;
        return BENCH_OK;
}
