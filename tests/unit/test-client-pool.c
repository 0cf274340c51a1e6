/* SPDX-License-Identifier: MIT */

/*
 * Recycled memory: what is given back is used again, aligned, counted, bounded, and gone in the end
 */

#include <criterion/criterion.h>
#include <string.h>
#include "client/clock.h"
#include "client/pool.h"

Test(pool, gives_what_is_asked_for_at_multiples_of_64)
{
        struct nd_pool *pool = nd_pool_new();
        struct nd_pool_counts counts;

        for (uint64_t bytes = 0; bytes < 5000000; bytes = bytes * 5 / 4 + 1) {
                struct nd_buffer *buffer = nd_pool_take(pool, bytes);

                cr_assert(buffer);
                cr_assert_geq(buffer->bytes, bytes);
                cr_assert_leq(buffer->bytes, bytes < 256 ? 256 : bytes + bytes / 4 + 1);
                cr_assert_eq((uintptr_t)buffer->data % 64, 0);
                nd_buffer_populate(buffer, bytes / 2);
                nd_buffer_populate(buffer, bytes);
                memset(buffer->data, 0x5a, bytes);
                nd_buffer_unref(buffer);
        }
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.n_out, 0);
        cr_assert_eq(counts.out_bytes, 0);
        nd_pool_close(pool);
}

Test(pool, uses_again_what_came_back_last)
{
        struct nd_pool *pool = nd_pool_new();
        struct nd_buffer *a = nd_pool_take(pool, 100000), *b = nd_pool_take(pool, 100000);

        nd_buffer_unref(a);
        nd_buffer_unref(b);
        cr_assert_eq(nd_pool_take(pool, 99999), b);
        cr_assert_eq(nd_pool_take(pool, 99999), a);
        nd_buffer_unref(a);
        nd_buffer_unref(b);
        nd_pool_close(pool);
}

Test(pool, keeps_a_bounded_amount_and_not_for_ever)
{
        struct nd_pool *pool = nd_pool_new();
        struct nd_buffer *buffers[100];
        struct nd_pool_counts counts;

        for (size_t i = 0; i < 100; ++i)
                buffers[i] = nd_pool_take(pool, 2 << 20);
        for (size_t i = 0; i < 100; ++i)
                nd_buffer_unref(buffers[i]);
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.n_out, 0);
        cr_assert_leq(counts.idle_bytes, 68 << 20);
        cr_assert_geq(counts.idle_bytes, 60 << 20);

        nd_pool_trim(pool, nd_clock_coarse_ns() + 100 * ND_NS_PER_S);
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.idle_bytes, 0);
        nd_pool_close(pool);
}

Test(pool, keeps_two_of_the_largest)
{
        struct nd_pool *pool = nd_pool_new();
        struct nd_buffer *a = nd_pool_take(pool, 300 << 20), *b = nd_pool_take(pool, 300 << 20);
        struct nd_pool_counts counts;

        nd_buffer_unref(a);
        nd_buffer_unref(b);
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.n_idle, 2);
        nd_pool_close(pool);
}

Test(pool, lives_until_its_last_buffer_is_back)
{
        struct nd_pool *pool = nd_pool_new();
        struct nd_buffer *a = nd_pool_take(pool, 1000), *b;

        nd_buffer_unref(nd_pool_take(pool, 1000));
        nd_buffer_ref(a);
        nd_pool_close(pool);
        b = nd_pool_take(a->pool, 5000); /* as ndbus_message_own() does after ndbus_close() */
        cr_assert(b);
        memset(a->data, 1, 1000);
        cr_assert_not(nd_buffer_is_mine(a));
        nd_buffer_unref(a);
        cr_assert(nd_buffer_is_mine(a));
        nd_buffer_unref(a);
        nd_buffer_unref(b);
}

Test(pool, says_no_to_what_cannot_be)
{
        struct nd_pool *pool = nd_pool_new();

        cr_assert_null(nd_pool_take(pool, UINT64_MAX));
        cr_assert_null(nd_pool_take(pool, UINT64_C(1) << 61));
        cr_assert_null(nd_pool_take(pool, UINT64_C(1) << 50));
        nd_pool_close(pool);
}
