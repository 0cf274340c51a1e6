/* SPDX-License-Identifier: MIT */

/*
 * ndbus stat --watch: the topics as a live table
 *
 * Rates are differences of two answers, over the time that passed on the daemon's clock, so a late
 * table is still true. The first table has none. What is queued and was dropped is counted by the
 * daemon for each subscription and group, not for each topic: shown is the sum over those whose
 * pattern matches, "**" adds to every row.
 */

#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/report.h"
#include "client/command/stat.h"
#include "protocol/map.h"
#include "protocol/scan.h"
#include "protocol/topic.h"

enum watch_column {
        WATCH_TOPIC,
        WATCH_DTYPE,
        WATCH_SHAPE,
        WATCH_HZ,
        WATCH_MB,
        WATCH_SUBSCRIBERS,
        WATCH_QUEUED,
        WATCH_DROPS,
        _WATCH_N,
};

static const char *const watch_titles[_WATCH_N] = {
        "TOPIC", "DTYPE", "SHAPE", "HZ", "MB/S", "SUBSCRIBERS", "QUEUED", "DROPS",
};

struct watch_row {
        char cells[_WATCH_N][ND_STAT_CELL_BYTES];
};

struct watch {
        msgpack_unpacked now;
        msgpack_unpacked before; /* data is nil at first */
        void *now_bytes;         /* which the texts in it point into */
        void *before_bytes;
        uint32_t i_before; /* where the last topic was found in it */
};

static bool watch_same(const msgpack_object *a, const msgpack_object *b)
{
        return a && b && a->type == MSGPACK_OBJECT_STR && b->type == MSGPACK_OBJECT_STR &&
               a->via.str.size == b->via.str.size &&
               memcmp(a->via.str.ptr, b->via.str.ptr, a->via.str.size) == 0;
}

static const msgpack_object *watch_list(const msgpack_object *root, const char *key)
{
        const msgpack_object *list = nd_map_find(root, key);

        return list && list->type == MSGPACK_OBJECT_ARRAY ? list : NULL;
}

/* The same topic in the answer before, or NULL. Both are in the same order. */
static const msgpack_object *watch_before(struct watch *watch, const msgpack_object *name)
{
        const msgpack_object *list = watch_list(&watch->before.data, "topics");
        uint32_t n = list ? list->via.array.size : 0;

        for (uint32_t k = 0; k < n; ++k) {
                uint32_t i = (watch->i_before + k) % n;

                if (watch_same(nd_map_find(&list->via.array.ptr[i], "topic"), name)) {
                        watch->i_before = i + 1;
                        return &list->via.array.ptr[i];
                }
        }
        return NULL;
}

/* Adds up a number of the subscriptions, or groups, that match. */
static void watch_add(const msgpack_object *list,
                      const msgpack_object *topic,
                      uint64_t *queued,
                      uint64_t *dropped)
{
        for (uint32_t i = 0; list && i < list->via.array.size; ++i) {
                const msgpack_object *sub = &list->via.array.ptr[i];
                const msgpack_object *pattern = nd_map_find(sub, "pattern");
                uint64_t n = 0;

                if (!pattern || pattern->type != MSGPACK_OBJECT_STR ||
                    nd_pattern_check(pattern->via.str.ptr, pattern->via.str.size, NULL) ||
                    !nd_pattern_match(pattern->via.str.ptr, pattern->via.str.size,
                                      topic->via.str.ptr, topic->via.str.size))
                        continue;
                if (nd_map_number(sub, "queued", &n))
                        *queued += n;
                if (nd_map_number(sub, "dropped", &n))
                        *dropped += n;
        }
}

static void watch_rate(char *cell,
                       const msgpack_object *now,
                       const msgpack_object *before,
                       const char *key,
                       double per)
{
        uint64_t n = 0, n_before = 0;

        if (per <= 0 || !nd_map_number(now, key, &n))
                return;
        if (before)
                nd_map_number(before, key, &n_before);
        if (n >= n_before)
                snprintf(cell, ND_STAT_CELL_BYTES, "%.1f", (double)(n - n_before) / per);
}

