/* SPDX-License-Identifier: MIT */

/*
 * Recycled memory of received messages
 *
 * The first touch of a fresh page costs more than moving the bytes that go into it, so memory of
 * freed messages is kept and used again. Sizes are rounded up to classes, four to each doubling;
 * every class has a stack, so that what was used last, and is still in the caches, is used next.
 * Large buffers are mapped on their own and populated in one call.
 *
 * Messages are freed by whatever thread holds them, also after their bus was closed. So the pool
 * has a mutex of its own and counts the buffers that are out; whoever gives back the last one
 * of a closed pool frees it.
 *
 * What is kept is bounded: IDLE_BYTES_FLOOR, and beyond it two of the largest buffer that was
 * taken lately, because a stream of one huge message after another needs just that. What lies
 * idle for IDLE_S goes back to the system, inside library calls: there is no thread to do it.
 *
 * A fork while another thread holds the mutex would leave it locked in the child for ever, and
 * the child may free what it inherited: nd_fork holds every pool's mutex across fork().
 */

#include "client/pool.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include "client/clock.h"
#include "client/fork.h"
#include "protocol/limit.h"

#define MAPPED_BYTES_MIN      (UINT64_C(256) << 10)
#define IDLE_BYTES_FLOOR      (UINT64_C(64) << 20)
#define IDLE_S                5u
#define CLASS_BYTES_MIN_SHIFT 8u /* 256 */
#define N_CLASSES             (4u * (62u - CLASS_BYTES_MIN_SHIFT))

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct nd_pool {
        struct nd_fork_lock lock;
        struct nd_buffer *idle[N_CLASSES];
        struct nd_pool_counts counts;
        uint64_t largest_bytes; /* taken since the last trim but one */
        uint64_t largest_bytes_before;
        uint64_t trimmed_ns;
        bool is_closed;
};

_Static_assert(sizeof(struct nd_buffer) <= ND_ALIGN_BYTES, "a buffer's head is one cache line");

/* The class that holds @bytes, and its size. */
static unsigned int class_of(uint64_t bytes, uint64_t *ret_bytes)
{
        unsigned int shift;
        uint64_t quarter, n_quarters;

        if (bytes <= UINT64_C(1) << CLASS_BYTES_MIN_SHIFT) {
                *ret_bytes = UINT64_C(1) << CLASS_BYTES_MIN_SHIFT;
                return 0;
        }
        shift = 63u - (unsigned int)__builtin_clzll(bytes - 1);
        quarter = (UINT64_C(1) << shift) / 4;
        n_quarters = (bytes - (UINT64_C(1) << shift) + quarter - 1) / quarter;
        *ret_bytes = (UINT64_C(1) << shift) + n_quarters * quarter;
        return (shift - CLASS_BYTES_MIN_SHIFT) * 4u + (unsigned int)n_quarters;
}

struct nd_pool *nd_pool_new(void)
{
        struct nd_pool *pool = calloc(1, sizeof(*pool));

        if (pool)
                nd_fork_lock_init(&pool->lock);
        return pool;
}

static void pool_free(struct nd_pool *pool)
{
        nd_assert(pool->counts.n_out == 0 && pool->counts.n_idle == 0);
        nd_fork_lock_deinit(&pool->lock);
        free(pool);
}

static void buffer_destroy(struct nd_buffer *buffer)
{
        if (buffer->is_mapped)
                munmap(buffer->data, buffer->bytes);
        free(buffer);
}

static struct nd_buffer *buffer_new(uint64_t bytes)
{
        struct nd_buffer *buffer;
        void *at;

        if (bytes < MAPPED_BYTES_MIN) {
                buffer = aligned_alloc(ND_ALIGN_BYTES, ND_ALIGN_BYTES + (size_t)bytes);
                if (!buffer)
                        return NULL;
                *buffer = (struct nd_buffer){
                        .data = (uint8_t *)buffer + ND_ALIGN_BYTES,
                        .bytes = (size_t)bytes,
                        .populated_bytes = (size_t)bytes,
                };
                return buffer;
        }

        if (bytes > SIZE_MAX / 2)
                return NULL;
        buffer = calloc(1, sizeof(*buffer));
        if (!buffer)
                return NULL;
        at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
                free(buffer);
                return NULL;
        }
        buffer->data = at;
        buffer->bytes = (size_t)bytes;
        buffer->is_mapped = true;
        return buffer;
}

struct nd_buffer *nd_pool_take(struct nd_pool *pool, uint64_t bytes)
{
        struct nd_buffer *buffer;
        unsigned int i_class;
        uint64_t class_bytes;

        if (bytes > ND_BODY_BYTES_MAX / 2)
                return NULL;
        i_class = class_of(bytes, &class_bytes);
        nd_assert(i_class < N_CLASSES);

        nd_fork_lock_take(&pool->lock);
        buffer = pool->idle[i_class];
        if (buffer) {
                pool->idle[i_class] = buffer->next;
                --pool->counts.n_idle;
                pool->counts.idle_bytes -= buffer->bytes;
                ++pool->counts.n_out;
                pool->counts.out_bytes += buffer->bytes;
        }
        if (class_bytes > pool->largest_bytes)
                pool->largest_bytes = class_bytes;
        nd_fork_lock_drop(&pool->lock);

