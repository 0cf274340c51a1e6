/* SPDX-License-Identifier: MIT */

/*
 * How the daemon idles and stops: SIGTERM flushes and says GOODBYE, and does not wait for ever
 */

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "protocol/hello.h"
#include "tests/support/bystanders.h"

#define MIB (UINT64_C(1) << 20)

static void expect_exit(struct nd_harness *h, int timeout_ms)
{
        int status;

        cr_assert(nd_harness_wait_exit(h, nd_harness_deadline_ms(timeout_ms), &status),
                  "it still runs");
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x",
                  (unsigned)status);
        cr_assert(h->stopping, "no STOPPING=1");
}

static void expect_goodbye(struct nd_raw *raw, uint64_t n_routed)
{
        const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_GOODBYE);
        struct nd_goodbye said;

        cr_expect_eq(packet->prelude.place, n_routed);

        cr_assert_eq(nd_goodbye_unpack(packet->header, packet->prelude.header_bytes, &said, NULL),
                     0);
        cr_expect_eq(said.code, -NDBUS_ESHUTDOWN);
}

/* Longer than any machine takes. */
static const char *const args_patient[] = {"--drain-timeout", "60000", NULL};
static const struct nd_harness_options options_patient = {.args = args_patient};

/* What waits in queues is flushed to who reads and grants; exit status 0. */
Test(lifecycle, drain)
{
        struct nd_harness *h = nd_harness_start(&options_patient);
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw *subscriber = nd_raw_open(h, false);
        struct nd_raw *greeted;
        uint64_t n = 0;

        nd_raw_subscribe(subscriber, 1, &(struct nd_raw_subscribe){.pattern = "d", .window = 2});
        for (int i = 0; i < 30; ++i)
                nd_raw_publish(publisher, "d", i % 2 ? MIB : 100);
        nd_raw_flush(publisher);
        greeted = nd_raw_open_hello(h, false); /* now: it has five seconds */
        nd_harness_signal(h, SIGTERM);
        expect_goodbye(publisher, 30);
        while (n < 30) {
                const struct nd_raw_packet *packet = nd_raw_next_other(subscriber);

                cr_assert(packet, "closed after %llu messages", (unsigned long long)n);
                if (packet->prelude.kind != ND_KIND_MESSAGE)
                        continue;
                cr_assert_eq(packet->prelude.sequence, ++n);
                nd_raw_grant(subscriber, 1, 1, packet->prelude.body_bytes);
        }
        expect_exit(h, 20000);
        expect_goodbye(publisher, 30);
        nd_raw_expect_closed(publisher);
        nd_raw_expect_closed(greeted); /* it had no WELCOME, so it is told nothing */
        nd_raw_close(publisher);
        nd_raw_close(subscriber);
        nd_raw_close(greeted);
        nd_harness_stop(h);
}

/* A client that takes nothing holds it up for drain-timeout, no longer. What it will not get is told:
 * to a group as one, and not what a member has. */
Test(lifecycle, drain_timeout)
{
        static const char *const args[] = {"--drain-timeout", "500", NULL};
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.args = args});
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw *stopped = nd_raw_open(h, true);
        struct nd_raw *members[2] = {nd_raw_open(h, true), nd_raw_open(h, false)};
        struct nd_raw_message message;
        uint64_t n_gap = 0;
        char *log;

        nd_raw_subscribe(stopped, 1, &(struct nd_raw_subscribe){.pattern = "d", .window = 1});
        nd_raw_subscribe(
                stopped, 2,
                &(struct nd_raw_subscribe){.pattern = "*", .window = 1, .policy = ND_POLICY_BLOCK});
        for (size_t i = 0; i < 2; ++i)
                nd_raw_subscribe(
                        members[i], 1,
                        &(struct nd_raw_subscribe){.pattern = "d", .window = 1, .group = "g"});
        for (int i = 0; i < 5; ++i)
                nd_raw_publish(publisher, "d", 100);
        nd_raw_flush(publisher);
        nd_harness_signal(h, SIGTERM);
        expect_exit(h, 5000);
        log = nd_harness_log(h);
        cr_expect(strstr(log, "lost=11"), "%s", log);
        free(log);

        for (size_t i = 0; i < 2; ++i) {
                message = nd_raw_receive(stopped);
                nd_raw_message_free(&message);
        }
        expect_goodbye(stopped, 0);
        cr_expect_eq(nd_raw_expect(stopped, ND_KIND_GAP)->prelude.place, 4);
        cr_expect_eq(nd_raw_expect(stopped, ND_KIND_GAP)->prelude.place, 4);
        expect_goodbye(stopped, 0);
        nd_raw_expect_closed(stopped);
        for (size_t i = 0; i < 2; ++i) {
                const struct nd_raw_packet *packet;

                nd_raw_expect(members[i], ND_KIND_MESSAGE);
                expect_goodbye(members[i], 0);
                packet = nd_raw_next_other(members[i]);
                cr_assert(packet);
                if (packet->prelude.kind == ND_KIND_GAP)
                        n_gap += packet->prelude.place;
                else
                        cr_expect_eq(packet->prelude.kind, ND_KIND_GOODBYE);
                nd_raw_close(members[i]);
        }
        cr_expect_eq(n_gap, 3);
        expect_goodbye(publisher, 5);
        expect_goodbye(publisher, 5);
        nd_raw_expect_closed(publisher);
        nd_raw_close(publisher);
        nd_raw_close(stopped);
        nd_harness_stop(h);
}

