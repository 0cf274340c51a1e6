/* SPDX-License-Identifier: MIT */

/*
 * ndbus record: what is published, into a file
 *
 * A message that matches several patterns comes once for each; the first one that matches records
 * it, so that it is in the file once.
 *
 * Losses are kept in the index and told at the end: a recording with losses is one all the same.
 */

#include <inttypes.h>
#include <string.h>
#include "client/command/command.h"
#include "client/command/recording.h"
#include "client/command/report.h"
#include "protocol/topic.h"

#define RECORD_OPTIONS(XX, S)                                                                      \
        XX(S, output, "output", TEXT, 0, 0, 0, "FILE",                                             \
           "Where to write the records; - is stdout. Required; -o means the same.")                \
        XX(S, replace, "replace", FLAG, 0, 0, 0, "", "Overwrite FILE if it exists.")               \
        XX(S, count, "count", COUNT, 0, 1, INT64_MAX, "N", "Stop after N messages.")               \
        XX(S, timeout_ms, "timeout", TIME, -1, 0, INT32_MAX, "S",                                  \
           "Stop when no message came for S seconds. Default: never.")                             \
        XX(S, policy, "policy", CHOICE, 0, 0, 4,                                                   \
           "drop-oldest|drop-newest|latest|block|disconnect",                                      \
           "What happens when more waits than may. Default drop-oldest; with block nothing is "    \
           "lost and publishers wait for the disk.")                                               \
        XX(S, depth, "depth", COUNT, 1000, 1, INT64_MAX, "N",                                      \
           "Messages that may wait in the daemon. Default 1000.")                                  \
        XX(S, bytes, "bytes", SIZE, 67108864, 1, INT64_MAX, "SIZE",                                \
           "Bytes that may wait in the daemon. Default 64M.")                                      \
        XX(S, no_retained, "no-retained", FLAG, 0, 0, 0, "", "Leave out the retained values.")     \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(record, RECORD_OPTIONS);

struct record {
        const struct nd_record_options *options;
        char *const *patterns; /* [n_patterns] */
        size_t n_patterns;
        struct ndbus_subscription **subscriptions; /* [n_patterns] */
        struct ndbus *bus;
        struct nd_recording recording;
        uint64_t n_recorded;
        bool has_refused; /* a message that could not be read */
        struct nd_progress progress;
};

/* Is it the message's first pattern that it came for? */
static bool record_is_first(const struct record *record, const struct ndbus_message *message)
{
        const char *topic = ndbus_message_topic(message);
        uint32_t id = ndbus_message_subscription(message);

        for (size_t i = 0; i < record->n_patterns; ++i) {
                if (ndbus_subscription_id(record->subscriptions[i]) == id)
                        return true;
                if (nd_pattern_match(record->patterns[i], strlen(record->patterns[i]), topic,
                                     strlen(topic)))
                        return false;
        }
        return true;
}

static int record_message(struct record *record, const struct ndbus_message *message)
{
        struct nd_fault fault;

        if (!record_is_first(record, message))
                return ND_EXIT_OK;
        if (ndbus_message_check_meta(message)) { /* a record could not be read */
                nd_report_bus("not recorded", NDBUS_EMETA);
                record->has_refused = true;
                return ND_EXIT_OK;
        }
        if (nd_recording_add(&record->recording, message, &fault))
                return nd_report_fault(record->options->output, &fault);
        ++record->n_recorded;
        nd_progress_show(&record->progress, "%" PRIu64 " messages, %" PRIu64 " MB",
                         record->n_recorded, record->recording.n_bytes / 1000000);
        return ND_EXIT_OK;
}

/* Milliseconds to wait for a message: none while something waits to be written. */
static int record_patience(const struct record *record, uint64_t last_ns)
{
        int64_t timeout_ms = record->options->timeout_ms, left_ms;

        if (nd_recording_is_gathering(&record->recording))
                return 0;
        if (timeout_ms < 0)
                return -1;
        left_ms = timeout_ms - (int64_t)((nd_now_ns() - last_ns) / 1000000);
        return nd_command_timeout(left_ms < 0 ? 0 : left_ms);
}

/* What receiving without a result means: *ret_status, or nothing yet and it goes on. */
static bool record_is_over(struct record *record, int r, uint64_t *told_ns, int *ret_status)
{
        const struct nd_record_options *options = record->options;

        nd_progress_clear(&record->progress);
        if (r == NDBUS_ETIMEDOUT && options->count > 0)
                *ret_status = nd_report(
                        "--timeout: no message for %g s; %" PRIu64 " of %" PRIu64 " came",
                        (double)options->timeout_ms / 1000, record->n_recorded, options->count);
        else if (r == NDBUS_ETIMEDOUT)
                *ret_status = ND_EXIT_OK;
        else if (r == NDBUS_EUNSUPPORTED) { /* one message that this program cannot read */
                nd_report_bus("not recorded", r);
                record->has_refused = true;
                return false;
        } else if (nd_command_reconnects(r, told_ns))
                return false;
        else
                *ret_status = nd_report_bus("", r);
        return true;
}

