/* SPDX-License-Identifier: MIT */

/*
 * A scripted daemon
 *
 * Blocking calls throughout: the script is a straight line, and its order is what is tested. It
 * reads packets whole, bodies included, since what it is asked to hold is small.
 */

#include "tests/support/fake-peer.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "protocol/reader.h"

struct fake_peer {
        char folder[32];
        char path[64];
        char url[80];
        pthread_t thread;
        fake_peer_script script;
        void *userdata;
        int listener;
        int fd;
        struct nd_welcome welcome;
        int came;        /* descriptor with the packet at hand; -1: none */
        uint8_t *buffer; /* the packet at hand */
        size_t n_buffer;
        struct fake_packet packet;
};

#define check(_cond)                                                                               \
        do {                                                                                       \
                if (!(_cond)) {                                                                    \
                        fprintf(stderr, "fake peer: %s:%d: not so: %s\n", __FILE__, __LINE__,      \
                                #_cond);                                                           \
                        abort();                                                                   \
                }                                                                                  \
        } while (0)

void fake_peer_listen_again(struct fake_peer *peer)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", peer->path);
        unlink(peer->path);
        peer->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(peer->listener >= 0);
        check(bind(peer->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
        check(listen(peer->listener, 8) == 0);
}

void fake_peer_stop_listening(struct fake_peer *peer)
{
        if (peer->listener >= 0)
                close(peer->listener);
        peer->listener = -1;
        unlink(peer->path);
}

static void *peer_run(void *userdata)
{
        struct fake_peer *peer = userdata;

        peer->script(peer, peer->userdata);
        fake_peer_hang_up(peer);
        return NULL;
}

struct fake_peer *fake_peer_start(fake_peer_script script, void *userdata)
{
        struct fake_peer *peer = calloc(1, sizeof(*peer));

        check(peer);
        snprintf(peer->folder, sizeof(peer->folder), "/tmp/ndbus-fake-XXXXXX");
        check(mkdtemp(peer->folder));
        snprintf(peer->path, sizeof(peer->path), "%s/sock", peer->folder);
        snprintf(peer->url, sizeof(peer->url), "unix:%s", peer->path);
        peer->script = script;
        peer->userdata = userdata;
        peer->fd = peer->came = -1;
        peer->welcome = (struct nd_welcome){
                .source = 0x1234,
                .grant_bytes = 64 * ND_KIB,
                .message_bytes_max = ND_GIB,
                .header_bytes_max = ND_HEADER_BYTES_MAX,
                .meta_bytes_max = ND_META_BYTES_MAX,
                .dims_max = 64,
                .subscriptions_max = 65536,
        };
        fake_peer_listen_again(peer);
        check(pthread_create(&peer->thread, NULL, peer_run, peer) == 0);
        return peer;
}

const char *fake_peer_url(const struct fake_peer *peer)
{
        return peer->url;
}

void fake_peer_end(struct fake_peer *peer)
{
        check(pthread_join(peer->thread, NULL) == 0);
        fake_peer_stop_listening(peer);
        rmdir(peer->folder);
        if (peer->came >= 0)
                close(peer->came);
        free(peer->buffer);
        free(peer);
}

struct nd_welcome *fake_peer_welcome(struct fake_peer *peer)
{
        return &peer->welcome;
}

void fake_peer_hang_up(struct fake_peer *peer)
{
        if (peer->fd >= 0)
                close(peer->fd);
        peer->fd = -1;
}

void fake_peer_accept_bare(struct fake_peer *peer)
{
        fake_peer_hang_up(peer);
        do
                peer->fd = accept4(peer->listener, NULL, NULL, SOCK_CLOEXEC);
        while (peer->fd < 0 && errno == EINTR);
        check(peer->fd >= 0);
}

/* False at the end of the stream. */
static bool read_exactly(struct fake_peer *peer, void *out, size_t n)
{
        ssize_t part;

        for (uint8_t *at = out; n > 0; at += part, n -= (size_t)part) {
                do
                        part = recv(peer->fd, at, n, 0);
                while (part < 0 && errno == EINTR);
                if (part < 0)
                        check(errno == ECONNRESET);
                if (part <= 0)
                        return false;
        }
        return true;
}

/* The first bytes of a packet, and the descriptor that comes with the first of them. */
static bool read_prelude(struct fake_peer *peer, uint8_t out[static ND_PRELUDE_BYTES])
{
        union {
                struct cmsghdr align;
                uint8_t bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = {out, ND_PRELUDE_BYTES};
        struct msghdr msg = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control.bytes),
        };
        struct cmsghdr *head;
        ssize_t n;

        if (peer->came >= 0)
                close(peer->came);
        peer->came = -1;
        do
                n = recvmsg(peer->fd, &msg, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                check(errno == ECONNRESET);
        if (n <= 0)
                return false;
        check(!(msg.msg_flags & MSG_CTRUNC));
        head = CMSG_FIRSTHDR(&msg);
        if (head) {
                check(head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)));
                memcpy(&peer->came, CMSG_DATA(head), sizeof(int));
        }
        return read_exactly(peer, out + n, ND_PRELUDE_BYTES - (size_t)n);
}

