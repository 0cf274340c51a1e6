/* SPDX-License-Identifier: MIT */

/*
 * Outbox
 *
 * One sendmsg() carries what is ready: control packets, then a packet of each subscription in turn.
 * Preludes, and small packets whole, are staged side by side in one buffer, so that a thousand
 * small messages are one piece of memory; larger bodies are sent from where they lie. If the socket
 * takes less, the packet that was cut is remembered and finished first next time; what was not
 * begun goes back to its queue, where the policy can still act on it. A descriptor goes with the
 * first byte of a call, so a packet that brings one begins a batch.
 *
 * The stage, the iovec and the list of pieces live only during one call and are shared by all
 * connections: one loop, one thread.
 */

#include "daemon/outbox.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include "daemon/server.h"

#define OUTBOX_STAGE_BYTES    (128u * 1024u)
#define OUTBOX_COPY_BYTES_MAX 4096u /* packets up to this are staged whole: cheaper than pieces */
#define OUTBOX_BATCH_BYTES    (512u * 1024u)
#define OUTBOX_TURNS_MAX      4u    /* batches before other connections have their turn */
#define OUTBOX_IOV_MAX        1024u /* IOV_MAX of Linux */
#define OUTBOX_PACKET_IOV_MAX (4u + ND_PACKET_BODY_BYTES_MAX / ND_BLOCK_BYTES + 1u)
#define OUTBOX_CONTROL_BYTES_MAX                                                                   \
        (1u << 20) /* DESIGN: answers that wait; then it is not read from */
#define OUTBOX_CONTROL_BYTES_KEPT (16u * 1024u)

static struct outbox_batch {
        size_t n_stage;
        size_t n_iov;
        size_t n_pieces;
        size_t n_bytes;
        size_t n_control;         /* of n_bytes */
        int fd;                   /* goes with the first packet; or -1 */
        struct nd_handed *handed; /* of which fd is; or NULL: it is nd_outbox.fd */
        struct iovec iov[OUTBOX_IOV_MAX];

        struct outbox_packet {
                struct nd_piece piece;
                size_t n_bytes;
                size_t i_stage; /* where its prelude is */
        } packets[OUTBOX_IOV_MAX];

        uint8_t stage[OUTBOX_STAGE_BYTES];
} batch;

void nd_outbox_init(struct nd_outbox *outbox, struct nd_connection *connection)
{
        *outbox = (struct nd_outbox){.connection = connection, .fd = -1};
        nd_list_init(&outbox->ready);
}

static uint64_t outbox_control_charge(const struct nd_outbox *outbox)
{
        return outbox->n_control_max;
}

void nd_outbox_deinit(struct nd_outbox *outbox)
{
        struct nd_memory *memory = &outbox->connection->server->store.memory;

        nd_assert(nd_list_is_empty(&outbox->ready));
        if (outbox->half.is_active)
                nd_entry_free(outbox->half.entry);
        outbox->half.is_active = false;
        nd_memory_discharge(memory, outbox_control_charge(outbox));
        free(outbox->control);
        outbox->control = NULL;
        outbox->n_control_max = 0;
}

/* ------------------------------------------------------------------------------------- control */

/* Control output is charged but never refused: there is a limit on it of its own. */
static bool outbox_reserve(struct nd_outbox *outbox, size_t n_bytes)
{
        struct nd_memory *memory = &outbox->connection->server->store.memory;
        size_t n = outbox->n_control_max ? outbox->n_control_max : 512;
        uint8_t *control;

        if (outbox->i_control > 0 && outbox->n_control + n_bytes > outbox->n_control_max) {
                outbox->n_control -= outbox->i_control;
                memmove(outbox->control, outbox->control + outbox->i_control, outbox->n_control);
                outbox->fd_at -= outbox->fd >= 0 ? outbox->i_control : 0;
                outbox->i_control = 0;
        }
        if (outbox->n_control + n_bytes <= outbox->n_control_max)
                return true;
        while (n < outbox->n_control + n_bytes)
                n *= 2;
        control = realloc(outbox->control, n);
        if (!control)
                return false;
        nd_memory_charge_anyway(memory, n - outbox->n_control_max);
        outbox->control = control;
        outbox->n_control_max = n;
        return true;
}

