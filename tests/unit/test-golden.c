/* SPDX-License-Identifier: MIT */

/*
 * Golden bytes
 *
 * The examples of PROTOCOL.md are the files of tests/golden, made by hand and not by this code.
 * Here each is packed by the code and compared, and unpacked and compared; tests/checks/protocol
 * compares the files with the document. So the document, an independent encoder, and the code
 * agree, or a test says which does not.
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/control.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "protocol/index.h"
#include "protocol/reader.h"
#include "protocol/record.h"
#include "protocol/token.h"

#define SOURCE UINT64_C(0x9ae16a3b2f90404f)
#define TIME   UINT64_C(1700000000123456789)

static const struct nd_reader_limits from_client = {ND_FROM_CLIENT, 1 << 20, 1 << 20,
                                                    ND_FEATURE_SHM | ND_FEATURE_RING};
static const struct nd_reader_limits from_daemon = {ND_FROM_DAEMON, 1 << 20, 1 << 20,
                                                    ND_FEATURE_SHM | ND_FEATURE_RING};

/* 1.5, -2.25, 3.0: T01 */
static const uint8_t floats[12] = {0, 0, 0xc0, 0x3f, 0, 0, 0x10, 0xc0, 0, 0, 0x40, 0x40};
static const uint8_t meta[] = "\x81\xa5"
                              "frame\x01";
static const size_t n_meta = sizeof(meta) - 1;

/* what another HMAC-SHA-256 made of the example */
static const uint8_t auth_proof[32] = {0xf0, 0xd6, 0x85, 0x40, 0xee, 0xed, 0xa1, 0x3a,
                                       0x3e, 0x51, 0x86, 0xcb, 0xbd, 0x8e, 0xf6, 0x75,
                                       0x26, 0x76, 0x14, 0xfa, 0x59, 0xec, 0x7c, 0x39,
                                       0x19, 0xbc, 0x1f, 0x4e, 0xec, 0x64, 0x24, 0x01};

struct bytes {
        uint8_t data[4096];
        size_t n;
};

/* Hexadecimal bytes up to ';' in every line. */
static void load(const char *name, struct bytes *ret)
{
        char path[512], text[256];
        FILE *f;

        snprintf(path, sizeof(path), "%s/%s.hex", GOLDEN_DIR, name);
        f = fopen(path, "re");
        cr_assert_not_null(f, "%s", path);

        ret->n = 0;
        while (fgets(text, sizeof(text), f)) {
                text[strcspn(text, ";\n")] = '\0';
                for (char *at = text, *end; *at; at = end) {
                        unsigned long byte = strtoul(at, &end, 16);

                        if (end == at)
                                break;
                        cr_assert(byte <= UINT8_MAX && ret->n < sizeof(ret->data), "%s", path);
                        ret->data[ret->n++] = (uint8_t)byte;
                }
        }
        fclose(f);
}

static void expect_same(const char *name, const void *data, size_t n)
{
        struct bytes golden;

        load(name, &golden);
        cr_expect_eq(n, golden.n, "%s: %zu bytes, the file has %zu", name, n, golden.n);
        for (size_t i = 0; i < n && i < golden.n; ++i)
                cr_assert_eq(((const uint8_t *)data)[i], golden.data[i],
                             "%s: byte %zu is %02x, the file has %02x", name, i,
                             ((const uint8_t *)data)[i], golden.data[i]);
}

static void append(struct bytes *out, const void *data, size_t n)
{
        if (n)
                memcpy(out->data + out->n, data, n);
        out->n += n;
}

