/* SPDX-License-Identifier: MIT */

/*
 * OpenMetrics
 *
 * Daemon and command print the same text, because both make it here, from the map that answers
 * STATS. What there is stands in one table: each row is a metric, and says in which part of the map
 * and under which key its value is. A part that is a map has one value of it; a part that is a list
 * has one for each of its rows, told apart by labels; a value that is a map has one for each of its
 * keys, or is a histogram. Keys that are missing are left out, so that
 * the command and a daemon of another version get along.
 *
 * A name that ends in a unit says so to the reader too. Values of _seconds are nanoseconds in the
 * map.
 *
 * Left out are segments of shared memory one by one: those whose publisher is gone have no name of
 * their own, and two samples with the same labels would be refused.
 *
 * A separate library, so that libndbus, which has all of the protocol's, does not get it.
 */

#include "protocol/openmetrics.h"
#include <inttypes.h>
#include <msgpack.h>
#include <string.h>
#include "protocol/counter.h"
#include "protocol/histogram.h"
#include "protocol/map.h"
#include "protocol/scan.h"
#include "protocol/utf8.h"

enum om_type {
        OM_COUNTER,
        OM_GAUGE,
        OM_HISTOGRAM,
};

static const struct om_metric {
        const char *name; /* between "ndbus_" and "_total" */
        const char *part; /* key in the map */
        const char *key;  /* in the part, or in each of its rows; NULL: how many rows there are */
        enum om_type type;
        const char *help;
} om_metrics[] = {
        {"uptime_seconds", "server", "uptime_ns", OM_GAUGE, "since the daemon was started"},
        {"memory_used_bytes", "memory", "used", OM_GAUGE, "kept for clients"},
        {"memory_used_peak_bytes", "memory", "used_high", OM_GAUGE, "most ever kept for clients"},
        {"memory_max_bytes", "memory", "max", OM_GAUGE, "most that may be: --memory-max"},
        {"memory_retained_bytes", "memory", "retained", OM_GAUGE, "of it in retained values"},
        {"memory_messages", "memory", "messages", OM_GAUGE, "messages that are kept"},
        {"memory_shm_bytes", "memory", "shm", OM_GAUGE,
         "shared memory of all clients, and of the daemon itself"},
        {"memory_shm_max_bytes", "memory", "shm_max", OM_GAUGE,
         "shared memory that one client may have: --shm-max"},

#define OM_ROW(_name, _text) {#_name, "counters", #_name, OM_COUNTER, _text},
        ND_COUNTERS(OM_ROW)
#undef OM_ROW

#define OM_ROW(_name, _bounds, _text) {#_name, "histograms", #_name, OM_HISTOGRAM, _text},
                ND_HISTOGRAMS(OM_ROW)
#undef OM_ROW

                        {"clients", "clients", NULL, OM_GAUGE, "connections"},
        {"subscriptions", "subscriptions", NULL, OM_GAUGE, "subscriptions"},
        {"groups", "groups", NULL, OM_GAUGE, "groups"},
        {"topics", "topics", NULL, OM_GAUGE, "topics"},
        {"segments", "segments", NULL, OM_GAUGE, "segments of shared memory"},
        {"holders", "holders", NULL, OM_GAUGE, "clients that hold blocks of shared memory"},

        {"identity_connections", "identities", "connections", OM_GAUGE, "connections"},
        {"identity_connections_max", "identities", "connections_max", OM_GAUGE,
         "most that may be: --limit"},
        {"identity_subscriptions", "identities", "subscriptions", OM_GAUGE, "subscriptions"},
        {"identity_subscriptions_max", "identities", "subscriptions_max", OM_GAUGE,
         "most that may be: --limit"},
        {"identity_topics", "identities", "topics", OM_GAUGE, "topics published on or watched"},
        {"identity_topics_max", "identities", "topics_max", OM_GAUGE, "most that may be: --limit"},
        {"identity_queued_bytes", "identities", "queued_bytes", OM_GAUGE,
         "kept for its subscriptions' queues"},
        {"identity_queued_max_bytes", "identities", "queued_max_bytes", OM_GAUGE,
         "most that may be: --limit"},
        {"identity_retained_bytes", "identities", "retained_bytes", OM_GAUGE,
         "kept for retained values that it published"},
        {"identity_retained_max_bytes", "identities", "retained_max_bytes", OM_GAUGE,
         "most that may be: --limit"},
        {"identity_held_bytes", "identities", "held_bytes", OM_GAUGE,
         "shared memory that its clients hold"},
        {"identity_held_max_bytes", "identities", "held_max_bytes", OM_GAUGE,
         "most that may be: --limit"},

        {"client_published_messages", "clients", "published", OM_COUNTER, "messages published"},
        {"client_published_bytes", "clients", "published_bytes", OM_COUNTER,
         "body bytes of messages published"},
        {"client_delivered_messages", "clients", "delivered", OM_COUNTER, "messages sent to it"},
        {"client_delivered_bytes", "clients", "delivered_bytes", OM_COUNTER,
         "body bytes sent to it"},
        {"client_queued_bytes", "clients", "queued_bytes", OM_GAUGE,
         "body bytes that wait for it, groups not counted"},
        {"client_window_bytes", "clients", "window", OM_GAUGE, "its publishing window"},

        {"subscription_matched_messages", "subscriptions", "matched", OM_COUNTER,
         "messages that were for it"},
        {"subscription_delivered_messages", "subscriptions", "delivered", OM_COUNTER,
         "messages sent"},
        {"subscription_dropped_messages", "subscriptions", "dropped_by", OM_COUNTER,
         "messages dropped"},
        {"subscription_queued_messages", "subscriptions", "queued", OM_GAUGE, "messages that wait"},
        {"subscription_queued_bytes", "subscriptions", "queued_bytes", OM_GAUGE,
         "body bytes that wait"},
        {"subscription_unfinished_messages", "subscriptions", "unfinished", OM_GAUGE,
         "messages of a group that this member has and has not finished"},

        {"group_matched_messages", "groups", "matched", OM_COUNTER, "messages that were for it"},
        {"group_delivered_messages", "groups", "delivered", OM_COUNTER,
         "messages sent to members, finished or not"},
        {"group_dropped_messages", "groups", "dropped_by", OM_COUNTER, "messages dropped"},
        {"group_queued_messages", "groups", "queued", OM_GAUGE, "messages that wait"},
        {"group_queued_bytes", "groups", "queued_bytes", OM_GAUGE, "body bytes that wait"},
        {"group_members", "groups", "members", OM_GAUGE, "subscriptions that share it"},
        {"group_unfinished_messages", "groups", "unfinished", OM_GAUGE,
         "messages that members have and have not finished"},

        {"topic_messages", "topics", "messages", OM_COUNTER, "messages published"},
        {"topic_bytes", "topics", "bytes", OM_COUNTER, "body bytes published"},
        {"topic_subscribers", "topics", "subscribers", OM_GAUGE, "subscriptions that match"},

        {"holder_blocks", "holders", "blocks", OM_GAUGE, "blocks of shared memory that it holds"},
        {"holder_bytes", "holders", "bytes", OM_GAUGE, "bytes of them"},
        {"holder_oldest_seconds", "holders", "oldest_ns", OM_GAUGE,
         "since when it holds the oldest"},
};

