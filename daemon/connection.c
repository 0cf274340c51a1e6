/* SPDX-License-Identifier: MIT */

/*
 * Connection
 *
 * Reading: one recvmsg() a wake-up puts bytes where they belong. While a body is under way its rest
 * goes straight to the message's blocks, with a look-ahead of one packet's lead behind it; between
 * bodies a buffer that all connections share takes what comes, and of a packet that is not whole
 * only the part that is there is kept. So ten thousand idle connections hold no buffers.
 *
 * Closing: whoever finds a reason only marks the connection, because the reason is often found deep
 * inside a delivery that others are part of. nd_server_settle() closes what is marked, and the
 * memory goes when the loop has let go of the handle.
 */

#include "daemon/connection.h"
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/admission.h"
#include "daemon/request.h"
#include "daemon/server.h"
#include "daemon/slow.h"

#define CONNECTION_LAST_WORDS_MS   1000u /* an ERROR that closes may take so long to be sent */
#define CONNECTION_LEAD_BYTES      (64u * 1024u) /* bodies from here on are not read past */
#define CONNECTION_STASH_BYTES_MIN 512u
#define CONNECTION_LAST_READS_MAX  1024u  /* what a socket's buffer may hold, one packet a read */
#define CONNECTION_HALF_MS         60000u /* a half-sent packet that does not move for so long */

static int nd_subscription_compare(struct nd_subscription *a, struct nd_subscription *b)
{
        return (a->id > b->id) - (a->id < b->id);
}

RB_GENERATE(nd_subscription_tree, nd_subscription, in_connection, nd_subscription_compare)

static void connection_on_event(uv_poll_t *poll, int status, int events);

/* --------------------------------------------------------------------------------------- opening */

static void connection_describe(struct nd_connection *connection)
{
        struct ucred who = {0};
        socklen_t n = sizeof(who);
        struct sockaddr_storage address;
        char host[64];

        if (!connection->is_tcp) {
                if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0)
                        snprintf(connection->peer, sizeof(connection->peer), "unix uid=%u pid=%d",
                                 who.uid, who.pid);
                connection->peer_pid = who.pid;
                return;
        }
        n = sizeof(address);
        if (getpeername(connection->fd, (struct sockaddr *)&address, &n) < 0)
                return;
        if (nd_listener_format_address(&address, host, sizeof(host)))
                snprintf(connection->peer, sizeof(connection->peer), "tcp %s", host);
}

static void connection_tune(const struct nd_connection *connection)
{
        static const struct {
                bool is_tcp;
                int level;
                int name;
                int value;
        } options[] = {
                {false, SOL_SOCKET, SO_SNDBUF, ND_UNIX_SEND_BUFFER_BYTES},
                {true, IPPROTO_TCP, TCP_NODELAY, 1},
                {true, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 128 * 1024},
                {true, SOL_SOCKET, SO_KEEPALIVE, 1},
                {true, IPPROTO_TCP, TCP_KEEPIDLE, 10},
                {true, IPPROTO_TCP, TCP_KEEPINTVL, 5},
                {true, IPPROTO_TCP, TCP_KEEPCNT, 3},
        };

        for (size_t i = 0; i < nd_array_size(options); ++i) {
                if (options[i].is_tcp == connection->is_tcp)
                        (void)setsockopt(connection->fd, options[i].level, options[i].name,
                                         &options[i].value, sizeof(int));
        }
}

