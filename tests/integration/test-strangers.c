/* SPDX-License-Identifier: MIT */

/*
 * Those who are not let in: strangers, who comes when it is full, who is too slow, who brings
 * descriptors
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "protocol/hello.h"
#include "tests/support/bystanders.h"

#define MIB (UINT64_C(1) << 20)

struct bytes {
        const char *name;
        const uint8_t *at;
        size_t n;
};

static size_t count_lines(const char *text, const char *what)
{
        size_t n = 0;

        for (; (text = strstr(text, what)); ++text)
                ++n;
        return n;
}

/* T31: those who speak something else */
Test(hostile, strangers)
{
        static const char *const args[] = {"--log-level", "debug", NULL};
        static const char http[] = "GET / HTTP/1.0\r\n\r\n";
        static const char tls[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        static uint8_t noise[4096];
        const struct bytes rows[] = {
                {"http", (const uint8_t *)http, sizeof(http) - 1},
                {"tls", (const uint8_t *)tls, sizeof(tls) - 1},
                {"noise", noise, sizeof(noise)},
                {"almost", (const uint8_t *)"NDBUS\1", 6},
        };
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_bystanders b;
        struct nd_raw *raw;
        time_t begun = time(NULL);
        uint32_t x = 1;
        char *log;

        for (size_t i = 0; i < sizeof(noise); ++i)
                noise[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
        nd_bystanders_init(&b, h);
        for (size_t i = 0; i < 4 * nd_array_size(rows); ++i) {
                const struct bytes *row = &rows[i % nd_array_size(rows)];

                raw = nd_raw_open_bare(h, i & 1);
                nd_raw_send(raw, row->at, row->n);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);
                nd_bystanders_check(&b);
        }
        for (int i = 0; i < 1000; ++i)
                nd_raw_close(nd_raw_open_bare(h, i & 1));
        nd_harness_wait_fds(h, h->n_fds_ready + 2, nd_harness_deadline_ms(20000));
        nd_bystanders_check(&b);
        cr_expect_eq(nd_raw_stat(b.publisher, "counters", "hello_errors"), 16);
        log = nd_harness_log(h);
        /* one line, and one more a second */
        cr_expect_leq(count_lines(log, "does not speak"), (size_t)(time(NULL) - begun) + 2, "%s",
                      log);
        free(log);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

static void send_fds(struct nd_raw *raw, const void *bytes, size_t n, size_t n_fds)
{
        union {
                struct cmsghdr head;
                char space[CMSG_SPACE(64 * sizeof(int))];
        } control = {0};
        struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
        struct msghdr message = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = CMSG_SPACE(n_fds * sizeof(int)),
        };
        int fds[64];

        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (size_t i = 0; i < n_fds; ++i)
                fds[i] = raw->fd;
        memcpy(CMSG_DATA(&control.head), fds, n_fds * sizeof(int));
        cr_assert_eq(sendmsg(raw->fd, &message, MSG_NOSIGNAL), (ssize_t)n);
}

/* Descriptors where none belong: refused, and none stays in the daemon. */
Test(hostile, descriptors)
{
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.no_tcp = true});
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        struct nd_hello_reply reply;
        struct nd_bystanders b;
        size_t n_fds;

        nd_bystanders_init(&b, h);
        n_fds = nd_harness_fds(h);
        for (size_t n = 1; n <= 64; n *= 8) {
                struct nd_raw *raw = nd_raw_open(h, false);
                uint8_t bytes[ND_PRELUDE_BYTES];

                nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_PING, .sequence = 2}, bytes);
                send_fds(raw, bytes, sizeof(bytes), n);
                nd_raw_expect_error(raw, NDBUS_EFDS, true);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);

                raw = nd_raw_open_bare(h, false);
                nd_hello_pack(&hello, bytes);
                send_fds(raw, bytes, ND_HELLO_BYTES, n);
                cr_assert_eq(recv(raw->fd, bytes, ND_HELLO_BYTES, MSG_WAITALL), ND_HELLO_BYTES);
                cr_assert_eq(nd_hello_reply_unpack(bytes, ND_HELLO_BYTES, &reply), 0);
                cr_assert_eq(reply.version, ND_VERSION);
                nd_raw_expect_error(raw, NDBUS_EFDS, true);
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);

                raw = nd_raw_open_bare(h, false);
                send_fds(raw, bytes, 1, n);
                nd_raw_expect_closed(raw); /* nothing is said before the answer to hello */
                nd_raw_close(raw);

                raw = nd_raw_open(h, false); /* among body bytes */
                nd_raw_publish_begin(raw, "fds", 2 * MIB, 4);
                nd_raw_expect(b.subscriber, ND_KIND_MESSAGE);
                nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_CHUNK,
                                                     .stream = 4,
                                                     .body_bytes = 1000},
                                bytes);
                nd_raw_send(raw, bytes, sizeof(bytes));
                nd_raw_flush(b.publisher);
                send_fds(raw, bytes, 50, n);
                nd_raw_expect_error(raw, NDBUS_EFDS, true);
                nd_raw_expect(b.subscriber, ND_KIND_RESET);
                nd_raw_close(raw);
                nd_harness_wait_fds(h, n_fds, nd_harness_deadline_ms(20000));
        }
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* Before CONNECT nothing else is waited for, however large it says to be. */
Test(hostile, other_kinds_before_connect)
{
        struct nd_harness *h = nd_harness_start(NULL);
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_raw *raw;

        nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_PUBLISH,
                                             .header_bytes = 1u << 20,
                                             .sequence = 1},
                        bytes);
        raw = nd_raw_open_hello(h, false);
        nd_raw_send(raw, bytes, 1);
        nd_raw_expect_error(raw, NDBUS_EHANDSHAKE, true);
        nd_raw_expect_closed(raw);
        nd_raw_close(raw);
        nd_harness_stop(h);
}

