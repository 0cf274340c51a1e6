/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: a ring beside a socket
 *
 * The input is a list of steps of one client: it publishes through its ring and by its socket, in
 * whatever order they then arrive, lets the daemon run, reads, and lies: it writes any bytes into either
 * way, any positions into the ring, and over what it has written there. Whatever it does: the daemon does
 * not crash, what it answers is well-formed, its numbers add up, and nothing is kept of who has gone. And of
 * a client that has kept to the rules everything is taken, and nothing lies in a ring that nobody looks into.
 *
 * Byte 0: 1 the ring is there from the start; 2 there is a subscriber to everything; 4 the client goes in
 * the end without a word; 8 it rings its bell rather than send WAKE. Each step is a byte, enum step, and what it needs.
 */

#include <linux/sockios.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "protocol/control.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "protocol/shm/release.h"
#include "protocol/shm/ring.h"
#include "tests/support/embedded.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

enum step {
        STEP_RUN,
        STEP_RING_PUBLISH,
        STEP_SOCKET_BLOCK,
        STEP_SOCKET_PUBLISH,
        STEP_OPEN_STREAM,
        STEP_CHUNK,
        STEP_RESET,
        STEP_SEND,
        STEP_READ,
        STEP_SUBSCRIBER_READ,
        STEP_ASK,
        STEP_RING,
        STEP_WAKE,
        STEP_SOCKET_BYTES,
        STEP_RING_BYTES,
        STEP_POKE,
        _STEP_N,
};

#define STEPS_MAX    1000u
#define SLOTS_N      64u
#define SLOT_BYTES   (ND_EMBEDDED_SEGMENT_BYTES / SLOTS_N)
#define STREAM_BYTES 100u
#define OUTPUT_BYTES ((size_t)256 << 10)

static struct client {
        struct nd_embedded_peer end;
        struct nd_ring ring;
        bool has_asked;
        bool is_open;  /* the daemon has answered about the ring */
        int bell;      /* -1: there is none yet */
        bool rings;    /* the bell, when there is one */
        bool has_lied; /* it has done what no client does */
        bool must_end; /* and for that alone it must be thrown out */
        uint64_t source;
        uint64_t credit;
        uint64_t n_published;
        uint32_t n_requests;
        uint64_t n_heard; /* packets */
        uint32_t last_stream;
        uint64_t stream_left; /* of the one that is open */
        bool is_out[SLOTS_N];
        uint8_t output[OUTPUT_BYTES]; /* what it has to send */
        size_t n_output;
} client;

static struct nd_embedded_peer subscriber;

/* --------------------------------------------------------------------------------------- input */

struct input {
        const uint8_t *data;
        size_t n;
};

static uint8_t next_byte(struct input *in)
{
        if (in->n == 0)
                return 0;
        --in->n;
        return *in->data++;
}

static uint64_t next_number(struct input *in)
{
        uint64_t number = 0;

        for (int i = 0; i < 8; ++i)
                number |= (uint64_t)next_byte(in) << 8 * i;
        return number;
}

static const uint8_t *next_bytes(struct input *in, size_t *ret_n)
{
        size_t n = nd_min_u64(next_byte(in), in->n);
        const uint8_t *bytes = in->data;

        in->data += n;
        in->n -= n;
        *ret_n = n;
        return bytes;
}

/* ------------------------------------------------------------------------------------- hearing */

static void hear_release(const struct nd_packet *packet, const uint8_t *body)
{
        struct nd_release_reader reader = {.data = body, .n = packet->prelude.body_bytes};
        uint32_t segment;
        uint64_t place;
        int r;

        while ((r = nd_release_next(&reader, &segment, &place, NULL)) > 0) {
                if (client.has_lied)
                        continue;
                nd_assert(segment == 1 && place % SLOT_BYTES == 0);
                nd_assert(client.is_out[place / SLOT_BYTES]);
                client.is_out[place / SLOT_BYTES] = false;
        }
        nd_assert(r == 0);
}

