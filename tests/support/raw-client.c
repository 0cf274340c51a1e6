/* SPDX-License-Identifier: MIT */

/*
 * Raw client
 *
 * Everything is blocking with a deadline: a daemon that says nothing for ten seconds, where the
 * test expects something, fails the test with what was awaited.
 */

#include "tests/support/raw-client.h"
#include <errno.h>
#include <inttypes.h>
#include <msgpack.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "tests/support/pattern.h"

#define RAW_WAIT_MS     20000
#define RAW_CHUNK_BYTES (256u * 1024u)

static struct nd_raw_packet last_packet;

static void raw_expect_memory(const void *pointer)
{
        if (!pointer)
                nd_harness_fail(NULL, "out of memory");
}

/* --------------------------------------------------------------------------------- raw bytes */

void nd_raw_send(struct nd_raw *raw, const void *bytes, size_t n_bytes)
{
        const uint8_t *at = bytes;

        while (n_bytes > 0) {
                struct pollfd wait = {.fd = raw->fd, .events = POLLOUT};
                ssize_t n = send(raw->fd, at, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n < 0 && errno == EAGAIN) {
                        if (poll(&wait, 1, nd_harness_deadline_ms(RAW_WAIT_MS)) == 0)
                                nd_harness_fail(raw->harness, "the daemon does not read");
                        continue;
                }
                if (n < 0) {
                        if (errno != EPIPE && errno != ECONNRESET)
                                nd_harness_fail(raw->harness, "send: %s", strerror(errno));
                        return;
                }
                at += n;
                n_bytes -= (size_t)n;
        }
}

/* recv() that keeps the descriptors that come. */
static ssize_t raw_receive(struct nd_raw *raw, void *bytes, size_t n_bytes)
{
        uint8_t room[CMSG_SPACE(ND_RAW_FDS_MAX * sizeof(int))] __attribute__((aligned(8)));
        struct iovec iov = {bytes, n_bytes};
        struct msghdr message = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = room,
                .msg_controllen = sizeof(room),
        };
        ssize_t n = recvmsg(raw->fd, &message, MSG_CMSG_CLOEXEC);
        const struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        size_t n_fds;

        if (!head)
                return n;
        n_fds = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (message.msg_flags & MSG_CTRUNC || n_fds > ND_RAW_FDS_MAX - raw->n_fds)
                nd_harness_fail(raw->harness, "too many descriptors come");
        memcpy(raw->fds + raw->n_fds, CMSG_DATA(head), n_fds * sizeof(int));
        raw->n_fds += n_fds;
        return n;
}

int nd_raw_take_fd(struct nd_raw *raw)
{
        int fd = raw->n_fds > 0 ? raw->fds[0] : -1;

        if (fd >= 0)
                memmove(raw->fds, raw->fds + 1, --raw->n_fds * sizeof(int));
        return fd;
}

/* False: the connection has ended. */
static bool raw_read(struct nd_raw *raw, void *bytes, size_t n_bytes, const char *what)
{
        uint8_t *at = bytes;

        while (n_bytes > 0) {
                struct pollfd wait = {.fd = raw->fd, .events = POLLIN};
                ssize_t n;

                if (poll(&wait, 1, nd_harness_deadline_ms(RAW_WAIT_MS)) == 0)
                        nd_harness_fail(raw->harness, "the daemon sends nothing; awaited: %s",
                                        what);
                n = raw_receive(raw, at, n_bytes);
                if (n < 0 && errno == ECONNRESET)
                        return false;
                if (n < 0)
                        nd_harness_fail(raw->harness, "recv: %s", strerror(errno));
                if (n == 0)
                        return false;
                at += n;
                n_bytes -= (size_t)n;
        }
        return true;
}

void nd_raw_send_packet(struct nd_raw *raw,
                        struct nd_prelude prelude,
                        const void *header,
                        size_t n_header,
                        const void *meta,
                        size_t n_meta,
                        const void *body,
                        size_t n_body)
{
        size_t n = ND_PRELUDE_BYTES + n_header + n_meta + n_body;
        nd_autofree uint8_t *bytes = malloc(n);
        uint8_t *at = bytes;

        raw_expect_memory(bytes);
        prelude.header_bytes = (uint32_t)n_header;
        prelude.meta_bytes = (uint32_t)n_meta;
        nd_prelude_pack(&prelude, at);
        at += ND_PRELUDE_BYTES;
        if (n_header > 0)
                memcpy(at, header, n_header);
        at += n_header;
        if (n_meta > 0)
                memcpy(at, meta, n_meta);
        at += n_meta;
        if (n_body > 0)
                memcpy(at, body, n_body);
        nd_raw_send(raw, bytes, n);
}

