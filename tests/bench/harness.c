/* SPDX-License-Identifier: MIT */

/*
 * One run of one system
 *
 * The program is the system's relay, or the publisher and its subscribers: these are processes
 * forked before anything of the system exists in the parent, which then publishes. They meet in one
 * shared mapping, the board. The result is one line of JSON on stdout; whatever went wrong is in it
 * or on stderr.
 */

#include "tests/bench/harness.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HARNESS_SUBSCRIBERS_MAX 64u

static int usage(const char *what)
{
        fprintf(stderr,
                "bench-%s: %s\n"
                "usage: bench-%s --role run|relay|version --url URL [--backend URL] --size BYTES\n"
                "       [--subscribers N] [--batch N] [--seconds S] [--count N]\n"
                "       [--latency --rate HZ] [--daemon-pid PID] [--way stream|copied|loaned]\n",
                bench_system.name, what, bench_system.name);
        return 2;
}

static int way_read(const char *text, enum bench_way *ret_way)
{
        static const char *const names[] = {
                [BENCH_STREAM] = "stream", [BENCH_COPIED] = "copied", [BENCH_LOANED] = "loaned"};

        for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i) {
                if (strcmp(text, names[i]) == 0) {
                        *ret_way = (enum bench_way)i;
                        return 0;
                }
        }
        return -1;
}

static int options_read(int argc, char **argv, struct bench_options *ret_options)
{
        static const struct option table[] = {
                {"role", required_argument, NULL, 'r'},
                {"url", required_argument, NULL, 'u'},
                {"backend", required_argument, NULL, 'U'},
                {"size", required_argument, NULL, 's'},
                {"subscribers", required_argument, NULL, 'n'},
                {"batch", required_argument, NULL, 'b'},
                {"seconds", required_argument, NULL, 't'},
                {"count", required_argument, NULL, 'c'},
                {"latency", no_argument, NULL, 'l'},
                {"rate", required_argument, NULL, 'h'},
                {"daemon-pid", required_argument, NULL, 'p'},
                {"way", required_argument, NULL, 'w'},
                {NULL, 0, NULL, 0},
        };
        struct bench_options o = {.role = "run",
                                  .size = 64,
                                  .count_max = UINT64_MAX,
                                  .n_subscribers = 1,
                                  .batch = 1,
                                  .seconds = 1,
                                  .rate_hz = 1000};
        int c;

        while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
                switch (c) {
                case 'r':
                        o.role = optarg;
                        break;
                case 'u':
                        o.url = optarg;
                        break;
                case 'U':
                        o.backend = optarg;
                        break;
                case 's':
                        o.size = strtoull(optarg, NULL, 10);
                        break;
                case 'n':
                        o.n_subscribers = (unsigned)strtoul(optarg, NULL, 10);
                        break;
                case 'b':
                        o.batch = (unsigned)strtoul(optarg, NULL, 10);
                        break;
                case 't':
                        o.seconds = strtod(optarg, NULL);
                        break;
                case 'c':
                        o.count_max = strtoull(optarg, NULL, 10);
                        break;
                case 'l':
                        o.latency = true;
                        break;
                case 'h':
                        o.rate_hz = strtod(optarg, NULL);
                        break;
                case 'w':
                        if (way_read(optarg, &o.way))
                                return usage("--way: stream, copied or loaned");
                        break;
                case 'p':
                        o.daemon = (pid_t)strtol(optarg, NULL, 10);
                        break;
                default:
                        return usage("unknown option");
                }
        }

        if (strcmp(o.role, "version") && !o.url)
                return usage("--url is missing");
        if (o.size < 64 || o.size > PTRDIFF_MAX)
                return usage("--size: at least 64");
        if (!o.n_subscribers || o.n_subscribers > HARNESS_SUBSCRIBERS_MAX)
                return usage("--subscribers: 1 to 64");
        if (!o.batch || !(o.seconds > 0) || !(o.rate_hz > 0) || !o.count_max)
                return usage("--batch, --seconds, --rate and --count must be positive");

        *ret_options = o;
        return 0;
}

static int board_new(const struct bench_options *options, struct bench_board **ret_board)
{
        size_t n_lanes = options->n_subscribers;
        size_t n_samples = options->latency ? BENCH_LATENCY_MAX : 0;
        size_t n_head = (sizeof(struct bench_board) + 127) / 128 * 128;
        size_t n = n_head + n_lanes * (sizeof(struct bench_lane) + n_samples * sizeof(uint64_t));
        struct bench_board *board;
        uint64_t *samples;
        char *memory;

        memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
                      -1, 0);
        if (memory == MAP_FAILED)
                return bench_say("mmap: %s", strerror(errno));

        board = (struct bench_board *)(void *)memory;
        board->lanes = (struct bench_lane *)(void *)(memory + n_head);
        samples = (uint64_t *)(void *)(memory + n_head + n_lanes * sizeof(struct bench_lane));
        for (size_t i = 0; i < n_lanes; ++i)
                board->lanes[i].latencies = samples + i * n_samples;

        *ret_board = board;
        return BENCH_OK;
}

