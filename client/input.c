/* SPDX-License-Identifier: MIT */

/*
 * Reading
 *
 * One buffer, one call: a read of 64 KiB brings many small messages. A large body does not go
 * through it. Its bytes are read directly to where the application will see them, in the same call
 * as what follows, and what follows is kept short: while a body is coming in chunks the look-ahead
 * is one prelude, so that the next chunk again goes to its place; in a flow of large messages that
 * come whole it is prelude, header and meta of the last one. So at most what came with its prelude
 * is copied of any body.
 */

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "client/bus.h"

#define INPUT_BYTES  ((size_t)64 << 10)
#define INPUT_PIECES 32u

int nd_input_init(struct nd_input *input)
{
        input->data = malloc(INPUT_BYTES);
        if (!input->data)
                return NDBUS_ENOMEM;
        input->n_max = INPUT_BYTES;
        nd_list_init(&input->streams);
        return 0;
}

static void input_close_fds(struct nd_input *input)
{
        for (size_t i = 0; i < input->n_fds; ++i)
                if (input->fds[i] >= 0)
                        close(input->fds[i]);
        input->n_fds = 0;
}

bool nd_input_take_fd(struct nd_input *input, int *ret_fd)
{
        if (input->n_fds == 0)
                return false;
        *ret_fd = input->fds[0];
        --input->n_fds;
        memmove(input->fds, input->fds + 1, input->n_fds * sizeof(*input->fds));
        return true;
}

void nd_input_reset(struct ndbus *bus)
{
        struct nd_input *input = &bus->input;

        input_close_fds(input);
        nd_stream_disown(bus, NULL);
        input->start = input->end = 0;
        input->n_wanted = 0;
        input->is_large = false;
        input->is_dry = false;
}

void nd_input_deinit(struct ndbus *bus)
{
        nd_stream_disown(bus, NULL);
        input_close_fds(&bus->input);
        nd_header_cache_deinit(&bus->input.cache);
        free(bus->input.data);
        bus->input.data = NULL;
}

/* Takes body bytes from the buffer; false if there are none and some are missing. */
static bool input_take_body(struct ndbus *bus)
{
        struct nd_input *input = &bus->input;
        uint64_t n;

        while (input->body_left > 0) {
                n = nd_min_u64(input->body_left, input->end - input->start);
                if (n == 0)
                        return false;
                if (input->body->message)
                        nd_message_fill(input->body->message, input->body->received_bytes,
                                        input->data + input->start, n);
                input->start += n;
                nd_stream_received(bus, n);
        }
        return true;
}

static int input_take_packet(struct ndbus *bus, struct nd_packet *packet, struct nd_fault *fault)
{
        switch (packet->prelude.kind) {
        case ND_KIND_MESSAGE:
                return nd_stream_message(bus, packet, fault);
        case ND_KIND_CHUNK:
                return nd_stream_chunk(bus, packet, fault);
        case ND_KIND_RESET:
                return nd_stream_reset(bus, packet, fault);
        default:
                return nd_dispatch(bus, packet, fault);
        }
}

/* Takes everything that the buffer holds whole. */
static void input_parse(struct ndbus *bus)
{
        struct nd_reader_limits limits = {
                .direction = ND_FROM_DAEMON,
                .header_bytes_max = ND_HEADER_BYTES_MAX,
                .meta_bytes_max = ND_META_BYTES_MAX,
        };
        struct nd_input *input = &bus->input;
        uint64_t generation = bus->connection.generation;
        struct nd_fault fault = {0};
        struct nd_packet packet;
        size_t n_wanted;
        int r;

        while (input_take_body(bus)) {
                limits.features = bus->connection.features;
                r = nd_reader_next(&limits, input->data + input->start, input->end - input->start,
                                   &packet, &n_wanted, &fault);
                if (r == 1) {
                        input->n_wanted = n_wanted;
                        return;
                }
                if (r == 0) {
                        input->start += packet.n_bytes;
                        r = input_take_packet(bus, &packet, &fault);
                }
                if (bus->connection.state < ND_STATE_WELCOME ||
                    bus->connection.generation != generation)
                        return;
                if (r) {
                        fault.code = NDBUS_EPROTOCOL;
                        nd_connection_lose(bus, &fault);
                        return;
                }
        }
        input->n_wanted = 0;
}

/* Everything up to the end of a packet is read, and a descriptor is left that none of them brought. */
static bool input_has_stray_fd(const struct nd_input *input)
{
        return input->n_fds > 0 && input->start == input->end && input->body_left == 0;
}

/* How far to read beyond the body at hand. */
static size_t input_look_ahead(const struct nd_input *input)
{
        size_t n_have = input->end - input->start, n = input->n_wanted;

        if (input->body && !input->body->message)
                return INPUT_BYTES;
        if (input->n_streams > 0)
                n = nd_max_u64(n, ND_PRELUDE_BYTES);
        else if (input->is_large)
                n = nd_max_u64(n, input->n_lead);
        else
                n = nd_max_u64(n, INPUT_BYTES);
        return n - n_have;
}