static void hear(void *unused, const struct nd_packet *packet, const uint8_t *body)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_error_header error;
        struct nd_welcome welcome;

        (void)unused;
        ++client.n_heard;
        switch (p->kind) {
        case ND_KIND_WELCOME:
                nd_assert(nd_welcome_unpack(packet->header, p->header_bytes, &welcome, NULL) == 0);
                nd_assert(welcome.features & ND_FEATURE_RING);
                client.source = welcome.source;
                client.credit = welcome.grant_bytes;
                break;
        case ND_KIND_CREDIT:
                client.credit += nd_load_le64(body + 8);
                break;
        case ND_KIND_RELEASE:
                hear_release(packet, body);
                break;
        case ND_KIND_RING:
                nd_assert(client.has_asked || client.has_lied);
                client.is_open = client.has_asked;
                nd_assert(p->flags == ND_FLAG_FD && client.bell < 0);
                client.bell = nd_embedded_take_fd(&client.end);
                break;
        case ND_KIND_ERROR:
                nd_assert(nd_error_header_unpack(packet->header, p->header_bytes, &error, NULL) ==
                          0);
                nd_assert(client.has_lied || (!error.closes && error.of == ND_KIND_PUBLISH));
                break;
        default:
                break;
        }
}

static void hear_nothing(void *unused, const struct nd_packet *packet, const uint8_t *body)
{
        (void)unused;
        (void)packet;
        (void)body;
}

static void read_all(void)
{
        nd_embedded_read(&client.end, SIZE_MAX, hear, NULL);
        nd_embedded_read(&subscriber, SIZE_MAX, hear_nothing, NULL);
}

/* -------------------------------------------------------------------------------------- saying */

/* @must_end: if it is the only one */
static void lie(bool must_end)
{
        client.must_end = must_end && !client.has_lied;
        client.has_lied = true;
}

static void send_output(size_t n)
{
        n = nd_min_u64(n, client.n_output);
        /* it reads, lest the daemon stops to do so */
        while (!nd_embedded_send(&client.end, client.output, n)) {
                lie(false); /* some of it was sent, and is sent again */
                read_all();
        }
        client.n_output -= n;
        memmove(client.output, client.output + n, client.n_output);
}

static void put_output(const void *bytes, size_t n)
{
        if (n > OUTPUT_BYTES - client.n_output)
                send_output(SIZE_MAX);
        memcpy(client.output + client.n_output, bytes, n);
        client.n_output += n;
}

static size_t
make_packet(uint8_t *packet, struct nd_prelude prelude, const void *header, size_t n_header)
{
        prelude.header_bytes = (uint32_t)n_header;
        nd_prelude_pack(&prelude, packet);
        if (n_header > 0)
                memcpy(packet + ND_PRELUDE_BYTES, header, n_header);
        return ND_PRELUDE_BYTES + n_header;
}

static void say(struct nd_prelude prelude, const struct nd_control_bytes *header)
{
        uint8_t packet[ND_PRELUDE_BYTES + ND_CONTROL_HEADER_BYTES_MAX];

        put_output(packet, make_packet(packet, prelude, header ? header->data : NULL,
                                       header ? header->n : 0));
}

/* One without a body in it, if it may be sent. Return: its bytes; 0: it may not */
static size_t make_publish(uint8_t packet[static 512],
                           struct nd_prelude prelude,
                           uint8_t what,
                           uint64_t more_bytes)
{
        static const char *const topics[] = {"a", "a/b", "c", "$refused"};
        const char *topic = topics[what % nd_array_size(topics)];
        int64_t shape = (int64_t)prelude.body_bytes;
        struct nd_frame frame = {
                .array = {.ndim = 1, .shape = &shape, .lanes = 1},
                .bytes = prelude.body_bytes,
        };
        const struct nd_header header = {
                .topic = topic,
                .n_topic = strlen(topic),
                .n_frames = 1,
                .frames = &frame,
        };
        nd_autofree void *bytes = NULL;
        size_t n, n_header;

        nd_assert(nd_header_pack(&header, &bytes, &n_header) == 0);
        prelude.kind = ND_KIND_PUBLISH;
        prelude.sequence = client.n_published + 1;
        if (what & 128)
                prelude.flags |= ND_FLAG_RETAINED;
        n = make_packet(packet, prelude, bytes, n_header);
        if (n + more_bytes > client.credit)
                return 0;
        client.credit -= n + more_bytes;
        return n;
}

static bool ring_bell(uint64_t n)
{
        return client.bell >= 0 && write(client.bell, &n, sizeof(n)) == (ssize_t)sizeof(n);
}