void nd_raw_send_prelude(struct nd_raw *raw, struct nd_prelude prelude)
{
        nd_raw_send_packet(raw, prelude, NULL, 0, NULL, 0, NULL, 0);
}

/* ----------------------------------------------------------------------------------- opening */

struct nd_raw *nd_raw_open_bare(struct nd_harness *h, bool is_tcp)
{
        struct nd_raw *raw = calloc(1, sizeof(*raw));

        raw_expect_memory(raw);
        raw->harness = h;
        raw->bell = -1;
        for (size_t i = 0; i < ND_RAW_HANDED_MAX; ++i)
                raw->handed[i].fd = -1;
        raw->fd = is_tcp ? nd_harness_connect_tcp(h) : nd_harness_connect_unix(h);
        return raw;
}

struct nd_raw *nd_raw_open_hello(struct nd_harness *h, bool is_tcp)
{
        struct nd_raw *raw = nd_raw_open_bare(h, is_tcp);
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        uint8_t bytes[ND_HELLO_BYTES];
        struct nd_hello_reply reply;

        nd_hello_pack(&hello, bytes);
        nd_raw_send(raw, bytes, sizeof(bytes));
        if (!raw_read(raw, bytes, sizeof(bytes), "the answer to hello") ||
            nd_hello_reply_unpack(bytes, sizeof(bytes), &reply) != 0 || reply.version != ND_VERSION)
                nd_harness_fail(h, "hello was not answered with version %u", ND_VERSION);
        return raw;
}

struct nd_raw *nd_raw_open(struct nd_harness *h, bool is_tcp)
{
        return nd_raw_open_features(h, is_tcp, 0);
}

struct nd_raw *nd_raw_open_features(struct nd_harness *h, bool is_tcp, uint32_t features)
{
        struct nd_raw *raw = nd_raw_open_hello(h, is_tcp);
        const struct nd_connect connect = {
                .features = features,
                .client = ND_STRING("raw"),
                .pid = (uint64_t)getpid(),
        };
        const struct nd_raw_packet *packet;
        struct nd_control_bytes header;
        struct nd_welcome welcome;
        struct nd_fault fault;

        nd_connect_pack(&connect, &header);
        nd_raw_send_packet(raw, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1},
                           header.data, header.n, NULL, 0, NULL, 0);
        raw->n_requests = 1;
        packet = nd_raw_expect(raw, ND_KIND_WELCOME);
        if (nd_welcome_unpack(packet->header, packet->prelude.header_bytes, &welcome, &fault) < 0)
                nd_harness_fail(h, "WELCOME: %s: %s", fault.field, fault.text);
        raw->source = welcome.source;
        raw->features = welcome.features;
        raw->shm_max = welcome.shm_bytes_max;
        raw->credit = welcome.grant_bytes;
        return raw;
}

void nd_raw_close(struct nd_raw *raw)
{
        for (size_t i = 0; i < ND_RAW_STREAMS_MAX; ++i)
                free(raw->streams[i].body);
        for (size_t i = 0; i < ND_RAW_HANDED_MAX; ++i)
                nd_segment_close(&raw->handed[i]);
        for (size_t i = 0; i < raw->n_fds; ++i)
                close(raw->fds[i]);
        if (raw->bell >= 0)
                close(raw->bell);
        free(raw->buffer);
        close(raw->fd);
        free(raw);
}

/* ----------------------------------------------------------------------------------- reading */

bool nd_raw_has_input(struct nd_raw *raw)
{
        struct pollfd wait = {.fd = raw->fd, .events = POLLIN};

        return poll(&wait, 1, 0) == 1;
}

