/* SPDX-License-Identifier: MIT */

/*
 * One message on its way to the socket
 *
 * A message is one PUBLISH packet, or a PUBLISH and CHUNKs. A step builds a list of pieces, of
 * what waits in the output, of the packet at hand, and of as many further packets as credit and
 * list allow, and gives it to the kernel in one call; then it moves its marks by what was taken.
 * Only packets of which a byte was taken have begun: credit is used, numbers are taken, they must
 * be finished before anything else is sent. The others are planned anew the next time. What came
 * into the output while a packet was sent in part, grants above all, goes behind it.
 *
 * Nothing here waits. Whoever waits decides when a message is given up: then the rest of the
 * packet at hand is copied to the output, and the caller's memory is its own again.
 */

#include "client/outgoing.h"
#include <errno.h>
#include <string.h>

#define PIECES_MAX  256u
#define PACKETS_MAX 20u

/* A packet of a step. */
struct planned {
        uint8_t prelude[ND_PRELUDE_BYTES];
        uint64_t from; /* of the body */
        uint64_t to;
        uint64_t n_lead; /* prelude, header, meta: not yet sent */
        uint64_t n_body; /* bytes of it that are on the list */
};

struct plan {
        struct iovec iov[PIECES_MAX];
        size_t n_iov;
        struct planned packets[PACKETS_MAX];
        size_t n_packets;
        size_t n_output; /* bytes of the output that stand before the packets */
        uint64_t bytes;
};

static bool is_nothing_outstanding(const struct nd_credit *credit)
{
        return credit->bytes == credit->window_bytes;
}

/* The credit that a message needs to begin: all of it if it can ever be had, else enough for a
 * first chunk. */
static uint64_t credit_to_begin(const struct nd_credit *credit, const struct nd_outgoing *out)
{
        uint64_t bytes = nd_outgoing_bytes(out);

        if (bytes <= credit->window_bytes && out->body->bytes <= ND_PACKET_BODY_BYTES_MAX)
                return bytes;
        return ND_PRELUDE_BYTES + out->n_header + out->n_meta + ND_PRELUDE_BYTES +
               nd_min_u64(out->body->bytes, ND_CHUNK_BYTES_MIN);
}

bool nd_outgoing_may_begin(const struct ndbus *bus, const struct nd_outgoing *out)
{
        const struct nd_credit *credit = &bus->credit;

        return credit->bytes >= credit_to_begin(credit, out) || is_nothing_outstanding(credit);
}

void nd_outgoing_begin(struct ndbus *bus, struct nd_outgoing *out)
{
        struct nd_credit *credit = &bus->credit;
        uint64_t lead = ND_PRELUDE_BYTES + out->n_header + out->n_meta;
        bool is_whole = out->body->bytes <= ND_PACKET_BODY_BYTES_MAX &&
                        lead + out->body->bytes <= credit->bytes;

        if (out->body->bytes == 0)
                is_whole = true;
        out->number = ++credit->n_published;
        out->generation = bus->connection.generation;
        out->stream = 0;
        if (!is_whole) {
                credit->n_streams = credit->n_streams == UINT32_MAX ? 1 : credit->n_streams + 1;
                out->stream = credit->n_streams;
        }
        out->has_begun = true;
        out->is_done = false;
        out->is_in_packet = true;
        out->is_lead_left = true;
        out->lead_sent = 0;
        out->position = 0;
        out->leaves_at = 0;
        out->packet_end = is_whole ? out->body->bytes : 0;
        bus->refusal.code = 0;
        out->credit_taken = nd_min_u64(credit->bytes, lead + out->packet_end);
        credit->bytes -= out->credit_taken;
        credit->sent_ns = nd_clock_coarse_ns();
        out->time_ns = nd_clock_read(CLOCK_REALTIME);
}

