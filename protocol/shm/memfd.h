/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * memfd: memory without a name that can be handed to others and sealed
 */

#include "protocol/fault.h"

/* An empty one, which may be sealed; @name is what /proc shows. -1: errno says why not. */
int nd_memfd_open(const char *name);

/* Its memory is there from @from up to @to. Return: 0; NDBUS_ENO_SPACE, NDBUS_ESYSTEM */
int nd_memfd_allocate(int fd, uint64_t from, uint64_t to, struct nd_fault *fault);

/* What errno means after a call about memory or descriptors. Return: NDBUS_ENO_FD at a descriptor limit,
 * NDBUS_ENO_SPACE, NDBUS_ESYSTEM */
int nd_memfd_fail(const char *call, struct nd_fault *fault);