static int
subscribers_start(const struct bench_options *options, struct bench_board *board, pid_t *pids)
{
        pid_t parent = getpid();

        for (unsigned i = 0; i < options->n_subscribers; ++i) {
                pids[i] = fork();
                if (pids[i] < 0)
                        return bench_say("fork: %s", strerror(errno));

                if (!pids[i]) {
                        prctl(PR_SET_PDEATHSIG, SIGKILL);
                        if (getppid() != parent)
                                _exit(1);
                        if (bench_subscribe_all(options, board, &board->lanes[i]))
                                atomic_store(&board->failed, 1);
                        _exit(board->lanes[i].done == 1 ? 0 : 1);
                }
        }

        return BENCH_OK;
}

static void latencies_print(const struct bench_options *options, struct bench_board *board)
{
        size_t n = 0;
        uint64_t *all;

        all = calloc(options->n_subscribers, BENCH_LATENCY_MAX * sizeof(*all));
        if (!all)
                return;

        for (unsigned i = 0; i < options->n_subscribers; ++i) {
                struct bench_lane *lane = &board->lanes[i];

                memcpy(all + n, lane->latencies, lane->n_latencies * sizeof(*all));
                n += lane->n_latencies;
        }

        printf(", \"p50_ns\": %" PRIu64, bench_percentile(all, n, 50));
        printf(", \"p99_ns\": %" PRIu64, bench_percentile(all, n, 99));
        free(all);
}

/* Returns whether every message arrived everywhere, once and in order. */
static bool report(const struct bench_options *options, struct bench_board *board)
{
        uint64_t total = atomic_load(&board->total), end_ns = 0, cpu_ns;
        uint64_t lost = 0, disorder = 0, bad = 0;
        unsigned n_gave_up = 0;

        cpu_ns = bench_cpu_ns(options->daemon);
        cpu_ns -= cpu_ns > board->cpu_start_ns ? board->cpu_start_ns : cpu_ns;

        for (unsigned i = 0; i < options->n_subscribers; ++i) {
                struct bench_lane *lane = &board->lanes[i];

                lost += total > lane->received ? total - lane->received : 0;
                disorder += lane->disorder;
                bad += lane->bad;
                n_gave_up += lane->done != 1;
                if (lane->end_ns > end_ns)
                        end_ns = lane->end_ns;
        }

        printf("{\"system\": \"%s\", \"size\": %zu, \"subscribers\": %u, \"messages\": %" PRIu64
               ", \"seconds\": %.9f, \"lost\": %" PRIu64 ", \"disorder\": %" PRIu64
               ", \"bad\": %" PRIu64 ", \"gave_up\": %u",
               bench_system.name, options->size, options->n_subscribers, total,
               end_ns > board->start_ns ? (double)(end_ns - board->start_ns) / 1e9 : 0, lost,
               disorder, bad, n_gave_up);
        printf(", \"daemon_cpu_s\": %.6f, \"daemon_hwm_kib\": %" PRIu64, (double)cpu_ns / 1e9,
               bench_status_kib(options->daemon, "VmHWM"));
        if (options->latency)
                latencies_print(options, board);
        printf("}\n");

        return !lost && !disorder && !bad && !n_gave_up;
}

static int run(const struct bench_options *options)
{
        pid_t pids[HARNESS_SUBSCRIBERS_MAX] = {0};
        struct bench_board *board;
        bool whole;
        int r;

        if (board_new(options, &board))
                return 1;

        r = subscribers_start(options, board, pids);
        if (!r)
                r = bench_publish_all(options, board);
        if (r)
                atomic_store(&board->failed, 1);

        if (!r && !atomic_load(&board->failed))
                whole = report(options, board);
        else
                whole = false;

        for (unsigned i = 0; i < options->n_subscribers; ++i) {
                if (pids[i] <= 0)
                        continue;
                if (r)
                        kill(pids[i], SIGKILL);
                waitpid(pids[i], NULL, 0);
        }

        return whole ? 0 : 1;
}

int main(int argc, char **argv)
{
        struct bench_options options;
        int r;

        r = options_read(argc, argv, &options);
        if (r)
                return r;

        if (!strcmp(options.role, "version")) {
                char text[128] = "";

                bench_system.version(text, sizeof(text));
                puts(text);
                return 0;
        }

        if (!strcmp(options.role, "relay"))
                return bench_system.relay ? bench_system.relay(&options) != 0
                                          : usage("--role relay: this system has its own daemon");

        if (strcmp(options.role, "run"))
                return usage("--role: run, relay or version");

        return run(&options);
}
