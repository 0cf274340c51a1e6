/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: traffic between three clients that keep the rules
 *
 * The input is a list of steps: publish, begin, continue, take back, subscribe, grant, read a
 * little, leave. Clients keep to the protocol, so nothing may close their connections; and what
 * they hear must be right: chunks without gap or overlap, the bytes that were published, sequences
 * that rise, and for every subscription received + dropped = matched.
 *
 * Two of them have shared memory. They publish in blocks, hold what they receive, and release it some
 * time; no block is released to its publisher while another client holds it. What comes by a socket they
 * may get in segments of the server's own, which they map.
 */

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/sink.h"
#include "protocol/byteorder.h"
#include "protocol/control.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "protocol/shm/release.h"
#include "tests/support/embedded.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

#define PEERS_N         3u
#define TOPICS_N        3u
#define SUBSCRIPTIONS_N 12u
#define STREAMS_N       48u
#define STEPS_MAX       400u
#define SLOTS_N         16u /* places of blocks in the segment, which overlap */
#define SLOT_BYTES      (ND_EMBEDDED_SEGMENT_BYTES / SLOTS_N)
#define HELD_MAX        (STEPS_MAX * SUBSCRIPTIONS_N * PEERS_N)
#define HANDED_MAX      1024u

static const char *const topic_names[TOPICS_N] = {"a", "a/b", "b"};
static const char *const patterns[] = {"a", "a/*", "**", "b", "*"};

struct subscription {
        bool is_there;
        bool is_group;
        bool is_latest;
        uint64_t n_received; /* retained ones are not counted */
        uint64_t n_dropped;
        uint64_t n_to_grant;
        uint64_t to_grant_bytes;
        uint64_t n_deliveries;
        uint64_t unfinished[64]; /* of a group */
        size_t n_unfinished;

        struct {
                uint64_t source;
                uint64_t sequence;
        } last[TOPICS_N];
};

struct stream {
        bool is_there;
        uint32_t number;
        uint32_t subscription;
        bool is_old;
        uint64_t delivery;
        uint64_t body_bytes;
        uint64_t n_received;
        uint64_t at_topic;
        uint64_t source;
        uint64_t sequence;
};

struct peer {
        struct nd_embedded_peer end;
        uint64_t source;
        uint64_t credit;
        uint64_t n_published;
        uint64_t n_requests;
        uint32_t last_id;
        uint32_t last_stream;
        bool is_stuck; /* the server does not read from it, because it does not read */

        struct {                 /* the PUBLISH under way */
                uint32_t stream; /* 0: none */
                uint64_t body_bytes;
                uint64_t place;
        } open;
        struct subscription subscriptions[SUBSCRIPTIONS_N];
        struct stream streams[STREAMS_N];

        /* shared memory */
        bool has_shm;
        uint32_t segment;  /* its own; 0: none */
        bool is_announced; /* and answered */
        bool is_out[SLOTS_N];
        size_t n_out;
        uint32_t last_handed;

        enum handed {
                NOT_HANDED,
                HANDED,
                UNMAPPABLE,
                GONE,
        } handed[HANDED_MAX];
        struct nd_segment own[HANDED_MAX]; /* those that are the server's */

        struct held {
                uint32_t segment;
                uint64_t place;
                uint64_t source;
        } held[HELD_MAX];

        size_t n_held;
};

static struct peer peers[PEERS_N];

static uint8_t payload(uint64_t i)
{
        return (uint8_t)(31 * i + 7);
}

/* The bytes of every body from this place on, 2 MiB of them. */
static const uint8_t *bodies(uint64_t place)
{
        static uint8_t bytes[2 * ND_MIB + 256];

        if (bytes[0] != payload(0)) {
                for (size_t i = 0; i < sizeof(bytes); ++i)
                        bytes[i] = payload(i);
        }
        return bytes + place % 256;
}

/* ------------------------------------------------------------------------------------- hearing */

