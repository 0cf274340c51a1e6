/* SPDX-License-Identifier: MIT */

/*
 * Message
 *
 * A body is a row of arena blocks and an exact tail, filled in order as bytes arrive and sent from
 * where they lie. Small bodies are all tail, and tail and meta share the message's own allocation,
 * so a small message is one allocation, and a recycled one (slab.h).
 *
 * Blocks are taken when bytes arrive for them, not when a body is announced: announcing costs
 * nothing but the charge. They are given back one by one when every receiver is past them and
 * nobody will begin from the first byte any more.
 *
 * A body in shared memory has no arena blocks, and is all tail. A publisher's is complete from the start
 * and mapped once somebody needs to read it; the daemon's own is filled like any other.
 */

#include "daemon/message.h"
#include <string.h>
#include "daemon/credit.h"
#include "daemon/own.h"
#include "daemon/router.h"
#include "daemon/share.h"

int nd_store_init(struct nd_store *store, uint64_t memory_max)
{
        *store = (struct nd_store){.memory = {.max_bytes = memory_max}};
        return nd_arena_init(&store->arena, memory_max);
}

void nd_store_deinit(struct nd_store *store)
{
        nd_assert(store->n_messages == 0);
        nd_slab_deinit(&store->small_messages);
        nd_slab_deinit(&store->entries);
        nd_slab_deinit(&store->shm_blocks);
        nd_slab_deinit(&store->shm_holds);
        nd_arena_deinit(&store->arena);
}

struct nd_header_bytes *nd_header_bytes_new(const void *data, uint32_t n)
{
        struct nd_header_bytes *header = malloc(sizeof(*header) + n);

        if (!header)
                return NULL;
        header->n_refs = 1;
        header->n = n;
        memcpy(header->bytes, data, n);
        return header;
}

struct nd_header_bytes *nd_header_bytes_ref(struct nd_header_bytes *header)
{
        ++header->n_refs;
        return header;
}

struct nd_header_bytes *nd_header_bytes_unref(struct nd_header_bytes *header)
{
        if (header && --header->n_refs == 0)
                free(header);
        return NULL;
}

static size_t message_n_blocks(uint64_t body_bytes)
{
        return (size_t)(body_bytes / ND_BLOCK_BYTES);
}

static size_t message_tail_bytes(uint64_t body_bytes)
{
        return (size_t)(body_bytes % ND_BLOCK_BYTES);
}

static size_t message_struct_bytes(uint64_t meta_bytes, uint64_t body_bytes)
{
        return sizeof(struct nd_message) + message_n_blocks(body_bytes) * sizeof(uint8_t *) +
               message_tail_bytes(body_bytes) + (size_t)meta_bytes;
}

static bool message_is_small(uint64_t meta_bytes, uint64_t body_bytes)
{
        return message_struct_bytes(meta_bytes, body_bytes) <= ND_MESSAGE_SMALL_BYTES;
}

uint64_t nd_message_cost(uint64_t meta_bytes, uint64_t body_bytes)
{
        return nd_max_u64(message_struct_bytes(meta_bytes, body_bytes), ND_MESSAGE_SMALL_BYTES) +
               message_n_blocks(body_bytes) * (uint64_t)ND_BLOCK_BYTES;
}

struct nd_message *nd_message_new(struct nd_store *store,
                                  const struct nd_prelude *prelude,
                                  struct nd_header_bytes *header,
                                  struct nd_topic *topic,
                                  const uint8_t *meta,
                                  struct nd_block *block)
{
        bool is_own = nd_block_is_own(block);
        uint64_t n_here = block ? 0 : prelude->body_bytes; /* body bytes kept with the message */
        uint64_t n_charged = is_own ? 0 : prelude->body_bytes; /* own segments are charged whole */
        size_t n_blocks = message_n_blocks(n_here);
        size_t n_tail = message_tail_bytes(n_here);
        bool is_small = message_is_small(prelude->meta_bytes, n_here);
        struct nd_message *message =
                is_small ? nd_slab_take(&store->small_messages, ND_MESSAGE_SMALL_BYTES)
                         : malloc(message_struct_bytes(prelude->meta_bytes, n_here));

        if (!message)
                return NULL;

        *message = (struct nd_message){
                .store = store,
                .n_refs = 1,
                .is_small = is_small,
                .is_retained = prelude->flags & ND_FLAG_RETAINED,
                .meta_bytes = prelude->meta_bytes,
                .body_bytes = prelude->body_bytes,
                /* a header may be shared, but it may as well be this message's alone */
                .cost_bytes = nd_message_cost(prelude->meta_bytes, prelude->body_bytes) + header->n,
                .charged_bytes = nd_message_cost(prelude->meta_bytes, n_charged) + header->n,
                .time_ns = prelude->time_ns,
                .header = nd_header_bytes_ref(header),
                .topic = nd_topic_ref(topic),
                .n_blocks = n_blocks,
        };
        message->own_bytes = message->cost_bytes;
        message->blocks = (uint8_t **)(message + 1);
        if (n_blocks > 0)
                memset(message->blocks, 0, n_blocks * sizeof(*message->blocks));
        message->tail = (uint8_t *)(message->blocks + n_blocks);
        message->meta = message->tail + n_tail;
        if (prelude->meta_bytes > 0)
                memcpy(message->meta, meta, prelude->meta_bytes);
        nd_list_init(&message->entries);
        nd_list_init(&message->in_publisher);
        if (block) {
                message->block = nd_block_want(block);
                block->message = message;
                message->received_bytes = is_own ? 0 : message->body_bytes;
                message->tail = is_own ? nd_block_bytes(block) : NULL;
        }
        ++store->n_messages;
        return message;
}

