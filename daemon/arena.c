/* SPDX-License-Identifier: MIT */

/*
 * Arena
 *
 * A relay that allocates one buffer a message loses half its speed at 1 MiB: fresh pages cost more
 * than the bytes in them, above all on virtual machines. So blocks are recycled, last in first out,
 * which also keeps them in the cache; fresh ones are made accessible and populated up to sixteen at
 * a time in one call, and what has not been needed for a second goes back to the system.
 *
 * The address space is reserved whole at the start, so a block is an index and no mapping is ever
 * split. The reservation has no access rights and so is not accounted as memory.
 *
 * Decided against: malloc (its threshold for mmap makes every larger message fault), size classes
 * (a third of the memory would be rounding).
 */

#include "daemon/arena.h"
#include <errno.h>
#include <sys/mman.h>

#define ARENA_FRESH_N 16u /* blocks populated at once: 1 MiB */
#define ARENA_KEEP_N  64u /* blocks never given back: 4 MiB */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

int nd_arena_init(struct nd_arena *arena, uint64_t bytes_max)
{
        size_t n = bytes_max / ND_BLOCK_BYTES + ARENA_FRESH_N;
        void *base;

        *arena = (struct nd_arena){0};
        if (n > UINT32_MAX)
                return -ENOMEM;

        base = mmap(NULL, n * ND_BLOCK_BYTES, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
                return -errno;

        arena->base = base;
        arena->n_blocks_max = n;
        arena->free = calloc(n, sizeof(*arena->free));
        arena->bare = calloc(n, sizeof(*arena->bare));
        if (!arena->free || !arena->bare) {
                nd_arena_deinit(arena);
                return -ENOMEM;
        }
        return 0;
}

void nd_arena_deinit(struct nd_arena *arena)
{
        nd_assert(arena->n_used == 0);

        if (arena->base)
                munmap(arena->base, arena->n_blocks_max * ND_BLOCK_BYTES);
        free(arena->free);
        free(arena->bare);
        *arena = (struct nd_arena){0};
}

static uint8_t *arena_at(const struct nd_arena *arena, size_t i_block)
{
        return arena->base + i_block * ND_BLOCK_BYTES;
}

/* As much again as there is, up to sixteen blocks: a daemon that is sent one small body stays small.
 * Populating is an optimisation: what it did not do, the first touch does. */
static bool arena_grow(struct nd_arena *arena)
{
        size_t n = arena->n_blocks_max - arena->n_fresh;
        size_t most = nd_min_u64(nd_max_u64(arena->n_fresh, 1), ARENA_FRESH_N);
        uint8_t *at = arena_at(arena, arena->n_fresh);

        if (n > most)
                n = most;
        if (n == 0 || mprotect(at, n * ND_BLOCK_BYTES, PROT_READ | PROT_WRITE) < 0)
                return false;

        (void)madvise(at, n * ND_BLOCK_BYTES, MADV_POPULATE_WRITE);
        for (size_t i = n; i > 0; --i)
                arena->free[arena->n_free++] = (uint32_t)(arena->n_fresh + i - 1);
        arena->n_fresh += n;
        return true;
}

uint8_t *nd_arena_take(struct nd_arena *arena)
{
        uint8_t *block;

        if (arena->n_free > 0) {
                block = arena_at(arena, arena->free[--arena->n_free]);
        } else if (arena->n_bare > 0) {
                block = arena_at(arena, arena->bare[--arena->n_bare]);
                (void)madvise(block, ND_BLOCK_BYTES, MADV_POPULATE_WRITE);
        } else if (arena_grow(arena)) {
                block = arena_at(arena, arena->free[--arena->n_free]);
        } else {
                return NULL;
        }

        ++arena->n_used;
        if (arena->n_used > arena->n_used_high)
                arena->n_used_high = arena->n_used;
        return block;
}

void nd_arena_give(struct nd_arena *arena, uint8_t *block)
{
        size_t i_block = (size_t)(block - arena->base) / ND_BLOCK_BYTES;

        nd_assert(arena->n_used > 0);
        nd_assert(i_block < arena->n_fresh);
        --arena->n_used;
        arena->free[arena->n_free++] = (uint32_t)i_block;
}

void nd_arena_trim(struct nd_arena *arena)
{
        size_t n_want = arena->n_used_high - arena->n_used;

        if (n_want < ARENA_KEEP_N)
                n_want = ARENA_KEEP_N;
        arena->n_used_high = arena->n_used;
        if (arena->n_free <= n_want)
                return;

        /* the bottom of the stack is the coldest */
        for (size_t i = 0; i < arena->n_free - n_want; ++i) {
                uint32_t i_block = arena->free[i];

                (void)madvise(arena_at(arena, i_block), ND_BLOCK_BYTES, MADV_DONTNEED);
                arena->bare[arena->n_bare++] = i_block;
        }
        for (size_t i = 0; i < n_want; ++i)
                arena->free[i] = arena->free[arena->n_free - n_want + i];
        arena->n_free = n_want;
}