static bool outbox_takes_control(const struct nd_outbox *outbox)
{
        return outbox->connection->state < ND_CONNECTION_GOODBYE &&
               !outbox->connection->closes_after_output;
}

void nd_outbox_bytes(struct nd_outbox *outbox, const void *data, size_t n_bytes)
{
        if (!outbox_takes_control(outbox) || n_bytes == 0)
                return;
        if (!outbox_reserve(outbox, n_bytes)) {
                nd_connection_mark_closing(outbox->connection);
                return;
        }
        memcpy(outbox->control + outbox->n_control, data, n_bytes);
        outbox->n_control += n_bytes;
        nd_connection_mark_dirty(outbox->connection);
}

void nd_outbox_control(struct nd_outbox *outbox,
                       struct nd_prelude *prelude,
                       const struct nd_control_bytes *header,
                       const void *body,
                       size_t n_body)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        prelude->header_bytes = header ? (uint32_t)header->n : 0;
        prelude->body_bytes = n_body;
        nd_prelude_pack(prelude, bytes);
        nd_outbox_bytes(outbox, bytes, sizeof(bytes));
        if (header)
                nd_outbox_bytes(outbox, header->data, header->n);
        nd_outbox_bytes(outbox, body, n_body);
}

void nd_outbox_control_with_fd(struct nd_outbox *outbox, struct nd_prelude *prelude, int fd)
{
        size_t n_before = outbox->n_control - outbox->i_control;

        nd_assert(outbox->fd < 0);
        prelude->flags |= fd >= 0 ? ND_FLAG_FD : 0;
        nd_outbox_control(outbox, prelude, NULL, NULL, 0);
        if (outbox->n_control - outbox->i_control == n_before)
                return;
        outbox->fd = fd;
        outbox->fd_at = outbox->n_control - ND_PRELUDE_BYTES;
}

/* The packet goes without it. */
static void outbox_drop_fd(struct nd_outbox *outbox)
{
        struct nd_prelude prelude;

        nd_prelude_unpack(outbox->control + outbox->fd_at, &prelude);
        prelude.flags &= (uint16_t)~ND_FLAG_FD;
        nd_prelude_pack(&prelude, outbox->control + outbox->fd_at);
        outbox->fd = -1;
}

void nd_outbox_uncontrol(struct nd_outbox *outbox, size_t n_bytes)
{
        if (!outbox_takes_control(outbox))
                return;
        nd_assert(n_bytes <= outbox->n_control - outbox->i_control);
        outbox->n_control -= n_bytes;
}

bool nd_outbox_is_full(const struct nd_outbox *outbox)
{
        return outbox->n_control - outbox->i_control >= OUTBOX_CONTROL_BYTES_MAX;
}

bool nd_outbox_has_output(const struct nd_outbox *outbox)
{
        return outbox->half.is_active || outbox->n_control > outbox->i_control ||
               !nd_list_is_empty(&outbox->ready);
}

void nd_outbox_orphan(struct nd_outbox *outbox, const struct nd_subscription *subscription)
{
        struct nd_entry *entry = outbox->half.entry;

        if (!outbox->half.is_active || !entry || entry->subscription != subscription)
                return;
        entry->subscription = NULL;
        entry->sink = NULL;
}

uint32_t nd_outbox_next_stream(struct nd_outbox *outbox)
{
        if (++outbox->last_stream == 0)
                ++outbox->last_stream;
        return outbox->last_stream;
}

/* ------------------------------------------------------------------------------- making a batch */