/* A packet with its sizes filled in; the body is @n_body bytes of this packet. */
static void append_packet(struct bytes *out,
                          struct nd_prelude prelude,
                          const void *header,
                          size_t n_header,
                          const void *packet_meta,
                          size_t n_packet_meta,
                          const void *body,
                          size_t n_body)
{
        prelude.header_bytes = (uint32_t)n_header;
        prelude.meta_bytes = (uint32_t)n_packet_meta;
        if (!(prelude.flags & (ND_FLAG_BODY_IN_CHUNKS | ND_FLAG_BODY_IN_BLOCK)))
                prelude.body_bytes = n_body;
        nd_prelude_pack(&prelude, out->data + out->n);
        out->n += ND_PRELUDE_BYTES;
        append(out, header, n_header);
        append(out, packet_meta, n_packet_meta);
        append(out, body, n_body);
}

/* Packs a control packet, compares, and finds it again in the file's bytes. */
static struct nd_packet control(const char *name,
                                const struct nd_reader_limits *limits,
                                struct nd_prelude prelude,
                                const struct nd_control_bytes *header,
                                const void *body,
                                size_t n_body)
{
        static struct bytes out, golden;
        struct nd_packet packet = {0};
        struct nd_fault fault = {0};
        size_t wanted;

        out.n = 0;
        append_packet(&out, prelude, header ? header->data : NULL, header ? header->n : 0, NULL, 0,
                      body, n_body);
        expect_same(name, out.data, out.n);

        load(name, &golden);
        cr_assert_eq(nd_reader_next(limits, golden.data, golden.n, &packet, &wanted, &fault), 0,
                     "%s: %s %s", name, fault.field, fault.text);
        cr_expect_eq(packet.n_bytes, golden.n, "%s", name);
        cr_expect_eq(packet.prelude.kind, prelude.kind, "%s", name);
        cr_expect_eq(packet.prelude.stream, prelude.stream, "%s", name);
        cr_expect_eq(packet.prelude.place, prelude.place, "%s", name);
        cr_expect_eq(packet.prelude.source, prelude.source, "%s", name);
        cr_expect_eq(packet.prelude.sequence, prelude.sequence, "%s", name);
        cr_expect_eq(packet.prelude.subscription, prelude.subscription, "%s", name);
        cr_expect_eq(packet.prelude.segment, prelude.segment, "%s", name);
        cr_expect_eq(packet.prelude.flags, prelude.flags, "%s", name);
        return packet;
}

static bool is_text(struct nd_string string, const char *text)
{
        return string.at && string.n == strlen(text) && memcmp(string.at, text, string.n) == 0;
}

Test(golden, hello)
{
        uint8_t out[ND_HELLO_BYTES];
        struct bytes golden;
        struct nd_hello hello;
        struct nd_hello_reply reply;

        nd_hello_pack(&(struct nd_hello){1, 1}, out);
        expect_same("hello", out, sizeof(out));
        load("hello", &golden);
        cr_expect_eq(nd_hello_unpack(golden.data, golden.n, &hello), 0);

        nd_hello_reply_pack(&(struct nd_hello_reply){1, 0, 1, 1}, out);
        expect_same("hello-answer", out, sizeof(out));
        load("hello-answer", &golden);
        cr_expect_eq(nd_hello_reply_unpack(golden.data, golden.n, &reply), 0);
        cr_expect_eq(reply.version, 1);

        nd_hello_reply_pack(&(struct nd_hello_reply){0, -NDBUS_ESERVER_FULL, 1, 1}, out);
        expect_same("hello-full", out, sizeof(out));
        load("hello-full", &golden);
        cr_expect_eq(nd_hello_reply_unpack(golden.data, golden.n, &reply), 0);
        cr_expect_eq(reply.reason, -NDBUS_ESERVER_FULL);
}