static uint32_t header_topic(const struct nd_packet *packet)
{
        struct nd_header *header;
        uint32_t i;

        nd_assert(nd_header_unpack(packet->header, packet->prelude.header_bytes, NULL, &header,
                                   NULL) == 0);
        nd_assert(header->body_bytes == packet->prelude.body_bytes);
        for (i = 0; i < TOPICS_N; ++i) {
                if (strcmp(header->topic, topic_names[i]) == 0)
                        break;
        }
        nd_assert(i < TOPICS_N);
        nd_header_free(header);
        return i;
}

static struct subscription *peer_subscription(struct peer *peer, uint32_t id)
{
        nd_assert(id >= 1 && id <= peer->last_id);
        return &peer->subscriptions[(id - 1) % SUBSCRIPTIONS_N];
}

/* A message is whole. */
static void hear_whole(struct peer *peer, const struct stream *stream)
{
        struct subscription *sub = peer_subscription(peer, stream->subscription);
        uint64_t *last;

        if (!sub->is_there)
                return; /* what was half sent when it ended */
        if (sub->is_group) {
                if (sub->n_unfinished < nd_array_size(sub->unfinished))
                        sub->unfinished[sub->n_unfinished++] = stream->delivery;
        } else {
                ++sub->n_to_grant;
                sub->to_grant_bytes += stream->body_bytes;
        }
        if (stream->is_old)
                return;
        ++sub->n_received;
        if (sub->is_group)
                return; /* redelivered ones are out of order */
        last = &sub->last[stream->at_topic].sequence;
        if (sub->last[stream->at_topic].source == stream->source)
                nd_assert(stream->sequence > *last);
        sub->last[stream->at_topic].source = stream->source;
        *last = stream->sequence;
}

static void hear_body(struct peer *peer, struct stream *stream, const uint8_t *body, uint64_t n)
{
        nd_assert(n <= 2 * ND_MIB && memcmp(body, bodies(stream->n_received), n) == 0);
        stream->n_received += n;
        if (stream->n_received == stream->body_bytes) {
                stream->is_there = false;
                hear_whole(peer, stream);
        }
}

static struct stream *peer_stream(struct peer *peer, uint32_t number)
{
        for (size_t i = 0; i < STREAMS_N; ++i) {
                if (peer->streams[i].is_there && peer->streams[i].number == number)
                        return &peer->streams[i];
        }
        return NULL;
}

/* It is where it was published, and stays there until it is released. */
static void hear_block(struct peer *peer, struct stream *stream, const struct nd_prelude *p)
{
        const struct nd_segment *own = &peer->own[p->segment % HANDED_MAX];
        const struct nd_segment *segment = own->base ? own : nd_embedded_segment();

        nd_assert(peer->has_shm && p->segment < HANDED_MAX);
        nd_assert(peer->handed[p->segment] == HANDED || peer->handed[p->segment] == UNMAPPABLE);
        nd_assert(p->place % (own->base ? ND_ALIGN_BYTES : SLOT_BYTES) == 0);
        nd_assert(p->body_bytes <= segment->bytes - p->place);
        if (peer->handed[p->segment] == HANDED) {
                nd_assert(peer->n_held < HELD_MAX);
                peer->held[peer->n_held++] = (struct held){p->segment, p->place, p->source};
        }
        hear_body(peer, stream, segment->base + p->place, p->body_bytes);
}