static void batch_add(const void *data, size_t n_bytes)
{
        struct iovec *last = batch.n_iov > 0 ? &batch.iov[batch.n_iov - 1] : NULL;

        if (n_bytes == 0)
                return;
        batch.n_bytes += n_bytes;
        if (last && (const uint8_t *)last->iov_base + last->iov_len == data) {
                last->iov_len += n_bytes;
                return;
        }
        batch.iov[batch.n_iov++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = n_bytes};
}

/* Adds a part that begins @*skip bytes in; *@skip is what remains to be skipped. */
static void batch_add_after(const void *data, size_t n_bytes, uint64_t *skip)
{
        size_t n = (size_t)nd_min_u64(*skip, n_bytes);

        *skip -= n;
        batch_add((const uint8_t *)data + n, n_bytes - n);
}

static void batch_add_body(const struct nd_message *message, uint64_t from, uint64_t to)
{
        struct iovec iov[OUTBOX_PACKET_IOV_MAX];
        size_t n = nd_message_body(message, from, to, iov, nd_array_size(iov));

        for (size_t i = 0; i < n; ++i)
                batch_add(iov[i].iov_base, iov[i].iov_len);
}

static void batch_add_half(const struct nd_half *half)
{
        uint64_t skip = half->sent_bytes;

        batch_add_after(half->prelude, sizeof(half->prelude), &skip);
        if (!half->entry)
                return;
        if (half->has_header) {
                const struct nd_message *message = half->entry->message;

                batch_add_after(message->header->bytes, message->header->n, &skip);
                batch_add_after(message->meta, message->meta_bytes, &skip);
        }
        batch_add_body(half->entry->message, half->from + skip, half->to);
}

static void stage_copy(const void *data, size_t n_bytes)
{
        if (n_bytes > 0)
                memcpy(batch.stage + batch.n_stage, data, n_bytes);
        batch_add(batch.stage + batch.n_stage, n_bytes);
        batch.n_stage += n_bytes;
}

static void batch_add_piece(const struct nd_piece *piece)
{
        struct outbox_packet *packet = &batch.packets[batch.n_pieces++];
        size_t n_before = batch.n_bytes;
        struct nd_prelude prelude;
        const struct nd_message *message = piece->entry ? piece->entry->message : NULL;
        uint64_t n_body = piece->to - piece->from;

        *packet = (struct outbox_packet){.piece = *piece, .i_stage = batch.n_stage};
        nd_piece_prelude(piece, &prelude);
        nd_prelude_pack(&prelude, batch.stage + batch.n_stage);
        batch_add(batch.stage + batch.n_stage, ND_PRELUDE_BYTES);
        batch.n_stage += ND_PRELUDE_BYTES;

        if (piece->kind == ND_KIND_MESSAGE) {
                if ((uint64_t)message->header->n + message->meta_bytes + n_body <=
                    OUTBOX_COPY_BYTES_MAX) {
                        stage_copy(message->header->bytes, message->header->n);
                        stage_copy(message->meta, message->meta_bytes);
                        if (n_body > 0)
                                stage_copy(message->tail, (size_t)n_body);
                        n_body = 0;
                } else {
                        batch_add(message->header->bytes, message->header->n);
                        batch_add(message->meta, message->meta_bytes);
                }
        }
        if (n_body > 0 && message)
                batch_add_body(message, piece->from, piece->to);
        packet->n_bytes = batch.n_bytes - n_before;
}

static bool batch_has_room(void)
{
        return batch.n_bytes < OUTBOX_BATCH_BYTES &&
               batch.n_stage + ND_PRELUDE_BYTES + OUTBOX_COPY_BYTES_MAX <= sizeof(batch.stage) &&
               batch.n_iov + OUTBOX_PACKET_IOV_MAX <= nd_array_size(batch.iov) &&
               batch.n_pieces < nd_array_size(batch.packets);
}

/* Control packets up to one that brings a descriptor, or that one and all behind it. False: nothing may follow
 * in this batch. */