/* The message under way may be finished; the second signal waits for nothing. */
Test(lifecycle, drain_of_a_message_under_way)
{
        struct nd_harness *h = nd_harness_start(&options_patient);
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw *subscriber = nd_raw_open(h, false);
        struct nd_raw_message message;

        nd_raw_subscribe(subscriber, 1, &(struct nd_raw_subscribe){.pattern = "d"});
        nd_raw_publish_begin(publisher, "d", 2 * MIB, 3);
        nd_raw_publish_chunk(publisher, 3, 0, 1000);
        nd_raw_expect(subscriber, ND_KIND_MESSAGE);
        nd_raw_expect(subscriber, ND_KIND_CHUNK);
        nd_harness_signal(h, SIGTERM);
        expect_goodbye(subscriber, 0);
        nd_raw_publish_rest(publisher, 3, 1000, 2 * MIB);
        for (uint64_t n = 1000; n < 2 * MIB;)
                n += nd_raw_expect(subscriber, ND_KIND_CHUNK)->prelude.body_bytes;
        expect_exit(h, 20000);
        nd_raw_close(publisher);
        nd_raw_close(subscriber);
        nd_harness_start_again(h);

        publisher = nd_raw_open(h, false);
        subscriber = nd_raw_open(h, false);
        nd_raw_subscribe(subscriber, 1, &(struct nd_raw_subscribe){.pattern = "d"});
        nd_raw_publish(publisher, "d", 30);
        message = nd_raw_receive(subscriber);
        nd_raw_message_free(&message);
        nd_raw_publish_begin(publisher, "d", 2 * MIB, 3);
        nd_raw_flush(subscriber);
        nd_harness_signal(h, SIGTERM);
        nd_raw_expect(publisher, ND_KIND_GOODBYE);
        nd_harness_signal(h, SIGINT);
        expect_exit(h, 20000);
        nd_raw_close(publisher);
        nd_raw_close(subscriber);
        nd_harness_stop(h);
}

/* GOODBYE from a client is answered by GOODBYE, the last packet there; then the daemon waits for
 * it to close. */
Test(lifecycle, goodbye_of_a_client)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *raw = nd_raw_open(h, false);
        struct nd_bystanders b;

        nd_bystanders_init(&b, h);
        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = "**"});
        nd_raw_publish(raw, "bye", 10);
        nd_raw_expect(raw, ND_KIND_MESSAGE);
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_GOODBYE, .sequence = 9});
        nd_raw_expect(raw, ND_KIND_GOODBYE);
        nd_raw_expect(b.subscriber, ND_KIND_MESSAGE);
        nd_raw_publish(raw, "bye", 10); /* passed over */
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = 10});
        nd_bystanders_check(&b);
        cr_expect_not(nd_raw_has_input(raw));
        nd_raw_close(raw);
        nd_harness_wait_fds(h, h->n_fds_ready + 2, nd_harness_deadline_ms(20000));
        nd_bystanders_deinit(&b);
        nd_harness_stop(h);
}

/* T55, for five seconds: ten subscribers with nothing to do, and one whose queue is full */
Test(lifecycle, idle)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *publisher = nd_raw_open(h, false);
        struct nd_raw *subscribers[10];
        struct itimerspec five = {.it_value = {.tv_sec = 5}};
        struct pollfd wait = {.events = POLLIN};
        uint64_t cpu_ns;

        for (size_t i = 0; i < nd_array_size(subscribers); ++i) {
                subscribers[i] = nd_raw_open(h, i & 1);
                nd_raw_subscribe(subscribers[i], 1, &(struct nd_raw_subscribe){.pattern = "**"});
        }
        nd_raw_publish(publisher, "idle", 100);
        nd_raw_publish(publisher, "idle", MIB);
        nd_raw_flush(publisher);
        wait.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
        cr_assert(wait.fd >= 0 && timerfd_settime(wait.fd, 0, &five, NULL) == 0);
        cpu_ns = nd_harness_cpu_ns(h);
        cr_assert_eq(poll(&wait, 1, -1), 1);
        cpu_ns = nd_harness_cpu_ns(h) - cpu_ns;
        if (nd_harness_memory_is_exact()) /* 0.1 s in 30 s, and two ticks of the clock */
                cr_expect_leq(cpu_ns, 40000000, "%llu us", (unsigned long long)cpu_ns / 1000);
        close(wait.fd);
        for (size_t i = 0; i < nd_array_size(subscribers); ++i)
                nd_raw_close(subscribers[i]);
        nd_raw_close(publisher);
        nd_harness_stop(h);
}