/* What tells the rows of a part apart: the label, and its key. */
static const struct om_label {
        const char *part;
        const char *label;
        const char *key;
} om_labels[] = {
        {"identities", "identity", "identity"},
        {"clients", "source", "source"},
        {"clients", "client", "client"},
        {"clients", "transport", "transport"},
        {"subscriptions", "source", "source"},
        {"subscriptions", "subscription", "id"},
        {"subscriptions", "pattern", "pattern"},
        {"subscriptions", "group", "group"},
        {"subscriptions", "policy", "policy"},
        {"groups", "pattern", "pattern"},
        {"groups", "group", "group"},
        {"groups", "policy", "policy"},
        {"topics", "topic", "topic"},
        {"holders", "source", "source"},
        {"holders", "client", "client"},
};

static bool om_ends_in(const char *name, const char *end)
{
        size_t n_name = strlen(name), n_end = strlen(end);

        return n_name >= n_end && strcmp(name + n_name - n_end, end) == 0;
}

/* Bytes of the character at @text, 0 if it is none or one that moves a terminal's cursor. */
static size_t om_character(const char *text, size_t n_text)
{
        uint8_t first = (uint8_t)text[0];
        size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

        if (n > n_text || !nd_utf8_is_valid(text, n))
                return 0;
        if (first < 0x20 || first == 0x7f || (first == 0xc2 && (uint8_t)text[1] < 0xa0))
                return 0;
        return n;
}