Test(golden, connect_and_welcome)
{
        struct nd_connect connect = {.client = ND_STRING("camera"), .pid = 4711};
        struct nd_welcome welcome = {
                .source = SOURCE,
                .grant_bytes = 65536,
                .message_bytes_max = UINT64_C(1) << 31,
                .header_bytes_max = 1 << 20,
                .meta_bytes_max = 1 << 20,
                .dims_max = 64,
                .subscriptions_max = 65536,
                .server = ND_STRING("ndbusd 0.1.0"),
        };
        struct nd_control_bytes header;
        struct nd_packet p;

        nd_connect_pack(&connect, &header);
        p = control("connect", &from_client,
                    (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1}, &header, NULL, 0);
        connect = (struct nd_connect){0};
        cr_assert_eq(nd_connect_unpack(p.header, p.prelude.header_bytes, &connect, NULL), 0);
        cr_expect(is_text(connect.client, "camera"));
        cr_expect_eq(connect.pid, 4711);

        nd_welcome_pack(&welcome, &header);
        p = control("welcome", &from_daemon,
                    (struct nd_prelude){.kind = ND_KIND_WELCOME, .sequence = 1, .source = SOURCE},
                    &header, NULL, 0);
        welcome = (struct nd_welcome){0};
        cr_assert_eq(nd_welcome_unpack(p.header, p.prelude.header_bytes, &welcome, NULL), 0);
        cr_expect_eq(welcome.source, SOURCE);
        cr_expect_eq(welcome.grant_bytes, 65536);
        cr_expect_eq(welcome.message_bytes_max, UINT64_C(1) << 31);
        cr_expect(is_text(welcome.server, "ndbusd 0.1.0"));
}

Test(golden, subscribe_and_subscribed)
{
        struct nd_subscribe subscribe = {
                .pattern = ND_STRING("camera/*"),
                .policy = ND_POLICY_DROP_OLDEST,
                .depth_messages = 1000,
                .depth_bytes = 64 << 20,
                .window_messages = 256,
                .window_bytes = 4 << 20,
                .retained = true,
        };
        struct nd_subscribed subscribed = {1000, 64 << 20};
        struct nd_control_bytes header;
        struct nd_packet p;

        nd_subscribe_pack(&subscribe, &header);
        p = control(
                "subscribe", &from_client,
                (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE, .sequence = 2, .subscription = 1},
                &header, NULL, 0);
        cr_assert_eq(nd_subscribe_unpack(p.header, p.prelude.header_bytes, &subscribe, NULL), 0);
        cr_expect(is_text(subscribe.pattern, "camera/*"));

        nd_subscribed_pack(&subscribed, &header);
        p = control(
                "subscribed", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_SUBSCRIBED, .sequence = 2, .subscription = 1},
                &header, NULL, 0);
        cr_assert_eq(nd_subscribed_unpack(p.header, p.prelude.header_bytes, &subscribed, NULL), 0);
        cr_expect_eq(subscribed.depth_messages, 1000);
}

/* The header of a one-dimensional array. */
static void array_header(const char *dtype, uint32_t bits, int64_t n, void **ret, size_t *ret_n)
{
        struct nd_frame frame = {
                .array = {.dtype = dtype, .bits = bits, .ndim = 1, .shape = &n},
                .bytes = (uint64_t)n * bits / 8,
        };
        struct nd_header header = {
                .topic = "camera/front",
                .n_topic = strlen("camera/front"),
                .n_frames = 1,
                .frames = &frame,
        };

        cr_assert_eq(nd_header_pack(&header, ret, ret_n), 0);
}