int nd_connection_new(struct nd_server *server, int fd, bool is_tcp, uint8_t refuse_reason)
{
        struct nd_connection *connection = calloc(1, sizeof(*connection));

        if (!connection) {
                nd_closer_close_socket(&server->closer, fd);
                return -ENOMEM;
        }
        connection->server = server;
        connection->fd = fd;
        connection->is_tcp = is_tcp;
        connection->refuse_reason = refuse_reason;
        connection->state = refuse_reason ? ND_CONNECTION_REFUSED : ND_CONNECTION_HELLO;
        connection->deadline_ns = server->now_ns + ND_HANDSHAKE_TIMEOUT_MS * UINT64_C(1000000);
        nd_list_init(&connection->in_dirty);
        nd_list_init(&connection->in_closing);
        nd_list_init(&connection->watches);
        nd_list_init(&connection->dirty_watches);
        RB_INIT(&connection->subscriptions);
        nd_publisher_init(&connection->publisher, connection);
        nd_intake_init(&connection->intake);
        nd_outbox_init(&connection->outbox, connection);
        nd_lender_init(&connection->lender);
        nd_holder_init(&connection->holder);
        connection_tune(connection);
        connection_describe(connection);

        if (uv_poll_init(&server->loop, &connection->poll, fd) < 0) {
                nd_closer_close_socket(&server->closer, fd);
                free(connection);
                return -ENOMEM;
        }
        nd_list_push_tail(&server->connections, &connection->in_server);
        ++server->n_connections;
        server->n_refused += refuse_reason != 0;
        nd_admission_arrive(connection);
        nd_connection_update_events(connection);
        return 0;
}

void nd_connection_update_events(struct nd_connection *connection)
{
        int events = 0;

        if (connection->state >= ND_CONNECTION_CLOSING)
                return;
        if (!nd_outbox_is_full(&connection->outbox) && !connection->is_held &&
            connection->state != ND_CONNECTION_DENIED)
                events |= UV_READABLE;
        if (connection->outbox.is_blocked)
                events |= UV_WRITABLE;
        if (events == connection->events)
                return;
        connection->events = events;
        if (uv_poll_start(&connection->poll, events, connection_on_event) < 0)
                nd_connection_mark_closing(connection);
}

void nd_connection_mark_dirty(struct nd_connection *connection)
{
        if (nd_list_is_empty(&connection->in_dirty) && connection->state < ND_CONNECTION_CLOSING)
                nd_list_push_tail(&connection->server->dirty, &connection->in_dirty);
}

/* --------------------------------------------------------------------------------------- closing */

void nd_connection_mark_closing(struct nd_connection *connection)
{
        if (connection->state >= ND_CONNECTION_CLOSING)
                return;
        connection->state = ND_CONNECTION_CLOSING;
        nd_list_unlink(&connection->in_closing);
        nd_list_push_tail(&connection->server->closing, &connection->in_closing);
}

void nd_connection_mark_broken(struct nd_connection *connection)
{
        if (connection->state >= ND_CONNECTION_CLOSING || connection->is_broken)
                return;
        connection->is_broken = true;
        nd_list_push_tail(&connection->server->broken, &connection->in_closing);
}

/* The peer may still be sending: closing now would throw away what it has not read yet. So the
 * sending side is shut when the last word is out, and the rest is read and discarded. */
void nd_connection_end_after_output(struct nd_connection *connection)
{
        connection->closes_after_output = true;
        connection->deadline_ns =
                connection->server->now_ns + CONNECTION_LAST_WORDS_MS * UINT64_C(1000000);
        nd_connection_mark_dirty(connection);
}

void nd_connection_error(struct nd_connection *connection,
                         const struct nd_fault *fault,
                         uint8_t of,
                         uint64_t sequence)
{
        struct nd_prelude prelude = {.kind = ND_KIND_ERROR, .sequence = sequence};
        struct nd_error_header said = nd_error_header_from_fault(fault, of, false);
        struct nd_control_bytes header;

        nd_error_header_pack(&said, &header);
        nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
}

void nd_connection_fail(struct nd_connection *connection,
                        const struct nd_fault *fault,
                        uint8_t of,
                        uint64_t sequence)
{
        struct nd_server *server = connection->server;
        struct nd_prelude prelude = {.kind = ND_KIND_ERROR, .sequence = sequence};
        struct nd_error_header said = nd_error_header_from_fault(fault, of, true);
        struct nd_control_bytes header;

        if (connection->closes_after_output || connection->state >= ND_CONNECTION_CLOSING)
                return;
        ++server->counters.protocol_errors;
        nd_log_limited(&server->protocol_log, server->now_ns, ND_LOG_WARNING,
                       "closing connection peer=\"%s\" client=\"%s\" error=%s field=\"%s\": %s",
                       connection->peer, connection->client, ndbus_errname(fault->code),
                       fault->field, fault->text);
        if (connection->state == ND_CONNECTION_HELLO ||
            connection->state ==
                    ND_CONNECTION_REFUSED) { /* no packet comes before the answer to it */
                nd_connection_mark_closing(connection);
                return;
        }
        nd_error_header_pack(&said, &header);
        nd_outbox_control(&connection->outbox, &prelude, &header, NULL, 0);
        nd_connection_end_after_output(connection);
}

