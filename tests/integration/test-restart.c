/* SPDX-License-Identifier: MIT */

/*
 * Restarts and reloads under load: what was published has been received, or is accounted for
 *
 * Publishers in threads of their own publish as fast as they can, over every transport, while the
 * daemon is told to stop and started again on the sockets that the test, as a service manager would,
 * has kept open; or while it reads its configuration again and again. For every subscription what was
 * received and what was announced as dropped is what was published, less what its publisher was told
 * to be unconfirmed. Nothing comes twice, or in another order. Clients wait without limits: how long
 * anything takes is of no interest here.
 */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/client.h"
#include "tests/support/raw-client.h"
#include "tests/support/temporary.h"

#define FOLDER_BYTES  64u
#define PUBLISHERS_N  3u
#define RECEIVERS_MAX 4u

/* In one packet, in chunks, in blocks; and what fits the socket of one that does not read. */
static const size_t sizes_all[] = {100, 3000, 100, 70000, 100, 600000, 8, 2000000};
static const size_t sizes_small[] = {100, 3000, 100, 7000, 100, 300, 8, 20000};

struct load;

struct publisher {
        struct load *load;
        pthread_t thread;
        char topic[16];
        uint64_t n_published; /* calls that succeeded */
        size_t n_lost;        /* of which it was told that they are not confirmed */
        unsigned n_refused;   /* times that it was told that the daemon is not there */
};

struct receiver {
        struct load *load;
        pthread_t thread;
        struct ndbus *bus;
        struct ndbus_subscription *sub;
        uint64_t source;             /* of its first connection */
        uint64_t last[PUBLISHERS_N]; /* number on that publisher's topic */
        bool is_ended;               /* the last message came */
        unsigned n_losses;           /* of the connection, as it was told */
        _Atomic uint64_t n_received;
};

struct load {
        struct nd_harness *harness;
        char folder[FOLDER_BYTES];
        int fds[2]; /* kept through restarts, as by a socket unit: Unix, TCP */
        char urls[ND_WAYS_N][128];
        struct publisher publishers[PUBLISHERS_N];
        struct receiver receivers[RECEIVERS_MAX];
        size_t n_receivers;
        struct nd_raw *observer; /* where subscriptions drop; else NULL */
        const size_t *sizes;     /* [8] */
        _Atomic bool is_over;    /* publishers end */
        uint64_t n_awaited;      /* see load_has_moved() */
};

/* ------------------------------------------------------------------------------------- the parts */

static struct ndbus *load_open(struct load *load, size_t i)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;
        int r;

        options.no_shm = !nd_transports[i % ND_WAYS_N].is_shm;
        options.stall_ms = options.ping_timeout_ms = options.connect_timeout_ms =
                10 * ND_CLIENT_WAIT_MS;
        r = ndbus_open(&bus, load->urls[i % ND_WAYS_N], &options);
        cr_assert_eq(r, 0, "%s: %s", ndbus_errname(r), ndbus_detail());
        return bus;
}

static bool is_gone(int r)
{
        return r == NDBUS_ENOTCONN || r == NDBUS_ESHUTDOWN;
}

/* Connected, and every receiver is too: what is published now is not missed by who comes later. */
static void publisher_wait(struct publisher *p, struct ndbus *bus)
{
        int r;

        do
                r = ndbus_wait_subscribers(bus, p->topic, (unsigned)p->load->n_receivers, -1);
        while (is_gone(r));
        if (r)
                nd_harness_fail(NULL, "wait_subscribers: %s: %s", ndbus_errname(r), ndbus_detail());
}

static void *publisher_run(void *userdata)
{
        struct publisher *p = userdata;
        struct load *load = p->load;
        struct ndbus *bus = load_open(load, (size_t)(p - load->publishers));
        uint64_t number = 0;
        int r;

        publisher_wait(p, bus);
        while (!atomic_load(&load->is_over)) {
                r = nd_client_try_publish(bus, p->topic, number + 1, load->sizes[number % 8], -1);
                if (r == 0) {
                        ++number;
                        continue;
                }
                if (!is_gone(r))
                        nd_harness_fail(NULL, "publish: %s: %s", ndbus_errname(r), ndbus_detail());
                ++p->n_refused;
                publisher_wait(p, bus);
        }
        r = ndbus_close(bus, -1, &p->n_lost);
        if (r && p->n_lost == 0)
                nd_harness_fail(NULL, "close: %s: %s", ndbus_errname(r), ndbus_detail());
        p->n_published = number;
        return NULL;
}

