/* SPDX-License-Identifier: MIT */

/*
 * T26: messages longer than 32 bits can count, and a large one to many
 *
 * The publisher's array is a little memory that is mapped again and again; only the receiver has it
 * whole. It is compared with P, whose digest
 * test-pattern.c knows. Meanwhile the daemon must not keep what has been passed on.
 *
 * Each size goes over one transport, and with NDBUS_TEST_LARGE set over both: that takes minutes
 * where fresh memory is slow. A plain program, since it may have to say that this machine is too
 * small: status 77.
 */

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "tests/support/client.h"
#include "tests/support/pattern.h"
#include "tests/support/raw-client.h"

#define MIB           (UINT64_C(1) << 20)
#define GIB           (UINT64_C(1) << 30)
#define DAEMON_MIB    64
#define AVAILABLE_MIB (8 * 1024)
#define READERS_N     8u
#define SKIPPED       77

static uint64_t available_mib(void)
{
        FILE *file = fopen("/proc/meminfo", "re");
        char line[128];
        uint64_t kib = 0;

        while (file && fgets(line, sizeof(line), file)) {
                if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
                        break;
        }
        if (file)
                fclose(file);
        return kib / 1024;
}

static void expect_peak(struct nd_harness *h, uint64_t limit_mib, const char *what)
{
        uint64_t peak_mib = nd_harness_memory(h).rss_peak_bytes / MIB;

        printf("%s: the daemon had at most %" PRIu64 " MiB\n", what, peak_mib);
        if (nd_harness_memory_is_exact() && peak_mib > limit_mib)
                nd_harness_fail(h, "%s: the daemon had %" PRIu64 " MiB, the limit is %" PRIu64,
                                what, peak_mib, limit_mib);
}

static void one_to_one(struct nd_harness *h, const struct nd_transport *transport, uint64_t n_bytes)
{
        struct nd_large large = {h, transport, "large", n_bytes};
        struct ndbus *bus = nd_client_open(h, transport, NULL);
        const struct ndbus_array *arrays;
        struct ndbus_message *m = NULL;
        pthread_t thread;
        char what[64];
        int r;

        snprintf(what, sizeof(what), "%s, %" PRIu64 " bytes", transport->name, n_bytes);
        nd_client_subscribe(bus, "large", NULL);
        nd_harness_reset_peak(h);
        pthread_create(&thread, NULL, nd_client_publish_large, &large);
        r = ndbus_receive(bus, &m, -1);
        if (r)
                nd_harness_fail(h, "%s: %s: %s", what, ndbus_errname(r), ndbus_detail());
        pthread_join(thread, NULL);

        expect_peak(h, DAEMON_MIB, what);
        if (ndbus_message_arrays(m, &arrays) != 1 || arrays[0].shape[0] != (int64_t)n_bytes)
                nd_harness_fail(h, "%s: another shape", what);
        if (nd_pattern_compare(arrays[0].data, 0, n_bytes) != n_bytes)
                nd_harness_fail(h, "%s: byte %zu differs", what,
                                nd_pattern_compare(arrays[0].data, 0, n_bytes));
        ndbus_message_free(m);
        nd_client_close(bus);
}

/* 1 GiB to eight who read and throw away: kept once, and given back as they go. */
static void one_to_many(struct nd_harness *h)
{
        static uint8_t sink[MIB];
        struct nd_large large = {h, &nd_transports[0], "large", GIB};
        struct nd_raw *readers[READERS_N];
        struct pollfd polled[READERS_N];
        uint64_t n_read[READERS_N] = {0};
        size_t n_left = READERS_N;
        pthread_t thread;

        for (size_t i = 0; i < READERS_N; ++i) {
                readers[i] = nd_raw_open(h, i % 2);
                nd_raw_subscribe(readers[i], 1, &(struct nd_raw_subscribe){.pattern = "large"});
                polled[i] = (struct pollfd){.fd = readers[i]->fd, .events = POLLIN};
        }
        nd_harness_reset_peak(h);
        pthread_create(&thread, NULL, nd_client_publish_large, &large);
        while (n_left > 0) {
                if (poll(polled, READERS_N, nd_harness_deadline_ms(ND_CLIENT_WAIT_MS)) <= 0)
                        nd_harness_fail(h, "nothing comes");
                for (size_t i = 0; i < READERS_N; ++i) {
                        ssize_t n;

                        if (!polled[i].revents)
                                continue;
                        n = recv(polled[i].fd, sink, sizeof(sink), MSG_DONTWAIT);
                        if (n <= 0)
                                nd_harness_fail(h, "reader %zu: the daemon closed", i);
                        n_read[i] += (uint64_t)n;
                        if (n_read[i] >= GIB && polled[i].events) {
                                polled[i].events = 0;
                                --n_left;
                        }
                }
        }
        pthread_join(thread, NULL);
        expect_peak(h, GIB / MIB + DAEMON_MIB, "1 GiB to eight");
        for (size_t i = 0; i < READERS_N; ++i)
                nd_raw_close(readers[i]);
}

int main(void)
{
        static const char *const args[] = {"--memory-max", "12G", NULL};
        static const uint64_t sizes[] = {2 * GIB + 1, 4 * GIB + 5};
        struct nd_harness *h;

        if (!nd_harness_memory_is_exact()) {
                printf("sanitizers take too long for this\n");
                return SKIPPED;
        }
        if (available_mib() < AVAILABLE_MIB) {
                printf("%" PRIu64 " MiB of memory are available, %d are needed\n", available_mib(),
                       AVAILABLE_MIB);
                return SKIPPED;
        }
        h = nd_harness_start(&(struct nd_harness_options){.args = args});
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
                for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                        if (t == i || getenv("NDBUS_TEST_LARGE"))
                                one_to_one(h, &nd_transports[t], sizes[i]);
                }
        }
        one_to_many(h);
        nd_harness_stop(h);
        return 0;
}