/* Makes room for @n more bytes behind what is there: 0 or NDBUS_ENOMEM. */
static int input_reserve(struct nd_input *input, size_t n)
{
        size_t n_have = input->end - input->start, n_max = input->n_max;
        uint8_t *data;

        if (input->start > 0 && n_have > 0)
                memmove(input->data, input->data + input->start, n_have);
        input->start = 0;
        input->end = n_have;
        if (n_have == 0 && n <= INPUT_BYTES && n_max > INPUT_BYTES)
                n_max = INPUT_BYTES; /* a huge header is over */
        while (n_max < n_have + n)
                n_max *= 2;
        if (n_max == input->n_max)
                return 0;
        data = realloc(input->data, n_max);
        if (!data)
                return NDBUS_ENOMEM;
        input->data = data;
        input->n_max = n_max;
        return 0;
}

/* @n bytes came: first the direct ones, the rest is in the buffer. */
static void input_take(struct ndbus *bus, uint64_t n, uint64_t n_direct)
{
        struct nd_input *input = &bus->input;
        uint64_t n_body = nd_min_u64(n, n_direct);

        nd_connection_heard(bus);
        input->end += n - n_body;
        if (n_body)
                nd_stream_received(bus, n_body);
        input_parse(bus);
        if (input_has_stray_fd(input))
                nd_connection_lose_text(bus, NDBUS_EFDS,
                                        "a descriptor came without a packet that brings one");
}

/* Keeps the descriptors that came with some bytes. False: they are more than are kept. */
static bool input_take_fds(struct nd_input *input, struct msghdr *msg)
{
        bool has_room = true;
        size_t n_before = input->n_fds;

        for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
                size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
                        continue;
                for (size_t i = 0; i < n; ++i) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(head) + i * sizeof(fd), sizeof(fd));
                        if (input->n_fds < ND_FDS_MAX) {
                                input->fds[input->n_fds++] = fd;
                        } else {
                                close(fd);
                                has_room = false;
                        }
                }
        }
        if (msg->msg_flags & MSG_CTRUNC) {
                /* this process may open no more: what the packet brings cannot be had */
                has_room = has_room && input->n_fds < ND_FDS_MAX && input->n_fds == n_before;
                if (has_room)
                        input->fds[input->n_fds++] = -1;
        }
        return has_room;
}

/* One system call. Descriptors are taken in only where the feature that brings them is in force. */
static ssize_t input_receive(struct ndbus *bus, struct iovec *iov, size_t n_iov, bool *ret_has_room)
{
        union {
                struct cmsghdr align;
                uint8_t bytes[CMSG_SPACE(ND_FDS_MAX * sizeof(int))];
        } control;
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n_iov};
        bool has_shm = bus->connection.features & ND_FEATURE_SHM;
        ssize_t n;

        *ret_has_room = true;
        if (n_iov == 1 && !has_shm)
                return recv(nd_bus_socket(bus), iov[0].iov_base, iov[0].iov_len, 0);
        if (has_shm) {
                msg.msg_control = &control;
                msg.msg_controllen = sizeof(control.bytes);
        }
        n = recvmsg(nd_bus_socket(bus), &msg, MSG_CMSG_CLOEXEC);
        if (n > 0 && has_shm && (msg.msg_controllen > 0 || msg.msg_flags & MSG_CTRUNC))
                *ret_has_room = input_take_fds(&bus->input, &msg);
        return n;
}

int nd_input_read(struct ndbus *bus)
{
        struct nd_input *input = &bus->input;
        struct iovec iov[INPUT_PIECES + 1];
        uint64_t n_direct = 0;
        uint64_t n_asked;
        size_t n_iov = 0, n_ahead = 0;
        bool has_room;
        ssize_t n;

        if (input->body_left > 0 && input->body->message)
                n_iov = nd_message_fill_iov(input->body->message, input->body->received_bytes,
                                            input->body_left, iov, INPUT_PIECES, &n_direct);
        if (n_direct == input->body_left || n_iov == 0) {
                n_ahead = input_look_ahead(input);
                if (input_reserve(input, n_ahead)) {
                        nd_connection_lose_text(bus, NDBUS_ENOMEM, "out of memory");
                        return 1;
                }
                iov[n_iov++] = (struct iovec){input->data + input->end, n_ahead};
        }
        n_asked = n_direct + n_ahead;
        do
                n = input_receive(bus, iov, n_iov, &has_room);
        while (n < 0 && errno == EINTR);

        input->is_dry = n < 0 || (uint64_t)n < n_asked;
        if (n > 0 && !has_room) {
                nd_connection_lose_text(bus, NDBUS_EFDS,
                                        "more than %u descriptors came ahead of their packets",
                                        ND_FDS_MAX);
                return 1;
        }
        if (n > 0) {
                input_take(bus, (uint64_t)n, n_direct);
                return 1;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                return 0;
        nd_connection_lose_errno(bus, n == 0 ? EPIPE : errno);
        return 1;
}
