/* SPDX-License-Identifier: MIT */

/*
 * Embedded daemon
 *
 * What the server keeps between sessions must be nothing: the memory that is charged when all
 * clients have gone is compared with none, and its router, its messages, its waiting lists are
 * looked at one by one. All clients on Unix sockets are one user, who has limits that are met often.
 */

#include "tests/support/embedded.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/sink.h"
#include "daemon/slow.h"
#include "protocol/hello.h"

#define EMBEDDED_READ_BYTES (256u * 1024u)
#define EMBEDDED_LIMITS     "anyone queued=64K,retained=1M,held=512K"

static struct nd_server server;

static const struct nd_options options_base = {
        .memory_max = 8 * ND_MIB,
        .message_max = 4 * ND_MIB,
        .shm_max = 4 * ND_MIB,
        .shm_own_max = ND_MIB,
        .header_max = ND_HEADER_BYTES_MAX,
        .meta_max = ND_META_BYTES_MAX,
        .clients_max = 16,
        .subscriptions_max = 64,
        .block_timeout_ms = 60000,
        .log_level = ND_LOG_ERROR,
};

/* The linker puts it in getrandom()'s place: with a nonce that nobody foresees no input could hold a
 * right proof. */
ssize_t __wrap_getrandom(void *buffer, size_t n, unsigned flags);
ssize_t __real_getrandom(void *buffer, size_t n, unsigned flags);

ssize_t __wrap_getrandom(void *buffer, size_t n, unsigned flags)
{
        uint8_t *nonce = buffer;

        if (n != ND_TOKEN_NONCE_BYTES)
                return __real_getrandom(buffer, n, flags);
        for (size_t i = 0; i < n; ++i)
                nonce[i] = (uint8_t)i;
        return (ssize_t)n;
}

struct nd_server *nd_embedded_server(void)
{
        static bool is_there;
        struct nd_options options = options_base;

        if (!is_there) {
                nd_log_set_level(ND_LOG_ERROR);
                nd_assert(nd_limits_add(&options.limits, EMBEDDED_LIMITS, "limit", NULL) == 0);
                nd_assert(nd_server_init(&server, &options) == 0);
                is_there = true;
        }
        return &server;
}

void nd_embedded_set(const struct nd_embedded_setting *settings, size_t n_settings)
{
        struct nd_options changed = options_base;
        uint64_t seen = 0;

        nd_embedded_server();
        for (size_t i = 0; i < n_settings; ++i)
                nd_assert(nd_options_set(&changed, settings[i].name, settings[i].value, 0, &seen,
                                         NULL) == 0);
        if (!changed.limits)
                nd_assert(nd_limits_add(&changed.limits, EMBEDDED_LIMITS, "limit", NULL) == 0);
        if (server.n_connections == 0)
                server.options.insecure_anyone = changed.insecure_anyone;
        changed.insecure_anyone = server.options.insecure_anyone;
        nd_server_apply(&server, &changed);
        nd_server_settle(&server);
}

void nd_embedded_run(unsigned n)
{
        for (unsigned i = 0; i < n; ++i)
                uv_run(&server.loop, UV_RUN_NOWAIT);
}

void nd_embedded_later(uint64_t ms)
{
        uint64_t now_ns = uv_hrtime() + ms * UINT64_C(1000000);

        server.now_ns = now_ns;
        nd_list_for_each (i, &server.connections)
                nd_connection_tick(nd_list_entry(i, struct nd_connection, in_server), now_ns);
        nd_slow_end(&server);
        nd_arena_trim(&server.store.arena);
        nd_accounts_sweep(&server.accounts, now_ns);
        (void)nd_own_trim(&server, ND_OWN_IDLE_NS);
        nd_server_settle(&server);
}

/* --------------------------------------------------------------------------------- invariants */