static void watch_fill(struct watch *watch, const msgpack_object *topic, struct watch_row *row)
{
        const msgpack_object *name = nd_map_find(topic, "topic"), *before;
        uint64_t queued = 0, dropped = 0, now_ns = 0, before_ns = 0;
        double seconds = 0;

        nd_stat_format_cell(name, ND_STAT_TEXT, row->cells[WATCH_TOPIC]);
        nd_stat_format_cell(nd_map_find(topic, "dtype"), ND_STAT_TEXT, row->cells[WATCH_DTYPE]);
        nd_stat_format_cell(nd_map_find(topic, "shape"), ND_STAT_TEXT, row->cells[WATCH_SHAPE]);
        nd_stat_format_cell(nd_map_find(topic, "subscribers"), ND_STAT_NUMBER,
                            row->cells[WATCH_SUBSCRIBERS]);
        for (enum watch_column k = WATCH_HZ; k <= WATCH_DROPS; ++k)
                if (k != WATCH_SUBSCRIBERS)
                        strcpy(row->cells[k], "-");
        if (!name || name->type != MSGPACK_OBJECT_STR ||
            nd_topic_check(name->via.str.ptr, name->via.str.size, NULL))
                return;
        if (nd_map_number(nd_map_find(&watch->now.data, "server"), "uptime_ns", &now_ns) &&
            nd_map_number(nd_map_find(&watch->before.data, "server"), "uptime_ns", &before_ns) &&
            now_ns > before_ns)
                seconds = (double)(now_ns - before_ns) / 1e9;
        before = watch_before(watch, name);
        watch_rate(row->cells[WATCH_HZ], topic, before, "messages", seconds);
        watch_rate(row->cells[WATCH_MB], topic, before, "bytes", seconds * 1e6);
        watch_add(watch_list(&watch->now.data, "subscriptions"), name, &queued, &dropped);
        watch_add(watch_list(&watch->now.data, "groups"), name, &queued, &dropped);
        snprintf(row->cells[WATCH_QUEUED], ND_STAT_CELL_BYTES, "%" PRIu64, queued);
        snprintf(row->cells[WATCH_DROPS], ND_STAT_CELL_BYTES, "%" PRIu64, dropped);
}

static int watch_write(struct watch *watch)
{
        const msgpack_object *list = watch_list(&watch->now.data, "topics");
        uint32_t n = list ? list->via.array.size : 0;
        nd_autofree struct watch_row *rows = calloc((size_t)n + 1, sizeof(*rows));
        int widths[_WATCH_N] = {0};

        if (!rows)
                return nd_report("out of memory");
        for (size_t k = 0; k < _WATCH_N; ++k)
                strcpy(rows[0].cells[k], watch_titles[k]);
        for (uint32_t i = 0; i < n; ++i)
                watch_fill(watch, &list->via.array.ptr[i], &rows[i + 1]);
        for (uint32_t i = 0; i <= n; ++i)
                for (size_t k = 0; k < _WATCH_N; ++k)
                        if (nd_stat_width(rows[i].cells[k]) > widths[k])
                                widths[k] = nd_stat_width(rows[i].cells[k]);
        if (isatty(STDOUT_FILENO))
                fputs("\033[H\033[J", stdout);
        for (uint32_t i = 0; i <= n; ++i)
                for (size_t k = 0; k < _WATCH_N; ++k)
                        nd_stat_write_cell(rows[i].cells[k], widths[k], k <= WATCH_SHAPE,
                                           k + 1 == _WATCH_N);
        fputc('\n', stdout);
        return fflush(stdout) || ferror(stdout) ? ND_EXIT_FAILED : ND_EXIT_OK;
}

/* Asks once and shows it. */
static int watch_once(struct watch *watch, struct ndbus *bus, int timeout_ms)
{
        nd_autofree void *data = NULL;
        struct nd_fault fault;
        size_t n_data = 0, offset = 0;
        int r;

        r = ndbus_stats(bus, &data, &n_data, timeout_ms);
        if (r == NDBUS_EINTERRUPTED)
                return ND_EXIT_OK;
        if (r)
                return nd_report_bus("", r);
        if (nd_scan(data, n_data, ND_SCAN_META, "answer", &fault))
                return nd_report_fault("", &fault);
        msgpack_unpacked_destroy(&watch->before);
        watch->before = watch->now;
        free(watch->before_bytes);
        watch->before_bytes = watch->now_bytes;
        watch->i_before = 0;
        msgpack_unpacked_init(&watch->now);
        watch->now_bytes = nd_steal(data);
        if (msgpack_unpack_next(&watch->now, watch->now_bytes, n_data, &offset) !=
            MSGPACK_UNPACK_SUCCESS)
                return nd_report("the daemon's answer cannot be read");
        return watch_write(watch);
}

int nd_stat_watch(struct ndbus *bus, int period_ms, uint64_t n_tables, int timeout_ms)
{
        struct watch watch = {.i_before = 0};
        int r, status = ND_EXIT_OK;

        msgpack_unpacked_init(&watch.now);
        msgpack_unpacked_init(&watch.before);
        for (uint64_t i = 0; status == ND_EXIT_OK; ++i) {
                struct ndbus_message *m = NULL;

                if (nd_signals_interrupted(NULL) || (n_tables > 0 && i >= n_tables))
                        break;
                if (i > 0) {
                        r = ndbus_receive(bus, &m, period_ms);
                        if (r == NDBUS_EINTERRUPTED)
                                break;
                        if (r != NDBUS_ETIMEDOUT) {
                                status = nd_report_bus("", r);
                                break;
                        }
                }
                status = watch_once(&watch, bus, timeout_ms);
        }
        msgpack_unpacked_destroy(&watch.now);
        msgpack_unpacked_destroy(&watch.before);
        free(watch.now_bytes);
        free(watch.before_bytes);
        return status;
}
