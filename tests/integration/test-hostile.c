/* SPDX-License-Identifier: MIT */

/*
 * Peers that break the rules: what each is told, and that nobody else notices
 *
 * A fault of a message is answered and the connection goes on; a fault of framing is answered and
 * closes it. After each the daemon serves a well-behaved pair of clients as before.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <ndbus/array.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "tests/support/bystanders.h"
#include "tests/support/pattern.h"

#define MIB (UINT64_C(1) << 20)

static void publish_bytes(struct nd_raw *raw,
                          const void *header,
                          size_t n_header,
                          const void *body,
                          uint64_t body_bytes,
                          bool in_chunks)
{
        const struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .flags = in_chunks ? ND_FLAG_BODY_IN_CHUNKS : 0,
                .stream = in_chunks ? 77 : 0,
                .sequence = ++raw->n_published,
                .body_bytes = body_bytes,
        };

        nd_raw_send_packet(raw, prelude, header, n_header, NULL, 0, body,
                           in_chunks ? 0 : (size_t)body_bytes);
}

/* --------------------------------------------------------------------------- faults of a message */

static size_t array_header(const char *topic,
                           const char *dtype,
                           uint32_t bits,
                           int32_t ndim,
                           const int64_t *shape,
                           const int64_t *strides,
                           uint64_t n_bytes,
                           void **ret)
{
        struct nd_frame frame = {
                .array = {.dtype = dtype,
                          .bits = bits,
                          .lanes = 1,
                          .ndim = ndim,
                          .shape = shape,
                          .strides = strides},
                .bytes = n_bytes,
        };
        const struct nd_header header = {
                .topic = topic,
                .n_topic = strlen(topic),
                .n_frames = 1,
                .frames = &frame,
        };
        size_t n = 0;

        cr_assert_eq(nd_header_pack(&header, ret, &n), 0);
        return n;
}