static void hear_segment(struct peer *peer, const struct nd_prelude *p)
{
        struct stat this, theirs;
        int fd;

        if (!(p->flags & ND_FLAG_FD)) { /* the answer */
                nd_assert(p->segment == peer->segment && !peer->is_announced);
                peer->is_announced = true;
                return;
        }
        /* one that was about to be sent may be overtaken by a later one */
        nd_assert(p->segment > 0 && p->segment < HANDED_MAX);
        nd_assert(peer->handed[p->segment] == NOT_HANDED);
        if (p->segment > peer->last_handed)
                peer->last_handed = p->segment;
        peer->handed[p->segment] = HANDED;
        fd = nd_embedded_take_fd(&peer->end);
        nd_assert(nd_segment_check(fd, p->place, NULL) == 0);
        nd_assert(fstat(fd, &this) == 0 && fstat(nd_embedded_segment()->fd, &theirs) == 0);
        if (this.st_ino == theirs.st_ino) {
                close(fd);
                return;
        }
        nd_assert(nd_segment_map_read(fd, p->place, &peer->own[p->segment], NULL) == 0);
        nd_segment_close_fd(&peer->own[p->segment]);
}

static void hear_segment_gone(struct peer *peer, const struct nd_prelude *p)
{
        nd_assert(p->segment < HANDED_MAX);
        nd_assert(peer->handed[p->segment] == HANDED || peer->handed[p->segment] == UNMAPPABLE);
        peer->handed[p->segment] = GONE;
}

/* Blocks of its own come back: nobody holds them. */
static void hear_release(struct peer *peer, const struct nd_prelude *p, const uint8_t *body)
{
        struct nd_release_reader reader = {.data = body, .n = p->body_bytes};
        uint32_t segment;
        uint64_t place;
        int r;

        while ((r = nd_release_next(&reader, &segment, &place, NULL)) > 0) {
                nd_assert(segment == peer->segment && place % SLOT_BYTES == 0);
                nd_assert(peer->is_out[place / SLOT_BYTES]);
                peer->is_out[place / SLOT_BYTES] = false;
                --peer->n_out;
                for (size_t i = 0; i < PEERS_N; ++i) {
                        for (size_t k = 0; k < peers[i].n_held; ++k)
                                nd_assert(peers[i].held[k].source != peer->source ||
                                          peers[i].held[k].place != place ||
                                          peers[i].own[peers[i].held[k].segment].base);
                }
        }
        nd_assert(r == 0);
}

static void hear_message(struct peer *peer, const struct nd_packet *packet, const uint8_t *body)
{
        const struct nd_prelude *p = &packet->prelude;
        struct subscription *sub = peer_subscription(peer, p->subscription);
        struct stream *stream = NULL;

        for (size_t i = 0; i < STREAMS_N && !stream; ++i) {
                if (!peer->streams[i].is_there)
                        stream = &peer->streams[i];
        }
        nd_assert(stream); /* two for each subscription are all that there can be */
        nd_assert(p->source != 0 && p->sequence > 0);
        if (p->flags & ND_FLAG_BODY_IN_CHUNKS)
                nd_assert(!peer_stream(peer, p->stream));
        *stream = (struct stream){
                .is_there = true,
                .number = p->stream,
                .subscription = p->subscription,
                .is_old = p->flags & ND_FLAG_RETAINED,
                .delivery = ++sub->n_deliveries,
                .body_bytes = p->body_bytes,
                .at_topic = header_topic(packet),
                .source = p->source,
                .sequence = p->sequence,
        };
        if (p->flags & ND_FLAG_BODY_IN_BLOCK)
                hear_block(peer, stream, p);
        else if (!(p->flags & ND_FLAG_BODY_IN_CHUNKS))
                hear_body(peer, stream, body, p->body_bytes);
}

