/* SPDX-License-Identifier: MIT */

/*
 * Clients that cost by taking their time: half-open by the thousand, byte by byte, and in the middle
 * of a body; and what can be asked of the daemon before it has let anybody in
 *
 * Each is ended by a limit of the protocol, seconds later; until then the others are served. These
 * tests take as long as the limits are, 30 seconds the longest, and measure no time.
 */

#include <criterion/criterion.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "protocol/hello.h"
#include "tests/support/bystanders.h"

#define MIB         (UINT64_C(1) << 20)
#define HALF_OPEN_N 1000u
#define WAITING_N   200u
#define DRIP_MS     1000 /* a hello takes three times as long as it may */

/* Waits until there is something to read, for as long as it takes. */
static void await_input(const struct nd_raw *raw)
{
        struct pollfd p = {.fd = raw->fd, .events = POLLIN};

        cr_assert_eq(poll(&p, 1, -1), 1);
}

/* A byte now and then, until the daemon has something to say. Returns how many were sent. */
static size_t drip(const struct nd_raw *raw, const uint8_t *bytes, size_t n)
{
        for (size_t i = 0; i < n; ++i) {
                struct pollfd p = {.fd = raw->fd, .events = POLLIN};

                if (send(raw->fd, bytes + i, 1, MSG_NOSIGNAL) != 1 || poll(&p, 1, DRIP_MS) == 1)
                        return i + 1;
        }
        return n;
}

static void allow_descriptors(void)
{
        struct rlimit limit;

        cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
        if (limit.rlim_cur < HALF_OPEN_N + 100)
                limit.rlim_cur = HALF_OPEN_N + 100;
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* A third says nothing, a third half a hello, a third a hello alone. */
Test(patience, of_a_thousand_half_open_connections)
{
        static struct nd_raw *raws[HALF_OPEN_N];
        struct nd_proc_memory before;
        struct nd_bystanders b;
        struct nd_harness *h;

        allow_descriptors();
        h = nd_harness_start(NULL);
        nd_bystanders_init(&b, h);
        nd_bystanders_check(&b);
        before = nd_harness_memory(h);
        for (size_t i = 0; i < HALF_OPEN_N; ++i) {
                raws[i] = i % 3 == 2 ? nd_raw_open_hello(h, i & 1) : nd_raw_open_bare(h, i & 1);
                if (i % 3 == 1)
                        nd_raw_send(raws[i], "NDBUS", 6);
                if (i % 100 == 0)
                        nd_bystanders_check(&b);
        }
        nd_bystanders_check(&b);
        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(h).rss_bytes, before.rss_bytes + 4 * MIB);
        for (size_t i = 0; i < HALF_OPEN_N; ++i) {
                await_input(raws[i]);
                if (i % 3 == 2)
                        nd_raw_expect_error(raws[i], NDBUS_EHANDSHAKE, true);
                nd_raw_expect_closed(raws[i]);
                nd_raw_close(raws[i]);
        }
        nd_harness_wait_fds(h, h->n_fds_ready + 2, nd_harness_deadline_ms(10000));
        nd_bystanders_check(&b);
        cr_expect_eq(nd_raw_stat(b.publisher, "counters", "handshake_timeouts"), HALF_OPEN_N);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* What comes keeps nobody there: the time is that of the whole. */
Test(patience, of_a_hello_and_a_connect_byte_by_byte)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *hello = nd_raw_open_bare(h, true), *connect;
        uint8_t bytes[ND_HELLO_BYTES], packet[ND_PRELUDE_BYTES];
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        nd_hello_pack(&(struct nd_hello){ND_VERSION, ND_VERSION}, bytes);
        cr_expect_lt(drip(hello, bytes, sizeof(bytes) - 1), sizeof(bytes) - 1);
        nd_raw_expect_closed(hello);
        nd_bystanders_check(&b);

        connect = nd_raw_open_hello(h, false);
        nd_prelude_pack(
                &(struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = 100},
                packet);
        cr_expect_lt(drip(connect, packet, sizeof(packet)), sizeof(packet));
        nd_raw_expect_error(connect, NDBUS_EHANDSHAKE, true);
        nd_raw_expect_closed(connect);
        nd_bystanders_check(&b);
        nd_raw_close(hello);
        nd_raw_close(connect);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* Sizes as they stand, and nothing behind. */
static void send_prelude(struct nd_raw *raw, const struct nd_prelude *prelude)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        nd_prelude_pack(prelude, bytes);
        nd_raw_send(raw, bytes, sizeof(bytes));
}

