/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: a client whose daemon is not to be trusted
 *
 * The input is a play for two: a daemon that sends packets, well-formed ones with odd contents, or
 * bytes as they stand in the input; and an application that receives, publishes, writes in place, and
 * gives up subscriptions at any moment. Whatever the daemon does: nothing is read or written where it
 * should not be, nothing is left behind, no descriptor either, and what is handed out is a whole
 * message of a subscription that there is.
 *
 * If the first byte is 128 or more both share memory.
 */

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "client/bus.h"
#include "protocol/byteorder.h"
#include "protocol/shm/segment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

#define SUBS_MAX  3u
#define STEPS_MAX 200u
#define BODY_MAX  6000u /* beyond what shares a buffer with its message */

#define SEGMENT_BYTES     (UINT64_C(64) << 10) /* of the one that the daemon hands out */
#define SHM_MAX           (UINT64_C(1) << 20)  /* that the client may publish in */
#define RELEASE_BYTES_MAX 256u
#define FDS_WATCHED       64

struct play {
        const uint8_t *at; /* of the input */
        size_t n_left;
        int daemon; /* its end of the connection */
        bool has_shm;
        struct ndbus *bus;
        struct ndbus_subscription *subs[SUBS_MAX];
        struct ndbus_message *held; /* kept for a while, freed after the bus */
};

static uint8_t next(struct play *play)
{
        if (play->n_left == 0)
                return 0;
        --play->n_left;
        return *play->at++;
}

/* The next @n bytes of the input, in their order. */
static void take(struct play *play, uint8_t *ret, size_t n)
{
        for (size_t i = 0; i < n; ++i)
                ret[i] = next(play);
}

static void daemon_sends(struct play *play, const void *bytes, size_t n)
{
        ssize_t n_sent = send(play->daemon, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);

        (void)n_sent; /* a full socket, or one that was closed, ends the daemon's part */
}

/* A real one, as a publisher would have made it. */
static const struct nd_segment *get_segment(void)
{
        static struct nd_segment segment;
        struct nd_room room;

        if (!segment.base) {
                nd_room_read("", &room);
                nd_assert(nd_segment_create(SEGMENT_BYTES, &room, &segment, NULL) == 0);
                memset(segment.base, 7, SEGMENT_BYTES);
        }
        return &segment;
}

static void daemon_sends_fds(struct play *play, const void *bytes, size_t n, int fd, size_t n_fds)
{
        union {
                struct cmsghdr align;
                uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
        } control = {0};
        struct iovec iov = {(void *)(uintptr_t)bytes, n};
        struct msghdr msg = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = CMSG_SPACE(n_fds * sizeof(int)),
        };
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        ssize_t n_sent;

        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (size_t i = 0; i < n_fds; ++i)
                memcpy(CMSG_DATA(head) + i * sizeof(fd), &fd, sizeof(fd));
        n_sent = sendmsg(play->daemon, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n_sent;
}

static void send_packet(struct play *play,
                        const struct nd_prelude *p,
                        const void *header,
                        size_t n_header,
                        const void *body,
                        size_t n_body)
{
        static uint8_t bytes[ND_PRELUDE_BYTES + ND_CONTROL_HEADER_BYTES_MAX + BODY_MAX];
        struct nd_prelude prelude = *p;

        prelude.header_bytes = (uint32_t)n_header;
        nd_prelude_pack(&prelude, bytes);
        if (n_header)
                memcpy(bytes + ND_PRELUDE_BYTES, header, n_header);
        if (n_body)
                memcpy(bytes + ND_PRELUDE_BYTES + n_header, body, n_body);
        daemon_sends(play, bytes, ND_PRELUDE_BYTES + n_header + n_body);
}

/* The rest of the body that CHUNKs of a stream bring is whatever the input says next. */
static void send_message(struct play *play, bool is_whole)
{
        static const uint8_t body[BODY_MAX];
        uint8_t in[3] = {0};
        nd_autofree void *packed = NULL;
        struct nd_frame frame;
        struct nd_header header;
        struct nd_prelude p;
        int64_t shape;
        size_t n;

        take(play, in, is_whole ? 2 : 3);
        shape = in[0] * 23;
        frame = (struct nd_frame){.array = {.bits = 8, .ndim = 1, .shape = &shape},
                                  .bytes = (uint64_t)shape};
        header = (struct nd_header){.topic = "t", .n_topic = 1, .n_frames = 1, .frames = &frame};
        p = (struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                .body_bytes = (uint64_t)shape,
                                .subscription = in[1] % (SUBS_MAX + 2u)};
        if (nd_header_pack(&header, &packed, &n))
                return;
        if (!is_whole) {
                p.flags = ND_FLAG_BODY_IN_CHUNKS;
                p.stream = in[2] % 4u;
        }
        send_packet(play, &p, packed, n, body, is_whole ? (size_t)shape : 0);
}

