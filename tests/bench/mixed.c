/* SPDX-License-Identifier: MIT */

/*
 * Days of traffic in minutes
 *
 * Clients of every habit at once: they publish messages of all sizes on a few topics, retained or
 * not, subscribe with every policy, read slowly or not at all, unsubscribe, leave in order, and are
 * killed in the middle of whatever they do; each is replaced by the next. What is looked for is what
 * the daemon does not give back: its memory and descriptors are read when all clients are gone and
 * nothing is retained any more, after a first fifth of the time and at the end. Every message
 * received is checked for its length.
 *
 * The seed makes a client's decisions repeatable, not their timing.
 */

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <ndbus/ndbus.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/bench/harness.h"

#define MIXED_CLIENTS_MAX  64u
#define MIXED_BYTES_MAX    (UINT64_C(32) << 20)
#define MIXED_TOPICS       15u
#define MIXED_SUBS_MAX     8u
#define MIXED_KILL_ODDS    16u /* every 20 ms one client dies with a probability of 1 in so many */
#define MIXED_IDLE_WAIT_NS UINT64_C(30000000000)
#define MIXED_SETTLED_NS   UINT64_C(3000000000) /* pools are given back bit by bit */

struct mixed {
        const char *url;
        double seconds;
        unsigned n_clients;
        uint64_t seed;
        pid_t daemon;
};

struct tally { /* shared by all clients */
        _Atomic uint64_t published;
        _Atomic uint64_t refused;
        _Atomic uint64_t received;
        _Atomic uint64_t received_bytes;
        _Atomic uint64_t wrong;
        _Atomic uint64_t left;
};

struct client {
        struct ndbus *bus;
        struct ndbus_subscription *subs[MIXED_SUBS_MAX];
        unsigned char *payload; /* [MIXED_BYTES_MAX] */
        struct tally *tally;
        uint64_t random;
};

static int mixed_usage(const char *what)
{
        fprintf(stderr,
                "mixed: %s\n"
                "usage: mixed --url URL --daemon-pid PID [--seconds S] [--clients N] [--seed N]\n",
                what);
        return 2;
}

static int mixed_read_options(int argc, char **argv, struct mixed *mixed)
{
        static const struct option table[] = {
                {"url", required_argument, NULL, 'u'},
                {"seconds", required_argument, NULL, 't'},
                {"clients", required_argument, NULL, 'n'},
                {"seed", required_argument, NULL, 's'},
                {"daemon-pid", required_argument, NULL, 'p'},
                {NULL, 0, NULL, 0},
        };
        int c;

        *mixed = (struct mixed){.seconds = 60, .n_clients = 12, .seed = 1};

        while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
                if (c == 'u')
                        mixed->url = optarg;
                else if (c == 't')
                        mixed->seconds = strtod(optarg, NULL);
                else if (c == 'n')
                        mixed->n_clients = (unsigned)strtoul(optarg, NULL, 10);
                else if (c == 's')
                        mixed->seed = strtoull(optarg, NULL, 10);
                else if (c == 'p')
                        mixed->daemon = (pid_t)strtol(optarg, NULL, 10);
                else
                        return mixed_usage("unknown option");
        }

        if (!mixed->url || mixed->daemon <= 0)
                return mixed_usage("--url and --daemon-pid are needed");
        if (!(mixed->seconds > 0) || !mixed->n_clients || mixed->n_clients > MIXED_CLIENTS_MAX)
                return mixed_usage("--seconds: above 0; --clients: 1 to 64");

        return 0;
}

/* xorshift64*: any state but 0 */
static uint64_t client_random(struct client *client, uint64_t below)
{
        client->random ^= client->random >> 12;
        client->random ^= client->random << 25;
        client->random ^= client->random >> 27;

        return (client->random * UINT64_C(2685821657736338717) >> 16) % below;
}

static void mixed_topic(char out[static 32], unsigned i)
{
        snprintf(out, 32, "mixed/%u/%u", i % 3, i / 3);
}

