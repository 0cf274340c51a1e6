/* SPDX-License-Identifier: MIT */

/*
 * ndbus stat: what the daemon counts
 *
 * The daemon answers with one msgpack map (PROTOCOL.md 8). --json prints all of it; the tables
 * print what an operator looks for first: who is connected, who is near a limit, who loses messages,
 * which topics there are. Keys that are not there are shown as "-", keys that are not known only by --json, so that
 * this command and a daemon of another version get along.
 */

#include "client/command/stat.h"
#include <inttypes.h>
#include <msgpack.h>
#include <string.h>
#include "client/command/command.h"
#include "client/command/meta.h"
#include "client/command/report.h"
#include "protocol/map.h"
#include "protocol/openmetrics.h"
#include "protocol/scan.h"

#define STAT_OPTIONS(XX, S)                                                                        \
        XX(S, all, "all", FLAG, 0, 0, 0, "", "Show every row of the tables, not only 50 of each.") \
        XX(S, json, "json", FLAG, 0, 0, 0, "", "Print everything as JSON on one line.")            \
        XX(S, blocks, "blocks", FLAG, 0, 0, 0, "",                                                 \
           "Show shared memory: whose it is, and who holds how much of it since when.")            \
        XX(S, openmetrics, "openmetrics", FLAG, 0, 0, 0, "",                                       \
           "Print the numbers as OpenMetrics text, as Prometheus reads it.")                       \
        XX(S, watch_ms, "watch", TIME, 0, 50, INT32_MAX, "S",                                      \
           "Show a table of the topics every S seconds, with rates, until interrupted.")           \
        XX(S, count, "count", COUNT, 0, 1, INT64_MAX, "N", "With --watch: stop after N tables.")   \
        XX(S, timeout_ms, "timeout", TIME, 5000, 0, INT32_MAX, "S",                                \
           "Seconds to wait for the answer. Default 5.")                                           \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(stat, STAT_OPTIONS);

#define STAT_COLUMNS_MAX 13
#define STAT_ROWS_MAX    50u /* of each table, without --all */

struct stat_column {
        const char *key;
        const char *title;
        enum nd_stat_format format;
};

static const struct stat_column stat_clients[] = {
        {"source", "SOURCE", ND_STAT_HEX},
        {"client", "CLIENT", ND_STAT_TEXT},
        {"pid", "PID", ND_STAT_NUMBER},
        {"transport", "VIA", ND_STAT_TEXT},
        {"published", "SENT", ND_STAT_NUMBER},
        {"published_bytes", "BYTES", ND_STAT_BYTES},
        {"delivered", "RECEIVED", ND_STAT_NUMBER},
        {"delivered_bytes", "BYTES", ND_STAT_BYTES},
        {"queued_bytes", "QUEUED", ND_STAT_BYTES},
};

/* What each has, and how much it may have. */
static const struct stat_column stat_identities[] = {
        {"identity", "IDENTITY", ND_STAT_TEXT},
        {"connections", "CONNECTIONS", ND_STAT_NUMBER},
        {"connections_max", "OF", ND_STAT_NUMBER},
        {"subscriptions", "SUBSCRIPTIONS", ND_STAT_NUMBER},
        {"subscriptions_max", "OF", ND_STAT_NUMBER},
        {"topics", "TOPICS", ND_STAT_NUMBER},
        {"topics_max", "OF", ND_STAT_NUMBER},
        {"queued_bytes", "QUEUED", ND_STAT_BYTES},
        {"queued_max_bytes", "OF", ND_STAT_BYTES},
        {"retained_bytes", "RETAINED", ND_STAT_BYTES},
        {"retained_max_bytes", "OF", ND_STAT_BYTES},
        {"held_bytes", "HELD", ND_STAT_BYTES},
        {"held_max_bytes", "OF", ND_STAT_BYTES},
};

