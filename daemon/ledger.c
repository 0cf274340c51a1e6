/* SPDX-License-Identifier: MIT */

/*
 * Ledger
 *
 * The daemon sends every MESSAGE and sees every connection end, so it alone can say who needs a
 * block; no process keeps count in shared memory, where a crash would leave the count wrong. What a
 * client holds is noted when the first byte of its MESSAGE is in the socket, and undone with it.
 *
 * A client that hoards is bounded: beyond a quarter of shm-max, and of the daemon's own blocks beyond a
 * quarter of shm-own-max, it gets its messages by the socket, so that others' publishers get their
 * blocks back.
 */

#include "daemon/ledger.h"
#include <inttypes.h>
#include "daemon/server.h"
#include "protocol/shm/release.h"

static int nd_hold_compare(struct nd_hold *a, struct nd_hold *b)
{
        return (a->block->place > b->block->place) - (a->block->place < b->block->place);
}

static int nd_handed_compare(struct nd_handed *a, struct nd_handed *b)
{
        return (a->number > b->number) - (a->number < b->number);
}

static int nd_handed_share_compare(struct nd_handed *a, struct nd_handed *b)
{
        return ((uintptr_t)a->share > (uintptr_t)b->share) -
               ((uintptr_t)a->share < (uintptr_t)b->share);
}

RB_GENERATE_INTERNAL(
        nd_hold_tree, nd_hold, in_handed, nd_hold_compare, __attribute__((unused)) static)
RB_GENERATE_INTERNAL(
        nd_handed_tree, nd_handed, in_holder, nd_handed_compare, __attribute__((unused)) static)
RB_GENERATE_INTERNAL(nd_handed_share_tree,
                     nd_handed,
                     in_shares,
                     nd_handed_share_compare,
                     __attribute__((unused)) static)

void nd_holder_init(struct nd_holder *holder)
{
        *holder = (struct nd_holder){0};
        RB_INIT(&holder->handed);
        RB_INIT(&holder->by_share);
}

/* ---------------------------------------------------------------------------- segments handed over */

static struct nd_handed *handed_new(struct nd_connection *connection, struct nd_share *share)
{
        struct nd_memory *memory = &connection->server->store.memory;
        struct nd_handed *handed;

        if (!nd_memory_charge(memory, sizeof(*handed)))
                return NULL;
        handed = malloc(sizeof(*handed));
        if (!handed) {
                nd_memory_discharge(memory, sizeof(*handed));
                return NULL;
        }
        *handed = (struct nd_handed){
                .connection = connection,
                .share = share,
                .number = ++connection->holder.last_number,
        };
        RB_INIT(&handed->holds);
        RB_INSERT(nd_handed_tree, &connection->holder.handed, handed);
        RB_INSERT(nd_handed_share_tree, &connection->holder.by_share, handed);
        nd_list_push_tail(&share->handed, &handed->in_share);
        return handed;
}

/* Nothing of it is held. The share may go with it: see nd_share_settle(). */
static void handed_free(struct nd_handed *handed)
{
        struct nd_holder *holder = &handed->connection->holder;

        nd_assert(RB_EMPTY(&handed->holds));
        nd_list_unlink(&handed->in_share);
        RB_REMOVE(nd_handed_tree, &holder->handed, handed);
        RB_REMOVE(nd_handed_share_tree, &holder->by_share, handed);
        nd_memory_discharge(&handed->connection->server->store.memory, sizeof(*handed));
        free(handed);
}

/* One that is gone is kept for what is still held of it. */
static void handed_settle(struct nd_handed *handed)
{
        struct nd_share *share = handed->share;

        if (handed->state != ND_HANDED_GONE || !RB_EMPTY(&handed->holds))
                return;
        handed_free(handed);
        nd_share_settle(share);
}

static struct nd_handed *holder_find(struct nd_holder *holder, uint32_t number)
{
        struct nd_handed key = {.number = number};

        return RB_FIND(nd_handed_tree, &holder->handed, &key);
}