/* As many between 1 and 2 KiB as between 1 and 2 MiB; the first eight bytes say how many. */
static void client_publish(struct client *client)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        uint64_t top = UINT64_C(16) << client_random(client, 22);
        uint64_t n_bytes =
                16 + client_random(client, top < MIXED_BYTES_MAX ? top : MIXED_BYTES_MAX / 2);
        const int64_t shape[1] = {(int64_t)n_bytes};
        const struct ndbus_array array = {.data = client->payload, .ndim = 1, .shape = shape};
        char topic[32];
        int r;

        memcpy(client->payload, &n_bytes, sizeof(n_bytes));
        mixed_topic(topic, (unsigned)client_random(client, MIXED_TOPICS));
        options.timeout_ms = (int)client_random(client, 50);
        options.retain = client_random(client, 10) == 0;
        options.more = n_bytes < 4096 && client_random(client, 2);

        r = ndbus_publish(client->bus, topic, &array, 1, &options);
        atomic_fetch_add(r ? &client->tally->refused : &client->tally->published, 1);
}

static void client_subscribe(struct client *client)
{
        static const char *const patterns[] = {"mixed/**",  "mixed/0/*", "mixed/*/1",
                                               "mixed/1/2", "mixed/2/*", "other/*"};
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        unsigned i = (unsigned)client_random(client, MIXED_SUBS_MAX);

        if (client->subs[i]) {
                ndbus_unsubscribe(client->subs[i]);
                client->subs[i] = NULL;
                return;
        }

        options.policy = (enum ndbus_policy)client_random(client, 5);
        options.depth = 1 + client_random(client, 100);
        options.bytes = UINT64_C(1) << 20 << client_random(client, 6);
        options.window = options.policy == NDBUS_LATEST ? 0 : 1 + client_random(client, 64);
        options.retained = client_random(client, 2) == 0;

        if (ndbus_subscribe(client->bus, patterns[client_random(client, 6)], &options,
                            &client->subs[i]))
                client->subs[i] = NULL;
}

/* Returns whether the bus is still good. */
static bool client_receive(struct client *client)
{
        unsigned n_max = (unsigned)client_random(client, 64);

        for (unsigned i = 0; i < n_max; ++i) {
                struct ndbus_message *message;
                const struct ndbus_array *arrays;
                uint64_t n_bytes, n_said = 0;
                int r;

                r = ndbus_receive(client->bus, &message, (int)client_random(client, 3));
                if (r)
                        return r != NDBUS_ENOTCONN && r != NDBUS_EDEAD && r != NDBUS_ESHUTDOWN;

                n_bytes = ndbus_message_bytes(message);
                if (ndbus_message_arrays(message, &arrays) == 1 && n_bytes >= sizeof(n_said))
                        memcpy(&n_said, arrays[0].data, sizeof(n_said));
                if (n_said != n_bytes)
                        atomic_fetch_add(&client->tally->wrong, 1);

                atomic_fetch_add(&client->tally->received, 1);
                atomic_fetch_add(&client->tally->received_bytes, n_bytes);
                ndbus_message_free(message);
        }

        return true;
}

static int client_live(const struct mixed *mixed, struct tally *tally, uint64_t seed)
{
        struct client client = {.tally = tally, .random = seed * 2 + 1};
        uint64_t n_steps;
        bool good = true;

        client.payload = calloc(1, MIXED_BYTES_MAX);
        if (!client.payload || ndbus_open(&client.bus, mixed->url, NULL))
                return 1;

        n_steps = client_random(&client, 200);
        for (uint64_t i = 0; i < n_steps && good; ++i) {
                switch (client_random(&client, 8)) {
                case 0:
                        client_subscribe(&client);
                        break;
                case 1:
                case 2:
                case 3:
                        client_publish(&client);
                        break;
                case 4:
                        bench_nap_us((unsigned)client_random(&client, 2000));
                        break;
                default:
                        good = client_receive(&client);
                }
        }

        ndbus_close(client.bus, (int)client_random(&client, 100), NULL);
        atomic_fetch_add(&tally->left, 1);
        free(client.payload);

        return 0;
}

static pid_t client_start(const struct mixed *mixed, struct tally *tally, uint64_t seed)
{
        pid_t parent = getpid(), pid;

        pid = fork();
        if (pid)
                return pid;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? client_live(mixed, tally, seed) : 1);
}

