/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * File: a write that takes several calls
 */

#include <stdint.h>

/* All of it. Return: 0, or errno. */
int nd_file_write(int fd, const void *data, uint64_t n_data);