static bool batch_add_control(const struct nd_outbox *outbox)
{
        bool is_cut = outbox->fd >= 0 && (batch.n_bytes > 0 || outbox->fd_at > outbox->i_control);

        batch.n_control = (is_cut ? outbox->fd_at : outbox->n_control) - outbox->i_control;
        if (batch.n_control > 0)
                batch_add(outbox->control + outbox->i_control, batch.n_control);
        if (!is_cut)
                batch.fd = outbox->fd;
        return !is_cut;
}

static void batch_make(struct nd_outbox *outbox)
{
        struct nd_list *node;
        struct nd_piece piece;

        batch.n_stage = 0;
        batch.n_iov = 0;
        batch.n_pieces = 0;
        batch.n_bytes = 0;
        batch.fd = -1;
        batch.handed = NULL;

        if (outbox->half.is_active)
                batch_add_half(&outbox->half);
        if (!batch_add_control(outbox))
                return;
        if (outbox->connection->closes_after_output ||
            outbox->connection->state == ND_CONNECTION_GOODBYE)
                return;
        while (batch_has_room() && (node = nd_list_first(&outbox->ready))) {
                struct nd_subscription *subscription =
                        nd_list_entry(node, struct nd_subscription, in_ready);

                nd_list_unlink(node);
                if (!nd_subscription_take(subscription, &piece))
                        continue;
                if (piece.kind == ND_KIND_SEGMENT) {
                        if (batch.n_bytes > 0) {
                                nd_piece_undo(&piece);
                                return;
                        }
                        batch.handed = piece.handed;
                        batch.fd = piece.handed->share->memory.fd;
                }
                nd_list_push_tail(&outbox->ready, node);
                batch_add_piece(&piece);
        }
}

/* ---------------------------------------------------------------------------- what became of it */

static size_t outbox_advance_half(struct nd_outbox *outbox, size_t n_sent)
{
        struct nd_half *half = &outbox->half;
        size_t n = (size_t)nd_min_u64(n_sent, half->total_bytes - half->sent_bytes);

        half->sent_bytes += n;
        if (n > 0 && half->entry && half->entry->sink)
                nd_sink_took(half->entry->sink);
        if (half->sent_bytes == half->total_bytes) {
                half->is_active = false;
                if (half->entry)
                        nd_entry_sent(half->entry, half->to, half->is_last);
        }
        return n_sent - n;
}

static size_t outbox_advance_control(struct nd_outbox *outbox, size_t n_sent)
{
        size_t n = (size_t)nd_min_u64(n_sent, batch.n_control);

        outbox->i_control += n;
        if (outbox->fd >= 0 && outbox->i_control > outbox->fd_at)
                outbox->fd = -1;
        if (outbox->i_control == outbox->n_control) {
                outbox->i_control = 0;
                outbox->n_control = 0;
                if (outbox->n_control_max > OUTBOX_CONTROL_BYTES_KEPT) {
                        nd_memory_discharge(&outbox->connection->server->store.memory,
                                            outbox_control_charge(outbox));
                        free(nd_steal(outbox->control));
                        outbox->n_control_max = 0;
                }
        }
        return n_sent - n;
}

/* A GAP only stands before one. */
static bool piece_has_entry(const struct nd_piece *piece)
{
        return piece->kind == ND_KIND_MESSAGE || piece->kind == ND_KIND_CHUNK;
}

static void outbox_cut(struct nd_outbox *outbox, const struct outbox_packet *packet, size_t n_sent)
{
        const struct nd_piece *piece = &packet->piece;

        outbox->half = (struct nd_half){
                .is_active = true,
                .has_header = piece->kind == ND_KIND_MESSAGE,
                .is_last = piece->is_last,
                .entry = piece_has_entry(piece) ? piece->entry : NULL,
                .from = piece->from,
                .to = piece->to,
                .sent_bytes = n_sent,
                .total_bytes = packet->n_bytes,
        };
        memcpy(outbox->half.prelude, batch.stage + packet->i_stage, ND_PRELUDE_BYTES);
}

/* Packets in order: sent whole, one cut, the rest not begun. The rest is undone before anything is
 * freed, so that undoing finds everything as it was. */
