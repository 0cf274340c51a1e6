/* SPDX-License-Identifier: MIT */

/*
 * Processes that share memory are killed; nobody else notices, and nothing is left of them (T53)
 *
 * By the library, over shared memory. test-kill.c does the same packet by packet.
 * NDBUS_TEST_ROUNDS: how many processes are killed at random points (40).
 */

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/client.h"
#include "tests/support/raw-client.h"

#define MIB    ((size_t)1 << 20)
#define MARKER UINT64_C(1000000)

static const struct nd_transport *const shm = &nd_transports[ND_WAYS_N - 1];

/* A process that says a byte each time it has come as far as it was asked to. */
struct victim {
        pid_t pid;
        int said_fd;
};

static void say(int fd)
{
        if (write(fd, "x", 1) != 1)
                _exit(1);
}

static struct victim victim_start(struct nd_harness *h, void (*run)(struct nd_harness *, int))
{
        struct victim victim;
        int fds[2];

        cr_assert_eq(pipe(fds), 0);
        victim.pid = fork();
        cr_assert_geq(victim.pid, 0);
        if (victim.pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                close(fds[0]);
                run(h, fds[1]);
                _exit(1);
        }
        close(fds[1]);
        victim.said_fd = fds[0];
        return victim;
}

static void victim_hear(const struct victim *victim, unsigned n)
{
        struct pollfd p = {.fd = victim->said_fd, .events = POLLIN};
        char byte;

        for (; n > 0; --n) {
                cr_assert_eq(poll(&p, 1, nd_harness_deadline_ms(ND_CLIENT_WAIT_MS)), 1);
                cr_assert_eq(read(victim->said_fd, &byte, 1), 1, "it ended by itself");
        }
}

static void victim_kill(const struct victim *victim)
{
        kill(victim->pid, SIGKILL);
        waitpid(victim->pid, NULL, 0);
        close(victim->said_fd);
}

static struct ndbus_shm_stats stats_of(struct ndbus *bus)
{
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};

        cr_assert_eq(ndbus_shm_stats(bus, &stats), 0);
        return stats;
}

/* ------------------------------------------------------------------------------ one that holds */

static void hold_three(struct nd_harness *h, int fd)
{
        struct ndbus *bus = nd_client_open(h, shm, NULL);

        nd_client_subscribe(bus, "a", NULL);
        say(fd);
        for (int i = 0; i < 3; ++i)
                (void)nd_client_receive(bus); /* and never frees it */
        say(fd);
        for (;;)
                pause();
}

/* T53: what it held is its publisher's again, who goes on for ten times its memory */
Test(survivors, of_one_that_holds_blocks)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct nd_harness *h = nd_harness_start(NULL);
        struct victim holder = victim_start(h, hold_three);
        struct ndbus *pub, *sub;
        uint64_t n_before;

        options.shm_max = 8 * MIB;
        pub = nd_client_open(h, shm, &options);
        sub = nd_client_open(h, shm, NULL);
        nd_client_subscribe(sub, "a", NULL);
        victim_hear(&holder, 1);
        for (uint64_t i = 1; i <= 3; ++i) {
                nd_client_publish(pub, "a", i, MIB);
                nd_client_expect(sub, i);
        }
        victim_hear(&holder, 1);
        nd_client_flush(pub);
        cr_assert_geq(stats_of(pub).blocks, 3, "held");

        victim_kill(&holder);
        n_before = stats_of(pub).published;
        for (uint64_t i = 1; i <= 80; ++i) {
                nd_client_publish(pub, "a", 100 + i, MIB);
                nd_client_expect(sub, 100 + i);
        }
        cr_assert_geq(stats_of(pub).published, n_before + 75);
        cr_assert_eq(ndbus_ping(sub, NULL, ND_CLIENT_WAIT_MS), 0); /* its RELEASEs are heard */
        nd_client_flush(pub);
        nd_client_flush(pub);
        cr_assert_eq(stats_of(pub).blocks, 0);
        cr_assert_eq(stats_of(sub).held, 0);
        nd_client_close(pub);
        nd_client_close(sub);
        nd_harness_stop(h);
}

/* ------------------------------------------------------------------------------ at random points */

static unsigned rounds(void)
{
        const char *text = getenv("NDBUS_TEST_ROUNDS");

        return text ? (unsigned)strtoul(text, NULL, 10) : 40;
}

static void publish_on(struct nd_harness *h, int fd)
{
        struct ndbus *bus = nd_client_open(h, shm, NULL);

        for (uint64_t i = 1;; ++i) {
                nd_client_publish(bus, "a", i % MARKER, i % 3 == 0 ? 1000 : MIB / (i % 5 + 1));
                say(fd);
        }
}

static void receive_on(struct nd_harness *h, int fd)
{
        struct ndbus *bus = nd_client_open(h, shm, NULL);
        struct ndbus_message *held[4] = {NULL};

        nd_client_subscribe(bus, "b", NULL);
        say(fd);
        for (size_t i = 0;; ++i) {
                struct ndbus_message **place = &held[i % 4];

                ndbus_message_free(*place);
                *place = nd_client_receive(bus);
                say(fd);
        }
}