static void expect_message(const char *name, const struct nd_reader_limits *limits)
{
        struct bytes golden;
        struct nd_packet p;
        struct nd_header *header;
        struct nd_fault fault = {0};
        size_t wanted;

        load(name, &golden);
        cr_assert_eq(nd_reader_next(limits, golden.data, golden.n, &p, &wanted, &fault), 0, "%s",
                     fault.text);
        cr_expect_eq(p.n_bytes + sizeof(floats), golden.n);
        cr_expect_eq(p.prelude.body_bytes, sizeof(floats));
        cr_expect_eq(p.prelude.time_ns, TIME);
        cr_expect_eq(p.prelude.sequence, 1);
        cr_expect_arr_eq(golden.data + p.n_bytes, floats, sizeof(floats));
        cr_expect_arr_eq(p.meta, meta, n_meta);

        cr_assert_eq(nd_header_unpack(p.header, p.prelude.header_bytes, NULL, &header, &fault), 0,
                     "%s", fault.text);
        cr_expect_str_eq(header->topic, "camera/front");
        cr_assert_eq(header->n_frames, 1);
        cr_expect_eq(header->body_bytes, 12);
        cr_expect_str_eq(header->frames[0].array.dtype, "float32");
        cr_expect_eq(header->frames[0].array.ndim, 1);
        cr_expect_eq(header->frames[0].array.shape[0], 3);
        nd_header_free(header);
}

Test(golden, publish_and_message)
{
        struct bytes out = {.n = 0};
        void *header;
        size_t n_header;

        array_header("float32", 32, 3, &header, &n_header);
        append_packet(&out,
                      (struct nd_prelude){.kind = ND_KIND_PUBLISH, .sequence = 1, .time_ns = TIME},
                      header, n_header, meta, n_meta, floats, sizeof(floats));
        expect_same("publish", out.data, out.n);
        expect_message("publish", &from_client);

        out.n = 0;
        append_packet(&out,
                      (struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                          .source = SOURCE,
                                          .sequence = 1,
                                          .time_ns = TIME,
                                          .subscription = 1},
                      header, n_header, meta, n_meta, floats, sizeof(floats));
        expect_same("message", out.data, out.n);
        expect_message("message", &from_daemon);
        free(header);
}

Test(golden, publish_in_chunks)
{
        static const size_t cuts[] = {0, 12, 20};
        struct bytes out = {.n = 0}, golden;
        struct nd_packet p;
        uint8_t body[20];
        void *header;
        size_t n_header, wanted, at = 0;

        for (size_t i = 0; i < sizeof(body); ++i)
                body[i] = (uint8_t)(31 * i + 7);

        array_header("uint8", 8, 20, &header, &n_header);
        append_packet(&out,
                      (struct nd_prelude){.kind = ND_KIND_PUBLISH,
                                          .flags = ND_FLAG_BODY_IN_CHUNKS,
                                          .stream = 1,
                                          .body_bytes = 20,
                                          .sequence = 2,
                                          .time_ns = TIME + 1000000},
                      header, n_header, NULL, 0, NULL, 0);
        free(header);
        for (size_t i = 0; i < 2; ++i)
                append_packet(
                        &out,
                        (struct nd_prelude){.kind = ND_KIND_CHUNK, .stream = 1, .place = cuts[i]},
                        NULL, 0, NULL, 0, body + cuts[i], cuts[i + 1] - cuts[i]);
        expect_same("publish-chunks", out.data, out.n);

        load("publish-chunks", &golden);
        cr_assert_eq(nd_reader_next(&from_client, golden.data, golden.n, &p, &wanted, NULL), 0);
        cr_expect_eq(p.prelude.body_bytes, 20);
        at = p.n_bytes;
        for (size_t i = 0; i < 2; ++i) {
                cr_assert_eq(nd_reader_next(&from_client, golden.data + at, golden.n - at, &p,
                                            &wanted, NULL),
                             0);
                cr_expect_eq(p.prelude.kind, ND_KIND_CHUNK);
                cr_expect_eq(p.prelude.place, cuts[i]);
                at += p.n_bytes + p.prelude.body_bytes;
        }
        cr_expect_eq(at, golden.n);
}

Test(golden, credit)
{
        uint8_t body[16] = {0};
        struct nd_packet p;

        nd_store_le64(body + 8, 64 + 60 + 8 + 12);
        p = control("credit-grant", &from_daemon,
                    (struct nd_prelude){.kind = ND_KIND_CREDIT, .place = 1}, NULL, body,
                    sizeof(body));
        cr_expect_eq(nd_load_le64(p.body + 8), 144);

        nd_store_le64(body, 1);
        nd_store_le64(body + 8, 12);
        control("credit-return", &from_client,
                (struct nd_prelude){.kind = ND_KIND_CREDIT, .subscription = 1}, NULL, body,
                sizeof(body));
}