/* Returns how many clients were killed; negative if the daemon has died. */
static int64_t
mixed_phase(const struct mixed *mixed, struct tally *tally, double seconds, uint64_t *seed)
{
        uint64_t end_ns = bench_now_ns() + (uint64_t)(seconds * 1e9);
        struct client dice = {.random = *seed * 2 + 1};
        pid_t pids[MIXED_CLIENTS_MAX] = {0};
        int64_t n_killed = 0;

        while (bench_now_ns() < end_ns) {
                for (unsigned i = 0; i < mixed->n_clients; ++i) {
                        if (pids[i] > 0 && waitpid(pids[i], NULL, WNOHANG) == pids[i])
                                pids[i] = 0;
                        if (pids[i] <= 0)
                                pids[i] = client_start(mixed, tally, ++*seed);
                }

                bench_nap_us(20000);
                if (kill(mixed->daemon, 0))
                        return -1;

                if (client_random(&dice, MIXED_KILL_ODDS) == 0) {
                        pid_t pid = pids[client_random(&dice, mixed->n_clients)];

                        if (pid > 0 && !kill(pid, SIGKILL))
                                ++n_killed;
                }
        }

        for (unsigned i = 0; i < mixed->n_clients; ++i) {
                if (pids[i] > 0) {
                        kill(pids[i], SIGKILL);
                        waitpid(pids[i], NULL, 0);
                }
        }

        return n_killed;
}

/* What is retained is kept on purpose: an empty message clears it. */
static int mixed_clear_retained(const struct mixed *mixed)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus *bus;
        char topic[32];
        int r, r_close;

        r = ndbus_open(&bus, mixed->url, NULL);
        if (r)
                return bench_say("open: %s", ndbus_detail());

        options.retain = 1;
        for (unsigned i = 0; i < MIXED_TOPICS && !r; ++i) {
                mixed_topic(topic, i);
                r = ndbus_publish(bus, topic, NULL, 0, &options);
        }

        r_close = ndbus_close(bus, 10000, NULL);
        return r || r_close ? bench_say("clearing what is retained: %s", ndbus_detail()) : BENCH_OK;
}

static void mixed_look(const struct mixed *mixed, const char *when, unsigned n_fds)
{
        uint64_t began_ns = bench_now_ns(), settled_ns = began_ns, last_kib = 0;

        while (bench_now_ns() - began_ns < MIXED_IDLE_WAIT_NS &&
               bench_now_ns() - settled_ns < MIXED_SETTLED_NS) {
                uint64_t rss_kib = bench_status_kib(mixed->daemon, "VmRSS");

                if (rss_kib != last_kib || bench_n_fds(mixed->daemon) > n_fds)
                        settled_ns = bench_now_ns();
                last_kib = rss_kib;
                bench_nap_us(100000);
        }

        printf("%-12s RSS %8" PRIu64 " KiB, peak %8" PRIu64 " KiB, %u fds\n", when,
               bench_status_kib(mixed->daemon, "VmRSS"), bench_status_kib(mixed->daemon, "VmHWM"),
               bench_n_fds(mixed->daemon));
        fflush(stdout);
}

int main(int argc, char **argv)
{
        struct mixed mixed;
        struct tally *tally;
        int64_t n_killed, n_more;
        unsigned n_fds;
        int r;

        r = mixed_read_options(argc, argv, &mixed);
        if (r)
                return r;

        tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0);
        if (tally == MAP_FAILED)
                return bench_say("mmap: %s", strerror(errno)) != 0;

        n_fds = bench_n_fds(mixed.daemon);
        mixed_look(&mixed, "at first", n_fds);
        n_killed = mixed_phase(&mixed, tally, mixed.seconds / 5, &mixed.seed);
        if (n_killed < 0 || mixed_clear_retained(&mixed))
                return bench_say("the daemon has died, or does not answer") != 0;
        mixed_look(&mixed, "after 20 %", n_fds);
        n_more = mixed_phase(&mixed, tally, mixed.seconds * 4 / 5, &mixed.seed);
        if (n_more < 0 || mixed_clear_retained(&mixed))
                return bench_say("the daemon has died, or does not answer") != 0;
        mixed_look(&mixed, "at the end", n_fds);

        printf("published %" PRIu64 ", refused %" PRIu64 ", received %" PRIu64
               " (%.1f GB), wrong %" PRIu64 "; clients left %" PRIu64 ", killed %" PRId64 "\n",
               atomic_load(&tally->published), atomic_load(&tally->refused),
               atomic_load(&tally->received), (double)atomic_load(&tally->received_bytes) / 1e9,
               atomic_load(&tally->wrong), atomic_load(&tally->left), n_killed + n_more);

        return atomic_load(&tally->wrong) || bench_n_fds(mixed.daemon) > n_fds;
}
