/* SPDX-License-Identifier: MIT */

/*
 * Share
 *
 * The daemon checks a segment once, when it is announced: a sealed memfd whose pages are all there
 * can be read without fear whatever its maker does. From then on it passes descriptors on and keeps
 * books; bytes it touches only for clients that have no shared memory.
 *
 * A share outlives its publisher as long as a message in it is wanted, and its record as long as a
 * client holds a block of it, because RELEASE must still find it. One of the daemon's own has no owner to
 * be told: a block that is released goes back to its pool.
 *
 * Memory that was shared cannot be taken back. So when a client loses the right to see everything, the
 * segments that it was handed retire: nothing more is to be written into them. Who is gone may have kept
 * its mapping, and nobody knows which rules name it; what it had retires with any change of the rules.
 */

#include "daemon/share.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "daemon/server.h"
#include "protocol/shm/release.h"

static int nd_block_compare(struct nd_block *a, struct nd_block *b)
{
        return (a->place > b->place) - (a->place < b->place);
}

static int nd_share_compare(struct nd_share *a, struct nd_share *b)
{
        return (a->number > b->number) - (a->number < b->number);
}

RB_GENERATE(nd_block_tree, nd_block, in_share, nd_block_compare)
RB_GENERATE(nd_share_tree, nd_share, in_lender, nd_share_compare)

void nd_lender_init(struct nd_lender *lender)
{
        *lender = (struct nd_lender){0};
        RB_INIT(&lender->shares);
        nd_list_init(&lender->released);
}

static struct nd_share *lender_find(struct nd_lender *lender, uint32_t number)
{
        struct nd_share key = {.number = number};

        return RB_FIND(nd_share_tree, &lender->shares, &key);
}

/* ------------------------------------------------------------------------------------ announcing */

static int share_check(struct nd_connection *connection,
                       const struct nd_prelude *prelude,
                       int fd,
                       struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        const struct nd_lender *lender = &connection->lender;
        uint64_t most = server->options.shm_max;
        size_t n_pending = nd_closer_pending(&server->closer);

        if (fd < 0)
                return nd_fault_set(fault, NDBUS_ENO_FD, "fd", "none came with the packet");
        if (server->n_shares + n_pending >= server->shares_max)
                return nd_fault_set_numbers(
                        fault, NDBUS_ENO_FD, "fd", server->n_shares + n_pending + 1,
                        server->shares_max,
                        "would be one more than the %zu segments of all clients "
                        "and the %zu descriptors that are still being closed, "
                        "the limit of both together is %zu",
                        server->n_shares, n_pending, server->shares_max);
        if (lender->n_shares >= ND_SEGMENTS_MAX)
                return nd_fault_set_limit(fault, NDBUS_ELIMIT, "segments", lender->n_shares + 1,
                                          ND_SEGMENTS_MAX, "segments of one client");
        if (prelude->place > most - nd_min_u64(lender->bytes, most))
                return nd_fault_set_limit(fault, NDBUS_ELIMIT, "shm-max",
                                          prelude->place > UINT64_MAX - lender->bytes
                                                  ? UINT64_MAX
                                                  : lender->bytes + prelude->place,
                                          most, "bytes of segments of one client");
        return nd_segment_check(fd, prelude->place, fault);
}

/* Takes over @memory on success; else the fault says why: NDBUS_ENO_SPACE, NDBUS_ENOMEM. */
static struct nd_share *share_new(struct nd_server *server,
                                  const struct nd_segment *memory,
                                  uint32_t number,
                                  struct nd_fault *fault)
{
        struct nd_share *share;

        if (!nd_server_charge(server, sizeof(*share))) {
                nd_memory_fault(&server->store.memory, sizeof(*share), fault);
                return NULL;
        }
        share = calloc(1, sizeof(*share));
        if (!share) {
                nd_memory_discharge(&server->store.memory, sizeof(*share));
                nd_fault_set(fault, NDBUS_ENOMEM, "segment", "no memory");
                return NULL;
        }
        share->server = server;
        share->number = number;
        share->memory = *memory;
        RB_INIT(&share->blocks);
        nd_list_init(&share->handed);
        nd_list_init(&share->rescue.in_server);
        nd_list_push_tail(&server->shares, &share->in_server);
        ++server->n_shares;
        server->shares_bytes += share->memory.bytes;
        return share;
}