const struct nd_raw_packet *nd_raw_next(struct nd_raw *raw)
{
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_prelude p;
        size_t n;

        if (!raw_read(raw, bytes, sizeof(bytes), "a packet"))
                return NULL;
        nd_prelude_unpack(bytes, &p);
        n = p.header_bytes + p.meta_bytes + (size_t)nd_prelude_inline_bytes(&p);
        if (n > (4u << 20))
                nd_harness_fail(raw->harness, "a %s of %zu bytes", nd_kind_name(p.kind), n);
        if (n > raw->n_buffer_max) {
                free(raw->buffer);
                raw->buffer = malloc(n);
                raw_expect_memory(raw->buffer);
                raw->n_buffer_max = n;
        }
        if (!raw_read(raw, raw->buffer, n, "the rest of a packet"))
                nd_harness_fail(raw->harness, "a %s is cut short", nd_kind_name(p.kind));
        last_packet = (struct nd_raw_packet){
                .prelude = p,
                .header = raw->buffer,
                .meta = raw->buffer + p.header_bytes,
                .body = raw->buffer + p.header_bytes + p.meta_bytes,
        };
        if (p.kind == ND_KIND_CREDIT && p.subscription == 0)
                raw->credit += nd_load_le64(last_packet.body + 8);
        return &last_packet;
}

const struct nd_raw_packet *nd_raw_next_other(struct nd_raw *raw)
{
        const struct nd_raw_packet *packet;

        do {
                packet = nd_raw_next(raw);
        } while (packet &&
                 ((packet->prelude.kind == ND_KIND_CREDIT && packet->prelude.subscription == 0) ||
                  packet->prelude.kind == ND_KIND_TOPIC));
        return packet;
}

static void raw_describe(const struct nd_raw_packet *packet, char *out, size_t n_out)
{
        struct nd_error_header error;

        if (!packet)
                snprintf(out, n_out, "the end");
        else if (packet->prelude.kind == ND_KIND_ERROR &&
                 nd_error_header_unpack(packet->header, packet->prelude.header_bytes, &error,
                                        NULL) == 0)
                snprintf(out, n_out, "ERROR %s %.*s: %.*s", ndbus_errname(-(int)error.code),
                         (int)error.field.n, error.field.at ? error.field.at : "",
                         (int)error.text.n, error.text.at);
        else
                snprintf(out, n_out, "%s", nd_kind_name(packet->prelude.kind));
}

const struct nd_raw_packet *nd_raw_expect(struct nd_raw *raw, enum nd_kind kind)
{
        const struct nd_raw_packet *packet = nd_raw_next_other(raw);
        char text[512];

        if (!packet || packet->prelude.kind != kind) {
                raw_describe(packet, text, sizeof(text));
                nd_harness_fail(raw->harness, "%s came, expected was %s", text,
                                nd_kind_name((uint8_t)kind));
        }
        return packet;
}

struct nd_error_header nd_raw_expect_error(struct nd_raw *raw, int code, bool closes)
{
        const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_ERROR);
        struct nd_error_header error;
        struct nd_fault fault;
        char text[512];

        if (nd_error_header_unpack(packet->header, packet->prelude.header_bytes, &error, &fault) <
            0)
                nd_harness_fail(raw->harness, "ERROR: %s: %s", fault.field, fault.text);
        if (error.code != (uint32_t)-code || error.closes != closes) {
                raw_describe(packet, text, sizeof(text));
                nd_harness_fail(raw->harness, "%s (closes: %d) came, expected was %s (%d)", text,
                                error.closes, ndbus_errname(code), closes);
        }
        return error;
}

void nd_raw_expect_closed(struct nd_raw *raw)
{
        const struct nd_raw_packet *packet = nd_raw_next_other(raw);
        char text[512];

        if (packet) {
                raw_describe(packet, text, sizeof(text));
                nd_harness_fail(raw->harness, "%s came, expected was the end", text);
        }
}

/* ------------------------------------------------------------------------------ subscriptions */

void nd_raw_ask_subscribe(struct nd_raw *raw, uint32_t id, const struct nd_raw_subscribe *ask)
{
        const struct nd_subscribe subscribe = {
                .pattern = {ask->pattern, strlen(ask->pattern)},
                .policy = ask->policy,
                .depth_messages = ask->depth ? ask->depth : ND_DEPTH_MESSAGES_DEFAULT,
                .depth_bytes = ask->bytes ? ask->bytes : ND_DEPTH_BYTES_DEFAULT,
                .window_messages = ask->window                       ? ask->window
                                   : ask->policy == ND_POLICY_LATEST ? 0
                                                                     : ND_WINDOW_MESSAGES_DEFAULT,
                .window_bytes =
                        ask->window_bytes ? ask->window_bytes : ND_WINDOW_BYTES_UNIX_DEFAULT,
                .group = {ask->group, ask->group ? strlen(ask->group) : 0},
                .retained = !ask->no_retained && !ask->group,
        };
        struct nd_control_bytes header;

        nd_subscribe_pack(&subscribe, &header);
        nd_raw_send_packet(raw,
                           (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE,
                                               .sequence = ++raw->n_requests,
                                               .subscription = id},
                           header.data, header.n, NULL, 0, NULL, 0);
}