static size_t count(const char *text, const char *what)
{
        size_t n = 0;

        for (; (text = strstr(text, what)); ++text)
                ++n;
        return n;
}

/* "2026-01-31T23:59:59.999Z ndbusd: ...", and between the two times that are given */
static void expect_times(const char *log, time_t first, time_t last)
{
        for (const char *line = log; *line; line = strchr(line, '\n') + 1) {
                static const char form[] = "0000-00-00T00:00:00.000Z ndbusd: ";
                struct tm utc = {0};
                const char *end = strptime(line, "%Y-%m-%dT%H:%M:%S", &utc);
                time_t at;

                for (size_t i = 0; form[i]; ++i)
                        cr_assert(form[i] == '0' ? line[i] >= '0' && line[i] <= '9'
                                                 : line[i] == form[i],
                                  "%s", line);
                cr_assert(end && *end == '.', "%s", line);
                at = timegm(&utc);
                cr_expect(at >= first && at <= last, "%s", line);
        }
}

/* In a file lines are for people; priorities are for the journal, where it reads this very file, and
 * notes the time. Who broke the protocol is in it, for twenty a second at least. */
Test(lifecycle, log_lines)
{
        static char journal[64] = "JOURNAL_STREAM=1:2";
        static const char *const env[] = {journal, NULL};
        time_t first = time(NULL);
        struct nd_harness *h = nd_harness_start(&(struct nd_harness_options){.env = env});
        char path[256];
        struct stat st;
        int status;
        char *log;
        const char *line;

        for (size_t i = 0; i < 20; ++i) {
                struct nd_raw *raw = nd_raw_open(h, i & 1);

                nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_PING});
                nd_raw_expect_error(raw, NDBUS_EPROTOCOL, true);
                nd_raw_close(raw);
        }
        log = nd_harness_log(h);
        cr_expect_eq(count(log, "ndbusd: warning: closing connection"), 20, "%s", log);
        cr_expect_eq(count(log, "left_out"), 0, "%s", log);
        cr_expect_eq(count(log, "<"), 0, "%s", log);
        expect_times(log, first, time(NULL) + 1); /* time() may lag by a tick */
        free(log);

        snprintf(path, sizeof(path), "%s/log", h->folder);
        cr_assert_eq(stat(path, &st), 0);
        snprintf(journal, sizeof(journal), "JOURNAL_STREAM=%ju:%ju", (uintmax_t)st.st_dev,
                 (uintmax_t)st.st_ino);
        nd_harness_signal(h, SIGTERM);
        cr_assert(nd_harness_wait_exit(h, nd_harness_deadline_ms(20000), &status));
        nd_harness_start_again(h);
        log = nd_harness_log(h);
        line = strstr(log, "\n<5>ndbusd: tcp");
        cr_expect(line, "%s", log);
        cr_expect_eq(count(line ? line : log, "Z ndbusd: "), 0, "%s", log);
        free(log);
        nd_harness_stop(h);
}

/* Bad usage: status 2, and one line that names the option, the value and what would be right. */
Test(lifecycle, bad_usage)
{
        static const char *const rows[][4] = {
                {"--memory-max", "1K", "--memory-max: 1K is not from 8388608 to"},
                {"--log-level", "loud", "--log-level: 'loud' is not"},
                {"--listen", "udp://x", "--listen: is \"udp://x\""},
                {"--frobnicate", "", "--frobnicate"},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                const char *args[] = {rows[i][0], rows[i][1][0] ? rows[i][1] : NULL, NULL};
                struct nd_harness *h = nd_harness_spawn(&(struct nd_harness_options){.args = args});
                int status = 0;
                char *log;

                cr_assert(nd_harness_wait_exit(h, nd_harness_deadline_ms(20000), &status));
                cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s: status %x",
                          rows[i][0], (unsigned)status);
                log = nd_harness_log(h);
                cr_expect(strstr(log, rows[i][2]), "%s", log);
                cr_expect_eq(strcspn(log, "\n") + 1, strlen(log), "more than a line: %s", log);
                free(log);
                nd_harness_free(h);
        }
}