static void send_chunk(struct play *play)
{
        static const uint8_t body[BODY_MAX];
        struct nd_prelude p = {.kind = ND_KIND_CHUNK};
        uint8_t in[3];

        take(play, in, 3);
        p.stream = in[0] % 4u;
        p.body_bytes = in[1] * UINT64_C(23);
        p.place = in[2] * UINT64_C(23);
        send_packet(play, &p, NULL, 0, body, p.body_bytes);
}

static void send_control(struct play *play)
{
        static const uint8_t kinds[] = {ND_KIND_RESET,      ND_KIND_GAP,         ND_KIND_PONG,
                                        ND_KIND_SUBSCRIBED, ND_KIND_STATS_REPLY, ND_KIND_GOODBYE};
        uint8_t in[5];

        take(play, in, 5);
        send_packet(play,
                    &(struct nd_prelude){.kind = kinds[in[0] % sizeof(kinds)],
                                         .stream = in[1] % 4u,
                                         .subscription = in[2] % (SUBS_MAX + 2u),
                                         .place = in[3],
                                         .sequence = in[4] % 8u},
                    NULL, 0, NULL, 0);
}

static void send_credit(struct play *play)
{
        uint8_t body[16] = {0}, in[3];

        take(play, in, 3);
        nd_store_le64(body + 8, (uint64_t)in[0] << in[1] % 64u);
        send_packet(play,
                    &(struct nd_prelude){.kind = ND_KIND_CREDIT, .body_bytes = 16, .place = in[2]},
                    NULL, 0, body, sizeof(body));
}

static void send_words(struct play *play)
{
        struct nd_control_bytes header;
        struct nd_prelude p = {0};
        uint8_t in[6];

        take(play, in, 6);
        p.sequence = in[1] % 8u;
        p.subscription = in[2] % (SUBS_MAX + 2u);
        switch (in[0] % 3u) {
        case 0:
                p.kind = ND_KIND_ERROR;
                nd_error_header_pack(&(struct nd_error_header){.code = in[3],
                                                               .of = in[4] % 40u,
                                                               .closes = in[5] > 250,
                                                               .text = ND_STRING("words")},
                                     &header);
                break;
        case 1:
                p.kind = ND_KIND_UNSUBSCRIBED;
                p.place = in[4];
                nd_unsubscribed_pack(
                        &(struct nd_unsubscribed){.code = in[3], .text = ND_STRING("words")},
                        &header);
                break;
        default:
                p.kind = ND_KIND_TOPIC;
                nd_topic_header_pack(&(struct nd_topic_header){.topic = ND_STRING("t"),
                                                               .subscribers = in[4],
                                                               .paused = in[3] % 2u},
                                     true, &header);
        }
        send_packet(play, &p, header.data, header.n, NULL, 0);
}

/* The daemon hands out a segment, or what is none; or answers about one of the client's. */
static void send_segment(struct play *play)
{
        const struct nd_segment *segment = get_segment();
        struct nd_prelude p = {.kind = ND_KIND_SEGMENT, .flags = ND_FLAG_FD};
        uint8_t bytes[ND_PRELUDE_BYTES], in[3];
        size_t n_fds = 1;
        int fd = segment->fd;

        take(play, in, 3);
        p.segment = in[0] % 4u;
        p.place = in[2] == 0 ? segment->bytes : in[2] * UINT64_C(2048);
        switch (in[1] % 8u) {
        case 0: /* the client has asked */
                p.flags = 0;
                p.place = SHM_MAX;
                p.sequence = play->bus->connection.n_requests - in[2] % 4u;
                send_packet(play, &p, NULL, 0, NULL, 0);
                return;
        case 1: /* announced, and not there */
                send_packet(play, &p, NULL, 0, NULL, 0);
                return;
        case 2: /* there, and not announced */
                p.flags = 0;
                break;
        case 3:
                n_fds = 2;
                break;
        case 4: /* a socket */
                fd = play->daemon;
                break;
        default:
                break;
        }
        nd_prelude_pack(&p, bytes);
        daemon_sends_fds(play, bytes, sizeof(bytes), fd, n_fds);
}

