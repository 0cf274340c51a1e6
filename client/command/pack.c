/* SPDX-License-Identifier: MIT */

/*
 * ndbus pack: arrays into one file of records
 *
 * Each message of each file becomes one record, in order; its frame bears the file's name, from
 * which `ndbus unpack` makes the name again. Needs no daemon.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/file.h"
#include "client/command/meta.h"
#include "client/command/output.h"
#include "client/command/report.h"
#include "client/command/source.h"
#include "client/command/stream.h"
#include "protocol/limit.h"

#define PACK_OPTIONS(XX, S)                                                                        \
        XX(S, output, "output", TEXT, 0, 0, 0, "FILE",                                             \
           "Where to write the records; - is stdout. Required; -o means the same.")                \
        XX(S, meta, "meta", LIST, 0, 0, 0, "KEY=VALUE",                                            \
           "Metadata of every record; may be given several times.")                                \
        XX(S, dtype, "dtype", DTYPE, 0, 0, 0, "DTYPE",                                             \
           "Element type of raw files: float32, >uint16, datetime64[ns] ... Of .npy files with "   \
           "opaque elements: what they are (bfloat16).")                                           \
        XX(S, shape, "shape", SHAPE, 0, 0, 0, "N,N",                                               \
           "Shape of raw files. Default: one dimension, all there is.")                            \
        ND_COMMAND_MESSAGE_MAX_OPTION(XX, S)

ND_OPTION_DEFINE(pack, PACK_OPTIONS);

struct pack {
        const struct nd_pack_options *options;
        int fd;
        void *meta;
        size_t n_meta;
        uint64_t n_records;
        uint64_t n_bytes;
        struct nd_progress progress;
};

/* Arrays from files have no name yet. */
static int pack_message(void *userdata, const char *path, const struct nd_source_message *message)
{
        struct pack *pack = userdata;
        struct ndbus_array named = {.data = NULL};
        const struct ndbus_array *arrays = message->arrays;
        char stem[ND_NAME_BYTES_MAX + 1];
        nd_autofree void *bytes = NULL;
        size_t n_bytes = 0;
        int r;

        if (message->n_arrays == 1 && !arrays[0].name) {
                nd_source_stem(path, stem, sizeof(stem));
                named = arrays[0];
                named.name = stem[0] ? stem : NULL;
                arrays = &named;
        }
        if (message->note)
                nd_report("%s: %s", path, message->note);
        r = ndbus_pack(arrays, message->n_arrays, pack->n_meta ? pack->meta : message->meta,
                       pack->n_meta ? pack->n_meta : message->n_meta, &bytes, &n_bytes);
        if (r)
                return nd_report_bus(path, r);
        ++pack->n_records;
        pack->n_bytes += n_bytes;
        nd_progress_show(&pack->progress, "%" PRIu64 " records, %" PRIu64 " MB", pack->n_records,
                         pack->n_bytes / 1000000);
        r = nd_file_write(pack->fd, bytes, n_bytes);
        return r ? nd_report_errno(pack->options->output, r) : ND_EXIT_OK;
}

static int pack_file(struct pack *pack, const char *path)
{
        const struct nd_source_options options = {
                .dtype = pack->options->dtype,
                .shape = pack->options->shape,
                .message_max = pack->options->message_max,
                .progress = &pack->progress,
        };
        struct nd_fault fault;
        int r;

        r = nd_source_each(path, &options, pack_message, pack, &fault);
        return r < 0 ? nd_report_fault(path, &fault) : r;
}

/* A file under way, or what is there already and takes bytes: stdout, a pipe, a device. In the place
 * of these no file is put. */
static int pack_open(const char *path, struct nd_output *output, bool *ret_is_file)
{
        struct nd_fault fault;
        struct stat st;

        *ret_is_file = false;
        if (strcmp(path, "-") == 0) {
                return nd_stream_duplicate(STDOUT_FILENO, &output->fd, &fault)
                               ? nd_report_fault("--output", &fault)
                               : ND_EXIT_OK;
        } else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
                output->fd = open(path, O_WRONLY | O_CLOEXEC);
        } else {
                *ret_is_file = true;
                return nd_output_begin(AT_FDCWD, path, output, &fault) ? nd_report_fault("", &fault)
                                                                       : ND_EXIT_OK;
        }
        return output->fd < 0 ? nd_report_errno(path, errno) : ND_EXIT_OK;
}

static int pack_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_pack_options *options = values;
        struct nd_output output = {.fd = -1, .folder_fd = -1};
        struct pack pack = {.options = options};
        struct nd_fault fault;
        bool is_file;
        int status;

        if (!options->output) {
                nd_report("--output: is missing; say where the records go, as in -o FILE.ndb");
                return ND_EXIT_USAGE;
        }
        if (nd_meta_pack(&options->meta, &pack.meta, &pack.n_meta, &fault)) {
                nd_report_fault("", &fault);
                return ND_EXIT_USAGE;
        }
        status = pack_open(options->output, &output, &is_file);
        pack.fd = output.fd;
        nd_progress_start(&pack.progress);
        for (size_t i = 0; status == ND_EXIT_OK && i < n_arguments; ++i)
                status = pack_file(&pack, arguments[i]);
        nd_progress_clear(&pack.progress);
        if (status == ND_EXIT_OK && is_file &&
            nd_output_commit(&output, /* replace= */ true, &fault))
                status = nd_report_fault("", &fault);
        nd_output_abandon(&output);
        free(pack.meta);
        return status;
}

const struct nd_command nd_command_pack = {
        .name = "pack",
        .arguments = "FILE...",
        .summary = "Write arrays as a file of ndbus records, without any daemon.",
        .details = "Each FILE is .npy, a file of ndbus records, or raw bytes with --dtype and "
                   "--shape; - is stdin. Each becomes one record, in order.",
        .n_arguments_min = 1,
        .n_arguments_max = UINT32_MAX,
        .options = pack_options,
        .n_options = nd_array_size(pack_options),
        .values_bytes = sizeof(struct nd_pack_options),
        .run = pack_run,
};
