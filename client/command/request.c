/* SPDX-License-Identifier: MIT */

/*
 * ndbus request: files as questions, and the answers to them
 *
 * A line an answer, its cells divided by tabs: topic of the question, dtypes, shapes, bytes, seconds
 * that it took, then file=, note=, meta= as in `ndbus sub`. An answer whose meta has "error", which
 * is how `ndbus reply` says that a command failed, makes the exit status 1.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/meta.h"
#include "client/command/output.h"
#include "client/command/report.h"
#include "client/command/source.h"
#include "protocol/map.h"

#define REQUEST_OPTIONS(XX, S)                                                                     \
        XX(S, output, "output", TEXT, 0, 0, 0, "DIR",                                              \
           "Write each array of the answers to DIR/TOPIC-N.npy; -o means the same.")               \
        XX(S, dtype, "dtype", DTYPE, 0, 0, 0, "DTYPE", "Element type of raw files, as for pub.")   \
        XX(S, shape, "shape", SHAPE, 0, 0, 0, "N,N", "Shape of raw files, as for pub.")            \
        XX(S, meta, "meta", LIST, 0, 0, 0, "KEY=VALUE",                                            \
           "Metadata of every question; may be given several times, as for pub.")                  \
        XX(S, timeout_ms, "timeout", TIME, 5000, 0, INT32_MAX, "S",                                \
           "Seconds to wait for each answer. Default 5.")                                          \
        ND_COMMAND_BROADCAST_MAX_OPTION(XX, S)                                                     \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(request, REQUEST_OPTIONS);

struct request {
        const struct nd_request_options *options;
        const char *topic;
        struct ndbus *bus;
        void *meta;
        size_t n_meta;
        int folder_fd; /* -1: no --output */
        uint64_t n_asked;
        bool has_failed;
};

static void
request_write_files(struct request *request, const struct ndbus_array *arrays, size_t n_arrays)
{
        char topic[ND_OUTPUT_PATH_BYTES], path[ND_OUTPUT_PATH_BYTES + 64],
                used[ND_OUTPUT_PATH_BYTES], note[160] = "", number[24] = "";
        struct nd_fault fault;

        nd_output_path(request->topic, /* is_flat= */ false, topic);
        for (size_t i = 0; i < n_arrays; ++i) {
                if (n_arrays > 1)
                        snprintf(number, sizeof(number), "-%zu", i);
                snprintf(path, sizeof(path), "%s-%" PRIu64 "%s", topic, request->n_asked, number);
                if (nd_output_array(request->folder_fd, path, NULL, &arrays[i],
                                    request->options->broadcast_max, used, note, &fault)) {
                        nd_report_fault(path, &fault);
                        request->has_failed = true;
                        continue;
                }
                fputs("\tfile=", stdout);
                nd_command_write_text(stdout, request->options->output);
                fputc('/', stdout);
                nd_command_write_text(stdout, used);
                if (note[0])
                        printf("\tnote=%s", note);
        }
}

/* Does the meta say that who answered failed? */
static bool request_is_error(const void *meta, size_t n_meta)
{
        msgpack_unpacked unpacked;
        size_t offset = 0;
        bool is_error;

        if (n_meta == 0)
                return false;
        msgpack_unpacked_init(&unpacked);
        is_error =
                msgpack_unpack_next(&unpacked, meta, n_meta, &offset) == MSGPACK_UNPACK_SUCCESS &&
                nd_map_find(&unpacked.data, "error");
        msgpack_unpacked_destroy(&unpacked);
        return is_error;
}

static void
request_write_answer(struct request *request, const struct ndbus_message *answer, uint64_t took_ns)
{
        const struct ndbus_array *arrays = NULL;
        size_t n_arrays = ndbus_message_arrays(answer, &arrays);
        const void *meta = NULL;
        size_t n_meta = ndbus_message_meta(answer, &meta);

        nd_command_write_text(stdout, request->topic);
        fputc('\t', stdout);
        nd_command_write_arrays(stdout, arrays, n_arrays);
        printf("\t%" PRIu64 "\t%.6f", ndbus_message_bytes(answer), (double)took_ns / 1e9);
        if (request->folder_fd >= 0)
                request_write_files(request, arrays, n_arrays);
        if (ndbus_message_check_meta(answer)) {
                printf("\tnote=%s", ndbus_strerror(NDBUS_EMETA));
                nd_report_bus(request->topic, NDBUS_EMETA);
                request->has_failed = true;
        }
        if (n_meta > 0) {
                fputs("\tmeta=", stdout);
                if (nd_meta_write_json(stdout, meta, n_meta, NULL))
                        fputs("null", stdout);
        }
        fputc('\n', stdout);
        fflush(stdout);
        if (request_is_error(meta, n_meta))
                request->has_failed = true;
}