static const struct stat_column stat_subscriptions[] = {
        {"source", "SOURCE", ND_STAT_HEX},          {"id", "ID", ND_STAT_NUMBER},
        {"pattern", "PATTERN", ND_STAT_TEXT},       {"policy", "POLICY", ND_STAT_TEXT},
        {"group", "GROUP", ND_STAT_TEXT},           {"matched", "MATCHED", ND_STAT_NUMBER},
        {"delivered", "DELIVERED", ND_STAT_NUMBER}, {"dropped", "DROPPED", ND_STAT_NUMBER},
        {"queued", "QUEUED", ND_STAT_NUMBER},       {"queued_bytes", "BYTES", ND_STAT_BYTES},
};

static const struct stat_column stat_topics[] = {
        {"topic", "TOPIC", ND_STAT_TEXT},         {"subscribers", "SUBSCRIBERS", ND_STAT_NUMBER},
        {"messages", "MESSAGES", ND_STAT_NUMBER}, {"bytes", "BYTES", ND_STAT_BYTES},
        {"retained", "RETAINED", ND_STAT_BOOL},
};

static const struct stat_column stat_segments[] = {
        {"source", "SOURCE", ND_STAT_HEX},    {"client", "CLIENT", ND_STAT_TEXT},
        {"pid", "PID", ND_STAT_NUMBER},       {"segment", "SEGMENT", ND_STAT_NUMBER},
        {"bytes", "BYTES", ND_STAT_BYTES},    {"blocks", "BLOCKS", ND_STAT_NUMBER},
        {"queued", "QUEUED", ND_STAT_NUMBER}, {"queued_bytes", "BYTES", ND_STAT_BYTES},
};

static const struct stat_column stat_holders[] = {
        {"source", "SOURCE", ND_STAT_HEX}, {"client", "CLIENT", ND_STAT_TEXT},
        {"pid", "PID", ND_STAT_NUMBER},    {"blocks", "BLOCKS", ND_STAT_NUMBER},
        {"bytes", "BYTES", ND_STAT_BYTES}, {"oldest_ns", "FOR", ND_STAT_TIME},
};

static void stat_format_bytes(uint64_t bytes, char *out, size_t n_out)
{
        static const char units[] = " KMGTPE";
        double value = (double)bytes;
        size_t i = 0;

        for (; value >= 1024 && i + 2 < sizeof(units); ++i)
                value /= 1024;
        if (i == 0)
                snprintf(out, n_out, "%" PRIu64, bytes);
        else
                snprintf(out, n_out, "%.*f%c", value < 10 ? 1 : 0, value, units[i]);
}

void nd_stat_format_cell(const msgpack_object *value, enum nd_stat_format format, char *out)
{
        bool is_number = value && value->type == MSGPACK_OBJECT_POSITIVE_INTEGER;

        snprintf(out, ND_STAT_CELL_BYTES, "-");
        if (is_number && format == ND_STAT_HEX)
                snprintf(out, ND_STAT_CELL_BYTES, "%016" PRIx64, value->via.u64);
        else if (is_number && format == ND_STAT_BYTES)
                stat_format_bytes(value->via.u64, out, ND_STAT_CELL_BYTES);
        else if (is_number && format == ND_STAT_TIME)
                snprintf(out, ND_STAT_CELL_BYTES, "%.1f s", (double)value->via.u64 / 1e9);
        else if (is_number)
                snprintf(out, ND_STAT_CELL_BYTES, "%" PRIu64, value->via.u64);
        else if (value && value->type == MSGPACK_OBJECT_BOOLEAN)
                snprintf(out, ND_STAT_CELL_BYTES, "%s", value->via.boolean ? "yes" : "no");
        else if (value && value->type == MSGPACK_OBJECT_STR && value->via.str.size > 0)
                snprintf(out, ND_STAT_CELL_BYTES, "%.*s", (int)nd_min_u64(value->via.str.size, 255),
                         value->via.str.ptr);
        for (char *c = out; *c; ++c)
                if ((unsigned char)*c < 0x20 || *c == 0x7f)
                        *c = '?';
}

