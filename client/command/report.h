/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * What the command says on stderr: one line an error, and progress
 */

#include <poll.h>
#include "protocol/fault.h"

/* Exit statuses; ndbus(1). */
enum nd_exit {
        ND_EXIT_OK = 0,
        ND_EXIT_FAILED = 1,
        ND_EXIT_USAGE = 2,
};

/* The subcommand that stands in front of every line; borrowed. */
void nd_report_set_command(const char *name);

/* "ndbus pub: TEXT"; control characters become '?'. Returns ND_EXIT_FAILED, to be returned. */
int nd_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "ndbus pub: SUBJECT: FIELD: TEXT"; what is empty is left out. */
int nd_report_fault(const char *subject, const struct nd_fault *fault);

/* "ndbus pub: SUBJECT: MEANING: DETAIL" of a negative enum ndbus_err and ndbus_detail(). */
int nd_report_bus(const char *subject, int err);

/* "ndbus pub: SUBJECT: MEANING" of an errno. */
int nd_report_errno(const char *subject, int err);

/* A line that is written over, on a terminal only, from the first second on. */
struct nd_progress {
        bool is_shown;
        uint64_t start_ns;
        uint64_t last_ns;
};

void nd_progress_start(struct nd_progress *progress);
void nd_progress_show(struct nd_progress *progress, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
/* Clears the line, if there is one: before any other output and at the end. */
void nd_progress_clear(struct nd_progress *progress);

uint64_t nd_now_ns(void); /* CLOCK_MONOTONIC */

/*
 * SIGINT and SIGTERM end what runs in good order: after nd_signals_catch() they only set a flag, a
 * second one kills. nd_signals_interrupted() fits struct ndbus_options.
 */
void nd_signals_catch(void);
int nd_signals_interrupted(void *userdata);

/* poll() that such a signal ends also when it comes just before: -1, EINTR. */
int nd_signals_poll(struct pollfd *fds, nfds_t n_fds, int timeout_ms);
