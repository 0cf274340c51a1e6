/* SPDX-License-Identifier: MIT */

/*
 * Bytes that wait for the socket
 *
 * Control packets and small messages that may wait for others, in one line: a large message begins
 * behind what is here. Its bytes never come here, except for the rest of a packet whose sender gave
 * up, which goes first; as long as a packet is sent in part, nothing here is sent, so packets are
 * never torn.
 */

#include "client/output.h"
#include <errno.h>
#include <ndbus/error.h>
#include <string.h>
#include <sys/socket.h>

#define OUTPUT_BYTES_MIN ((size_t)72 << 10)

uint8_t *nd_output_reserve(struct nd_output *output, size_t n)
{
        size_t n_used = nd_output_bytes(output), n_max;
        uint8_t *data;

        if (n <= output->n_max - output->end)
                return output->data + output->end;
        if (n_used + n <= output->n_max) {
                memmove(output->data, output->data + output->start, n_used);
        } else {
                n_max = output->n_max ? output->n_max : OUTPUT_BYTES_MIN;
                while (n_max < n_used + n)
                        n_max *= 2;
                data = malloc(n_max);
                if (!data)
                        return NULL;
                if (n_used)
                        memcpy(data, output->data + output->start, n_used);
                free(output->data);
                output->data = data;
                output->n_max = n_max;
        }
        output->start = 0;
        output->end = n_used;
        return output->data + output->end;
}

uint8_t *nd_output_insert(struct nd_output *output, size_t n)
{
        size_t n_used = nd_output_bytes(output);

        if (!nd_output_reserve(output, n))
                return NULL;
        memmove(output->data + output->start + n, output->data + output->start, n_used);
        output->end += n;
        for (size_t i = 0; i < output->n_fds; ++i)
                output->fds[i].at += n;
        return output->data + output->start;
}

/* By a PUBLISH that goes another way. */
static bool must_not_be_overtaken(uint8_t kind)
{
        switch (kind) {
        case ND_KIND_CREDIT:
        case ND_KIND_PING:
        case ND_KIND_RELEASE:
        case ND_KIND_WAKE:
                return false;
        default:
                return true;
        }
}

int nd_output_packet(struct nd_output *output,
                     const struct nd_prelude *prelude,
                     const void *header,
                     size_t n_header,
                     const void *body,
                     size_t n_body)
{
        struct nd_prelude p = *prelude;
        uint8_t *at = nd_output_reserve(output, ND_PRELUDE_BYTES + n_header + n_body);

        if (!at)
                return NDBUS_ENOMEM;
        p.header_bytes = (uint32_t)n_header;
        p.body_bytes = n_body;
        nd_prelude_pack(&p, at);
        if (n_header)
                memcpy(at + ND_PRELUDE_BYTES, header, n_header);
        if (n_body)
                memcpy(at + ND_PRELUDE_BYTES + n_header, body, n_body);
        nd_output_commit(output, ND_PRELUDE_BYTES + n_header + n_body);
        output->is_ahead = output->is_ahead || must_not_be_overtaken(p.kind);
        return 0;
}

bool nd_output_packet_with_fd(struct nd_output *output, const struct nd_prelude *prelude, int fd)
{
        size_t at = nd_output_bytes(output);

        if (output->n_fds == ND_FDS_MAX || nd_output_packet(output, prelude, NULL, 0, NULL, 0))
                return false;
        output->fds[output->n_fds++] = (struct nd_output_fd){.at = at, .fd = fd};
        return true;
}

static void output_drop_fd(struct nd_output *output)
{
        --output->n_fds;
        memmove(output->fds, output->fds + 1, output->n_fds * sizeof(*output->fds));
}

void nd_output_move_fds(struct nd_output *output, size_t n)
{
        if (output->fds[0].at == 0 && n > 0)
                output_drop_fd(output);
        for (size_t i = 0; i < output->n_fds; ++i)
                output->fds[i].at -= n;
}

/* One call: up to the next packet with a descriptor, or that one and what follows it. */
static ssize_t output_send_some(const struct nd_output *output, int fd)
{
        union {
                struct cmsghdr align;
                uint8_t bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};

        size_t n = nd_output_bytes(output), i = 0;
        struct iovec iov = {(void *)(uintptr_t)nd_output_at(output), n};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        struct cmsghdr *head;

        if (output->n_fds == 0)
                return send(fd, iov.iov_base, n, MSG_NOSIGNAL);
        if (output->fds[0].at == 0) {
                msg.msg_control = &control;
                msg.msg_controllen = sizeof(control.bytes);
                head = CMSG_FIRSTHDR(&msg);
                head->cmsg_level = SOL_SOCKET;
                head->cmsg_type = SCM_RIGHTS;
                head->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(head), &output->fds[0].fd, sizeof(int));
                i = 1;
        }
        if (i < output->n_fds)
                iov.iov_len = output->fds[i].at;
        return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

int nd_output_send(struct nd_output *output, int fd)
{
        ssize_t n;

        while (nd_output_bytes(output) > 0) {
                n = output_send_some(output, fd);
                if (n >= 0)
                        nd_output_consume(output, (size_t)n);
                else if (errno == EAGAIN || errno == ENOBUFS)
                        return EAGAIN;
                else if (errno == ETOOMANYREFS && output->n_fds > 0 && output->fds[0].at == 0)
                        output_drop_fd(output);
                else if (errno != EINTR)
                        return errno;
        }
        return 0;
}

void nd_output_reset(struct nd_output *output)
{
        output->n_fds = 0;
        output->is_ahead = false;
        output->start = output->end = 0;
        if (output->n_max > OUTPUT_BYTES_MIN)
                nd_output_deinit(output);
}

void nd_output_deinit(struct nd_output *output)
{
        free(output->data);
        *output = (struct nd_output){.n_left = output->n_left};
}
