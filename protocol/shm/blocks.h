/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Blocks: the pieces of one segment, taken and given back
 *
 * What is known of them lies outside of the segment, where nobody else can reach it.
 */

#include "protocol/base.h"

struct nd_extent;

struct nd_blocks {
        uint64_t bytes;          /* of the segment */
        uint64_t used_bytes;     /* of the taken blocks, their rounding included */
        size_t n_used;           /* taken blocks */
        struct nd_extent *first; /* all, in order of place; the two below divide them */
        struct nd_extent *used;  /* tree by place */
        struct nd_extent *free;  /* tree by bytes, then place */
        uint64_t random;
};

/* @bytes: a positive multiple of ND_SEGMENT_UNIT_BYTES. 0 or NDBUS_ENOMEM. */
int nd_blocks_init(struct nd_blocks *blocks, uint64_t bytes);

/* Forgets all blocks, taken ones too; idempotent. */
void nd_blocks_deinit(struct nd_blocks *blocks);

/* Takes the smallest free piece that holds @bytes, which are more than 0. @ret_place is a multiple of
 * 64, and of the page from 1 MiB on. False: there is none, or no memory to note it. */
bool nd_blocks_take(struct nd_blocks *blocks, uint64_t bytes, uint64_t *ret_place);

/* False: no taken block begins there. */
bool nd_blocks_give(struct nd_blocks *blocks, uint64_t place);

/* The owner's note about the taken block that begins there, 0 at first; NULL: none does. */
uint32_t *nd_blocks_note(struct nd_blocks *blocks, uint64_t place);

/* The most that nd_blocks_take() could be asked for, but for alignment. */
uint64_t nd_blocks_largest_free(const struct nd_blocks *blocks);