/* Takes @fd on success. 0, NDBUS_ENO_SPACE, NDBUS_ENOMEM */
static int share_lend(struct nd_connection *connection,
                      const struct nd_prelude *prelude,
                      int fd,
                      struct nd_fault *fault)
{
        const struct nd_segment memory = {.fd = fd, .bytes = prelude->place};
        struct nd_lender *lender = &connection->lender;
        struct nd_share *share = share_new(connection->server, &memory, prelude->segment, fault);

        if (!share)
                return fault->code;
        share->owner = connection;
        RB_INSERT(nd_share_tree, &lender->shares, share);
        ++lender->n_shares;
        lender->bytes += share->memory.bytes;
        ++connection->server->counters.shm_segments;
        return 0;
}

struct nd_share *nd_share_new_own(struct nd_server *server, struct nd_shm_segment *segment)
{
        struct nd_share *share = share_new(server, &segment->memory, segment->number, NULL);

        if (!share)
                return NULL;
        share->own = segment;
        share->charged_bytes = share->memory.bytes;
        nd_memory_charge_anyway(&server->store.memory, share->charged_bytes);
        return share;
}

int nd_share_announce(struct nd_connection *connection,
                      const struct nd_prelude *prelude,
                      int fd,
                      struct nd_fault *fault)
{
        struct nd_prelude answer = {
                .kind = ND_KIND_SEGMENT,
                .segment = prelude->segment,
                .sequence = prelude->sequence,
        };
        int r = 0;

        if (lender_find(&connection->lender, prelude->segment))
                r = nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u is announced already",
                                 prelude->segment);
        if (r == 0)
                r = share_check(connection, prelude, fd, fault);
        if (r == 0)
                r = share_lend(connection, prelude, fd, fault);
        if (r == 0) {
                nd_outbox_control(&connection->outbox, &answer, NULL, NULL, 0);
                return 0;
        }
        if (fd >= 0)
                nd_closer_close(&connection->server->closer, &fd, 1);
        if (r == NDBUS_EPROTOCOL)
                return r;
        ++connection->server->counters.shm_refused;
        nd_log_limited(&connection->server->segment_log, connection->server->now_ns, ND_LOG_NOTICE,
                       "segment refused peer=\"%s\" client=\"%s\" error=%s: %s: %s",
                       connection->peer, connection->client, ndbus_errname(r), fault->field,
                       fault->text);
        nd_connection_error(connection, fault, ND_KIND_SEGMENT, prelude->sequence);
        return 0;
}

/* ----------------------------------------------------------------------------------------- going */

/* Its memory is no longer needed here; those who map it keep it. */
static void share_close(struct nd_share *share)
{
        struct nd_server *server = share->server;

        if (share->memory.fd < 0)
                return;
        nd_rescue_end(share);
        nd_closer_close_segment(&server->closer, &share->memory);
        nd_memory_discharge(&server->store.memory, share->charged_bytes);
        share->charged_bytes = 0;
        nd_list_unlink(&share->in_server);
        --server->n_shares;
        server->shares_bytes -= share->memory.bytes;
        nd_ledger_segment_gone(share);
}

void nd_share_settle(struct nd_share *share)
{
        if (share->owner || share->own || share->is_busy)
                return;
        if (share->n_wanted == 0)
                share_close(share);
        if (share->n_blocks > 0 || !nd_list_is_empty(&share->handed))
                return;
        nd_memory_discharge(&share->server->store.memory, sizeof(*share));
        free(share);
}

static void block_free(struct nd_block *block)
{
        struct nd_share *share = block->share;

        nd_list_unlink(&block->in_released);
        RB_REMOVE(nd_block_tree, &share->blocks, block);
        --share->n_blocks;
        nd_memory_discharge(&share->server->store.memory, sizeof(*block));
        nd_slab_give(&share->server->store.shm_blocks, block);
}

