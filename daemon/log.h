/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Log: one line a record on stderr, with time and priority in front as the journal or people read it
 *
 * A function either logs or returns an error, never both. At run time only what an operator can act
 * on is logged above debug; what a client can cause at will goes through a struct nd_log_limit.
 */

#include <stdbool.h>
#include <stdint.h>

enum nd_log_level {
        ND_LOG_ERROR = 3,
        ND_LOG_WARNING = 4,
        ND_LOG_NOTICE = 5,
        ND_LOG_INFO = 6,
        ND_LOG_DEBUG = 7,
};

/* At most so many lines in so long; the next one says how many were left out. */
struct nd_log_limit {
        uint64_t period_ns; /* 0: a second */
        uint64_t n_more;    /* lines of one period beyond the first */
        uint64_t begin_ns;
        uint64_t n_lines;
        uint64_t n_left_out;
};

/* Looks whether stderr is read by the journal. Before anything is logged. */
void nd_log_init(void);

/* Return: false if @text is no level */
bool nd_log_level_parse(const char *text, enum nd_log_level *ret);
void nd_log_set_level(enum nd_log_level level);
bool nd_log_wants(enum nd_log_level level);

/* Bytes that are not printable are shown as '?', so that a peer cannot forge lines. */
void nd_log(enum nd_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nd_log_limited(struct nd_log_limit *limit,
                    uint64_t now_ns,
                    enum nd_log_level level,
                    const char *format,
                    ...) __attribute__((format(printf, 4, 5)));
