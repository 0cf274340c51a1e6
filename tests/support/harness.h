/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Harness: a real daemon for one test
 *
 * Starts ndbusd (the program that $NDBUSD names; meson sets it) in a private folder, on a Unix
 * socket there and on a TCP port that the system chooses, knows when it is ready, looks at it from
 * outside, signals it, starts it again, and stops it.
 *
 * What breaks the test itself ends it: the reason and the daemon's log go to stderr, then abort(),
 * which Criterion and meson both count as a failure. So functions have no error results unless they
 * say so. A daemon never outlives its test, whatever becomes of the test, and its folder goes when
 * the test's process exits in any way but by a signal.
 *
 * Only one thread may use a harness, the one that made it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>
#include "tests/support/proc.h"

/**
 * Bounds on a process's memory hold only where no sanitizer and no valgrind adds its own: such
 * tests run the scenario everywhere, and compare the numbers where this is true.
 */
bool nd_harness_memory_is_exact(void);

/** A deadline that was meant for a release build, stretched for sanitizers and valgrind. */
int nd_harness_deadline_ms(int release_ms);

struct nd_harness_rlimit {
        int resource; /**< RLIMIT_NOFILE ... */
        struct rlimit limit;
};

/** All of it is borrowed until the harness is freed. Zero is the default of everything. */
struct nd_harness_options {
        const char *const *args; /**< NULL-terminated, after our own --listen; or NULL */
        const char *const *env; /**< NULL-terminated "NAME=VALUE", before the test's own; or NULL */
        bool no_unix;           /**< no --listen unix:... */
        bool no_tcp;            /**< no --listen tcp:... */
        bool unprivileged;      /**< as nobody, if the test runs as root */
        const struct nd_harness_rlimit *rlimits; /**< [n_rlimits] set in the daemon before exec */
        size_t n_rlimits;
        const int *listen_fds; /**< [n_listen_fds] passed as socket activation passes them */
        size_t n_listen_fds;
};

/** Read-only for the test. Strings are valid until the next call about this harness. */
struct nd_harness {
        pid_t pid;          /**< of the running daemon; 0 if there is none */
        const char *folder; /**< private, for whatever the test wants to put there */
        const char *unix_path;
        const char *unix_url;
        const char *tcp_url; /**< with the real port; NULL until the daemon was ready */
        const char *status;  /**< the daemon's last STATUS=, or NULL */
        size_t n_fds_ready;  /**< descriptors of the daemon when it became ready */
        bool ready;          /**< READY=1 came since the last start */
        bool stopping;       /**< STOPPING=1 came since the last start */
        unsigned n_watchdog; /**< how many WATCHDOG=1 came since the last start */
};

/** Start a daemon and wait until it is ready. Options may be NULL. End: nd_harness_stop(). */
struct nd_harness *nd_harness_start(const struct nd_harness_options *options);

/** Start and do not wait, for a daemon that is expected to fail. */
struct nd_harness *nd_harness_spawn(const struct nd_harness_options *options);

/** Wait for READY=1. False: the daemon ended first, or the time has passed. */
bool nd_harness_wait_ready(struct nd_harness *h, int timeout_ms);

/** Take in what the daemon has sent to NOTIFY_SOCKET by now: status, stopping, n_watchdog. */
void nd_harness_read_notify(struct nd_harness *h);

/** After the daemon has ended: the same again, same folder, options and port. Waits until ready. */
void nd_harness_start_again(struct nd_harness *h);

/** After SIGSTOP and SIGKILL it has stopped, or is gone, when this returns. */
void nd_harness_signal(struct nd_harness *h, int signal_number);

/** Wait for the daemon to end. True: it has, and *ret_status (or NULL) is as from waitpid(). */
bool nd_harness_wait_exit(struct nd_harness *h, int timeout_ms, int *ret_status);

/**
 * SIGTERM if the daemon runs; then: it ended in time and with status 0, its socket is gone, and the
 * test's process has as many descriptors as before it made the harness. Frees.
 */
void nd_harness_stop(struct nd_harness *h);

/** Kill the daemon if it runs; expects nothing. Accepts NULL. */
void nd_harness_free(struct nd_harness *h);

/** End the test: the text, then the daemon's log. */
_Noreturn void nd_harness_fail(struct nd_harness *h, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/** All that the daemon, and those it was started again as, wrote to stdout and stderr; free(). */
char *nd_harness_log(struct nd_harness *h);

struct nd_proc_memory nd_harness_memory(struct nd_harness *h);
uint64_t nd_harness_cpu_ns(struct nd_harness *h);
size_t nd_harness_fds(struct nd_harness *h);

/** Makes the present memory the peak, so that the next peak is of what comes now. */
void nd_harness_reset_peak(struct nd_harness *h);

/**
 * Wait until is_true(userdata); fails the test after timeout_ms or when the daemon ends. For what
 * sends no event: the state in /proc, a counter of the daemon. what: the end of "waited for ..."
 */
void nd_harness_wait_until(struct nd_harness *h,
                           const char *what,
                           bool (*is_true)(void *userdata),
                           void *userdata,
                           int timeout_ms);

/** Wait until the daemon has n descriptors again, as after its clients have gone. */
void nd_harness_wait_fds(struct nd_harness *h, size_t n, int timeout_ms);

/** A connected, blocking socket, for what no client library would send; close(). */
int nd_harness_connect_unix(struct nd_harness *h);
int nd_harness_connect_tcp(struct nd_harness *h);