static void call_daemon(void)
{
        if (!client.rings || !ring_bell(1))
                say((struct nd_prelude){.kind = ND_KIND_WAKE}, NULL);
}

static void publish_block(uint8_t what, bool by_ring)
{
        static const uint64_t sizes[] = {1, 64, 4000, SLOT_BYTES};
        struct nd_prelude prelude = {
                .flags = ND_FLAG_BODY_IN_BLOCK,
                .body_bytes = sizes[what >> 2 & 3],
                .segment = 1,
        };
        uint8_t packet[512];
        size_t i, n;

        for (i = 0; i < SLOTS_N && client.is_out[i];)
                ++i;
        prelude.place = i * SLOT_BYTES;
        if (i == SLOTS_N || (by_ring && !client.is_open))
                return;
        n = make_publish(packet, prelude, what, 0);
        if (n == 0)
                return;
        if (by_ring && !nd_ring_put(&client.ring, packet, n)) {
                client.credit += n;
                return;
        }
        if (!by_ring)
                put_output(packet, n);
        else if (nd_ring_must_wake(&client.ring))
                call_daemon();
        client.is_out[i] = true;
        ++client.n_published;
}

static void publish_inline(uint8_t what)
{
        static const uint8_t body[1000];
        uint8_t packet[512];
        size_t n = make_publish(packet, (struct nd_prelude){.body_bytes = sizeof(body)}, what,
                                sizeof(body));

        if (n == 0 || client.stream_left > 0)
                return;
        put_output(packet, n);
        put_output(body, sizeof(body));
        ++client.n_published;
}

static void open_stream(uint8_t what)
{
        uint8_t packet[512];
        size_t n;

        if (client.stream_left > 0)
                return;
        n = make_publish(packet,
                         (struct nd_prelude){.flags = ND_FLAG_BODY_IN_CHUNKS,
                                             .body_bytes = STREAM_BYTES,
                                             .stream = client.last_stream + 1},
                         what, 0);
        if (n == 0)
                return;
        put_output(packet, n);
        ++client.last_stream;
        ++client.n_published;
        client.stream_left = STREAM_BYTES;
}

static void continue_stream(uint64_t n)
{
        static const uint8_t body[STREAM_BYTES];
        struct nd_prelude prelude = {
                .kind = ND_KIND_CHUNK,
                .stream = client.last_stream,
                .place = STREAM_BYTES - client.stream_left,
        };

        n = nd_min_u64(n, client.stream_left);
        if (n == 0 || ND_PRELUDE_BYTES + n > client.credit)
                return;
        client.credit -= ND_PRELUDE_BYTES + n;
        prelude.body_bytes = n;
        say(prelude, NULL);
        put_output(body, n);
        client.stream_left -= n;
}

static void reset_stream(void)
{
        if (client.stream_left == 0)
                return;
        say((struct nd_prelude){.kind = ND_KIND_RESET, .stream = client.last_stream}, NULL);
        client.stream_left = 0;
}

static void ask_for_ring(void)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_RING,
                .flags = ND_FLAG_FD,
                .place = ND_RING_FILE_BYTES,
                .sequence = ++client.n_requests,
        };
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_ring ring;
        int fd;

        send_output(SIZE_MAX);
        nd_assert(nd_ring_create(&ring, &fd, NULL) == 0);
        nd_prelude_pack(&prelude, bytes);
        nd_embedded_send_fd(&client.end, bytes, sizeof(bytes), fd);
        close(fd);
        if (client.has_asked) {
                lie(true); /* there is one for a connection */
                nd_ring_close(&ring);
        } else {
                client.has_asked = true;
                client.ring = ring;
        }
}

/* ---------------------------------------------------------------------------------------- lies */

static void spoil_bell(bool is_full)
{
        uint64_t n;

        while (read(client.bell, &n, sizeof(n)) > 0)
                ;
        if (is_full)
                (void)ring_bell(UINT64_MAX - 1);
}