static void receiver_take(struct receiver *r, struct ndbus_message *m)
{
        const char *topic = ndbus_message_topic(m);
        size_t i = (size_t)(topic[5] - '0'); /* load/I */
        uint64_t number = nd_client_take_number(m);

        if (i == PUBLISHERS_N) {
                r->is_ended = true;
                return;
        }
        if (number <= r->last[i])
                nd_harness_fail(NULL, "message %" PRIu64 " of publisher %zu after %" PRIu64, number,
                                i, r->last[i]);
        r->last[i] = number;
        atomic_fetch_add(&r->n_received, 1);
}

/* Until the last message or, if that is asked for, the loss of the connection. */
static void receiver_receive(struct receiver *r, bool until_loss)
{
        struct ndbus_message *m;

        while (!r->is_ended) {
                int error = ndbus_receive(r->bus, &m, -1);

                if (error == 0) {
                        receiver_take(r, m);
                        continue;
                }
                if (!is_gone(error))
                        nd_harness_fail(NULL, "receive: %s: %s", ndbus_errname(error),
                                        ndbus_detail());
                ++r->n_losses;
                if (until_loss)
                        return;
        }
}

static void *receiver_run(void *userdata)
{
        receiver_receive(userdata, false);
        return NULL;
}

static void
receiver_open(struct load *load, const struct ndbus_subscribe_options *options, bool has_thread)
{
        struct receiver *r = &load->receivers[load->n_receivers];

        *r = (struct receiver){.load = load, .bus = load_open(load, load->n_receivers)};
        r->source = ndbus_source(r->bus);
        r->sub = nd_client_subscribe(r->bus, "load/*", options);
        if (has_thread)
                cr_assert_eq(pthread_create(&r->thread, NULL, receiver_run, r), 0);
        ++load->n_receivers;
}

static void load_start(struct load *load)
{
        for (size_t i = 0; i < PUBLISHERS_N; ++i) {
                struct publisher *p = &load->publishers[i];

                *p = (struct publisher){.load = load};
                snprintf(p->topic, sizeof(p->topic), "load/%zu", i);
                cr_assert_eq(pthread_create(&p->thread, NULL, publisher_run, p), 0);
        }
}

static bool load_is_taken(void *userdata)
{
        struct load *load = userdata;

        for (size_t i = 0; i < load->n_receivers; ++i) {
                const struct receiver *r = &load->receivers[i];

                if (nd_raw_stat_subscription(load->observer, r->source,
                                             ndbus_subscription_id(r->sub), "queued") > 0)
                        return false;
        }
        return true;
}

/* Publishers end, then one message tells the receivers, behind all others. It must not be dropped: it
 * waits until nothing else waits for them. */
static void load_end(struct load *load)
{
        struct ndbus *bus;
        char topic[16];

        atomic_store(&load->is_over, true);
        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                cr_assert_eq(pthread_join(load->publishers[i].thread, NULL), 0);
        if (load->observer)
                nd_harness_wait_until(load->harness, "receivers to take what waits for them",
                                      load_is_taken, load,
                                      nd_harness_deadline_ms(ND_CLIENT_WAIT_MS));
        bus = load_open(load, 0);
        snprintf(topic, sizeof(topic), "load/%u", PUBLISHERS_N);
        nd_client_publish(bus, topic, 1, 8);
        nd_client_close(bus);
        for (size_t i = 0; i < load->n_receivers; ++i) {
                struct receiver *r = &load->receivers[i];

                if (r->thread)
                        cr_assert_eq(pthread_join(r->thread, NULL), 0);
                else
                        receiver_receive(r, false);
        }
}

static uint64_t load_published(const struct load *load)
{
        uint64_t n = 0;

        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                n += load->publishers[i].n_published - load->publishers[i].n_lost;
        return n;
}

static bool load_has_moved(void *userdata)
{
        struct load *load = userdata;

        return atomic_load(&load->receivers[0].n_received) >= load->n_awaited;
}

static void load_wait(struct load *load, uint64_t n)
{
        load->n_awaited = atomic_load(&load->receivers[0].n_received) + n;
        nd_harness_wait_until(load->harness, "messages", load_has_moved, load,
                              nd_harness_deadline_ms(ND_CLIENT_WAIT_MS));
}

/* --------------------------------------------------------------------------------------- restarts */