/* T16: bytes that do not fit the shape */
Test(hostile, length_of_a_frame)
{
        static const int64_t shape[] = {4, 4};
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        uint8_t body[65] = {0};
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        for (uint64_t n = 63; n <= 65; n += 2) {
                struct nd_error_header error;
                void *header;
                size_t n_header = array_header("t16", "float32", 32, 2, shape, NULL, n, &header);

                publish_bytes(raw, header, n_header, body, n, false);
                error = nd_raw_expect_error(raw, NDBUS_ELENGTH, false);
                cr_expect_eq(error.of, ND_KIND_PUBLISH);
                cr_expect(error.field.n >= 6 && memcmp(error.field.at, "frames", 6) == 0);
                free(header);
        }
        for (uint64_t n = 63; n <= 65; n += 2) { /* the header is right, the body is not */
                void *header;
                size_t n_header = array_header("t16", "float32", 32, 2, shape, NULL, 64, &header);

                publish_bytes(raw, header, n_header, body, n, false);
                nd_raw_expect_error(raw, NDBUS_ELENGTH, false);
                free(header);
        }
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* T17: shapes that cannot be */
Test(hostile, shapes)
{
        int64_t ones[65];

        static const struct {
                const char *name;
                const char *dtype;
                uint32_t bits;
                int32_t ndim;
                int64_t shape[2];
                int64_t strides[2];
        } rows[] = {
                {"2^33 x 2^33", "uint8", 8, 2, {INT64_C(1) << 33, INT64_C(1) << 33}, {0}},
                {"2^62 x 4 float64", "float64", 64, 2, {INT64_C(1) << 62, 4}, {0}},
                {"-1", "uint8", 8, 1, {-1}, {0}},
                {"stride 2^62", "uint8", 8, 2, {4, 4}, {INT64_C(1) << 62, 1}},
        };
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        uint8_t body[16] = {0};
        struct nd_proc_memory before;
        struct nd_bystanders b;
        void *header;
        size_t n;

        nd_bystanders_init(&b, h);
        nd_bystanders_check(&b);
        before = nd_harness_memory(h);
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                n = array_header("t17", rows[i].dtype, rows[i].bits, rows[i].ndim, rows[i].shape,
                                 rows[i].strides[0] ? rows[i].strides : NULL, 16, &header);
                publish_bytes(raw, header, n, body, 16, false);
                nd_raw_expect_error(raw, NDBUS_ESHAPE, false);
                free(header);
        }
        for (size_t i = 0; i < nd_array_size(ones); ++i)
                ones[i] = 1;
        n = array_header("t17", "uint8", 8, 65, ones, NULL, 1, &header);
        publish_bytes(raw, header, n, body, 1, false);
        nd_raw_expect_error(raw, NDBUS_ESHAPE, false);
        free(header);

        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(h).vm_peak_bytes, before.vm_peak_bytes + MIB);
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* T17: 2^63, which no signed integer holds, so no packer of ours writes it */
Test(hostile, shape_of_2_to_the_63)
{
        static const char header[] = "\x82\xa5topic\xa3t17\xa6"
                                     "frames\x91\x83\xa5"
                                     "bytes\x08\xa5"
                                     "dtype\x92\xa5uint8\x08\xa5shape\x91\xcf"
                                     "\x80\0\0\0\0\0\0\0";
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        uint8_t body[8] = {0};

        publish_bytes(raw, header, sizeof(header) - 1, body, 8, false);
        nd_raw_expect_error(raw, NDBUS_ESHAPE, false);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* T28: over message-max, then a small one */
Test(hostile, message_over_its_limit)
{
        static const char *const args[] = {"--message-max", "1M", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_raw *subscriber = nd_raw_open(h, false);
        struct nd_error_header error;
        struct nd_raw_message message;

        nd_raw_subscribe(subscriber, 1, &(struct nd_raw_subscribe){.pattern = "t28"});
        nd_raw_publish_begin(raw, "t28", MIB + 1, 9);
        error = nd_raw_expect_error(raw, NDBUS_ETOO_BIG, false);
        cr_expect(error.has_numbers);
        cr_expect_eq(error.value, MIB + 1);
        cr_expect_eq(error.limit, MIB);
        nd_raw_publish_chunk(raw, 9, 0, 1000); /* what was under way is discarded */
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 9});

        nd_raw_publish(raw, "t28", 128);
        message = nd_raw_receive(subscriber);
        cr_expect_eq(message.prelude.body_bytes, 128);
        cr_expect_eq(message.prelude.sequence, 1);
        nd_raw_message_free(&message);
        nd_raw_publish(raw, "t28", MIB);
        message = nd_raw_receive(subscriber);
        cr_expect_eq(message.prelude.body_bytes, MIB);
        nd_raw_message_free(&message);
        cr_expect_eq(nd_raw_stat(raw, "counters", "refused_too_big"), 1);
        nd_raw_close(raw);
        nd_raw_close(subscriber);
        nd_harness_stop(h);
}