static void hear(void *userdata, const struct nd_packet *packet, const uint8_t *body)
{
        const struct nd_prelude *p = &packet->prelude;
        struct peer *peer = userdata;
        struct nd_error_header error;
        struct nd_welcome welcome;
        struct stream *stream;

        switch (p->kind) {
        case ND_KIND_WELCOME:
                nd_assert(nd_welcome_unpack(packet->header, p->header_bytes, &welcome, NULL) == 0);
                peer->source = welcome.source;
                peer->credit = welcome.grant_bytes;
                break;
        case ND_KIND_CREDIT:
                peer->credit += nd_load_le64(body + 8);
                break;
        case ND_KIND_MESSAGE:
                hear_message(peer, packet, body);
                break;
        case ND_KIND_CHUNK:
                stream = peer_stream(peer, p->stream);
                nd_assert(stream);
                nd_assert(p->place == stream->n_received);
                nd_assert(p->body_bytes <= stream->body_bytes - stream->n_received);
                hear_body(peer, stream, body, p->body_bytes);
                break;
        case ND_KIND_RESET:
                stream = peer_stream(peer, p->stream);
                nd_assert(stream);
                stream->is_there = false;
                break;
        case ND_KIND_GAP:
                nd_assert(p->place > 0);
                peer_subscription(peer, p->subscription)->n_dropped += p->place;
                break;
        case ND_KIND_SEGMENT:
                hear_segment(peer, p);
                break;
        case ND_KIND_SEGMENT_GONE:
                hear_segment_gone(peer, p);
                break;
        case ND_KIND_RELEASE:
                hear_release(peer, p, body);
                break;
        case ND_KIND_UNSUBSCRIBED:
                peer_subscription(peer, p->subscription)->is_there = false;
                break;
        case ND_KIND_ERROR: /* of a message or a request; never of the connection */
                nd_assert(nd_error_header_unpack(packet->header, p->header_bytes, &error, NULL) ==
                          0);
                nd_assert(!error.closes);
                nd_assert(error.of != ND_KIND_SEGMENT);
                if (error.of == ND_KIND_SUBSCRIBE)
                        peer->subscriptions[(peer->last_id - 1) % SUBSCRIPTIONS_N].is_there = false;
                break;
        default:
                break;
        }
}

/* -------------------------------------------------------------------------------------- saying */

static void say(struct peer *peer,
                struct nd_prelude prelude,
                const void *header,
                size_t n_header,
                const void *body,
                size_t n_body)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        prelude.header_bytes = (uint32_t)n_header;
        nd_prelude_pack(&prelude, bytes);
        while (!nd_embedded_send(&peer->end, bytes, sizeof(bytes)))
                nd_embedded_read(&peer->end, SIZE_MAX, hear, peer);
        /* what has begun is read to its end */
        nd_assert(n_header == 0 || nd_embedded_send(&peer->end, header, n_header));
        nd_assert(n_body == 0 || nd_embedded_send(&peer->end, body, n_body));
}

static void announce(struct peer *peer)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_SEGMENT,
                .flags = ND_FLAG_FD,
                .segment = ++peer->segment,
                .place = ND_EMBEDDED_SEGMENT_BYTES,
                .sequence = ++peer->n_requests,
        };
        uint8_t bytes[ND_PRELUDE_BYTES];

        peer->is_announced = false;
        nd_prelude_pack(&prelude, bytes);
        nd_embedded_send_fd(&peer->end, bytes, sizeof(bytes), nd_embedded_segment()->fd);
}

static void release(struct peer *peer, size_t n)
{
        static uint8_t body[ND_CONTROL_BODY_BYTES_MAX];
        struct nd_release_writer writer = {.data = body};

        while (n > 0 && peer->n_held > 0 &&
               nd_release_add(&writer, peer->held[peer->n_held - 1].segment,
                              peer->held[peer->n_held - 1].place)) {
                --peer->n_held;
                --n;
        }
        if (writer.n > 0)
                say(peer, (struct nd_prelude){.kind = ND_KIND_RELEASE, .body_bytes = writer.n},
                    NULL, 0, body, writer.n);
}

/* A segment that it cannot map: what it has in it is released. */
static void refuse(struct peer *peer, uint32_t number)
{
        size_t n = 0;

        if (peer->handed[number] != HANDED)
                return;
        peer->handed[number] = UNMAPPABLE;
        for (size_t i = 0; i < peer->n_held; ++i) {
                if (peer->held[i].segment != number)
                        peer->held[n++] = peer->held[i];
        }
        peer->n_held = n;
        say(peer,
            (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = number, .sequence = 1},
            NULL, 0, NULL, 0);
}