/* The owner lets go of it. */
static void share_disown(struct nd_share *share)
{
        struct nd_lender *lender = &share->owner->lender;
        struct nd_block *block, *next;

        RB_REMOVE(nd_share_tree, &lender->shares, share);
        --lender->n_shares;
        lender->bytes -= share->memory.bytes;
        share->owner = NULL;
        RB_FOREACH_SAFE (block, nd_block_tree, &share->blocks, next) {
                if (!nd_list_is_empty(&block->in_released))
                        block_free(block); /* nobody is left to be told */
        }
        if (share->n_wanted > 0) {
                /* it is the daemon's alone to give back now, and all of it stays or goes */
                share->charged_bytes = share->memory.bytes - share->wanted_bytes;
                nd_memory_charge_anyway(&share->server->store.memory, share->charged_bytes);
                nd_log(ND_LOG_INFO,
                       "segment kept bytes=%" PRIu64 " messages=%zu of %" PRIu64
                       " bytes wait in it, and its publisher is gone",
                       share->memory.bytes, share->n_wanted, share->wanted_bytes);
                nd_rescue_consider(share);
        }
        nd_share_settle(share);
}

void nd_share_end_own(struct nd_share *share)
{
        nd_assert(share->n_blocks == 0);
        share->own = NULL;
        nd_share_settle(share);
}

void nd_lender_deinit(struct nd_lender *lender)
{
        struct nd_share *share;

        while ((share = RB_ROOT(&lender->shares)))
                share_disown(share);
        nd_assert(nd_list_is_empty(&lender->released));
}

int nd_share_withdraw(struct nd_connection *connection, uint32_t number, struct nd_fault *fault)
{
        struct nd_share *share = lender_find(&connection->lender, number);

        if (!share)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u is not announced",
                                    number);
        if (share->n_blocks > 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment",
                                    "%u has %zu blocks that are not released", number,
                                    share->n_blocks);
        share_disown(share);
        return 0;
}

/* -------------------------------------------------------------------------------------- retiring */

void nd_share_retire(struct nd_share *share)
{
        struct nd_connection *owner = share->owner;
        struct nd_prelude gone = {
                .kind = ND_KIND_SEGMENT_GONE,
                .segment = share->number,
                .sequence = 1,
        };

        if (share->is_retired || (!owner && !share->own))
                return;
        share->is_retired = true;
        if (share->own)
                share->own->is_retired = true;
        else
                nd_outbox_control(&owner->outbox, &gone, NULL, NULL, 0);
        nd_log(ND_LOG_INFO,
               "segment retired client=\"%s\" segment=%u bytes=%" PRIu64
               " a client that may have it may not see every topic any more",
               owner ? owner->client : "ndbusd", share->number, share->memory.bytes);
}

void nd_shares_retire_left(struct nd_server *server)
{
        nd_list_for_each (i, &server->shares) {
                struct nd_share *share = nd_list_entry(i, struct nd_share, in_server);

                if (share->was_left)
                        nd_share_retire(share);
        }
}

/* ---------------------------------------------------------------------------------------- blocks */

struct nd_block *
nd_share_add(struct nd_share *share, uint64_t place, uint64_t bytes, struct nd_fault *fault)
{
        struct nd_server *server = share->server;
        struct nd_memory *memory = &server->store.memory;
        struct nd_block *block;

        if (!nd_server_charge(server, sizeof(*block))) {
                nd_memory_fault(memory, sizeof(*block), fault);
                return NULL;
        }
        block = nd_slab_take(&server->store.shm_blocks, sizeof(*block));
        if (!block) {
                nd_memory_discharge(memory, sizeof(*block));
                nd_fault_set(fault, NDBUS_ENO_SPACE, "block", "no memory");
                return NULL;
        }
        *block = (struct nd_block){.share = share, .place = place, .bytes = bytes};
        nd_list_init(&block->in_released);
        RB_INSERT(nd_block_tree, &share->blocks, block);
        ++share->n_blocks;
        return nd_block_want(block);
}

int nd_lender_block(struct nd_connection *connection,
                    const struct nd_prelude *prelude,
                    struct nd_block **ret,
                    struct nd_fault *fault)
{
        struct nd_share *share = lender_find(&connection->lender, prelude->segment);