static void connection_on_closed(uv_handle_t *handle)
{
        free(nd_container_of((uv_poll_t *)handle, struct nd_connection, poll));
}

void nd_connection_close(struct nd_connection *connection)
{
        struct nd_server *server = connection->server;
        struct nd_subscription *subscription;

        nd_assert(connection->state == ND_CONNECTION_CLOSING);
        nd_list_unlink(&connection->in_closing);
        nd_list_unlink(&connection->in_dirty);
        nd_list_unlink(&connection->in_server);
        --server->n_connections;
        server->n_refused -= connection->refuse_reason != 0;

        while ((subscription = RB_ROOT(&connection->subscriptions)))
                nd_subscription_free(subscription);
        nd_request_unwatch_all(connection);
        nd_intake_deinit(connection);
        nd_publisher_deinit(&connection->publisher);
        nd_outbox_deinit(&connection->outbox);
        nd_lender_deinit(&connection->lender);
        nd_holder_deinit(&connection->holder);
        nd_descriptors_deinit(&connection->descriptors, &server->closer);
        nd_connection_unstash(connection);
        nd_admission_end(connection);
        connection->state = ND_CONNECTION_CLOSED;
        uv_poll_stop(&connection->poll);
        if (connection->is_tcp)
                close(connection->fd);
        else
                nd_closer_close_socket(&server->closer, connection->fd);
        uv_close((uv_handle_t *)&connection->poll, connection_on_closed);
}

/* --------------------------------------------------------------------------------------- packets */

struct nd_subscription *nd_connection_subscription(struct nd_connection *connection, uint32_t id)
{
        struct nd_subscription key = {.id = id};

        return RB_FIND(nd_subscription_tree, &connection->subscriptions, &key);
}

/* CONNECT comes first, and once. Said at the first byte, so that before CONNECT nothing large is
 * ever waited for. */
static int connection_check_handshake(const struct nd_connection *connection,
                                      const uint8_t *data,
                                      size_t n_data,
                                      struct nd_fault *fault)
{
        bool is_before = connection->state == ND_CONNECTION_CONNECT;
        bool is_proving = connection->state == ND_CONNECTION_AUTH;

        if (n_data == 0 || connection->state == ND_CONNECTION_GOODBYE ||
            (is_before == (data[0] == ND_KIND_CONNECT) && is_proving == (data[0] == ND_KIND_AUTH)))
                return 0;
        return nd_fault_set(fault, NDBUS_EHANDSHAKE, "kind", "%s comes %s", nd_kind_name(data[0]),
                            is_before    ? "before CONNECT"
                            : is_proving ? "where AUTH is awaited"
                                         : "after CONNECT");
}

/* It has been answered; but for the blocks that it gives back, what still comes is of no interest. */
static int connection_take_late(struct nd_connection *connection,
                                const struct nd_packet *packet,
                                struct nd_fault *fault)
{
        const struct nd_prelude *prelude = &packet->prelude;
        int fd;

        if (prelude->kind == ND_KIND_RELEASE)
                return nd_ledger_release(connection, packet, fault);
        if (prelude->kind == ND_KIND_PUBLISH || prelude->kind == ND_KIND_CHUNK)
                connection->publisher.in.packet_left = nd_prelude_inline_bytes(prelude);
        if (prelude->flags & ND_FLAG_FD) {
                fd = nd_descriptors_take(&connection->descriptors);
                nd_closer_close(&connection->server->closer, &fd, fd >= 0);
        }
        return 0;
}

static int connection_take_packet(struct nd_connection *connection,
                                  const struct nd_packet *packet,
                                  struct nd_fault *fault)
{
        const struct nd_prelude *prelude = &packet->prelude;