static void prelude_of_publish(const struct nd_outgoing *out, uint8_t *at)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_PUBLISH,
                .flags = (uint16_t)(out->flags | (out->stream ? ND_FLAG_BODY_IN_CHUNKS : 0) |
                                    (out->segment ? ND_FLAG_BODY_IN_BLOCK : 0)),
                .header_bytes = (uint32_t)out->n_header,
                .meta_bytes = (uint32_t)out->n_meta,
                .stream = out->stream,
                .body_bytes = out->segment ? out->block_bytes : out->body->bytes,
                .place = out->place,
                .segment = out->segment,
                .sequence = out->number,
                .time_ns = out->time_ns,
        };

        nd_prelude_pack(&p, at);
}

static void prelude_of_chunk(const struct nd_outgoing *out, uint64_t from, uint64_t n, uint8_t *at)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_CHUNK,
                .stream = out->stream,
                .body_bytes = n,
                .place = from,
        };

        nd_prelude_pack(&p, at);
}

int nd_outgoing_put(struct ndbus *bus, struct nd_outgoing *out)
{
        size_t n = (size_t)nd_outgoing_bytes(out);
        uint8_t *at = nd_output_reserve(&bus->output, n);

        if (!at)
                return NDBUS_ENOMEM;
        nd_outgoing_begin(bus, out);
        nd_assert(out->stream == 0);
        prelude_of_publish(out, at);
        at += ND_PRELUDE_BYTES;
        memcpy(at, out->header, out->n_header);
        at += out->n_header;
        if (out->n_meta)
                memcpy(at, out->meta, out->n_meta);
        at += out->n_meta;
        if (out->body->bytes)
                nd_body_copy(out->body, 0, out->body->bytes, at);
        at += out->body->bytes;
        if (out->segment && nd_outlet_put(bus, at - n, n, out->is_slow)) {
                nd_outgoing_finish(bus, out);
                return 0;
        }
        nd_output_commit(&bus->output, n);
        bus->output.is_ahead = false;
        out->leaves_at = bus->output.n_left + nd_output_bytes(&bus->output);
        return 0;
}

void nd_outgoing_finish(struct ndbus *bus, struct nd_outgoing *out)
{
        out->is_done = true;
        bus->credit.n_complete = out->number;
}

bool nd_outgoing_has_left(const struct ndbus *bus, const struct nd_outgoing *out)
{
        return out->is_done || (out->leaves_at > 0 && bus->output.n_left >= out->leaves_at);
}

void nd_outgoing_lost(struct ndbus *bus, struct nd_outgoing *out, bool has_output)
{
        if ((out->leaves_at > 0 && has_output) || nd_outgoing_has_left(bus, out))
                nd_outgoing_finish(bus, out);
}

static void plan_add(struct plan *plan, const void *at, uint64_t n)
{
        if (n == 0)
                return;
        plan->iov[plan->n_iov++] = (struct iovec){(void *)(uintptr_t)at, n};
        plan->bytes += n;
}

/* The part of a lead, which is one to three pieces, that is not sent yet. */
static void plan_add_lead(struct plan *plan, const struct nd_outgoing *out, struct planned *packet)
{
        const bool is_publish = !out->stream || packet->to == 0;
        const struct iovec pieces[3] = {
                {packet->prelude, ND_PRELUDE_BYTES},
                {(void *)(uintptr_t)out->header, is_publish ? out->n_header : 0},
                {(void *)(uintptr_t)out->meta, is_publish ? out->n_meta : 0},
        };
        size_t skip = plan->n_packets == 0 && out->is_in_packet ? out->lead_sent : 0;

        packet->n_lead = 0;
        for (size_t i = 0; i < 3; ++i) {
                size_t sent = skip < pieces[i].iov_len ? skip : pieces[i].iov_len;
                size_t part = pieces[i].iov_len - sent;

                skip -= sent;
                if (part == 0)
                        continue;
                plan_add(plan, (const uint8_t *)pieces[i].iov_base + sent, part);
                packet->n_lead += part;
        }
}

