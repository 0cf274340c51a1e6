/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Pool: recycled memory of received messages
 */

#include <stdatomic.h>
#include "protocol/base.h"

struct nd_pool;

/*
 * A piece of memory whose data begins at a multiple of 64 bytes. Everything but the count of
 * references belongs to the one who fills it, until it is handed on.
 */
struct nd_buffer {
        _Atomic uint32_t n_refs;
        uint32_t i_class;
        struct nd_pool *pool;
        struct nd_buffer *next; /* while it is in the pool */
        uint8_t *data;
        size_t bytes;           /* of data */
        size_t populated_bytes; /* from the start of data: pages that are there already */
        uint32_t idle_since_s;  /* while it is in the pool */
        bool is_mapped;
        void (*release)(
                struct nd_buffer *buffer); /* memory of no pool: its last reference is gone */
};

struct nd_pool *nd_pool_new(void);

/* Nothing is kept any more, and the pool goes with the last buffer that is given back: who holds one
 * may still take others. Returns NULL. */
struct nd_pool *nd_pool_close(struct nd_pool *pool);

/* At least @bytes, one reference; NULL if there is no memory. Contents are whatever was there. */
struct nd_buffer *nd_pool_take(struct nd_pool *pool, uint64_t bytes);

/* Counts references to memory that is somebody else's; @release is called with the last one. */
static inline void nd_buffer_init_foreign(struct nd_buffer *buffer,
                                          void (*release)(struct nd_buffer *buffer))
{
        *buffer = (struct nd_buffer){.release = release};
        atomic_store_explicit(&buffer->n_refs, 1, memory_order_relaxed);
}

/* Any thread, also after nd_pool_close(). unref accepts NULL and returns NULL. */
struct nd_buffer *nd_buffer_ref(struct nd_buffer *buffer);
struct nd_buffer *nd_buffer_unref(struct nd_buffer *buffer);

/* Is the caller the only one who holds it? */
static inline bool nd_buffer_is_mine(struct nd_buffer *buffer)
{
        return atomic_load_explicit(&buffer->n_refs, memory_order_acquire) == 1;
}

/* Has the kernel make the pages up to @bytes in one call; a no-op where that is not possible. */
void nd_buffer_populate(struct nd_buffer *buffer, size_t bytes);

/* Gives back to the system what has lain idle for some seconds; cheap when called often. */
void nd_pool_trim(struct nd_pool *pool, uint64_t now_ns);

struct nd_pool_counts {
        size_t n_out; /* buffers in use */
        uint64_t out_bytes;
        size_t n_idle; /* buffers kept for later */
        uint64_t idle_bytes;
};

void nd_pool_count(struct nd_pool *pool, struct nd_pool_counts *ret);