static void shared_memory(struct peer *peer, uint8_t what, uint8_t arg)
{
        if (!peer->has_shm)
                return;
        if (what == 2) {
                release(peer, 1);
        } else if (what == 4) {
                release(peer, SIZE_MAX);
        } else if (arg & 1) {
                refuse(peer, 1 + (arg >> 1) % HANDED_MAX % (peer->last_handed + 1));
        } else if (peer->is_announced && peer->n_out == 0) {
                say(peer,
                    (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = peer->segment},
                    NULL, 0, NULL, 0);
                announce(peer);
        }
}

static void peer_open(struct peer *peer)
{
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        const bool has_shm = peer != &peers[PEERS_N - 1];
        const struct nd_connect connect = {
                .features = has_shm ? ND_FEATURE_SHM : 0,
                .client = ND_STRING("traffic"),
        };
        struct nd_control_bytes header;
        uint8_t bytes[ND_HELLO_BYTES];

        memset(peer, 0, sizeof(*peer));
        peer->has_shm = has_shm;
        nd_embedded_open(&peer->end, false);
        nd_hello_pack(&hello, bytes);
        nd_assert(nd_embedded_send(&peer->end, bytes, sizeof(bytes)));
        nd_connect_pack(&connect, &header);
        say(peer, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1}, header.data,
            header.n, NULL, 0);
        for (int i = 0; i < 4 && peer->source == 0; ++i) {
                nd_embedded_run(1);
                nd_embedded_read(&peer->end, SIZE_MAX, hear, peer);
        }
        if (has_shm)
                announce(peer);
}

static void peer_close(struct peer *peer)
{
        nd_embedded_close(&peer->end);
        peer->n_held = 0;
        for (uint32_t i = 1; i <= peer->last_handed; ++i) {
                if (peer->own[i].base)
                        nd_segment_close(&peer->own[i]);
        }
        nd_embedded_run(1);
}

static size_t make_header(uint32_t topic, uint64_t body_bytes, void **ret)
{
        int64_t shape = (int64_t)body_bytes;
        struct nd_frame frame = {
                .array = {.ndim = 1, .shape = &shape, .lanes = 1},
                .bytes = body_bytes,
        };
        const struct nd_header header = {
                .topic = topic_names[topic],
                .n_topic = strlen(topic_names[topic]),
                .n_frames = body_bytes > 0,
                .frames = &frame,
        };
        size_t n;

        nd_assert(nd_header_pack(&header, ret, &n) == 0);
        return n;
}

static void publish(struct peer *peer, uint8_t what, uint8_t size, bool in_chunks)
{
        static const uint64_t sizes[] = {0,     1,     100,    4000,    20000,
                                         65536, 65600, 300000, 1048576, 1500000};
        uint64_t body_bytes = sizes[size % nd_array_size(sizes)];
        nd_autofree void *header = NULL;
        size_t n_header = make_header(what % TOPICS_N, body_bytes, &header);
        struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .flags = what & 64 ? ND_FLAG_RETAINED : 0,
                .body_bytes = body_bytes,
        };
        uint64_t n = ND_PRELUDE_BYTES + n_header;

        if (peer->open.stream)
                return;
        in_chunks = body_bytes > 0 && (in_chunks || n + body_bytes > peer->credit ||
                                       body_bytes > ND_PACKET_BODY_BYTES_MAX);
        if (!in_chunks)
                n += body_bytes;
        if (n > peer->credit)
                return;
        peer->credit -= n;
        prelude.sequence = ++peer->n_published;
        if (in_chunks) {
                peer->open.stream = prelude.stream = ++peer->last_stream;
                peer->open.body_bytes = body_bytes;
                peer->open.place = 0;
                prelude.flags |= ND_FLAG_BODY_IN_CHUNKS;
        }
        say(peer, prelude, header, n_header, bodies(0), in_chunks ? 0 : body_bytes);
}