static int record_receive(struct record *record)
{
        const struct nd_record_options *options = record->options;
        uint64_t told_ns = 0, last_ns = nd_now_ns();
        int status = ND_EXIT_OK;

        while (status == ND_EXIT_OK &&
               (options->count == 0 || record->n_recorded < options->count)) {
                struct ndbus_message *message = NULL;
                struct nd_fault fault;
                int r;

                if (nd_signals_interrupted(NULL))
                        return options->count > 0 ? ND_EXIT_FAILED : ND_EXIT_OK;
                r = ndbus_receive(record->bus, &message, record_patience(record, last_ns));
                if (r == 0) {
                        told_ns = 0;
                        last_ns = nd_now_ns();
                        status = record_message(record, message);
                        ndbus_message_free(message);
                } else if (nd_recording_is_gathering(&record->recording)) {
                        if (nd_recording_flush(&record->recording, &fault))
                                return nd_report_fault(options->output, &fault);
                        if (r != NDBUS_ETIMEDOUT && r != NDBUS_EINTERRUPTED &&
                            record_is_over(record, r, &told_ns, &status))
                                return status;
                } else if (r != NDBUS_EINTERRUPTED &&
                           record_is_over(record, r, &told_ns, &status)) {
                        return status;
                }
        }
        return status;
}

static int record_subscribe(struct record *record)
{
        const struct nd_record_options *options = record->options;
        struct ndbus_subscribe_options subscribe = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        int r;

        subscribe.policy = (enum ndbus_policy)options->policy;
        subscribe.depth = options->depth;
        subscribe.bytes = options->bytes;
        subscribe.retained = !options->no_retained;
        if (subscribe.policy == NDBUS_LATEST)
                subscribe.window = 0;
        for (size_t i = 0; i < record->n_patterns; ++i) {
                r = ndbus_subscribe(record->bus, record->patterns[i], &subscribe,
                                    &record->subscriptions[i]);
                if (r)
                        return nd_report_bus(record->patterns[i], r);
        }
        return ND_EXIT_OK;
}

/* The rest, the index, and what there is to say. */
static int record_finish(struct record *record)
{
        struct nd_recording *recording = &record->recording;
        uint64_t n_dropped = 0, n_gaps = 0;
        int status = ND_EXIT_OK;
        char gaps[64] = "";
        struct nd_fault fault;

        for (size_t i = 0; i < record->n_patterns; ++i) {
                struct ndbus_subscription_stats stats = {.size = sizeof(stats)};

                if (ndbus_subscription_stats(record->subscriptions[i], &stats) == 0) {
                        n_dropped += stats.dropped;
                        n_gaps += stats.gaps_unknown;
                }
        }
        if (recording->has_failed)
                status = ND_EXIT_FAILED;
        else if (nd_recording_finish(recording, n_dropped, n_gaps, &fault))
                status = nd_report_fault(record->options->output, &fault);
        if (n_gaps > 0)
                snprintf(gaps, sizeof(gaps), ", and %" PRIu64 " gaps of unknown size", n_gaps);
        nd_report("%" PRIu64 " messages, %" PRIu64 " bytes, %" PRIu64 " lost%s",
                  recording->n_records, recording->n_bytes, n_dropped, gaps);
        return status;
}

/* The file is touched when it is sure that something can come. */
static int record_on_bus(struct record *record)
{
        const struct nd_record_options *options = record->options;
        struct nd_fault fault;
        int status, finished;

        status = record_subscribe(record);
        if (status != ND_EXIT_OK)
                return status;
        if (nd_recording_open(&record->recording, options->output, options->replace, &fault))
                return nd_report_fault(options->output, &fault);
        for (size_t i = 0; i < record->n_patterns; ++i)
                nd_command_say_subscribed(record->patterns[i]);
        nd_progress_start(&record->progress);
        status = record_receive(record);
        nd_progress_clear(&record->progress);
        finished = record_finish(record);
        nd_recording_deinit(&record->recording);
        return finished != ND_EXIT_OK || record->has_refused ? ND_EXIT_FAILED : status;
}

static int record_run(const void *values, char *const *arguments, size_t n_arguments)
{
        struct record record = {
                .options = values,
                .patterns = arguments,
                .n_patterns = n_arguments,
        };
        int status;

        if (!record.options->output) {
                nd_report("--output: is missing; say where the records go, as in -o FILE.ndb");
                return ND_EXIT_USAGE;
        }
        record.subscriptions = calloc(n_arguments, sizeof(struct ndbus_subscription *));
        if (!record.subscriptions)
                return nd_report("out of memory");
        nd_signals_catch();
        record.bus = nd_command_open(record.options->url);
        status = record.bus ? record_on_bus(&record) : ND_EXIT_FAILED;
        if (record.bus)
                ndbus_close(record.bus, 0, NULL);
        free(record.subscriptions);
        return status;
}

const struct nd_command nd_command_record = {
        .name = "record",
        .arguments = "PATTERN...",
        .summary = "Write what is published into a file of ndbus records.",
        .details =
                "Prints \"subscribed to PATTERN\" on stderr for each when it is ready. SIGINT and "
                "SIGTERM end it in good order. The file is readable at every moment; replay, "
                "info, unpack and pub read it.",
        .n_arguments_min = 1,
        .n_arguments_max = 1024,
        .checks = ND_ARGUMENTS_PATTERNS,
        .options = record_options,
        .n_options = nd_array_size(record_options),
        .values_bytes = sizeof(struct nd_record_options),
        .run = record_run,
};