/* Names come from peers: what is no text is shown as U+FFFD. */
static void om_write_text(FILE *out, const char *text, size_t n_text)
{
        for (size_t i = 0; i < n_text;) {
                size_t n = om_character(text + i, n_text - i);

                if (text[i] == '\n')
                        fputs("\\n", out);
                else if (n == 0)
                        fputs("\xef\xbf\xbd", out);
                else if (text[i] == '"' || text[i] == '\\')
                        fprintf(out, "\\%c", text[i]);
                else
                        fwrite(text + i, 1, n, out);
                i += n > 0 ? n : 1;
        }
}

static void om_write_label(FILE *out, const char *name, const msgpack_object *value, bool *is_first)
{
        fprintf(out, "%s%s=\"", *is_first ? "{" : ",", name);
        if (value && value->type == MSGPACK_OBJECT_STR)
                om_write_text(out, value->via.str.ptr, value->via.str.size);
        else if (value && value->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
                fprintf(out, strcmp(name, "source") == 0 ? "%016" PRIx64 : "%" PRIu64,
                        value->via.u64);
        fputc('"', out);
        *is_first = false;
}

static void om_write_number(FILE *out, const struct om_metric *metric, uint64_t value)
{
        if (om_ends_in(metric->name, "_seconds"))
                fprintf(out, " %" PRIu64 ".%09" PRIu64 "\n", value / 1000000000,
                        value % 1000000000);
        else
                fprintf(out, " %" PRIu64 "\n", value);
}

/* @reason: key of the map in which the value was found; NULL: it was in none */
static void om_write_sample(FILE *out,
                            const struct om_metric *metric,
                            const msgpack_object *row,
                            const msgpack_object *reason,
                            uint64_t value)
{
        bool is_first = true;

        fprintf(out, "ndbus_%s%s", metric->name, metric->type == OM_COUNTER ? "_total" : "");
        for (size_t i = 0; i < nd_array_size(om_labels) && metric->key; ++i)
                if (strcmp(om_labels[i].part, metric->part) == 0)
                        om_write_label(out, om_labels[i].label, nd_map_find(row, om_labels[i].key),
                                       &is_first);
        if (reason)
                om_write_label(out, "reason", reason, &is_first);
        fputs(is_first ? "" : "}", out);
        om_write_number(out, metric, value);
}

/* Each bucket of the text includes those below; the map has each alone. */
static void
om_write_histogram(FILE *out, const struct om_metric *metric, const msgpack_object *value)
{
        const msgpack_object *sum = nd_map_find(value, "sum");
        const msgpack_object *buckets = nd_map_find(value, "buckets");
        uint64_t n = 0;

        if (!sum || sum->type != MSGPACK_OBJECT_POSITIVE_INTEGER || !buckets ||
            buckets->type != MSGPACK_OBJECT_MAP)
                return;
        for (uint32_t i = 0; i < buckets->via.map.size; ++i) {
                const msgpack_object_kv *kv = &buckets->via.map.ptr[i];
                bool is_first = true;

                if (kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
                        n += kv->val.via.u64;
                fprintf(out, "ndbus_%s_bucket", metric->name);
                om_write_label(out, "le", &kv->key, &is_first);
                fprintf(out, "} %" PRIu64 "\n", n);
        }
        fprintf(out, "ndbus_%s_count %" PRIu64 "\nndbus_%s_sum", metric->name, n, metric->name);
        om_write_number(out, metric, sum->via.u64);
}

/* @row: of a list; or the part itself, which has no labels */
static void om_write_value(FILE *out, const struct om_metric *metric, const msgpack_object *row)
{
        const msgpack_object *value = metric->key ? nd_map_find(row, metric->key) : NULL;

        if (value && value->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
                om_write_sample(out, metric, row, NULL, value->via.u64);
        if (!value || value->type != MSGPACK_OBJECT_MAP)
                return;
        if (metric->type == OM_HISTOGRAM) {
                om_write_histogram(out, metric, value);
                return;
        }
        for (uint32_t i = 0; i < value->via.map.size; ++i) {
                const msgpack_object_kv *kv = &value->via.map.ptr[i];

                if (kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
                        om_write_sample(out, metric, row, &kv->key, kv->val.via.u64);
        }
}

static void om_write_metric(FILE *out, const struct om_metric *metric, const msgpack_object *root)
{
        static const char *const types[] = {
                [OM_COUNTER] = "counter", [OM_GAUGE] = "gauge", [OM_HISTOGRAM] = "histogram"};
        const msgpack_object *part = nd_map_find(root, metric->part);
        const char *unit = om_ends_in(metric->name, "_bytes")     ? "bytes"
                           : om_ends_in(metric->name, "_seconds") ? "seconds"
                                                                  : NULL;

        fprintf(out, "# TYPE ndbus_%s %s\n", metric->name, types[metric->type]);
        if (unit)
                fprintf(out, "# UNIT ndbus_%s %s\n", metric->name, unit);
        fprintf(out, "# HELP ndbus_%s ", metric->name);
        om_write_text(out, metric->help, strlen(metric->help));
        fputc('\n', out);

        if (!part || part->type != MSGPACK_OBJECT_ARRAY) {
                om_write_value(out, metric, part);
        } else if (!metric->key) {
                om_write_sample(out, metric, part, NULL, part->via.array.size);
        } else {
                for (uint32_t i = 0; i < part->via.array.size; ++i)
                        om_write_value(out, metric, &part->via.array.ptr[i]);
        }
}

int nd_openmetrics_write(FILE *out, const void *stats, size_t n_stats, struct nd_fault *fault)
{
        msgpack_unpacked unpacked;
        const msgpack_object *version;
        bool is_first = true;
        size_t offset = 0;
        int r = nd_scan(stats, n_stats, ND_SCAN_META, "stats", fault);

        if (r < 0)
                return r;
        msgpack_unpacked_init(&unpacked);
        if (msgpack_unpack_next(&unpacked, stats, n_stats, &offset) != MSGPACK_UNPACK_SUCCESS) {
                msgpack_unpacked_destroy(&unpacked);
                return nd_fault_set(fault, NDBUS_ENOMEM, "stats", "no memory");
        }
        version = nd_map_find(nd_map_find(&unpacked.data, "server"), "version");
        fputs("# TYPE ndbus_build info\n# HELP ndbus_build the daemon's version\nndbus_build_info",
              out);
        om_write_label(out, "version", version, &is_first);
        fputs("} 1\n", out);
        for (size_t i = 0; i < nd_array_size(om_metrics); ++i)
                om_write_metric(out, &om_metrics[i], &unpacked.data);
        fputs("# EOF\n", out);
        msgpack_unpacked_destroy(&unpacked);
        return 0;
}