static void poke(struct input *in)
{
        struct nd_ring *ring = &client.ring;
        const uint8_t *bytes;
        uint64_t at;
        size_t n;

        lie(false);
        switch (next_byte(in) % 6) {
        case 0:
                ring->position = next_number(in);
                atomic_store(&ring->head->written, ring->position);
                break;
        case 1: /* a little more or less */
                ring->position += (uint64_t)(int8_t)next_byte(in);
                atomic_store(&ring->head->written, ring->position);
                break;
        case 2:
                atomic_store(&ring->head->taken, next_number(in));
                break;
        case 3:
                at = next_byte(in);
                atomic_store(&ring->head->is_asleep, (uint32_t)at);
                if (at >= 128 && client.bell >= 0)
                        spoil_bell(at & 1);
                break;
        case 4: /* over what was written before */
                at = ring->position - next_byte(in);
                bytes = next_bytes(in, &n);
                for (size_t i = 0; i < n; ++i)
                        ring->data[(at + i) % ND_RING_BYTES] = bytes[i];
                break;
        default:
                client.n_published += (uint64_t)(int8_t)next_byte(in);
        }
}

static void put_ring_bytes(const uint8_t *bytes, size_t n)
{
        if (!client.is_open || n == 0 || !nd_ring_put(&client.ring, bytes, n))
                return;
        lie(bytes[0] != ND_KIND_PUBLISH ||
            (n >= 4 && !(nd_load_le16(bytes + 2) & ND_FLAG_BODY_IN_BLOCK)));
        if (nd_ring_must_wake(&client.ring))
                call_daemon();
}

static void step(struct input *in)
{
        const uint8_t *bytes;
        uint8_t what, n_times;
        size_t n;

        switch (next_byte(in) % _STEP_N) {
        case STEP_RUN:
                nd_embedded_run(1 + next_byte(in) % 4);
                break;
        case STEP_RING_PUBLISH:
                what = next_byte(in);
                n_times = next_byte(in) % 64;
                for (uint8_t i = 0; i <= n_times; ++i)
                        publish_block(what, true);
                break;
        case STEP_SOCKET_BLOCK:
                what = next_byte(in);
                if (client.stream_left == 0)
                        publish_block(what, false);
                break;
        case STEP_SOCKET_PUBLISH:
                publish_inline(next_byte(in));
                break;
        case STEP_OPEN_STREAM:
                open_stream(next_byte(in));
                break;
        case STEP_CHUNK:
                continue_stream(next_byte(in));
                break;
        case STEP_RESET:
                reset_stream();
                break;
        case STEP_SEND:
                what = next_byte(in);
                send_output(what == 255 ? SIZE_MAX : what);
                break;
        case STEP_READ:
                nd_embedded_read(&client.end, 64u * next_byte(in), hear, NULL);
                break;
        case STEP_SUBSCRIBER_READ:
                nd_embedded_read(&subscriber, SIZE_MAX, hear_nothing, NULL);
                break;
        case STEP_ASK: /* for little or for much */
                say((struct nd_prelude){.kind = next_byte(in) & 1 ? ND_KIND_STATS : ND_KIND_PING,
                                        .sequence = ++client.n_requests},
                    NULL);
                break;
        case STEP_RING:
                ask_for_ring();
                break;
        case STEP_WAKE: /* also if it does not sleep */
                if (!client.has_asked)
                        lie(true);
                call_daemon();
                break;
        case STEP_SOCKET_BYTES:
                bytes = next_bytes(in, &n);
                lie(false);
                put_output(bytes, n);
                break;
        case STEP_RING_BYTES:
                bytes = next_bytes(in, &n);
                put_ring_bytes(bytes, n);
                break;
        default:
                if (client.ring.head)
                        poke(in);
        }
}

/* ------------------------------------------------------------------------------------- sessions */

static void
shake_hands(struct nd_embedded_peer *peer, uint32_t features, struct nd_control_bytes *header)
{
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        const struct nd_connect connect = {.features = features, .client = ND_STRING("fuzz")};
        uint8_t bytes[ND_PRELUDE_BYTES + ND_CONTROL_HEADER_BYTES_MAX];
        size_t n;

        nd_embedded_open(peer, false);
        nd_hello_pack(&hello, bytes);
        nd_assert(nd_embedded_send(peer, bytes, ND_HELLO_BYTES));
        nd_connect_pack(&connect, header);
        n = make_packet(bytes, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1},
                        header->data, header->n);
        nd_assert(nd_embedded_send(peer, bytes, n));
        nd_embedded_run(2); /* before that no descriptor may come */
}