void nd_raw_subscribe(struct nd_raw *raw, uint32_t id, const struct nd_raw_subscribe *ask)
{
        nd_raw_ask_subscribe(raw, id, ask);
        nd_raw_expect(raw, ND_KIND_SUBSCRIBED);
}

void nd_raw_grant(struct nd_raw *raw, uint32_t id, uint64_t n_messages, uint64_t n_bytes)
{
        uint8_t body[16];

        nd_store_le64(body, n_messages);
        nd_store_le64(body + 8, n_bytes);
        nd_raw_send_packet(raw,
                           (struct nd_prelude){.kind = ND_KIND_CREDIT,
                                               .subscription = id,
                                               .body_bytes = sizeof(body)},
                           NULL, 0, NULL, 0, body, sizeof(body));
}

/* --------------------------------------------------------------------------------- publishing */

uint8_t *nd_raw_header(const char *topic, uint64_t n_bytes, size_t *ret_n)
{
        int64_t shape = (int64_t)n_bytes;
        struct nd_frame frame = {
                .array = {.ndim = 1, .shape = &shape, .lanes = 1},
                .bytes = n_bytes,
        };
        const struct nd_header header = {
                .topic = topic,
                .n_topic = strlen(topic),
                .n_frames = n_bytes > 0,
                .frames = &frame,
        };
        void *bytes = NULL;

        if (nd_header_pack(&header, &bytes, ret_n) < 0)
                nd_harness_fail(NULL, "out of memory");
        return bytes;
}

void nd_raw_await_credit(struct nd_raw *raw, uint64_t n_bytes)
{
        while (raw->credit < n_bytes) {
                if (!nd_raw_next(raw))
                        nd_harness_fail(raw->harness, "closed while waiting for credit");
        }
}

void nd_raw_publish_begin(struct nd_raw *raw, const char *topic, uint64_t n_bytes, uint32_t stream)
{
        size_t n_header;
        nd_autofree uint8_t *header = nd_raw_header(topic, n_bytes, &n_header);

        nd_raw_await_credit(raw, ND_PRELUDE_BYTES + n_header);
        raw->credit -= ND_PRELUDE_BYTES + n_header;
        nd_raw_send_packet(raw,
                           (struct nd_prelude){.kind = ND_KIND_PUBLISH,
                                               .flags = ND_FLAG_BODY_IN_CHUNKS,
                                               .sequence = ++raw->n_published,
                                               .stream = stream,
                                               .body_bytes = n_bytes},
                           header, n_header, NULL, 0, NULL, 0);
}

void nd_raw_publish_chunk(struct nd_raw *raw, uint32_t stream, uint64_t place, uint64_t n_bytes)
{
        nd_autofree uint8_t *body = malloc(n_bytes + 1);

        raw_expect_memory(body);
        nd_pattern_fill(body, place, n_bytes);
        nd_raw_await_credit(raw, ND_PRELUDE_BYTES + n_bytes);
        raw->credit -= ND_PRELUDE_BYTES + n_bytes;
        nd_raw_send_packet(raw,
                           (struct nd_prelude){.kind = ND_KIND_CHUNK,
                                               .stream = stream,
                                               .place = place,
                                               .body_bytes = n_bytes},
                           NULL, 0, NULL, 0, body, n_bytes);
}

void nd_raw_publish_rest(struct nd_raw *raw, uint32_t stream, uint64_t place, uint64_t n_bytes)
{
        while (place < n_bytes) {
                uint64_t n = nd_min_u64(n_bytes - place, RAW_CHUNK_BYTES);

                nd_raw_await_credit(raw, nd_min_u64(n, ND_CHUNK_BYTES_MIN) + ND_PRELUDE_BYTES);
                n = nd_min_u64(n, raw->credit - ND_PRELUDE_BYTES);
                nd_raw_publish_chunk(raw, stream, place, n);
                place += n;
        }
}

