/* SPDX-License-Identifier: MIT */

/*
 * Arena: blocks, taken and given back
 */

#include <criterion/criterion.h>
#include <string.h>
#include "daemon/arena.h"

#define BLOCKS(_n) ((uint64_t)(_n)*ND_BLOCK_BYTES)

/* As many as there should be, and a few; then none; each is its own memory. */
Test(arena, limit)
{
        struct nd_arena arena;
        uint8_t *blocks[256];
        size_t n = 0;

        cr_assert_eq(nd_arena_init(&arena, BLOCKS(100)), 0);
        while (n < nd_array_size(blocks) && (blocks[n] = nd_arena_take(&arena))) {
                cr_assert_eq((uintptr_t)blocks[n] % 4096, 0);
                memset(blocks[n], (int)n, ND_BLOCK_BYTES);
                ++n;
        }
        cr_assert_geq(n, 100);
        cr_assert_leq(n, 116);
        cr_assert_eq(arena.n_used, n);
        cr_assert_null(nd_arena_take(&arena));
        for (size_t i = 0; i < n; ++i) {
                cr_assert_eq(blocks[i][0], (uint8_t)i);
                cr_assert_eq(blocks[i][ND_BLOCK_BYTES - 1], (uint8_t)i);
                nd_arena_give(&arena, blocks[i]);
        }
        cr_assert_eq(arena.n_used, 0);
        nd_arena_deinit(&arena);
}

Test(arena, last_in_first_out)
{
        struct nd_arena arena;
        uint8_t *a, *b;

        cr_assert_eq(nd_arena_init(&arena, BLOCKS(64)), 0);
        a = nd_arena_take(&arena);
        b = nd_arena_take(&arena);
        cr_assert_neq(a, b);
        nd_arena_give(&arena, a);
        nd_arena_give(&arena, b);
        cr_assert_eq(nd_arena_take(&arena), b);
        cr_assert_eq(nd_arena_take(&arena), a);
        nd_arena_give(&arena, a);
        nd_arena_give(&arena, b);
        nd_arena_deinit(&arena);
}

/* The first block makes one resident, not a mebibyte; later it grows by what there is. */
Test(arena, grows_gently)
{
        struct nd_arena arena;
        uint8_t *blocks[40];

        cr_assert_eq(nd_arena_init(&arena, BLOCKS(1000)), 0);
        blocks[0] = nd_arena_take(&arena);
        cr_assert_eq(arena.n_fresh, 1);
        for (size_t i = 1; i < nd_array_size(blocks); ++i)
                blocks[i] = nd_arena_take(&arena);
        cr_assert_leq(arena.n_fresh, nd_array_size(blocks) + 16);
        for (size_t i = 0; i < nd_array_size(blocks); ++i)
                nd_arena_give(&arena, blocks[i]);
        nd_arena_deinit(&arena);
}

/* What was not needed since the last trim goes back, and can be taken again. */
Test(arena, trim)
{
        enum {
                N = 300
        };

        static uint8_t *blocks[N];
        struct nd_arena arena;
        size_t n_kept;

        cr_assert_eq(nd_arena_init(&arena, BLOCKS(N)), 0);
        for (size_t i = 0; i < N; ++i)
                blocks[i] = nd_arena_take(&arena);
        for (size_t i = 0; i < N; ++i)
                nd_arena_give(&arena, blocks[i]);
        nd_arena_trim(&arena); /* all were needed a moment ago */
        cr_assert_leq(arena.n_bare, 16);
        nd_arena_trim(&arena);
        n_kept = arena.n_free;
        cr_assert_lt(n_kept, N / 2);
        cr_assert_eq(arena.n_free + arena.n_bare, arena.n_fresh);
        nd_arena_trim(&arena);
        cr_assert_eq(arena.n_free, n_kept, "a few are always kept");

        for (size_t i = 0; i < N; ++i) {
                blocks[i] = nd_arena_take(&arena);
                cr_assert(blocks[i]);
                memset(blocks[i], (int)i, ND_BLOCK_BYTES);
        }
        for (size_t i = 0; i < N; ++i) {
                cr_assert_eq(blocks[i][1], (uint8_t)i);
                nd_arena_give(&arena, blocks[i]);
        }
        nd_arena_deinit(&arena);
}