/* T29: a terabyte is announced, ten bytes come */
Test(hostile, announced_and_never_sent)
{
        static const char *const args[] = {"--memory-max", "4G", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_raw *stalls = nd_raw_open(h, false);
        struct nd_proc_memory before;
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        nd_bystanders_check(&b);
        before = nd_harness_memory(h);

        nd_raw_publish_begin(raw, "t29", UINT64_C(1) << 40, 9);
        nd_raw_publish_chunk(raw, 9, 0, 10);
        nd_raw_expect_error(raw, NDBUS_ETOO_BIG, false);

        nd_raw_publish_begin(stalls, "t29", UINT64_C(1) << 30, 9); /* allowed */
        nd_raw_publish_chunk(stalls, 9, 0, 10);
        nd_raw_flush(b.publisher);
        cr_expect_eq(nd_raw_expect(b.subscriber, ND_KIND_MESSAGE)->prelude.body_bytes,
                     UINT64_C(1) << 30);
        cr_expect_eq(nd_raw_expect(b.subscriber, ND_KIND_CHUNK)->prelude.body_bytes, 10);
        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(h).rss_bytes, before.rss_bytes + MIB);

        nd_raw_close(stalls);
        nd_raw_expect(b.subscriber, ND_KIND_RESET); /* it never existed */
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* ------------------------------------------------------------------------------ faults of framing */

struct bytes {
        const char *name;
        const uint8_t *at;
        size_t n;
};

/* T30: what msgpack libraries choke on */
static size_t bad_headers(struct bytes *ret)
{
        static uint8_t many[150], deep[34], deeper[100000];
        static const uint8_t rows[][8] = {
                {0xdd, 0x10, 0, 0, 0},
                {0xdf, 0x10, 0, 0, 0},
                {0xdd, 0xff, 0xff, 0xff, 0xff},
                {0xc6, 0xff, 0xff, 0xff, 0xff, 0x01},
                {0xc1},
                {0xc0, 0xc0},
                {0x82, 0xa1, 0x61, 0x01, 0xa1, 0x61, 0x02},
        };
        static const size_t n_rows[] = {5, 5, 5, 6, 1, 2, 7};
        size_t n = 0;

        for (size_t i = 0; i < sizeof(many); i += 5)
                memcpy(many + i, "\xdd\x00\xff\xff\xff", 5);
        memset(deep, 0x91, sizeof(deep));
        deep[33] = 0xc0;
        memset(deeper, 0x91, sizeof(deeper));
        for (; n < nd_array_size(rows); ++n)
                ret[n] = (struct bytes){"", rows[n], n_rows[n]};
        ret[n++] = (struct bytes){"30 x dd00ffffff", many, sizeof(many)};
        ret[n++] = (struct bytes){"33 x 91, c0", deep, sizeof(deep)};
        ret[n++] = (struct bytes){"100000 x 91", deeper, sizeof(deeper)};
        return n;
}

Test(hostile, headers)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct bytes headers[16];
        size_t n_headers = bad_headers(headers);
        struct nd_proc_memory before;
        struct nd_bystanders b;
        struct nd_raw *raw;

        nd_bystanders_init(&b, h);
        nd_bystanders_check(&b);
        before = nd_harness_memory(h);
        for (size_t i = 0; i < n_headers; ++i) {
                struct nd_error_header error;

                raw = nd_raw_open(h, i & 1);
                publish_bytes(raw, headers[i].at, headers[i].n, NULL, 0, false);
                if (headers[i].n > raw->credit) /* but it is the first: it passes all the same */
                        cr_log_info("%s", headers[i].name);
                error = nd_raw_expect_error(raw, NDBUS_EHEADER, true);
                cr_expect_eq(error.of, ND_KIND_PUBLISH);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);

                raw = nd_raw_open_hello(h, i & 1);
                nd_raw_send_packet(raw, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1},
                                   headers[i].at, headers[i].n, NULL, 0, NULL, 0);
                nd_raw_expect_error(raw, headers[i].n > 4096 ? NDBUS_ETOO_BIG : NDBUS_EHEADER,
                                    true);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);
        }
        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(h).vm_peak_bytes, before.vm_peak_bytes + MIB);
        nd_harness_wait_fds(h, h->n_fds_ready + 2, nd_harness_deadline_ms(20000));
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

static void say_nothing(struct nd_raw *raw)
{
        (void)raw;
}

static void open_stream(struct nd_raw *raw)
{
        nd_raw_publish_begin(raw, "violation", 4 * MIB, 7);
        nd_raw_publish_chunk(raw, 7, 0, 1000);
}

static void open_subscription(struct nd_raw *raw)
{
        nd_raw_subscribe(raw, 5, &(struct nd_raw_subscribe){.pattern = "nothing", .window = 4});
}

