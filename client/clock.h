/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Clocks and deadlines
 *
 * Nanoseconds of CLOCK_MONOTONIC. A deadline is a point in time; 0 has always passed, UINT64_MAX
 * never comes. The coarse clock ticks every few milliseconds and costs a fifth of the fine one:
 * it is good enough to ask whether a second has gone by.
 */

#include <time.h>
#include "protocol/base.h"

#define ND_NS_PER_MS UINT64_C(1000000)
#define ND_NS_PER_S  UINT64_C(1000000000)
#define ND_NEVER     UINT64_MAX

static inline uint64_t nd_clock_read(clockid_t clock)
{
        struct timespec at;

        clock_gettime(clock, &at);
        return (uint64_t)at.tv_sec * ND_NS_PER_S + (uint64_t)at.tv_nsec;
}

static inline uint64_t nd_clock_ns(void)
{
        return nd_clock_read(CLOCK_MONOTONIC);
}

static inline uint64_t nd_clock_coarse_ns(void)
{
        return nd_clock_read(CLOCK_MONOTONIC_COARSE);
}

static inline uint64_t nd_deadline_in_ms(int timeout_ms)
{
        if (timeout_ms < 0)
                return ND_NEVER;
        if (timeout_ms == 0)
                return 0;
        return nd_clock_ns() + (uint64_t)timeout_ms * ND_NS_PER_MS;
}