        if (connection->state == ND_CONNECTION_GOODBYE)
                return connection_take_late(connection, packet, fault);
        switch (prelude->kind) {
        case ND_KIND_PUBLISH:
                connection->last_lead_bytes =
                        !(prelude->flags & ND_FLAG_BODY_IN_BLOCK) &&
                                        prelude->body_bytes >= CONNECTION_LEAD_BYTES
                                ? prelude->header_bytes + prelude->meta_bytes
                                : 0;
                return nd_publisher_publish(&connection->publisher, packet, fault);
        case ND_KIND_CHUNK:
                return nd_publisher_chunk(&connection->publisher, prelude, fault);
        case ND_KIND_RESET:
                return nd_publisher_reset(&connection->publisher, prelude, fault);
        default:
                return nd_request_take(connection, packet, fault);
        }
}

/* Takes packets and body bytes out of @data as far as they are whole. Returns how many bytes were
 * taken; *@ret_wanted is how many a packet that is not whole needs in all. */
static size_t connection_take(struct nd_connection *connection,
                              const uint8_t *data,
                              size_t n_data,
                              size_t *ret_wanted)
{
        struct nd_publisher *publisher = &connection->publisher;
        struct nd_reader_limits limits = {
                .direction = ND_FROM_CLIENT,
                .header_bytes_max = (uint32_t)connection->server->options.header_max,
                .meta_bytes_max = (uint32_t)connection->server->options.meta_max,
                .features = connection->features,
        };
        struct nd_packet packet;
        struct nd_fault fault;
        size_t i = 0;

        *ret_wanted = 0;
        while (connection->state < ND_CONNECTION_CLOSING && !connection->closes_after_output &&
               connection->state != ND_CONNECTION_DENIED) {
                size_t n_body = (size_t)nd_min_u64(publisher->in.packet_left, n_data - i);
                uint8_t kind = 0;
                uint64_t sequence = 0;
                int r;

                if (publisher->in.packet_left > 0) {
                        if (n_body == 0)
                                break;
                        nd_publisher_append(publisher, data + i, n_body);
                        i += n_body;
                        continue;
                }
                nd_intake_take(connection);
                if (connection->closes_after_output || connection->state >= ND_CONNECTION_CLOSING)
                        break;
                if (i < n_data && nd_outbox_is_full(&connection->outbox)) {
                        connection->is_held = true;
                        nd_connection_mark_dirty(connection);
                        *ret_wanted = n_data - i;
                        break;
                }
                r = connection_check_handshake(connection, data + i, n_data - i, &fault);
                if (r == 0)
                        r = nd_reader_next(&limits, data + i, n_data - i, &packet, ret_wanted,
                                           &fault);
                if (r > 0)
                        break;
                if (r == 0) {
                        kind = packet.prelude.kind;
                        sequence = packet.prelude.sequence;
                        r = connection_take_packet(connection, &packet, &fault);
                        limits.features = connection->features; /* CONNECT settles them */
                        i += packet.n_bytes;
                }
                if (r < 0) {
                        nd_connection_fail(connection, &fault, kind, sequence);
                        return n_data;
                }
        }
        if (connection->closes_after_output || connection->state == ND_CONNECTION_DENIED)
                return n_data;
        return i;
}

/* The hello is fixed bytes in front of the first packet. Returns how many bytes were taken. */
static size_t connection_take_hello(struct nd_connection *connection,
                                    const uint8_t *data,
                                    size_t n_data,
                                    size_t *ret_wanted)
{
        struct nd_server *server = connection->server;
        struct nd_hello hello;
        int r = nd_hello_unpack(data, n_data, &hello);

        if (r == ND_HELLO_E_SHORT) {
                *ret_wanted = ND_HELLO_BYTES;
                return 0;
        }
        if (r != 0) {
                ++server->counters.hello_errors;
                nd_log_limited(&server->hello_log, server->now_ns, ND_LOG_WARNING,
                               "closing connection peer=\"%s\": it does not speak ndbus",
                               connection->peer);
                nd_connection_mark_closing(connection);
                return n_data;
        }
        memcpy(connection->hello, data, sizeof(connection->hello));
        nd_request_answer_hello(connection, &hello);
        return ND_HELLO_BYTES;
}

