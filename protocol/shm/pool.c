/* SPDX-License-Identifier: MIT */

/*
 * Pool
 *
 * A segment costs a descriptor and a mapping in every process that reads from it, so there are few:
 * each new one is as large as all before it together. Blocks are taken from the smallest that has
 * place, so that the large ones fall idle and can be given back.
 */

#include "protocol/shm/pool.h"
#include "protocol/limit.h"

/* the first segment; less would be needed again at once */
#define POOL_SEGMENT_BYTES_MIN (UINT64_C(4) << 20)

/* A quarter more each time: making memory costs more than filling it, so little is made in vain, and all
 * that may be had takes some thirty segments. */
#define POOL_GROWTH 4u

void nd_shm_pool_init(struct nd_shm_pool *pool, uint64_t bytes_max)
{
        *pool = (struct nd_shm_pool){.bytes_max = bytes_max, .root = ""};
        nd_list_init(&pool->segments);
}

void nd_shm_pool_deinit(struct nd_shm_pool *pool)
{
        nd_list_for_each_safe (i, &pool->segments)
                nd_shm_pool_drop(pool, nd_list_entry(i, struct nd_shm_segment, node));
}

/* What blocks could be taken from: nothing of a retired one. */
static uint64_t pool_free_in(const struct nd_shm_segment *segment)
{
        return segment->is_retired ? 0 : segment->memory.bytes - segment->blocks.used_bytes;
}

bool nd_shm_pool_take(struct nd_shm_pool *pool,
                      uint64_t bytes,
                      struct nd_shm_segment **ret_segment,
                      uint64_t *ret_place)
{
        nd_list_for_each (i, &pool->segments) {
                struct nd_shm_segment *segment = nd_list_entry(i, struct nd_shm_segment, node);

                if (pool_free_in(segment) < bytes ||
                    !nd_blocks_take(&segment->blocks, bytes, ret_place))
                        continue;
                *ret_segment = segment;
                return true;
        }
        return false;
}

/* Puts @segment where the next larger one is. */
static void pool_insert(struct nd_shm_pool *pool, struct nd_shm_segment *segment)
{
        struct nd_list *where = pool->segments.next;

        while (where != &pool->segments &&
               nd_list_entry(where, struct nd_shm_segment, node)->memory.bytes <=
                       segment->memory.bytes)
                where = where->next;
        nd_list_insert_before(where, &segment->node);
        ++pool->n_segments;
        pool->bytes += segment->memory.bytes;
}

static int pool_create(struct nd_shm_pool *pool,
                       uint64_t bytes,
                       uint64_t now_ns,
                       struct nd_shm_segment **ret,
                       struct nd_fault *fault)
{
        struct nd_shm_segment *segment = calloc(1, sizeof(*segment));
        struct nd_room room;
        int r;

        if (!segment)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        segment->idle_ns = now_ns;
        r = nd_blocks_init(&segment->blocks, bytes);
        if (r) {
                nd_fault_set(fault, r, "", "out of memory");
        } else {
                nd_room_read(pool->root, &room);
                r = pool->is_bare ? nd_segment_create_bare(bytes, &room, &segment->memory, fault)
                                  : nd_segment_create(bytes, &room, &segment->memory, fault);
        }
        if (r) {
                nd_blocks_deinit(&segment->blocks);
                free(segment);
                return r;
        }
        pool_insert(pool, segment);
        *ret = segment;
        return 0;
}

int nd_shm_pool_grow(struct nd_shm_pool *pool,
                     uint64_t bytes,
                     uint64_t now_ns,
                     struct nd_shm_segment **ret,
                     struct nd_fault *fault)
{
        uint64_t room = pool->bytes_max - nd_min_u64(pool->bytes, pool->bytes_max);
        uint64_t unit = ND_SEGMENT_UNIT_BYTES, wanted;
        int r = NDBUS_ENO_SPACE;

        room -= room % unit;
        if (bytes > room)
                return nd_fault_set_limit(fault, NDBUS_ENO_SPACE, "shm_max", bytes, room, "bytes");
        if (pool->n_segments >= ND_SEGMENTS_MAX)
                return nd_fault_set_limit(fault, NDBUS_ELIMIT, "segments", pool->n_segments + 1,
                                          ND_SEGMENTS_MAX, "");
        bytes = (bytes + unit - 1) / unit * unit;
        wanted = pool->is_bare ? 0 : pool->bytes / POOL_GROWTH / unit * unit;
        wanted = nd_max_u64(bytes, nd_max_u64(wanted, POOL_SEGMENT_BYTES_MIN));
        wanted = nd_min_u64(wanted, room);
        if (wanted > bytes)
                r = pool_create(pool, wanted, now_ns, ret, fault);
        if (r == NDBUS_ENO_SPACE)
                r = pool_create(pool, bytes, now_ns, ret, fault);
        return r;
}

bool nd_shm_pool_give(struct nd_shm_segment *segment, uint64_t place, uint64_t now_ns)
{
        if (!nd_blocks_give(&segment->blocks, place))
                return false;
        if (segment->blocks.n_used == 0)
                segment->idle_ns = now_ns;
        return true;
}

struct nd_shm_segment *nd_shm_pool_idle(const struct nd_shm_pool *pool, uint64_t since_ns)
{
        nd_list_for_each (i, &pool->segments) {
                struct nd_shm_segment *segment = nd_list_entry(i, struct nd_shm_segment, node);

                if (segment->blocks.n_used == 0 &&
                    (segment->is_retired || segment->idle_ns <= since_ns))
                        return segment;
        }
        return NULL;
}

void nd_shm_pool_drop(struct nd_shm_pool *pool, struct nd_shm_segment *segment)
{
        nd_list_unlink(&segment->node);
        --pool->n_segments;
        pool->bytes -= segment->memory.bytes;
        nd_segment_close(&segment->memory);
        nd_blocks_deinit(&segment->blocks);
        free(segment);
}

struct nd_shm_segment *nd_shm_pool_find(const struct nd_shm_pool *pool, uint32_t number)
{
        nd_list_for_each (i, &pool->segments) {
                struct nd_shm_segment *segment = nd_list_entry(i, struct nd_shm_segment, node);

                if (segment->number == number)
                        return segment;
        }
        return NULL;
}

uint64_t nd_shm_pool_free_bytes(const struct nd_shm_pool *pool)
{
        uint64_t bytes = 0;

        nd_list_for_each (i, &pool->segments)
                bytes += pool_free_in(nd_list_entry(i, struct nd_shm_segment, node));
        return bytes;
}

uint64_t nd_shm_pool_largest_free(const struct nd_shm_pool *pool)
{
        uint64_t bytes = 0;

        nd_list_for_each (i, &pool->segments) {
                const struct nd_shm_segment *segment =
                        nd_list_entry(i, struct nd_shm_segment, node);

                if (pool_free_in(segment) > bytes)
                        bytes = nd_max_u64(bytes, nd_blocks_largest_free(&segment->blocks));
        }
        return bytes;
}