/* Every violation: something that is in order, then one packet that is not. */
Test(hostile, violations)
{
        static const struct {
                const char *name;
                void (*before)(struct nd_raw *raw);
                struct nd_prelude prelude;
                int code;
        } rows[] = {
                {"chunk with a gap",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 7, .place = 1001, .body_bytes = 8},
                 NDBUS_ECHUNK},
                {"chunk that overlaps",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 7, .place = 999, .body_bytes = 8},
                 NDBUS_ECHUNK},
                {"chunk of another stream",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 8, .place = 1000, .body_bytes = 8},
                 NDBUS_ECHUNK},
                {"chunk of none",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 7, .place = 1000},
                 NDBUS_EPROTOCOL},
                {"chunk without stream",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 0, .place = 1000, .body_bytes = 8},
                 NDBUS_EPROTOCOL},
                {"chunk over 1 MiB",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 7, .place = 1000, .body_bytes = MIB + 1},
                 NDBUS_ETOO_BIG},
                {"chunk beyond the credit",
                 open_stream,
                 {.kind = ND_KIND_CHUNK, .stream = 7, .place = 1000, .body_bytes = MIB},
                 NDBUS_ECREDIT},
                {"PUBLISH while one is open",
                 open_stream,
                 {.kind = ND_KIND_PUBLISH, .sequence = 2},
                 NDBUS_EPROTOCOL},
                {"chunk, nothing open",
                 say_nothing,
                 {.kind = ND_KIND_CHUNK, .stream = 7, .body_bytes = 8},
                 NDBUS_ECHUNK},
                {"RESET, nothing open",
                 say_nothing,
                 {.kind = ND_KIND_RESET, .stream = 7},
                 NDBUS_ECHUNK},
                {"RESET of another",
                 open_stream,
                 {.kind = ND_KIND_RESET, .stream = 8},
                 NDBUS_ECHUNK},
                {"PUBLISH beyond the credit",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 1, .body_bytes = MIB},
                 NDBUS_ECREDIT},
                {"PUBLISH over 1 MiB",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 1, .body_bytes = MIB + 1},
                 NDBUS_ETOO_BIG},
                {"PUBLISH number 0",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 0},
                 NDBUS_EPROTOCOL},
                {"PUBLISH number 2 first",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 2},
                 NDBUS_EPROTOCOL},
                {"PUBLISH with a source",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 1, .source = 3},
                 NDBUS_EPROTOCOL},
                {"PUBLISH in chunks without bytes",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH,
                  .sequence = 1,
                  .stream = 3,
                  .flags = ND_FLAG_BODY_IN_CHUNKS},
                 NDBUS_EPROTOCOL},
                {"PUBLISH in chunks without stream",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH,
                  .sequence = 1,
                  .body_bytes = 9,
                  .flags = ND_FLAG_BODY_IN_CHUNKS},
                 NDBUS_EPROTOCOL},
                {"PUBLISH in a block, no feature",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 1, .flags = ND_FLAG_BODY_IN_BLOCK},
                 NDBUS_EPROTOCOL},
                {"empty header",
                 say_nothing,
                 {.kind = ND_KIND_PUBLISH, .sequence = 1},
                 NDBUS_EHEADER},
                {"CREDIT for nothing that was sent",
                 open_subscription,
                 {.kind = ND_KIND_CREDIT, .subscription = 5, .body_bytes = 16},
                 NDBUS_ECREDIT},
                {"CREDIT for no such subscription",
                 open_subscription,
                 {.kind = ND_KIND_CREDIT, .subscription = 6, .body_bytes = 16},
                 NDBUS_ESUBSCRIPTION},
                {"CREDIT of 8 bytes",
                 open_subscription,
                 {.kind = ND_KIND_CREDIT, .subscription = 5, .body_bytes = 8},
                 NDBUS_ECREDIT},
                {"CREDIT back, more than there is",
                 say_nothing,
                 {.kind = ND_KIND_CREDIT, .body_bytes = 16},
                 NDBUS_ECREDIT},
                {"PING without a number", say_nothing, {.kind = ND_KIND_PING}, NDBUS_EPROTOCOL},
                {"STATS without a number", say_nothing, {.kind = ND_KIND_STATS}, NDBUS_EPROTOCOL},
                {"SUBSCRIBE without a number",
                 say_nothing,
                 {.kind = ND_KIND_SUBSCRIBE, .subscription = 1},
                 NDBUS_EPROTOCOL},
                {"UNSUBSCRIBE without a number",
                 open_subscription,
                 {.kind = ND_KIND_UNSUBSCRIBE, .subscription = 5},
                 NDBUS_EPROTOCOL},
                {"TOPIC without a number", say_nothing, {.kind = ND_KIND_TOPIC}, NDBUS_EPROTOCOL},
                {"CONNECT again",
                 say_nothing,
                 {.kind = ND_KIND_CONNECT, .sequence = 9},
                 NDBUS_EHANDSHAKE},
                {"a daemon's kind",
                 say_nothing,
                 {.kind = ND_KIND_MESSAGE, .sequence = 1},
                 NDBUS_EPROTOCOL},
                {"AUTH", say_nothing, {.kind = ND_KIND_AUTH, .sequence = 1}, NDBUS_EHANDSHAKE},
                {"SEGMENT", say_nothing, {.kind = ND_KIND_SEGMENT}, NDBUS_EPROTOCOL},
                {"no kind", say_nothing, {.kind = 200}, NDBUS_EPROTOCOL},
                {"reserved byte",
                 say_nothing,
                 {.kind = ND_KIND_PING, .reserved = 1},
                 NDBUS_EPROTOCOL},
                {"flag",
                 say_nothing,
                 {.kind = ND_KIND_PING, .flags = ND_FLAG_RETAINED},
                 NDBUS_EPROTOCOL},
        };

        static uint8_t body[MIB + 1];
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_bystanders b;
        size_t n_fds;

        for (size_t i = 0; i < sizeof(body); i += 8)
                body[i] = 1; /* in a CREDIT: far more messages than are outstanding */
        memset(body, 0x7f, 16);
        nd_bystanders_init(&b, h);
        n_fds = nd_harness_fds(h);
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_raw *raw = nd_raw_open(h, i & 1);

                cr_log_info("%s", rows[i].name);
                rows[i].before(raw);
                if (rows[i].before == open_stream)
                        while (nd_raw_expect(b.subscriber, ND_KIND_MESSAGE)->prelude.source !=
                               raw->source)
                                ;
                nd_raw_send_packet(raw, rows[i].prelude, NULL, 0, NULL, 0, body,
                                   (size_t)nd_prelude_inline_bytes(&rows[i].prelude));
                nd_raw_expect_error(raw, rows[i].code, true);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);
                if (rows[i].before == open_stream) {
                        nd_raw_expect(b.subscriber, ND_KIND_CHUNK);
                        nd_raw_expect(b.subscriber, ND_KIND_RESET);
                }
                nd_bystanders_check(&b);
        }
        nd_harness_wait_fds(h, n_fds, nd_harness_deadline_ms(20000));
        cr_expect_eq(nd_raw_stat(b.publisher, "counters", "protocol_errors"), nd_array_size(rows));
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* A body in chunks is exactly as long as it was said to be. */
Test(hostile, more_chunks_than_body)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);

        nd_raw_publish_begin(raw, "chunks", 10, 3);
        nd_raw_publish_chunk(raw, 3, 0, 6);
        nd_raw_publish_chunk(raw, 3, 6, 5);
        nd_raw_expect_error(raw, NDBUS_ECHUNK, true);
        nd_raw_expect_closed(raw);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* Requests that are wrong are answered, and the connection goes on. */
