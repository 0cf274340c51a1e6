/* SPDX-License-Identifier: MIT */

/*
 * Descriptors
 *
 * The kernel delivers a descriptor with the first byte of the sendmsg() that carried it, but one
 * recvmsg() may deliver bytes of earlier ones with it; so which packet it belongs to is known only
 * when that packet is read, and until then it waits here.
 */

#include "daemon/descriptors.h"
#include <string.h>
#include "daemon/closer.h"

/* The descriptors of one control message; 0: it is of another type. */
static size_t descriptors_of(const struct cmsghdr *control, int fds[static ND_DESCRIPTORS_CAME_MAX])
{
        size_t n;

        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
                return 0;
        n = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        nd_assert(n <= ND_DESCRIPTORS_CAME_MAX);
        memcpy(fds, CMSG_DATA(control), n * sizeof(int));
        return n;
}

static int descriptors_check(const struct nd_descriptors *descriptors,
                             const struct msghdr *message,
                             size_t n_came,
                             bool is_allowed,
                             struct nd_fault *fault)
{
        if (message->msg_flags & MSG_CTRUNC)
                return nd_fault_set(fault, NDBUS_EFDS, "fd",
                                    "some came that could not be taken: the limit of open files is "
                                    "reached, or they were too many");
        if (n_came > 0 && !is_allowed)
                return nd_fault_set(fault, NDBUS_EFDS, "fd",
                                    "a file descriptor came, and none belongs here");
        if (n_came > ND_FDS_MAX - descriptors->n)
                return nd_fault_set_limit(fault, NDBUS_EFDS, "fd", descriptors->n + n_came,
                                          ND_FDS_MAX, "descriptors that wait for their packet");
        return 0;
}

/* The kernel says that it has no room for them, and keeps them. */
bool nd_descriptors_are_next(int fd, struct iovec *iov, size_t n_iov)
{
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = n_iov};

        return recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT) > 0 &&
               (message.msg_flags & MSG_CTRUNC);
}

int nd_descriptors_add(struct nd_descriptors *descriptors,
                       struct nd_closer *closer,
                       const struct msghdr *message,
                       bool is_allowed,
                       struct nd_fault *fault)
{
        int fds[ND_DESCRIPTORS_CAME_MAX];
        size_t n = 0;
        int r;

        /* the kernel puts all descriptors of a call into one control message */
        if (message->msg_controllen >= sizeof(struct cmsghdr))
                n = descriptors_of(CMSG_FIRSTHDR(message), fds);
        r = descriptors_check(descriptors, message, n, is_allowed, fault);
        if (r < 0) {
                nd_closer_close(closer, fds, n);
                return r;
        }
        if (n > 0)
                memcpy(descriptors->fds + descriptors->n, fds, n * sizeof(int));
        descriptors->n += n;
        return 0;
}

int nd_descriptors_take(struct nd_descriptors *descriptors)
{
        int fd;

        if (descriptors->n == 0)
                return -1;
        fd = descriptors->fds[0];
        --descriptors->n;
        memmove(descriptors->fds, descriptors->fds + 1, descriptors->n * sizeof(int));
        return fd;
}

void nd_descriptors_deinit(struct nd_descriptors *descriptors, struct nd_closer *closer)
{
        nd_closer_close(closer, descriptors->fds, descriptors->n);
        descriptors->n = 0;
}
