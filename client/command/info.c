/* SPDX-License-Identifier: MIT */

/*
 * ndbus info: what a file of records holds
 *
 * From its index if it has one, else by reading the heads of all records, bodies excepted; --scan
 * does that in any case, for an index says only what its writer said. Needs no daemon.
 *
 * Lines of NAME TAB VALUE, then a line a topic: "topic", messages, bytes, topic.
 */

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include "client/command/command.h"
#include "client/command/report.h"
#include "client/command/source.h"

#define INFO_OPTIONS(XX, S)                                                                        \
        XX(S, scan, "scan", FLAG, 0, 0, 0, "", "Count the records, whatever an index says.")       \
        ND_COMMAND_MESSAGE_MAX_OPTION(XX, S)

ND_OPTION_DEFINE(info, INFO_OPTIONS);

static void info_write_time(const char *name, uint64_t time_ns)
{
        time_t seconds = (time_t)(time_ns / 1000000000);
        char text[32] = "";
        struct tm tm;

        if (time_ns == 0 || !gmtime_r(&seconds, &tm) ||
            strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm) == 0)
                printf("%s\t-\n", name);
        else
                printf("%s\t%s.%09" PRIu64 "Z\n", name, text, time_ns % 1000000000);
}

static void info_write(const char *path, const struct nd_index *index, bool is_from_index)
{
        fputs("file\t", stdout);
        nd_command_write_text(stdout, path);
        printf("\nmessages\t%" PRIu64 "\nbytes\t%" PRIu64 "\nbody_bytes\t%" PRIu64 "\n",
               index->n_records, index->bytes, index->body_bytes);
        info_write_time("first", index->time_first_ns);
        info_write_time("last", index->time_max_ns);
        printf("seconds\t%.6f\n", (double)(index->time_max_ns - index->time_first_ns) / 1e9);
        if (is_from_index)
                printf("lost\t%" PRIu64 "\nunknown_gaps\t%" PRIu64 "\n", index->n_dropped,
                       index->n_gaps);
        printf("index\t%s\n", is_from_index ? "yes" : "no");
        for (size_t i = 0; i < index->n_topics; ++i) {
                const struct nd_index_topic *t = &index->topics[i];

                printf("topic\t%" PRIu64 "\t%" PRIu64 "\t", t->n_records, t->body_bytes);
                nd_command_write_text(stdout, t->topic);
                fputc('\n', stdout);
        }
        if (index->n_elsewhere > 0)
                printf("other_topics\t%" PRIu64 "\n", index->n_elsewhere);
}

/* Counts what there is. What stands behind the last whole record is an error, after the counts. */
static int info_scan(struct nd_source *source, struct nd_index *index, struct nd_fault *fault)
{
        struct nd_source_message message;
        struct nd_progress progress;
        int r;

        nd_progress_start(&progress);
        while ((r = nd_source_next(source, &message, fault)) == 0) {
                const char *topic;
                struct nd_record record = {.record_bytes = message.n_bytes};

                if (!message.record) {
                        r = nd_fault_set(fault, NDBUS_ECORRUPT, "", "is no file of ndbus records");
                        break;
                }
                topic = ndbus_message_topic(message.record);
                record.prelude.body_bytes = ndbus_message_bytes(message.record);
                record.prelude.time_ns = ndbus_message_time_ns(message.record);
                if (nd_index_add(index, topic, strlen(topic), &record)) {
                        r = nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
                        break;
                }
                nd_progress_show(&progress, "%" PRIu64 " messages", index->n_records);
        }
        nd_progress_clear(&progress);
        return r;
}

static int info_file(const struct nd_info_options *options, const char *path)
{
        const struct nd_source_options source_options = {
                .message_max = options->message_max,
        };
        nd_cleanup(nd_source_freep) struct nd_source *source = NULL;
        struct nd_index index = {.n_records = 0};
        int r, status = ND_EXIT_OK;
        struct nd_fault fault;

        if (nd_source_open(&source, path, &source_options, &fault))
                return nd_report_fault(path, &fault);
        r = options->scan ? 1 : nd_source_index(source, &index, &fault);
        if (r == 0) {
                info_write(path, &index, true);
        } else {
                if (r < 0)
                        status = nd_report_fault(path, &fault);
                r = info_scan(source, &index, &fault);
                if (r == 1 || index.n_records > 0)
                        info_write(path, &index, false);
                if (r < 0)
                        status = nd_report_fault(path, &fault);
        }
        nd_index_deinit(&index);
        return status;
}

static int info_run(const void *values, char *const *arguments, size_t n_arguments)
{
        int status = ND_EXIT_OK;

        for (size_t i = 0; i < n_arguments; ++i)
                if (info_file(values, arguments[i]) != ND_EXIT_OK)
                        status = ND_EXIT_FAILED;
        return status;
}

const struct nd_command nd_command_info = {
        .name = "info",
        .arguments = "FILE...",
        .summary = "Say what files of ndbus records hold.",
        .details =
                "From the index at the end of a recording, if there is one; else all records are "
                "counted. - is stdin. Lines of name and value, then one a topic: messages, bytes "
                "and topic; cells divided by tabs.",
        .n_arguments_min = 1,
        .n_arguments_max = UINT32_MAX,
        .options = info_options,
        .n_options = nd_array_size(info_options),
        .values_bytes = sizeof(struct nd_info_options),
        .prints = true,
        .run = info_run,
};