/* ------------------------------------------------------------------------------------ the stash */

void nd_connection_unstash(struct nd_connection *connection)
{
        nd_memory_discharge(&connection->server->store.memory, connection->n_stash_max);
        free(nd_steal(connection->stash));
        connection->n_stash = 0;
        connection->n_stash_max = 0;
}

/* Memory for @n_bytes more of a packet that is not whole. What a window has room for was charged when
 * the window was granted, so up to that much it is counted and never refused. */
static bool connection_charge_stash(struct nd_connection *connection, size_t n_bytes, uint64_t more)
{
        struct nd_server *server = connection->server;

        if (n_bytes <= ND_SCRATCH_BYTES + ND_PRELUDE_BYTES) {
                nd_memory_charge_anyway(&server->store.memory, more);
                return true;
        }
        return nd_server_charge(server, more);
}

/* Keeps the beginning of a packet that needs @n_wanted bytes in all. */
static void connection_keep(struct nd_connection *connection,
                            const uint8_t *data,
                            size_t n_data,
                            size_t n_wanted)
{
        struct nd_server *server = connection->server;
        size_t n = n_wanted < CONNECTION_STASH_BYTES_MIN ? CONNECTION_STASH_BYTES_MIN : n_wanted;
        struct nd_fault fault;

        if (n > connection->n_stash_max) {
                uint64_t more = n - connection->n_stash_max;
                uint8_t *stash = NULL;

                if (connection_charge_stash(connection, n, more)) {
                        stash = malloc(n);
                        if (!stash)
                                nd_memory_discharge(&server->store.memory, more);
                }
                if (!stash) {
                        nd_memory_fault(&server->store.memory, more, &fault);
                        nd_connection_fail(connection, &fault, 0, 0);
                        return;
                }
                memcpy(stash, data, n_data);
                free(connection->stash);
                connection->stash = stash;
                connection->n_stash_max = n;
        } else {
                memmove(connection->stash, data, n_data);
        }
        connection->n_stash = n_data;
}

/* ---------------------------------------------------------------------------------------- reading */

/* Bytes as they came, what was kept of earlier ones included. */
static void connection_feed(struct nd_connection *connection, const uint8_t *data, size_t n_data)
{
        size_t n_wanted = 0;
        size_t i = 0;

        if (connection->state == ND_CONNECTION_HELLO || connection->state == ND_CONNECTION_REFUSED)
                i = connection_take_hello(connection, data, n_data, &n_wanted);
        if (n_wanted == 0 && connection->state != ND_CONNECTION_REFUSED)
                i += connection_take(connection, data + i, n_data - i, &n_wanted);
        if (connection->state >= ND_CONNECTION_CLOSING || connection->closes_after_output) {
                nd_connection_unstash(connection);
                return;
        }
        if (i < n_data)
                connection_keep(connection, data + i, n_data - i, n_wanted);
        else if (connection->n_stash_max > CONNECTION_STASH_BYTES_MIN)
                nd_connection_unstash(connection);
        else
                connection->n_stash = 0;
}

/* Between packets none is waiting for the packet that takes it: it was not announced. */
static void connection_check_descriptors(struct nd_connection *connection)
{
        struct nd_fault fault;

        if (connection->descriptors.n == 0 || connection->n_stash > 0 ||
            connection->publisher.in.packet_left > 0)
                return;
        nd_descriptors_deinit(&connection->descriptors, &connection->server->closer);
        nd_fault_set(&fault, NDBUS_EFDS, "fd", "a file descriptor came, and no packet took it");
        nd_connection_fail(connection, &fault, 0, 0);
}

void nd_connection_resume(struct nd_connection *connection)
{
        if (!connection->is_held || nd_outbox_is_full(&connection->outbox))
                return;
        connection->is_held = false;
        connection_feed(connection,
                        connection->stash ? connection->stash : connection->server->scratch,
                        connection->n_stash);
        connection_check_descriptors(connection);
}