Test(hostile, subscription_numbers)
{
        const struct nd_raw_subscribe ask = {.pattern = "a"};
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);

        nd_raw_subscribe(raw, 3, &ask);
        nd_raw_ask_subscribe(raw, 3, &ask); /* it is there */
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_ask_subscribe(raw, 2, &ask); /* lower than one that was used */
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_ask_subscribe(raw, 0, &ask);
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE,
                                                     .subscription = 3,
                                                     .sequence = 90});
        cr_expect_eq(nd_raw_expect(raw, ND_KIND_UNSUBSCRIBED)->prelude.sequence, 90);
        nd_raw_ask_subscribe(raw, 3, &ask); /* it was there */
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE,
                                                     .subscription = 4,
                                                     .sequence = 91});
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE, .sequence = 91});
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_grant(raw, 3, 1, 1); /* for one that ended: passed over */
        nd_raw_subscribe(raw, UINT32_MAX, &ask);
        nd_raw_ask_subscribe(raw, 5, &(struct nd_raw_subscribe){.pattern = "$sys/x"});
        nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        nd_raw_flush(raw);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

static void expect_text(const struct nd_error_header *error, const char *text)
{
        cr_expect(error->text.n == strlen(text) && memcmp(error->text.at, text, error->text.n) == 0,
                  "\"%.*s\", expected was \"%s\"", (int)error->text.n, error->text.at, text);
}

