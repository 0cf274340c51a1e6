/* SPDX-License-Identifier: MIT */

/*
 * ndbus pub: files as messages
 *
 * Elements go to the socket from where the file is mapped. Messages that the daemon refuses are
 * told at the end, by a flush, because publishing does not wait for answers; whatever was refused,
 * by the library at once or by the daemon later, makes the exit status 1, and the others are
 * published all the same.
 *
 * Between messages of a given rate the wait is one inside the library, so that the connection is
 * served meanwhile.
 */

#include <inttypes.h>
#include "client/command/command.h"
#include "client/command/meta.h"
#include "client/command/report.h"
#include "client/command/source.h"

#define PUB_OPTIONS(XX, S)                                                                         \
        XX(S, dtype, "dtype", DTYPE, 0, 0, 0, "DTYPE",                                             \
           "Element type of raw files: float32, >uint16, datetime64[ns] ... Of .npy files with "   \
           "opaque elements: what they are (bfloat16).")                                           \
        XX(S, shape, "shape", SHAPE, 0, 0, 0, "N,N",                                               \
           "Shape of raw files. Default: one dimension, all there is.")                            \
        XX(S, clear, "clear", FLAG, 0, 0, 0, "",                                                   \
           "Instead of files: clear the value that is kept of TOPIC.")                             \
        XX(S, retain, "retain", FLAG, 0, 0, 0, "",                                                 \
           "Keep each message as its topic's value for later subscribers.")                        \
        XX(S, repeat, "repeat", COUNT, 1, 0, INT64_MAX, "N",                                       \
           "Publish all files N times; 0: until interrupted. Default 1.")                          \
        XX(S, rate, "rate", RATE, 0, 0, 1000000000, "HZ",                                          \
           "Messages a second. Default: as fast as they go.")                                      \
        XX(S, wait_subscribers, "wait-subscribers", COUNT, 0, 0, UINT32_MAX, "N",                  \
           "First wait until N subscriptions match TOPIC, at most --timeout.")                     \
        XX(S, meta, "meta", LIST, 0, 0, 0, "KEY=VALUE",                                            \
           "Metadata of every message; may be given several times. Numbers, true and false are "   \
           "sent as such, KEY=\"5\" as text.")                                                     \
        ND_COMMAND_LEAVE_OPTIONS(XX, S)                                                            \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(pub, PUB_OPTIONS);

struct pub {
        const struct nd_pub_options *options;
        const char *topic;
        struct ndbus *bus;
        void *meta;
        size_t n_meta;
        uint64_t n_published;
        uint64_t n_refused;
        uint64_t due_ns; /* when the next message is, with --rate */
        struct nd_progress progress;
};

/* Waits for the time of the next message, and serves the connection meanwhile. */
static int pub_pace(struct pub *pub)
{
        uint64_t now;
        int r;

        if (pub->options->rate <= 0)
                return 0;
        if (pub->due_ns == 0)
                pub->due_ns = nd_now_ns();
        r = nd_command_wait(pub->bus, pub->due_ns);
        if (r)
                return r;
        now = nd_now_ns();
        pub->due_ns += (uint64_t)(1e9 / pub->options->rate);
        if (pub->due_ns < now) /* late: no burst to catch up */
                pub->due_ns = now;
        return 0;
}

static int pub_message(struct pub *pub, const char *path, const struct nd_source_message *message)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        int r;

        r = pub_pace(pub);
        if (!r) {
                options.meta = pub->n_meta ? pub->meta : message->meta;
                options.n_meta = pub->n_meta ? pub->n_meta : message->n_meta;
                options.encoding = message->encoding;
                options.retain = pub->options->retain;
                options.timeout_ms =
                        nd_command_leave(pub->options->block, pub->options->timeout_ms);
                r = ndbus_publish(pub->bus, pub->topic, message->arrays, message->n_arrays,
                                  &options);
        }
        if (r) {
                ++pub->n_refused;
                nd_progress_clear(&pub->progress);
                if (r != NDBUS_EINTERRUPTED)
                        nd_report_bus(path, r);
                return r;
        }
        ++pub->n_published;
        return 0;
}

/* Negative: nothing more can be published. */
static int pub_file(struct pub *pub, const char *path)
{
        const struct nd_source_options options = {
                .dtype = pub->options->dtype,
                .shape = pub->options->shape,
                .message_max = ndbus_message_max(pub->bus),
                .progress = &pub->progress,
        };
        nd_cleanup(nd_source_freep) struct nd_source *source = NULL;
        struct nd_source_message message;
        struct nd_fault fault;
        int r;

        r = nd_source_open(&source, path, &options, &fault);
        while (!r && !nd_signals_interrupted(NULL)) {
                r = nd_source_next(source, &message, &fault);
                if (r)
                        break;
                if (message.note && pub->n_published == 0)
                        nd_report("%s: %s", path, message.note);
                r = pub_message(pub, path, &message);
                if (nd_command_is_over(r)) {
                        if (nd_source_check(source, &fault))
                                nd_report_fault(path, &fault);
                        return r;
                }
                r = 0;
                nd_progress_show(&pub->progress, "%" PRIu64 " messages", pub->n_published);
        }
        if (r < 0) {
                ++pub->n_refused;
                nd_progress_clear(&pub->progress);
                nd_report_fault(path, &fault);
        }
        return 0;
}