/* How far behind a body may be read: while large bodies come, exactly what precedes the next. */
static size_t connection_look_ahead(const struct nd_connection *connection)
{
        const struct nd_incoming *in = &connection->publisher.in;

        if (in->is_open && in->place < in->body_bytes)
                return ND_PRELUDE_BYTES;
        if (connection->last_lead_bytes > 0)
                return nd_min_u64(ND_PRELUDE_BYTES + connection->last_lead_bytes, ND_SCRATCH_BYTES);
        return ND_SCRATCH_BYTES;
}

/* Sets up where the next bytes go. Returns how many of them are body bytes with a place. */
static size_t connection_aim(struct nd_connection *connection,
                             struct iovec *iov,
                             size_t n_iov,
                             size_t *ret_n_iov,
                             uint8_t **ret_buffer)
{
        struct nd_server *server = connection->server;
        struct nd_incoming *in = &connection->publisher.in;
        size_t n = 0;
        size_t n_body = 0;

        if (connection->n_stash_max > ND_SCRATCH_BYTES) {
                /* a lead larger than the buffer collects where it is kept */
                *ret_buffer = connection->stash;
                iov[n++] = (struct iovec){
                        .iov_base = connection->stash + connection->n_stash,
                        .iov_len = connection->n_stash_max - connection->n_stash,
                };
                *ret_n_iov = n;
                return 0;
        }
        if (in->packet_left > 0) {
                nd_assert(connection->n_stash == 0);
                nd_publisher_space(&connection->publisher, iov, n_iov - 1, &n);
                for (size_t i = 0; i < n; ++i)
                        n_body += iov[i].iov_len;
        }
        *ret_buffer = server->scratch;
        memcpy(server->scratch, connection->stash ? connection->stash : server->scratch,
               connection->n_stash);
        /* nothing may be read past a body that is not there yet */
        if (n_body == in->packet_left)
                iov[n++] = (struct iovec){
                        .iov_base = server->scratch + connection->n_stash,
                        .iov_len = nd_max_u64(connection_look_ahead(connection),
                                              connection->n_stash + ND_PRELUDE_BYTES) -
                                   connection->n_stash,
                };
        else if (n == 0)
                iov[n++] = (struct iovec){
                        .iov_base = server->scratch,
                        .iov_len = nd_min_u64(in->packet_left, ND_SCRATCH_BYTES),
                };
        *ret_n_iov = n;
        return n_body;
}

/* The peer is gone. What it has written into its ring it may not have had the time to announce. */
static void connection_on_end(struct nd_connection *connection)
{
        nd_intake_take(connection);
        nd_connection_mark_closing(connection);
}

/* Errors of recvmsg() that mean that the peer is gone. */
static void connection_on_read_error(struct nd_connection *connection, int error)
{
        if (error == EAGAIN || error == EINTR || error == ENOMEM || error == ENOBUFS)
                return;
        connection_on_end(connection);
}

/**
 * connection_receive() - one recvmsg()
 * @ret_r:  0; NDBUS_EFDS if descriptors came that cannot be taken, and @fault is filled
 *
 * Return: bytes; 0 if there is nothing to be done: none are there, or the peer is gone
 */
static size_t connection_receive(struct nd_connection *connection,
                                 struct iovec *iov,
                                 size_t n_iov,
                                 int *ret_r,
                                 struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        union nd_descriptors_room room;
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = n_iov};
        ssize_t n;

        *ret_r = 0;
        if (!connection->is_tcp) {
                message.msg_control = &room;
                message.msg_controllen = sizeof(room);
        }
        nd_assert(iov[n_iov - 1].iov_len > 0); /* else 0 bytes would not mean the end */
        n = recvmsg(connection->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        ++server->counters.reads;
        if (n <= 0) {
                if (n == 0)
                        connection_on_end(connection);
                else
                        connection_on_read_error(connection, errno);
                return 0;
        }
        *ret_r = nd_descriptors_add(&connection->descriptors, &server->closer, &message,
                                    connection->features & ND_FEATURE_SHM, fault);
        return (size_t)n;
}