const struct nd_segment *nd_embedded_segment(void)
{
        static struct nd_segment segment;
        struct nd_room room;

        if (!segment.base) {
                nd_room_read("", &room);
                nd_assert(nd_segment_create(ND_EMBEDDED_SEGMENT_BYTES, &room, &segment, NULL) == 0);
                for (uint64_t i = 0; i < segment.bytes; ++i)
                        segment.base[i] = (uint8_t)(31 * i + 7);
        }
        return &segment;
}

static void check_share(struct nd_share *share)
{
        uint64_t wanted_bytes = 0, end = 0;
        size_t n = 0, n_wanted = 0;
        struct nd_block *block;

        RB_FOREACH (block, nd_block_tree, &share->blocks) {
                ++n;
                n_wanted += block->n_wants > 0;
                wanted_bytes += block->n_wants > 0 ? block->bytes : 0;
                nd_assert(block->n_wants <= 1); /* its message */
                nd_assert((block->n_wants == 1) == (block->message != NULL));
                /* what nobody needs is on its way to the publisher, who is there to be told */
                nd_assert((block->n_wants == 0 && block->n_holds == 0) ==
                          !nd_list_is_empty(&block->in_released));
                nd_assert(!share->own ||
                          (nd_list_is_empty(&block->in_released) && block->place >= end));
                end = block->place + block->bytes;
        }
        nd_assert(share->n_blocks == n);
        nd_assert(share->n_wanted == n_wanted);
        nd_assert(share->wanted_bytes == wanted_bytes);
        nd_assert(share->memory.fd >= 0);
        nd_assert(!share->owner || !share->own);
        nd_assert(share->owner || share->own || n_wanted > 0);
        if (share->own) {
                nd_assert(share->charged_bytes == share->memory.bytes);
                nd_assert(share->own->blocks.n_used == n);
        } else if (!share->owner) {
                nd_assert(share->charged_bytes == share->memory.bytes - wanted_bytes);
        }
}

/* A member that has anything is at work on one message, and those are what its group's limits spare. */
static void check_group(const struct nd_sink *sink)
{
        uint64_t n = 0, n_bytes = 0;

        nd_list_for_each (i, &sink->members) {
                const struct nd_subscription *member =
                        nd_list_entry(i, struct nd_subscription, in_sink);

                nd_assert(!member->at_work == (member->messages_out + member->n_assigned == 0));
                if (!member->at_work)
                        continue;
                nd_assert(member->at_work->subscription == member);
                ++n;
                n_bytes += member->at_work->message->body_bytes;
        }
        nd_assert(sink->queue.n_at_work == n);
        nd_assert(sink->queue.n_at_work_bytes == n_bytes);
}

static void check_queue(const struct nd_queue *queue)
{
        uint64_t n = 0, n_bytes = 0, n_over = 0;

        nd_list_for_each (i, &queue->entries) {
                const struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_queue);

                nd_assert(entry->state == ND_ENTRY_QUEUED);
                nd_assert(entry->message->is_complete);
                nd_assert(n_over == 0 || entry->is_over); /* they are the newest */
                ++n;
                n_bytes += entry->message->body_bytes;
                n_over += entry->is_over;
        }
        nd_assert(queue->n_messages == n);
        nd_assert(queue->n_bytes == n_bytes);
        nd_assert(queue->n_over == n_over);
        nd_assert(queue->n_matched == queue->n_delivered + nd_queue_dropped(queue) + n);
        if (queue->policy == ND_POLICY_BLOCK) /* only what a group's members have is bounded */
                n = n_bytes = 0;
        n += queue->n_outside - queue->n_at_work;
        n_bytes += queue->n_outside_bytes - queue->n_at_work_bytes;
        nd_assert(n <= queue->depth_messages || n == 1);
        nd_assert(n_bytes <= queue->depth_bytes || n == 1);
}