void nd_ledger_segment_gone(struct nd_share *share)
{
        nd_list_for_each_safe (i, &share->handed) {
                struct nd_handed *handed = nd_list_entry(i, struct nd_handed, in_share);
                struct nd_prelude gone = {.kind = ND_KIND_SEGMENT_GONE, .segment = handed->number};

                if (handed->state == ND_HANDED_TOLD)
                        nd_outbox_control(&handed->connection->outbox, &gone, NULL, NULL, 0);
                handed->state = ND_HANDED_GONE;
                if (RB_EMPTY(&handed->holds))
                        handed_free(handed);
        }
}

/* --------------------------------------------------------------------------------------- holding */

static bool ledger_is_beyond(uint64_t held_bytes, uint64_t bytes, uint64_t max)
{
        uint64_t cap = max / ND_HOLDER_PART;

        return bytes > cap - nd_min_u64(held_bytes, cap);
}

/* One block always passes the cap. */
static bool ledger_is_over(const struct nd_connection *connection, const struct nd_block *block)
{
        const struct nd_options *options = &connection->server->options;
        const struct nd_holder *holder = &connection->holder;

        if (holder->n_held == 0)
                return false;
        return ledger_is_beyond(holder->held_bytes, block->bytes, options->shm_max) ||
               (nd_block_is_own(block) &&
                ledger_is_beyond(holder->held_own_bytes, block->bytes, options->shm_own_max));
}

bool nd_ledger_takes_blocks(const struct nd_connection *connection)
{
        /* a segment shows all topics in it */
        return connection->features & ND_FEATURE_SHM && connection->sees_all;
}

/* The same of all that its identity holds; a limit of 0 means none at all. */
static bool ledger_is_over_quota(const struct nd_connection *connection,
                                 const struct nd_block *block)
{
        const struct nd_quota *quota = &connection->quota;
        bool is_first = quota->account->used[ND_LIMIT_HELD] == 0 && quota->most[ND_LIMIT_HELD] > 0;

        return !is_first && nd_quota_is_over(quota, ND_LIMIT_HELD, block->bytes);
}

enum nd_way nd_ledger_way(struct nd_connection *connection,
                          struct nd_block *block,
                          struct nd_handed **ret_handed)
{
        struct nd_handed key = {.share = block->share};
        struct nd_handed *handed;

        if (!(connection->features & ND_FEATURE_SHM))
                return ND_WAY_SOCKET;
        if (!nd_ledger_takes_blocks(connection) || ledger_is_over(connection, block) ||
            ledger_is_over_quota(connection, block) ||
            !nd_own_fill(block->share, block->share->memory.bytes))
                return ND_WAY_FALLBACK;
        handed = RB_FIND(nd_handed_share_tree, &connection->holder.by_share, &key);
        if (!handed && !block->share->is_retired)
                handed = handed_new(connection, block->share);
        if (!handed || handed->state == ND_HANDED_REFUSED ||
            (handed->state == ND_HANDED_NEW && block->share->is_retired))
                return ND_WAY_FALLBACK;
        nd_assert(handed->state != ND_HANDED_GONE);
        *ret_handed = handed;
        return handed->state == ND_HANDED_NEW ? ND_WAY_HAND : ND_WAY_BLOCK;
}

static struct nd_hold *handed_find(struct nd_handed *handed, uint64_t place)
{
        struct nd_block block = {.place = place};
        struct nd_hold key = {.block = &block};

        return RB_FIND(nd_hold_tree, &handed->holds, &key);
}

bool nd_ledger_hold(struct nd_handed *handed, struct nd_block *block)
{
        struct nd_server *server = handed->connection->server;
        struct nd_hold *hold = handed_find(handed, block->place);

        if (!hold) {
                if (!nd_memory_charge(&server->store.memory, sizeof(*hold)))
                        return false;
                hold = nd_slab_take(&server->store.shm_holds, sizeof(*hold));
                if (!hold) {
                        nd_memory_discharge(&server->store.memory, sizeof(*hold));
                        return false;
                }
                *hold = (struct nd_hold){.block = block, .since_ns = server->now_ns};
                RB_INSERT(nd_hold_tree, &handed->holds, hold);
                nd_block_hold(block);
                handed->connection->holder.held_bytes += block->bytes;
                nd_quota_charge(&handed->connection->quota, ND_LIMIT_HELD, block->bytes);
                if (nd_block_is_own(block))
                        handed->connection->holder.held_own_bytes += block->bytes;
        }
        ++hold->n;
        ++handed->connection->holder.n_held;
        return true;
}

