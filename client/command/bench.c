/* SPDX-License-Identifier: MIT */

/*
 * ndbus bench: how fast the given daemon is, from outside
 *
 * One process publishes, others receive; all are forked before anybody opens a bus. Subscribers
 * block (policy block), so nothing is lost and the rate is that of the slowest. A message begins
 * with the time it was published (CLOCK_MONOTONIC, which all processes of a machine share) and its
 * number; the last one has the number 0.
 *
 * The delay is from before ndbus_publish() to after ndbus_receive(). At full speed it is mostly the
 * time a message waits behind others; --rate shows what one takes alone.
 */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/file.h"
#include "client/command/report.h"

#define BENCH_OPTIONS(XX, S)                                                                         \
        XX(S, size, "size", SIZE, 1048576, 16, INT64_C(1) << 40, "SIZE",                             \
           "Bytes of a message. Default 1M.")                                                        \
        XX(S, count, "count", COUNT, 1000, 1, 1000000000, "N", "Messages. Default 1000.")            \
        XX(S, seconds_ms, "seconds", TIME, 0, 0, INT32_MAX, "S",                                     \
           "Publish for S seconds instead of a number of messages.")                                 \
        XX(S, subscribers, "subscribers", COUNT, 1, 1, 1000, "N",                                    \
           "Processes that receive. Default 1.")                                                     \
        XX(S, rate, "rate", RATE, 0, 0, 1000000000, "HZ",                                            \
           "Messages a second. Default: as fast as they go.")                                        \
        XX(S, loan, "loan", FLAG, 0, 0, 0, "",                                                       \
           "Loan memory for each message, as if it were made in place, rather than have it copied.") \
        XX(S, no_shm, "no-shm", FLAG, 0, 0, 0, "", "Share no memory: all bytes go by the socket.")   \
        XX(S, timeout_ms, "timeout", TIME, 30000, 0, INT32_MAX, "S",                                 \
           "Seconds without progress after which it fails. Default 30.")                             \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(bench, BENCH_OPTIONS);

/* Delays are counted in classes, 64 to a doubling: 1 % apart, and no memory for each message. */
#define BENCH_CLASSES (64u * 64u)

struct bench_result {
        uint64_t n_messages;
        uint64_t n_bytes;
        uint64_t n_dropped;
        uint64_t first_ns;
        uint64_t last_ns;
        uint64_t delays[BENCH_CLASSES];
};

struct bench_child {
        pid_t pid;
        int fd; /* 'R' when it has subscribed, then its result */
};

static unsigned bench_class(uint64_t ns)
{
        unsigned doubling;

        if (ns < 64)
                return (unsigned)ns;
        doubling = 63u - (unsigned)__builtin_clzll(ns);
        return (doubling - 5) * 64 + (unsigned)(ns >> (doubling - 6) & 63);
}

static double bench_class_ns(unsigned i)
{
        unsigned doubling = i / 64 + 5;

        if (i < 64)
                return i;
        return (double)((64 + (uint64_t)(i % 64)) << (doubling - 6));
}

static double bench_percentile(const struct bench_result *result, double part)
{
        uint64_t want = (uint64_t)((double)result->n_messages * part), seen = 0;

        for (unsigned i = 0; i < BENCH_CLASSES; ++i) {
                seen += result->delays[i];
                if (seen > want)
                        return bench_class_ns(i);
        }
        return 0;
}

static bool bench_read(int fd, void *data, size_t n_data)
{
        char *p = data;

        while (n_data > 0) {
                ssize_t n = read(fd, p, n_data);

                if (n < 0 && errno == EINTR && !nd_signals_interrupted(NULL))
                        continue;
                if (n <= 0)
                        return false;
                p += n;
                n_data -= (size_t)n;
        }
        return true;
}

/* False: that was the last one. */
static bool bench_take(struct bench_result *result, const struct ndbus_message *message)
{
        const struct ndbus_array *arrays = NULL;
        uint64_t now = nd_now_ns(), stamp[2] = {0, 0};

        if (ndbus_message_arrays(message, &arrays) < 1 || arrays[0].ndim != 1 ||
            arrays[0].shape[0] < 16)
                return false;
        memcpy(stamp, arrays[0].data, sizeof(stamp));
        if (stamp[1] == 0)
                return false;
        if (result->n_messages == 0)
                result->first_ns = stamp[0];
        result->last_ns = now;
        ++result->n_messages;
        result->n_bytes += ndbus_message_bytes(message);
        ++result->delays[bench_class(now > stamp[0] ? now - stamp[0] : 0)];
        return true;
}

static struct ndbus *bench_open(const struct nd_bench_options *options)
{
        struct ndbus_options settings = NDBUS_OPTIONS_INIT;

        settings.no_shm = options->no_shm;
        return nd_command_open_with(options->url, &settings);
}

