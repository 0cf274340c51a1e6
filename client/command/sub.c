/* SPDX-License-Identifier: MIT */

/*
 * ndbus sub: messages as lines, pictures and files
 *
 * A line a message, its cells divided by tabs, which no topic can contain: topic, sequence,
 * dtypes, shapes, bytes, delay in seconds, messages lost just before it, then NAME or NAME=VALUE
 * cells of which more may come: retained, redelivered, file=, note=, meta=. "subscribed to
 * PATTERN" on stderr says that what is published from now on will be seen; scripts wait for it.
 *
 * A lost connection is said on stderr and made again by the library; the next line of each
 * subscription then has "unknown" as its loss. What was lost after the last line is said on stderr at
 * the end.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/meta.h"
#include "client/command/output.h"
#include "client/command/report.h"
#include "client/command/view.h"
#include "protocol/limit.h"

#define SUB_OPTIONS(XX, S)                                                                         \
        XX(S, count, "count", COUNT, 0, 1, INT64_MAX, "N", "Stop after N messages.")               \
        XX(S, output, "output", TEXT, 0, 0, 0, "DIR",                                              \
           "Write each array to DIR/TOPIC-SEQUENCE.npy; -o means the same.")                       \
        XX(S, policy, "policy", CHOICE, 0, 0, 4,                                                   \
           "drop-oldest|drop-newest|latest|block|disconnect",                                      \
           "What happens when more waits than may. Default drop-oldest.")                          \
        XX(S, depth, "depth", COUNT, 1000, 1, INT64_MAX, "N",                                      \
           "Messages that may wait in the daemon. Default 1000.")                                  \
        XX(S, bytes, "bytes", SIZE, 67108864, 1, INT64_MAX, "SIZE",                                \
           "Bytes that may wait in the daemon. Default 64M.")                                      \
        XX(S, window, "window", COUNT, 0, 1, ND_WINDOW_MAX, "N",                                   \
           "Messages on the way to this program. Default 256; with latest, one when asked.")       \
        XX(S, group, "group", NAME, 0, 0, 0, "NAME",                                               \
           "Share the messages with the other subscribers of this group.")                         \
        XX(S, no_retained, "no-retained", FLAG, 0, 0, 0, "", "Leave out the retained values.")     \
        XX(S, timeout_ms, "timeout", TIME, -1, 0, INT32_MAX, "S",                                  \
           "Stop when no message came for S seconds. Default: never.")                             \
        XX(S, view, "view", FLAG, 0, 0, 0, "", "Draw each array on the terminal.")                 \
        XX(S, meta, "meta", FLAG, 0, 0, 0, "", "Print the metadata of each message as JSON.")      \
        ND_COMMAND_BROADCAST_MAX_OPTION(XX, S)                                                     \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(sub, SUB_OPTIONS);

struct sub {
        const struct nd_sub_options *options;
        int folder_fd; /* -1: no --output */
        bool has_failed;
        uint64_t n_received;
        struct nd_losses losses;
};

static double sub_delay(const struct ndbus_message *message)
{
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return (double)((int64_t)((uint64_t)now.tv_sec * UINT64_C(1000000000) +
                                  (uint64_t)now.tv_nsec) -
                        (int64_t)ndbus_message_time_ns(message)) /
               1e9;
}