static void open_client(void)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_SEGMENT,
                .flags = ND_FLAG_FD,
                .segment = 1,
                .place = ND_EMBEDDED_SEGMENT_BYTES,
                .sequence = 2,
        };
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_control_bytes header;

        client = (struct client){.n_requests = 2, .bell = -1};
        shake_hands(&client.end, ND_FEATURE_SHM | ND_FEATURE_RING | ND_FEATURE_BELL, &header);
        nd_prelude_pack(&prelude, bytes);
        nd_embedded_send_fd(&client.end, bytes, sizeof(bytes), nd_embedded_segment()->fd);
        nd_embedded_run(2);
        nd_embedded_read(&client.end, SIZE_MAX, hear, NULL);
        nd_assert(client.source > 0);
}

static void open_subscriber(void)
{
        const struct nd_subscribe ask = {
                .pattern = ND_STRING("**"),
                .depth_messages = 10,
                .depth_bytes = ND_MIB,
                .window_messages = 10,
                .window_bytes = ND_MIB,
        };
        uint8_t bytes[ND_PRELUDE_BYTES + ND_CONTROL_HEADER_BYTES_MAX];
        struct nd_control_bytes header;
        size_t n;

        shake_hands(&subscriber, 0, &header);
        nd_subscribe_pack(&ask, &header);
        n = make_packet(
                bytes,
                (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE, .sequence = 2, .subscription = 1},
                header.data, header.n);
        nd_assert(nd_embedded_send(&subscriber, bytes, n));
        nd_embedded_run(2);
}

/* Is something in its socket that the daemon has not read? It takes one packet at a time while a stream is open. */
static bool is_unread(void)
{
        int n = 0;

        nd_assert(client.end.has_ended || ioctl(client.end.fd, SIOCOUTQ, &n) == 0);
        return n > 0;
}

/* It has said everything, and reads everything. */
static void check_taken(void)
{
        const struct nd_connection *found = NULL;

        for (int i = 0, still = 0; i < 1000 && still < 4; ++i) {
                uint64_t n_heard = client.n_heard;

                continue_stream(client.stream_left);
                still = client.n_output > 0 ? 0 : still + 1;
                send_output(SIZE_MAX);
                nd_embedded_run(2);
                read_all();
                if (client.n_heard != n_heard || is_unread())
                        still = 0;
        }
        nd_assert(!client.must_end || client.stream_left > 0 || client.end.has_ended);
        if (client.has_lied)
                return;
        nd_assert(!client.end.has_ended);
        nd_list_for_each (i, &nd_embedded_server()->connections) {
                const struct nd_connection *connection =
                        nd_list_entry(i, struct nd_connection, in_server);

                if (connection->source == client.source)
                        found = connection;
        }
        nd_assert(found);
        nd_assert(client.stream_left == 0);
        nd_assert(nd_intake_is_empty(&found->intake));
        nd_assert(found->publisher.n_received == client.n_published);
        nd_assert(nd_list_is_empty(&found->intake.in_awake));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct input in = {data, n_data};
        uint8_t flags = next_byte(&in);

        subscriber = (struct nd_embedded_peer){.fd = -1};
        open_client();
        if (flags & 2)
                open_subscriber();
        client.rings = flags & 8;
        if (flags & 1) {
                ask_for_ring();
                nd_embedded_run(2);
                nd_embedded_read(&client.end, SIZE_MAX, hear, NULL);
                nd_assert(client.is_open);
        }
        for (unsigned i = 0; i < STEPS_MAX && in.n > 0 && !client.end.has_ended; ++i) {
                step(&in);
                nd_embedded_check();
        }
        nd_assert(client.has_lied || !client.end.has_ended);
        if (!(flags & 4))
                check_taken();
        nd_embedded_close(&client.end);
        /* a read takes no more than one packet at a time, or one descriptor, of what it left behind */
        for (unsigned i = 0;
             i < 100 * STEPS_MAX && nd_embedded_server()->n_connections > (subscriber.fd >= 0); ++i)
                nd_embedded_run(1);
        nd_ring_close(&client.ring);
        if (client.bell >= 0) {
                ring_bell(1);
                nd_embedded_run(2);
                close(client.bell);
        }
        nd_embedded_check();
        nd_embedded_read(&subscriber, SIZE_MAX, hear_nothing, NULL);
        nd_embedded_close(&subscriber);
        nd_embedded_run(3);
        nd_embedded_check_empty();
        nd_assert(nd_list_is_empty(&nd_embedded_server()->intakes));
        return 0;
}