Test(golden, packets_without_header)
{
        control("gap", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_GAP, .subscription = 1, .place = 7}, NULL, NULL,
                0);
        control("reset", &from_client, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 2},
                NULL, NULL, 0);
        control("ping", &from_client, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = 4},
                NULL, NULL, 0);
        control("pong", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_PONG, .sequence = 4, .place = 3}, NULL, NULL,
                0);
}

Test(golden, error)
{
        struct nd_error_header error = {
                .code = -NDBUS_ETOO_BIG,
                .of = ND_KIND_PUBLISH,
                .field = ND_STRING("body_bytes"),
                .text = ND_STRING("is 2147483649 bytes, the limit is 2147483648 bytes"),
                .has_numbers = true,
                .value = UINT64_C(2147483649),
                .limit = UINT64_C(2147483648),
        };
        struct nd_control_bytes header;
        struct nd_packet p;

        nd_error_header_pack(&error, &header);
        p = control("error", &from_daemon,
                    (struct nd_prelude){.kind = ND_KIND_ERROR, .sequence = 4}, &header, NULL, 0);
        error = (struct nd_error_header){0};
        cr_assert_eq(nd_error_header_unpack(p.header, p.prelude.header_bytes, &error, NULL), 0);
        cr_expect_eq(error.code, 40);
        cr_expect_eq(error.of, 16);
        cr_expect(error.has_numbers);
        cr_expect_eq(error.value, UINT64_C(2147483649));
}

Test(golden, unsubscribed_and_goodbye)
{
        struct nd_unsubscribed unsubscribed = {
                .code = -NDBUS_EOVERFLOW,
                .text = ND_STRING("bytes is 68157440, the limit is 67108864"),
                .has_numbers = true,
                .value = 68157440,
                .limit = 67108864,
        };
        struct nd_goodbye goodbye = {0};
        struct nd_control_bytes header;
        struct nd_packet p;

        nd_unsubscribed_pack(&unsubscribed, &header);
        p = control(
                "unsubscribed", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBED, .subscription = 1, .place = 3},
                &header, NULL, 0);
        cr_assert_eq(nd_unsubscribed_unpack(p.header, p.prelude.header_bytes, &unsubscribed, NULL),
                     0);
        cr_expect_eq(unsubscribed.code, 63);

        nd_goodbye_pack(&goodbye, &header);
        p = control("goodbye", &from_client, (struct nd_prelude){.kind = ND_KIND_GOODBYE}, &header,
                    NULL, 0);
        cr_assert_eq(nd_goodbye_unpack(p.header, p.prelude.header_bytes, &goodbye, NULL), 0);
}