/* Columns of characters, not bytes. */
int nd_stat_width(const char *text)
{
        int n = 0;

        for (; *text; ++text)
                n += (*text & 0xc0) != 0x80;
        return n;
}

void nd_stat_write_cell(const char *text, int width, bool is_left, bool is_last)
{
        int padding = width - nd_stat_width(text);

        if (is_left)
                printf("%s%*s", text, is_last ? 0 : padding, "");
        else
                printf("%*s%s", padding, "", text);
        fputs(is_last ? "\n" : "  ", stdout);
}

/* A table of a list of maps. */
static void stat_write_table(const char *title,
                             const msgpack_object *list,
                             bool is_all,
                             const struct stat_column *columns,
                             size_t n_columns)
{
        uint32_t n_rows = list && list->type == MSGPACK_OBJECT_ARRAY ? list->via.array.size : 0;
        int widths[STAT_COLUMNS_MAX];
        char cell[ND_STAT_CELL_BYTES];

        printf("\n%s: %" PRIu32, title, n_rows);
        if (!is_all && n_rows > STAT_ROWS_MAX) {
                n_rows = STAT_ROWS_MAX;
                printf(", of which these are %" PRIu32 "; --all shows all", n_rows);
        }
        fputc('\n', stdout);
        if (n_rows == 0)
                return;
        for (size_t k = 0; k < n_columns; ++k) {
                widths[k] = nd_stat_width(columns[k].title);
                for (uint32_t i = 0; i < n_rows; ++i) {
                        nd_stat_format_cell(nd_map_find(&list->via.array.ptr[i], columns[k].key),
                                            columns[k].format, cell);
                        if (nd_stat_width(cell) > widths[k])
                                widths[k] = nd_stat_width(cell);
                }
        }
        for (uint32_t i = 0; i <= n_rows; ++i)
                for (size_t k = 0; k < n_columns; ++k) {
                        bool is_left = columns[k].format == ND_STAT_TEXT ||
                                       columns[k].format == ND_STAT_HEX;

                        if (i == 0)
                                snprintf(cell, sizeof(cell), "%s", columns[k].title);
                        else
                                nd_stat_format_cell(
                                        nd_map_find(&list->via.array.ptr[i - 1], columns[k].key),
                                        columns[k].format, cell);
                        nd_stat_write_cell(cell, widths[k], is_left, k + 1 == n_columns);
                }
}

static void stat_write_server(const msgpack_object *root)
{
        const msgpack_object *server = nd_map_find(root, "server");
        const msgpack_object *memory = nd_map_find(root, "memory");
        uint64_t uptime_ns = 0, used = 0, max = 0;
        char version[ND_STAT_CELL_BYTES], pid[ND_STAT_CELL_BYTES], used_text[32], max_text[32];

        nd_stat_format_cell(nd_map_find(server, "version"), ND_STAT_TEXT, version);
        nd_stat_format_cell(nd_map_find(server, "pid"), ND_STAT_NUMBER, pid);
        nd_map_number(server, "uptime_ns", &uptime_ns);
        nd_map_number(memory, "used", &used);
        nd_map_number(memory, "max", &max);
        stat_format_bytes(used, used_text, sizeof(used_text));
        stat_format_bytes(max, max_text, sizeof(max_text));
        printf("server %s  pid %s  up %" PRIu64 " s  memory %s of %s\n", version, pid,
               uptime_ns / UINT64_C(1000000000), used_text, max_text);
}

/* Those that are not zero, in lines. */
static void stat_write_counters(const msgpack_object *counters)
{
        if (!counters || counters->type != MSGPACK_OBJECT_MAP)
                return;
        fputs("\ncounters that are not 0:\n", stdout);
        for (uint32_t i = 0; i < counters->via.map.size; ++i) {
                const msgpack_object_kv *kv = &counters->via.map.ptr[i];
                char name[ND_STAT_CELL_BYTES];

                if (kv->val.type != MSGPACK_OBJECT_POSITIVE_INTEGER || kv->val.via.u64 == 0)
                        continue;
                nd_stat_format_cell(&kv->key, ND_STAT_TEXT, name);
                printf("  %-32s %" PRIu64 "\n", name, kv->val.via.u64);
        }
}

