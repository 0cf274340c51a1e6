/* SPDX-License-Identifier: MIT */

/*
 * Own blocks
 *
 * A large body that comes by a socket, and that a client of this machine wants in shared memory, is
 * received into a block of the daemon's own. From there on it is like any block: handed over to those
 * who map it, held by them in the ledger, sent from the mapping to all others. It comes back to the
 * pool when no message and no client needs it.
 *
 * All segments are charged to memory-max as long as they exist, and what lies in them is not charged
 * again. So that they leave room for everything else they are an eighth of it at most; they go as soon
 * as memory is short and nothing is in them. When there is no block, a body is received and sent as if
 * there were no shared memory.
 *
 * Making memory takes longer than receiving into it. So a segment is made without, and gets it piece
 * by piece just ahead of the bytes; when the first body in it is whole, and the segment is to be
 * handed over, at most a few MiB are missing.
 *
 * Decided against: a thread that makes segments (the first arrays of each flow would go by the
 * socket), copying out of the arena when the body is whole (a copy for each message).
 */

#include "daemon/own.h"
#include <inttypes.h>
#include "daemon/server.h"

/* Ahead of the bytes, at most: what a packet carries. */
#define OWN_FILL_BYTES ND_MIB

/* When there was no memory for a segment, it is not looked for again for a while. */
#define OWN_RETRY_NS (UINT64_C(1) * 1000000000)

void nd_own_init(struct nd_server *server)
{
        nd_shm_pool_init(&server->own.pool, server->options.shm_own_max);
        server->own.pool.is_bare = true;
}

static void own_drop(struct nd_server *server, struct nd_shm_segment *segment)
{
        /* the memory is the share's */
        segment->memory.fd = -1;
        segment->memory.base = NULL;
        nd_share_end_own(segment->user);
        nd_shm_pool_drop(&server->own.pool, segment);
}

bool nd_own_trim(struct nd_server *server, uint64_t ago_ns)
{
        uint64_t since_ns =
                ago_ns == 0 ? UINT64_MAX : server->now_ns - nd_min_u64(ago_ns, server->now_ns);
        struct nd_shm_segment *segment;
        bool is_any = false;

        while ((segment = nd_shm_pool_idle(&server->own.pool, since_ns))) {
                own_drop(server, segment);
                is_any = true;
        }
        return is_any;
}

void nd_own_deinit(struct nd_server *server)
{
        (void)nd_own_trim(server, 0);
        nd_assert(server->own.pool.n_segments == 0);
}

/* How large a segment there may be besides those that there are. */
static uint64_t own_room(const struct nd_server *server)
{
        const struct nd_shm_pool *pool = &server->own.pool;
        const struct nd_memory *memory = &server->store.memory;
        uint64_t n_taken = nd_memory_taken(memory) + sizeof(struct nd_share);
        uint64_t n;

        if (pool->n_segments >= ND_SEGMENTS_MAX ||
            server->n_shares + nd_closer_pending(&server->closer) >= server->shares_max)
                return 0;
        n = nd_min_u64(server->options.shm_own_max - pool->bytes,
                       memory->max_bytes - nd_min_u64(n_taken, memory->max_bytes));
        return n - n % ND_SEGMENT_UNIT_BYTES;
}

static bool own_grow(struct nd_server *server, uint64_t bytes)
{
        struct nd_own *own = &server->own;
        struct nd_shm_segment *segment;

        if (bytes > server->options.shm_own_max)
                return false;
        if (bytes > own_room(server) && (!nd_own_trim(server, 0) || bytes > own_room(server)))
                return false;
        if (own->failed_ns > 0 && server->now_ns - own->failed_ns < OWN_RETRY_NS)
                return false;
        own->pool.bytes_max = own->pool.bytes + own_room(server);
        if (nd_shm_pool_grow(&own->pool, bytes, server->now_ns, &segment, NULL) < 0) {
                own->failed_ns = server->now_ns;
                return false;
        }
        own->failed_ns = 0;
        segment->number = ++own->last_number;
        segment->user = nd_share_new_own(server, segment);
        if (!segment->user) {
                nd_shm_pool_drop(&own->pool, segment);
                return false;
        }
        return true;
}

static void own_say_exhausted(struct nd_server *server, uint64_t bytes)
{
        const struct nd_shm_pool *pool = &server->own.pool;

        ++server->counters.shm_own_exhausted;
        nd_log_limited(&server->own_log, server->now_ns, ND_LOG_NOTICE,
                       "no block of the daemon's own, a message goes by the socket bytes=%" PRIu64
                       " free_bytes=%" PRIu64 " largest_bytes=%" PRIu64 " segments=%zu"
                       " segments_bytes=%" PRIu64 " shm_own_max=%" PRIu64,
                       bytes, nd_shm_pool_free_bytes(pool), nd_shm_pool_largest_free(pool),
                       pool->n_segments, pool->bytes, server->options.shm_own_max);
}

static bool own_is_wanted(struct nd_topic *topic)
{
        struct nd_target **targets;
        size_t n;

        if (nd_topic_route(topic, &targets, &n) < 0)
                return false;
        for (size_t i = 0; i < n; ++i) {
                if (nd_sink_takes_blocks(nd_sink_from_target(targets[i])))
                        return true;
        }
        return false;
}

struct nd_block *nd_own_take(struct nd_server *server, struct nd_topic *topic, uint64_t bytes)
{
        struct nd_shm_pool *pool = &server->own.pool;
        struct nd_shm_segment *segment;
        struct nd_block *block = NULL;
        uint64_t place;

        if (bytes < ND_OWN_BYTES_MIN || server->options.shm_own_max == 0 || !own_is_wanted(topic))
                return NULL;
        if (nd_shm_pool_take(pool, bytes, &segment, &place) ||
            (own_grow(server, bytes) && nd_shm_pool_take(pool, bytes, &segment, &place))) {
                block = nd_share_add(segment->user, place, bytes, NULL);
                if (!block)
                        (void)nd_shm_pool_give(segment, place, server->now_ns);
        }
        if (!block)
                own_say_exhausted(server, bytes);
        return block;
}

bool nd_own_fill(struct nd_share *share, uint64_t to)
{
        uint64_t from = share->filled_bytes;

        if (!share->own || to <= from)
                return true;
        to = nd_min_u64((to + OWN_FILL_BYTES - 1) / OWN_FILL_BYTES * OWN_FILL_BYTES,
                        share->memory.bytes);
        if (nd_segment_fill(&share->memory, from, to, NULL) < 0)
                return false;
        share->filled_bytes = to;
        return true;
}
