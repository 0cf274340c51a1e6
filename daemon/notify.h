/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Service manager: readiness, watchdog, and sockets that it opened for us
 *
 * The protocols of sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3), without libsystemd:
 * they are small and stable.
 */

#include "protocol/base.h"

#define ND_NOTIFY_BYTES 8192u

struct nd_notifier {
        char unsent[ND_NOTIFY_BYTES]; /* lines that the manager's socket had no room for */
};

/* Sends @state ("READY=1\nSTATUS=..."), of less than ND_NOTIFY_BYTES / 2. Does nothing without a
 * service manager. Never waits, and never fails: there is nobody to tell. */
void nd_notify(struct nd_notifier *notifier, const char *state);

/* Sends what could not be sent before. */
void nd_notify_again(struct nd_notifier *notifier);

/* WATCHDOG=1, which is worth nothing later. */
void nd_notify_alive(void);

/* Microseconds between two WATCHDOG=1 that the manager expects of this process; 0: none. */
uint64_t nd_notify_watchdog_us(void);

/**
 * nd_notify_listen_fds() - sockets passed by the service manager
 *
 * Checks LISTEN_PID; sets close-on-exec; takes the variables out of the environment.
 *
 * Return: how many there are, from fd 3 on; 0 without activation; -EINVAL if the variables are
 *         malformed
 */
int nd_notify_listen_fds(void);