/* Sequences begin anew with each source: should the path be taken, the source is put behind it. */
static void sub_write_file(struct sub *sub,
                           const struct ndbus_message *message,
                           const struct ndbus_array *array,
                           int i)
{
        char topic[ND_OUTPUT_PATH_BYTES], path[ND_OUTPUT_PATH_BYTES + 64],
                other[ND_OUTPUT_PATH_BYTES + 64], used[ND_OUTPUT_PATH_BYTES], note[160] = "";
        uint64_t sequence = ndbus_message_sequence(message);
        struct nd_fault fault;
        char number[16] = "";

        nd_output_path(ndbus_message_topic(message), /* is_flat= */ false, topic);
        if (i >= 0)
                snprintf(number, sizeof(number), "-%d", i);
        snprintf(path, sizeof(path), "%s-%" PRIu64 "%s", topic, sequence, number);
        snprintf(other, sizeof(other), "%s-%" PRIu64 ".%016" PRIx64 "%s", topic, sequence,
                 ndbus_message_source(message), number);
        if (nd_output_array(sub->folder_fd, path, other, array, sub->options->broadcast_max, used,
                            note, &fault)) {
                nd_report_fault(path, &fault);
                sub->has_failed = true;
                return;
        }
        fputs("\tfile=", stdout);
        nd_command_write_text(stdout, sub->options->output);
        fputc('/', stdout);
        nd_command_write_text(stdout, used);
        if (note[0])
                printf("\tnote=%s", note);
}

static void sub_write_extras(struct sub *sub,
                             const struct ndbus_message *message,
                             const struct ndbus_array *arrays,
                             size_t n_arrays)
{
        const void *meta = NULL;
        size_t n_meta = ndbus_message_meta(message, &meta);

        if (ndbus_message_retained(message))
                fputs("\tretained", stdout);
        if (ndbus_message_redelivered(message))
                fputs("\tredelivered", stdout);
        for (size_t i = 0; sub->folder_fd >= 0 && i < n_arrays; ++i) {
                if (nd_signals_interrupted(NULL)) { /* a message can be very many files */
                        nd_report("interrupted: %zu of %zu arrays of the last message were written",
                                  i, n_arrays);
                        sub->has_failed = true;
                        break;
                }
                sub_write_file(sub, message, &arrays[i], n_arrays > 1 ? (int)i : -1);
        }
        if (ndbus_message_check_meta(message)) {
                printf("\tnote=%s", ndbus_strerror(NDBUS_EMETA));
                nd_report_bus(ndbus_message_topic(message), NDBUS_EMETA);
                sub->has_failed = true;
        }
        if (sub->options->meta && n_meta > 0) {
                fputs("\tmeta=", stdout);
                if (nd_meta_write_json(stdout, meta, n_meta, NULL))
                        fputs("null", stdout);
        }
}

static void sub_draw(const struct ndbus_array *arrays, size_t n_arrays)
{
        struct nd_view_terminal terminal;
        struct nd_fault fault;

        nd_view_terminal_detect(STDOUT_FILENO, &terminal);
        for (size_t i = 0; i < n_arrays; ++i)
                if (nd_view_draw(&arrays[i], &terminal, stdout, &fault))
                        printf("no picture: %s: %s\n", fault.field, fault.text);
}

static void sub_message(struct sub *sub, const struct ndbus_message *message)
{
        const struct ndbus_array *arrays = NULL;
        size_t n_arrays = ndbus_message_arrays(message, &arrays);
        uint64_t dropped = ndbus_message_dropped(message);
        double delay = sub_delay(message);

        ++sub->n_received;
        nd_command_write_text(stdout, ndbus_message_topic(message));
        printf("\t%" PRIu64 "\t", ndbus_message_sequence(message));
        nd_command_write_arrays(stdout, arrays, n_arrays);
        printf("\t%" PRIu64 "\t%.6f\t", ndbus_message_bytes(message), delay);
        if (dropped == NDBUS_UNKNOWN)
                fputs("unknown", stdout);
        else
                printf("%" PRIu64, dropped);
        nd_losses_told(&sub->losses, message);
        sub_write_extras(sub, message, arrays, n_arrays);
        fputc('\n', stdout);
        if (sub->options->view)
                sub_draw(arrays, n_arrays);
        fflush(stdout);
}