/* Lists a packet; false when the list ends inside it. */
static int plan_packet(struct plan *plan, const struct nd_outgoing *out, struct planned *packet)
{
        uint64_t at = packet->from, part;
        int n;

        if (plan->n_packets > 0 || !out->is_in_packet || out->is_lead_left)
                plan_add_lead(plan, out, packet);
        ++plan->n_packets;
        while (at < packet->to && plan->n_iov < PIECES_MAX) {
                n = nd_body_iov(out->body, at, packet->to - at, &plan->iov[plan->n_iov],
                                PIECES_MAX - plan->n_iov, &part);
                if (n < 0)
                        return n;
                if (part == 0)
                        break;
                plan->n_iov += (size_t)n;
                plan->bytes += part;
                at += part;
        }
        packet->n_body = at - packet->from;
        return at == packet->to;
}

/* Lists what can be sent now: 0 or NDBUS_ENOMEM. */
static int plan_make(struct plan *plan, const struct ndbus *bus, const struct nd_outgoing *out)
{
        uint64_t credit = bus->credit.bytes, at = out->position, n;
        bool is_torn = nd_outgoing_is_torn(out);
        struct planned *packet;
        int r = 1;

        plan->n_iov = plan->n_packets = 0;
        plan->bytes = 0;
        plan->n_output = is_torn ? 0 : nd_output_bytes(&bus->output);
        nd_body_start(out->body);
        if (plan->n_output > 0)
                plan_add(plan, nd_output_at(&bus->output), plan->n_output);

        if (out->is_in_packet) {
                packet = &plan->packets[0];
                *packet = (struct planned){.from = at, .to = out->packet_end};
                if (out->stream && out->packet_end > 0)
                        prelude_of_chunk(out, out->packet_end - out->packet_bytes,
                                         out->packet_bytes, packet->prelude);
                else
                        prelude_of_publish(out, packet->prelude);
                r = plan_packet(plan, out, packet);
                at = out->packet_end;
                if (r == 1 && is_torn && nd_output_bytes(&bus->output) > 0)
                        return 0; /* the output comes next */
        }
        while (r == 1 && at < out->body->bytes && plan->n_packets < PACKETS_MAX &&
               plan->n_iov + 4 < PIECES_MAX) {
                n = nd_min_u64(out->body->bytes - at, ND_CHUNK_BYTES);
                if (credit < ND_PRELUDE_BYTES + nd_min_u64(n, ND_CHUNK_BYTES_MIN))
                        break;
                n = nd_min_u64(n, credit - ND_PRELUDE_BYTES);
                credit -= ND_PRELUDE_BYTES + n;
                packet = &plan->packets[plan->n_packets];
                *packet = (struct planned){.from = at, .to = at + n};
                prelude_of_chunk(out, at, n, packet->prelude);
                r = plan_packet(plan, out, packet);
                at += n;
        }
        return r < 0 ? r : 0;
}

/* Moves the marks by @n bytes that the kernel took. */
static void
plan_taken(struct ndbus *bus, struct nd_outgoing *out, const struct plan *plan, uint64_t n)
{
        uint64_t part = nd_min_u64(n, plan->n_output);

        nd_output_consume(&bus->output, part);
        n -= part;
        for (size_t i = 0; i < plan->n_packets && n > 0; ++i) {
                const struct planned *packet = &plan->packets[i];

                if (!out->is_in_packet) {
                        out->is_in_packet = out->is_lead_left = true;
                        out->lead_sent = 0;
                        out->packet_end = packet->to;
                        out->packet_bytes = packet->to - packet->from;
                        bus->credit.bytes -= ND_PRELUDE_BYTES + out->packet_bytes;
                        bus->credit.sent_ns = nd_clock_coarse_ns();
                }
                part = nd_min_u64(n, packet->n_lead);
                out->lead_sent += part;
                n -= part;
                if (part == packet->n_lead)
                        out->is_lead_left = false;
                part = nd_min_u64(n, packet->n_body);
                out->position += part;
                n -= part;
                if (!out->is_lead_left && out->position == out->packet_end)
                        out->is_in_packet = false;
        }
        if (!out->is_in_packet && out->position == out->body->bytes)
                nd_outgoing_finish(bus, out);
}