static void outbox_advance(struct nd_outbox *outbox, size_t n_sent)
{
        size_t n_left;
        size_t n_begun = 0;
        size_t n = 0;

        n_left = outbox->half.is_active ? outbox_advance_half(outbox, n_sent) : n_sent;
        if (!outbox->half.is_active)
                n_left = outbox_advance_control(outbox, n_left);

        for (; n_begun < batch.n_pieces && n < n_left; ++n_begun)
                n += batch.packets[n_begun].n_bytes;
        for (size_t i = batch.n_pieces; i > n_begun; --i)
                nd_piece_undo(&batch.packets[i - 1].piece);
        if (n_sent > 0)
                nd_observe_write_batch_packets(
                        &outbox->connection->server->histograms.write_batch_packets, n_begun);

        for (size_t i = 0; i < n_begun; ++i) {
                const struct outbox_packet *packet = &batch.packets[i];
                const struct nd_piece *piece = &packet->piece;

                nd_piece_begun(piece);
                if (n_left < packet->n_bytes) {
                        outbox_cut(outbox, packet, n_left);
                        return;
                }
                n_left -= packet->n_bytes;
                if (piece_has_entry(piece))
                        nd_entry_sent(piece->entry, piece->to, piece->is_last);
        }
}

/* What would be a bug in the call. All else means that the peer is gone: which errors those are is
 * up to the network (ICMP) and the operator (a packet filter's EPERM). */
static bool outbox_is_bug(int error)
{
        return error == EBADF || error == ENOTSOCK || error == EFAULT || error == EINVAL ||
               error == EMSGSIZE;
}

union outbox_descriptor {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
};

static void batch_attach(struct msghdr *message, union outbox_descriptor *room, int fd)
{
        struct cmsghdr *control;

        memset(room, 0, sizeof(*room));
        message->msg_control = room;
        message->msg_controllen = sizeof(*room);
        control = CMSG_FIRSTHDR(message);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(control), &fd, sizeof(int));
}

/* One batch. Return: true if the socket took all of it and there may be more */
static bool outbox_write_batch(struct nd_outbox *outbox)
{
        struct nd_connection *connection = outbox->connection;
        struct msghdr message = {0};
        union outbox_descriptor room;
        ssize_t n;

        batch_make(outbox);
        if (batch.n_bytes == 0)
                return false;

        message.msg_iov = batch.iov;
        message.msg_iovlen = batch.n_iov;
        if (batch.fd >= 0)
                batch_attach(&message, &room, batch.fd);
        do {
                n = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        } while (n < 0 && errno == EINTR);
        ++connection->server->counters.writes;

        if (n < 0 && errno == ETOOMANYREFS) {
                /* it has too many descriptors to read: what lies in this segment comes otherwise */
                outbox_advance(outbox, 0);
                if (batch.handed)
                        nd_handed_refuse(batch.handed);
                else
                        outbox_drop_fd(outbox);
                return true;
        }
        if (n < 0 && errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM) {
                nd_assert(!outbox_is_bug(errno));
                outbox_advance(outbox, 0);
                nd_connection_mark_broken(connection);
                return false;
        }
        if (n > 0)
                outbox->last_move_ns = connection->server->now_ns;
        outbox_advance(outbox, n > 0 ? (size_t)n : 0);
        outbox->is_blocked = n < 0 || (size_t)n < batch.n_bytes;
        return !outbox->is_blocked;
}

void nd_outbox_write(struct nd_outbox *outbox)
{
        struct nd_connection *connection = outbox->connection;

        if (connection->state >= ND_CONNECTION_CLOSING || connection->is_broken)
                return;
        for (unsigned i = 0; outbox_write_batch(outbox); ++i) {
                if (i == OUTBOX_TURNS_MAX && nd_outbox_has_output(outbox)) {
                        outbox->is_blocked = true; /* the others have their turn first */
                        break;
                }
        }
        if (connection->is_held)
                nd_connection_mark_dirty(connection);
        nd_connection_update_events(connection);
}
