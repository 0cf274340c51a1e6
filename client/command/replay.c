/* SPDX-License-Identifier: MIT */

/*
 * ndbus replay: a recording, published again
 *
 * Messages go out in the order of the file, at the distances of their times: the moment of each is
 * counted from that of the first, so that what is late once is not late for ever. Times that go back,
 * as those of two publishers do, are due at once.
 *
 * Each is a new message of a new source. Where an answer was awaited, nobody does any more: the topic
 * for it is left out.
 */

#include <inttypes.h>
#include <string.h>
#include "client/command/command.h"
#include "client/command/report.h"
#include "client/command/source.h"
#include "protocol/topic.h"

#define REPLAY_OPTIONS(XX, S)                                                                      \
        XX(S, rate, "rate", FACTOR, 1, 0, 1000000, "X",                                            \
           "So many times as fast as it was recorded; 0: as fast as it goes. Default 1.")          \
        XX(S, topic, "topic", PATTERNS, 0, 0, 0, "PATTERN",                                        \
           "Only messages on matching topics; may be given several times.")                        \
        XX(S, start_ms, "start", TIME, 0, 0, INT64_MAX / 1000000, "S",                             \
           "Begin S seconds behind the first message.")                                            \
        XX(S, repeat, "repeat", COUNT, 1, 0, INT64_MAX, "N",                                       \
           "Replay the file N times; 0: until interrupted. Default 1.")                            \
        ND_COMMAND_LEAVE_OPTIONS(XX, S)                                                            \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(replay, REPLAY_OPTIONS);

struct replay {
        const struct nd_replay_options *options;
        const char *path;
        struct ndbus *bus;
        uint64_t begin_ns; /* CLOCK_MONOTONIC of the first message of this round; 0: none yet */
        uint64_t time_ns;  /* and its own time */
        uint64_t from_ns;  /* messages before this time are passed over, until one is not */
        bool has_begun;
        uint64_t n_published;
        uint64_t n_refused;
        struct nd_progress progress;
};

static bool replay_is_wanted(const struct replay *replay, const char *topic)
{
        const struct nd_option_list *patterns = &replay->options->topic;

        for (size_t i = 0; i < patterns->n; ++i)
                if (nd_pattern_match(patterns->items[i], strlen(patterns->items[i]), topic,
                                     strlen(topic)))
                        return true;
        return patterns->n == 0;
}

/* When a message of this time is due. */
static uint64_t replay_due(struct replay *replay, uint64_t time_ns)
{
        double later_ns;

        if (replay->begin_ns == 0) {
                replay->begin_ns = nd_now_ns();
                replay->time_ns = time_ns;
        }
        if (time_ns <= replay->time_ns || replay->options->rate <= 0)
                return replay->begin_ns;
        later_ns = (double)(time_ns - replay->time_ns) / replay->options->rate;
        return later_ns < 4e18 ? replay->begin_ns + (uint64_t)later_ns : UINT64_MAX;
}

/* 0; negative: nothing more can be published. */
static int replay_message(struct replay *replay, const struct nd_source_message *message)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        const char *topic = ndbus_message_topic(message->record);
        int r;

        r = nd_command_wait(replay->bus,
                            replay_due(replay, ndbus_message_time_ns(message->record)));
        if (r || nd_signals_interrupted(NULL))
                return r;
        options.meta = message->meta;
        options.n_meta = message->n_meta;
        options.encoding = message->encoding;
        options.retain = (uint8_t)ndbus_message_retained(message->record);
        options.timeout_ms = nd_command_leave(replay->options->block, replay->options->timeout_ms);
        r = ndbus_publish(replay->bus, topic, message->arrays, message->n_arrays, &options);
        if (!r) {
                ++replay->n_published;
                return 0;
        }
        ++replay->n_refused;
        nd_progress_clear(&replay->progress);
        if (r != NDBUS_EINTERRUPTED)
                nd_report_bus(topic, r);
        return nd_command_is_over(r) ? r : 0;
}