static void stat_write_blocks(const msgpack_object *root, bool is_all)
{
        stat_write_table("segments", nd_map_find(root, "segments"), is_all, stat_segments,
                         nd_array_size(stat_segments));
        stat_write_table("holders", nd_map_find(root, "holders"), is_all, stat_holders,
                         nd_array_size(stat_holders));
}

static void stat_write_overview(const msgpack_object *root, bool is_all)
{
        stat_write_table("clients", nd_map_find(root, "clients"), is_all, stat_clients,
                         nd_array_size(stat_clients));
        stat_write_table("identities", nd_map_find(root, "identities"), is_all, stat_identities,
                         nd_array_size(stat_identities));
        stat_write_table("subscriptions", nd_map_find(root, "subscriptions"), is_all,
                         stat_subscriptions, nd_array_size(stat_subscriptions));
        stat_write_table("topics", nd_map_find(root, "topics"), is_all, stat_topics,
                         nd_array_size(stat_topics));
        stat_write_counters(nd_map_find(root, "counters"));
}

static int stat_write(const void *data, size_t n_data, bool is_blocks, bool is_all)
{
        msgpack_unpacked unpacked;
        struct nd_fault fault;
        size_t offset = 0;

        if (nd_scan(data, n_data, ND_SCAN_META, "answer", &fault))
                return nd_report_fault("", &fault);
        msgpack_unpacked_init(&unpacked);
        if (msgpack_unpack_next(&unpacked, data, n_data, &offset) != MSGPACK_UNPACK_SUCCESS) {
                msgpack_unpacked_destroy(&unpacked);
                return nd_report("the daemon's answer cannot be read");
        }
        stat_write_server(&unpacked.data);
        if (is_blocks)
                stat_write_blocks(&unpacked.data, is_all);
        else
                stat_write_overview(&unpacked.data, is_all);
        msgpack_unpacked_destroy(&unpacked);
        return ND_EXIT_OK;
}

static int stat_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_stat_options *options = values;
        nd_autofree void *data = NULL;
        struct nd_fault fault;
        struct ndbus *bus;
        size_t n_data = 0;
        int r, status = ND_EXIT_OK;

        (void)arguments;
        (void)n_arguments;
        if (options->watch_ms > 0)
                nd_signals_catch();
        bus = nd_command_open(options->url);
        if (!bus)
                return ND_EXIT_FAILED;
        if (options->watch_ms > 0) {
                status = nd_stat_watch(bus, nd_command_timeout(options->watch_ms), options->count,
                                       nd_command_timeout(options->timeout_ms));
                ndbus_close(bus, 0, NULL);
                return status;
        }
        r = ndbus_stats(bus, &data, &n_data, nd_command_timeout(options->timeout_ms));
        if (r)
                status = nd_report_bus("", r);
        ndbus_close(bus, 0, NULL);
        if (r)
                return status;
        if (options->openmetrics)
                return nd_openmetrics_write(stdout, data, n_data, &fault)
                               ? nd_report_fault("", &fault)
                               : ND_EXIT_OK;
        if (!options->json)
                return stat_write(data, n_data, options->blocks, options->all);
        if (nd_meta_write_json(stdout, data, n_data, &fault))
                return nd_report_fault("", &fault);
        fputc('\n', stdout);
        return ND_EXIT_OK;
}

const struct nd_command nd_command_stat = {
        .name = "stat",
        .arguments = "",
        .summary = "Show the daemon's clients, identities, subscriptions, topics and counters.",
        .options = stat_options,
        .n_options = nd_array_size(stat_options),
        .values_bytes = sizeof(struct nd_stat_options),
        .prints = true,
        .run = stat_run,
};
