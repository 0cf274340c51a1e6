/* SPDX-License-Identifier: MIT */

#include "tests/support/lingering.h"
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/base.h"

void nd_lingering_make(int ret_fds[static 2])
{
        static const struct linger linger = {.l_onoff = 1, .l_linger = 60};
        static const char bytes[65536];
        static const int small = 4096;
        struct sockaddr_in address = {
                .sin_family = AF_INET,
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        };
        socklen_t n = sizeof(address);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        nd_assert(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
        nd_assert(bind(listener, (struct sockaddr *)&address, n) == 0);
        nd_assert(listen(listener, 1) == 0);
        nd_assert(getsockname(listener, (struct sockaddr *)&address, &n) == 0);
        ret_fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        nd_assert(setsockopt(ret_fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)) == 0);
        nd_assert(connect(ret_fds[0], (struct sockaddr *)&address, n) == 0);
        ret_fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        nd_assert(ret_fds[1] >= 0);
        close(listener);
        nd_assert(setsockopt(ret_fds[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
        while (send(ret_fds[0], bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
                ;
}

int nd_lingering_make_nested(int *ret_fd)
{
        union {
                struct cmsghdr head;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec iov = {(char[]){'x'}, 1};
        struct msghdr message = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control),
        };
        int pair[2], ends[2];

        nd_lingering_make(ends);
        nd_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &ends[0], sizeof(int));
        nd_assert(sendmsg(pair[0], &message, MSG_NOSIGNAL) == 1);
        close(ends[0]); /* the one that is under way is the last */
        close(pair[0]);
        *ret_fd = pair[1];
        return ends[1];
}