/* Who waits to be let in is kept 4 KiB at most, and who asks for more is told at once. */
Test(patience, and_memory_before_welcome)
{
        static const struct {
                struct nd_prelude prelude;
                int code;
        } rows[] = {
                {{.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = 4097}, NDBUS_ETOO_BIG},
                {{.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = UINT32_MAX},
                 NDBUS_ETOO_BIG},
                {{.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = 9, .meta_bytes = MIB},
                 NDBUS_EPROTOCOL},
                {{.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = 9, .body_bytes = MIB},
                 NDBUS_EPROTOCOL},
        };
        static struct nd_raw *raws[WAITING_N];
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_proc_memory before;
        struct nd_bystanders b;
        uint8_t packet[ND_PRELUDE_BYTES + 4095] = {0};

        nd_bystanders_init(&b, h);
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_raw *raw = nd_raw_open_hello(h, i & 1);

                send_prelude(raw, &rows[i].prelude);
                nd_raw_expect_error(raw, rows[i].code, true);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);
        }
        nd_bystanders_check(&b);
        before = nd_harness_memory(h);
        nd_prelude_pack(
                &(struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1, .header_bytes = 4096},
                packet);
        for (size_t i = 0; i < WAITING_N; ++i) {
                raws[i] = nd_raw_open_hello(h, i & 1);
                nd_raw_send(raws[i], packet, sizeof(packet));
        }
        nd_bystanders_check(&b);
        if (nd_harness_memory_is_exact())
                cr_expect_lt(nd_harness_memory(h).rss_bytes,
                             before.rss_bytes + WAITING_N * 8192 + MIB);
        for (size_t i = 0; i < WAITING_N; ++i) {
                await_input(raws[i]);
                nd_raw_expect_error(raws[i], NDBUS_EHANDSHAKE, true);
                nd_raw_close(raws[i]);
        }
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* A body that stops in the middle is given up, and the connection goes on. */
Test(patience, of_a_body_that_does_not_come)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, true);
        const struct nd_raw_packet *packet;
        struct nd_error_header error;
        struct nd_raw_message message;
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        nd_raw_publish_begin(raw, "slow", 4 * MIB, 7);
        nd_raw_publish_chunk(raw, 7, 0, 1000);
        nd_raw_expect(b.subscriber, ND_KIND_MESSAGE);
        nd_raw_expect(b.subscriber, ND_KIND_CHUNK);
        do {
                await_input(raw);
                packet = nd_raw_next(raw);
        } while (packet && packet->prelude.kind == ND_KIND_CREDIT);
        cr_assert(packet && packet->prelude.kind == ND_KIND_ERROR);
        cr_assert_eq(
                nd_error_header_unpack(packet->header, packet->prelude.header_bytes, &error, NULL),
                0);
        cr_expect_eq(error.code, -NDBUS_ESTALLED);
        cr_expect_not(error.closes);
        nd_raw_expect(b.subscriber, ND_KIND_RESET);
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 7});
        nd_raw_publish(raw, "slow", 100);
        message = nd_raw_receive(b.subscriber);
        cr_expect_eq(message.prelude.source, raw->source);
        cr_expect_eq(message.prelude.sequence, 1); /* the other one never existed */
        nd_raw_message_free(&message);
        nd_bystanders_check(&b);
        nd_raw_close(raw);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* One that comes byte by byte is suffered as long as nobody needs the memory that it takes. */
Test(patience, of_a_body_byte_by_byte)
{
        static const char *const args[] = {"--memory-max", "8M", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *slow[2], *other = nd_raw_open(h, false), *observer = nd_raw_open(h, false);
        const struct nd_raw_packet *packet;
        uint64_t places[2] = {0}, n_sent;
        size_t n_refused = 0;

        nd_raw_subscribe(other, 1, &(struct nd_raw_subscribe){.pattern = "*"});
        for (size_t i = 0; i < 2; ++i) {
                slow[i] = nd_raw_open(h, i & 1);
                nd_raw_publish_begin(slow[i], "slow", 7 * MIB / 2, 7);
        }
        while (nd_raw_stat(observer, "memory", "used") < 7 * MIB)
                ;
        nd_raw_publish_begin(other, "fast", 3 * MIB, 8);
        n_sent = other->credit - ND_PRELUDE_BYTES; /* all that it may, so it is not slow */
        nd_raw_publish_chunk(other, 8, 0, n_sent);
        while (n_refused == 0) {
                for (size_t i = 0; i < 2; ++i) {
                        if (!nd_raw_has_input(slow[i])) {
                                nd_raw_publish_chunk(slow[i], 7, places[i]++, 1);
                                continue;
                        }
                        packet = nd_raw_next(slow[i]);
                        cr_assert(packet);
                        n_refused += packet->prelude.kind == ND_KIND_ERROR;
                }
                (void)poll(NULL, 0, DRIP_MS);
        }
        cr_expect_geq(nd_raw_stat(observer, "counters", "refused_no_space"), 1);
        nd_raw_publish_rest(other, 8, n_sent, 3 * MIB);
        nd_raw_flush(other);
        cr_expect_eq(nd_raw_stat_subscription(observer, other->source, 1, "matched"), 1);
        nd_raw_close(slow[0]);
        nd_raw_close(slow[1]);
        nd_raw_close(other);
        nd_raw_close(observer);
        nd_harness_stop(h);
}