int fake_peer_take_fd(struct fake_peer *peer)
{
        int fd = peer->came;

        peer->came = -1;
        return fd;
}

void fake_peer_send_fds(struct fake_peer *peer,
                        const struct nd_prelude *prelude,
                        const int *fds,
                        size_t n_fds)
{
        union {
                struct cmsghdr align;
                uint8_t bytes[CMSG_SPACE(16 * sizeof(int))];
        } control = {0};

        uint8_t bytes[ND_PRELUDE_BYTES];
        struct iovec iov = {bytes, sizeof(bytes)};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control};
        struct cmsghdr *head;

        check(n_fds <= 16);
        nd_prelude_pack(prelude, bytes);
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(head), fds, n_fds * sizeof(int));
        check(sendmsg(peer->fd, &msg, MSG_NOSIGNAL) == sizeof(bytes));
}

struct nd_segment fake_peer_segment(struct fake_peer *peer, uint32_t *ret_number)
{
        const struct nd_prelude p = fake_peer_expect(peer, ND_KIND_SEGMENT)->prelude;
        struct nd_segment segment = ND_SEGMENT_NULL;
        int fd = fake_peer_take_fd(peer);

        check(p.flags == ND_FLAG_FD && fd >= 0);
        check(nd_segment_check(fd, p.place, NULL) == 0);
        check(nd_segment_map_read(fd, p.place, &segment, NULL) == 0);
        *ret_number = p.segment;
        fake_peer_send(peer,
                       &(struct nd_prelude){.kind = ND_KIND_SEGMENT,
                                            .segment = p.segment,
                                            .sequence = p.sequence},
                       NULL, 0, NULL, 0);
        return segment;
}

bool fake_peer_send_bytes(struct fake_peer *peer, const void *bytes, size_t n)
{
        ssize_t part;

        for (const uint8_t *at = bytes; n > 0; at += part, n -= (size_t)part) {
                do
                        part = send(peer->fd, at, n, MSG_NOSIGNAL);
                while (part < 0 && errno == EINTR);
                if (part < 0) {
                        check(errno == EPIPE || errno == ECONNRESET);
                        return false;
                }
        }
        return true;
}

void fake_peer_accept(struct fake_peer *peer)
{
        const struct nd_hello_reply reply = {ND_VERSION, 0, ND_VERSION, ND_VERSION};
        struct nd_control_bytes bytes;
        uint8_t hello[ND_HELLO_BYTES];
        struct nd_hello theirs;
        struct nd_connect connect;
        const struct fake_packet *packet;

        fake_peer_accept_bare(peer);
        check(read_exactly(peer, hello, sizeof(hello)));
        check(nd_hello_unpack(hello, sizeof(hello), &theirs) == 0);
        check(theirs.version_min <= ND_VERSION && theirs.version_max >= ND_VERSION);
        nd_hello_reply_pack(&reply, hello);
        check(fake_peer_send_bytes(peer, hello, sizeof(hello)));

        packet = fake_peer_expect(peer, ND_KIND_CONNECT);
        check(nd_connect_unpack(packet->header, packet->prelude.header_bytes, &connect, NULL) == 0);
        check(packet->prelude.sequence == 1);
        check((peer->welcome.features & ~connect.features) == 0);
        nd_welcome_pack(&peer->welcome, &bytes);
        fake_peer_send(peer,
                       &(struct nd_prelude){.kind = ND_KIND_WELCOME,
                                            .sequence = 1,
                                            .source = peer->welcome.source},
                       bytes.data, bytes.n, NULL, 0);
}

