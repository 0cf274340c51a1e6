/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Pool: the segments of one owner, as one supply of blocks
 *
 * It makes segments when blocks run out and says which are no longer needed. Who is told of a
 * segment, and when, is the owner's business.
 */

#include "protocol/list.h"
#include "protocol/shm/blocks.h"
#include "protocol/shm/segment.h"

struct nd_shm_pool {
        struct nd_list segments; /* struct nd_shm_segment, smallest first */
        size_t n_segments;
        uint64_t bytes; /* of all segments */
        uint64_t bytes_max;
        const char *root; /* where limits are read: nd_room_read() */
        bool is_bare; /* segments come without their memory, which the owner fills in: so they are no
                       * larger than they must be */
};

struct nd_shm_segment {
        struct nd_list node;
        struct nd_segment memory;
        struct nd_blocks blocks;
        uint64_t idle_ns; /* since when no block is taken, on the owner's clock */
        bool is_retired;  /* no block is taken from it any more */

        /* the owner's */
        uint32_t number; /* by which others know it; 0: they do not */
        uint32_t state;
        uint64_t sequence;  /* of the request about it */
        size_t n_published; /* of its taken blocks */
        bool was_published; /* a block of it, ever */
        size_t i_fd;        /* where its descriptor is registered */
        void *user;         /* what it keeps of it */
};

/* @bytes_max: of all segments together; 0: no blocks to be had. */
void nd_shm_pool_init(struct nd_shm_pool *pool, uint64_t bytes_max);

/* Closes all segments, whatever is taken from them; idempotent. */
void nd_shm_pool_deinit(struct nd_shm_pool *pool);

/* Takes a block from the segments that there are. False: none has one. @bytes: more than 0. */
bool nd_shm_pool_take(struct nd_shm_pool *pool,
                      uint64_t bytes,
                      struct nd_shm_segment **ret_segment,
                      uint64_t *ret_place);

/**
 * nd_shm_pool_grow() - make a segment in which a block of @bytes has place
 *
 * As large as all others together, so that there are few, or as large as it must be at least, if no
 * more can be had.
 *
 * Return: 0; NDBUS_ENO_SPACE with both numbers, NDBUS_ELIMIT for more than ND_SEGMENTS_MAX,
 *         NDBUS_ENO_FD, NDBUS_ESYSTEM, NDBUS_ENOMEM
 */
int nd_shm_pool_grow(struct nd_shm_pool *pool,
                     uint64_t bytes,
                     uint64_t now_ns,
                     struct nd_shm_segment **ret,
                     struct nd_fault *fault);

/* False: no such block is taken. */
bool nd_shm_pool_give(struct nd_shm_segment *segment, uint64_t place, uint64_t now_ns);

/* One that should be given back: retired, or idle since @since_ns or longer, and without blocks.
 * NULL: none. */
struct nd_shm_segment *nd_shm_pool_idle(const struct nd_shm_pool *pool, uint64_t since_ns);

/* Closes one, whatever is taken from it. */
void nd_shm_pool_drop(struct nd_shm_pool *pool, struct nd_shm_segment *segment);

/* NULL: none has this number. */
struct nd_shm_segment *nd_shm_pool_find(const struct nd_shm_pool *pool, uint32_t number);

/* What blocks could be taken from at once: in all, and in one piece. */
uint64_t nd_shm_pool_free_bytes(const struct nd_shm_pool *pool);
uint64_t nd_shm_pool_largest_free(const struct nd_shm_pool *pool);