enum nd_outgoing_result
nd_outgoing_step(struct ndbus *bus, struct nd_outgoing *out, bool *ret_moved)
{
        struct plan plan;
        struct msghdr msg = {.msg_iov = plan.iov};
        ssize_t n;

        while (!out->is_done) {
                if (nd_outgoing_is_lost(bus, out))
                        return ND_OUTGOING_LOST;
                if (bus->output.n_fds > 0 && !nd_outgoing_is_torn(out) && !nd_connection_send(bus))
                        return bus->connection.state == ND_STATE_READY ? ND_OUTGOING_NEEDS_SOCKET
                                                                       : ND_OUTGOING_LOST;
                if (plan_make(&plan, bus, out)) {
                        nd_connection_lose_text(bus, NDBUS_ENOMEM, "out of memory");
                        return ND_OUTGOING_LOST;
                }
                if (plan.bytes == 0)
                        return ND_OUTGOING_NEEDS_CREDIT;
                msg.msg_iovlen = plan.n_iov;
                n = sendmsg(nd_bus_socket(bus), &msg, MSG_NOSIGNAL);
                if (n >= 0) {
                        *ret_moved = true;
                        plan_taken(bus, out, &plan, (uint64_t)n);
                } else if (errno == EAGAIN || errno == ENOBUFS) {
                        return ND_OUTGOING_NEEDS_SOCKET;
                } else if (errno != EINTR) {
                        nd_connection_fail_write(bus, errno);
                        return ND_OUTGOING_LOST;
                }
        }
        return ND_OUTGOING_DONE;
}

/* Copies what is missing of the packet at hand into the output, before what waits there. */
static int outgoing_copy_rest(struct ndbus *bus, struct nd_outgoing *out)
{
        uint64_t n_body = out->packet_end - out->position;
        struct plan plan = {0};
        struct planned packet = {.from = out->position, .to = out->packet_end};
        uint8_t *at;

        if (out->is_lead_left) {
                if (out->stream && out->packet_end > 0)
                        prelude_of_chunk(out, out->packet_end - out->packet_bytes,
                                         out->packet_bytes, packet.prelude);
                else
                        prelude_of_publish(out, packet.prelude);
                plan_add_lead(&plan, out, &packet);
        }
        at = nd_output_insert(&bus->output, (size_t)(packet.n_lead + n_body));
        if (!at)
                return NDBUS_ENOMEM;
        for (size_t i = 0; i < plan.n_iov; ++i) {
                memcpy(at, plan.iov[i].iov_base, plan.iov[i].iov_len);
                at += plan.iov[i].iov_len;
        }
        nd_body_copy(out->body, out->position, n_body, at);
        out->is_in_packet = false;
        out->position = out->packet_end;
        return 0;
}

int nd_outgoing_give_up(struct ndbus *bus, struct nd_outgoing *out)
{
        bool is_untouched = out->is_in_packet && out->is_lead_left && out->lead_sent == 0 &&
                            out->position == 0 && (!out->stream || out->packet_end == 0);
        int r = 0;

        if (out->is_done)
                return 1;
        if (is_untouched) {
                /* not a byte has left: it never was */
                --bus->credit.n_published;
                bus->credit.bytes += out->credit_taken;
                out->has_begun = false;
                return 0;
        }
        if (out->is_in_packet)
                r = outgoing_copy_rest(bus, out);
        if (!r && out->position == out->body->bytes) {
                nd_outgoing_finish(bus, out);
                return 1;
        }
        if (!r)
                r = nd_output_packet(
                        &bus->output,
                        &(struct nd_prelude){.kind = ND_KIND_RESET, .stream = out->stream}, NULL, 0,
                        NULL, 0);
        if (r)
                nd_connection_lose_text(bus, NDBUS_ENOMEM, "out of memory");
        return r;
}