/* Passes over what is before --start, in one step as far as an index says. */
static int replay_start(struct replay *replay, struct nd_source *source, struct nd_fault *fault)
{
        uint64_t start_ns = (uint64_t)replay->options->start_ms * 1000000;
        struct nd_index index;
        int r;

        replay->begin_ns = 0;
        replay->from_ns = 0;
        replay->has_begun = start_ns == 0;
        if (replay->has_begun)
                return 0;
        r = nd_source_index(source, &index, fault);
        if (r)
                return r < 0 ? r : 0;
        if (nd_add_overflow(index.time_first_ns, start_ns, &replay->from_ns))
                replay->from_ns = UINT64_MAX;
        nd_source_seek(source, nd_index_seek(&index, replay->from_ns));
        nd_index_deinit(&index);
        return 0;
}

static bool replay_is_late_enough(struct replay *replay, uint64_t time_ns)
{
        uint64_t start_ns = (uint64_t)replay->options->start_ms * 1000000;

        if (replay->has_begun)
                return true;
        if (replay->from_ns == 0 && nd_add_overflow(time_ns, start_ns, &replay->from_ns))
                replay->from_ns = UINT64_MAX;
        replay->has_begun = time_ns >= replay->from_ns;
        return replay->has_begun;
}

/* Once through the file. Negative: nothing more can be published, or read. */
static int replay_file(struct replay *replay)
{
        const struct nd_source_options options = {
                .message_max = ndbus_message_max(replay->bus),
                .progress = &replay->progress,
        };
        nd_cleanup(nd_source_freep) struct nd_source *source = NULL;
        struct nd_source_message message;
        struct nd_fault fault;
        int r;

        r = nd_source_open(&source, replay->path, &options, &fault);
        r = r ? r : replay_start(replay, source, &fault);
        while (!r && !nd_signals_interrupted(NULL)) {
                r = nd_source_next(source, &message, &fault);
                if (!r && !message.record)
                        r = nd_fault_set(&fault, NDBUS_ECORRUPT, "",
                                         "is no file of ndbus records; see ndbus pub");
                if (r)
                        break;
                if (!replay_is_late_enough(replay, ndbus_message_time_ns(message.record)) ||
                    !replay_is_wanted(replay, ndbus_message_topic(message.record)))
                        continue;
                r = replay_message(replay, &message);
                if (r) { /* it was said, unless the file is the reason */
                        if (nd_source_check(source, &fault))
                                nd_report_fault(replay->path, &fault);
                        return r;
                }
                nd_progress_show(&replay->progress, "%" PRIu64 " messages", replay->n_published);
        }
        if (r < 0) {
                ++replay->n_refused;
                nd_progress_clear(&replay->progress);
                nd_report_fault(replay->path, &fault);
        }
        return r < 0 ? r : 0;
}

static void replay_rounds(struct replay *replay)
{
        uint64_t n = replay->options->repeat;

        for (uint64_t round = 0; n == 0 || round < n; ++round) {
                uint64_t n_before = replay->n_published;

                if (replay_file(replay) || nd_signals_interrupted(NULL) ||
                    replay->n_published == n_before) /* neither will the next round */
                        return;
        }
}

static int replay_run(const void *values, char *const *arguments, size_t n_arguments)
{
        struct replay replay = {.options = values, .path = arguments[0]};
        int status;

        (void)n_arguments;
        status = nd_command_check_repeat(replay.path, replay.options->repeat);
        if (status != ND_EXIT_OK)
                return status;
        nd_signals_catch();
        replay.bus = nd_command_open(replay.options->url);
        if (!replay.bus)
                return ND_EXIT_FAILED;
        nd_progress_start(&replay.progress);
        replay_rounds(&replay);
        nd_progress_clear(&replay.progress);
        status = nd_command_close(
                replay.bus, nd_command_leave(replay.options->block, replay.options->timeout_ms));
        return replay.n_refused > 0 ? ND_EXIT_FAILED : status;
}

const struct nd_command nd_command_replay = {
        .name = "replay",
        .arguments = "FILE",
        .summary = "Publish a recording again, at its own pace.",
        .details =
                "FILE is what ndbus record wrote; - is stdin. Topics, order, metadata and the mark "
                "of retained values are those of the recording.",
        .n_arguments_min = 1,
        .n_arguments_max = 1,
        .options = replay_options,
        .n_options = nd_array_size(replay_options),
        .values_bytes = sizeof(struct nd_replay_options),
        .run = replay_run,
};
