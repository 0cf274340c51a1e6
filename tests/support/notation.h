/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Notation: msgpack written as JSON, so that a test shows the header that it means
 *
 * Maps, lists, strings without escapes, integers from -2^63 to 2^64-1, true, false, null. Floats
 * are written as 1.5. Anything else is a mistake of the test and ends it.
 */

#include <stddef.h>

/* Returns malloc'd bytes. */
void *nd_notation_pack(const char *text, size_t *ret_n_bytes);