/* What the connections of an identity have, and what it has left behind. */
static void check_account(const struct nd_account *account)
{
        uint64_t used[_ND_LIMIT_N] = {0};
        struct nd_topic *topic;

        nd_list_for_each (i, &server.connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);
                struct nd_subscription *subscription;

                if (connection->quota.account != account)
                        continue;
                RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions) {
                        const struct nd_sink *sink = subscription->sink;

                        if (sink->members.next == &subscription->in_sink) /* a group once */
                                used[ND_LIMIT_QUEUED] += sink->queue.charged_bytes;
                }
                ++used[ND_LIMIT_CONNECTIONS];
                used[ND_LIMIT_SUBSCRIPTIONS] += connection->n_subscriptions;
                used[ND_LIMIT_TOPICS] += connection->publisher.n_pairs + connection->n_watches;
                used[ND_LIMIT_HELD] += connection->holder.held_bytes;
        }
        RB_FOREACH (topic, nd_topic_tree, &server.router.topics) {
                if (topic->retained && topic->retained_by == account)
                        used[ND_LIMIT_RETAINED] += topic->retained->cost_bytes;
        }
        for (size_t i = 0; i < _ND_LIMIT_N; ++i)
                nd_assert(account->used[i] == used[i]);
}

static void check_connection(struct nd_connection *connection)
{
        const struct nd_options *options = &server.options;
        const struct nd_publisher *publisher = &connection->publisher;
        struct nd_subscription *subscription;

        nd_assert(publisher->left_bytes + publisher->due_bytes <= publisher->window_bytes);
        RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions) {
                const struct nd_sink *sink = subscription->sink;

                check_queue(&sink->queue);
                if (nd_sink_is_group(sink))
                        check_group(sink);
                if (sink->members.next == &subscription->in_sink)
                        nd_assert(sink->queue.quota == &connection->quota);
        }
        if (connection->state != ND_CONNECTION_OPEN || connection->closes_after_output)
                return;
        nd_assert(connection->quota.account);
        nd_assert(!connection->rights == !options->rules);
        nd_assert(!connection->is_tcp || !options->tokens || options->insecure_anyone ||
                  connection->token[0]);
}

void nd_embedded_check(void)
{
        uint64_t retained_bytes = 0;
        struct nd_account *account;
        struct nd_topic *topic;

        nd_list_for_each (i, &server.connections)
                check_connection(nd_list_entry(i, struct nd_connection, in_server));
        RB_FOREACH (topic, nd_topic_tree, &server.router.topics)
                retained_bytes += topic->retained ? topic->retained->charged_bytes : 0;
        nd_assert(server.retained_bytes == retained_bytes);
        RB_FOREACH (account, nd_account_tree, &server.accounts.tree)
                check_account(account);
        nd_assert(server.accounts.n <= 3); /* the user, the token, who came by TCP without one */
        nd_list_for_each (i, &server.shares)
                check_share(nd_list_entry(i, struct nd_share, in_server));
        nd_assert(server.store.messages_bytes <= server.store.memory.used_bytes);
        nd_assert(server.retained_bytes <= server.store.messages_bytes);
        nd_assert(server.store.arena.n_used * ND_BLOCK_BYTES <=
                  server.store.memory.max_bytes + 16 * ND_BLOCK_BYTES);
}

