/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Memory files, as good and as bad as somebody may send for a segment
 */

#include <stdint.h>

/** Of @n_bytes, of which the first @n_allocated are there; @seals: of F_ADD_SEALS. */
int nd_memfd_make(uint64_t n_bytes, uint64_t n_allocated, int seals);

/** The same memory in another access mode, as anybody can open it who was sent it. Closes @fd. */
int nd_memfd_reopen(int fd, int flags);
