/* SPDX-License-Identifier: MIT */

/*
 * Rescue
 *
 * A segment whose publisher is gone stays as long as a queue or a retained value needs a block of
 * it, and all of it is charged, however little that is. So when less than half of it is wanted,
 * the daemon copies that out, a slice each time the loop comes round, and lets go of the segment. It
 * does so for any of them when all that is charged is more than memory-max, because what a copy
 * needs is charged with its message already; and when half of the segments that there may be are
 * taken, so that those who come and go do not take them from those who stay.
 * Those who hold blocks of it keep their mapping; that is their memory then.
 */

#include "daemon/rescue.h"
#include <string.h>
#include "daemon/server.h"

#define RESCUE_SLICE_BYTES ND_MIB /* some 100 us */

static bool rescue_is_worth_it(const struct nd_share *share)
{
        const struct nd_server *server = share->server;
        const struct nd_memory *memory = &server->store.memory;

        return share->wanted_bytes < share->memory.bytes / 2 ||
               nd_memory_taken(memory) > memory->max_bytes ||
               server->n_shares > server->shares_max / 2;
}

void nd_rescue_consider(struct nd_share *share)
{
        struct nd_rescue *rescue = &share->rescue;

        if (!nd_list_is_empty(&rescue->in_server) || share->n_wanted == 0 ||
            !rescue_is_worth_it(share))
                return;
        nd_list_push_tail(&share->server->rescues, &rescue->in_server);
        nd_server_watch_rescues(share->server);
}

static void rescue_forget(struct nd_rescue *rescue)
{
        struct nd_message *message = nd_steal(rescue->message);

        nd_message_unref(nd_steal(rescue->copy));
        nd_message_unref(message);
}

void nd_rescue_end(struct nd_share *share)
{
        nd_list_unlink(&share->rescue.in_server);
        share->rescue.next_place = 0;
        rescue_forget(&share->rescue);
}

/* Begins with the next message. */
static bool rescue_begin(struct nd_share *share)
{
        struct nd_rescue *rescue = &share->rescue;
        struct nd_block key = {.place = rescue->next_place};
        struct nd_block *block = RB_NFIND(nd_block_tree, &share->blocks, &key);

        for (; block; block = RB_NEXT(nd_block_tree, &share->blocks, block)) {
                rescue->next_place = block->place + 1;
                if (!block->message)
                        continue;
                rescue->copy = nd_message_new_copy(block->message);
                if (!rescue->copy || !nd_message_reach(block->message))
                        break;
                rescue->message = nd_message_ref(block->message);
                return true;
        }
        return false;
}

/* false: there is no memory */
static bool rescue_copy(struct nd_share *share)
{
        struct nd_rescue *rescue = &share->rescue;
        struct nd_message *message = rescue->message;
        uint64_t n_left = RESCUE_SLICE_BYTES;

        if (message->n_refs == 1) { /* nobody wants it any more */
                rescue_forget(rescue);
                return true;
        }
        while (n_left > 0 && rescue->copy->received_bytes < message->body_bytes) {
                uint64_t at = rescue->copy->received_bytes;
                struct iovec iov;
                size_t n_iov;
                size_t n =
                        nd_message_space(rescue->copy, nd_min_u64(message->body_bytes - at, n_left),
                                         &iov, 1, &n_iov);

                if (n == 0)
                        return false;
                memcpy(iov.iov_base, message->tail + at, n);
                nd_message_received(rescue->copy, n);
                share->server->counters.body_bytes_copied += n;
                n_left -= n;
        }
        if (rescue->copy->received_bytes == message->body_bytes) {
                nd_message_move(message, nd_steal(rescue->copy));
                rescue_forget(rescue);
        }
        return true;
}

bool nd_rescue_step(struct nd_server *server)
{
        struct nd_list *node = nd_list_first(&server->rescues);
        struct nd_share *share;

        if (!node)
                return false;
        share = nd_list_entry(node, struct nd_share, rescue.in_server);
        if (share->rescue.message || rescue_begin(share)) {
                share->is_busy = true;
                if (!rescue_copy(share))
                        nd_rescue_end(share); /* it is tried again when one more goes */
                share->is_busy = false;
                nd_share_settle(share);
        } else {
                nd_rescue_end(share);
        }
        return !nd_list_is_empty(&server->rescues);
}