/* All deliveries of a block. */
static void hold_free(struct nd_handed *handed, struct nd_hold *hold)
{
        struct nd_store *store = &handed->connection->server->store;
        struct nd_holder *holder = &handed->connection->holder;
        struct nd_block *block = hold->block;

        holder->n_held -= hold->n;
        holder->held_bytes -= block->bytes;
        nd_quota_discharge(&handed->connection->quota, ND_LIMIT_HELD, block->bytes);
        if (nd_block_is_own(block))
                holder->held_own_bytes -= block->bytes;
        RB_REMOVE(nd_hold_tree, &handed->holds, hold);
        nd_memory_discharge(&store->memory, sizeof(*hold));
        nd_slab_give(&store->shm_holds, hold);
        nd_block_unhold(block);
}

static void hold_release(struct nd_handed *handed, struct nd_hold *hold)
{
        if (hold->n > 1) {
                --hold->n;
                --handed->connection->holder.n_held;
                return;
        }
        hold_free(handed, hold);
        handed_settle(handed);
}

void nd_ledger_unhold(struct nd_handed *handed, struct nd_block *block)
{
        struct nd_hold *hold = handed_find(handed, block->place);

        nd_assert(hold);
        hold_release(handed, hold);
}

int nd_ledger_release(struct nd_connection *connection,
                      const struct nd_packet *packet,
                      struct nd_fault *fault)
{
        struct nd_release_reader reader = {
                .data = packet->body,
                .n = (size_t)packet->prelude.body_bytes,
        };
        uint32_t number;
        uint64_t place;
        int r;

        while ((r = nd_release_next(&reader, &number, &place, fault)) > 0) {
                struct nd_handed *handed = holder_find(&connection->holder, number);
                struct nd_hold *hold = handed ? handed_find(handed, place) : NULL;

                if (!hold)
                        return nd_fault_set(fault, NDBUS_EPROTOCOL, "RELEASE",
                                            "segment %u, place %" PRIu64
                                            ": it does not hold such a block",
                                            number, place);
                hold_release(handed, hold);
        }
        return r;
}

static void handed_release_all(struct nd_handed *handed)
{
        struct nd_hold *hold;

        while ((hold = RB_ROOT(&handed->holds)))
                hold_free(handed, hold);
}

void nd_handed_refuse(struct nd_handed *handed)
{
        handed_release_all(handed);
        if (handed->state != ND_HANDED_GONE)
                handed->state = ND_HANDED_REFUSED;
        handed_settle(handed);
}

int nd_ledger_unmappable(struct nd_connection *connection, uint32_t number, struct nd_fault *fault)
{
        struct nd_handed *handed = holder_find(&connection->holder, number);

        if (number > connection->holder.last_number)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u was not handed over",
                                    number);
        if (handed) /* else it has gone a moment ago */
                nd_handed_refuse(handed);
        return 0;
}

/* One that is new did not get it. That it cannot map one is only what it says. */
void nd_holder_leave(struct nd_holder *holder)
{
        struct nd_handed *handed;

        RB_FOREACH (handed, nd_handed_tree, &holder->handed) {
                if (handed->state != ND_HANDED_NEW)
                        handed->share->was_left = true;
        }
}

void nd_holder_retire(struct nd_holder *holder)
{
        struct nd_handed *handed;

        RB_FOREACH (handed, nd_handed_tree, &holder->handed) {
                if (handed->state != ND_HANDED_NEW)
                        nd_share_retire(handed->share);
        }
}

void nd_holder_deinit(struct nd_holder *holder)
{
        struct nd_handed *handed;

        nd_holder_leave(holder);
        while ((handed = RB_ROOT(&holder->handed))) {
                handed->state = ND_HANDED_GONE;
                handed_release_all(handed);
                handed_settle(handed);
        }
}

uint64_t nd_holder_oldest_ns(struct nd_holder *holder)
{
        struct nd_handed *handed;
        struct nd_hold *hold;
        uint64_t oldest = 0;

        RB_FOREACH (handed, nd_handed_tree, &holder->handed) {
                RB_FOREACH (hold, nd_hold_tree, &handed->holds)
                        oldest = oldest ? nd_min_u64(oldest, hold->since_ns) : hold->since_ns;
        }
        return oldest;
}