        if (!buffer) {
                buffer = buffer_new(class_bytes);
                if (!buffer)
                        return NULL;
                buffer->pool = pool;
                buffer->i_class = i_class;
                nd_fork_lock_take(&pool->lock);
                ++pool->counts.n_out;
                pool->counts.out_bytes += buffer->bytes;
                nd_fork_lock_drop(&pool->lock);
        }
        buffer->next = NULL;
        atomic_store_explicit(&buffer->n_refs, 1, memory_order_relaxed);
        return buffer;
}

struct nd_buffer *nd_buffer_ref(struct nd_buffer *buffer)
{
        atomic_fetch_add_explicit(&buffer->n_refs, 1, memory_order_relaxed);
        return buffer;
}

static uint64_t pool_idle_bytes_max(const struct nd_pool *pool)
{
        return IDLE_BYTES_FLOOR + 2 * nd_max_u64(pool->largest_bytes, pool->largest_bytes_before);
}

/* Keeps the buffer, or says that it has to be destroyed. */
static bool pool_keep(struct nd_pool *pool, struct nd_buffer *buffer)
{
        if (pool->is_closed || pool->counts.idle_bytes + buffer->bytes > pool_idle_bytes_max(pool))
                return false;
        buffer->idle_since_s = (uint32_t)(nd_clock_coarse_ns() / ND_NS_PER_S);
        buffer->next = pool->idle[buffer->i_class];
        pool->idle[buffer->i_class] = buffer;
        ++pool->counts.n_idle;
        pool->counts.idle_bytes += buffer->bytes;
        return true;
}

struct nd_buffer *nd_buffer_unref(struct nd_buffer *buffer)
{
        struct nd_pool *pool;
        bool is_kept, is_last;

        if (!buffer || atomic_fetch_sub_explicit(&buffer->n_refs, 1, memory_order_acq_rel) > 1)
                return NULL;
        if (buffer->release) {
                buffer->release(buffer);
                return NULL;
        }

        pool = buffer->pool;
        nd_fork_lock_take(&pool->lock);
        --pool->counts.n_out;
        pool->counts.out_bytes -= buffer->bytes;
        is_kept = pool_keep(pool, buffer);
        is_last = pool->is_closed && pool->counts.n_out == 0;
        nd_fork_lock_drop(&pool->lock);

        if (!is_kept)
                buffer_destroy(buffer);
        if (is_last)
                pool_free(pool);
        return NULL;
}

void nd_buffer_populate(struct nd_buffer *buffer, size_t bytes)
{
        uintptr_t from, to;
        uintptr_t page = 4096;

        if (bytes > buffer->bytes)
                bytes = buffer->bytes;
        if (bytes <= buffer->populated_bytes)
                return;
        from = ((uintptr_t)buffer->data + buffer->populated_bytes) & ~(page - 1);
        to = ((uintptr_t)buffer->data + bytes + page - 1) & ~(page - 1);
        buffer->populated_bytes = bytes;
        /* fails on kernels before 5.14, or without memory: then pages come one by one */
        (void)madvise((void *)from, to - from, MADV_POPULATE_WRITE); // NOLINT
}

/* Takes out of the stacks what has been idle since before @since_s; everything if that is the
 * largest number. Buffers further down a stack have been idle for longer. */
static struct nd_buffer *pool_strip(struct nd_pool *pool, uint32_t since_s)
{
        struct nd_buffer *stripped = NULL, **at, *buffer;

        for (size_t i = 0; i < N_CLASSES; ++i) {
                at = &pool->idle[i];
                while (*at && (*at)->idle_since_s >= since_s)
                        at = &(*at)->next;
                while ((buffer = *at)) {
                        *at = buffer->next;
                        --pool->counts.n_idle;
                        pool->counts.idle_bytes -= buffer->bytes;
                        buffer->next = stripped;
                        stripped = buffer;
                }
        }
        return stripped;
}

static void destroy_list(struct nd_buffer *list)
{
        struct nd_buffer *next;

        for (; list; list = next) {
                next = list->next;
                buffer_destroy(list);
        }
}

void nd_pool_trim(struct nd_pool *pool, uint64_t now_ns)
{
        struct nd_buffer *stripped;
        uint32_t now_s = (uint32_t)(now_ns / ND_NS_PER_S);

        if (now_ns - pool->trimmed_ns < IDLE_S * ND_NS_PER_S / 2)
                return;
        pool->trimmed_ns = now_ns;
        nd_fork_lock_take(&pool->lock);
        stripped = pool_strip(pool, now_s > IDLE_S ? now_s - IDLE_S : 0);
        pool->largest_bytes_before = pool->largest_bytes;
        pool->largest_bytes = 0;
        nd_fork_lock_drop(&pool->lock);
        destroy_list(stripped);
}

struct nd_pool *nd_pool_close(struct nd_pool *pool)
{
        struct nd_buffer *stripped;
        bool is_last;

        if (!pool)
                return NULL;
        nd_fork_lock_take(&pool->lock);
        pool->is_closed = true;
        stripped = pool_strip(pool, UINT32_MAX);
        is_last = pool->counts.n_out == 0;
        nd_fork_lock_drop(&pool->lock);
        destroy_list(stripped);
        if (is_last)
                pool_free(pool);
        return NULL;
}

void nd_pool_count(struct nd_pool *pool, struct nd_pool_counts *ret)
{
        nd_fork_lock_take(&pool->lock);
        *ret = pool->counts;
        nd_fork_lock_drop(&pool->lock);
}