        if (!share)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u is not announced",
                                    prelude->segment);
        if (prelude->place > share->memory.bytes ||
            prelude->body_bytes > share->memory.bytes - prelude->place)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "place",
                                    "a block of %" PRIu64 " bytes at %" PRIu64
                                    " is not within the %" PRIu64 " bytes of segment %u",
                                    prelude->body_bytes, prelude->place, share->memory.bytes,
                                    prelude->segment);
        if (RB_FIND(nd_block_tree, &share->blocks, &(struct nd_block){.place = prelude->place}))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "place",
                                    "the block at %" PRIu64
                                    " of segment %u is published and not released",
                                    prelude->place, prelude->segment);
        *ret = nd_share_add(share, prelude->place, prelude->body_bytes, fault);
        return *ret ? 0 : NDBUS_ENO_SPACE;
}

/* Nobody needs it any more, if that is so. */
static void block_settle(struct nd_block *block)
{
        struct nd_share *share = block->share;
        struct nd_connection *owner = share->owner;

        if (block->n_wants == 0 && block->n_holds == 0) {
                if (owner) {
                        nd_list_push_tail(&owner->lender.released, &block->in_released);
                        nd_connection_mark_dirty(owner);
                        return;
                }
                if (share->own)
                        nd_shm_pool_give(share->own, block->place, share->server->now_ns);
                block_free(block);
        }
        nd_share_settle(share);
}

struct nd_block *nd_block_want(struct nd_block *block)
{
        struct nd_share *share = block->share;

        if (block->n_wants++ == 0) {
                ++share->n_wanted;
                share->wanted_bytes += block->bytes;
        }
        return block;
}

struct nd_block *nd_block_unwant(struct nd_block *block)
{
        struct nd_share *share;

        if (!block || --block->n_wants > 0)
                return NULL;
        share = block->share;
        --share->n_wanted;
        share->wanted_bytes -= block->bytes;
        if (!share->owner && !share->own) {
                share->charged_bytes += block->bytes;
                nd_memory_charge_anyway(&share->server->store.memory, block->bytes);
                nd_rescue_consider(share);
        }
        block_settle(block);
        return NULL;
}

void nd_block_hold(struct nd_block *block)
{
        ++block->n_holds;
}

void nd_block_unhold(struct nd_block *block)
{
        if (--block->n_holds == 0)
                block_settle(block);
}

bool nd_block_is_own(const struct nd_block *block)
{
        return block && block->share->own;
}

uint8_t *nd_block_bytes(struct nd_block *block)
{
        struct nd_segment *memory = &block->share->memory;

        if (!memory->base) {
                nd_assert(memory->fd >= 0);
                if (nd_segment_map_read(memory->fd, memory->bytes, memory, NULL) < 0)
                        return NULL;
        }
        return memory->base + block->place;
}

/* -------------------------------------------------------------------------------------- releasing */

static void lender_send_release(struct nd_connection *connection,
                                const struct nd_release_writer *writer)
{
        struct nd_prelude prelude = {.kind = ND_KIND_RELEASE};

        nd_outbox_control(&connection->outbox, &prelude, NULL, writer->data, writer->n);
}

void nd_lender_write_released(struct nd_connection *connection)
{
        static uint8_t body[ND_CONTROL_BODY_BYTES_MAX]; /* one loop, one thread */
        struct nd_list *released = &connection->lender.released;

        while (!nd_list_is_empty(released) && !nd_outbox_is_full(&connection->outbox)) {
                struct nd_release_writer writer = {.data = body};

                while (!nd_list_is_empty(released)) {
                        struct nd_block *block =
                                nd_list_entry(released->next, struct nd_block, in_released);

                        if (!nd_release_add(&writer, block->share->number, block->place))
                                break;
                        block_free(block);
                }
                lender_send_release(connection, &writer);
        }
}

void nd_lender_release(struct nd_connection *connection, uint32_t number, uint64_t place)
{
        uint8_t body[32];
        struct nd_release_writer writer = {.data = body};

        (void)nd_release_add(&writer, number, place);
        lender_send_release(connection, &writer);
}
