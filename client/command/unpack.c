/* SPDX-License-Identifier: MIT */

/*
 * ndbus unpack: the arrays of a file of records as .npy files
 *
 * An array's file bears the name of its frame, else the number of its record; a name that was
 * there before in the same run gets the number behind it, so that nothing that was just written is
 * overwritten. A file that ends in the middle of a record gives all that stands before, and then
 * the error.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/meta.h"
#include "client/command/output.h"
#include "client/command/report.h"
#include "client/command/source.h"

#define UNPACK_OPTIONS(XX, S)                                                                      \
        XX(S, output, "output", TEXT, 0, 0, 0, "DIR",                                              \
           "Folder for the .npy files; made if it is not there. Required; -o means the same.")     \
        XX(S, meta, "meta", FLAG, 0, 0, 0, "", "Print the metadata of each record as JSON.")       \
        ND_COMMAND_MESSAGE_MAX_OPTION(XX, S)                                                       \
        ND_COMMAND_BROADCAST_MAX_OPTION(XX, S)

ND_OPTION_DEFINE(unpack, UNPACK_OPTIONS);

struct unpack {
        const struct nd_unpack_options *options;
        int folder_fd;
        uint64_t n_records;
        void *names; /* tsearch() tree of the paths written in this run */
        struct nd_progress progress;
};

static int unpack_compare(const void *a, const void *b)
{
        return strcmp(a, b);
}

/* 0 it is new, and now remembered; 1 it was there; negative: out of memory. */
static int unpack_remember(struct unpack *unpack, const char *path)
{
        char *copy;

        if (tfind(path, &unpack->names, unpack_compare))
                return 1;
        copy = strdup(path);
        if (!copy || !tsearch(copy, &unpack->names, unpack_compare)) {
                free(copy);
                return NDBUS_ENOMEM;
        }
        return 0;
}

/* The frame's name, else the record's number; with numbers behind it until it is new. */
static int unpack_choose_path(struct unpack *unpack,
                              const struct ndbus_array *array,
                              size_t i_array,
                              char out[static ND_OUTPUT_PATH_BYTES])
{
        size_t n;
        int r;

        if (array->name && *array->name)
                nd_output_path(array->name, /* is_flat= */ true, out);
        else if (i_array == 0)
                snprintf(out, ND_OUTPUT_PATH_BYTES, "%" PRIu64, unpack->n_records);
        else
                snprintf(out, ND_OUTPUT_PATH_BYTES, "%" PRIu64 "-%zu", unpack->n_records, i_array);

        n = strlen(out);
        r = unpack_remember(unpack, out);
        if (r == 1) {
                snprintf(out + n, ND_OUTPUT_PATH_BYTES - n, "-%" PRIu64, unpack->n_records);
                r = unpack_remember(unpack, out);
        }
        for (size_t i = i_array; r == 1; ++i) {
                snprintf(out + n, ND_OUTPUT_PATH_BYTES - n, "-%" PRIu64 "-%zu", unpack->n_records,
                         i);
                r = unpack_remember(unpack, out);
        }
        return r;
}

static int unpack_array(struct unpack *unpack, const struct ndbus_array *array, size_t i_array)
{
        char path[ND_OUTPUT_PATH_BYTES], used[ND_OUTPUT_PATH_BYTES], note[160] = "";
        struct nd_fault fault;

        if (unpack_choose_path(unpack, array, i_array, path))
                return nd_report("out of memory");
        if (nd_output_array(unpack->folder_fd, path, NULL, array, unpack->options->broadcast_max,
                            used, note, &fault))
                return nd_report_fault(path, &fault);

        nd_progress_clear(&unpack->progress);
        nd_command_write_text(stdout, used);
        fputc('\t', stdout);
        nd_command_write_arrays(stdout, array, 1);
        if (note[0])
                printf("\tnote=%s", note);
        fputc('\n', stdout);
        return ND_EXIT_OK;
}

static int unpack_message(void *userdata, const char *path, const struct nd_source_message *message)
{
        struct unpack *unpack = userdata;
        struct nd_fault fault;
        int status = ND_EXIT_OK;

        ++unpack->n_records;
        for (size_t i = 0; status == ND_EXIT_OK && i < message->n_arrays; ++i)
                status = unpack_array(unpack, &message->arrays[i], i);
        if (status == ND_EXIT_OK && unpack->options->meta && message->n_meta > 0) {
                fputs("meta\t", stdout);
                if (nd_meta_write_json(stdout, message->meta, message->n_meta, &fault))
                        status = nd_report_fault(path, &fault);
                fputc('\n', stdout);
        }
        nd_progress_show(&unpack->progress, "%" PRIu64 " records", unpack->n_records);
        return status;
}

static int unpack_file(struct unpack *unpack, const char *path)
{
        const struct nd_source_options options = {
                .message_max = unpack->options->message_max,
                .progress = &unpack->progress,
        };
        struct nd_fault fault;
        int r;

        r = nd_source_each(path, &options, unpack_message, unpack, &fault);
        nd_progress_clear(&unpack->progress);
        return r < 0 ? nd_report_fault(path, &fault) : r;
}

static int unpack_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_unpack_options *options = values;
        struct unpack unpack = {.options = options};
        int status = ND_EXIT_OK;

        if (!options->output) {
                nd_report("--output: is missing; say where the arrays go, as in -o DIR");
                return ND_EXIT_USAGE;
        }
        if (mkdir(options->output, 0777) < 0 && errno != EEXIST)
                return nd_report_errno(options->output, errno);
        unpack.folder_fd = open(options->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (unpack.folder_fd < 0)
                return nd_report_errno(options->output, errno);

        nd_progress_start(&unpack.progress);
        for (size_t i = 0; status == ND_EXIT_OK && i < n_arguments; ++i)
                status = unpack_file(&unpack, arguments[i]);
        tdestroy(unpack.names, free);
        close(unpack.folder_fd);
        return status;
}

const struct nd_command nd_command_unpack = {
        .name = "unpack",
        .arguments = "FILE...",
        .summary = "Write the arrays of files of ndbus records as .npy files.",
        .details =
                "- is stdin. Prints a line an array: file, dtype, shape, and what .npy cannot say.",
        .n_arguments_min = 1,
        .n_arguments_max = UINT32_MAX,
        .options = unpack_options,
        .n_options = nd_array_size(unpack_options),
        .values_bytes = sizeof(struct nd_unpack_options),
        .prints = true,
        .run = unpack_run,
};
