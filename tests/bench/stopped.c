/* SPDX-License-Identifier: MIT */

/*
 * Stopped: what a subscriber whose process is stopped costs one that runs
 *
 *   stopped NDBUSD [ROUNDS]
 *
 * One publisher at a fixed rate and one subscriber, each a process, and in every other run a second
 * subscriber that has been stopped by SIGSTOP, with the default policy, so that its queue is full
 * before long. The messages until then, which make the memory that it keeps, are not counted, with it or
 * without. Every run has a fresh daemon; runs with and without follow each other, and change
 * places from round to round. Printed is the p99 of the time from the call that publishes to the
 * return of the call that receives: medians over the rounds, and the median of their ratios.
 */

#include <ndbus/ndbus.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base.h"
#include "tests/bench/harness.h"

#define STOPPED_MESSAGES_MAX 5500u
#define STOPPED_ROUNDS_MAX   64

struct load {
        const char *name;
        size_t n_bytes;
        unsigned rate_hz;
        unsigned n_messages;
        unsigned n_warm; /* more than fill window and queue: 256 + 1,000 messages, 64 + 64 MiB */
};

static const struct load loads[] = {
        {"64 bytes at 2,000 Hz", 64, 2000, STOPPED_MESSAGES_MAX, 1500},
        {"6 MB at 60 Hz", 6000000, 60, 260, 60},
};

/* What the running subscriber tells. */
struct board {
        _Atomic int is_ready;
        uint64_t latency_ns[STOPPED_MESSAGES_MAX];
};

_Noreturn static void fail(const char *what)
{
        fprintf(stderr, "stopped: %s: %s\n", what, ndbus_detail());
        exit(1);
}

static struct ndbus *open_bus(const char *url)
{
        struct ndbus *bus;
        int r = NDBUS_ENOTCONN;

        /* the daemon may not listen yet: connecting says when it does */
        for (int i = 0; i < 10000 && r == NDBUS_ENOTCONN; ++i)
                r = ndbus_open(&bus, url, NULL);
        if (r)
                fail("open");
        return bus;
}

/* Runs until it has all messages, and tells how long each took. */
_Noreturn static void subscribe(const char *url, const struct load *load, struct board *board)
{
        struct ndbus *bus = open_bus(url);
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        uint64_t sent_ns;

        if (ndbus_subscribe(bus, "stopped", NULL, NULL))
                fail("subscribe");
        board->is_ready = 1;
        for (unsigned i = 0; i < load->n_messages; ++i) {
                if (ndbus_receive(bus, &m, 60000))
                        fail("receive");
                if (ndbus_message_dropped(m) > 0) {
                        fprintf(stderr, "stopped: the running subscriber lost messages\n");
                        exit(1);
                }
                ndbus_message_arrays(m, &arrays);
                memcpy(&sent_ns, arrays[0].data, sizeof(sent_ns));
                board->latency_ns[i] = bench_now_ns() - sent_ns;
                ndbus_message_free(m);
        }
        _exit(0); /* what main() has printed is not printed again */
}

static pid_t start_subscriber(const char *url, const struct load *load, struct board *board)
{
        pid_t pid = fork();

        if (pid == 0)
                subscribe(url, load, board);
        while (!board->is_ready)
                bench_nap_us(1000);
        return pid;
}

static void publish(const char *url, const struct load *load)
{
        uint8_t *bytes = calloc(1, load->n_bytes);
        const int64_t shape = (int64_t)load->n_bytes;
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        struct ndbus *bus = open_bus(url);
        uint64_t next_ns = bench_now_ns();

        if (!bytes)
                fail("memory");
        for (unsigned i = 0; i < load->n_messages; ++i) {
                uint64_t now_ns = bench_now_ns();

                if (now_ns < next_ns)
                        bench_nap_us((unsigned)((next_ns - now_ns) / 1000));
                next_ns += UINT64_C(1000000000) / load->rate_hz;
                now_ns = bench_now_ns();
                memcpy(bytes, &now_ns, sizeof(now_ns));
                if (ndbus_publish(bus, "stopped", &array, 1, NULL))
                        fail("publish");
        }
        if (ndbus_close(bus, 60000, NULL))
                fail("close");
        free(bytes);
}

/* The p99 in microseconds. */
static double
measure(const char *ndbusd, const char *folder, const struct load *load, bool has_stopped)
{
        struct board *boards = mmap(NULL, 2 * sizeof(*boards), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t daemon, running, stopped = 0;
        char url[128];
        double p99_us;
        int status;

        if (boards == MAP_FAILED)
                fail("memory");
        snprintf(url, sizeof(url), "unix:%s/s.sock", folder);
        daemon = fork();
        if (daemon == 0) {
                execl(ndbusd, ndbusd, "--listen", url, "--log-level", "error", (char *)NULL);
                _exit(127);
        }
        running = start_subscriber(url, load, &boards[0]);
        if (has_stopped) {
                stopped = start_subscriber(url, load, &boards[1]);
                kill(stopped, SIGSTOP);
                waitpid(stopped, &status, WUNTRACED);
        }
        publish(url, load);
        waitpid(running, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                exit(1);
        if (has_stopped) {
                kill(stopped, SIGKILL);
                waitpid(stopped, NULL, 0);
        }
        kill(daemon, SIGTERM);
        waitpid(daemon, NULL, 0);
        p99_us = (double)bench_percentile(boards[0].latency_ns + load->n_warm,
                                          load->n_messages - load->n_warm, 99) /
                 1e3;
        munmap(boards, 2 * sizeof(*boards));
        return p99_us;
}

static double median(double *values, int n)
{
        for (int i = 1; i < n; ++i)
                for (int k = i; k > 0 && values[k] < values[k - 1]; --k) {
                        double swapped = values[k];

                        values[k] = values[k - 1];
                        values[k - 1] = swapped;
                }
        return values[n / 2];
}

static void compare(const char *ndbusd, const char *folder, const struct load *load, int n_rounds)
{
        double without_us[STOPPED_ROUNDS_MAX], with_us[STOPPED_ROUNDS_MAX];
        double ratio[STOPPED_ROUNDS_MAX] = {0};

        for (int i = 0; i < n_rounds; ++i) {
                for (int k = 0; k < 2; ++k) {
                        bool has_stopped = (i + k) % 2;

                        *(has_stopped ? &with_us[i] : &without_us[i]) =
                                measure(ndbusd, folder, load, has_stopped);
                }
                ratio[i] = with_us[i] / without_us[i];
        }
        printf("%s: p99 %.0f us, beside a stopped subscriber %.0f us: %.2f times\n", load->name,
               median(without_us, n_rounds), median(with_us, n_rounds), median(ratio, n_rounds));
}

int main(int argc, char **argv)
{
        int n_rounds = argc > 2 ? atoi(argv[2]) : 9;
        char folder[] = "/tmp/ndbus-stopped-XXXXXX";

        if (argc < 2 || n_rounds < 1 || n_rounds > STOPPED_ROUNDS_MAX || !mkdtemp(folder)) {
                fprintf(stderr, "usage: stopped NDBUSD [ROUNDS]\n");
                return 2;
        }
        for (size_t i = 0; i < nd_array_size(loads); ++i)
                compare(argv[1], folder, &loads[i], n_rounds);
        rmdir(folder);
        return 0;
}
