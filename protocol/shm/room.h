/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Room: how much memory this process may take before the kernel kills it
 *
 * Memory of a memfd is not refused when there is none. In a memory cgroup fallocate() ends in
 * SIGKILL, beyond RLIMIT_FSIZE in SIGXFSZ, on a machine without memory at the OOM killer. So whoever
 * makes a segment looks first.
 */

#include "protocol/fault.h"

struct nd_room {
        uint64_t file_bytes; /* RLIMIT_FSIZE */
        uint64_t
                cgroup_bytes; /* until the narrowest memory cgroup that this process lies in is full */
        uint64_t available_bytes; /* MemAvailable */
};

/* Reads what there is now. @root is put before every path: "" but in tests. What cannot be read
 * limits nothing. */
void nd_room_read(const char *root, struct nd_room *ret);

/* The limit on all memory of this process by its cgroups; UINT64_MAX without. */
uint64_t nd_room_cgroup_max(const char *root);

/* 0, or NDBUS_ENO_SPACE with both numbers. An eighth of what there is stays free: others take memory
 * at the same time. */
int nd_room_check(const struct nd_room *room, uint64_t bytes, struct nd_fault *fault);