/* Takes all that was published on "a" before this. */
static void drain(struct ndbus *pub, struct ndbus *listener)
{
        nd_client_publish(pub, "a", MARKER, 1000);
        while (nd_client_take_number(nd_client_receive(listener)) != MARKER)
                ;
}

Test(survivors, of_processes_killed_at_random, .timeout = 300)
{
        unsigned n_rounds = rounds(), seed = (unsigned)getpid();
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *pub, *sub, *listener;

        fprintf(stderr, "seed %u\n", seed);
        options.shm_max = 16 * MIB;
        pub = nd_client_open(h, shm, &options);
        sub = nd_client_open(h, shm, NULL);
        listener = nd_client_open(h, shm, NULL);
        nd_client_subscribe(sub, "b", NULL);
        nd_client_subscribe(listener, "a", NULL);
        drain(pub, listener);

        for (unsigned i = 0; i < n_rounds; ++i) {
                bool is_publisher = rand_r(&seed) % 2;
                unsigned n = 1 + (unsigned)rand_r(&seed) % 20;
                struct victim victim = victim_start(h, is_publisher ? publish_on : receive_on);

                victim_hear(&victim, 1);
                for (uint64_t j = 1; j <= 20; ++j) {
                        nd_client_publish(pub, "b", j, MIB);
                        nd_client_expect(sub, j);
                }
                victim_hear(&victim, n - 1);
                victim_kill(&victim);
                drain(pub, listener);
        }
        cr_assert_eq(ndbus_ping(sub, NULL, ND_CLIENT_WAIT_MS), 0);
        cr_assert_eq(ndbus_ping(listener, NULL, ND_CLIENT_WAIT_MS), 0);
        nd_client_flush(pub);
        nd_client_flush(pub);
        cr_assert_eq(stats_of(pub).blocks, 0);
        cr_assert_eq(stats_of(sub).held, 0);
        cr_assert_eq(stats_of(listener).held, 0);
        nd_client_close(pub);
        nd_client_close(sub);
        nd_client_close(listener);
        nd_harness_stop(h);
}

/* ------------------------------------------------------------------------------ through a ring */

/* So many messages are published before the others may go through a ring. */
#define RING_AFTER 17u

static void publish_by_ring(struct nd_harness *h, int fd)
{
        struct ndbus *bus = nd_client_open(h, shm, NULL);

        (void)fd;
        for (uint64_t i = 1;; ++i) {
                nd_client_publish(bus, "a", i, i % 16 == 0 ? 1000 : 10000 + i * 37 % 50000);
                if (i == RING_AFTER && ndbus_ping(bus, NULL, ND_CLIENT_WAIT_MS))
                        _exit(1);
        }
}

/* How far each publisher has come, as its reader sees it. */
struct progress {
        uint64_t source;
        uint64_t number;
};

/* The next message follows on its publisher's last one, whoever died meanwhile. */
static void take_next(struct ndbus *listener, struct progress *all, size_t n)
{
        struct ndbus_message *m = nd_client_receive(listener);
        uint64_t source = ndbus_message_source(m);
        struct progress *its = all;

        while (its->source != source && its->source > 0) {
                ++its;
                cr_assert_lt((size_t)(its - all), n);
        }
        its->source = source;
        ++its->number;
        cr_assert_eq(ndbus_message_dropped(m), 0);
        cr_assert_eq(ndbus_message_sequence(m), its->number);
        cr_assert_eq(nd_client_take_number(m), its->number);
}

/* Without the ring's memory, and without its messages, once its publisher is dead. */
Test(survivors, of_publishers_killed_with_messages_in_their_rings, .timeout = 300)
{
        unsigned n_rounds = rounds(), seed = (unsigned)getpid();
        struct ndbus_subscribe_options block = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct progress *all = calloc(n_rounds, sizeof(*all));
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_raw *observer = nd_raw_open(h, false);
        struct ndbus *pub, *sub, *listener;

        cr_assert(all);
        fprintf(stderr, "seed %u\n", seed);
        block.policy = NDBUS_BLOCK;
        block.depth = 64;
        pub = nd_client_open(h, shm, NULL);
        sub = nd_client_open(h, shm, NULL);
        listener = nd_client_open(h, shm, NULL);
        nd_client_subscribe(sub, "b", NULL);
        nd_client_subscribe(listener, "a", &block);

        for (unsigned i = 0; i < n_rounds; ++i) {
                uint64_t n = RING_AFTER + 3 + (uint64_t)rand_r(&seed) % 300;
                struct victim victim = victim_start(h, publish_by_ring);

                while (all[i].number < n)
                        take_next(listener, all, n_rounds);
                for (uint64_t j = 1; j <= 5; ++j)
                        nd_client_publish(pub, "b", j, 20000);
                victim_kill(&victim);
                for (uint64_t j = 1; j <= 5; ++j)
                        nd_client_expect(sub, j);
        }
        cr_assert_geq(nd_raw_stat(observer, "counters", "ring_messages"), 2 * n_rounds);
        nd_client_close(listener);
        nd_client_close(pub);
        nd_client_close(sub);
        nd_raw_close(observer);
        nd_harness_stop(h);
        free(all);
}