/* Descriptors come next, and the closer is full. Not even to be thrown away may they be read: the kernel
 * would close them here. */
static bool
connection_is_unreadable(const struct nd_connection *connection, struct iovec *iov, size_t n_iov)
{
        return !connection->is_tcp && nd_closer_is_full(&connection->server->closer) &&
               nd_descriptors_are_next(connection->fd, iov, n_iov);
}

static bool connection_has_bytes(const struct nd_connection *connection)
{
        int n = 0;

        return ioctl(connection->fd, FIONREAD, &n) == 0 && n > 0;
}

bool nd_connection_has_input(const struct nd_connection *connection)
{
        return connection->state == ND_CONNECTION_OPEN && !connection->closes_after_output &&
               (connection_has_bytes(connection) || !nd_intake_is_empty(&connection->intake));
}

/* Nothing that it says matters any more but that it closes. */
static void connection_read_over(struct nd_connection *connection)
{
        struct iovec iov = {connection->server->scratch, ND_SCRATCH_BYTES};
        int r;

        if (connection_is_unreadable(connection, &iov, 1)) {
                nd_connection_mark_closing(connection);
                return;
        }
        (void)connection_receive(connection, &iov, 1, &r, NULL);
        nd_descriptors_deinit(&connection->descriptors, &connection->server->closer);
}

/* Reads once. True: a whole lead came, and no more had been asked for. */
static bool connection_read(struct nd_connection *connection)
{
        struct nd_incoming *in = &connection->publisher.in;
        struct iovec iov[ND_PACKET_BODY_BYTES_MAX / ND_BLOCK_BYTES + 3];
        size_t n_iov;
        uint8_t *buffer;
        size_t n_body;
        size_t n_read;
        size_t n_asked;
        size_t n_wanted;
        struct nd_fault fault;
        int r;

        if (connection->closes_after_output) {
                connection_read_over(connection);
                return false;
        }
        if (connection->is_held)
                return false;
        n_body = connection_aim(connection, iov, nd_array_size(iov), &n_iov, &buffer);
        n_asked = n_body == 0 ? iov[0].iov_len : SIZE_MAX;
        if (connection_is_unreadable(connection, iov, n_iov)) {
                (void)nd_server_refuse_descriptors(connection->server, &fault);
                nd_connection_fail(connection, &fault, 0, 0);
                return false;
        }
        n_read = connection_receive(connection, iov, n_iov, &r, &fault);
        if (r < 0) {
                /* the answer to hello goes first */
                if (connection->state == ND_CONNECTION_HELLO && n_read > 0)
                        (void)connection_take_hello(connection, buffer,
                                                    connection->n_stash + n_read, &n_wanted);
                nd_connection_fail(connection, &fault, 0, 0);
                return false;
        }
        if (n_read == 0)
                return false;

        if (n_body > 0) {
                size_t n_placed = nd_min_u64(n_body, n_read);

                nd_publisher_received(&connection->publisher, n_placed);
                n_read -= n_placed;
        } else if (in->packet_left > 0 && !in->message) {
                size_t n_gone = nd_min_u64(in->packet_left, n_read);

                nd_publisher_received(&connection->publisher, n_gone);
                connection_feed(connection, buffer + n_gone, n_read - n_gone);
                connection_check_descriptors(connection);
                return false;
        }
        if (connection->n_stash + n_read > 0)
                connection_feed(connection, buffer, connection->n_stash + n_read);
        else
                nd_intake_take(connection); /* which may have waited for the end of this body */
        connection_check_descriptors(connection);
        return n_read == n_asked && n_asked < ND_SCRATCH_BYTES && in->message &&
               connection->state == ND_CONNECTION_OPEN && !connection->closes_after_output;
}

void nd_connection_read_last(struct nd_connection *connection)
{
        nd_list_unlink(&connection->in_closing);
        for (unsigned i = 0;
             i < CONNECTION_LAST_READS_MAX && connection->state < ND_CONNECTION_CLOSING &&
             !connection->is_held && connection_has_bytes(connection);
             ++i)
                (void)connection_read(connection);
        connection_on_end(connection);
}

