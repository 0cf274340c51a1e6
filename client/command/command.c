/* SPDX-License-Identifier: MIT */

/*
 * What several subcommands do
 */

#include "client/command/command.h"
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include "client/command/report.h"
#include "client/command/spelling.h"
#include "protocol/url.h"

/* What is announced is there sooner; whoever ends a command does not wait longer for a daemon that hangs. */
#define LOSSES_PING_MS 1000

/* Who waits for messages would hear nothing of it. */
static void command_on_notice(void *userdata, int error, const char *text)
{
        (void)userdata;
        nd_report("the daemon says: %s: %s", ndbus_strerror(error), text);
}

struct ndbus *nd_command_open(const char *url)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;

        return nd_command_open_with(url, &options);
}

struct ndbus *nd_command_open_with(const char *url, struct ndbus_options *options)
{
        const char *environment = getenv("NDBUS_URL");
        struct nd_fault fault;
        struct nd_url parsed;
        struct ndbus *bus = NULL;
        int r;

        if (!url && environment && *environment &&
            nd_url_parse(environment, "NDBUS_URL", &parsed, &fault)) {
                nd_report_fault("", &fault);
                return NULL;
        }
        options->client = "ndbus";
        options->interrupted = nd_signals_interrupted;
        options->notice = command_on_notice;
        r = ndbus_open(&bus, url, options);
        if (r) {
                nd_report_bus("", r);
                return NULL;
        }
        return bus;
}

void nd_command_say_subscribed(const char *pattern)
{
        fputs("subscribed to ", stderr);
        nd_command_write_text(stderr, pattern);
        fputc('\n', stderr);
}

static struct ndbus_subscription_stats losses_read(const struct nd_losses *losses)
{
        struct ndbus_subscription_stats stats = {.size = sizeof(stats)};

        ndbus_subscription_stats(losses->subscription, &stats);
        return stats;
}

void nd_losses_told(struct nd_losses *losses, const struct ndbus_message *message)
{
        uint64_t n = ndbus_message_dropped(message);

        if (n == NDBUS_UNKNOWN)
                losses->n_gaps_told = losses_read(losses).gaps_unknown;
        else
                losses->n_told += n;
}

void nd_losses_say(struct nd_losses *losses, const char *pattern, const char *where)
{
        const struct ndbus_subscription_stats stats = losses_read(losses);
        bool has_gap = stats.gaps_unknown > losses->n_gaps_told;

        if (stats.dropped > losses->n_told || has_gap)
                nd_report("%s: %" PRIu64 " messages lost%s%s", pattern,
                          stats.dropped - losses->n_told, where,
                          has_gap ? ", and a gap of unknown size" : "");
        losses->n_told = stats.dropped;
        losses->n_gaps_told = stats.gaps_unknown;
}

void nd_losses_end(struct nd_losses *losses,
                   struct ndbus *bus,
                   const char *pattern,
                   const char *where)
{
        ndbus_ping(bus, NULL, LOSSES_PING_MS);
        nd_losses_say(losses, pattern, where);
}

bool nd_command_reconnects(int r, uint64_t *told_ns)
{
        uint64_t now = nd_now_ns();

        if (r != NDBUS_ENOTCONN && r != NDBUS_EDEAD && r != NDBUS_ESHUTDOWN)
                return false;
        if (*told_ns == 0 || now - *told_ns > UINT64_C(5000000000)) {
                nd_report_bus("connection lost, connecting again", r);
                *told_ns = now;
        }
        poll(NULL, 0, 100);
        return true;
}

int nd_command_check_repeat(const char *path, uint64_t repeat)
{
        if (strcmp(path, "-") == 0 && repeat != 1) {
                nd_report("--repeat: stdin can be read only once; give a file");
                return ND_EXIT_USAGE;
        }
        return ND_EXIT_OK;
}

bool nd_command_is_over(int r)
{
        return r == NDBUS_ENOTCONN || r == NDBUS_EDEAD || r == NDBUS_ESHUTDOWN ||
               r == NDBUS_EINTERRUPTED || r == NDBUS_EPROTOCOL;
}

/* The last millisecond is slept: the library counts in milliseconds. */
int nd_command_wait(struct ndbus *bus, uint64_t due_ns)
{
        for (uint64_t now = nd_now_ns(); now < due_ns && !nd_signals_interrupted(NULL);) {
                uint64_t left_ms = (due_ns - now) / 1000000;
                struct ndbus_message *message = NULL;
                int r = NDBUS_ETIMEDOUT;

                if (left_ms > 0)
                        r = ndbus_receive(bus, &message,
                                          left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
                ndbus_message_free(message);
                if (nd_command_is_over(r))
                        return r;
                now = nd_now_ns();
                if (now < due_ns && (due_ns - now < 1000000 || r != NDBUS_ETIMEDOUT)) {
                        uint64_t left = nd_min_u64(due_ns - now, 1000000);
                        struct timespec rest = {.tv_nsec = (long)left};

                        clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL);
                        now = nd_now_ns();
                }
        }
        return 0;
}

int nd_command_close(struct ndbus *bus, int timeout_ms)
{
        size_t unconfirmed = 0;
        int r;

        r = ndbus_close(bus, timeout_ms, &unconfirmed);
        if (!r)
                return ND_EXIT_OK;
        if (unconfirmed > 0)
                return nd_report("%s: %s (%zu messages not confirmed)", ndbus_strerror(r),
                                 ndbus_detail(), unconfirmed);
        return nd_report_bus("", r);
}

void nd_command_write_arrays(FILE *out, const struct ndbus_array *arrays, size_t n_arrays)
{
        char text[ND_SPELLING_BYTES];

        if (n_arrays == 0)
                fputc('-', out);
        for (size_t i = 0; i < n_arrays; ++i)
                fprintf(out, "%s%s", i ? ";" : "",
                        nd_spelling_dtype(&arrays[i], text, sizeof(text)));
        fputc('\t', out);
        if (n_arrays == 0)
                fputc('-', out);
        for (size_t i = 0; i < n_arrays; ++i)
                fprintf(out, "%s%s", i ? ";" : "",
                        nd_spelling_shape(&arrays[i], text, sizeof(text)));
}

void nd_command_write_text(FILE *out, const char *text)
{
        for (const unsigned char *c = (const unsigned char *)text; *c; ++c) {
                bool is_c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;

                fputc(*c < 0x20 || *c == 0x7f || is_c1 ? '?' : *c, out);
                c += is_c1;
        }
}
