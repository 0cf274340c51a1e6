/* SPDX-License-Identifier: MIT */

/*
 * Routing: what one message costs the daemon when many subscribe to something else
 *
 *   routing NDBUSD [ROUNDS]
 *
 * Two daemons are measured in turn. Both have ten subscribers of everything that is published, on
 * 1,000 topics in turn, so that neither end's header cache helps. The second one has 9,990 further
 * subscriptions on 990 connections, a third of them exact, two thirds with wildcards, none of which
 * matches. Printed is the daemon's CPU time per message, medians over the rounds, and the ratio.
 */

#include <ndbus/ndbus.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base.h"

#define ROUTING_RECEIVERS_N 10
#define ROUTING_OTHERS_N    990 /* connections, of 9,990 subscriptions */
#define ROUTING_TOPICS_N    1000
#define ROUTING_MESSAGES_N  100000

struct side {
        const char *name;
        char url[128];
        pid_t daemon;
        pid_t receivers;
        struct ndbus *others[ROUTING_OTHERS_N];
        size_t n_others;
        struct ndbus *publisher;
        double cpu_us[64];
};

_Noreturn static void fail(const char *what, int error)
{
        fprintf(stderr, "routing: %s: %s: %s\n", what, ndbus_strerror(error), ndbus_detail());
        exit(1);
}

static struct ndbus *open_bus(const char *url)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus;
        int r = NDBUS_ENOTCONN;

        /* the daemon may not listen yet: connecting says when it does */
        for (int i = 0; i < 10000 && r == NDBUS_ENOTCONN; ++i)
                r = ndbus_open(&bus, url, &options);
        if (r)
                fail("open", r);
        return bus;
}

static void subscribe(struct ndbus *bus, const char *pattern)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        int r;

        options.policy = NDBUS_BLOCK;
        r = ndbus_subscribe(bus, pattern, &options, NULL);
        if (r)
                fail(pattern, r);
}

/* A process that receives everything and keeps nothing; says when it has subscribed. */
static void receive_all(const char *url, int ready_fd)
{
        struct ndbus *bus[ROUTING_RECEIVERS_N];
        struct pollfd fds[ROUTING_RECEIVERS_N];
        struct ndbus_message *message;

        for (size_t i = 0; i < ROUTING_RECEIVERS_N; ++i) {
                bus[i] = open_bus(url);
                subscribe(bus[i], "t/**");
                fds[i] = (struct pollfd){.fd = ndbus_fd(bus[i]), .events = POLLIN};
        }
        if (write(ready_fd, "r", 1) != 1)
                exit(1);
        while (poll(fds, ROUTING_RECEIVERS_N, -1) > 0) {
                for (size_t i = 0; i < ROUTING_RECEIVERS_N; ++i) {
                        while (fds[i].revents && ndbus_receive(bus[i], &message, 0) == 0)
                                ndbus_message_free(message);
                }
        }
        exit(0);
}

static void name_other(char *out, size_t n_out, unsigned i, unsigned k)
{
        if (k % 3 == 0)
                snprintf(out, n_out, "u/%u/%u", i, k);
        else if (k % 3 == 1)
                snprintf(out, n_out, "t/*/no/%u/%u", i, k);
        else
                snprintf(out, n_out, "**/no/%u/%u", i, k);
}

static void add_others(struct side *side)
{
        char pattern[64];
        unsigned n = 0;

        for (unsigned i = 0; i < ROUTING_OTHERS_N; ++i) {
                side->others[i] = open_bus(side->url);
                for (unsigned k = 0; n < (i + 1) * 9990 / ROUTING_OTHERS_N; ++k, ++n) {
                        name_other(pattern, sizeof(pattern), i, k);
                        subscribe(side->others[i], pattern);
                }
        }
        side->n_others = ROUTING_OTHERS_N;
}

static void start(struct side *side, const char *ndbusd, const char *folder, bool has_others)
{
        int ready[2];
        char byte;

        snprintf(side->url, sizeof(side->url), "unix:%s/%s.sock", folder, side->name);
        side->daemon = fork();
        if (side->daemon == 0) {
                execl(ndbusd, ndbusd, "--listen", side->url, "--log-level", "error", (char *)NULL);
                _exit(127);
        }
        if (pipe(ready) < 0)
                exit(1);
        side->receivers = fork();
        if (side->receivers == 0)
                receive_all(side->url, ready[1]);
        if (read(ready[0], &byte, 1) != 1)
                exit(1);
        close(ready[0]);
        close(ready[1]);
        if (has_others)
                add_others(side);
        side->publisher = open_bus(side->url);
}

static double cpu_seconds(pid_t pid)
{
        char path[64];
        unsigned long user = 0;
        unsigned long system = 0;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        file = fopen(path, "re");
        if (!file || fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                            &user, &system) != 2)
                exit(1);
        fclose(file);
        return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double measure(struct side *side)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        const uint8_t bytes[64] = {0};
        const int64_t shape[1] = {sizeof(bytes)};
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = shape};
        double before = cpu_seconds(side->daemon);
        char topic[32];
        int r = 0;

        options.more = 1;
        options.timeout_ms = 60000;
        for (unsigned i = 0; i < ROUTING_MESSAGES_N && r == 0; ++i) {
                snprintf(topic, sizeof(topic), "t/%u/x", i % ROUTING_TOPICS_N);
                r = ndbus_publish(side->publisher, topic, &array, 1, &options);
        }
        if (r == 0)
                r = ndbus_flush(side->publisher, 60000);
        if (r)
                fail("publish", r);
        return (cpu_seconds(side->daemon) - before) * 1e6 / ROUTING_MESSAGES_N;
}

static void stop(struct side *side)
{
        ndbus_close(side->publisher, 1000, NULL);
        for (size_t i = 0; i < side->n_others; ++i)
                ndbus_close(side->others[i], 0, NULL);
        kill(side->receivers, SIGTERM);
        kill(side->daemon, SIGTERM);
        waitpid(side->receivers, NULL, 0);
        waitpid(side->daemon, NULL, 0);
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a;
        double y = *(const double *)b;

        return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
        static struct side few = {.name = "few"};
        static struct side many = {.name = "many"};
        int n_rounds = argc > 2 ? atoi(argv[2]) : 5;
        char folder[] = "/tmp/ndbus-routing-XXXXXX";

        if (argc < 2 || n_rounds < 1 || n_rounds > (int)nd_array_size(few.cpu_us) ||
            !mkdtemp(folder)) {
                fprintf(stderr, "usage: routing NDBUSD [ROUNDS]\n");
                return 2;
        }
        start(&few, argv[1], folder, false);
        start(&many, argv[1], folder, true);
        for (int i = 0; i < n_rounds; ++i) {
                few.cpu_us[i] = measure(&few);
                many.cpu_us[i] = measure(&many);
        }
        stop(&few);
        stop(&many);
        qsort(few.cpu_us, (size_t)n_rounds, sizeof(double), compare);
        qsort(many.cpu_us, (size_t)n_rounds, sizeof(double), compare);
        printf("daemon CPU per message to 10 receivers: %.2f us with 10 subscriptions, %.2f us with "
               "10,000: %.2f times\n",
               few.cpu_us[n_rounds / 2], many.cpu_us[n_rounds / 2],
               many.cpu_us[n_rounds / 2] / few.cpu_us[n_rounds / 2]);
        return 0;
}