static void publish_block(struct peer *peer, uint8_t what, uint8_t size)
{
        static const uint64_t sizes[] = {1,     64,    100,    4000,    4200,
                                         65536, 70000, 300000, 1000000, 2000000};
        uint64_t body_bytes = sizes[size % nd_array_size(sizes)];
        uint64_t slot = size / nd_array_size(sizes) % SLOTS_N;
        nd_autofree void *header = NULL;
        size_t n_header = make_header(what % TOPICS_N, body_bytes, &header);
        const struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .flags = ND_FLAG_BODY_IN_BLOCK | (what & 64 ? ND_FLAG_RETAINED : 0),
                .body_bytes = body_bytes,
                .segment = peer->segment,
                .place = slot * SLOT_BYTES,
                .sequence = peer->n_published + 1,
        };

        if (!peer->is_announced || peer->is_out[slot] || peer->open.stream ||
            ND_PRELUDE_BYTES + n_header > peer->credit ||
            body_bytes > ND_EMBEDDED_SEGMENT_BYTES - prelude.place)
                return;
        peer->credit -= ND_PRELUDE_BYTES + n_header;
        ++peer->n_published;
        peer->is_out[slot] = true;
        ++peer->n_out;
        say(peer, prelude, header, n_header, NULL, 0);
}

static void publish_chunk(struct peer *peer, uint8_t size)
{
        uint64_t n = nd_min_u64(1 + (uint64_t)size * size * 17,
                                peer->open.body_bytes - peer->open.place);

        n = nd_min_u64(n, ND_PACKET_BODY_BYTES_MAX);
        if (!peer->open.stream || peer->credit <= ND_PRELUDE_BYTES)
                return;
        n = nd_min_u64(n, peer->credit - ND_PRELUDE_BYTES);
        peer->credit -= ND_PRELUDE_BYTES + n;
        say(peer,
            (struct nd_prelude){.kind = ND_KIND_CHUNK,
                                .stream = peer->open.stream,
                                .place = peer->open.place,
                                .body_bytes = n},
            NULL, 0, bodies(peer->open.place), n);
        peer->open.place += n;
        if (peer->open.place == peer->open.body_bytes)
                peer->open.stream = 0;
}

static void subscribe(struct peer *peer, uint8_t what, uint8_t limits)
{
        const char *pattern = patterns[what % nd_array_size(patterns)];
        struct nd_subscribe ask = {
                .pattern = {pattern, strlen(pattern)},
                .policy = (enum nd_policy)(limits % 5),
                .depth_messages = 1 + limits / 5 % 4,
                .depth_bytes = limits & 128 ? 70000 : 4 * ND_MIB,
                .window_messages = 1 + limits / 16 % 3,
                .window_bytes = limits & 64 ? 30000 : 2 * ND_MIB,
                .retained = true,
        };
        struct nd_control_bytes header;
        struct subscription *sub;

        if (peer->last_id == SUBSCRIPTIONS_N)
                return;
        if (what & 32 && ask.policy != ND_POLICY_LATEST) {
                ask.group = ND_STRING("g");
                ask.retained = false;
                ask.depth_messages = 3;
                ask.policy = what & 64 ? ND_POLICY_BLOCK : ND_POLICY_DROP_OLDEST;
                ask.depth_bytes = ND_MIB;
        }
        if (ask.policy == ND_POLICY_LATEST)
                ask.window_messages = 0;
        sub = &peer->subscriptions[peer->last_id++ % SUBSCRIPTIONS_N];
        *sub = (struct subscription){
                .is_there = true,
                .is_group = ask.group.n > 0,
                .is_latest = ask.policy == ND_POLICY_LATEST,
                .n_to_grant = ask.policy == ND_POLICY_LATEST,
        };
        nd_subscribe_pack(&ask, &header);
        say(peer,
            (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE,
                                .sequence = ++peer->n_requests,
                                .subscription = peer->last_id},
            header.data, header.n, NULL, 0);
}

