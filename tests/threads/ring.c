/* SPDX-License-Identifier: MIT */

/*
 * A ring whose two ends are two threads: every packet arrives once, in order, as it was written, and nobody
 * sleeps for ever
 *
 * The daemon's end sleeps whenever the ring lets it, and the client's end mostly waits until all is taken and
 * writes again at that very moment, so the two meet where one goes to sleep and the other writes. If the
 * stores there were not sequentially consistent, each could miss the other on most processors, and both
 * would wait: that is what the alarm is for. If they were weaker still, ThreadSanitizer would see bytes
 * that are read while they are written; it knows memory by its address, so both ends use one mapping.
 */

#include "protocol/shm/ring.h"
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "protocol/byteorder.h"

#define N_PACKETS  60000u
#define LEAD_BYTES 12u /* u32 bytes in all, u64 number */
#define PATIENCE_S 100u

static struct nd_ring client, daemon_end;
static int wake_fd;

static void check(bool is_so, const char *what, uint64_t number)
{
        if (is_so)
                return;
        fprintf(stderr, "not so: %s (packet %" PRIu64 ")\n", what, number);
        _exit(1);
}

static uint32_t random_next(uint32_t *state)
{
        *state = *state * 1664525u + 1013904223u;
        return *state >> 8;
}

/* As long as it takes to get into step with the other thread, or out of it. */
static void dawdle(uint32_t n)
{
        for (volatile uint32_t i = 0; i < n;)
                i = i + 1;
}

static uint8_t body_at(uint64_t number, size_t i)
{
        return (uint8_t)(number * 7 + i * 31);
}

/* ------------------------------------------------------------------------------- the client's end */

static size_t make_packet(uint8_t *packet, uint64_t number, uint32_t *state)
{
        size_t n = LEAD_BYTES + random_next(state) % 200;

        if (random_next(state) % 64 == 0)
                n = LEAD_BYTES + random_next(state) % (ND_RING_BYTES - LEAD_BYTES + 1);
        nd_store_le32(packet, (uint32_t)n);
        nd_store_le64(packet + 4, number);
        for (size_t i = LEAD_BYTES; i < n; ++i)
                packet[i] = body_at(number, i);
        return n;
}

static void *write_packets(void *unused)
{
        static uint8_t packet[ND_RING_BYTES];
        uint32_t state = 1;

        for (uint64_t number = 1; number <= N_PACKETS; ++number) {
                size_t n = make_packet(packet, number, &state);

                while (!nd_ring_put(&client, packet, n))
                        sched_yield();
                if (nd_ring_must_wake(&client))
                        check(eventfd_write(wake_fd, 1) == 0, "it can be woken", number);
                if (random_next(&state) % 8 == 0)
                        continue;
                while (atomic_load(&client.head->taken) != client.position)
                        sched_yield();
                dawdle(random_next(&state) % 64);
        }
        return unused;
}

/* ------------------------------------------------------------------------------- the daemon's end */

static size_t check_packet(const uint8_t *data, size_t n_data, uint64_t number)
{
        size_t n;

        check(n_data >= LEAD_BYTES, "packets are whole", number);
        n = nd_load_le32(data);
        check(n >= LEAD_BYTES && n <= n_data, "packets are whole", number);
        check(nd_load_le64(data + 4) == number, "they come once and in order", number);
        for (size_t i = LEAD_BYTES; i < n; ++i)
                check(data[i] == body_at(number, i), "they come unchanged", number);
        return n;
}

static void sleep_if_nothing_is_there(uint64_t *n_sleeps)
{
        eventfd_t n;

        if (nd_ring_sleep(&daemon_end)) {
                check(eventfd_read(wake_fd, &n) == 0, "it wakes", 0);
                ++*n_sleeps;
        }
        nd_ring_wake(&daemon_end);
}

static uint64_t take_packets(void)
{
        static uint8_t data[ND_RING_BYTES];
        uint64_t number = 0, n_sleeps = 0;
        uint32_t state = 2;

        while (number < N_PACKETS) {
                size_t n = 0, i = 0;

                check(nd_ring_look(&daemon_end, data, &n, NULL) == 0, "positions are true", number);
                if (n == 0) {
                        sleep_if_nothing_is_there(&n_sleeps);
                        continue;
                }
                do /* and sometimes it leaves the rest until it looks again */
                        i += check_packet(data + i, n - i, ++number);
                while (i < n && random_next(&state) % 16 > 0);
                nd_ring_take(&daemon_end, i);
                dawdle(random_next(&state) % 64);
        }
        return n_sleeps;
}

int main(void)
{
        pthread_t thread;
        uint64_t n_sleeps;
        int fd;

        alarm(PATIENCE_S);
        check(nd_ring_create(&client, &fd, NULL) == 0, "a ring", 0);
        close(fd);
        daemon_end = client;
        wake_fd = eventfd(0, EFD_CLOEXEC);
        check(wake_fd >= 0, "an eventfd", 0);
        check(pthread_create(&thread, NULL, write_packets, NULL) == 0, "a thread", 0);
        n_sleeps = take_packets();
        pthread_join(thread, NULL);
        check(nd_ring_is_empty(&daemon_end), "nothing is left", N_PACKETS);
        fprintf(stderr, "it slept %" PRIu64 " times\n", n_sleeps);
        close(wake_fd);
        nd_ring_close(&client);
        return 0;
}