Test(golden, auth)
{
        struct nd_token_exchange exchange = {.name = "lab"};
        struct nd_auth auth = {.nonce = {(const char *)exchange.daemon_nonce, 32}};
        uint8_t text[ND_TOKEN_TEXT_BYTES_MAX];
        struct nd_control_bytes header;
        struct nd_packet p;

        nd_hello_pack(&(struct nd_hello){1, 1}, exchange.client_hello);
        nd_hello_reply_pack(&(struct nd_hello_reply){1, 0, 1, 1}, exchange.daemon_hello);
        for (unsigned i = 0; i < 32; ++i) {
                exchange.daemon_nonce[i] = (uint8_t)i;
                exchange.client_nonce[i] = (uint8_t)(32 + i);
        }
        nd_auth_pack(&auth, &header);
        p = control("auth-ask", &from_daemon,
                    (struct nd_prelude){.kind = ND_KIND_AUTH, .sequence = 1}, &header, NULL, 0);
        cr_assert_eq(nd_auth_unpack(p.header, p.prelude.header_bytes, &auth, NULL), 0);
        cr_expect_null(auth.proof.at);

        auth = (struct nd_auth){
                .nonce = {(const char *)exchange.client_nonce, 32},
                .proof = {(const char *)auth_proof, 32},
        };
        nd_auth_pack(&auth, &header);
        p = control("auth-prove", &from_client,
                    (struct nd_prelude){.kind = ND_KIND_AUTH, .sequence = 1}, &header, NULL, 0);
        cr_assert_eq(nd_auth_unpack(p.header, p.prelude.header_bytes, &auth, NULL), 0);
        cr_assert_eq(auth.proof.n, 32);

        cr_assert_eq(nd_token_text(&exchange, ND_TOKEN_CLIENT, text), 16 + 1 + 32 + 64 + 3);
        cr_expect_arr_eq(text, "ndbus token 1\0\0\0C", 17);
        cr_expect_arr_eq(text + 17, exchange.client_hello, 16);
        cr_expect_arr_eq(text + 33, exchange.daemon_hello, 16);
        cr_expect_arr_eq(text + 49, exchange.daemon_nonce, 32);
        cr_expect_arr_eq(text + 81, exchange.client_nonce, 32);
        cr_expect_arr_eq(text + 113, "lab", 3);
}

Test(golden, topic)
{
        struct nd_topic_header topic = {
                .topic = ND_STRING("camera/front"),
                .watch = true,
                .allowed = true,
                .subscribers = 1,
        };
        struct nd_control_bytes header;
        struct nd_packet p;

        nd_topic_header_pack(&topic, false, &header);
        p = control("topic-ask", &from_client,
                    (struct nd_prelude){.kind = ND_KIND_TOPIC, .sequence = 3}, &header, NULL, 0);
        cr_assert_eq(nd_topic_header_unpack(p.header, p.prelude.header_bytes, false, &topic, NULL),
                     0);

        topic.allowed = true;
        topic.subscribers = 1;
        nd_topic_header_pack(&topic, true, &header);
        p = control("topic-tell", &from_daemon,
                    (struct nd_prelude){.kind = ND_KIND_TOPIC, .sequence = 3}, &header, NULL, 0);
        cr_assert_eq(nd_topic_header_unpack(p.header, p.prelude.header_bytes, true, &topic, NULL),
                     0);
        cr_expect_eq(topic.subscribers, 1);
}