static int pub_files(struct pub *pub, char *const *paths, size_t n_paths)
{
        bool is_endless = pub->options->repeat == 0;
        int r;

        for (uint64_t round = 0; is_endless || round < pub->options->repeat; ++round)
                for (size_t i = 0; i < n_paths; ++i) {
                        r = pub_file(pub, paths[i]);
                        if (r || nd_signals_interrupted(NULL))
                                return r;
                        if (is_endless && round == 0 && pub->n_published == 0 && i + 1 == n_paths)
                                return 0; /* none of them can be: neither can they later */
                }
        return 0;
}

static int pub_check(const struct nd_pub_options *options, char *const *paths, size_t n_paths)
{
        if (options->clear && n_paths > 0) {
                nd_report("--clear: takes no FILE; %s is one", paths[0]);
                return ND_EXIT_USAGE;
        }
        if (!options->clear && n_paths == 0) {
                nd_report("1 of 2 arguments are there; the usage is: ndbus pub TOPIC FILE...");
                return ND_EXIT_USAGE;
        }
        for (size_t i = 0; i < n_paths; ++i)
                if (nd_command_check_repeat(paths[i], options->repeat) != ND_EXIT_OK)
                        return ND_EXIT_USAGE;
        return ND_EXIT_OK;
}

/* A retained message without arrays and metadata clears what is kept. */
static void pub_clear(struct pub *pub)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        int r;

        options.retain = 1;
        options.timeout_ms = nd_command_leave(pub->options->block, pub->options->timeout_ms);
        r = ndbus_publish(pub->bus, pub->topic, NULL, 0, &options);
        if (r) {
                ++pub->n_refused;
                nd_report_bus(pub->topic, r);
        }
}

static int pub_on_bus(struct pub *pub, char *const *paths, size_t n_paths)
{
        const struct nd_pub_options *options = pub->options;
        int r, leave_ms = nd_command_leave(options->block, options->timeout_ms);
        int status = ND_EXIT_OK;

        pub->bus = nd_command_open(options->url);
        if (!pub->bus)
                return ND_EXIT_FAILED;
        if (options->wait_subscribers > 0) {
                r = ndbus_wait_subscribers(pub->bus, pub->topic,
                                           (unsigned)options->wait_subscribers, leave_ms);
                if (r) {
                        status = nd_report("--wait-subscribers %" PRIu64 ": %s: %s",
                                           options->wait_subscribers, ndbus_strerror(r),
                                           ndbus_detail());
                        ndbus_close(pub->bus, 0, NULL);
                        return status;
                }
        }
        nd_progress_start(&pub->progress);
        if (options->clear)
                pub_clear(pub);
        else
                pub_files(pub, paths, n_paths);
        nd_progress_clear(&pub->progress);

        status = nd_command_close(pub->bus, leave_ms);
        return pub->n_refused > 0 ? ND_EXIT_FAILED : status;
}

static int pub_run(const void *values, char *const *arguments, size_t n_arguments)
{
        struct pub pub = {.options = values, .topic = arguments[0]};
        struct nd_fault fault;
        int status;

        status = pub_check(pub.options, arguments + 1, n_arguments - 1);
        if (status != ND_EXIT_OK)
                return status;
        if (nd_meta_pack(&pub.options->meta, &pub.meta, &pub.n_meta, &fault)) {
                nd_report_fault("", &fault);
                return ND_EXIT_USAGE;
        }
        nd_signals_catch();
        status = pub_on_bus(&pub, arguments + 1, n_arguments - 1);
        free(pub.meta);
        return status;
}

const struct nd_command nd_command_pub = {
        .name = "pub",
        .arguments = "TOPIC FILE...",
        .summary = "Publish arrays from files.",
        .details = "Each FILE is a message: .npy, an ndbus record, or raw bytes with --dtype and "
                   "--shape; - is stdin. Arrays or records one behind another in one file, or in a "
                   "pipe, are as many messages.",
        .n_arguments_min = 1,
        .n_arguments_max = UINT32_MAX,
        .checks = ND_ARGUMENTS_TOPIC,
        .options = pub_options,
        .n_options = nd_array_size(pub_options),
        .values_bytes = sizeof(struct nd_pub_options),
        .run = pub_run,
};