void nd_raw_publish_flags(struct nd_raw *raw, const char *topic, uint64_t n_bytes, uint16_t flags)
{
        size_t n_header;
        nd_autofree uint8_t *header = nd_raw_header(topic, n_bytes, &n_header);
        uint64_t n_packet = ND_PRELUDE_BYTES + n_header + n_bytes;
        struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .flags = flags,
                .body_bytes = n_bytes,
        };
        nd_autofree uint8_t *body = NULL;

        if (n_bytes < ND_CHUNK_BYTES_MIN)
                nd_raw_await_credit(raw, n_packet);
        if (n_packet > raw->credit || n_bytes > ND_PACKET_BODY_BYTES_MAX) {
                nd_raw_await_credit(raw, ND_PRELUDE_BYTES + n_header);
                raw->credit -= ND_PRELUDE_BYTES + n_header;
                prelude.flags |= ND_FLAG_BODY_IN_CHUNKS;
                prelude.stream = (uint32_t)raw->n_published + 1;
                prelude.sequence = ++raw->n_published;
                nd_raw_send_packet(raw, prelude, header, n_header, NULL, 0, NULL, 0);
                nd_raw_publish_rest(raw, prelude.stream, 0, n_bytes);
                return;
        }
        body = malloc(n_bytes + 1);
        raw_expect_memory(body);
        nd_pattern_fill(body, 0, n_bytes);
        prelude.sequence = ++raw->n_published;
        raw->credit -= n_packet;
        nd_raw_send_packet(raw, prelude, header, n_header, NULL, 0, body, n_bytes);
}

void nd_raw_publish(struct nd_raw *raw, const char *topic, uint64_t n_bytes)
{
        nd_raw_publish_flags(raw, topic, n_bytes, 0);
}

void nd_raw_flush(struct nd_raw *raw)
{
        const struct nd_raw_packet *packet;
        uint64_t number = ++raw->n_requests;
        char text[512];

        for (;;) {
                nd_raw_send_prelude(raw,
                                    (struct nd_prelude){.kind = ND_KIND_PING, .sequence = number});
                do {
                        packet = nd_raw_next(raw);
                        raw_describe(packet, text, sizeof(text));
                        if (!packet || packet->prelude.kind == ND_KIND_ERROR)
                                nd_harness_fail(raw->harness, "%s came, expected was PONG", text);
                } while (packet->prelude.kind != ND_KIND_PONG ||
                         packet->prelude.sequence != number);
                if (packet->prelude.place == raw->n_published)
                        return;
                number = ++raw->n_requests;
        }
}

/* ---------------------------------------------------------------------------------- receiving */

static struct nd_raw_message *raw_stream(struct nd_raw *raw, uint32_t stream)
{
        for (size_t i = 0; i < ND_RAW_STREAMS_MAX; ++i) {
                if (raw->streams[i].body && raw->streams[i].prelude.stream == stream)
                        return &raw->streams[i];
        }
        return NULL;
}

/* A free slot for a message that begins. */
static struct nd_raw_message *raw_begin(struct nd_raw *raw, const struct nd_prelude *prelude)
{
        for (size_t i = 0; i < ND_RAW_STREAMS_MAX; ++i) {
                struct nd_raw_message *message = &raw->streams[i];

                if (message->body)
                        continue;
                *message = (struct nd_raw_message){
                        .prelude = *prelude,
                        .body = malloc(prelude->body_bytes + 1),
                        .n_dropped = raw->n_dropped,
                };
                raw_expect_memory(message->body);
                raw->n_dropped = 0;
                return message;
        }
        nd_harness_fail(raw->harness, "more than %u streams at a time", ND_RAW_STREAMS_MAX);
}

static struct nd_raw_message *raw_continue(struct nd_raw *raw, const struct nd_raw_packet *packet)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_raw_message *message = raw_stream(raw, p->stream);

        if (!message)
                nd_harness_fail(raw->harness, "CHUNK of stream %u, which is not open", p->stream);
        if (p->place != message->n_received ||
            p->body_bytes > message->prelude.body_bytes - p->place)
                nd_harness_fail(raw->harness,
                                "CHUNK at %" PRIu64 " of %" PRIu64
                                " bytes, expected place %" PRIu64,
                                p->place, p->body_bytes, message->n_received);
        memcpy(message->body + p->place, packet->body, p->body_bytes);
        message->n_received += p->body_bytes;
        ++message->n_chunks;
        return message;
}