static int bench_receive(const struct nd_bench_options *options, const char *topic, int fd)
{
        struct ndbus_subscribe_options subscribe = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};
        struct bench_result *result = calloc(1, sizeof(*result));
        struct ndbus_subscription *subscription = NULL;
        struct ndbus *bus = bench_open(options);
        bool more = true;
        int r;

        if (!bus || !result) {
                free(result);
                return ND_EXIT_FAILED;
        }
        subscribe.policy = NDBUS_BLOCK;
        r = ndbus_subscribe(bus, topic, &subscribe, &subscription);
        if (!r && nd_file_write(fd, "R", 1) != 0)
                r = NDBUS_ESYSTEM;
        while (!r && more) {
                struct ndbus_message *message = NULL;

                r = ndbus_receive(bus, &message, nd_command_timeout(options->timeout_ms));
                if (!r)
                        more = bench_take(result, message);
                ndbus_message_free(message);
        }
        if (r && r != NDBUS_EINTERRUPTED)
                nd_report_bus("subscriber", r);
        if (subscription && ndbus_subscription_stats(subscription, &stats) == 0)
                result->n_dropped = stats.dropped;
        if (r && result->n_dropped > 0)
                nd_report("subscriber: %" PRIu64 " messages lost", result->n_dropped);
        if (!r && nd_file_write(fd, result, sizeof(*result)) != 0)
                r = NDBUS_ESYSTEM;
        free(result);
        ndbus_close(bus, 0, NULL);
        return r ? ND_EXIT_FAILED : ND_EXIT_OK;
}

static int bench_start(const struct nd_bench_options *options,
                       const char *topic,
                       struct bench_child *children,
                       size_t *n_children)
{
        for (uint64_t i = 0; i < options->subscribers; ++i) {
                int fds[2];
                pid_t pid;

                if (pipe(fds) < 0)
                        return nd_report_errno("pipe", errno);
                pid = fork();
                if (pid == 0) {
                        close(fds[0]);
                        for (size_t k = 0; k < *n_children; ++k)
                                close(children[k].fd);
                        _exit(bench_receive(options, topic, fds[1]));
                }
                close(fds[1]);
                if (pid < 0) {
                        close(fds[0]);
                        return nd_report_errno("fork", errno);
                }
                children[(*n_children)++] = (struct bench_child){pid, fds[0]};
        }
        for (size_t i = 0; i < *n_children; ++i) {
                char ready;

                if (!bench_read(children[i].fd, &ready, 1))
                        return ND_EXIT_FAILED; /* it has said why */
        }
        return ND_EXIT_OK;
}

static void bench_pace(const struct nd_bench_options *options, uint64_t start_ns, uint64_t i)
{
        uint64_t due = start_ns + (uint64_t)((double)i * 1e9 / options->rate), now = nd_now_ns();
        struct timespec rest;

        if (now >= due)
                return;
        rest = (struct timespec){.tv_sec = (time_t)((due - now) / 1000000000),
                                 .tv_nsec = (long)((due - now) % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL);
}

/* Of a loan only the stamp is written: the rest is what an application would have made there. */
static int bench_send(const struct nd_bench_options *options,
                      const char *topic,
                      struct ndbus *bus,
                      struct ndbus_array *array,
                      const uint64_t stamp[2])
{
        struct ndbus_publish_options publish = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_array place = *array;
        struct ndbus_loan *loan = NULL;
        int r = 0;

        publish.timeout_ms = nd_command_timeout(options->timeout_ms);
        if (options->loan)
                r = ndbus_loan(bus, &place, 1, &loan);
        if (r)
                return r;
        memcpy((void *)(uintptr_t)place.data, stamp, 2 * sizeof(*stamp));
        r = loan ? ndbus_publish_loan(bus, topic, loan, &publish)
                 : ndbus_publish(bus, topic, array, 1, &publish);
        if (r)
                ndbus_loan_cancel(loan);
        return r;
}

static int bench_publish(const struct nd_bench_options *options,
                         const char *topic,
                         struct ndbus *bus,
                         void *memory,
                         struct nd_progress *progress)
{
        int64_t shape[1] = {(int64_t)options->size};
        struct ndbus_array array = {
                .data = memory, .dtype = "uint8", .bits = 8, .ndim = 1, .shape = shape};
        uint64_t start = nd_now_ns(), stamp[2] = {start, 0};
        uint64_t for_ns = (uint64_t)options->seconds_ms * 1000000;
        int r = 0;

        for (uint64_t i = 0; !r && !nd_signals_interrupted(NULL); ++i) {
                if (for_ns ? nd_now_ns() - start >= for_ns : i >= options->count)
                        break;
                if (options->rate > 0)
                        bench_pace(options, start, i);
                stamp[0] = nd_now_ns();
                stamp[1] = i + 1;
                r = bench_send(options, topic, bus, &array, stamp);
                nd_progress_show(progress, "%" PRIu64 " messages", i);
        }
        nd_progress_clear(progress);
        if (!r) {
                stamp[1] = 0;
                shape[0] = sizeof(stamp);
                r = bench_send(options, topic, bus, &array, stamp);
        }
        if (!r)
                r = ndbus_flush(bus, nd_command_timeout(options->timeout_ms));
        return r ? nd_report_bus("publisher", r) : ND_EXIT_OK;
}

/* How the bytes went. */
static void bench_write_way(const struct ndbus *bus)
{
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};

        if (ndbus_shm_stats(bus, &stats) == 0 && stats.published + stats.fallback > 0)
                printf("%" PRIu64 " in shared memory, for %" PRIu64 " there was none\n",
                       stats.published, stats.fallback);
        else
                puts("all by the socket");
}