static void connection_on_event(uv_poll_t *poll, int status, int events)
{
        struct nd_connection *connection = nd_container_of(poll, struct nd_connection, poll);
        struct nd_server *server = connection->server;

        server->now_ns = uv_hrtime();
        if (status < 0) {
                nd_connection_read_last(connection);
        } else {
                if (events & UV_WRITABLE) {
                        connection->outbox.is_blocked = false;
                        nd_connection_mark_dirty(connection);
                }
                if (events & UV_READABLE) {
                        /* a lead was awaited and came: its body is there as well */
                        if (connection_read(connection))
                                (void)connection_read(connection);
                }
        }
        nd_server_settle(server);
}

/* -------------------------------------------------------------------------------------- deadlines */

/* Dead is a peer whose machine has not acknowledged for long what it was sent; never one that only
 * does not read. */
static bool connection_is_dead(const struct nd_connection *connection)
{
        struct tcp_info info;
        socklen_t n = sizeof(info);

        if (!connection->is_tcp || !connection->outbox.is_blocked)
                return false;
        if (getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &n) < 0)
                return false;
        return (info.tcpi_unacked > 0 && info.tcpi_last_ack_recv > 20000) || info.tcpi_probes >= 4;
}

static void connection_check_subscriptions(struct nd_connection *connection, uint64_t now_ns)
{
        struct nd_subscription *subscription;

        RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions) {
                struct nd_sink *sink = subscription->sink;

                if (sink->members.next != &subscription->in_sink) /* a group once */
                        continue;
                nd_trouble_look(sink, now_ns);
                nd_slow_look(sink);
        }
}

/* Its handshake, or the sending of its last words, took too long. */
static void connection_expire(struct nd_connection *connection)
{
        struct nd_fault fault;

        if (connection->state == ND_CONNECTION_DENIED && !connection->closes_after_output) {
                nd_admission_deny(connection);
                return;
        }
        if (!connection->closes_after_output) {
                ++connection->server->counters.handshake_timeouts;
                if (connection->state == ND_CONNECTION_CONNECT ||
                    connection->state == ND_CONNECTION_AUTH) {
                        nd_fault_set(&fault, NDBUS_EHANDSHAKE,
                                     connection->state == ND_CONNECTION_AUTH ? "AUTH" : "CONNECT",
                                     "did not come within %u ms", ND_HANDSHAKE_TIMEOUT_MS);
                        nd_connection_fail(connection, &fault, 0, 0);
                        return;
                }
        }
        nd_connection_mark_closing(connection);
}

void nd_connection_tick(struct nd_connection *connection, uint64_t now_ns)
{
        struct nd_server *server = connection->server;
        struct nd_outbox *outbox = &connection->outbox;
        const struct nd_half *half = &outbox->half;
        char topic[ND_TOPIC_BYTES_MAX + 1];

        if (connection->state >= ND_CONNECTION_CLOSING)
                return;
        if (connection->deadline_ns != 0 && now_ns >= connection->deadline_ns) {
                connection_expire(connection);
                return;
        }
        if (outbox->half.is_active && connection->holder.n_held == 0 &&
            !nd_list_is_empty(&server->memory_waiters) &&
            now_ns - outbox->last_move_ns >= CONNECTION_HALF_MS * UINT64_C(1000000)) {
                nd_log(ND_LOG_WARNING,
                       "closing connection peer=\"%s\" client=\"%s\" topic=\"%s\" unsent_bytes=%" PRIu64
                       ": memory is short and it has not read for %" PRIu64 " s",
                       connection->peer, connection->client,
                       nd_trouble_topic(half->entry ? half->entry->message->topic : NULL, topic),
                       half->total_bytes - half->sent_bytes,
                       (now_ns - outbox->last_move_ns) / 1000000000);
                nd_connection_mark_closing(connection);
                return;
        }
        if (connection_is_dead(connection)) {
                ++server->counters.dead_peers;
                nd_connection_mark_closing(connection);
                return;
        }
        nd_publisher_tick(&connection->publisher, now_ns);
        connection_check_subscriptions(connection, now_ns);
}
