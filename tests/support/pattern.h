/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * P(n): the n bytes of which byte i is (31 * i + 7) & 255, the payload of tests that are about
 * bytes. Every offset within 256 differs from its neighbours, so shifted, repeated and lost pieces
 * show.
 */

#include <stddef.h>
#include <stdint.h>

/** Bytes [offset, offset + n) of P. */
void nd_pattern_fill(void *bytes, uint64_t offset, size_t n);

/** The first i for which bytes[i] is not byte offset + i of P; n if there is none. */
size_t nd_pattern_compare(const void *bytes, uint64_t offset, size_t n);

/** P(n) to publish from, in little memory however large n is; nd_pattern_unmap(). NULL, errno. */
void *nd_pattern_map(uint64_t n);
void nd_pattern_unmap(void *bytes, uint64_t n);

/** SHA-256 in hex, by the program sha256sum; "" if that cannot be run. */
void nd_sha256(const void *bytes, size_t n, char ret_hex[65]);