static void send_block(struct play *play)
{
        nd_autofree void *packed = NULL;
        struct nd_frame frame;
        struct nd_header header;
        struct nd_prelude p;
        uint8_t in[4];
        int64_t shape;
        size_t n;

        take(play, in, 4);
        shape = in[1] * 257;
        frame = (struct nd_frame){.array = {.bits = 8, .ndim = 1, .shape = &shape},
                                  .bytes = (uint64_t)shape};
        header = (struct nd_header){.topic = "t", .n_topic = 1, .n_frames = 1, .frames = &frame};
        p = (struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                .flags = ND_FLAG_BODY_IN_BLOCK,
                                .body_bytes = (uint64_t)shape,
                                .segment = in[0] % 4u,
                                .place = (uint64_t)(in[2] & ~1u) << 8 | (in[2] & 1u),
                                .subscription = in[3] % (SUBS_MAX + 2u)};
        if (nd_header_pack(&header, &packed, &n))
                return;
        send_packet(play, &p, packed, n, NULL, 0);
}

/* Of blocks of the client's, or of some that are not. A count may promise more than there is. */
static void send_release(struct play *play)
{
        uint8_t body[RELEASE_BYTES_MAX] = {0}, in[4];
        size_t n;

        take(play, in, 4);
        n = in[0] % 8u;
        nd_store_le32(body, in[1] % 4u);
        nd_store_le32(body + 4, (uint32_t)n + in[2] / 128u);
        for (size_t i = 0; i < n; ++i)
                nd_store_le64(body + 8 + 8 * i, in[3] * UINT64_C(64) + i * 4096);
        n = 8 + 8 * n + (in[2] % 128u >= 120); /* or a byte more */
        send_packet(play, &(struct nd_prelude){.kind = ND_KIND_RELEASE, .body_bytes = n}, NULL, 0,
                    body, n);
}

static void send_segment_gone(struct play *play)
{
        uint8_t in[2];

        take(play, in, 2);
        send_packet(play,
                    &(struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE,
                                         .segment = in[0] % 4u,
                                         .sequence = in[1] % 2u},
                    NULL, 0, NULL, 0);
}

static void send_raw(struct play *play)
{
        size_t n = nd_min_u64(next(play), play->n_left);

        daemon_sends(play, play->at, n);
        play->at += n;
        play->n_left -= n;
}

static void daemon_reads(struct play *play)
{
        static uint8_t trash[65536];

        while (recv(play->daemon, trash, sizeof(trash), MSG_DONTWAIT) > 0)
                continue;
}

static void application_receives(struct play *play)
{
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        uint64_t sum = 0;

        if (ndbus_receive(play->bus, &m, 0))
                return;
        nd_assert(ndbus_message_subscription(m) >= 1 && ndbus_message_subscription(m) <= SUBS_MAX);
        for (size_t i = ndbus_message_arrays(m, &arrays); i-- > 0;) {
                nd_assert((uintptr_t)arrays[i].data % ND_ALIGN_BYTES == 0);
                if (!arrays[i].dtype)
                        for (int64_t j = 0; j < arrays[i].shape[0]; ++j)
                                sum += ((const uint8_t *)arrays[i].data)[j];
        }
        nd_assert(sum <= UINT64_C(255) * ndbus_message_bytes(m));
        if (play->held)
                ndbus_message_free(m);
        else
                play->held = m;
}

static void application_writes_in_place(struct play *play,
                                        struct ndbus_array *array,
                                        const struct ndbus_publish_options *options)
{
        struct ndbus_loan *loan;

        if (ndbus_loan(play->bus, array, 1, &loan))
                return;
        memset((void *)(uintptr_t)array->data, 5, (size_t)array->shape[0]);
        if (ndbus_publish_loan(play->bus, "t", loan, options))
                ndbus_loan_cancel(loan);
}

static void application_publishes(struct play *play)
{
        static const uint8_t body[1 << 18];
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_array array = {.data = body, .ndim = 1};
        uint8_t in[3];
        int64_t shape;

        take(play, in, 3);
        shape = in[0] << in[1] % 11u;
        array.shape = &shape;
        options.timeout_ms = 0;
        options.more = in[2] % 2u;
        if (in[2] & 2u)
                application_writes_in_place(play, &array, &options);
        else
                (void)ndbus_publish(play->bus, "t", &array, 1, &options);
}

