/* SPDX-License-Identifier: MIT */

/*
 * Stopped: what a subscriber whose process is stopped costs one that runs
 *
 *   stopped NDBUSD [ROUNDS]
 *
 * One publisher at a fixed rate and one subscriber, each a process, and a second subscriber, stopped by
 * SIGSTOP, with the default policy, so that its queue is full before long. The messages until then,
 * which make the memory that it keeps, are not counted. Then tenths of a second follow each other in
 * which the topic is in turn one that only the running subscriber wants, and one that both want: what
 * a neighbour of this machine does to it, it does to both. Printed are p50 and p99 of the time from the call
 * that publishes to the return of the call that receives, medians over rounds of 32 such turns.
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

#define STOPPED_ROUNDS_MAX  64
#define STOPPED_ROUND_TURNS 32u

static const char topic_alone[] = "stopped/alone", topic_both[] = "stopped/both";

struct load {
        const char *name;
        size_t n_bytes;
        unsigned rate_hz;
        unsigned n_turn; /* messages in a turn */
        unsigned n_warm; /* more than fill window and queue: 256 + 1,000 messages, 64 + 64 MiB */
};

static const struct load loads[] = {
        {"64 bytes at 2,000 Hz", 64, 2000, 200, 1500},
        {"6 MB at 60 Hz", 6000000, 60, 6, 60},
};

/* The first bytes of every message. */
struct stamp {
        uint64_t number;
        uint64_t sent_ns;
};

/* What the running subscriber tells. */
struct board {
        _Atomic int is_ready;
        uint64_t latency_ns[]; /* of every message, by its number */
};

struct result {
        double p50_us[STOPPED_ROUNDS_MAX];
        double p99_us[STOPPED_ROUNDS_MAX];
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

/* Runs until it has @n_messages, and tells how long each took. */
_Noreturn static void
subscribe(const char *url, const char *pattern, size_t n_messages, struct board *board)
{
        struct ndbus *bus = open_bus(url);
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        struct stamp stamp;

        if (ndbus_subscribe(bus, pattern, NULL, NULL))
                fail("subscribe");
        board->is_ready = 1;
        for (size_t i = 0; i < n_messages; ++i) {
                if (ndbus_receive(bus, &m, 60000))
                        fail("receive");
                if (ndbus_message_dropped(m) > 0) {
                        fprintf(stderr, "stopped: the running subscriber lost messages\n");
                        exit(1);
                }
                ndbus_message_arrays(m, &arrays);
                memcpy(&stamp, arrays[0].data, sizeof(stamp));
                board->latency_ns[stamp.number] = bench_now_ns() - stamp.sent_ns;
                ndbus_message_free(m);
        }
        _exit(0); /* what main() has printed is not printed again */
}

static pid_t
start_subscriber(const char *url, const char *pattern, size_t n_messages, struct board *board)
{
        pid_t pid = fork();

        board->is_ready = 0;
        if (pid == 0)
                subscribe(url, pattern, n_messages, board);
        while (!board->is_ready)
                bench_nap_us(1000);
        return pid;
}

/* The messages that warm, and then a turn alone, a turn for both, and so on. */
static void publish(const char *url, const struct load *load, size_t n_messages)
{
        uint8_t *bytes = calloc(1, load->n_bytes);
        const int64_t shape = (int64_t)load->n_bytes;
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        struct ndbus *bus = open_bus(url);
        uint64_t next_ns = bench_now_ns();

        if (!bytes)
                fail("memory");
        for (size_t i = 0; i < n_messages; ++i) {
                bool is_alone = i >= load->n_warm && (i - load->n_warm) / load->n_turn % 2 == 0;
                struct stamp stamp = {.number = i, .sent_ns = bench_now_ns()};

                if (stamp.sent_ns < next_ns)
                        bench_nap_us((unsigned)((next_ns - stamp.sent_ns) / 1000));
                next_ns += UINT64_C(1000000000) / load->rate_hz;
                stamp.sent_ns = bench_now_ns();
                memcpy(bytes, &stamp, sizeof(stamp));
                if (ndbus_publish(bus, is_alone ? topic_alone : topic_both, &array, 1, NULL))
                        fail("publish");
        }
        if (ndbus_close(bus, 60000, NULL))
                fail("close");
        free(bytes);
}

static void run(const char *ndbusd,
                const char *folder,
                const struct load *load,
                size_t n_messages,
                struct board *board)
{
        pid_t daemon, running, stopped;
        char url[128];
        int status;

