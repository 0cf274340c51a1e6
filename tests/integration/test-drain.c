/* SPDX-License-Identifier: MIT */

/*
 * T56: a large message drains slowly to a subscriber, which is not taken for dead, and is answered
 * when it pings meanwhile
 *
 *   test-drain MIB
 *
 * The message goes at 20 MB/s, as over an old network. A PING may wait for what the sockets hold, and
 * for no more of the message than that: 200 ms of it. That is counted in bytes, which a slow machine
 * does not change; the milliseconds are printed. The receiver's socket holds what it is told to: left
 * alone the kernel lets it grow to tens of MiB when bytes are read in bursts, as on a loaded machine
 * they are. Gigabytes take minutes: with NDBUS_TEST_LARGE set only, else status 77.
 */

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/client.h"
#include "tests/support/pattern.h"
#include "tests/support/raw-client.h"

#define MIB            (UINT64_C(1) << 20)
#define BYTES_PER_S    UINT64_C(20000000)
#define PING_BYTES     (BYTES_PER_S / 10) /* how often */
#define PONG_BYTES_MAX (BYTES_PER_S / 5)  /* of the message that may come first */
#define SOCKET_BYTES   (1 << 20)          /* that the receiver's holds */
#define SKIPPED        77

static double now_s(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* How slow PONGs came. */
struct pings {
        uint64_t n;
        uint64_t n_answered;
        uint64_t at_bytes; /* of the message, when the last PING was sent */
        uint64_t bytes_max;
        double at_s;
        double *took_s; /* [n_answered] */
};

static void ping(struct nd_raw *raw, struct pings *pings, uint64_t n_bytes)
{
        ++pings->n;
        pings->at_bytes = n_bytes;
        pings->at_s = now_s();
        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = pings->n});
}

static void take_pong(struct nd_raw *raw, struct pings *pings, uint64_t n_bytes, uint64_t number)
{
        if (number != pings->n)
                nd_harness_fail(raw->harness, "PONG %" PRIu64 " to PING %" PRIu64, number,
                                pings->n);
        pings->took_s[pings->n_answered++] = now_s() - pings->at_s;
        if (n_bytes - pings->at_bytes > pings->bytes_max)
                pings->bytes_max = n_bytes - pings->at_bytes;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void drain(struct nd_harness *h, const struct nd_transport *transport, uint64_t n_bytes)
{
        struct nd_large large = {h, transport, "drain", n_bytes};
        struct itimerspec every = {{.tv_nsec = 10000000}, {.tv_nsec = 10000000}};
        int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
        struct nd_raw *raw = nd_raw_open(h, transport->is_tcp);
        struct pings pings = {.took_s = calloc(n_bytes / PING_BYTES + 2, sizeof(double))};
        uint64_t n_read = 0, n_ticks, n_due = 0;
        pthread_t thread;
        int held = SOCKET_BYTES / 2; /* the kernel doubles it */

        if (setsockopt(raw->fd, SOL_SOCKET, SO_RCVBUF, &held, sizeof(held)) != 0)
                nd_harness_fail(h, "SO_RCVBUF: %s", strerror(errno));
        if (timer < 0 || timerfd_settime(timer, 0, &every, NULL) != 0 || !pings.took_s)
                nd_harness_fail(h, "no timer: %s", strerror(errno));
        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = "drain"});
        pthread_create(&thread, NULL, nd_client_publish_large, &large);
        nd_raw_expect(raw, ND_KIND_MESSAGE);
        while (n_read < n_bytes || pings.n_answered < pings.n) {
                const struct nd_raw_packet *packet;

                while (n_read >= n_due && n_read < n_bytes) {
                        if (read(timer, &n_ticks, sizeof(n_ticks)) != sizeof(n_ticks))
                                nd_harness_fail(h, "timer: %s", strerror(errno));
                        n_due += BYTES_PER_S / 100; /* who is late does not catch up */
                }
                packet = nd_raw_next_other(raw);
                if (!packet)
                        nd_harness_fail(h, "%s: closed after %" PRIu64 " bytes", transport->name,
                                        n_read);
                if (packet->prelude.kind == ND_KIND_PONG) {
                        take_pong(raw, &pings, n_read, packet->prelude.sequence);
                        continue;
                }
                if (packet->prelude.kind != ND_KIND_CHUNK || packet->prelude.place != n_read ||
                    nd_pattern_compare(packet->body, n_read, packet->prelude.body_bytes) !=
                            packet->prelude.body_bytes)
                        nd_harness_fail(h, "%s: at byte %" PRIu64 " comes something else",
                                        transport->name, n_read);
                n_read += packet->prelude.body_bytes;
                if (pings.n == pings.n_answered && n_read >= pings.at_bytes + PING_BYTES)
                        ping(raw, &pings, n_read);
        }
        pthread_join(thread, NULL);
        qsort(pings.took_s, pings.n, sizeof(double), compare);
        printf("%s: %" PRIu64 " pings, p99 %.0f ms, at most %.0f ms and %" PRIu64 " KiB\n",
               transport->name, pings.n, pings.took_s[pings.n * 99 / 100] * 1e3,
               pings.took_s[pings.n - 1] * 1e3, pings.bytes_max / 1024);
        if (pings.bytes_max > PONG_BYTES_MAX)
                nd_harness_fail(h, "%s: %" PRIu64 " bytes came before a PONG", transport->name,
                                pings.bytes_max);
        if (nd_raw_stat(raw, "counters", "dead_peers") != 0)
                nd_harness_fail(h, "it was taken for dead");
        free(pings.took_s);
        close(timer);
        nd_raw_close(raw);
}

int main(int argc, char **argv)
{
        uint64_t n_bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 64) * MIB;
        static const char *const args[] = {"--memory-max", "6G", NULL};
        struct nd_harness *h;

        if (n_bytes > 256 * MIB && !getenv("NDBUS_TEST_LARGE")) {
                printf("NDBUS_TEST_LARGE is not set\n");
                return SKIPPED;
        }
        h = nd_harness_start(&(struct nd_harness_options){.args = args});
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t)
                drain(h, &nd_transports[t], n_bytes);
        nd_harness_stop(h);
        return 0;
}