static int sub_receive(struct sub *sub, struct ndbus *bus)
{
        const struct nd_sub_options *options = sub->options;
        uint64_t told_ns = 0, last_ns = nd_now_ns();

        while (options->count == 0 || sub->n_received < options->count) {
                struct ndbus_message *message = NULL;
                int64_t left_ms = -1;
                int r;

                if (nd_signals_interrupted(NULL))
                        return options->count > 0 ? ND_EXIT_FAILED : ND_EXIT_OK;
                if (options->timeout_ms >= 0) {
                        left_ms =
                                options->timeout_ms - (int64_t)((nd_now_ns() - last_ns) / 1000000);
                        left_ms = left_ms < 0 ? 0 : left_ms;
                }
                r = ndbus_receive(bus, &message, nd_command_timeout(left_ms));
                if (r == NDBUS_EINTERRUPTED)
                        continue;
                if (r == NDBUS_ETIMEDOUT && options->count > 0)
                        return nd_report("--timeout: no message for %g s; %" PRIu64 " of %" PRIu64
                                         " came",
                                         (double)options->timeout_ms / 1000, sub->n_received,
                                         options->count);
                if (r == NDBUS_ETIMEDOUT)
                        return ND_EXIT_OK;
                if (r && left_ms == 0)
                        return nd_report_bus("--timeout", r);
                if (r && nd_command_reconnects(r, &told_ns))
                        continue;
                if (r)
                        return nd_report_bus("", r);
                told_ns = 0;
                last_ns = nd_now_ns();
                sub_message(sub, message);
                ndbus_message_free(message);
                if (ferror(stdout))
                        return ND_EXIT_FAILED;
        }
        return ND_EXIT_OK;
}

static int sub_on_bus(struct sub *sub, const char *pattern)
{
        const struct nd_sub_options *options = sub->options;
        struct ndbus_subscribe_options subscribe = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_subscription *subscription = NULL;
        struct ndbus *bus;
        int r, status;

        bus = nd_command_open(options->url);
        if (!bus)
                return ND_EXIT_FAILED;
        subscribe.policy = (enum ndbus_policy)options->policy;
        subscribe.depth = options->depth;
        subscribe.bytes = options->bytes;
        if (options->window > 0)
                subscribe.window = options->window;
        else if (subscribe.policy == NDBUS_LATEST)
                subscribe.window = 0;
        subscribe.group = options->group;
        subscribe.retained = !options->no_retained;
        r = ndbus_subscribe(bus, pattern, &subscribe, &subscription);
        if (r) {
                status = nd_report_bus(pattern, r);
        } else {
                nd_command_say_subscribed(pattern);
                sub->losses.subscription = subscription;
                status = sub_receive(sub, bus);
                nd_losses_end(&sub->losses, bus, pattern, " after the last line");
        }
        ndbus_close(bus, 0, NULL);
        return sub->has_failed ? ND_EXIT_FAILED : status;
}

static int sub_run(const void *values, char *const *arguments, size_t n_arguments)
{
        struct sub sub = {.options = values, .folder_fd = -1};
        const char *output = sub.options->output;
        int status;

        (void)n_arguments;
        if (output) {
                if (mkdir(output, 0777) < 0 && errno != EEXIST)
                        return nd_report_errno(output, errno);
                sub.folder_fd = open(output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (sub.folder_fd < 0)
                        return nd_report_errno(output, errno);
        }
        nd_signals_catch();
        status = sub_on_bus(&sub, arguments[0]);
        if (sub.folder_fd >= 0)
                close(sub.folder_fd);
        return status;
}

const struct nd_command nd_command_sub = {
        .name = "sub",
        .arguments = "PATTERN",
        .summary = "Print, draw or store what is published.",
        .details = "Prints \"subscribed to PATTERN\" on stderr when it is ready, then a line a "
                   "message, cells divided by tabs: topic, sequence, dtypes, shapes, bytes, delay "
                   "in seconds, messages lost just before, and what else there is.",
        .n_arguments_min = 1,
        .n_arguments_max = 1,
        .checks = ND_ARGUMENTS_PATTERN,
        .options = sub_options,
        .n_options = nd_array_size(sub_options),
        .values_bytes = sizeof(struct nd_sub_options),
        .prints = true,
        .run = sub_run,
};