/* What is wrong and what would be right, each in one sentence that reads as one. */
Test(hostile, texts)
{
        static const char header[] = "\x82\xa5topic\xa1t\xa6"
                                     "frames\x90";
        static const uint8_t credit[16] = {1};
        const struct nd_raw_subscribe ask = {.pattern = "a"};
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_error_header error;

        nd_raw_subscribe(raw, 5, &ask);
        nd_raw_ask_subscribe(raw, 5, &ask);
        error = nd_raw_expect_error(raw, NDBUS_ESUBSCRIPTION, false);
        expect_text(&error, "is 5, must be greater than 5, the highest used");
        cr_expect(error.has_numbers && error.value == 5 && error.limit == 5);
        publish_bytes(raw, header, sizeof(header) - 1, "12345678", 8, false);
        error = nd_raw_expect_error(raw, NDBUS_ELENGTH, false);
        expect_text(&error, "is 8 bytes, must be 0 bytes");
        nd_raw_send_packet(raw, (struct nd_prelude){.kind = ND_KIND_CREDIT, .body_bytes = 16}, NULL,
                           0, NULL, 0, credit, sizeof(credit));
        error = nd_raw_expect_error(raw, NDBUS_ECREDIT, true);
        cr_expect(error.field.n == 8 && memcmp(error.field.at, "messages", 8) == 0);
        expect_text(&error, "is 1, must be 0");
        nd_raw_close(raw);

        raw = nd_raw_open(h, true);
        nd_raw_send_packet(raw, (struct nd_prelude){.kind = ND_KIND_PUBLISH, .sequence = 2}, header,
                           sizeof(header) - 1, NULL, 0, NULL, 0);
        error = nd_raw_expect_error(raw, NDBUS_EPROTOCOL, true);
        expect_text(&error, "is 2, must be 1");
        nd_raw_close(raw);

        raw = nd_raw_open(h, true);
        nd_raw_send_packet(raw, (struct nd_prelude){.kind = ND_KIND_GOODBYE},
                           "\x81\xa4"
                           "code\xa1x",
                           8, NULL, 0, NULL, 0);
        nd_raw_expect_error(raw, NDBUS_EHEADER, true);
        nd_raw_close(raw);

        raw = nd_raw_open_hello(h, false);
        nd_raw_send_packet(raw, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 2},
                           "\x81\xa8"
                           "features\x90",
                           11, NULL, 0, NULL, 0);
        error = nd_raw_expect_error(raw, NDBUS_EHANDSHAKE, true);
        expect_text(&error, "is 2, must be 1");
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* Topics that are none are an error of the message, whatever makes them so. */
Test(hostile, topics_with_control_characters)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);

        for (uint8_t c = 0; c <= 0x20; ++c) {
                uint8_t header[] = "\x82\xa5topic\xa3"
                                   "a-b\xa6"
                                   "frames\x90";

                header[9] = c;
                publish_bytes(raw, header, sizeof(header) - 1, NULL, 0, false);
                if (c < 0x20) {
                        const struct nd_error_header error =
                                nd_raw_expect_error(raw, NDBUS_ETOPIC, false);

                        cr_expect(error.field.n == 5 && memcmp(error.field.at, "topic", 5) == 0);
                        cr_expect_eq(error.of, ND_KIND_PUBLISH);
                }
        }
        nd_raw_flush(raw);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* Whoever answers publishes where the question says: that is only where its asker gets answers. */
Test(hostile, answers_go_to_who_asked)
{
        static const char *const wrong[] = {"a", "$sys/x", "$reply", "$reply/1/1"};
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_raw *other = nd_raw_open(h, false);
        char reply[8][64];
        size_t n = 0;

        nd_raw_subscribe(other, 1, &(struct nd_raw_subscribe){.pattern = "ask"});
        for (; n < nd_array_size(wrong); ++n)
                snprintf(reply[n], sizeof(reply[n]), "%s", wrong[n]);
        snprintf(reply[n++], sizeof(reply[0]), "$reply/%" PRIu64 "/1", other->source);
        snprintf(reply[n++], sizeof(reply[0]), "$reply/%" PRIu64 "/1/2", raw->source);
        snprintf(reply[n++], sizeof(reply[0]), "$reply/%" PRIu64, raw->source);
        snprintf(reply[n++], sizeof(reply[0]), "$reply/%" PRIu64 "/1", raw->source); /* right */
        for (size_t i = 0; i < n; ++i) {
                const struct nd_header header = {.topic = "ask", .n_topic = 3, .reply = reply[i]};
                nd_autofree void *bytes = NULL;
                size_t n_bytes;

                cr_assert_eq(nd_header_pack(&header, &bytes, &n_bytes), 0);
                publish_bytes(raw, bytes, n_bytes, NULL, 0, false);
                if (i + 1 < n) {
                        const struct nd_error_header error =
                                nd_raw_expect_error(raw, NDBUS_EDENIED, false);

                        cr_expect(error.field.n == 5 && memcmp(error.field.at, "reply", 5) == 0);
                }
        }
        nd_raw_expect(other, ND_KIND_MESSAGE);
        nd_raw_flush(raw);
        nd_raw_flush(other); /* and no other came before this */
        nd_raw_close(raw);
        nd_raw_close(other);
        nd_harness_stop(h);
}

