/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Copy: bytes into memory that another process will read
 */

#include <stddef.h>

/* Like memcpy(). What was written is seen by whoever is told of it afterwards. */
void nd_copy(void *to, const void *from, size_t n);
