/* SPDX-License-Identifier: MIT */

/*
 * Pool: grows within its limits, uses the small segments first, gives back what is idle
 */

#include <criterion/criterion.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/limit.h"
#include "protocol/shm/pool.h"
#include "tests/support/proc.h"

static size_t n_fds(void)
{
        size_t n = 0;

        cr_assert(nd_proc_fds(getpid(), &n));
        return n;
}

static struct nd_shm_segment *grow(struct nd_shm_pool *pool, uint64_t bytes, uint64_t now_ns)
{
        struct nd_shm_segment *segment = NULL;
        struct nd_fault fault;

        cr_assert_eq(nd_shm_pool_grow(pool, bytes, now_ns, &segment, &fault), 0, "%s: %s",
                     fault.field, fault.text);
        return segment;
}

Test(shm_pool, grows_when_it_is_exhausted_and_only_so_far)
{
        struct nd_shm_segment *segment, *first;
        struct nd_shm_pool pool;
        struct nd_fault fault;
        uint64_t place;
        size_t n = n_fds();

        nd_shm_pool_init(&pool, 40 * ND_MIB);
        cr_assert_not(nd_shm_pool_take(&pool, 1, &segment, &place));

        first = grow(&pool, 100, 0);
        cr_assert_eq(first->memory.bytes, 4 * ND_MIB);
        cr_assert(nd_shm_pool_take(&pool, 3 * ND_MIB, &segment, &place));
        cr_assert_eq(segment, first);
        cr_assert_not(nd_shm_pool_take(&pool, 3 * ND_MIB, &segment, &place));

        cr_assert_eq(grow(&pool, 24 * ND_MIB + 1, 0)->memory.bytes, 24 * ND_MIB + 4096);
        cr_assert_eq(grow(&pool, 1, 0)->memory.bytes, 7 * ND_MIB, "a quarter more");
        cr_assert_eq(pool.bytes, 35 * ND_MIB + 4096);
        cr_assert(nd_shm_pool_take(&pool, ND_MIB, &segment, &place));
        cr_assert_eq(segment, first, "of the smallest that has place");

        cr_assert_eq(nd_shm_pool_grow(&pool, 5 * ND_MIB, 0, &segment, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "shm_max");
        cr_assert_eq(fault.value, 5 * ND_MIB);
        cr_assert_eq(fault.limit, 5 * ND_MIB - 4096);
        cr_assert_eq(grow(&pool, 100, 0)->memory.bytes, 5 * ND_MIB - 4096, "what is left");
        cr_assert_eq(nd_shm_pool_grow(&pool, 1, 0, &segment, &fault), NDBUS_ENO_SPACE);
        cr_assert_eq(pool.n_segments, 4);

        nd_shm_pool_deinit(&pool);
        nd_shm_pool_deinit(&pool);
        cr_assert_eq(n_fds(), n);
}

Test(shm_pool, that_is_bare_makes_what_is_needed_and_no_more)
{
        struct nd_shm_segment *segment;
        struct nd_shm_pool pool;
        struct nd_fault fault;

        nd_shm_pool_init(&pool, 1024 * ND_MIB);
        pool.is_bare = true;
        cr_assert_eq(grow(&pool, 200 * ND_MIB + 1, 0)->memory.bytes, 200 * ND_MIB + 4096);
        segment = grow(&pool, 5 * ND_MIB, 0);
        cr_assert_eq(segment->memory.bytes, 5 * ND_MIB);
        cr_assert_eq(nd_segment_check(segment->memory.fd, 5 * ND_MIB, &fault), NDBUS_ESHM,
                     "its memory comes later");
        cr_assert_eq(grow(&pool, 100, 0)->memory.bytes, 4 * ND_MIB);
        nd_shm_pool_deinit(&pool);
}

Test(shm_pool, takes_less_when_the_system_has_less)
{
        struct rlimit limit;
        struct nd_shm_segment *segment;
        struct nd_shm_pool pool;
        struct nd_fault fault;

        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = ND_MIB;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        nd_shm_pool_init(&pool, ND_GIB);
        cr_assert_eq(grow(&pool, ND_MIB / 2, 0)->memory.bytes, ND_MIB / 2);
        cr_assert_eq(nd_shm_pool_grow(&pool, ND_MIB + 1, 0, &segment, &fault), NDBUS_ENO_SPACE);
        cr_assert_str_eq(fault.field, "RLIMIT_FSIZE");
        cr_assert_eq(fault.limit, ND_MIB);
        nd_shm_pool_deinit(&pool);
}

Test(shm_pool, has_few_segments)
{
        struct nd_shm_segment *segment;
        struct nd_shm_pool pool;
        struct nd_fault fault;
        struct rlimit limit;

        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = 8192; /* so that they stay small */
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        nd_shm_pool_init(&pool, ND_GIB);
        for (unsigned i = 0; i < ND_SEGMENTS_MAX; ++i)
                grow(&pool, 1, 0)->number = i + 1;
        cr_assert_eq(nd_shm_pool_grow(&pool, 1, 0, &segment, &fault), NDBUS_ELIMIT);
        cr_assert_eq(fault.limit, ND_SEGMENTS_MAX);
        cr_assert_eq(nd_shm_pool_find(&pool, 64)->number, 64);
        cr_assert_null(nd_shm_pool_find(&pool, 65));
        nd_shm_pool_deinit(&pool);
}

Test(shm_pool, gives_back_what_is_idle_and_what_is_retired)
{
        struct nd_shm_segment *a, *b, *segment;
        struct nd_shm_pool pool;
        uint64_t place;
        size_t n = n_fds();

        nd_shm_pool_init(&pool, ND_GIB);
        a = grow(&pool, ND_MIB, 100);
        b = grow(&pool, 6 * ND_MIB, 200);
        cr_assert_null(nd_shm_pool_idle(&pool, 99));
        cr_assert_eq(nd_shm_pool_idle(&pool, 100), a);
        cr_assert(nd_shm_pool_take(&pool, ND_MIB, &segment, &place));
        cr_assert_eq(segment, a);
        cr_assert_null(nd_shm_pool_idle(&pool, 100));
        cr_assert_eq(nd_shm_pool_idle(&pool, 200), b);
        cr_assert_eq(nd_shm_pool_free_bytes(&pool), 9 * ND_MIB);
        cr_assert_eq(nd_shm_pool_largest_free(&pool), 6 * ND_MIB);

        a->is_retired = true;
        cr_assert_null(nd_shm_pool_idle(&pool, 100), "a block of it is taken");
        cr_assert(nd_shm_pool_give(a, place, 300));
        cr_assert_not(nd_shm_pool_give(a, place, 300));
        cr_assert_eq(nd_shm_pool_idle(&pool, 0), a);
        cr_assert(nd_shm_pool_take(&pool, ND_MIB, &segment, &place));
        cr_assert_eq(segment, b, "a retired one takes no new blocks");
        cr_assert_eq(nd_shm_pool_free_bytes(&pool), 5 * ND_MIB);

        nd_shm_pool_drop(&pool, a);
        cr_assert_eq(pool.bytes, 6 * ND_MIB);
        cr_assert_eq(pool.n_segments, 1);
        cr_assert_eq(n_fds(), n + 1);
        nd_shm_pool_deinit(&pool);
        cr_assert_eq(n_fds(), n);
}