/* What $ protects: nobody hears the answers that are another's, by no pattern. */
Test(hostile, answers_are_private)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_raw *other = nd_raw_open(h, false);
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw_message message;
        char topic[64], theirs[64], wild[64];

        snprintf(topic, sizeof(topic), "$reply/%" PRIu64 "/1", raw->source);
        snprintf(theirs, sizeof(theirs), "$reply/%" PRIu64 "/1", other->source);
        snprintf(wild, sizeof(wild), "**/$reply/%" PRIu64 "/1", raw->source);
        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = topic});
        nd_raw_ask_subscribe(raw, 2, &(struct nd_raw_subscribe){.pattern = theirs});
        nd_raw_expect_error(raw, NDBUS_EDENIED, false);
        nd_raw_ask_subscribe(raw, 2, &(struct nd_raw_subscribe){.pattern = "$reply/**"});
        nd_raw_expect_error(raw, NDBUS_EDENIED, false);
        nd_raw_ask_subscribe(raw, 2, &(struct nd_raw_subscribe){.pattern = "$sys"});
        nd_raw_expect_error(raw, NDBUS_EDENIED, false);
        nd_raw_subscribe(other, 1, &(struct nd_raw_subscribe){.pattern = wild});
        nd_raw_subscribe(other, 2, &(struct nd_raw_subscribe){.pattern = "**"});

        nd_raw_publish(publisher, topic, 10);
        message = nd_raw_receive(raw);
        nd_raw_message_free(&message);
        nd_raw_flush(publisher);
        nd_raw_publish(publisher, "last", 10);
        message = nd_raw_receive(other);
        cr_expect_eq(message.prelude.subscription, 2);
        cr_expect_eq(message.prelude.sequence, 1, "it heard an answer to another");
        nd_raw_message_free(&message);

        nd_raw_publish(publisher, "$sys/x", 10);
        nd_raw_expect_error(publisher, NDBUS_EDENIED, false);
        nd_raw_close(raw);
        nd_raw_close(other);
        nd_raw_close(publisher);
        nd_harness_stop(h);
}

/* A client that asks and never reads is not read from; what it asked costs a bounded amount. */
Test(hostile, asks_and_does_not_read)
{
        static const char *const args[] = {"--memory-max", "16M", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_raw *asks[8];
        struct nd_proc_memory before;
        static uint8_t many[1024 * ND_PRELUDE_BYTES];
        struct nd_bystanders b;

        for (uint32_t i = 1; i <= 2000; ++i)
                nd_raw_ask_subscribe(raw, i, &(struct nd_raw_subscribe){.pattern = "a/b/*"});
        for (uint32_t i = 1; i <= 2000; ++i)
                nd_raw_expect(raw, ND_KIND_SUBSCRIBED);
        nd_bystanders_init(&b, h);
        nd_bystanders_check(&b);
        before = nd_harness_memory(h);
        for (size_t i = 0; i < 1024; ++i)
                nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_STATS, .sequence = i + 2},
                                many + i * ND_PRELUDE_BYTES);
        for (size_t i = 0; i < nd_array_size(asks); ++i) {
                asks[i] = nd_raw_open(h, false);
                nd_raw_send(asks[i], many, sizeof(many));
        }
        nd_bystanders_talk(&b);
        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(h).rss_bytes, before.rss_bytes + 64 * MIB);
        for (size_t i = 0; i < nd_array_size(asks); ++i)
                nd_raw_close(asks[i]);
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* Sends requests without reading until the daemon takes no more: others are served twice, and it still
 * has not read. Returns how many bytes went. */
