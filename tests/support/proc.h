/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * What /proc tells about a process: memory, processor time, descriptors. Results are false if the
 * process is gone; outputs are written on success only.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct nd_proc_memory {
        uint64_t rss_bytes;      /**< VmRSS */
        uint64_t rss_peak_bytes; /**< VmHWM, since nd_proc_reset_peak() or the start */
        uint64_t vm_bytes;       /**< VmSize */
        uint64_t vm_peak_bytes;  /**< VmPeak; never reset */
};

bool nd_proc_memory(pid_t pid, struct nd_proc_memory *ret_memory);
bool nd_proc_reset_peak(pid_t pid);

/** Pss: pages that several processes map count in each by its share. */
bool nd_proc_pss(pid_t pid, uint64_t *ret_bytes);

/** Its main thread waits for something, as in a daemon that has done all there is to do. */
bool nd_proc_is_asleep(pid_t pid);

/** User and system time of all its threads; exact to a clock tick (10 ms). */
bool nd_proc_cpu_ns(pid_t pid, uint64_t *ret_ns);

/** How many descriptors it has open; of the calling process without the one that looks. */
bool nd_proc_fds(pid_t pid, size_t *ret_n);

/** Does a link in /proc/PID/fd point to target, as in "socket:[12345]"? */
bool nd_proc_has_fd(pid_t pid, const char *target);

/** How many pieces of memory it maps whose name has @name in it, as in "/memfd:". */
bool nd_proc_mappings(pid_t pid, const char *name, size_t *ret_n);

/** One line a descriptor: number and what it is. */
void nd_proc_print_fds(pid_t pid, FILE *f);