struct nd_raw_message nd_raw_receive(struct nd_raw *raw)
{
        struct nd_raw_message *message = NULL;
        const struct nd_raw_packet *packet;
        struct nd_raw_message ret;
        char text[512];

        do {
                packet = nd_raw_next_other(raw);
                raw_describe(packet, text, sizeof(text));
                if (!packet)
                        nd_harness_fail(raw->harness, "the end came, expected was a message");
                switch (packet->prelude.kind) {
                case ND_KIND_MESSAGE:
                        message = raw_begin(raw, &packet->prelude);
                        if (!(packet->prelude.flags & ND_FLAG_BODY_IN_CHUNKS)) {
                                memcpy(message->body, packet->body, packet->prelude.body_bytes);
                                message->n_received = packet->prelude.body_bytes;
                        }
                        break;
                case ND_KIND_CHUNK:
                        message = raw_continue(raw, packet);
                        break;
                case ND_KIND_GAP:
                        raw->n_dropped += packet->prelude.place;
                        break;
                case ND_KIND_RESET:
                        message = raw_stream(raw, packet->prelude.stream);
                        if (!message)
                                nd_harness_fail(raw->harness, "RESET of stream %u, not open",
                                                packet->prelude.stream);
                        nd_raw_message_free(message);
                        message = NULL;
                        ++raw->n_resets;
                        break;
                default:
                        nd_harness_fail(raw->harness, "%s came, expected was a message", text);
                }
        } while (!message || message->n_received < message->prelude.body_bytes);

        if (nd_pattern_compare(message->body, 0, message->n_received) != message->n_received)
                nd_harness_fail(raw->harness, "the body is not P(%" PRIu64 ")",
                                message->n_received);
        ret = *message;
        *message = (struct nd_raw_message){0};
        return ret;
}

void nd_raw_message_free(struct nd_raw_message *message)
{
        free(message->body);
        *message = (struct nd_raw_message){0};
}

/* -------------------------------------------------------------------------------------- STATS */

static const msgpack_object *map_find(const msgpack_object *map, const char *key)
{
        for (uint32_t i = 0; map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; ++i) {
                const msgpack_object_kv *kv = &map->via.map.ptr[i];

                if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == strlen(key) &&
                    memcmp(kv->key.via.str.ptr, key, strlen(key)) == 0)
                        return &kv->val;
        }
        nd_harness_fail(NULL, "STATS has no '%s'", key);
}

static uint64_t map_number(const msgpack_object *map, const char *key)
{
        const msgpack_object *number = map_find(map, key);

        if (number->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                nd_harness_fail(NULL, "STATS: '%s' is not a number", key);
        return number->via.u64;
}

/* The whole map; what else comes meanwhile is passed over. raw_stats_deinit() */
struct raw_stats {
        msgpack_unpacked map;
        char *bytes; /* strings point into them */
};

static void raw_stats_init(struct nd_raw *raw, struct raw_stats *ret)
{
        uint64_t number = ++raw->n_requests;
        const struct nd_raw_packet *packet;
        char *bytes = NULL;
        size_t n_bytes = 0;

        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_STATS, .sequence = number});
        for (;;) {
                packet = nd_raw_next(raw);
                if (!packet)
                        nd_harness_fail(raw->harness, "the end came, expected was STATS_REPLY");
                if (packet->prelude.kind == ND_KIND_ERROR)
                        nd_harness_fail(raw->harness, "ERROR came, expected was STATS_REPLY");
                if (packet->prelude.kind != ND_KIND_STATS_REPLY)
                        continue;
                if (packet->prelude.body_bytes == 0)
                        break;
                bytes = realloc(bytes, n_bytes + packet->prelude.body_bytes);
                raw_expect_memory(bytes);
                memcpy(bytes + n_bytes, packet->body, packet->prelude.body_bytes);
                n_bytes += packet->prelude.body_bytes;
        }
        ret->bytes = bytes;
        msgpack_unpacked_init(&ret->map);
        if (msgpack_unpack_next(&ret->map, bytes, n_bytes, NULL) != MSGPACK_UNPACK_SUCCESS)
                nd_harness_fail(raw->harness, "STATS is not msgpack");
}