struct nd_message *nd_message_ref(struct nd_message *message)
{
        ++message->n_refs;
        return message;
}

static void message_leave_block(struct nd_message *message)
{
        struct nd_block *block = nd_steal(message->block);

        if (!block)
                return;
        block->message = NULL;
        nd_block_unwant(block);
}

struct nd_message *nd_message_unref(struct nd_message *message)
{
        if (!message || --message->n_refs > 0)
                return NULL;

        nd_assert(nd_list_is_empty(&message->entries));
        if (message->publisher)
                nd_credit_release(message);
        for (size_t i = message->n_blocks_freed; i < message->n_blocks && message->blocks[i]; ++i)
                nd_arena_give(&message->store->arena, message->blocks[i]);
        if (message->is_charged) {
                nd_memory_discharge(&message->store->memory, message->charged_bytes);
                message->store->messages_bytes -= message->charged_bytes;
        }
        nd_header_bytes_unref(message->header);
        nd_topic_unref(message->topic);
        message_leave_block(message);
        nd_message_unref(message->copy);
        --message->store->n_messages;
        if (message->is_small)
                nd_slab_give(&message->store->small_messages, message);
        else
                free(message);
        return NULL;
}

struct nd_message *nd_message_new_copy(const struct nd_message *message)
{
        const struct nd_prelude prelude = {.body_bytes = message->body_bytes};

        return nd_message_new(message->store, &prelude, message->header, message->topic, NULL,
                              NULL);
}

void nd_message_move(struct nd_message *message, struct nd_message *copy)
{
        nd_assert(copy->received_bytes == message->body_bytes);
        message->copy = copy;
        message->tail = copy->tail;
        message_leave_block(message);
}

bool nd_message_reach(struct nd_message *message)
{
        if (!message->tail)
                message->tail = nd_block_bytes(message->block);
        return message->tail;
}

bool nd_message_charge(struct nd_message *message)
{
        nd_assert(!message->is_charged);
        message->is_charged = nd_memory_charge(&message->store->memory, message->charged_bytes);
        if (message->is_charged)
                message->store->messages_bytes += message->charged_bytes;
        return message->is_charged;
}

void nd_message_add_cost(struct nd_message *message, uint64_t n_bytes)
{
        nd_assert(!message->is_charged);
        message->cost_bytes += n_bytes;
        message->charged_bytes += n_bytes;
}

/* Where body byte @at lies and how many follow it there; NULL where no block is yet. */
static uint8_t *
message_at(const struct nd_message *message, uint64_t at, uint64_t to, size_t *ret_n)
{
        size_t i_block = (size_t)(at / ND_BLOCK_BYTES);
        size_t offset = (size_t)(at % ND_BLOCK_BYTES);

        if (i_block >= message->n_blocks) {
                *ret_n = (size_t)(to - at);
                return message->tail + (at - message->n_blocks * (uint64_t)ND_BLOCK_BYTES);
        }
        *ret_n = (size_t)nd_min_u64(to - at, ND_BLOCK_BYTES - offset);
        return message->blocks[i_block] ? message->blocks[i_block] + offset : NULL;
}

size_t nd_message_space(struct nd_message *message,
                        uint64_t n_bytes,
                        struct iovec *iov,
                        size_t n_iov,
                        size_t *ret_n)
{
        uint64_t at = message->received_bytes;
        uint64_t to = at + n_bytes;
        size_t i = 0;

        nd_assert(to <= message->body_bytes);
        *ret_n = 0;
        if (message->block && !nd_own_fill(message->block->share, message->block->place + to))
                return 0;
        for (; at < to && i < n_iov; ++i) {
                size_t n;
                uint8_t *p = message_at(message, at, to, &n);

                if (!p) {
                        uint8_t **block = &message->blocks[at / ND_BLOCK_BYTES];

                        *block = nd_arena_take(&message->store->arena);
                        if (!*block)
                                break;
                        p = *block;
                }
                iov[i] = (struct iovec){.iov_base = p, .iov_len = n};
                at += n;
        }
        *ret_n = i;
        return (size_t)(at - message->received_bytes);
}

void nd_message_received(struct nd_message *message, size_t n_bytes)
{
        message->received_bytes += n_bytes;
        nd_assert(message->received_bytes <= message->body_bytes);
}

size_t nd_message_body(const struct nd_message *message,
                       uint64_t from,
                       uint64_t to,
                       struct iovec *iov,
                       size_t n_iov)
{
        size_t i = 0;

        if (message->copy)
                message = message->copy;
        nd_assert(to <= message->received_bytes);
        nd_assert(from >= message->n_blocks_freed * (uint64_t)ND_BLOCK_BYTES);
        for (; from < to && i < n_iov; ++i) {
                size_t n;
                uint8_t *p = message_at(message, from, to, &n);

                iov[i] = (struct iovec){.iov_base = p, .iov_len = n};
                from += n;
        }
        return i;
}

void nd_message_free_before(struct nd_message *message, uint64_t offset)
{
        size_t n = message_n_blocks(offset);

        for (; message->n_blocks_freed < n; ++message->n_blocks_freed) {
                uint8_t **block = &message->blocks[message->n_blocks_freed];

                nd_arena_give(&message->store->arena, *block);
                *block = NULL;
        }
}