static void application_gives_up(struct play *play)
{
        size_t i = next(play) % SUBS_MAX;

        if (play->subs[i])
                (void)ndbus_unsubscribe(play->subs[i]);
        play->subs[i] = NULL;
}

static void step(struct play *play)
{
        switch (next(play) % 16u) {
        case 0:
                send_raw(play);
                break;
        case 1:
                send_message(play, true);
                break;
        case 2:
                send_message(play, false);
                break;
        case 3:
        case 4:
                send_chunk(play);
                break;
        case 5:
                send_control(play);
                break;
        case 6:
                send_credit(play);
                break;
        case 7:
                send_words(play);
                break;
        case 8:
                daemon_reads(play);
                break;
        case 9:
                application_publishes(play);
                break;
        case 10:
                application_gives_up(play);
                break;
        case 12:
                send_segment(play);
                break;
        case 13:
                send_block(play);
                break;
        case 14:
                send_release(play);
                break;
        case 15:
                send_segment_gone(play);
                break;
        default:
                application_receives(play);
        }
}

/* The usual beginning: WELCOME, and three subscriptions of different kinds. */
static void begin(struct play *play)
{
        const struct nd_welcome welcome = {
                .source = 1,
                .grant_bytes = 65536,
                .message_bytes_max = 1 << 20,
                .header_bytes_max = ND_HEADER_BYTES_MAX,
                .meta_bytes_max = ND_META_BYTES_MAX,
                .dims_max = 64,
                .subscriptions_max = 100,
                .features = play->has_shm ? ND_FEATURE_SHM | ND_FEATURE_RING : 0,
                .shm_bytes_max = play->has_shm ? SHM_MAX : 0,
        };
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct nd_control_bytes header;

        nd_welcome_pack(&welcome, &header);
        send_packet(play, &(struct nd_prelude){.kind = ND_KIND_WELCOME, .sequence = 1}, header.data,
                    header.n, NULL, 0);
        nd_assert(nd_bus_turn(play->bus, 0, false) == 1);
        nd_assert(play->bus->connection.state == ND_STATE_READY);
        nd_subscribed_pack(&(struct nd_subscribed){1000, 1000}, &header);
        for (uint32_t i = 0; i < SUBS_MAX; ++i) {
                send_packet(play,
                            &(struct nd_prelude){
                                    .kind = ND_KIND_SUBSCRIBED,
                                    .sequence = play->bus->connection.n_requests + 1,
                                    .subscription = i + 1,
                            },
                            header.data, header.n, NULL, 0);
                options.window = 4;
                options.policy = i == 1 ? NDBUS_LATEST : NDBUS_DROP_OLDEST;
                options.group = i == 2 ? "group" : NULL;
                nd_assert(ndbus_subscribe(play->bus, "t", &options, &play->subs[i]) == 0);
        }
}

static size_t count_fds(void)
{
        size_t n = 0;

        for (int fd = 0; fd < FDS_WATCHED; ++fd)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct play play = {.at = data, .n_left = n_data};
        size_t n_fds;
        int ends[2];

        play.has_shm = n_data > 0 && data[0] >= 128;
        get_segment(); /* which stays */
        n_fds = count_fds();
        options.stall_ms = 1;
        nd_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
        nd_assert(nd_bus_new(&options, &play.bus) == 0);
        nd_assert(nd_connection_init(play.bus, "unix:/nowhere") == 0);
        play.bus->guard.fds[ND_FD_SOCKET] = ends[0];
        play.bus->connection.state = ND_STATE_WELCOME;
        play.bus->connection.attempt_ns = ND_NEVER;
        play.daemon = ends[1];
        begin(&play);
        nd_bus_leave(play.bus, 0);              /* it was born in a call */
        play.bus->connection.is_closing = true; /* what is lost stays lost */

        for (size_t i = 0; i < STEPS_MAX && play.n_left > 0; ++i)
                step(&play);
        for (size_t i = 0; i < 8; ++i)
                application_receives(&play);
        ndbus_close(play.bus, 0, NULL);
        ndbus_message_free(play.held);
        close(play.daemon);
        nd_assert(count_fds() == n_fds);
        return 0;
}