static void grant(struct peer *peer, uint32_t id)
{
        struct subscription *sub;
        uint8_t body[sizeof(sub->unfinished)];
        size_t n = 16;

        if (peer->last_id == 0)
                return;
        id = 1 + id % peer->last_id;
        sub = peer_subscription(peer, id);
        if (!sub->is_there || (sub->is_group ? sub->n_unfinished == 0 : sub->n_to_grant == 0))
                return;
        if (sub->is_group) {
                n = 8 * sub->n_unfinished;
                for (size_t i = 0; i < sub->n_unfinished; ++i)
                        nd_store_le64(body + 8 * i, sub->unfinished[sub->n_unfinished - 1 - i]);
                sub->n_unfinished = 0;
        } else {
                nd_store_le64(body, sub->is_latest ? 1 : sub->n_to_grant);
                nd_store_le64(body + 8, sub->is_latest ? 0 : sub->to_grant_bytes);
                sub->n_to_grant = 0;
                sub->to_grant_bytes = 0;
        }
        say(peer, (struct nd_prelude){.kind = ND_KIND_CREDIT, .subscription = id, .body_bytes = n},
            NULL, 0, body, n);
}

static void ask_topic(struct peer *peer, uint8_t what)
{
        const char *name = topic_names[what % TOPICS_N];
        const struct nd_topic_header ask = {
                .topic = {name, strlen(name)},
                .watch = what & 32,
        };
        struct nd_control_bytes header;

        nd_topic_header_pack(&ask, false, &header);
        say(peer, (struct nd_prelude){.kind = ND_KIND_TOPIC, .sequence = ++peer->n_requests},
            header.data, header.n, NULL, 0);
}

static void step(const uint8_t *at)
{
        struct peer *peer = &peers[at[0] % PEERS_N];
        uint32_t id;

        switch (at[0] / PEERS_N % 14) {
        case 0:
        case 1:
                if (at[1] & 128)
                        publish_block(peer, at[1], at[2]);
                else
                        publish(peer, at[1], at[2], false);
                break;
        case 2:
                publish(peer, at[1], at[2], true);
                break;
        case 3:
        case 4:
                publish_chunk(peer, at[1]);
                break;
        case 5:
                if (!peer->open.stream)
                        break;
                say(peer, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = peer->open.stream},
                    NULL, 0, NULL, 0);
                peer->open.stream = 0;
                break;
        case 6:
                subscribe(peer, at[1], at[2]);
                break;
        case 7:
                if (peer->last_id == 0)
                        break;
                id = 1 + at[1] % peer->last_id;
                say(peer,
                    (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE,
                                        .sequence = ++peer->n_requests,
                                        .subscription = id},
                    NULL, 0, NULL, 0);
                break;
        case 8:
                nd_embedded_read(&peer->end, (size_t)at[1] * at[1] * 100, hear, peer);
                break;
        case 9:
                nd_embedded_read(&peer->end, SIZE_MAX, hear, peer);
                break;
        case 10:
                grant(peer, at[1]);
                break;
        case 11:
                if (at[1] % 4 == 0) {
                        peer_close(peer);
                        peer_open(peer);
                } else if (at[1] % 4 == 1) {
                        say(peer, (struct nd_prelude){.kind = ND_KIND_GOODBYE}, NULL, 0, NULL, 0);
                        if (at[2] & 1)
                                release(peer, at[2]);
                        nd_embedded_run(1);
                        peer_close(peer);
                        peer_open(peer);
                } else {
                        ask_topic(peer, at[2]);
                }
                break;
        case 12:
                if (at[1] % 8 != 0 && at[1] % 2 == 0) {
                        shared_memory(peer, at[1] % 8, at[2]);
                        break;
                }
                say(peer,
                    (struct nd_prelude){.kind = at[1] & 1 ? ND_KIND_STATS : ND_KIND_PING,
                                        .sequence = ++peer->n_requests},
                    NULL, 0, NULL, 0);
                break;
        default:
                nd_embedded_later(at[1] == 255 ? 61000 : at[1] * 10u);
        }
}