/* What a socket unit does. */
static void load_listen(struct load *load)
{
        struct sockaddr_un local = {.sun_family = AF_UNIX};
        struct sockaddr_in network = {.sin_family = AF_INET};
        socklen_t n = sizeof(network);
        int *fds = load->fds;

        nd_temporary_name(load->folder, sizeof(load->folder), "restart");
        cr_assert(mkdtemp(load->folder));
        snprintf(local.sun_path, sizeof(local.sun_path), "%s/s", load->folder);
        network.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fds[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert(fds[0] >= 0 && bind(fds[0], (struct sockaddr *)&local, sizeof(local)) == 0 &&
                  listen(fds[0], 64) == 0);
        cr_assert(fds[1] >= 0 && bind(fds[1], (struct sockaddr *)&network, sizeof(network)) == 0 &&
                  listen(fds[1], 64) == 0 &&
                  getsockname(fds[1], (struct sockaddr *)&network, &n) == 0);
        for (size_t i = 0; i < ND_WAYS_N; ++i)
                if (nd_transports[i].is_tcp)
                        snprintf(load->urls[i], sizeof(load->urls[i]), "tcp://127.0.0.1:%u",
                                 ntohs(network.sin_port));
                else
                        snprintf(load->urls[i], sizeof(load->urls[i]), "unix:%s", local.sun_path);
}

/* Without a receiver yet; load_finish() */
static void load_begin(struct load *load, const char *const *args)
{
        load_listen(load);
        load->harness = nd_harness_start(&(struct nd_harness_options){.args = args,
                                                                      .no_unix = true,
                                                                      .no_tcp = true,
                                                                      .listen_fds = load->fds,
                                                                      .n_listen_fds = 2});
}

static void load_finish(struct load *load)
{
        char path[sizeof(load->folder) + 2];

        nd_harness_stop(load->harness);
        close(load->fds[0]);
        close(load->fds[1]);
        snprintf(path, sizeof(path), "%s/s", load->folder);
        unlink(path);
        rmdir(load->folder);
}

static struct ndbus_subscribe_options block_options(void)
{
        struct ndbus_subscribe_options block = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        block.policy = NDBUS_BLOCK;
        block.window = 20; /* less than load_wait() waits for: everybody is back then */
        return block;
}

static void load_stop_daemon(struct load *load)
{
        int status;

        nd_harness_signal(load->harness, SIGTERM);
        cr_assert(nd_harness_wait_exit(load->harness, nd_harness_deadline_ms(60000), &status));
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x",
                  (unsigned)status);
}

static void expect_sums(struct load *load, unsigned n_restarts, bool has_losses)
{
        uint64_t n_published = load_published(load), n_dropped = 0;

        for (size_t i = 0; i < load->n_receivers; ++i) {
                struct receiver *r = &load->receivers[i];
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
                uint64_t n_received = atomic_load(&r->n_received);

                ndbus_subscription_stats(r->sub, &stats);
                cr_expect_eq(stats.gaps_unknown, n_restarts, "receiver %zu", i);
                cr_expect_eq(r->n_losses, n_restarts, "receiver %zu", i);
                cr_expect_eq(stats.received, n_received + 1, "receiver %zu", i);
                cr_expect_eq(n_received + stats.dropped, n_published,
                             "receiver %zu: %" PRIu64 " received and %" PRIu64
                             " announced as dropped, %" PRIu64 " published",
                             i, n_received, stats.dropped, n_published);
                n_dropped += stats.dropped;
                nd_client_close(r->bus);
        }
        for (size_t i = 0; i < PUBLISHERS_N; ++i)
                cr_expect_gt(load->publishers[i].n_refused, 0);
        cr_expect_eq(n_dropped > 0, has_losses, "%" PRIu64 " dropped", n_dropped);
}

/* Everybody takes what comes: the daemon is slower to stop, and nothing is lost. */
Test(restart, under_load)
{
        static const char *const args[] = {"--drain-timeout", "60000", NULL};
        struct ndbus_subscribe_options block = block_options();
        struct load load = {.sizes = sizes_all};

        load_begin(&load, args);
        for (size_t i = 0; i < 3; ++i) {
                block.depth =
                        i == 0 ? 1000 : 5; /* two by which publishers are paused all the time */
                receiver_open(&load, &block, true);
        }
        load_start(&load);
        for (size_t i = 0; i < 5; ++i) {
                load_wait(&load, 200);
                load_stop_daemon(&load);
                nd_harness_start_again(load.harness);
        }
        load_wait(&load, 200);
        load_end(&load);
        expect_sums(&load, 5, false);
        load_finish(&load);
}