void nd_embedded_check_empty(void)
{
        struct nd_topic *topic, *next;

        /* what is retained comes out of the segments of those who have gone */
        while (!nd_list_is_empty(&server.rescues))
                nd_embedded_run(1);
        RB_FOREACH_SAFE (topic, nd_topic_tree, &server.router.topics, next) {
                struct nd_message *message = nd_steal(topic->retained);

                /* only what is retained keeps a topic */
                nd_assert(message && topic->n_refs == (message->copy ? 2 : 1));
                server.retained_bytes -= message->charged_bytes;
                topic->retained_by->used[ND_LIMIT_RETAINED] -= message->cost_bytes;
                nd_account_unref(nd_steal(topic->retained_by));
                nd_message_unref(message);
        }
        nd_accounts_sweep(&server.accounts,
                          UINT64_MAX); /* who published too fast is kept a while */
        nd_assert(server.accounts.n == 0);
        (void)nd_own_trim(&server, 0); /* behind them, because they may lie there */
        nd_assert(server.n_connections == 0);
        nd_assert(server.n_refused == 0);
        nd_assert(server.n_denied == 0);
        nd_assert(server.router.n_topics == 0);
        nd_assert(server.router.n_patterns == 1);
        nd_assert(server.router.n_routes == 0);
        nd_assert(server.store.n_messages == 0);
        nd_assert(server.store.messages_bytes == 0);
        nd_assert(server.store.arena.n_used == 0);
        nd_assert(server.retained_bytes == 0);
        nd_assert(server.grown_bytes == 0);
        nd_assert(server.store.memory.used_bytes == 0);
        nd_assert(nd_list_is_empty(&server.dirty));
        nd_assert(nd_list_is_empty(&server.closing));
        nd_assert(nd_list_is_empty(&server.groups));
        nd_assert(nd_list_is_empty(&server.slow));
        nd_assert(nd_list_is_empty(&server.lead));
        nd_assert(nd_list_is_empty(&server.memory_waiters));
        nd_assert(nd_list_is_empty(&server.shares));
        nd_assert(nd_list_is_empty(&server.rescues));
        nd_assert(server.n_shares == 0);
        nd_assert(server.shares_bytes == 0);
}

/* --------------------------------------------------------------------------------------- peers */

void nd_embedded_open(struct nd_embedded_peer *peer, bool is_tcp)
{
        int fds[2];

        *peer = (struct nd_embedded_peer){.fd = -1};
        nd_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        peer->fd = fds[0];
        nd_assert(nd_connection_new(nd_embedded_server(), fds[1], is_tcp, 0) == 0);
}

void nd_embedded_close(struct nd_embedded_peer *peer)
{
        if (peer->fd >= 0)
                close(peer->fd);
        for (size_t i = 0; i < peer->n_fds; ++i)
                close(peer->fds[i]);
        free(peer->buffer);
        *peer = (struct nd_embedded_peer){.fd = -1, .has_ended = true};
}

bool nd_embedded_send(struct nd_embedded_peer *peer, const void *bytes, size_t n_bytes)
{
        const uint8_t *at = bytes;

        for (unsigned n_full = 0; n_bytes > 0 && !peer->has_ended;) {
                ssize_t n = send(peer->fd, at, n_bytes, MSG_NOSIGNAL);

                if (n > 0) {
                        at += n;
                        n_bytes -= (size_t)n;
                        n_full = 0;
                } else if (n < 0 && errno == EAGAIN) {
                        if (++n_full == 64)
                                return false;
                        nd_embedded_run(1);
                } else {
                        peer->has_ended = true;
                }
        }
        return true;
}

void nd_embedded_send_fd(struct nd_embedded_peer *peer, const void *bytes, size_t n_bytes, int fd)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(sizeof(int))];
        } room = {0};
        struct iovec iov = {(void *)(uintptr_t)bytes, n_bytes};
        struct msghdr message = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &room,
                .msg_controllen = sizeof(room),
        };
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        ssize_t n;

        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(control), &fd, sizeof(int));
        for (unsigned i = 0; i < 64 && !peer->has_ended; ++i) {
                n = sendmsg(peer->fd, &message, MSG_NOSIGNAL);
                if (n > 0) {
                        (void)nd_embedded_send(peer, (const uint8_t *)bytes + n,
                                               n_bytes - (size_t)n);
                        return;
                }
                peer->has_ended = errno != EAGAIN;
                nd_embedded_run(1);
        }
}

int nd_embedded_take_fd(struct nd_embedded_peer *peer)
{
        int fd = peer->fds[0];

        nd_assert(peer->n_fds > 0);
        memmove(peer->fds, peer->fds + 1, --peer->n_fds * sizeof(int));
        return fd;
}