const struct fake_packet *fake_peer_read(struct fake_peer *peer)
{
        const struct nd_reader_limits limits = {
                .direction = ND_FROM_CLIENT,
                .header_bytes_max = ND_HEADER_BYTES_MAX,
                .meta_bytes_max = ND_META_BYTES_MAX,
                .features = peer->welcome.features,
        };
        struct fake_packet *packet = &peer->packet;
        struct nd_packet parsed;
        struct nd_prelude p;
        uint8_t prelude[ND_PRELUDE_BYTES];
        size_t wanted, n_rest;

        if (!read_prelude(peer, prelude))
                return NULL;
        nd_prelude_unpack(prelude, &p);
        check(nd_reader_next(&limits, prelude, sizeof(prelude), &parsed, &wanted, NULL) >= 0);
        check(nd_prelude_inline_bytes(&p) <= ND_PACKET_BODY_BYTES_MAX);
        n_rest = p.header_bytes + p.meta_bytes + (size_t)nd_prelude_inline_bytes(&p);
        if (sizeof(prelude) + n_rest > peer->n_buffer) {
                peer->n_buffer = sizeof(prelude) + n_rest;
                peer->buffer = realloc(peer->buffer, peer->n_buffer);
                check(peer->buffer);
        }
        memcpy(peer->buffer, prelude, sizeof(prelude));
        if (!read_exactly(peer, peer->buffer + sizeof(prelude), n_rest))
                return NULL;
        packet->prelude = p;
        packet->header = peer->buffer + sizeof(prelude);
        packet->meta = packet->header + p.header_bytes;
        packet->body = packet->meta + p.meta_bytes;
        packet->n_body = (size_t)nd_prelude_inline_bytes(&p);
        return packet;
}

const struct fake_packet *fake_peer_expect(struct fake_peer *peer, enum nd_kind kind)
{
        const struct fake_packet *packet;

        do
                packet = fake_peer_read(peer);
        while (packet && packet->prelude.kind == ND_KIND_CREDIT && kind != ND_KIND_CREDIT);
        if (!packet || packet->prelude.kind != kind) {
                fprintf(stderr, "fake peer: %s came, %s was expected\n",
                        packet ? nd_kind_name(packet->prelude.kind) : "the end",
                        nd_kind_name((uint8_t)kind));
                abort();
        }
        return packet;
}

bool fake_peer_has_input(const struct fake_peer *peer)
{
        uint8_t byte;

        return recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

void fake_peer_drain(struct fake_peer *peer)
{
        while (fake_peer_read(peer))
                continue;
}

void fake_peer_send_message(struct fake_peer *peer,
                            const struct nd_prelude *prelude,
                            const void *header,
                            size_t n_header,
                            const void *body,
                            size_t n_body)
{
        struct nd_prelude p = *prelude;
        uint8_t bytes[ND_PRELUDE_BYTES];

        p.header_bytes = (uint32_t)n_header;
        nd_prelude_pack(&p, bytes);
        if (fake_peer_send_bytes(peer, bytes, sizeof(bytes)) &&
            fake_peer_send_bytes(peer, header, n_header))
                fake_peer_send_bytes(peer, body, n_body);
}

void fake_peer_send(struct fake_peer *peer,
                    const struct nd_prelude *prelude,
                    const void *header,
                    size_t n_header,
                    const void *body,
                    size_t n_body)
{
        struct nd_prelude p = *prelude;

        p.body_bytes = n_body;
        fake_peer_send_message(peer, &p, header, n_header, body, n_body);
}

uint32_t fake_peer_subscribed(struct fake_peer *peer)
{
        const struct fake_packet *packet = fake_peer_expect(peer, ND_KIND_SUBSCRIBE);
        struct nd_prelude p = {
                .kind = ND_KIND_SUBSCRIBED,
                .sequence = packet->prelude.sequence,
                .subscription = packet->prelude.subscription,
        };
        struct nd_subscribe subscribe;
        struct nd_control_bytes bytes;

        check(nd_subscribe_unpack(packet->header, packet->prelude.header_bytes, &subscribe, NULL) ==
              0);
        nd_subscribed_pack(&(struct nd_subscribed){subscribe.depth_messages, subscribe.depth_bytes},
                           &bytes);
        fake_peer_send(peer, &p, bytes.data, bytes.n, NULL, 0);
        return p.subscription;
}

void *fake_peer_header(const char *topic, uint64_t frame_bytes, size_t *ret_n)
{
        const int64_t shape = (int64_t)frame_bytes;
        struct nd_frame frame = {
                .array = {.bits = 8, .ndim = 1, .shape = &shape},
                .bytes = frame_bytes,
        };
        const struct nd_header header = {
                .topic = topic,
                .n_topic = strlen(topic),
                .n_frames = 1,
                .frames = &frame,
                .body_bytes = frame_bytes,
        };
        void *data;

        check(nd_header_pack(&header, &data, ret_n) == 0);
        return data;
}

void fake_peer_grant(struct fake_peer *peer, uint64_t bytes, uint64_t n_routed)
{
        uint8_t body[16];

        nd_store_le64(body, 0);
        nd_store_le64(body + 8, bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_CREDIT, .place = n_routed}, NULL,
                       0, body, sizeof(body));
}