static void raw_stats_deinit(struct raw_stats *stats)
{
        msgpack_unpacked_destroy(&stats->map);
        free(stats->bytes);
}

uint64_t nd_raw_stat(struct nd_raw *raw, const char *part, const char *name)
{
        struct raw_stats stats;
        uint64_t value;

        raw_stats_init(raw, &stats);
        value = map_number(map_find(&stats.map.data, part), name);
        raw_stats_deinit(&stats);
        return value;
}

uint64_t
nd_raw_stat_subscription(struct nd_raw *raw, uint64_t source, uint32_t id, const char *name)
{
        struct raw_stats stats;
        const msgpack_object *list;

        raw_stats_init(raw, &stats);
        list = map_find(&stats.map.data, "subscriptions");
        for (uint32_t i = 0; i < list->via.array.size; ++i) {
                const msgpack_object *one = &list->via.array.ptr[i];

                if (map_number(one, "source") == source && map_number(one, "id") == id) {
                        uint64_t value = map_number(one, name);

                        raw_stats_deinit(&stats);
                        return value;
                }
        }
        nd_harness_fail(raw->harness, "STATS does not know subscription %u", id);
}

static bool is_text(const msgpack_object *one, const char *key, const char *text)
{
        const msgpack_object_str *str = &map_find(one, key)->via.str;

        return str->size == strlen(text) && memcmp(str->ptr, text, str->size) == 0;
}

uint64_t
nd_raw_stat_group(struct nd_raw *raw, const char *pattern, const char *group, const char *name)
{
        struct raw_stats stats;
        const msgpack_object *list;

        raw_stats_init(raw, &stats);
        list = map_find(&stats.map.data, "groups");
        for (uint32_t i = 0; i < list->via.array.size; ++i) {
                const msgpack_object *one = &list->via.array.ptr[i];

                if (is_text(one, "pattern", pattern) && is_text(one, "group", group)) {
                        uint64_t value = map_number(one, name);

                        raw_stats_deinit(&stats);
                        return value;
                }
        }
        nd_harness_fail(raw->harness, "STATS does not know group %s", group);
}

uint64_t nd_raw_stat_holder(struct nd_raw *raw, uint64_t source, const char *name)
{
        struct raw_stats stats;
        const msgpack_object *list;

        raw_stats_init(raw, &stats);
        list = map_find(&stats.map.data, "holders");
        for (uint32_t i = 0; i < list->via.array.size; ++i) {
                const msgpack_object *one = &list->via.array.ptr[i];

                if (map_number(one, "source") == source) {
                        uint64_t value = map_number(one, name);

                        raw_stats_deinit(&stats);
                        return value;
                }
        }
        nd_harness_fail(raw->harness, "STATS says that it holds nothing");
}

static void check_subscription(struct nd_raw *raw, const msgpack_object *one)
{
        const msgpack_object *by = map_find(one, "dropped_by");
        uint64_t n_matched = map_number(one, "matched");
        uint64_t n_delivered = map_number(one, "delivered");
        uint64_t n_dropped = map_number(one, "dropped");
        uint64_t n_queued = map_number(one, "queued");
        uint64_t n = 0;

        for (uint32_t i = 0; i < by->via.map.size; ++i)
                n += by->via.map.ptr[i].val.via.u64;
        if (n != n_dropped || n_matched != n_delivered + n_dropped + n_queued)
                nd_harness_fail(raw->harness,
                                "matched %" PRIu64 ", delivered %" PRIu64 ", dropped %" PRIu64
                                " (by reason %" PRIu64 "), queued %" PRIu64,
                                n_matched, n_delivered, n_dropped, n, n_queued);
}

static bool is_member(const msgpack_object *one)
{
        return map_find(one, "group")->via.str.size > 0;
}

void nd_raw_check_stats(struct nd_raw *raw)
{
        static const char *const lists[] = {"subscriptions", "groups"};
        struct raw_stats stats;

        raw_stats_init(raw, &stats);
        for (size_t k = 0; k < nd_array_size(lists); ++k) {
                const msgpack_object *list = map_find(&stats.map.data, lists[k]);

                for (uint32_t i = 0; i < list->via.array.size; ++i) {
                        const msgpack_object *one = &list->via.array.ptr[i];

                        if (k == 1 || !is_member(one)) /* members' numbers are the group's */
                                check_subscription(raw, one);
                }
        }
        raw_stats_deinit(&stats);
}