/* --------------------------------------------------------------------------------- at the end */

static bool read_and_grant(void)
{
        bool has_moved = false;

        for (size_t i = 0; i < PEERS_N; ++i) {
                for (uint32_t id = 0; id < peers[i].last_id; ++id) {
                        struct subscription *sub = peer_subscription(&peers[i], id + 1);
                        uint64_t n = sub->n_deliveries + sub->n_dropped;

                        grant(&peers[i], id);
                        nd_embedded_run(2);
                        nd_embedded_read(&peers[i].end, SIZE_MAX, hear, &peers[i]);
                        has_moved |= n != sub->n_deliveries + sub->n_dropped;
                }
        }
        return has_moved;
}

static void check_sums(void)
{
        nd_list_for_each (i, &nd_embedded_server()->connections) {
                struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);
                struct nd_subscription *subscription;
                struct peer *peer = NULL;

                for (size_t k = 0; k < PEERS_N; ++k) {
                        if (peers[k].source == connection->source)
                                peer = &peers[k];
                }
                RB_FOREACH (subscription, nd_subscription_tree, &connection->subscriptions) {
                        const struct nd_queue *queue = &subscription->sink->queue;
                        const struct subscription *sub;

                        nd_assert(peer);
                        sub = peer_subscription(peer, subscription->id);
                        if (!sub->is_there || sub->is_group)
                                continue;
                        nd_assert(queue->n_messages == 0);
                        nd_assert(queue->n_delivered == sub->n_received);
                        nd_assert(nd_queue_dropped(queue) == sub->n_dropped);
                }
        }
}

/* All that is out is retained, and its publisher knows of everything else. */
static void check_blocks(void)
{
        nd_list_for_each (i, &nd_embedded_server()->shares) {
                const struct nd_share *share = nd_list_entry(i, struct nd_share, in_server);

                nd_assert(share->n_blocks == share->n_wanted);
                for (size_t k = 0; k < PEERS_N; ++k) {
                        if (share->owner && share->owner->source == peers[k].source)
                                nd_assert(share->n_blocks == peers[k].n_out);
                }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        for (size_t i = 0; i < PEERS_N; ++i)
                peer_open(&peers[i]);
        for (size_t i = 0; i + 3 <= n_data && i < 3 * STEPS_MAX; i += 3) {
                step(data + i);
                if (data[i] & 128)
                        nd_embedded_run(1 + (data[i] >> 6 & 1));
                nd_embedded_check();
                for (size_t k = 0; k < PEERS_N; ++k)
                        nd_assert(!peers[k].end.has_ended);
        }
        nd_embedded_run(4);
        for (size_t i = 0; i < PEERS_N; ++i) {
                nd_embedded_read(&peers[i].end, SIZE_MAX, hear, &peers[i]);
                if (peers[i].open.stream)
                        say(&peers[i],
                            (struct nd_prelude){.kind = ND_KIND_RESET,
                                                .stream = peers[i].open.stream},
                            NULL, 0, NULL, 0);
        }
        for (int i = 0, still = 0; i < 2000 && still < 3; ++i)
                still = read_and_grant() ? 0 : still + 1;
        for (size_t i = 0; i < PEERS_N; ++i) {
                while (peers[i].n_held > 0)
                        release(&peers[i], SIZE_MAX);
        }
        nd_embedded_run(4);
        for (size_t i = 0; i < PEERS_N; ++i)
                nd_embedded_read(&peers[i].end, SIZE_MAX, hear, &peers[i]);
        check_sums();
        check_blocks();
        for (size_t i = 0; i < PEERS_N; ++i)
                peer_close(&peers[i]);
        nd_embedded_run(3);
        nd_embedded_check_empty();
        return 0;
}