Test(golden, shared_memory)
{
        const uint64_t size = UINT64_C(16) << 20, at = 1 << 20, n_body = 1 << 20;
        struct nd_control_bytes header;
        uint8_t body[40];
        void *bytes;

        array_header("uint8", 8, (int64_t)n_body, &bytes, &header.n);
        memcpy(header.data, bytes, header.n);
        free(bytes);

        control("segment-announce", &from_client,
                (struct nd_prelude){.kind = ND_KIND_SEGMENT,
                                    .flags = ND_FLAG_FD,
                                    .segment = 1,
                                    .place = size,
                                    .sequence = 5},
                NULL, NULL, 0);
        control("segment-answer", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_SEGMENT, .segment = 1, .sequence = 5}, NULL,
                NULL, 0);
        control("ring-ask", &from_client,
                (struct nd_prelude){.kind = ND_KIND_RING,
                                    .flags = ND_FLAG_FD,
                                    .place = ND_RING_FILE_BYTES,
                                    .sequence = 6},
                NULL, NULL, 0);
        control("ring-answer", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_RING, .flags = ND_FLAG_FD, .sequence = 6}, NULL,
                NULL, 0);
        control("wake", &from_client, (struct nd_prelude){.kind = ND_KIND_WAKE}, NULL, NULL, 0);
        control("publish-block", &from_client,
                (struct nd_prelude){.kind = ND_KIND_PUBLISH,
                                    .flags = ND_FLAG_BODY_IN_BLOCK,
                                    .segment = 1,
                                    .place = at,
                                    .body_bytes = n_body,
                                    .sequence = 3,
                                    .time_ns = TIME + 2000000},
                &header, NULL, 0);
        control("segment-hand", &from_daemon,
                (struct nd_prelude){
                        .kind = ND_KIND_SEGMENT, .flags = ND_FLAG_FD, .segment = 7, .place = size},
                NULL, NULL, 0);
        control("message-block", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_MESSAGE,
                                    .flags = ND_FLAG_BODY_IN_BLOCK,
                                    .segment = 7,
                                    .place = at,
                                    .body_bytes = n_body,
                                    .source = SOURCE,
                                    .sequence = 3,
                                    .time_ns = TIME + 2000000,
                                    .subscription = 1},
                &header, NULL, 0);
        control("segment-gone", &from_daemon,
                (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = 7}, NULL, NULL, 0);

        nd_store_le32(body, 7);
        nd_store_le32(body + 4, 1);
        nd_store_le64(body + 8, at);
        control("release", &from_client, (struct nd_prelude){.kind = ND_KIND_RELEASE}, NULL, body,
                16);
        nd_store_le32(body, 1);
        nd_store_le32(body + 4, 2);
        nd_store_le64(body + 8, at);
        nd_store_le64(body + 16, 0);
        nd_store_le32(body + 24, 2);
        nd_store_le32(body + 28, 1);
        nd_store_le64(body + 32, 4096);
        control("release-owner", &from_daemon, (struct nd_prelude){.kind = ND_KIND_RELEASE}, NULL,
                body, 40);
}

Test(golden, record)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .meta_bytes = (uint32_t)n_meta,
                .body_bytes = sizeof(floats),
                .source = SOURCE,
                .sequence = 1,
                .time_ns = TIME,
        };
        struct bytes out = {.n = 0}, golden;
        struct nd_record record;
        void *header;
        size_t n_header;

        array_header("float32", 32, 3, &header, &n_header);
        prelude.header_bytes = (uint32_t)n_header;
        cr_assert_eq(nd_record_place(&prelude, &record, NULL), 0);
        nd_record_pack_lead(&record, out.data);
        memcpy(out.data + record.header_offset, header, n_header);
        memcpy(out.data + record.meta_offset, meta, n_meta);
        memcpy(out.data + record.body_offset, floats, sizeof(floats));
        expect_same("record", out.data, record.record_bytes);
        free(header);

        load("record", &golden);
        cr_assert_eq(nd_record_unpack(golden.data, golden.n, 0, &record, NULL), 0);
        cr_expect_eq(record.record_bytes, golden.n);
        cr_expect_eq(record.prelude.source, SOURCE);
        cr_expect_arr_eq(golden.data + record.body_offset, floats, sizeof(floats));
}

Test(golden, index)
{
        struct nd_index index = {.n_dropped = 7}, again;
        struct bytes golden;
        struct nd_record record;
        size_t n;
        void *data;

        load("record", &golden);
        cr_assert_eq(nd_record_unpack(golden.data, golden.n, 0, &record, NULL), 0);
        cr_assert_eq(nd_index_add(&index, "camera/front", 12, &record), 0);
        cr_assert_eq(nd_index_pack(&index, &data, &n), 0);
        expect_same("index", data, n);
        free(data);
        nd_index_deinit(&index);

        load("index", &golden);
        cr_assert_eq(nd_index_unpack(golden.data, golden.n, 320, &again, NULL), 0);
        cr_expect_eq(again.n_records, 1u);
        cr_expect_eq(again.bytes, 320u);
        cr_expect_eq(again.n_dropped, 7u);
        cr_assert_eq(again.n_topics, 1u);
        cr_expect_str_eq(again.topics[0].topic, "camera/front");
        nd_index_deinit(&again);
}