static void
bench_write_result(const struct bench_result *sum, size_t n_children, uint64_t slowest_ns)
{
        double seconds = (double)slowest_ns / 1e9;
        double each = (double)sum->n_messages / (double)n_children;
        double bytes = (double)sum->n_bytes / (double)n_children;

        printf("%.0f messages of %.0f bytes to %zu subscribers in %.3f s\n", each,
               each > 0 ? bytes / each : 0, n_children, seconds);
        printf("%.1f MB/s, %.0f messages/s to each subscriber\n",
               seconds > 0 ? bytes / seconds / 1e6 : 0, seconds > 0 ? each / seconds : 0);
        printf("delay p50 %.1f us, p99 %.1f us", bench_percentile(sum, 0.50) / 1e3,
               bench_percentile(sum, 0.99) / 1e3);
        if (sum->n_dropped)
                printf(", %" PRIu64 " lost", sum->n_dropped);
        fputc('\n', stdout);
}

static int bench_collect(const struct bench_child *children, size_t n_children)
{
        struct bench_result *sum = calloc(1, sizeof(*sum)), *one = calloc(1, sizeof(*one));
        uint64_t slowest_ns = 0;
        int status = ND_EXIT_OK;

        if (!sum || !one)
                status = nd_report("out of memory");
        for (size_t i = 0; status == ND_EXIT_OK && i < n_children; ++i) {
                if (!bench_read(children[i].fd, one, sizeof(*one))) {
                        status = nd_report("subscriber %zu ended without a result", i + 1);
                        break;
                }
                sum->n_messages += one->n_messages;
                sum->n_bytes += one->n_bytes;
                sum->n_dropped += one->n_dropped;
                if (one->last_ns - one->first_ns > slowest_ns)
                        slowest_ns = one->last_ns - one->first_ns;
                for (unsigned k = 0; k < BENCH_CLASSES; ++k)
                        sum->delays[k] += one->delays[k];
        }
        if (status == ND_EXIT_OK)
                bench_write_result(sum, n_children, slowest_ns);
        free(sum);
        free(one);
        return status;
}

static int bench_on_bus(const struct nd_bench_options *options,
                        const char *topic,
                        const struct bench_child *children,
                        size_t n_children)
{
        nd_autofree void *memory = calloc(1, options->size);
        struct nd_progress progress;
        struct ndbus *bus;
        int status;

        if (!memory)
                return nd_report("--size: no memory for %" PRIu64 " bytes", options->size);
        memset(memory, 1, options->size); /* pages of its own, not the one of zeros */
        bus = bench_open(options);
        if (!bus)
                return ND_EXIT_FAILED;
        nd_progress_start(&progress);
        status = bench_publish(options, topic, bus, memory, &progress);
        if (status == ND_EXIT_OK)
                status = bench_collect(children, n_children);
        if (status == ND_EXIT_OK)
                bench_write_way(bus);
        ndbus_close(bus, 0, NULL);
        return status;
}

static int bench_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_bench_options *options = values;
        nd_autofree struct bench_child *children = calloc(options->subscribers, sizeof(*children));
        size_t n_children = 0;
        char topic[64];
        int status;

        (void)arguments;
        (void)n_arguments;
        if (!children)
                return nd_report("out of memory");
        nd_signals_catch();
        snprintf(topic, sizeof(topic), "ndbus-bench/%d", (int)getpid());
        fflush(NULL);
        status = bench_start(options, topic, children, &n_children);
        if (status == ND_EXIT_OK)
                status = bench_on_bus(options, topic, children, n_children);
        for (size_t i = 0; i < n_children; ++i) {
                close(children[i].fd);
                if (status != ND_EXIT_OK)
                        kill(children[i].pid, SIGTERM);
                waitpid(children[i].pid, NULL, 0);
        }
        return status;
}

const struct nd_command nd_command_bench = {
        .name = "bench",
        .arguments = "",
        .summary = "Measure throughput and delay through the daemon.",
        .details = "Publishes to receivers in processes of their own on a private topic, nothing "
                   "lost. At full speed the delay is mostly waiting behind other messages; give "
                   "--rate to see that of one alone.",
        .options = bench_options,
        .n_options = nd_array_size(bench_options),
        .values_bytes = sizeof(struct nd_bench_options),
        .prints = true,
        .run = bench_run,
};