static size_t flood(struct nd_raw *raw, struct nd_bystanders *b, enum nd_kind kind)
{
        uint8_t many[1024 * ND_PRELUDE_BYTES];
        unsigned n_talks = 0;
        size_t n_sent = 0;

        while (n_talks < 2) {
                size_t i = n_sent % ND_PRELUDE_BYTES;
                ssize_t n;

                for (size_t k = 0; k < sizeof(many) / ND_PRELUDE_BYTES; ++k)
                        nd_prelude_pack(
                                &(struct nd_prelude){.kind = (uint8_t)kind,
                                                     .sequence = n_sent / ND_PRELUDE_BYTES + k + 1,
                                                     .subscription = 9},
                                many + k * ND_PRELUDE_BYTES);
                n = send(raw->fd, many + i, sizeof(many) - i, MSG_NOSIGNAL | MSG_DONTWAIT);
                cr_assert(n > 0 || (n < 0 && errno == EAGAIN), "send: %s", strerror(errno));
                if (n > 0) {
                        n_sent += (size_t)n;
                        n_talks = 0;
                } else {
                        nd_bystanders_talk(b);
                        ++n_talks;
                }
        }
        return n_sent;
}

/* Whatever is asked without end and not read: the daemon stops reading until it is, and forgets no
 * question. */
Test(hostile, floods_and_reads_later)
{
        static const struct {
                enum nd_kind kind;
                enum nd_kind answer;
        } rows[] = {
                {ND_KIND_PING, ND_KIND_PONG},
                {ND_KIND_STATS, ND_KIND_STATS_REPLY},
                {ND_KIND_UNSUBSCRIBE, ND_KIND_ERROR},
        };
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        for (size_t i = 0; i < 2 * nd_array_size(rows); ++i) {
                struct nd_raw *raw = nd_raw_open(h, i & 1);
                size_t n_sent = flood(raw, &b, rows[i / 2].kind);
                uint64_t n = n_sent / ND_PRELUDE_BYTES;
                uint8_t last[ND_PRELUDE_BYTES];

                cr_expect_gt(n_sent, MIB / 8);
                for (uint64_t k = 1; k <= n;) {
                        const struct nd_raw_packet *packet = nd_raw_expect(raw, rows[i / 2].answer);

                        cr_assert_eq(packet->prelude.sequence, k);
                        k += packet->prelude.kind != ND_KIND_STATS_REPLY ||
                             packet->prelude.body_bytes == 0;
                }
                nd_prelude_pack(&(struct nd_prelude){.kind = (uint8_t)rows[i / 2].kind,
                                                     .sequence = n + 1,
                                                     .subscription = 9},
                                last);
                nd_raw_send(raw, last + n_sent % ND_PRELUDE_BYTES,
                            sizeof(last) - n_sent % ND_PRELUDE_BYTES);
                cr_expect_eq(nd_raw_expect(raw, rows[i / 2].answer)->prelude.sequence, n + 1);
                if (rows[i / 2].kind == ND_KIND_STATS)
                        nd_raw_expect(raw, ND_KIND_STATS_REPLY);
                nd_raw_close(raw);
        }
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* The same, but it reads in the end: every question is answered once, in order. */
Test(hostile, asks_much_and_reads_later)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        static uint8_t many[900 * ND_PRELUDE_BYTES];
        uint64_t n = 0;

        for (uint32_t i = 1; i <= 100; ++i)
                nd_raw_ask_subscribe(raw, i, &(struct nd_raw_subscribe){.pattern = "a/b/*"});
        for (uint32_t i = 1; i <= 100; ++i)
                nd_raw_expect(raw, ND_KIND_SUBSCRIBED);
        for (size_t i = 0; i < 900; ++i)
                nd_prelude_pack(
                        &(struct nd_prelude){.kind = i == 899 ? ND_KIND_PING : ND_KIND_STATS,
                                             .sequence = i + 1},
                        many + i * ND_PRELUDE_BYTES);
        nd_raw_send(raw, many, sizeof(many));
        while (n < 899) {
                const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_STATS_REPLY);

                cr_assert_eq(packet->prelude.sequence, n + 1);
                n += packet->prelude.body_bytes == 0;
        }
        cr_assert_eq(nd_raw_expect(raw, ND_KIND_PONG)->prelude.sequence, 900);
        nd_raw_flush(raw);
        nd_raw_close(raw);
        nd_harness_stop(h);
}