/* Five seconds for hello and CONNECT, also for one that sends a byte now and then. */
Test(hostile, slow_handshake)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *silent = nd_raw_open_bare(h, false);
        struct nd_raw *half = nd_raw_open_bare(h, true);
        struct nd_raw *greeted = nd_raw_open_hello(h, false);
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        nd_raw_send(half, "NDB", 3);
        nd_raw_expect_closed(silent);
        nd_raw_expect_closed(half);
        nd_raw_expect_error(greeted, NDBUS_EHANDSHAKE, true);
        nd_raw_expect_closed(greeted);
        cr_expect_eq(nd_raw_stat(b.publisher, "counters", "handshake_timeouts"), 3);
        nd_bystanders_check(&b);
        nd_bystanders_deinit(&b);
        nd_raw_close(silent);
        nd_raw_close(half);
        nd_raw_close(greeted);
        nd_harness_stop(h);
}

/* By default idle clients may take an eighth of the memory, and the next are told that it is full. */
Test(hostile, clients_by_memory)
{
        static const char *const args[] = {"--memory-max", "8M", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *raws[16];
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        struct nd_hello_reply reply;
        uint8_t bytes[ND_HELLO_BYTES];
        int fd;

        for (size_t i = 0; i < nd_array_size(raws); ++i)
                raws[i] = nd_raw_open(h, i & 1);
        fd = nd_harness_connect_unix(h);
        nd_hello_pack(&hello, bytes);
        cr_assert_eq(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
        cr_assert_eq(recv(fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
        cr_assert_eq(nd_hello_reply_unpack(bytes, sizeof(bytes), &reply), 0);
        cr_expect_eq(reply.reason, -NDBUS_ESERVER_FULL);
        close(fd);
        for (size_t i = 0; i < nd_array_size(raws); ++i) {
                nd_raw_flush(raws[i]);
                nd_raw_close(raws[i]);
        }
        nd_harness_stop(h);
}

/* At clients-max the next are told, the daemon does not spin, and a place that is free is taken. */
Test(hostile, server_full)
{
        static const char *const args[] = {"--clients-max", "3", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        struct nd_raw *idle[20];
        struct nd_raw *in[3];
        struct nd_hello_reply reply;
        uint8_t bytes[ND_HELLO_BYTES];
        uint64_t cpu;

        for (size_t i = 0; i < 3; ++i)
                in[i] = nd_raw_open(h, i & 1);
        for (int i = 0; i < 12; ++i) {
                struct nd_raw *out = nd_raw_open_bare(h, i & 1);

                nd_hello_pack(&hello, bytes);
                nd_raw_send(out, bytes, sizeof(bytes));
                cr_assert_eq(recv(out->fd, bytes, sizeof(bytes), MSG_WAITALL), ND_HELLO_BYTES);
                cr_assert_eq(nd_hello_reply_unpack(bytes, sizeof(bytes), &reply), 0);
                cr_expect_eq(reply.version, 0);
                cr_expect_eq(reply.reason, -NDBUS_ESERVER_FULL);
                cr_expect_eq(recv(out->fd, bytes, 1, 0), 0);
                nd_raw_close(out);
        }
        /* more than it talks to at a time, who say nothing: it waits, and does not spin */
        for (size_t i = 0; i < nd_array_size(idle); ++i)
                idle[i] = nd_raw_open_bare(h, false);
        nd_raw_flush(in[0]);
        cpu = nd_harness_cpu_ns(h);
        nd_raw_expect_closed(idle[0]); /* after its five seconds */
        cr_expect_lt(nd_harness_cpu_ns(h) - cpu, 500000000, "it spins");
        for (size_t i = 0; i < nd_array_size(idle); ++i)
                nd_raw_close(idle[i]);

        cr_expect_geq(nd_raw_stat(in[0], "counters", "clients_refused"), 12);
        nd_raw_close(in[2]);
        nd_harness_wait_fds(h, h->n_fds_ready + 2, nd_harness_deadline_ms(20000));
        in[2] = nd_raw_open(h, false);
        for (size_t i = 0; i < 3; ++i)
                nd_raw_close(in[i]);
        nd_harness_stop(h);
}