static int request_ask(struct request *request, const struct nd_source_message *message)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_message *answer = NULL;
        uint64_t start_ns = nd_now_ns();
        int timeout_ms = nd_command_timeout(request->options->timeout_ms), r;

        ++request->n_asked;
        options.meta = request->n_meta ? request->meta : message->meta;
        options.n_meta = request->n_meta ? request->n_meta : message->n_meta;
        options.encoding = message->encoding;
        options.timeout_ms = timeout_ms;
        r = ndbus_request(request->bus, request->topic, message->arrays, message->n_arrays,
                          &options, timeout_ms, &answer);
        if (r) {
                request->has_failed = true;
                if (r != NDBUS_EINTERRUPTED)
                        nd_report_bus(request->topic, r);
                return r;
        }
        request_write_answer(request, answer, nd_now_ns() - start_ns);
        ndbus_message_free(answer);
        return 0;
}

static int request_take(void *userdata, const char *path, const struct nd_source_message *message)
{
        struct request *request = userdata;

        if (nd_signals_interrupted(NULL))
                return 1;
        if (message->note && request->n_asked == 0)
                nd_report("%s: %s", path, message->note);
        return request_ask(request, message) ? 1 : 0;
}

/* 1: nothing more is asked. */
static int request_file(struct request *request, const char *path)
{
        const struct nd_source_options options = {
                .dtype = request->options->dtype,
                .shape = request->options->shape,
                .message_max = ndbus_message_max(request->bus),
        };
        struct nd_fault fault;
        int r;

        r = nd_source_each(path, &options, request_take, request, &fault);
        if (r >= 0)
                return r;
        nd_report_fault(path, &fault);
        request->has_failed = true;
        return 0;
}

static int request_run(const void *values, char *const *arguments, size_t n_arguments)
{
        struct request request = {.options = values, .topic = arguments[0], .folder_fd = -1};
        const char *output = request.options->output;
        struct nd_fault fault;

        if (nd_meta_pack(&request.options->meta, &request.meta, &request.n_meta, &fault)) {
                nd_report_fault("", &fault);
                return ND_EXIT_USAGE;
        }
        if (output) {
                if (mkdir(output, 0777) == 0 || errno == EEXIST)
                        request.folder_fd = open(output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (request.folder_fd < 0) {
                        free(request.meta);
                        return nd_report_errno(output, errno);
                }
        }
        nd_signals_catch();
        request.bus = nd_command_open(request.options->url);
        request.has_failed = !request.bus;
        for (size_t i = 1; request.bus && i < n_arguments; ++i)
                if (request_file(&request, arguments[i]))
                        break;
        if (request.bus)
                ndbus_close(request.bus, 0, NULL);
        if (request.folder_fd >= 0)
                close(request.folder_fd);
        free(request.meta);
        return request.has_failed ? ND_EXIT_FAILED : ND_EXIT_OK;
}

const struct nd_command nd_command_request = {
        .name = "request",
        .arguments = "TOPIC FILE...",
        .summary = "Ask with arrays from files, and print or store the answers.",
        .details = "Each FILE is a question, as in pub, asked when the one before it is answered. "
                   "Prints a line an answer, cells divided by tabs: topic, dtypes, shapes, bytes, "
                   "seconds, and what else there is.",
        .n_arguments_min = 2,
        .n_arguments_max = UINT32_MAX,
        .checks = ND_ARGUMENTS_TOPIC,
        .options = request_options,
        .n_options = nd_array_size(request_options),
        .values_bytes = sizeof(struct nd_request_options),
        .prints = true,
        .run = request_run,
};