/* recv() that keeps the descriptors that come. */
static ssize_t peer_receive(struct nd_embedded_peer *peer, uint8_t *at, size_t n_bytes)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(8 * sizeof(int))];
        } room;
        struct iovec iov = {at, n_bytes};
        struct msghdr message = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &room,
                .msg_controllen = sizeof(room),
        };
        ssize_t n = recvmsg(peer->fd, &message, MSG_CMSG_CLOEXEC);
        const struct cmsghdr *control = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

        if (!control)
                return n;
        nd_assert(control->cmsg_len == CMSG_LEN(sizeof(int))); /* one a call */
        nd_assert(peer->n_fds < nd_array_size(peer->fds));
        memcpy(&peer->fds[peer->n_fds++], CMSG_DATA(control), sizeof(int));
        return n;
}

static size_t packet_take(struct nd_embedded_peer *peer,
                          size_t i,
                          void (*take)(void *, const struct nd_packet *, const uint8_t *),
                          void *userdata)
{
        static const struct nd_reader_limits limits = {
                .direction = ND_FROM_DAEMON,
                .header_bytes_max = ND_HEADER_BYTES_MAX,
                .meta_bytes_max = ND_META_BYTES_MAX,
                .features = ND_FEATURE_SHM | ND_FEATURE_RING,
        };
        struct nd_packet packet;
        size_t n, n_wanted;
        int r;

        r = nd_reader_next(&limits, peer->buffer + i, peer->n_buffer - i, &packet, &n_wanted, NULL);
        nd_assert(r >= 0);
        if (r > 0)
                return 0;
        n = packet.n_bytes + (packet.body ? 0 : (size_t)nd_prelude_inline_bytes(&packet.prelude));
        if (n > peer->n_buffer - i)
                return 0;
        take(userdata, &packet, packet.body ? packet.body : peer->buffer + i + packet.n_bytes);
        return n;
}

static void peer_take_packets(struct nd_embedded_peer *peer,
                              void (*take)(void *, const struct nd_packet *, const uint8_t *),
                              void *userdata)
{
        struct nd_hello_reply reply;
        size_t i = 0, n;

        if (!peer->is_greeted) {
                if (peer->n_buffer < ND_HELLO_BYTES)
                        return;
                nd_assert(nd_hello_reply_unpack(peer->buffer, peer->n_buffer, &reply) == 0);
                peer->is_greeted = true;
                i = ND_HELLO_BYTES;
        }
        while ((n = packet_take(peer, i, take, userdata)) > 0)
                i += n;
        peer->n_buffer -= i;
        if (i > 0)
                memmove(peer->buffer, peer->buffer + i, peer->n_buffer);
}

void nd_embedded_read(struct nd_embedded_peer *peer,
                      size_t n_bytes_max,
                      void (*take)(void *userdata,
                                   const struct nd_packet *packet,
                                   const uint8_t *body),
                      void *userdata)
{
        while (peer->fd >= 0 && n_bytes_max > 0) {
                size_t n_ask =
                        n_bytes_max < EMBEDDED_READ_BYTES ? n_bytes_max : EMBEDDED_READ_BYTES;
                ssize_t n;

                if (peer->n_buffer + n_ask > peer->n_buffer_max) {
                        peer->n_buffer_max = 2 * (peer->n_buffer + n_ask);
                        peer->buffer = realloc(peer->buffer, peer->n_buffer_max);
                        nd_assert(peer->buffer);
                }
                n = peer_receive(peer, peer->buffer + peer->n_buffer, n_ask);
                if (n <= 0) {
                        peer->has_ended = n == 0 || errno != EAGAIN;
                        return;
                }
                peer->n_buffer += (size_t)n;
                n_bytes_max -= (size_t)n;
                peer_take_packets(peer, take, userdata);
        }
}
