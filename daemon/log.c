/* SPDX-License-Identifier: MIT */

/*
 * Log
 *
 * No library: stderr is the journal's under systemd and a terminal's or a file's elsewhere, and one
 * write() of one line is all that either needs. The journal gets the priority in front, and knows the
 * time; everybody else gets the time in front, and the priority by name. The journal says which file
 * it reads from. Level and that are the process's only globals: every part logs, and none should have
 * to carry them.
 */

#include "daemon/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base.h"

static enum nd_log_level log_level = ND_LOG_NOTICE;
static bool log_is_journal;

static const char *const log_names[] = {
        [ND_LOG_ERROR] = "error", [ND_LOG_WARNING] = "warning", [ND_LOG_NOTICE] = "notice",
        [ND_LOG_INFO] = "info",   [ND_LOG_DEBUG] = "debug",
};

bool nd_log_level_parse(const char *text, enum nd_log_level *ret)
{
        for (size_t i = ND_LOG_ERROR; i < nd_array_size(log_names); ++i) {
                if (strcmp(text, log_names[i]) == 0) {
                        *ret = (enum nd_log_level)i;
                        return true;
                }
        }
        return false;
}

void nd_log_init(void)
{
        const char *journal = getenv("JOURNAL_STREAM");
        char own[64];
        struct stat st;

        if (!journal || fstat(STDERR_FILENO, &st) < 0)
                return;
        snprintf(own, sizeof(own), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
        log_is_journal = strcmp(journal, own) == 0;
}

void nd_log_set_level(enum nd_log_level level)
{
        log_level = level;
}

bool nd_log_wants(enum nd_log_level level)
{
        return level <= log_level;
}

/* "<5>ndbusd: " or "2026-01-31T23:59:59.999Z ndbusd: notice: ". In UTC: lines stay in order when the
 * clocks go back, and those of several machines can be merged. */
static size_t log_begin(char *out, size_t n_out, enum nd_log_level level)
{
        struct timespec now = {0};
        struct tm utc = {0};
        size_t n = 0;

        if (log_is_journal)
                return (size_t)snprintf(out, n_out, "<%d>ndbusd: ", (int)level);
        clock_gettime(CLOCK_REALTIME, &now);
        if (gmtime_r(&now.tv_sec, &utc))
                n = strftime(out, n_out, "%Y-%m-%dT%H:%M:%S", &utc);
        return n + (size_t)snprintf(out + n, n_out - n,
                                    ".%03ldZ ndbusd: %s: ", now.tv_nsec / 1000000,
                                    log_names[level]);
}

__attribute__((format(printf, 3, 0))) static void
log_write(enum nd_log_level level, uint64_t n_left_out, const char *format, va_list args)
{
        char line[1024];
        size_t n_line = log_begin(line, sizeof(line), level);
        int n = vsnprintf(line + n_line, sizeof(line) - n_line - 1, format, args);

        if (n > 0)
                n_line += nd_min_u64((uint64_t)n, sizeof(line) - n_line - 2);
        if (n_left_out > 0) {
                n = snprintf(line + n_line, sizeof(line) - n_line - 1, " left_out=%llu",
                             (unsigned long long)n_left_out);
                if (n > 0)
                        n_line += nd_min_u64((uint64_t)n, sizeof(line) - n_line - 2);
        }
        for (size_t i = 0; i < n_line; ++i) {
                if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] > 0x7e)
                        line[i] = '?';
        }
        line[n_line++] = '\n';
        if (write(STDERR_FILENO, line, n_line) < 0)
                return; /* there is nobody left to tell */
}

void nd_log(enum nd_log_level level, const char *format, ...)
{
        va_list args;

        if (!nd_log_wants(level))
                return;
        va_start(args, format);
        log_write(level, 0, format, args);
        va_end(args);
}

void nd_log_limited(struct nd_log_limit *limit,
                    uint64_t now_ns,
                    enum nd_log_level level,
                    const char *format,
                    ...)
{
        uint64_t period_ns = limit->period_ns ? limit->period_ns : UINT64_C(1000000000);
        va_list args;

        if (!nd_log_wants(level))
                return;
        if (limit->begin_ns == 0 || now_ns - limit->begin_ns >= period_ns) {
                limit->begin_ns = now_ns;
                limit->n_lines = 0;
        }
        if (limit->n_lines > limit->n_more) {
                ++limit->n_left_out;
                return;
        }
        va_start(args, format);
        log_write(level, limit->n_left_out, format, args);
        va_end(args);
        ++limit->n_lines;
        limit->n_left_out = 0;
}