/* One takes nothing while the daemon stops: what waits for it is lost, and it is told how much. */
Test(restart, with_one_that_takes_nothing)
{
        static const char *const args[] = {"--drain-timeout", "300", NULL};
        struct ndbus_subscribe_options block = block_options();
        struct load load = {.sizes = sizes_small};
        int r;

        load_begin(&load, args);
        receiver_open(&load, &block, true);
        block.window = 2;
        for (size_t i = 0; i < 3; ++i)
                receiver_open(&load, &block, false);
        load_start(&load);
        for (size_t n = 0; n < 4; ++n) {
                load_wait(&load, 100);
                load_stop_daemon(&load);
                for (size_t i = 1; i < load.n_receivers; ++i)
                        receiver_receive(&load.receivers[i], true);
                nd_harness_start_again(load.harness);
                for (size_t i = 1; i < load.n_receivers; ++i)
                        do
                                r = ndbus_ping(load.receivers[i].bus, NULL, -1);
                        while (is_gone(r));
        }
        load_end(&load);
        expect_sums(&load, 4, true);
        load_finish(&load);
}

/* ---------------------------------------------------------------------------------------- reloads */

struct reload {
        struct nd_harness *harness;
        size_t n_awaited;
};

static bool has_reloaded(void *userdata)
{
        const struct reload *reload = userdata;
        char *log = nd_harness_log(reload->harness);
        size_t n = 0;

        for (const char *at = log; (at = strstr(at, "reloaded config=")); ++at)
                ++n;
        free(log);
        return n >= reload->n_awaited;
}

static void write_config(const char *path, size_t i)
{
        /* one of the topics comes and goes */
        static const char *const rules[] = {
                "allow = anyone publish,subscribe,block,stats\n",
                "allow = anyone publish,stats\nallow = anyone subscribe load/0 load/2 load/3\n",
        };
        FILE *file = fopen(path, "w");

        cr_assert(file);
        fprintf(file, "%ssubscriptions-max = %zu\nblock-timeout = %zu\nclients-max = %zu\n",
                rules[i % 2], 100 + i, 60000 + i, 50 + i);
        cr_assert_eq(fclose(file), 0);
}

/* The daemon's rules and limits change all the time; for everybody matched = delivered + dropped, as
 * the daemon counts and as the library does. */
Test(restart, reloads_under_load)
{
        static const enum ndbus_policy policies[] = {NDBUS_DROP_OLDEST, NDBUS_DROP_NEWEST,
                                                     NDBUS_LATEST, NDBUS_DROP_OLDEST};
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        char path[FOLDER_BYTES];
        const char *const args[] = {"--config", path, NULL};
        struct load load = {.sizes = sizes_all};
        struct reload reload = {0};
        struct nd_raw *observer;
        int fd;

        nd_temporary_name(path, sizeof(path), "reload");
        fd = mkstemp(path);
        cr_assert(fd >= 0);
        close(fd);
        write_config(path, 0);
        load.harness = reload.harness =
                nd_harness_start(&(struct nd_harness_options){.args = args});
        for (size_t i = 0; i < ND_WAYS_N; ++i)
                strcpy(load.urls[i], nd_client_url(load.harness, &nd_transports[i]));
        observer = load.observer = nd_raw_open(load.harness, false);
        for (size_t i = 0; i < 4; ++i) {
                options.policy = policies[i];
                options.depth = i == 0 ? 1000 : 3;
                options.window = policies[i] == NDBUS_LATEST ? 0 : 4;
                receiver_open(&load, &options, true);
        }
        load_start(&load);
        for (size_t i = 1; i <= 40; ++i) {
                write_config(path, i);
                reload.n_awaited = i;
                nd_harness_signal(load.harness, SIGHUP);
                nd_harness_wait_until(load.harness, "the reload", has_reloaded, &reload,
                                      nd_harness_deadline_ms(ND_CLIENT_WAIT_MS));
                nd_raw_check_stats(observer);
                load_wait(&load, 10);
        }
        load_end(&load);
        nd_raw_check_stats(observer);
        for (size_t i = 0; i < 4; ++i) {
                struct receiver *r = &load.receivers[i];
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
                uint64_t source = ndbus_source(r->bus);
                uint32_t id = ndbus_subscription_id(r->sub);
                uint64_t n_matched = nd_raw_stat_subscription(observer, source, id, "matched");

                ndbus_subscription_stats(r->sub, &stats);
                cr_expect_eq(r->n_losses, 0);
                cr_expect_eq(stats.received, atomic_load(&r->n_received) + 1);
                cr_expect_eq(stats.received + stats.dropped, n_matched,
                             "receiver %zu: %" PRIu64 " matched, %" PRIu64 " received, %" PRIu64
                             " announced",
                             i, n_matched, stats.received, stats.dropped);
                cr_expect_eq(nd_raw_stat_subscription(observer, source, id, "delivered"),
                             stats.received);
                /* the others' messages all matched, and some of the one's did not */
                cr_expect_leq(n_matched, load_published(&load) + 1);
                nd_client_close(r->bus);
        }
        nd_raw_close(observer);
        nd_harness_stop(load.harness);
        unlink(path);
}
