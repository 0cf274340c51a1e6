/* SPDX-License-Identifier: MIT */

/*
 * Connections that come and go
 *
 * Each connects, says hello and CONNECT, waits for WELCOME, and closes, without the library, so that
 * a source address can be chosen: one TCP source address has some 28,000 ports, and closed ones rest
 * for a minute, so many connections need many addresses. What is looked for is what the daemon does
 * not give back: its memory and descriptors are read when it is idle, after a first tenth that fills
 * its pools, and at the end.
 */

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "protocol/control.h"
#include "protocol/hello.h"
#include "protocol/prelude.h"
#include "tests/bench/harness.h"

#define CHURN_IDLE_WAIT_NS UINT64_C(10000000000)

struct churn {
        const char *url;
        uint64_t count;
        unsigned n_sources;
        pid_t daemon;
        unsigned char greeting[ND_HELLO_BYTES + ND_PRELUDE_BYTES + ND_CONTROL_HEADER_BYTES_MAX];
        size_t n_greeting;
};

static int churn_usage(const char *what)
{
        fprintf(stderr,
                "churn: %s\n"
                "usage: churn --url unix:/path|tcp://127.0.0.1:PORT --daemon-pid PID\n"
                "       [--count N] [--sources N]\n",
                what);
        return 2;
}

static int churn_read_options(int argc, char **argv, struct churn *churn)
{
        static const struct option table[] = {
                {"url", required_argument, NULL, 'u'},
                {"count", required_argument, NULL, 'c'},
                {"sources", required_argument, NULL, 's'},
                {"daemon-pid", required_argument, NULL, 'p'},
                {NULL, 0, NULL, 0},
        };
        int c;

        *churn = (struct churn){.count = 100000, .n_sources = 16};

        while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
                if (c == 'u')
                        churn->url = optarg;
                else if (c == 'c')
                        churn->count = strtoull(optarg, NULL, 10);
                else if (c == 's')
                        churn->n_sources = (unsigned)strtoul(optarg, NULL, 10);
                else if (c == 'p')
                        churn->daemon = (pid_t)strtol(optarg, NULL, 10);
                else
                        return churn_usage("unknown option");
        }

        if (!churn->url || churn->daemon <= 0)
                return churn_usage("--url and --daemon-pid are needed");
        if (churn->count < 10 || !churn->n_sources || churn->n_sources > 60000)
                return churn_usage("--count: at least 10; --sources: 1 to 60000");

        return 0;
}

static void churn_make_greeting(struct churn *churn)
{
        const struct nd_connect connect = {.client = ND_STRING("churn"), .pid = (uint64_t)getpid()};
        struct nd_prelude prelude = {.kind = ND_KIND_CONNECT, .sequence = 1};
        struct nd_control_bytes header;
        unsigned char *at = churn->greeting;

        nd_connect_pack(&connect, &header);
        prelude.header_bytes = (uint32_t)header.n;

        nd_hello_pack(&(struct nd_hello){.version_min = 1, .version_max = 1}, at);
        nd_prelude_pack(&prelude, at + ND_HELLO_BYTES);
        memcpy(at + ND_HELLO_BYTES + ND_PRELUDE_BYTES, header.data, header.n);
        churn->n_greeting = ND_HELLO_BYTES + ND_PRELUDE_BYTES + header.n;
}

static int churn_receive(int fd, void *data, size_t n_data)
{
        ssize_t n = recv(fd, data, n_data, MSG_WAITALL);

        if (n < 0)
                return bench_say("recv: %s", strerror(errno));

        return (size_t)n == n_data ? BENCH_OK : bench_say("the daemon closed the connection");
}

static int churn_shake_hands(const struct churn *churn, int fd)
{
        unsigned char answer[ND_HELLO_BYTES + ND_PRELUDE_BYTES];
        unsigned char header[ND_CONTROL_HEADER_BYTES_MAX];
        struct nd_hello_reply reply;
        struct nd_prelude prelude;

        if (bench_send_all(fd, churn->greeting, churn->n_greeting) ||
            churn_receive(fd, answer, ND_HELLO_BYTES))
                return BENCH_FAILED;
        if (nd_hello_reply_unpack(answer, ND_HELLO_BYTES, &reply) || reply.version != 1)
                return bench_say("the daemon refused: reason %u", answer[7]);
        if (churn_receive(fd, answer + ND_HELLO_BYTES, ND_PRELUDE_BYTES))
                return BENCH_FAILED;

        nd_prelude_unpack(answer + ND_HELLO_BYTES, &prelude);
        if (prelude.kind != ND_KIND_WELCOME || prelude.header_bytes > sizeof(header))
                return bench_say("%s instead of WELCOME", nd_kind_name(prelude.kind));

        return churn_receive(fd, header, prelude.header_bytes);
}

static int churn_once(const struct churn *churn, uint64_t i)
{
        const struct timeval patience = {.tv_sec = 10};
        unsigned n = 2 + (unsigned)(i % churn->n_sources);
        char source[64];
        int fd, r;

        snprintf(source, sizeof(source), "tcp://127.0.%u.%u:0", n >> 8, n & 0xff);
        if (bench_connect(churn->url, strncmp(churn->url, "tcp:", 4) ? NULL : source, &fd))
                return BENCH_FAILED;

        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        r = churn_shake_hands(churn, fd);
        close(fd);

        return r;
}

/* The daemon learns of the last closes a little later: wait for its descriptors, then read. */
static void churn_look(const struct churn *churn, const char *when, unsigned n_fds)
{
        uint64_t began_ns = bench_now_ns();

        while (bench_n_fds(churn->daemon) > n_fds && bench_now_ns() - began_ns < CHURN_IDLE_WAIT_NS)
                bench_nap_us(1000);

        printf("%-12s RSS %8" PRIu64 " KiB, peak %8" PRIu64 " KiB, %u fds\n", when,
               bench_status_kib(churn->daemon, "VmRSS"), bench_status_kib(churn->daemon, "VmHWM"),
               bench_n_fds(churn->daemon));
}

int main(int argc, char **argv)
{
        struct churn churn;
        uint64_t began_ns;
        unsigned n_fds;
        int r;

        r = churn_read_options(argc, argv, &churn);
        if (r)
                return r;

        churn_make_greeting(&churn);
        n_fds = bench_n_fds(churn.daemon);
        churn_look(&churn, "at first", n_fds);
        began_ns = bench_now_ns();

        for (uint64_t i = 0; i < churn.count; ++i) {
                if (churn_once(&churn, i)) {
                        bench_print("connection %" PRIu64 " of %" PRIu64, i + 1, churn.count);
                        return 1;
                }
                if (i + 1 == churn.count / 10)
                        churn_look(&churn, "after 10 %", n_fds);
        }

        churn_look(&churn, "at the end", n_fds);
        printf("%" PRIu64 " connections, %.0f/s\n", churn.count,
               (double)churn.count * 1e9 / (double)(bench_now_ns() - began_ns));

        return bench_n_fds(churn.daemon) > n_fds;
}
