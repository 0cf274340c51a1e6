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

void nd_input_reset(struct ndbus *bus)
{
        struct nd_input *input = &bus->input;

        nd_stream_disown(bus, NULL);
        input->start = input->end = 0;
        input->n_wanted = 0;
        input->is_large = false;
        input->is_dry = false;
}

void nd_input_deinit(struct ndbus *bus)
{
        nd_stream_disown(bus, NULL);
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
        static const struct nd_reader_limits limits = {
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
}

int nd_input_read(struct ndbus *bus)
{
        struct nd_input *input = &bus->input;
        struct iovec iov[INPUT_PIECES + 1];
        struct msghdr msg = {.msg_iov = iov};
        uint64_t n_direct = 0;
        uint64_t n_asked;
        size_t n_iov = 0, n_ahead = 0;
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
        do {
                if (n_iov == 1) {
                        n = recv(nd_bus_socket(bus), iov[0].iov_base, iov[0].iov_len, 0);
                } else {
                        msg.msg_iovlen = n_iov;
                        n = recvmsg(nd_bus_socket(bus), &msg, 0);
                }
        } while (n < 0 && errno == EINTR);

        input->is_dry = n < 0 || (uint64_t)n < n_asked;
        if (n > 0) {
                input_take(bus, (uint64_t)n, n_direct);
                return 1;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                return 0;
        nd_connection_lose_errno(bus, n == 0 ? EPIPE : errno);
        return 1;
}