        snprintf(url, sizeof(url), "unix:%s/s.sock", folder);
        daemon = fork();
        if (daemon == 0) {
                execl(ndbusd, ndbusd, "--listen", url, "--log-level", "error", (char *)NULL);
                _exit(127);
        }
        stopped = start_subscriber(url, topic_both, n_messages, board);
        kill(stopped, SIGSTOP);
        waitpid(stopped, &status, WUNTRACED);
        running = start_subscriber(url, "stopped/*", n_messages, board);
        publish(url, load, n_messages);
        waitpid(running, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                exit(1);
        kill(stopped, SIGKILL);
        waitpid(stopped, NULL, 0);
        kill(daemon, SIGTERM);
        waitpid(daemon, NULL, 0);
}

/* Of the turns of a round that begin with turn @i_first, every other one. */
static void
take_round(const struct load *load, const uint64_t *turns, size_t i_first, double *p50, double *p99)
{
        uint64_t values[STOPPED_ROUND_TURNS / 2 * 200];
        size_t n = 0;

        for (size_t i = 0; i < STOPPED_ROUND_TURNS; i += 2, n += load->n_turn)
                memcpy(values + n, turns + (i_first + i) * load->n_turn,
                       load->n_turn * sizeof(*values));
        *p50 = (double)bench_percentile(values, n, 50) / 1e3;
        *p99 = (double)bench_percentile(values, n, 99) / 1e3;
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
        qsort(values, n, sizeof(*values), compare_doubles);
        return values[n / 2];
}

static void print(const char *name, double *alone_us, double *beside_us, size_t n_rounds)
{
        double alone = median(alone_us, n_rounds), beside = median(beside_us, n_rounds);

        printf("  %s %.0f us, beside a stopped subscriber %.0f us: %.2f times\n", name, alone,
               beside, beside / alone);
}

static void
compare(const char *ndbusd, const char *folder, const struct load *load, size_t n_rounds)
{
        size_t n_turns = n_rounds * STOPPED_ROUND_TURNS;
        size_t n_messages = load->n_warm + n_turns * load->n_turn;
        size_t n_bytes = sizeof(struct board) + n_messages * sizeof(uint64_t);
        struct board *board =
                mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct result alone, beside;
        const uint64_t *turns;

        if (board == MAP_FAILED)
                fail("memory");
        run(ndbusd, folder, load, n_messages, board);
        turns = board->latency_ns + load->n_warm;
        for (size_t i = 0; i < n_rounds; ++i) {
                size_t i_first = i * STOPPED_ROUND_TURNS;

                take_round(load, turns, i_first, &alone.p50_us[i], &alone.p99_us[i]);
                take_round(load, turns, i_first + 1, &beside.p50_us[i], &beside.p99_us[i]);
        }
        printf("%s\n", load->name);
        print("p50", alone.p50_us, beside.p50_us, n_rounds);
        print("p99", alone.p99_us, beside.p99_us, n_rounds);
        munmap(board, n_bytes);
}

int main(int argc, char **argv)
{
        int n_rounds = argc > 2 ? atoi(argv[2]) : 20;
        char folder[] = "/tmp/ndbus-stopped-XXXXXX";

        if (argc < 2 || n_rounds < 1 || n_rounds > STOPPED_ROUNDS_MAX || !mkdtemp(folder)) {
                fprintf(stderr, "usage: stopped NDBUSD [ROUNDS]\n");
                return 2;
        }
        for (size_t i = 0; i < nd_array_size(loads); ++i)
                compare(argv[1], folder, &loads[i], (size_t)n_rounds);
        rmdir(folder);
        return 0;
}
