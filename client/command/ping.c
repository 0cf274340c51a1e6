/* SPDX-License-Identifier: MIT */

/*
 * ndbus ping: does the daemon answer, and how fast
 */

#include <inttypes.h>
#include "client/command/command.h"
#include "client/command/report.h"

#define PING_OPTIONS(XX, S)                                                                        \
        XX(S, count, "count", COUNT, 10, 1, 10000000, "N", "Round trips. Default 10.")             \
        XX(S, timeout_ms, "timeout", TIME, 5000, 0, INT32_MAX, "S",                                \
           "Seconds to wait for each answer. Default 5.")                                          \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(ping, PING_OPTIONS);

static int ping_compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

static void ping_write(uint64_t *ns, size_t n)
{
        double median;

        qsort(ns, n, sizeof(*ns), ping_compare);
        median = n % 2 ? (double)ns[n / 2] : ((double)ns[n / 2 - 1] + (double)ns[n / 2]) / 2;
        printf("%zu round trips: min %.1f us, median %.1f us, max %.1f us\n", n,
               (double)ns[0] / 1e3, median / 1e3, (double)ns[n - 1] / 1e3);
}

static int ping_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_ping_options *options = values;
        nd_autofree uint64_t *ns = calloc(options->count, sizeof(*ns));
        int status = ND_EXIT_OK;
        struct ndbus *bus;
        size_t n = 0;

        (void)arguments;
        (void)n_arguments;
        if (!ns)
                return nd_report("out of memory");
        nd_signals_catch();
        bus = nd_command_open(options->url);
        if (!bus)
                return ND_EXIT_FAILED;
        while (status == ND_EXIT_OK && n < options->count && !nd_signals_interrupted(NULL)) {
                int r = ndbus_ping(bus, &ns[n], nd_command_timeout(options->timeout_ms));

                if (r == NDBUS_EINTERRUPTED)
                        break;
                if (r)
                        status = nd_report_bus("", r);
                else
                        ++n;
        }
        ndbus_close(bus, 0, NULL);
        if (n > 0)
                ping_write(ns, n);
        return status;
}

const struct nd_command nd_command_ping = {
        .name = "ping",
        .arguments = "",
        .summary = "Measure round trips to the daemon.",
        .options = ping_options,
        .n_options = nd_array_size(ping_options),
        .values_bytes = sizeof(struct nd_ping_options),
        .prints = true,
        .run = ping_run,
};
