/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Arena: the blocks that hold message bodies
 */

#include "protocol/base.h"

/* One block. Bodies are kept in whole blocks and one exact tail, so nothing is wasted; large enough
 * that an iovec entry a block costs nothing beside the bytes it moves. */
#define ND_BLOCK_BYTES (64u * 1024u)

struct nd_arena {
        uint8_t *base; /* reserved address space, [n_blocks_max] blocks */
        size_t n_blocks_max;
        size_t n_fresh; /* blocks below this have been made accessible */
        uint32_t *free; /* stack of free blocks with memory behind them: last in, first out */
        size_t n_free;
        uint32_t *bare; /* stack of free blocks whose memory was given back */
        size_t n_bare;
        size_t n_used;
        size_t n_used_high; /* most blocks used since the last trim */
};

/* Return: 0, -ENOMEM */
int nd_arena_init(struct nd_arena *arena, uint64_t bytes_max);
void nd_arena_deinit(struct nd_arena *arena);

/* A block of ND_BLOCK_BYTES, page-aligned, contents undefined; NULL if there is none. */
uint8_t *nd_arena_take(struct nd_arena *arena);
void nd_arena_give(struct nd_arena *arena, uint8_t *block);

/* Gives memory back that has not been needed since the last call; call it once a second. */
void nd_arena_trim(struct nd_arena *arena);
